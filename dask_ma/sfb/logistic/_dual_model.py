"""Logistic regression by stochastic dual coordinate ascent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.exceptions import CheckpointError
from dask_ma.kernels import (
    FeasibleMix,
    dual_steps,
    entropy_sum,
    feasible_mix,
    mixed_entropy_sum,
    mixed_values,
    residuals,
    row_products,
    softmax,
)
from dask_ma.kernels.prox import L1
from dask_ma.sfb.logistic._class_sums import feature_parts
from dask_ma.sfb.logistic._params import SFBParams
from dask_ma.sfb.logistic._penalty import Penalty
from dask_ma.sfb.logistic._softmax_model import LogisticModel
from dask_ma.sfb.logistic._totals import Totals
from dask_ma.sfb.model._common import CommonStep
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._model import Batch
from dask_ma.sfb.model._rows import row_batches
from dask_ma.supervised import Problem

_CHUNK = 2**16  # coefficients at a time
# Square of the feature that stands for the intercept, in those of a row's length.
_INTERCEPT = 0.03
# And in those of the L2 penalty, at least: where this is strong, rows count for little,
# and the intercept makes steps of this length along the slope of the mean loss, whose
# curvature is 1/2 at most.
_STEP = 3.0


class DualStep(CommonStep):
    """The steps that rows have made, until all ranks agree on their length.

    Parameters
    ----------
    dual : ndarray of shape (n_rows, n_outputs)
        Probability vectors of the rows, changed in place.
    scale : float
        ``1 / (l2 n)``, with the weight of the L2 penalty.
    intercept_square : float
        Square of the feature that stands for the intercept.
    """

    def __init__(self, dual: np.ndarray, scale: float, intercept_square: float) -> None:
        self._dual = dual
        self._scale = scale
        self._intercept_square = intercept_square
        self._pending: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def note(
        self,
        rows: np.ndarray,
        before: np.ndarray,
        after: np.ndarray,
        gain: float,
        products: float,
        square: float,
    ) -> None:
        """Take the step of some rows, not noted since the last step that was made.

        Parameters
        ----------
        rows : ndarray of int
        before, after : ndarray of shape (n, n_outputs)
            Their probability vectors.
        gain : float
            Change of their entropies.
        products : float
            Products of the changes with their predictions.
        square : float
            Squared Frobenius norm of the product of factors, with those of intercepts.
        """
        self._pending.append((rows, before, after))
        self.gain += gain + products
        self.products += products
        self.own_curvature += self._scale * square

    def curvature(self, square: float, slopes: np.ndarray) -> float:
        total = square + self._intercept_square * float(slopes @ slopes)
        return self._scale * total

    def take(self, share: float) -> None:
        for rows, before, after in self._pending:
            if share < 1:
                # Between two probability vectors lies another one.
                after = before + before.dtype.type(share) * (after - before)
            self._dual[rows] = after
        self._pending = []


class DualModel(LogisticModel):
    """Logistic regression whose factors are changes of dual variables, and rows.

    Row `i` has a probability vector `q_i` on the rank that has the row. The matrix is
    ``W = -sum_i s_i (q_i - e_{y_i}) x_i^T / (alpha n)``, and each change of a `q_i`
    changes it by a product of factors (section 2.1). An intercept is not penalised; in
    the dual that is the constraint ``sum_i s_i (q_i - e_{y_i}) = 0``, which an
    augmented Lagrangian brings about.

    :class:`ElasticDualModel` is for elastic nets, with dual sums in place of the
    matrix. Steps are the same: as a function of the sums, the conjugate of the penalty
    is no more curved than that of its L2 part.

    Parameters
    ----------
    problem, params, totals
        As in :class:`LogisticModel`.
    group : Group
        The rank among the others.

    Attributes
    ----------
    dual : ndarray of shape (n_rows, n_outputs)
        Probability vectors of the rows of this rank.
    """

    averages = False
    common_step: DualStep | None

    def __init__(
        self, problem: Problem, params: SFBParams, totals: Totals, group: Group
    ) -> None:
        super().__init__(problem, params, totals)
        self._group = group
        self._shard = problem.shard
        self._penalty = Penalty.of(params.penalty, params.alpha, params.l1_ratio)
        self.learning_rate = 1 / (self._penalty.l2 * problem.total_rows)
        n_rows = problem.shard.n_rows
        shape = n_rows, self._n_outputs
        self.dual = np.zeros(shape, dtype=self._dtype)
        for rows, block in row_batches(self._shard, self._n_outputs):
            self.dual[rows] = -residuals(self.dual[rows], block.y)
        self._excess = np.zeros(self._n_outputs)
        mean = totals.mean_square
        least = _STEP * self._penalty.l2
        self.intercept_scale = max(least, _INTERCEPT * mean if mean > 0 else 1.0)
        self._intercept_square = self.intercept_scale if self.fit_intercept else 0.0
        exchange = params.settings.exchange
        # What comes late, or by way of others, does not come at once to all.
        if exchange.staleness == 0 and exchange.broadcast is None:
            self.common_step = DualStep(
                self.dual, self.learning_rate, self._intercept_square
            )

    def factors(self, matrix: ParameterMatrix, batch: Batch) -> tuple[np.ndarray, Any]:
        X, dual = self._totals.centred_batch(batch), self.dual[batch.rows]
        before, margins = dual.copy(), matrix.product(X)
        products = row_products(X, self._intercept_square)
        changes = dual_steps(
            margins,
            products,
            dual,
            batch.y,
            batch.sample_weight,
            scale=self.learning_rate,
            n_parallel=1 if self.common_step else self._group.size,
        )
        if self.common_step is None:
            self.dual[batch.rows] = dual
            return changes, X
        weight = batch.sample_weight
        gain = entropy_sum(dual, weight) - entropy_sum(before, weight)
        linear = float(np.einsum("ij,ij->", changes, margins, dtype=np.float64))
        square = float(np.vdot(changes @ changes.T, products))
        self.common_step.note(batch.rows, before, dual, gain, linear, square)
        return changes, X

    def penalty(self, matrix: ParameterMatrix) -> float:
        prox = self._penalty.prox
        return float(sum(prox.value(part.T) for part in matrix.chunks()))

    def begin_pass(self, matrix: ParameterMatrix) -> None:
        """Move the intercepts towards what the constraint asks for."""
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
        mix = feasible_mix(excess, self._totals.class_weights)
        entropy = self._entropy_of_mixture(mix)
        conjugate = self._conjugate_of_mixture(matrix.stored(), mix)
        own = np.array([entropy, conjugate])
        total, conjugate = allreduce(self._group, own).tolist()
        return total / self._n_rows - conjugate

    def matrix_of(self, sums: np.ndarray) -> np.ndarray:
        """The transposed matrix that belongs to what a run has kept."""
        return sums

    def check_kept(self, dual: np.ndarray) -> None:
        """Refuse dual variables of other rows than this rank's."""
        found, expected = dual.shape, self.dual.shape
        if found != expected:
            raise CheckpointError(
                f"the state to go on from has dual variables of shape {found}, "
                f"expected {expected} for the rows of rank {self._group.rank}"
            )

    def start_from(
        self, values: np.ndarray, intercept: Any, dual: Any, *, is_kept: bool
    ) -> np.ndarray:
        """Take dual variables, or find them from a model; a collective call.

        Parameters
        ----------
        values : ndarray of shape (n_features, n_outputs)
            A matrix, transposed.
        intercept : ndarray of shape (n_outputs,) or None
        dual : ndarray of shape (n_rows, n_outputs) or None
            Dual variables of this rank's rows; None finds them.
        is_kept : bool
            Whether the values are those that a run has kept: with an operator between
            them and the matrix, dual sums.

        Returns
        -------
        values : ndarray of shape (n_features, n_outputs)
            What belongs to the dual variables.
        """
        n_lost = int(allreduce(self._group, np.array(int(dual is None))))
        if dual is not None:
            self.dual[...] = dual
        if not n_lost:
            self._excess = self._sum_of_residuals()
            return values
        if dual is None:
            values = self.matrix_of(values) if is_kept else values
            for rows, block in self._blocks():
                margins = np.asarray(block.X @ values).reshape(len(block.y), -1)
                margins = margins if intercept is None else margins + intercept
                self.dual[rows] = softmax(margins)
        found = np.empty(values.shape, dtype=self._dtype)
        for features in feature_parts(*values.shape):
            total = np.zeros(found[features].shape)
            for rows, block in self._blocks():
                total += block.X[:, features].T @ self._residuals(rows, block)
            found[features] = -self.learning_rate * allreduce(self._group, total)
        self._excess = self._sum_of_residuals()
        return found

    def _entropy_of_mixture(self, mix: FeasibleMix) -> float:
        """Sum of the entropies of this rank's mixed dual variables."""
        total = 0.0
        for rows, batch in row_batches(self._shard, self._n_outputs):
            total += mixed_entropy_sum(self.dual[rows], batch.sample_weight, mix)
        return total

    def _conjugate_of_mixture(self, values: np.ndarray, mix: FeasibleMix) -> float:
        """Conjugate of the penalty at mixed dual variables, by this rank's features."""
        total, class_sums = 0.0, self._totals.class_sums
        assert class_sums is not None
        is_mixed = mix.changes
        for features, sums in class_sums.chunks(_CHUNK, are_wanted=is_mixed):
            mixed = values[features]
            if is_mixed:
                mixed = mixed_values(mixed, sums, mix, scale=self.learning_rate)
            total += self._penalty.conjugate(self._penalty.l2 * mixed)
        return total

    def _sum_of_residuals(self) -> np.ndarray:
        """Sum of ``s_i (q_i - e_{y_i})`` over the rows of all ranks; collective."""
        total = np.zeros(self._n_outputs)
        for rows, block in row_batches(self._shard, self._n_outputs):
            total += self._residuals(rows, block).sum(axis=0, dtype=np.float64)
        return allreduce(self._group, total)

    def _residuals(self, rows: slice, block: Batch) -> np.ndarray:
        """``s_i (q_i - e_{y_i})`` of some rows."""
        found = residuals(self.dual[rows], block.y)
        if block.sample_weight is not None:
            found *= block.sample_weight[:, np.newaxis]
        return found

    def _blocks(self) -> Iterator[tuple[slice, Batch]]:
        """Rows of this rank, some at a time, and their places in `dual`."""
        for rows, batch in row_batches(self._shard, self._n_outputs):
            yield rows, batch._replace(X=self._totals.centred(batch.X))


class ElasticDualModel(DualModel):
    """The same with an elastic net, by dual ascent with a proximal operator.

    The dual sums are kept divided by the weight of the L2 penalty. The matrix is where
    they are beyond what the L1 penalty takes (Shalev-Shwartz and Zhang, 2013).
    """

    dual_is_columnwise = True

    def dual_operator(self, sums: np.ndarray) -> np.ndarray:
        penalty = self._penalty
        return L1(penalty.l1)(sums, 1 / penalty.l2)

    def matrix_of(self, sums: np.ndarray) -> np.ndarray:
        return self.dual_operator(sums.T).T
