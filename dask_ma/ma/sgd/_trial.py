"""A step size found by trial, and when it is to shrink.

L. Bottou ("Stochastic gradient descent tricks", in Neural networks: tricks of the
trade, Springer 2012, sections 3.1 and 5.2) finds the first step size of SGD by trying
it on a sample. All ranks try on samples of their own rows and compare what they get
together, so they agree on one step size, and the same one for the same seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from dask_ma.comm import allreduce
from dask_ma.data import Block, Shard, join_shard
from dask_ma.engine import RankContext
from dask_ma.kernels import loss_sums, penalty_value
from dask_ma.linear import LinearModel
from dask_ma.ma.sgd._params import FitParams
from dask_ma.ma.sgd._solver import LocalSGD, soft_threshold
from dask_ma.ma.sgd._steps import Steps, balanced_steps
from dask_ma.supervised import Problem

_ROWS = 1000  # of a rank's sample, at most
_ELEMENTS = 2_000_000  # that they store, at most
_FACTOR = 4.0  # from one step size that is tried to the next
_MOST_TRIALS = 16  # in one direction
_FEW = 4  # processes that hear of each other in two messages
_TRIAL = 3  # what random numbers are for; others use 0 to 2
_GAIN = 1e-3  # part of the objective that a pass has to bring
PATIENCE = 2  # passes that may bring less before steps shrink


class Shrinking:
    """Tells when steps are to become smaller: the objective has ceased to fall.

    Parameters
    ----------
    patience : int
        How many evaluations in a row may bring less than they should.
    """

    def __init__(self, patience: int = PATIENCE) -> None:
        self._patience = patience
        self._best = np.inf
        self._idle = 0

    def update(self, objective: float, start: float) -> bool:
        """Take the objective after a pass.

        Parameters
        ----------
        objective : float
            Of the model that the pass has led to.
        start : float
            That of the model that the fit has started from. One pass to a worse model
            is enough to see that the steps are too large.

        Returns
        -------
        is_due : bool
        """
        least = _GAIN * abs(self._best) if np.isfinite(self._best) else 0.0
        self._idle = self._idle + 1 if objective >= self._best - least else 0
        self._best = min(self._best, objective)
        if self._idle < self._patience and not 0 < start < objective:
            return False
        self._idle = 0
        return True

    def state_dict(self) -> list[float]:
        """What another one needs to go on from here."""
        return [self._best, float(self._idle)]

    def load_state_dict(self, state: Sequence[float]) -> None:
        """Take over the state of another one."""
        self._best, self._idle = float(state[0]), int(state[1])


def tries_steps(params: FitParams) -> bool:
    """Whether a fit from its beginning finds its steps by trial."""
    return params.is_balanced and params.eta is None and params.max_iter > 0


def find_steps(
    context: RankContext, problem: Problem, params: FitParams, model: LinearModel
) -> Steps:
    """Try step sizes on samples of the rows of all ranks; a collective call.

    Parameters
    ----------
    context : RankContext
        This rank.
    problem : Problem
        What is to be trained.
    params : FitParams
        Parameters of the fit.
    model : LinearModel
        Where SGD is to start.

    Returns
    -------
    steps : Steps
        Of those tried, each a quarter of the one before, those with which a pass over
        the samples has led to the lowest objective.
    """
    sample = _sample(problem.shard)
    if problem.measured is None:
        raise RuntimeError("the rows of the samples have not been measured")
    total, n_rows = problem.measured.tolist()
    # Steps of this size are about the longest that a squared loss bears.
    first = 1 / (total / n_rows + params.fit_intercept)

    values: dict[float, float] = {}
    is_few = context.group.layout.n_nodes <= _FEW

    def attempt(eta: float) -> float:
        if eta not in values:
            # Of the first one the neighbours are nearly always asked for, too, and a
            # trial is over sooner than ranks have heard of each other: among many
            # processes, that of the next longer steps as well.
            powers = (0,) if values else (0, 1, -1) if is_few else (0, 1, -1, 2)
            etas = [eta * _FACTOR**power for power in powers]
            own = [_try(context, problem, params, model, sample, e) for e in etas]
            sums = allreduce(context.group, np.array(own)).tolist()
            for tried, (value, weight) in zip(etas, sums, strict=True):
                values[tried] = value / weight if np.isfinite(value) else np.inf
        return values[eta]

    return balanced_steps(params, lowest(attempt, first), params.t)


def measure_sample(shard: Shard) -> np.ndarray:
    """Sum of the squares of the elements of a sample, and its rows."""
    sample = _sample(shard)
    return np.array([_sum_of_squares(sample.blocks), float(sample.n_rows)])


def lowest(attempt: Callable[[float], float], first: float) -> float:
    """Go up or down from `first` by factors of 4 as long as what `attempt` says falls.

    Parameters
    ----------
    attempt : callable
        Value of a step size.
    first : float
        Where to begin.

    Returns
    -------
    eta : float
        The last one that has brought less than the one before.
    """
    best, value = first, attempt(first)
    for factor in (_FACTOR, 1 / _FACTOR):
        for _ in range(_MOST_TRIALS):
            other = attempt(best * factor)
            # From where nothing is finite, only smaller steps lead out.
            if other >= value and (np.isfinite(value) or factor > 1):
                break
            best, value = best * factor, other
        if best > first:
            break
    return best


def _try(
    context: RankContext,
    problem: Problem,
    params: FitParams,
    model: LinearModel,
    sample: Shard,
    eta: float,
) -> np.ndarray:
    """Weighted objective on a rank's sample after a pass over it, and the weight."""
    if not sample.n_rows:
        return np.zeros(2)
    [block] = sample.blocks
    key = (*context.seed.spawn_key, _TRIAL)
    seed = np.random.SeedSequence(context.seed.entropy, spawn_key=key)
    solver = LocalSGD(
        sample, problem.n_problems, params, seed, 1, problem.positive_weight
    )
    solver.set_steps(balanced_steps(params, eta, params.t))
    weight = float(sample.n_rows)
    if block.sample_weight is not None:
        weight = float(block.sample_weight.sum(dtype=np.float64))
    try:
        own, _, threshold = solver.run(model, 1.0)
    except ValueError:  # scikit-learn's, of numbers that are not finite
        return np.array([np.inf, weight])
    if threshold:
        soft_threshold(own.coef, threshold)
    losses = loss_sums(
        block.X,
        block.y,
        block.sample_weight,
        *own,
        loss=params.loss,
        epsilon=params.epsilon,
        one_vs_rest=params.is_classifier,
        positive_weight=problem.positive_weight,
    )
    penalty = params.alpha * penalty_value(params.penalty, own.coef, params.l1_ratio)
    value = float(losses.sum()) + weight * penalty
    return np.array([value if np.isfinite(value) else np.inf, weight])


def _sample(shard: Shard) -> Shard:
    """Rows of a shard that lie evenly in it, as one block."""
    stored = sum(b.X.nnz if shard.is_sparse else b.X.size for b in shard.blocks)
    affordable = _ELEMENTS * shard.n_rows // max(1, stored)
    n_rows = min(shard.n_rows, _ROWS, max(1, affordable))
    chosen = np.arange(n_rows) * shard.n_rows // max(1, n_rows)
    blocks, start = [], 0
    for block in shard.read():
        stop = start + len(block.y)
        rows = chosen[np.searchsorted(chosen, start) : np.searchsorted(chosen, stop)]
        if len(rows):
            blocks.append(_rows(block, rows - start))
        start = stop
    some = replace(shard, blocks=blocks)
    return join_shard(some, some.nbytes)


def _rows(block: Block, rows: np.ndarray) -> Block:
    """Some rows of a block."""
    weight = block.sample_weight
    return block._replace(
        X=block.X[rows],
        y=block.y[rows],
        sample_weight=None if weight is None else weight[rows],
    )


def _sum_of_squares(blocks: Sequence[Block]) -> float:
    """Sum of the squares of all elements."""
    total = 0.0
    for block in blocks:
        flat = block.X.data if hasattr(block.X, "indptr") else block.X.ravel()
        total += float(np.dot(flat, flat))
    return total
