"""Messages of exchanges in the background, and what they may cost."""

import pytest

from dask_ma.comm import LocalGroup
from dask_ma.mpca.strategies import _messages
from dask_ma.mpca.strategies._messages import CoalescedMessages, ExchangeBudget

KINDS = "model", "joint"


@pytest.fixture
def ranks():
    return [
        CoalescedMessages(group, KINDS)
        for group in LocalGroup.create(3, ranks_per_node=1)
    ]


def test_what_is_put_for_a_rank_travels_in_one_message():
    groups = LocalGroup.create(2, ranks_per_node=1)
    first, second = (CoalescedMessages(group, KINDS) for group in groups)
    for kind in KINDS:
        first.put(kind, kind.upper(), 1)
    first.send()
    first.send()  # nothing is left to send
    assert groups[0].counters.messages_sent == 1
    second.look()
    second.put("model", "own", 1)
    assert second.take("model") == ["MODEL", "own"]
    assert second.take("joint") is None  # this rank's own is missing


def test_things_of_a_kind_keep_their_order(ranks):
    for number in range(2):
        for sender in range(3):
            for dest in range(3):
                ranks[sender].put("model", (number, sender), dest)
            ranks[sender].send()
    for rank in ranks:
        rank.look()
        assert rank.take("model") == [(0, 0), (0, 1), (0, 2)]
        assert rank.take("model") == [(1, 0), (1, 1), (1, 2)]
        assert rank.take("model") is None
        assert rank.take("joint") is None


def test_a_rank_waits_for_a_message_only(ranks, configured):
    ranks[0].put("model", 1, 2)
    ranks[0].send()
    ranks[2].wait()
    ranks[2].look()
    with configured({"dask-ma.comm.timeout": "10 ms"}):
        with pytest.raises(TimeoutError, match="message"):
            ranks[2].wait()


class Carrier:
    """A group whose messages take some processor time."""

    local_ranks = range(2)
    carried = 1.0

    def carrier_time(self):
        return self.carried


def test_exchanges_have_their_share_of_the_time(monkeypatch):
    group = Carrier()
    own = iter([0.0, 0.5])
    monkeypatch.setattr(_messages, "thread_time", lambda: next(own))
    share = ExchangeBudget(0.25, group)
    assert share.is_due(0.0)  # nothing has been spent yet
    with share.exchanging():
        group.carried += 1.0  # for both ranks of the process
    # 0.5 s of this rank and half a second of the messages.
    assert not share.is_due(3.9)
    assert share.is_due(4.0)


def test_what_lies_back_counts_for_less():
    """After a dear exchange and many cheap ones, the pace is that of cheap ones."""
    group = Carrier()
    share = ExchangeBudget(0.5, group)
    group.carried += 4.0  # 2 s for each of the two ranks
    computed, waits = 0.0, []
    for _ in range(60):
        start = computed
        while not share.is_due(computed):
            computed += 0.01
        waits.append(computed - start)
        share.note_exchange(computed)
        group.carried += 0.2
    assert waits[0] == pytest.approx(4.0, abs=0.02)
    assert waits[-1] == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("part", [0, -0.1, float("nan")])
def test_a_share_of_nothing_is_refused(part):
    with pytest.raises(ValueError, match="exchange-share"):
        ExchangeBudget(part, Carrier())
