"""Rows of all kinds for the batches of each rank, however blocks come."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.data import join_shard
from dask_ma.mpca.training._batches import rows_of_batch
from dask_ma.mpca.training._choice import FEW_STEPS
from dask_ma.mpca.training._params import MPCAParams
from dask_ma.mpca.training._targets import agree_on_targets
from dask_ma.supervised import Problem, deal_rows

# Epochs of a fit, from which on rows that go to another rank once are less than
# gradients that all ranks add up in each step.
_SEVERAL = 5


def mix_rows(group: Group, problem: Problem, params: MPCAParams) -> Problem:
    """Join the blocks of a rank, and deal rows out before that where ranks differ.

    A collective call. Ranks that train by themselves need rows of all kinds; without,
    "auto" has to add up gradients in each step. Rows stay on their ranks with any other
    strategy, which the user has chosen, and without `shuffle`; where all steps are made
    together in any case; in short fits; and where those of some rank take more than
    `join_limit`, up to which they are copied anyway.

    Parameters
    ----------
    group : Group
        This rank.
    problem : Problem
        The rows.
    params : MPCAParams
        Parameters of the fit.

    Returns
    -------
    problem : Problem
    """
    if _is_to_deal(group, problem, params):
        problem = deal_rows(group, problem)
    return replace(problem, shard=join_shard(problem.shard, params.join_limit))


def _is_to_deal(group: Group, problem: Problem, params: MPCAParams) -> bool:
    """Whether rows go to other ranks, the same on all; a collective call."""
    is_asked = not isinstance(params.strategy, str) or not params.shuffle
    if group.size == 1 or is_asked or params.max_iter < _SEVERAL:
        return False
    n_rows = rows_of_batch(params.batch_size, group.size, together=True)
    if problem.total_rows <= FEW_STEPS * n_rows * group.size:
        return False
    if not _differs(group, problem, params):
        return False
    own = np.array([float(problem.shard.nbytes)])
    return bool(allreduce(group, own, "max")[0] <= params.join_limit)


def _differs(group: Group, problem: Problem, params: MPCAParams) -> bool:
    """Whether classes or targets differ between ranks; a collective call."""
    if params.has_classes or params.n_codes is not None:
        return problem.uneven is not None
    targets = agree_on_targets(group, problem.shard, params.n_targets)
    return targets.uneven is not None
