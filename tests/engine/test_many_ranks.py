"""What hundreds of ranks cost the client and rank 0, by counting."""

from types import SimpleNamespace

import numpy as np
import pytest

import dask_ma.engine._monitor
from dask_ma.comm import (
    LocalGroup,
    allgather,
    allreduce,
    barrier,
    broadcast,
    gather,
    weighted_mean,
)
from dask_ma.comm._dask import children_of, parent_of
from dask_ma.engine._launch import launch
from dask_ma.engine._monitor import RunMonitor

SMALL, LARGE = np.ones(4), np.ones(1 << 17)
# Per doubling of the ranks: messages that a rank sends at most, and that it receives.
COLLECTIVES = {
    "barrier": (barrier, 1, 1),
    "broadcast": (lambda group: broadcast(group, SMALL), 1, 1),
    "small allreduce": (lambda group: allreduce(group, SMALL), 1, 1),
    "large allreduce": (lambda group: allreduce(group, LARGE), 2, 2),
    "weighted mean": (lambda group: weighted_mean(group, SMALL, 1.0), 2, 2),
    "allgather": (lambda group: allgather(group, SMALL), 1, 1),
}


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("size", [16, 64])
def test_messages_of_a_rank_grow_with_the_logarithm(run_ranks, name, size):
    collective, n_sent, n_received = COLLECTIVES[name]

    def program(group):
        collective(group)
        return group.counters.messages_sent, group.counters.messages_received

    sent, received = zip(*run_ranks(program, size, 1), strict=True)
    n_steps = int(np.log2(size))
    assert max(sent) <= n_sent * n_steps
    assert max(received) <= n_received * n_steps


def test_a_gather_takes_a_message_of_each_rank():
    first, *others = LocalGroup.create(64, 1)
    for group in others:
        gather(group, SMALL)
        assert group.counters.messages_sent == 1
    gather(first, SMALL)
    assert first.counters.messages_received == 63


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 100, 1000])
def test_addresses_reach_all_ranks_and_each_tells_two(size):
    """A list of all ranks: who tells more of them than two sends more than O(P)."""
    told = [child for rank in range(size) for child in children_of(rank, size)]
    assert sorted(told) == list(range(1, size))
    assert max(len(children_of(rank, size)) for rank in range(size)) <= 2
    for rank in range(1, size):
        assert rank in children_of(parent_of(rank), size)
    depths = [0] * size
    for rank in range(1, size):
        depths[rank] = depths[parent_of(rank)] + 1
    assert max(depths) == size.bit_length() - 1


@pytest.fixture
def monitor():
    """Follows a run that does not exist, with as many tasks as are given."""
    run = SimpleNamespace(name="Model", run_id="none", addresses=())

    def make(status, n_ranks):
        found = RunMonitor(run, None, None)
        ended = SimpleNamespace(status=status, add_done_callback=lambda note: None)
        found.start([ended] * n_ranks)
        for future in found._futures:
            found._note_end(future)
        return found._news.qsize()

    return make


@pytest.mark.parametrize("status", ["finished", "error"])
@pytest.mark.parametrize("n_ranks", [1, 100])
def test_the_client_looks_at_all_ranks_a_few_times(monitor, status, n_ranks):
    """Not each time that one of them ends, since it looks at all of them."""
    assert 1 <= monitor(status, n_ranks) <= 2


def test_each_worker_is_told_once_that_the_run_has_ended(inproc_client, monkeypatch):
    """However many ranks it carries."""
    told = []
    original = dask_ma.engine._monitor.run_on

    def run_on(client, workers, function, *args):
        told.extend((function.__name__, worker) for worker in workers)
        return original(client, workers, function, *args)

    def agent(context, shard, params):
        if context.group.rank == 5:
            raise ZeroDivisionError("rank 5")
        barrier(context.group)

    monkeypatch.setattr(dask_ma.engine._monitor, "run_on", run_on)
    workers = sorted(inproc_client.nthreads())
    addresses = [workers[rank % len(workers)] for rank in range(32)]
    with pytest.raises(ZeroDivisionError):
        launch(agent, [None] * 32, name="A", client=inproc_client, addresses=addresses)
    assert sorted(told) == [("_end_run", worker) for worker in workers]
