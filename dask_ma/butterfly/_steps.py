"""The steps of a rank: gradient of a batch, update, mixing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from dask_ma.butterfly._bounds import bounded_change, has_bounds
from dask_ma.butterfly._mixing import agree_after, start_mixing
from dask_ma.butterfly._params import ButterflyParams, Moments
from dask_ma.butterfly._state import RankState
from dask_ma.comm import Group, allreduce
from dask_ma.data import Shard
from dask_ma.kernels import (
    batch_slopes,
    descend,
    feature_moments,
    feature_sums,
    preconditioner_diagonal,
    project,
    shrink,
)
from dask_ma.supervised import Piece, Problem

# The weights after late steps are better: that of step `t` counts in the mean like the
# power of `t` with this exponent (polynomial-decay averaging, O. Shamir and T. Zhang,
# "Stochastic gradient descent for non-smooth optimization", ICML 2013, section 4).
DEGREE = 8


class StepRule(NamedTuple):
    """What a rank does to its weights in a step.

    Attributes
    ----------
    params : ButterflyParams
        Parameters of the fit.
    gradient_scale : float
        What turns the sum over a batch into the gradient.
    first_averaged : float
        Number of the first step that counts in the mean; infinite without a mean.
    positive_weight : ndarray of shape (n_problems,) or None
        Weights of each class in its own problem against the rest.
    n_nonzero : float
        Elements of a batch that are stored, on the rank that has most; infinite where
        rows are not sparse.
    n_steps : int
        Steps of a pass.
    period : int
        Steps from one exchange to the next; the last step of a pass has one as well.
    is_bounded : bool
        Whether no step goes beyond the least loss of its batch on its line.
    center : ndarray of shape (n_features,) or None
        Means about which features are taken, in steps with that bound alone.
    """

    params: ButterflyParams
    gradient_scale: float
    first_averaged: float = math.inf
    positive_weight: np.ndarray | None = None
    n_nonzero: float = math.inf
    n_steps: int = 1
    period: int = 1
    is_bounded: bool = False
    center: np.ndarray | None = None

    def is_mixed(self, number: int) -> bool:
        """Whether an exchange follows a step, of those of a pass, from 0."""
        return (number + 1) % self.period == 0 or number == self.n_steps - 1

    @property
    def is_projected(self) -> bool:
        """Whether the weights are kept in a ball."""
        return self.params.loss == "hinge" and self.params.alpha > 0

    @property
    def radius(self) -> float:
        """Radius of that ball."""
        return 1 / math.sqrt(self.params.alpha)

    def slopes(self, weights: np.ndarray, piece: Piece) -> np.ndarray:
        """Derivatives of the losses of some rows by the predictions."""
        return batch_slopes(
            weights,
            piece.X,
            piece.y,
            piece.sample_weight,
            loss=self.params.loss,
            epsilon=self.params.epsilon,
            positive_weight=self.positive_weight,
        )

    def update(self, state: RankState, batch: Sequence[Piece]) -> None:
        """Make a step on the weights of `state`, in place.

        The penalty counts on a rank without rows, too: the step of the mean over ranks
        is the mean of their steps.
        """
        weights, preconditioner = state.weights, state.preconditioner
        step_size = state.eta / math.sqrt(state.t)
        slopes = [self.slopes(weights, piece) for piece in batch]
        self.descend(weights, batch, slopes, step_size, preconditioner)
        before = None if self.center is None else weights[:-1].copy()
        shrink(weights, step_size * self.params.alpha, preconditioner)
        if self.center is not None:  # the intercept of the features less their means
            weights[-1] += self.center.astype(weights.dtype) @ (before - weights[:-1])
        if self.is_projected:
            project(weights, self.radius)

    def descend(
        self,
        weights: np.ndarray,
        batch: Sequence[Piece],
        slopes: Sequence[np.ndarray],
        step_size: float,
        preconditioner: np.ndarray | None,
    ) -> None:
        """Follow the gradient of a batch with these :meth:`slopes`, in place."""
        params, scale = self.params, self.gradient_scale
        if self.is_bounded:
            weights += bounded_change(
                weights,
                batch,
                slopes,
                step_size,
                scale,
                preconditioner,
                self.center,
                params,
                self._most_weight,
            )
            return
        for piece, piece_slopes in zip(batch, slopes, strict=True):
            descend(
                weights,
                piece.X,
                piece_slopes,
                step_size * scale,
                preconditioner,
                fit_intercept=params.fit_intercept,
            )

    @property
    def _most_weight(self) -> np.ndarray | float:
        """What the weight of a row is multiplied by at most, in each problem."""
        if self.positive_weight is None:
            return 1.0
        return np.maximum(1.0, self.positive_weight)

    def after(self, state: RankState, weights: np.ndarray) -> RankState:
        """The state after a step that has ended with these weights."""
        if state.t < self.first_averaged:
            return state._replace(weights=weights, t=state.t + 1)
        number = state.n_averaged + 1
        mean = weights.copy()
        if state.mean is not None:
            mean -= state.mean
            mean *= (DEGREE + 1) / (number + DEGREE)
            mean += state.mean
        return state._replace(
            weights=weights, t=state.t + 1, mean=mean, n_averaged=number
        )


def make_rule(
    params: ButterflyParams,
    problem: Problem,
    n_ranks: int,
    n_steps: int,
    most_nonzero: float,
    period: int = 1,
    center: np.ndarray | None = None,
) -> StepRule:
    """The rule of a rank whose pass has `n_steps` steps.

    The gradients are scaled such that their mean over the ranks and over a pass is that
    of the global objective, whatever the ranks' shares of the rows are. Where nothing
    is mixed, a rank minimises the objective of its own rows.
    """
    weight = problem.total_weight / n_ranks
    if params.mixing == "none" and problem.weight > 0:
        weight = problem.weight
    first_averaged = math.inf
    if params.average:
        # After so many steps the ranks have seen this many rows.
        first_averaged = params.average * n_steps / problem.total_rows
    positive_weight = problem.positive_weight
    if positive_weight is not None:
        positive_weight = positive_weight.astype(problem.dtype)
    return StepRule(
        params=params,
        gradient_scale=n_steps / weight,
        first_averaged=first_averaged,
        positive_weight=positive_weight,
        n_nonzero=most_nonzero / n_steps,
        n_steps=n_steps,
        period=period,
        is_bounded=has_bounds(params),
        center=center,
    )


def run_steps(
    group: Group,
    state: RankState,
    batches: Iterator[list[Piece]],
    rule: StepRule,
    mixing: str,
    computing: Callable[[], AbstractContextManager[None]],
) -> RankState:
    """Make a step for each batch; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    state : RankState
        State before the steps; its weights are lost.
    batches : iterator
        Pieces of each batch; as many batches on every rank.
    rule : StepRule
        What a rank does in a step.
    mixing : str
        How the ranks mix; see :func:`start_mixing`.
    computing : callable
        Context in which this rank computes.

    Returns
    -------
    state : RankState
        State after the last exchange.
    """
    with computing():
        batch = next(batches, None)
    number = 0
    while batch is not None:
        with computing():
            rule.update(state, batch)
        finish = None
        if rule.is_mixed(number):
            finish = start_mixing(group, state.weights, state.n_exchanges, mixing)
            state = state._replace(n_exchanges=state.n_exchanges + 1)
        # Rows are picked while the weights are under way.
        with computing():
            batch = next(batches, None)
        state = rule.after(state, state.weights if finish is None else finish())
        number += 1
    agree = agree_after(state.n_exchanges - 1, group.size, mixing)
    return state.after_steps(state.weights, state.weights if agree else None)


def sum_moments(group: Group, problem: Problem, *, is_dense: bool = False) -> Moments:
    """Moments of the features over the rows of all ranks; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    problem : Problem
        The rows.
    is_dense : bool, default=False
        Whether sums of the features are among them; the same on all ranks.

    Returns
    -------
    moments : Moments
    """
    sums = np.zeros((2 + is_dense, problem.shard.n_features))
    for block in problem.shard.read():
        feature_moments(block.X, block.sample_weight, sums[:2])
        if is_dense:
            sums[2] += feature_sums(block.X, block.sample_weight)
    return Moments(allreduce(group, sums), problem.total_weight)


def add_moments(moments: Moments, latest: Moments) -> Moments:
    """Moments of all rows so far, from those before and those of the latest."""
    n_rows = max(len(moments.sums), len(latest.sums))
    # Sparse rows have no sums of their features.
    before, after = (
        np.pad(sums, ((0, n_rows - len(sums)), (0, 0)))
        for sums in (moments.sums, latest.sums)
    )
    return Moments(before + after, moments.total + latest.total)


def not_below(moments: Moments, latest: Moments) -> Moments:
    """Moments with the mean squares of the latest rows where these are larger.

    The mean over all rows lags behind a stream whose scale grows, and steps by it would
    be too long for the rows that they are made on.
    """
    counts, squares, *_ = moments.sums
    means = np.zeros_like(squares)
    np.divide(latest.sums[1], latest.sums[0], out=means, where=latest.sums[0] > 0)
    squares = np.maximum(squares, counts * means)
    return moments._replace(sums=np.stack([counts, squares]))


def make_preconditioner(
    moments: Moments | None, params: ButterflyParams, problem: Problem, size: int
) -> np.ndarray | None:
    """Diagonal of the preconditioner for a batch size, None if there are no moments."""
    if moments is None or params.preconditioner is None:
        return None
    # Where squares leave the range of the type, the model does, and is refused later.
    with np.errstate(over="ignore"):
        diagonal = preconditioner_diagonal(
            moments.sums[:2], moments.total, params.preconditioner, size
        )
        return diagonal.astype(problem.dtype)


def largest_rank(group: Group, problem: Problem) -> tuple[int, float]:
    """Most rows, and most elements stored, that a rank has; a collective call.

    Elements of rows that are not sparse count as infinitely many.
    """
    if problem.most is not None:
        return problem.most  # the ranks have told each other
    own = [problem.shard.n_rows, count_nonzero(problem.shard)]
    n_rows, n_elements = allreduce(group, np.array(own, dtype=np.float64), "max")
    return int(n_rows), float(n_elements)


def count_nonzero(shard: Shard) -> float:
    """Elements that the rows of a shard store; infinite for dense rows."""
    if shard.blocks and not shard.is_sparse:
        return math.inf
    return float(sum(block.X.nnz for block in shard.blocks))
