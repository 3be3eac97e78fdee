"""Intercepts at which the objective is least for the coefficients there are.

They are few, and rows need not be looked at again to find them. Where the slopes by
intercepts vanish, those of the losses are a feasible point of the dual as they are, and
its bound is no worse than the gradient is long.
"""

from __future__ import annotations

import numpy as np

from dask_ma.comm import Group, allreduce, broadcast
from dask_ma.kernels import log_loss_sum, residuals, softmax
from dask_ma.sfb.logistic._totals import Totals
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._rows import row_batches
from dask_ma.supervised import Problem

MOST_BYTES = 2**27  # of the linear functions of all rows
_MOST_STEPS, _MOST_TRIALS = 30, 10
_NEAR = 1e-13  # of the loss: what another step has to promise
_SUFFICIENT = 1e-4
_LONGEST = 20.0  # step
_JITTER = 1e-10  # of the mean second derivative


def settle_intercepts(
    problem: Problem, totals: Totals, group: Group, matrix: ParameterMatrix
) -> list[np.ndarray] | None:
    """Let intercepts be the best ones for a matrix; a collective call.

    Parameters
    ----------
    problem, totals, group
        Rows, sums over them, and this rank.
    matrix : ParameterMatrix
        Its intercepts are changed, alike on all ranks.

    Returns
    -------
    margins : list of ndarray of shape (n_rows, n_outputs), or None
        Linear functions of this rank's rows there, some rows at a time. None leaves
        the intercepts: there are none, or too many rows.
    """
    n_bytes = problem.total_rows * matrix.shape[0] * matrix.dtype.itemsize
    if matrix.intercept is None or n_bytes > MOST_BYTES:
        return None
    rows = _Rows(problem, totals, group, matrix)
    now = rows.look(matrix.intercept)
    for _ in range(_MOST_STEPS):
        step, slope = broadcast(group, now.step() if group.rank == 0 else None)
        if not slope < -_NEAR * now.loss:
            break
        for trial in range(_MOST_TRIALS):
            found = rows.look(now.intercept + 0.5**trial * step)
            if found.loss <= now.loss + _SUFFICIENT * 0.5**trial * slope:
                break
        else:
            break
        now = found
    matrix.intercept[...] = now.intercept
    return rows.margins(matrix.intercept)


class _Look:
    """The loss at some intercepts, with its first and second derivatives."""

    def __init__(
        self,
        intercept: np.ndarray,
        loss: float,
        slopes: np.ndarray,
        curvature: np.ndarray,
    ) -> None:
        self.intercept = intercept
        self.loss = loss
        self._slopes = slopes
        self._curvature = curvature

    def step(self) -> tuple[np.ndarray, float]:
        """Newton's step, without a change of the mean, and the slope along it."""
        system, slopes = self._curvature, self._slopes
        n = len(slopes)
        if n > 1:  # where all change alike, the loss does not
            system = system + np.trace(system) / n**2
        jitter = _JITTER * np.trace(system) / n or 1.0
        step = -np.linalg.solve(system + jitter * np.eye(n), slopes)
        step -= step.mean() if n > 1 else 0.0
        # Far away there is next to no curvature, and what there is may be rounding.
        if not slopes @ step < 0:
            step = -slopes * (_LONGEST / max(float(np.abs(slopes).max()), 1e-300))
        step *= min(1.0, _LONGEST / max(float(np.abs(step).max()), _LONGEST))
        return step, float(slopes @ step)


class _Rows:
    """Linear functions of this rank's rows but for intercepts, some rows at a time."""

    def __init__(
        self, problem: Problem, totals: Totals, group: Group, matrix: ParameterMatrix
    ) -> None:
        assert matrix.intercept is not None
        self._group = group
        before = matrix.intercept.copy()
        matrix.intercept[...] = 0
        self._batches = [
            (batch.y, batch.sample_weight, matrix.product(totals.centred(batch.X)))
            for _, batch in row_batches(problem.shard, matrix.shape[0])
        ]
        matrix.intercept[...] = before

    def margins(self, intercept: np.ndarray) -> list[np.ndarray]:
        """The linear functions, of which there is only one copy, as they are then."""
        for _, _, values in self._batches:
            values += intercept
        return [values for _, _, values in self._batches]

    def look(self, intercept: np.ndarray) -> _Look:
        """Add up the rows of all ranks; a collective call."""
        n = len(intercept)
        loss, slopes, curvature = 0.0, np.zeros(n), np.zeros((n, n))
        for y, weight, values in self._batches:
            margins = values + intercept.astype(values.dtype)
            loss += log_loss_sum(margins, y, weight)
            p = softmax(margins)
            own, weighted = residuals(p, y), p
            if weight is not None:
                own *= weight[:, np.newaxis]
                weighted = p * weight[:, np.newaxis]
            slopes += own.sum(axis=0, dtype=np.float64)
            if n == 1:
                curvature += weighted.T @ (1 - p)
            else:
                curvature += np.diag(weighted.sum(axis=0, dtype=np.float64))
                curvature -= weighted.T @ p
        found = allreduce(self._group, [np.array(loss), slopes, curvature])
        return _Look(intercept.astype(np.float64), float(found[0]), *found[1:])
