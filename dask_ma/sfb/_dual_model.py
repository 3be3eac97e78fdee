"""Logistic regression by stochastic dual coordinate ascent."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce
from dask_ma.kernels import (
    FeasibleMix,
    class_sums,
    dual_steps,
    feasible_mix,
    mixed_entropy_sum,
    mixed_values,
    residuals,
    row_products,
    row_slice,
    softmax,
)
from dask_ma.linear import Problem
from dask_ma.sfb._matrix import ParameterMatrix
from dask_ma.sfb._model import Batch
from dask_ma.sfb._params import SFBParams
from dask_ma.sfb._softmax_model import LogisticModel

_CHUNK = 2**18  # dual variables, or coefficients, at a time
# Square of the feature that stands for the intercept, in those of a row's length.
_INTERCEPT = 0.03


class DualModel(LogisticModel):
    """Logistic regression whose factors are changes of dual variables, and rows.

    Row `i` has a probability vector `q_i` on the rank that has the row. The matrix is
    ``W = -sum_i s_i (q_i - e_{y_i}) x_i^T / (alpha n)``, and each change of a `q_i`
    changes it by a product of factors (section 2.1). An intercept is not penalised; in
    the dual that is the constraint ``sum_i s_i (q_i - e_{y_i}) = 0``, which an
    augmented Lagrangian brings about.

    Parameters
    ----------
    problem, params
        As in :class:`LogisticModel`.
    group : Group
        The rank among the others.

    Attributes
    ----------
    dual : ndarray of shape (n_rows, n_outputs)
        Probability vectors of the rows of this rank.
    """

    averages = False

    def __init__(self, problem: Problem, params: SFBParams, group: Group) -> None:
        super().__init__(problem, params)
        self._group = group
        self._shard = problem.shard
        self._alpha = params.alpha
        self.learning_rate = 1 / (params.alpha * problem.total_rows)
        n_rows = problem.shard.n_rows
        shape = n_rows, self._n_outputs
        self.dual = np.zeros(shape, dtype=self._dtype)
        for rows, block in self._blocks():
            self.dual[rows] = -residuals(self.dual[rows], block.y)
        self._excess = np.zeros(self._n_outputs)
        self._sum_up()

    def factors(self, matrix: ParameterMatrix, batch: Batch) -> tuple[np.ndarray, Any]:
        X, dual = batch.X, self.dual[batch.rows]
        kappa2 = self.intercept_scale if self.fit_intercept else 0.0
        changes = dual_steps(
            matrix.product(X),
            row_products(X, kappa2),
            dual,
            batch.y,
            batch.sample_weight,
            scale=self.learning_rate,
            n_parallel=self._group.size,
        )
        self.dual[batch.rows] = dual
        return changes, X

    def penalty(self, matrix: ParameterMatrix) -> float:
        return self._alpha / 2 * _squared_norm(matrix.whole())

    def begin_pass(self, matrix: ParameterMatrix) -> None:
        """Move the intercepts towards what the constraint asks for.

        Parameters
        ----------
        matrix : ParameterMatrix
            Changed.
        """
        if matrix.intercept is not None:
            step = self.learning_rate * self.intercept_scale
            matrix.intercept -= (step * self._excess).astype(self._dtype)

    def dual_objective(self, matrix: ParameterMatrix) -> float:
        """A lower bound of the objective; a collective call.

        Dual variables that do not satisfy the constraint of the intercepts are mixed
        with as much as is needed of a point that does.

        Parameters
        ----------
        matrix : ParameterMatrix
            The matrix of the dual variables.

        Returns
        -------
        value : float
        """
        excess = np.zeros(self._n_outputs)
        if self.fit_intercept:
            self._excess = excess = self._sum_of_residuals()
        mix = feasible_mix(excess, self._class_weights)
        total = 0.0
        for rows, block in self._blocks():
            total += mixed_entropy_sum(self.dual[rows], block.sample_weight, mix)
        total = float(allreduce(self._group, np.array(total)))
        norm = self._norm_of_mixture(matrix.whole(), mix)
        return total / self._n_rows - self._alpha / 2 * norm

    def go_on(self, values: np.ndarray, intercept: Any, dual: Any) -> np.ndarray:
        """Take dual variables, or find them from a model; a collective call.

        Parameters
        ----------
        values : ndarray of shape (n_features, n_outputs)
            A matrix, transposed.
        intercept : ndarray of shape (n_outputs,) or None
        dual : ndarray of shape (n_rows, n_outputs) or None
            Dual variables of this rank's rows; None finds them.

        Returns
        -------
        values : ndarray of shape (n_features, n_outputs)
            The matrix of the dual variables.
        """
        n_lost = int(allreduce(self._group, np.array(int(dual is None))))
        if dual is not None:
            self.dual[...] = dual
        if not n_lost:
            self._excess = self._sum_of_residuals()
            return values
        if dual is None:
            for rows, block in self._blocks():
                margins = np.asarray(block.X @ values).reshape(len(block.y), -1)
                margins = margins if intercept is None else margins + intercept
                self.dual[rows] = softmax(margins)
        total = np.zeros(values.shape)
        for rows, block in self._blocks():
            total += block.X.T @ self._residuals(rows, block)
        total = allreduce(self._group, total)
        self._excess = self._sum_of_residuals()
        return (-self.learning_rate * total).astype(self._dtype)

    def _sum_up(self) -> None:
        """What the lower bound needs to know of all rows; a collective call."""
        n_classes = max(2, self._n_outputs)
        counts, squares = np.zeros(n_classes), 0.0
        sums = np.zeros((self._shard.n_features, n_classes))
        for _, block in self._blocks():
            X, y, weight = block.X, block.y, block.sample_weight
            counts += np.bincount(y, weight, minlength=n_classes)
            sums += class_sums(X, y, weight, n_classes)
            elements = X.data if sparse.issparse(X) else X
            squares += float(np.vdot(elements, elements))
        totals = allreduce(self._group, [counts, sums, np.array(squares)])
        self._class_weights, self._class_sums = totals[:2]
        mean = float(totals[2]) / self._n_rows
        self.intercept_scale = _INTERCEPT * mean if mean > 0 else 1.0

    def _norm_of_mixture(self, values: np.ndarray, mix: FeasibleMix) -> float:
        """Squared norm of the matrix of mixed dual variables, some rows at a time."""
        if mix.share == 0:
            return _squared_norm(values)
        norm, size = 0.0, max(1, _CHUNK // values.shape[1])
        for start in range(0, len(values), size):
            part = slice(start, start + size)
            mixed = mixed_values(
                values[part], self._class_sums[part], mix, scale=self.learning_rate
            )
            norm += _squared_norm(mixed)
        return norm

    def _sum_of_residuals(self) -> np.ndarray:
        """Sum of ``s_i (q_i - e_{y_i})`` over the rows of all ranks; collective."""
        total = np.zeros(self._n_outputs)
        for rows, block in self._blocks():
            total += self._residuals(rows, block).sum(axis=0, dtype=np.float64)
        return allreduce(self._group, total)

    def _residuals(self, rows: slice, block: Batch) -> np.ndarray:
        """``s_i (q_i - e_{y_i})`` of some rows."""
        found = residuals(self.dual[rows], block.y)
        if block.sample_weight is not None:
            found *= block.sample_weight[:, np.newaxis]
        return found

    def _blocks(self) -> Any:
        """Rows of this rank, some at a time, and their places in `dual`."""
        first, size = 0, max(64, _CHUNK // self._n_outputs)
        for block in self._shard.blocks:
            for start in range(0, len(block.y), size):
                stop = min(start + size, len(block.y))
                weight = block.sample_weight
                yield slice(first + start, first + stop), Batch(
                    row_slice(block.X, start, stop),
                    block.y[start:stop],
                    None if weight is None else weight[start:stop],
                    np.arange(first + start, first + stop),
                )
            first += len(block.y)


def _squared_norm(values: np.ndarray) -> float:
    """Squared Frobenius norm."""
    return float(np.vdot(values, values))
