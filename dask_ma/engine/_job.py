"""The job of a fit: agent, parameters, data, and how it is to be launched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_ma.data import Deal, InputInfo, InputSize, Kept
from dask_ma.engine._run import Agent
from dask_ma.engine.recovery._identity import Identity


@dataclass(frozen=True)
class Job:
    """What is to be fitted.

    Parameters
    ----------
    agent : callable
        ``agent(context, shard arguments, params)``.
    params : object
        Parameters of the agent.
    data : tuple
        X, y and the sample weights.
    name : str
        Name of the estimator.
    identity : Identity, callable or None
        What tells the fit from others; None if it must not be saved.
    n_ranks : int or None
        Number of ranks wanted.
    worthwhile_ranks : callable or None
        Given an :class:`~dask_ma.data.InputSize` and the number of threads: how many of
        them make the fit quicker. None where all do.
    info : InputInfo
        What X is.
    seed : int
        Seed of the ranks' random numbers.
    blas_threads : int
        Threads that BLAS may use in a process.
    is_labelled : bool
        Whether every row needs a label.
    deal : {"never", "memory", "always"}
        Which rows are dealt out to the ranks in short runs.
    row_dtypes : sequence of dtypes
        Types that the agent takes rows in.
    sent_as : callable or None
        Makes of X, in memory, what is sent to the ranks.
    loads : tuple of object
        What comes from modules that the agent loads later on, and takes memory.
    copies : Kept
        What it keeps in memory beside the rows.
    join : callable or None
        Makes the result of those of all ranks, in this process; None where rank 0 has
        all of it.
    """

    agent: Agent
    params: Any
    data: tuple[Any, Any, Any]
    name: str
    identity: Identity | Callable[[], Identity] | None
    n_ranks: int | None
    info: InputInfo
    seed: int
    blas_threads: int
    is_labelled: bool = True
    is_multi_output: bool = False
    deal: Deal = "never"
    row_dtypes: Sequence[Any] = (np.float64, np.float32)
    sent_as: Callable[[Any], Any] | None = None
    loads: tuple[Any, ...] = ()
    copies: Kept = Kept()
    join: Callable[[list[Any]], Any] | None = None
    worthwhile_ranks: Callable[[InputSize, int], int] | None = None

    @property
    def n_local_ranks(self) -> int:
        """Number of ranks without a client, not more than there are rows."""
        wanted, n_rows = self.n_ranks or 1, self.info.n_rows
        return wanted if n_rows is None else max(1, min(wanted, n_rows))
