"""Who takes over the ranks of workers that have gone."""

import pytest
from distributed import Client, LocalCluster

from dask_ma.engine._lost_workers import (
    Losses,
    describe_memory,
    ended_for_memory,
    reassign,
)
from dask_ma.exceptions import InsufficientMemoryError, PeerLostError


@pytest.mark.parametrize(
    ("before", "threads", "after"),
    [
        ("abc", {"a": 1, "b": 1, "c": 1}, "abc"),
        ("abc", {"a": 1, "b": 1, "d": 1}, "abd"),  # a new worker has a free thread
        ("abc", {"a": 1, "c": 1}, "aac"),
        ("aabb", {"a": 2, "c": 4}, "aacc"),
        ("aabb", {"a": 4, "c": 2}, "aaca"),  # in turn, by free threads
        ("abcd", {"e": 1}, "eeee"),
    ],
)
def test_ranks_stay_where_they_can(before, threads, after):
    assert reassign(list(before), threads) == list(after)


# -- Workers that were ended for want of memory -------------------------------------


def test_what_nannies_log_is_found(cluster):
    """Of the workers of the fit alone."""
    for worker in ("tcp://1.2.3.4:5", "tcp://6.7.8.9:0"):
        event = {"worker": worker, "pid": 7, "rss": 3 << 30}
        cluster.log_event("worker-restart-memory", event)
    found = ended_for_memory(cluster, ["tcp://1.2.3.4:5", "tcp://7.7.7.7:7"])
    assert found == {"tcp://1.2.3.4:5": 3 << 30}
    words = describe_memory(found)
    assert "tcp://1.2.3.4:5 with 3.00 GiB" in words and "data.persist" in words


def test_a_client_that_is_closed_knows_of_none():
    with LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as alone:
        client = Client(alone, set_as_default=False)
        client.close()
        assert ended_for_memory(client, ["tcp://1.2.3.4:5"]) == {}


def test_losses_for_want_of_memory_end_a_fit(configured):
    """Two more of them are borne, unless there has been a round meanwhile."""
    losses, error, ended = Losses("Some"), PeerLostError("gone"), {"tcp://a": 2**30}
    for newest_round in (0, 0, 1, 1, 2):
        losses.count(error, newest_round, ended)
    losses.count(error, 2, {})  # of another kind
    losses.count(error, 2, ended)
    wanted = (
        r"Some was given up after 3 losses since the fit has come to round 2 "
        r"\(.*max-memory-restarts\); nannies ended .* tcp://a with 1.00 GiB. Take more"
    )
    with pytest.raises(InsufficientMemoryError, match=wanted) as caught:
        losses.count(error, 2, ended)
    assert caught.value.__cause__ is error
    with configured({"dask-ma.recovery.max-memory-restarts": 0}):
        with pytest.raises(InsufficientMemoryError, match="after 1 losses"):
            losses.count(error, 3, ended)
