"""Who takes over the ranks of workers that have gone."""

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from dask_ma.data import Partition, describe, scheduler_workers
from dask_ma.engine._fit import _Fit
from dask_ma.engine._job import Job
from dask_ma.engine._lost_workers import (
    Losses,
    MemoryLosses,
    describe_memory,
    reassign,
)
from dask_ma.engine.recovery._memory import StateCopy, state_memory
from dask_ma.engine.recovery._states import NotStartedError
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


def log_end(client, worker, rss=2**30):
    client.log_event("worker-restart-memory", {"worker": worker, "pid": 7, "rss": rss})


def test_what_nannies_log_is_found(cluster):
    """Of the workers of the fit alone, and once."""
    memory = MemoryLosses()
    memory.watch({f"tcp://1.2.3.4:{port}": {"last_seen": 0.0} for port in (5, 7)})
    for worker in ("tcp://1.2.3.4:5", "tcp://6.7.8.9:0"):
        log_end(cluster, worker, 3 << 30)
    found = memory.look(cluster)
    assert found == memory.ended == {"tcp://1.2.3.4:5": 3 << 30}
    words = describe_memory(found)
    assert "tcp://1.2.3.4:5 with 3.00 GiB" in words and "data.persist" in words
    assert memory.look(cluster) == {}
    log_end(cluster, "tcp://1.2.3.4:7")
    assert memory.look(cluster) == {"tcp://1.2.3.4:7": 2**30}
    assert len(memory.ended) == 2


def test_what_became_of_other_processes_does_not_count(cluster, configured):
    """Of one with the same address, before the fit knew that."""
    address = min(cluster.nthreads())
    log_end(cluster, address)
    [*_, (logged, _)] = cluster.get_events("worker-restart-memory")

    async def show(dask_worker):  # else up to ten seconds later
        await dask_worker.heartbeat()

    while (workers := scheduler_workers(cluster))[address]["last_seen"] <= logged:
        cluster.run(show)
    fit = _Fit(job_of(np.zeros((4, 2))), cluster)
    fit._note_workers(workers)
    assert fit.memory.look(cluster) == {}
    log_end(cluster, address)
    assert fit.memory.look(cluster) == {address: 2**30}


def test_a_client_that_is_closed_knows_of_none():
    memory = MemoryLosses()
    memory.watch({"tcp://1.2.3.4:5": {"last_seen": 0.0}})
    with LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as alone:
        client = Client(alone, set_as_default=False)
        log_end(client, "tcp://1.2.3.4:5")
        assert memory.look(None) == {}
        client.close()
        assert memory.look(client) == {}


def job_of(X, name="Some"):
    return Job(None, None, (X, None, None), name, None, None, describe(X), 0, 1)


@pytest.fixture
def lose(cluster, monkeypatch):
    """``lose(fit, *addresses, ended=False)``: a fit loses workers."""

    def lose(fit, *addresses, ended=False):
        fit.memory.watch({address: {"last_seen": 0.0} for address in addresses})
        if ended:
            log_end(cluster, addresses[0])
        monkeypatch.setattr("dask_ma.engine._fit.find_lost", lambda *_: [*addresses])
        fit._note_loss(PeerLostError("gone"))

    return lose


def lazy(n_rows):
    return da.zeros((n_rows, 100), chunks=(n_rows // 2, 100))


def test_other_losses_do_not_count_as_want_of_memory(cluster, lose, configured):
    """Not even while the ranks of those that it has ended have not been replaced."""
    fit = _Fit(job_of(np.zeros((4, 2))), cluster)
    with configured({"dask-ma.recovery.max-memory-restarts": 1}):
        lose(fit, "tcp://a:1", ended=True)
        lose(fit, "tcp://a:2")
        lose(fit, "tcp://a:1", "tcp://a:3")  # the first one is still gone
        with pytest.raises(InsufficientMemoryError, match="after 2 losses"):
            lose(fit, "tcp://a:4", ended=True)


@pytest.mark.parametrize(
    ("X", "can_spare", "policy", "is_borne"),
    [
        (lazy(10**5), None, "restart", True),  # lost before they were placed
        (lazy(10**5), None, "continue", True),
        (lazy(10**5), True, "restart", True),
        (lazy(10**5), True, "continue", False),  # without the rows that are lost
        (lazy(10**5), False, "restart", False),  # on disks as it is
        (lazy(100), None, "restart", False),  # which always stay in memory
        (np.zeros((4, 2)), None, "restart", False),
        (np.zeros((4, 2)), False, "restart", False),
    ],
)
def test_rows_go_to_disks_before_a_fit_is_given_up(
    X, can_spare, policy, is_borne, cluster, lose, configured
):
    with configured(
        {
            "dask-ma.recovery.max-memory-restarts": 0,
            "dask-ma.on-worker-loss": policy,
        }
    ):
        fit = _Fit(job_of(X), cluster)
        if can_spare is not None:
            fit.shards = Partition([], 10**5, 100, None)
            fit.shards.can_spare = can_spare
        if is_borne:
            lose(fit, "tcp://b:1", ended=True)
            fit.spares_memory = True  # as the next attempt does
        with pytest.raises(InsufficientMemoryError, match="after 1 losses"):
            lose(fit, "tcp://b:2", ended=True)


def test_each_attempt_spares_memory_after_such_a_loss(cluster, lose, monkeypatch):
    asked = []

    def partition(*args, spares_memory, **kwargs):
        asked.append(spares_memory)
        raise PeerLostError("gone")

    monkeypatch.setattr("dask_ma.engine._fit.partition", partition)
    fit = _Fit(job_of(lazy(10**5)), cluster)
    for is_spared in (False, True):
        with pytest.raises(PeerLostError):
            fit._partition()
        assert fit.spares_memory == is_spared
        lose(fit, "tcp://c:1", ended=not is_spared)
    assert asked == [False, True]


@pytest.mark.parametrize("error", [NotStartedError("left"), PeerLostError("gone")])
def test_what_belongs_to_rows_goes_where_they_are_shared_out_anew(cluster, error):
    """And only there: after a loss, ranks on other workers go on with theirs."""
    fit = _Fit(job_of(np.zeros((4, 2))), cluster)
    fit.addresses = [*cluster.nthreads()]
    fit._note_workers(fit.addresses)
    kept = StateCopy(3, 4, None, {"model": 1}, {"rows": 2}, [], 0, 0.0)
    state_memory.put(fit.fit_id, 0, kept)
    fit._count_loss(error, {})
    _, found = state_memory.newest(fit.fit_id, 0)
    state_memory.forget(fit.fit_id)
    assert fit.trail.newest_round == 3
    assert found.shared == {"model": 1}
    assert found.own == ({"rows": 2} if isinstance(error, PeerLostError) else {})


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
