"""Networks trained by ``torch.distributed`` on the workers of a Dask cluster.

DistributedDataParallel over gloo makes each step with the gradients of all ranks.
Post-local SGD (Lin et al. 2020) begins like that, and then has each rank make `period`
steps of its own from one mean of the models to the next. Both train, hold rows out and
score them as ``mpca_lead.py`` has the estimators do it, on the same blocks of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

_PATIENCE = 300  # seconds that a rank waits for the others


class Plan(NamedTuple):
    """What all ranks do.

    Attributes
    ----------
    network : callable
        Makes the module.
    shape : tuple of int
        Of a row as the module takes it; empty for rows as they are.
    rate : float
        Step size of Adam.
    batch : int
        Rows of a batch on each rank.
    n_epochs : int
        Most epochs.
    seed : int
        Of first values, shuffles and rows held out.
    target : float
        Accuracy on the rows held out at which training ends.
    period : int or None
        Steps from one mean of the models to the next; None adds up gradients.
    limit : float
        Seconds after which training ends with the epoch.
    """

    network: Callable[[], Any]
    shape: tuple[int, ...]
    rate: float
    batch: int
    n_epochs: int
    seed: int
    target: float
    period: int | None = None
    limit: float = float("inf")


class Outcome(NamedTuple):
    """What a rank has come to.

    Attributes
    ----------
    history : list of dict
        Records of each epoch: `time` since all ranks run, `epoch`, `validation_score`.
    state : dict of str to ndarray
        Values of the module.
    """

    history: list[dict[str, Any]]
    state: dict[str, np.ndarray]


def train(client: Any, blocks: list[tuple[Any, Any]], plan: Plan) -> Outcome:
    """Train on blocks that lie with the workers, one of each.

    Parameters
    ----------
    client : Client
    blocks : list of tuple of Future
        Rows and labels of each rank.
    plan : Plan

    Returns
    -------
    outcome : Outcome
        Of rank 0.
    """
    holders = client.who_has([X for X, _ in blocks])
    places = [holders[X.key][0] for X, _ in blocks]
    meeting = client.submit(free_address, workers=[places[0]], pure=False).result()
    futures = [
        client.submit(
            train_rank, X, y, plan, rank, len(blocks), meeting,
            workers=[place], pure=False,
        )
        for rank, ((X, y), place) in enumerate(zip(blocks, places, strict=True))
    ]  # fmt: skip
    return client.gather(futures)[0]


def free_address() -> str:
    """Where ranks can meet this worker."""
    import socket

    from distributed import get_worker

    host = get_worker().address.split("://")[1].rsplit(":", 1)[0]
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"tcp://{host}:{probe.getsockname()[1]}"


def train_rank(
    X: np.ndarray, y: np.ndarray, plan: Plan, rank: int, n_ranks: int, meeting: str
) -> Outcome:
    """What a worker does."""
    import os
    from datetime import timedelta

    import psutil
    import torch
    import torch.distributed as dist
    from distributed import get_worker

    host = get_worker().address.split("://")[1].rsplit(":", 1)[0]
    for name, own in psutil.net_if_addrs().items():
        if any(each.address == host for each in own):
            os.environ["GLOO_SOCKET_IFNAME"] = name
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=meeting,
        rank=rank,
        world_size=n_ranks,
        timeout=timedelta(seconds=_PATIENCE),
    )
    try:
        return train_in_group(X, y, plan, rank, n_ranks)
    finally:
        dist.destroy_process_group()


def train_in_group(
    X: np.ndarray, y: np.ndarray, plan: Plan, rank: int, n_ranks: int
) -> Outcome:
    """Train among the ranks of a process group."""
    from time import perf_counter

    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.model_averaging.averagers import (
        PeriodicModelAverager,
    )
    from torch.nn.parallel import DistributedDataParallel

    rng = np.random.default_rng([plan.seed, rank])
    order = rng.permutation(len(y))
    held_out, own = order[: len(y) // 10], order[len(y) // 10 :]
    rows = torch.from_numpy(X.reshape(len(y), *(plan.shape or X.shape[1:])))
    labels = torch.from_numpy(y.astype(np.int64))
    n_steps = torch.tensor([len(own) // plan.batch])
    dist.all_reduce(n_steps, dist.ReduceOp.MIN)
    torch.manual_seed(plan.seed)
    module = plan.network()
    network = DistributedDataParallel(module)
    optimizer = torch.optim.Adam(module.parameters(), plan.rate)
    averager = None
    if plan.period is not None:
        # The first epoch adds up gradients.
        averager = PeriodicModelAverager(plan.period, warmup_steps=int(n_steps))
    history: list[dict[str, Any]] = []
    dist.barrier()
    start = perf_counter()
    for epoch in range(plan.n_epochs):
        is_local = averager is not None and epoch > 0
        passed = torch.from_numpy(rng.permutation(own))
        module.train()
        for chosen in passed[: int(n_steps) * plan.batch].split(plan.batch):
            make_step(network, optimizer, rows[chosen], labels[chosen], is_local)
            if averager is not None:
                averager.average_parameters(module.parameters())
        if is_local:
            average(module, n_ranks)
        accuracy = score(module, rows[held_out], labels[held_out])
        record = {"epoch": epoch + 1.0, "validation_score": accuracy}
        history.append({"time": perf_counter() - start, **record})
        is_over = torch.tensor(float(history[-1]["time"] > plan.limit))
        dist.all_reduce(is_over, dist.ReduceOp.MAX)
        if accuracy >= plan.target or is_over:
            break
    state = {name: value.numpy() for name, value in module.state_dict().items()}
    return Outcome(history, state if rank == 0 else {})


def make_step(network: Any, optimizer: Any, X: Any, y: Any, is_local: bool) -> None:
    """Make a step with the gradients of all ranks, or with one's own."""
    from torch.nn.functional import cross_entropy

    with network.no_sync() if is_local else nullcontext():
        optimizer.zero_grad()
        cross_entropy(network(X), y).backward()
    optimizer.step()


def average(module: Any, n_ranks: int) -> None:
    """Replace all values by their means over ranks."""
    import torch.distributed as dist

    for values in (*module.parameters(), *module.buffers()):
        if values.is_floating_point():
            dist.all_reduce(values.data)
            values.data /= n_ranks


def score(module: Any, X: Any, y: Any) -> float:
    """Accuracy on the rows that all ranks hold out."""
    import torch
    import torch.distributed as dist

    module.eval()
    with torch.no_grad():
        codes = torch.cat([module(part).argmax(1) for part in X.split(1024)])
    counts = torch.tensor([float((codes == y).sum()), float(len(y))])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])
