"""Who takes over the ranks of workers that have gone."""

import pytest
from distributed import Client, LocalCluster

from dask_ma.engine._lost_workers import describe_memory, ended_for_memory, reassign


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
