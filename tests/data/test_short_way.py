"""Large objects and a scheduler of this process, which has no second copy of them."""

import asyncio
import signal
import threading
import time

import numpy as np
import pandas as pd
import pytest
from distributed import Client

from dask_ma.data import _collections, partition
from dask_ma.exceptions import PeerLostError
from tests.shared.traced import traced

N, D = 25_000, 200  # 40 MB


@pytest.fixture
def ways(monkeypatch, client):
    """Of each object that is sent, whether it goes without the scheduler."""
    found = []
    scatter = client.scatter

    def scattering(*args, direct=None, **kwargs):
        found.append(direct)
        return scatter(*args, direct=direct, **kwargs)

    monkeypatch.setattr(client, "scatter", scattering)
    monkeypatch.setattr(_collections, "_UNDER_WAY", 160)
    return found


def sent(client, addresses, nbytes):
    """What a worker has got, and where it lies."""
    futures = _collections.scatter_each(
        client, lambda place: np.full(30, place), addresses, nbytes=nbytes
    )
    values = [future.result()[0] for future in futures]
    where = client.who_has(futures)
    return values, [where[future.key] for future in futures]


@pytest.mark.parametrize(
    ("convert", "factor"),
    [
        (np.asarray, 0.1),
        (np.asfortranarray, 1.1),
        (lambda X: np.repeat(X, 2, axis=1)[:, ::2], 1.1),
        (pd.DataFrame, 0.1),
    ],
    ids=["rows", "columns", "every second", "frame"],
)
def test_rows_of_one_rank_are_copied_once_at_most(processes, convert, factor):
    X, y = convert(np.ones((N, D))), np.zeros(N)
    [address, *_] = sorted(processes.nthreads())
    with traced() as memory:
        result = partition(X, y, n_ranks=1, addresses=[address], client=processes)
    assert result.bytes_scattered >= 8 * N * D
    assert memory.peak < factor * 8 * N * D


def test_small_objects_go_by_way_of_the_scheduler(client, workers, clean, ways):
    values, where = sent(client, workers, nbytes=160)
    assert values == [0, 1, 2, 3] and where == [[worker] for worker in workers]
    assert ways == [None] * 4


def test_large_objects_go_straight_to_their_workers(client, workers, clean, ways):
    values, where = sent(client, workers, nbytes=960)
    assert values == [0, 1, 2, 3] and where == [[worker] for worker in workers]
    assert ways == [True] * 4


@pytest.mark.parametrize("error", [TimeoutError, OSError])
def test_scheduler_sends_what_does_not_arrive(
    monkeypatch, client, workers, clean, error
):
    scatter, refused = client.scatter, []

    async def scattering(*args, direct=None, **kwargs):
        if direct:
            refused.append(kwargs["workers"])
            raise error
        return await scatter(*args, direct=direct, **kwargs)

    monkeypatch.setattr(client, "scatter", scattering)
    monkeypatch.setattr(_collections, "_UNDER_WAY", 160)
    values, where = sent(client, workers, nbytes=960)
    assert values == [0, 1, 2, 3] and where == [[worker] for worker in workers]
    assert refused == [[worker] for worker in workers]


def test_worker_that_is_not_there(monkeypatch, client, clean):
    monkeypatch.setattr(_collections, "_UNDER_WAY", 160)
    monkeypatch.setattr(_collections, "_SHORT_WAY", 0.05)
    with pytest.raises(PeerLostError, match="has gone while data were being sent"):
        sent(client, ["tcp://127.0.0.1:1"], nbytes=960)


@pytest.fixture
def interruptible():
    """Ctrl-C, whatever handler another test has left."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("nbytes", "message", "is_there"),
    [(160, "scatter", True), (960, "update_data", False)],
    ids=["by way of the scheduler", "straight"],
)
def test_nothing_is_left_of_what_is_interrupted(
    monkeypatch, client, workers, clean, interruptible, nbytes, message, is_there
):
    """Ctrl-C after a worker has an object, before the client has a future of it."""
    monkeypatch.setattr(_collections, "_UNDER_WAY", 160)
    send, arrived, caught = getattr(client.scheduler, message), [], threading.Event()

    async def sending(**message):
        found = await send(**message) if is_there else None
        if not arrived:
            arrived.append(message["client"])
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        while not caught.is_set():
            await asyncio.sleep(0.01)
        return found if is_there else await send(**message)

    monkeypatch.setattr(client.scheduler, message, sending, raising=False)
    with pytest.raises(KeyboardInterrupt):
        sent(client, workers, nbytes)
    client.sync(asyncio.sleep, 0.05)  # until what waits for the answer has been cut off
    caught.set()
    assert arrived
    held = [1]
    for _ in range(500):
        held = list(client.run(lambda dask_worker: len(dask_worker.data)).values())
        if not any(held):
            break
        time.sleep(0.02)
    assert not any(held)


def test_scheduler_that_may_be_elsewhere(client, workers, clean, monkeypatch):
    """Whoever knows its address alone does not know whether it reaches the workers."""
    monkeypatch.setattr(_collections, "_UNDER_WAY", 160)
    with Client(client.scheduler.address, set_as_default=False) as other:
        scatter, found = other.scatter, []

        def scattering(*args, direct=None, **kwargs):
            found.append(direct)
            return scatter(*args, direct=direct, **kwargs)

        monkeypatch.setattr(other, "scatter", scattering)
        assert sent(other, workers[:1], nbytes=960)[0] == [0]
    assert found == [None]
