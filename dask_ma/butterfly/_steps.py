"""The steps of a rank: gradient of a batch, update, mixing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

import numpy as np

from dask_ma.butterfly._mixing import start_mixing
from dask_ma.butterfly._params import ButterflyParams
from dask_ma.butterfly._state import RankState
from dask_ma.comm import Group, allreduce
from dask_ma.kernels import (
    batch_slopes,
    descend,
    feature_moments,
    jacobi_preconditioner,
    project,
    shrink,
)
from dask_ma.linear import Piece, Problem


class StepRule(NamedTuple):
    """What a rank does to its weights in a step.

    Attributes
    ----------
    loss : str
        "hinge" or "log_loss".
    alpha : float
        Weight of the L2 penalty.
    eta0 : float
        Length of the first step; in the literature, `gamma_0`.
    fit_intercept : bool
        Whether the intercepts are trained.
    gradient_scale : float
        What turns the sum over a batch into the gradient.
    """

    loss: str
    alpha: float
    eta0: float
    fit_intercept: bool
    gradient_scale: float

    def update(self, state: RankState, batch: Sequence[Piece]) -> None:
        """Make a step on the weights of `state`, in place.

        The penalty counts on a rank without rows, too: the step of the mean over ranks
        is the mean of their steps.
        """
        weights, preconditioner = state.weights, state.preconditioner
        step_size = self.eta0 / np.sqrt(state.t)
        slopes = [
            batch_slopes(weights, p.X, p.y, p.sample_weight, loss=self.loss)
            for p in batch
        ]
        for piece, piece_slopes in zip(batch, slopes, strict=True):
            descend(
                weights,
                piece.X,
                piece_slopes,
                step_size * self.gradient_scale,
                preconditioner,
                fit_intercept=self.fit_intercept,
            )
        shrink(weights, step_size * self.alpha, preconditioner)
        if self.loss == "hinge" and self.alpha > 0:
            project(weights, 1 / np.sqrt(self.alpha))


def make_rule(
    params: ButterflyParams, problem: Problem, n_ranks: int, n_steps: int
) -> StepRule:
    """The rule of a rank whose pass has `n_steps` steps.

    The gradients are scaled such that their mean over the ranks and over a pass is that
    of the global objective, whatever the ranks' shares of the rows are. Where nothing
    is mixed, a rank minimises the objective of its own rows.
    """
    weight = problem.total_weight / n_ranks
    if params.mixing == "none" and problem.weight > 0:
        weight = problem.weight
    return StepRule(
        loss=params.loss,
        alpha=params.alpha,
        eta0=params.eta0,
        fit_intercept=params.fit_intercept,
        gradient_scale=n_steps / weight,
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
    while batch is not None:
        with computing():
            rule.update(state, batch)
        finish = start_mixing(group, state.weights, state.t - 1, mixing)
        # Rows are picked while the weights are under way.
        with computing():
            batch = next(batches, None)
        state = state._replace(weights=finish(), t=state.t + 1)
    return state


def sum_moments(group: Group, problem: Problem) -> np.ndarray:
    """Moments of the features over the rows of all ranks; a collective call."""
    moments = np.zeros((2, problem.shard.n_features))
    for block in problem.shard.blocks:
        moments += feature_moments(block.X, block.sample_weight)
    return allreduce(group, moments)


def make_preconditioner(
    moments: np.ndarray | None, problem: Problem, batch_size: int
) -> np.ndarray | None:
    """Diagonal of the preconditioner for a batch size, None if there are no moments."""
    if moments is None:
        return None
    # Where squares leave the range of the type, the model does, and is refused later.
    with np.errstate(over="ignore"):
        diagonal = jacobi_preconditioner(moments, problem.total_weight, batch_size)
        return diagonal.astype(problem.dtype)
