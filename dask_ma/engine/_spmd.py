"""A function of the user's own on every worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cloudpickle
from distributed import Client

from dask_ma.engine._client import (
    await_workers,
    fit_client,
    one_per_worker,
    place_ranks,
)
from dask_ma.engine._context import RankContext
from dask_ma.engine._launch import launch


def run_spmd(
    function: Callable[..., Any],
    *args: Any,
    client: Client | None = None,
    n_ranks: int | None = None,
) -> list[Any]:
    """Run a function on every worker, with a group to exchange messages in.

    This is the programming model of MPI (single program, multiple data) on any Dask
    cluster: each rank runs the same function, learns its number from the group, and
    takes part in :mod:`dask_ma.comm`'s collective operations.

    Parameters
    ----------
    function : callable
        Called as ``function(group, *args)`` on each rank.
    *args : object
        The same for all ranks. Futures, and futures in lists and dicts, are replaced by
        their results.
    client : Client, default=None
        Cluster to run on; the current client if None. Without any, the ranks are
        threads of this process.
    n_ranks : int, default=None
        Number of ranks. None means one per worker, and one without a client. More
        ranks than workers share the workers evenly.

    Returns
    -------
    results : list of object
        What the function returned on each rank, in rank order.

    Raises
    ------
    Exception
        What the function raised on some rank; the other ranks are stopped.
    FitFailedError
        If a worker is lost, or a wait takes longer than configured.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_ma import run_spmd
    >>> from dask_ma.comm import allreduce
    >>> def add_up(group, scale):
    ...     return allreduce(group, np.array([scale * group.rank]))
    >>> run_spmd(add_up, 10, n_ranks=3)
    [array([30]), array([30]), array([30])]
    """
    if not callable(function):
        raise TypeError(f"function must be callable, got {type(function).__name__}")
    if n_ranks is not None and n_ranks < 1:
        raise ValueError(f"n_ranks must be at least 1 or None, got {n_ranks}")
    with fit_client(client) as chosen:
        await_workers(chosen)
        addresses: list[str] | None
        if n_ranks is None and chosen is not None:
            addresses = one_per_worker(chosen)
        else:
            addresses = place_ranks(chosen, n_ranks)
        size = (n_ranks or 1) if addresses is None else len(addresses)
        return launch(
            _call,
            [list(args)] * size,
            # Unpacked by the task: a worker that could not unpack the task itself, for
            # want of the function's module, would break down.
            function if chosen is None else cloudpickle.dumps(function),
            name=getattr(function, "__name__", type(function).__name__),
            client=chosen,
            addresses=addresses,
            collect="all",
        )


def _call(context: RankContext, args: list[Any], function: Any) -> Any:
    """Agent: the user's function, maybe pickled, with the group of its rank."""
    if isinstance(function, bytes):
        function = cloudpickle.loads(function)
    return function(context.group, *args)
