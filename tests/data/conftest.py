"""Clusters and helpers for the tests of the data layer."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from distributed import Client, LocalCluster

from dask_ma.data import Partition, Shard, build_shard


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Client of four workers with one thread each, in this process."""
    with (
        LocalCluster(
            n_workers=4,
            threads_per_worker=1,
            processes=False,
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def workers(client: Client) -> list[str]:
    """Addresses of the four workers."""
    return sorted(client.nthreads())


def tasks(client: Client) -> list[object]:
    """Keys on the scheduler."""
    return client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))


def tasks_left(client: Client) -> list[object]:
    """Keys on the scheduler once it has had time to forget what was released."""
    for _ in range(500):
        left = tasks(client)
        if not left:
            break
        time.sleep(0.02)
    return left


@pytest.fixture
def clean(client: Client) -> Iterator[None]:
    """The cluster holds no data after the test, without help of the collector."""
    if tasks(client):
        gc.collect()
    assert not tasks_left(client)
    yield
    assert not tasks_left(client)


@pytest.fixture
def build(client: Client) -> Callable[..., list[Shard]]:
    """Build all shards of a partition, each on the worker of its rank."""

    def build_all(
        result: Partition, addresses: list[str], **options: object
    ) -> list[Shard]:
        tasks = [
            client.submit(build_shard, s.arguments, workers=[a], pure=False, **options)
            for s, a in zip(result.shards, addresses, strict=True)
        ]
        try:
            return client.gather(tasks)
        except Exception:
            result.release()
            raise
        finally:
            for task in tasks:
                task.release()

    return build_all


def dense(X: object) -> np.ndarray:
    """Dense copy of a block."""
    return X.toarray() if hasattr(X, "toarray") else np.asarray(X)


@pytest.fixture
def stack() -> Callable[[list[Shard]], tuple[np.ndarray, np.ndarray]]:
    """Put the rows of shards back together, in the order of the ranks."""

    def stack_all(shards: list[Shard]) -> tuple[np.ndarray, np.ndarray]:
        blocks = [block for shard in shards for block in shard.blocks]
        return (
            np.concatenate([dense(block.X) for block in blocks]),
            np.concatenate([block.y for block in blocks]),
        )

    return stack_all
