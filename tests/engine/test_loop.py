"""The loop of a fit: rounds, records, states to go on from, and the end."""

import time
from dataclasses import replace

import numpy as np
import pytest

from dask_ma.comm import allreduce, barrier
from dask_ma.engine import Method, RankContext, RoundLog, Snapshot, Work, fit_rounds
from dask_ma.engine.recovery import _states
from dask_ma.engine.recovery._identity import FitInfo
from dask_ma.engine.recovery._memory import state_memory
from dask_ma.engine.recovery._states import RegroupError

FIT_ID = "loop-of-the-tests"


class Meeting(Method):
    """Ranks have a number each, which goes half way to the mean of all in a round.

    Parameters
    ----------
    n : int
        Most rounds.
    enough : float, default=-1.0
        Spread of the numbers from which on the fit is done.
    every : int, default=1
        In how many rounds the spread is measured once.
    has_state : callable, default=None
        Whether there is a state after a round; in each of them if None.
    fails_in : int, default=None
        Round in which rank 1 fails.
    """

    def __init__(
        self, context, n, enough=-1.0, every=1, has_state=None, fails_in=None, log=None
    ):
        super().__init__(context, log)
        self.n, self.enough, self.every = n, enough, every
        self.has_state = has_state or (lambda n_rounds: True)
        self.fails_in = fails_in
        self.number, self.mean = None, None
        self.has_begun, self.lost = False, False

    @property
    def is_complete(self):
        return self.n_rounds >= self.n

    def begin(self):
        self.has_begun = True
        self.number = float(2**self.context.group.rank)
        self.mean = np.array(np.nan)

    def load_state_dict(self, state):
        self.mean = state.shared["mean"]
        self.lost = state.own is None
        self.number = float(self.mean if self.lost else state.own["number"])

    def state_dict(self):
        if not self.has_state(self.n_rounds):
            return None
        return Snapshot({"mean": self.mean}, {"number": np.array(self.number)})

    def round(self):
        group = self.context.group
        if self.n_rounds == self.fails_in:
            barrier(group)  # all have kept the round before
            if group.rank == 1:
                raise ZeroDivisionError
        self.mean = allreduce(group, np.array(self.number)) / group.size
        self.number = (self.number + float(self.mean)) / 2
        return Work(group.rank + 1, {"is_odd": self.n_rounds % 2})

    def measure(self):
        if self.n_rounds % self.every and not self.is_complete:
            return None
        return [np.array([1.0]), np.array((self.number - self.mean) ** 2)]

    def record(self, record, sums):
        record["n_ranks"], record["spread"] = int(sums[0][0]), float(sums[1])

    def is_done(self, record):
        assert self.context.history[-1] is record
        return record["spread"] <= self.enough

    def model(self):
        return {"mean": float(self.mean)}


def spread(n_rounds, size=3):
    """By the formula: distances to the mean are halved in a round."""
    return np.sum((2.0 ** np.arange(size) - (2**size - 1) / size) ** 2) / 4**n_rounds


def meet(
    run_ranks,
    n,
    listener=None,
    *,
    size=3,
    kind=Meeting,
    fit_info=None,
    replica_of=None,
    goes_on=False,
    add_up=None,
    then=None,
    **chosen,
):
    """What each rank has after a fit: how it has ended, its method, what was saved."""

    def program(group):
        context = RankContext(
            group,
            0,
            listening=listener is not None,
            listener=listener if group.rank == 0 else None,
            fit_info=fit_info,
        )
        saved, save = [], context.save_state

        def save_state(n_rounds, shared, own, **flags):
            saved.append((n_rounds, shared, flags))
            save(n_rounds, shared, own, **flags)

        context.save_state = save_state
        method = kind(context, n, **chosen)
        state = context.restore_state(replica_of)
        ended = fit_rounds(context, method, state, goes_on=goes_on, add_up=add_up)
        if then is not None:
            then(context, method)
        return ended, method, saved

    return run_ranks(program, size)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_history_has_a_record_of_each_round(run_ranks, size):
    results = meet(run_ranks, 4, size=size)
    for ended, method, _ in results:
        assert ended == (False, False)
        assert method.has_begun
        history = method.context.history
        assert [record["round"] for record in history] == [1, 2, 3, 4]
        assert [record["is_odd"] for record in history] == [1, 0, 1, 0]
        assert {record["n_ranks"] for record in history} == {size}
        # Counted on each rank, and added up.
        assert {record["n_samples"] for record in history} == {size * (size + 1) // 2}
        spreads = [record["spread"] for record in history]
        expected = [spread(number, size) for number in (1, 2, 3, 4)]
        np.testing.assert_allclose(spreads, expected, atol=1e-14)


def test_waiting_is_not_computing(run_ranks):
    """Also within what is timed, as where an evaluation adds up over ranks."""

    def agent(group):
        log = RoundLog(RankContext(group, 0))
        start = time.perf_counter()
        with log.computing():
            if group.rank == 0:
                time.sleep(0.1)
                group.send(None, 1)
            else:
                group.recv(0)
        elapsed = time.perf_counter() - start
        log.note(1, 0)
        *_, computing, waiting = log.counters[0]
        assert computing >= 0
        assert computing + waiting <= elapsed
        return waiting

    assert run_ranks(agent, 2)[1] > 0


def test_no_round_where_all_have_been_made(run_ranks):
    for ended, method, saved in meet(run_ranks, 0):
        assert ended == (False, False)
        assert method.context.history == saved == []


def test_the_method_ends_its_rounds(run_ranks):
    for ended, method, saved in meet(run_ranks, 50, enough=spread(5) * 1.01):
        assert ended == (True, False)
        assert method.n_rounds == len(method.context.history) == 5
        assert [shared["stop"] for _, shared, _ in saved] == [False] * 4 + [True]
        assert [flags["done"] for *_, flags in saved] == [False] * 4 + [True]


def test_a_listener_sees_the_models_and_ends_the_rounds(run_ranks):
    heard = []

    def listener(record, fetch):
        heard.append((record["round"], fetch()["mean"]))
        return np.bool_(record["round"] == 3)

    results = meet(run_ranks, 50, listener)
    assert heard == [(number, pytest.approx(7 / 3)) for number in (1, 2, 3)]
    for ended, method, saved in results:
        assert ended == (True, True)
        assert method.n_rounds == 3
        assert saved[-1][1]["wanted"] is True  # a flag that JSON knows


def test_a_model_is_described_only_for_those_who_follow(run_ranks):
    class Secret(Meeting):
        def model(self):
            raise AssertionError("nobody has asked")

    meet(run_ranks, 2, kind=Secret)
    with pytest.raises(AssertionError, match="nobody has asked"):
        meet(run_ranks, 2, lambda record, fetch: False, kind=Secret)


def test_a_listener_cannot_end_what_needs_all_rounds(run_ranks):
    class Whole(Meeting):
        may_be_ended = False

    for ended, method, _ in meet(run_ranks, 4, lambda *_: True, kind=Whole):
        assert ended == (False, False)
        assert method.n_rounds == 4


def test_records_wait_for_an_evaluation(run_ranks):
    told = []

    def listener(record, fetch):
        told.append((record["round"], "spread" in record))
        return False

    results = meet(run_ranks, 5, listener, every=2)
    assert told == [(1, False), (2, True), (3, False), (4, True), (5, True)]
    for _, method, saved in results:
        assert [record["n_samples"] for record in method.context.history] == [6] * 5
        assert [n_rounds for n_rounds, *_ in saved] == [1, 2, 3, 4, 5]


def test_without_a_state_no_fit_ends(run_ranks):
    """As between the rounds of a pass after which alone the ranks agree."""
    results = meet(
        run_ranks,
        50,
        lambda record, fetch: record["round"] == 4,
        has_state=lambda n_rounds: n_rounds % 3 == 0,
    )
    for ended, method, saved in results:
        assert ended == (True, True)
        assert method.n_rounds == 6
        assert [n_rounds for n_rounds, *_ in saved] == [3, 6]


def test_a_state_that_is_not_settled_says_so(run_ranks):
    class Restless(Meeting):
        def state_dict(self):
            return super().state_dict()._replace(settled=self.n_rounds == 2)

    for *_, saved in meet(run_ranks, 3, kind=Restless):
        assert [flags["settled"] for *_, flags in saved] == [False, True, False]


def test_other_rounds_of_the_fit_follow(run_ranks):
    """Their numbers and counters go on; only the last round of all is the end."""

    def then(context, method):
        more = Meeting(context, 5, log=method.log)
        more.begin()
        more.n_rounds = method.n_rounds
        fit_rounds(context, more)

    for _, method, saved in meet(run_ranks, 3, goes_on=True, then=then):
        assert [n_rounds for n_rounds, *_ in saved] == [1, 2, 3, 4, 5]
        assert [flags["done"] for *_, flags in saved] == [False] * 4 + [True]
        history = method.context.history
        assert [record["n_samples"] for record in history] == [6] * 5
        assert [record["round"] for record in history] == [1, 2, 3, 4, 5]


def test_nothing_follows_what_a_listener_has_ended(run_ranks):
    for *_, saved in meet(run_ranks, 5, lambda *_: True, goes_on=True):
        assert [flags["done"] for *_, flags in saved] == [True]


def test_sums_by_another_way(run_ranks):
    def add_up(arrays):
        return [3 * np.ones(1), np.array(7.0), np.arange(6.0)]

    for _, method, _ in meet(run_ranks, 1, add_up=add_up):
        [record] = method.context.history
        assert (record["n_ranks"], record["spread"]) == (3, 7.0)
        assert record["messages_sent"] == 3


# Going on --------------------------------------------------------------------------


@pytest.fixture
def fit_infos():
    """The first and the second launch of a fit that keeps its states in memory."""
    state_memory.forget(FIT_ID)
    first = FitInfo(name="Meeting", fit_id=FIT_ID, keeps=True)
    yield first, FitInfo(name="Meeting", fit_id=FIT_ID, attempt=1, keeps=True)
    state_memory.forget(FIT_ID)


def lose(rank):
    """The process of a rank is gone, and with it what it had kept."""
    kept = state_memory.get(FIT_ID, rank)
    assert kept is not None
    state_memory.drop(FIT_ID, rank, kept)


@pytest.mark.parametrize("fails_in", [1, 2, 4])
def test_ranks_that_start_again_go_on(run_ranks, fit_infos, fails_in):
    first, second = fit_infos
    whole = meet(run_ranks, 6)
    with pytest.raises(ZeroDivisionError):
        meet(run_ranks, 6, fit_info=first, fails_in=fails_in)
    again = meet(run_ranks, 6, fit_info=second)
    for (ended, method, saved), (_, expected, _) in zip(again, whole, strict=True):
        assert ended == (False, False)
        assert method.has_begun == (fails_in == 1)
        assert [n_rounds for n_rounds, *_ in saved] == [*range(fails_in, 7)]
        assert method.number == expected.number
        history = method.context.history
        restarts = [record["restarts"] for record in history]
        assert restarts == [0] * (fails_in - 1) + [1] * (7 - fails_in)
        for record, other in zip(history, expected.context.history, strict=True):
            for name in ("round", "spread", "n_samples"):
                assert record[name] == other[name]


def test_a_rank_that_has_lost_its_own_state(run_ranks, fit_infos):
    first, second = fit_infos
    with pytest.raises(ZeroDivisionError):
        meet(run_ranks, 4, fit_info=first, fails_in=4)
    lose(2)
    results = meet(run_ranks, 4, fit_info=second)
    assert [method.lost for _, method, _ in results] == [False, False, True]
    assert [method.n_rounds for _, method, _ in results] == [4, 4, 4]


def test_another_rank_stands_in(run_ranks, fit_infos):
    first, second = fit_infos
    with pytest.raises(ZeroDivisionError):
        meet(run_ranks, 4, fit_info=first, fails_in=4)
    lose(2)

    def replica_of(rank, shared):
        assert shared["stop"] is False
        return 0 if rank == 2 else rank

    results = meet(run_ranks, 4, fit_info=second, replica_of=replica_of)
    numbers = [method.number for _, method, _ in results]
    assert not any(method.lost for _, method, _ in results)
    assert numbers[2] == numbers[0] != numbers[1]


@pytest.mark.parametrize("wanted", [False, True])
def test_a_fit_that_has_ended_makes_no_round(run_ranks, fit_infos, wanted):
    """However many it may make; and who has ended it is known."""
    first, second = fit_infos
    listener = (lambda record, fetch: record["round"] == 2) if wanted else None
    enough = -1.0 if wanted else spread(2) * 1.01
    meet(run_ranks, 50, listener, fit_info=first, enough=enough)
    for ended, method, saved in meet(run_ranks, 90, fit_info=second):
        assert ended == (True, wanted)
        assert (method.n_rounds, saved) == (2, [])
        assert len(method.context.history) == 2


def test_a_fit_may_make_more_rounds(run_ranks, fit_infos):
    first, second = fit_infos
    meet(run_ranks, 2, fit_info=first)
    for ended, method, _ in meet(run_ranks, 3, fit_info=second):
        assert ended == (False, False)
        assert [r["round"] for r in method.context.history] == [1, 2, 3]


class Sparing(Meeting):
    """One that keeps a state only where its ranks end to start again, if even then."""

    def __init__(self, context, n, *, keeps_rest, ends_in=None):
        super().__init__(context, n)
        self.keeps_rest, self.ends_in = keeps_rest, ends_in

    def state_dict(self):
        if self.n_rounds == self.ends_in and self.context.group.rank == 0:
            _states._regroup_wanted.add(None)  # the run has no name
        rest = self.rest if self.keeps_rest else None
        own = {"number": np.array(self.number)}
        return Snapshot({}, own, in_memory=False, rest=rest)

    def rest(self):
        assert self.n_rounds == self.ends_in
        return {"mean": allreduce(self.context.group, self.mean) / 3}


@pytest.mark.parametrize("keeps_rest", [True, False])
def test_what_is_kept_only_where_ranks_start_again(run_ranks, fit_infos, keeps_rest):
    first, second = (replace(info, elastic=True) for info in fit_infos)
    chosen = {"kind": Sparing, "keeps_rest": keeps_rest}
    try:
        with pytest.raises(RegroupError):
            meet(run_ranks, 6, fit_info=first, ends_in=3, **chosen)
    finally:
        _states.forget_request(None)
    for _, method, saved in meet(run_ranks, 6, fit_info=second, **chosen):
        assert method.has_begun is not keeps_rest
        n_rounds = [n_rounds for n_rounds, *_ in saved]
        assert n_rounds == ([4, 5, 6] if keeps_rest else [1, 2, 3, 4, 5, 6])
        if keeps_rest:  # rows are shared out anew, and what goes with them is dropped
            assert method.number == pytest.approx(7 / 3)
