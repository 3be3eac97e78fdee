"""What only separate worker processes can show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse as sp
from distributed import Client, wait

from dask_ma.data import build_shard, partition
from dask_ma.exceptions import PeerLostError


@pytest.fixture
def processes(killable_client: Client) -> Iterator[Client]:
    """The current client, of two worker processes that are both there."""
    killable_client.wait_for_workers(2, timeout=60)
    with killable_client.as_current():
        yield killable_client


def received(client):
    """Number of transfers that each worker has received from others so far."""

    def incoming(dask_worker):
        return dask_worker.state.transfer_incoming_count_total

    return client.run(incoming)


def test_persisted_round_robin_moves_nothing(processes):
    client, addresses = processes, sorted(processes.nthreads())
    X = da.random.default_rng(0).random((8000, 50), chunks=(1000, 50))
    X = X.map_blocks(sp.csr_array, meta=sp.csr_array((0, 0)))
    y = da.arange(8000, chunks=1000) % 2
    places = {}
    for array in (X, y):
        for block, key in enumerate(array.__dask_keys__()):
            places[key[0] if isinstance(key, list) else key] = addresses[block % 2]
    pins = defaultdict(list, {k: [v] for k, v in places.items()})
    with dask.annotate(workers=pins.__getitem__):
        X, y = client.persist([X, y])
    wait([X, y])
    held, before = client.who_has([X, y]), received(client)
    result = partition(X, y, n_ranks=2, addresses=addresses, client=client)
    tasks = [
        client.submit(build_shard, spec.arguments, workers=[address], pure=False)
        for spec, address in zip(result.shards, addresses, strict=True)
    ]
    wait(tasks)
    assert received(client) == before
    assert client.who_has([X, y]) == held
    assert result.bytes_moved == result.bytes_followed == result.bytes_scattered == 0
    counts = client.gather(
        client.map(lambda shard: (shard.n_rows, shard.is_sparse), tasks, pure=False)
    )
    assert counts == [(4000, True), (4000, True)]


def test_lazy_blocks_are_computed_in_place(processes):
    client, addresses = processes, sorted(processes.nthreads())
    X = da.random.default_rng(0).random((8000, 50), chunks=(1000, 50))
    before = received(client)
    result = partition(
        X, da.zeros(8000, chunks=1000), n_ranks=2, addresses=addresses, client=client
    )
    tasks = [
        client.submit(build_shard, spec.arguments, workers=[address], pure=False)
        for spec, address in zip(result.shards, addresses, strict=True)
    ]
    wait(tasks)
    assert received(client) == before
    assert result.bytes_moved == 0


def test_scatter_between_processes(processes):
    client, addresses = processes, sorted(processes.nthreads())
    X = sp.random_array((500, 20), density=0.1, format="csr", rng=0)
    result = partition(X, np.arange(500), n_ranks=2, addresses=addresses, client=client)
    shards = client.gather(
        [
            client.submit(build_shard, s.arguments, workers=[a], pure=False)
            for s, a in zip(result.shards, addresses, strict=True)
        ]
    )
    rows = sp.vstack([block.X for shard in shards for block in shard.blocks])
    assert (rows != X).nnz == 0


def test_worker_that_dies_while_it_computes(processes):
    client, addresses = processes, sorted(processes.nthreads())

    def die(block):
        import os
        import time

        time.sleep(0.5)
        os._exit(1)

    X = da.ones((4, 2), chunks=(2, 2)).map_blocks(die, meta=np.empty((0, 0)))
    with pytest.raises(PeerLostError, match="have gone while"):
        partition(X, np.ones(4), n_ranks=2, addresses=addresses, client=client)
