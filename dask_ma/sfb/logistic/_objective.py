"""Objective, gradient and lower bound of a logistic regression on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather, allreduce, barrier, broadcast, reduce
from dask_ma.kernels import (
    FeasibleMix,
    entropy_sum,
    feasible_mix,
    log_loss_sum,
    mixed_values,
    residuals,
    shrunk_entropy_sum,
    softmax,
    softmax_hessian,
    subtract_product,
    weighted_gram,
)
from dask_ma.sfb.logistic._class_sums import ClassSums, add_up_classes, feature_parts
from dask_ma.sfb.logistic._coupling import Coupling
from dask_ma.sfb.logistic._curvature import (
    Curvature,
    add_product,
    moments_of_outputs,
    near_centre,
)
from dask_ma.sfb.logistic._intercepts import settle_intercepts
from dask_ma.sfb.logistic._penalty import Penalty
from dask_ma.sfb.logistic._totals import Totals
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._rows import row_batches
from dask_ma.supervised import Problem

_CHUNK = 2**18  # coefficients at a time
_PART_BYTES = 2**25  # of a gradient that are sent at a time
# Of the gap: what a dual point nearer to zero has to bring to be worth a look at rows.
_WORTH = 0.5
_MOST_FACTORS, _NEAR = 30, 1e-9


class Evaluation(NamedTuple):
    """The objective at a point.

    Attributes
    ----------
    objective : float
    bound : float
        The minimum is not below it; minus infinity where nothing is known.
    loss : float
        The objective without the penalty.
    gradient : ndarray of shape (n_features, n_outputs) or None
        Of the loss, on rank 0.
    slopes : ndarray of shape (n_outputs,)
        Gradient of the loss by the intercepts.
    curvature : float
        Mean second derivative of the losses by single linear functions, from 0 to 1/4.
    """

    objective: float
    bound: float
    loss: float
    gradient: np.ndarray | None
    slopes: np.ndarray
    curvature: float


class Objective:
    """The objective as all ranks evaluate it, whatever has trained the model.

    The slopes of the losses at a point, ``a_i = softmax(W x_i + b) - e_{y_i}``, are
    those of a dual point: what they add up to, the gradient, bounds the minimum from
    below. The point is first made feasible, for the intercept by mixing
    (:func:`~dask_ma.kernels.feasible_mix`), and for a norm as penalty by shrinking. An
    L1 norm with next to nothing of L2 is about a norm: there it is shrunk as far as the
    bound gains by it.

    Parameters
    ----------
    problem : Problem
        Rows and classes.
    penalty : Penalty
    fit_intercept : bool
        Whether there are intercepts.
    totals : Totals
        Sums over all ranks.
    group : Group
        This rank.
    """

    def __init__(
        self,
        problem: Problem,
        penalty: Penalty,
        *,
        fit_intercept: bool,
        totals: Totals,
        group: Group,
    ) -> None:
        self._problem = problem
        self._penalty = penalty
        self._prox = penalty.prox
        self._fit_intercept = fit_intercept
        self._totals = totals
        self._class_sums: ClassSums | None = None  # on rank 0 of all features
        self._group = group

    @property
    def n_rows(self) -> int:
        """Rows of all ranks."""
        return self._problem.total_rows

    @property
    def n_entries(self) -> float:
        """Elements of a row that are not zero, in the mean."""
        return self._problem.total_stored / self._problem.total_rows

    def evaluate(self, matrix: ParameterMatrix, *, settles: bool = False) -> Evaluation:
        """Objective, gradient and bound; a collective call.

        Parameters
        ----------
        matrix : ParameterMatrix
            The same on all ranks.
        settles : bool, default=False
            Whether its intercepts become the best ones first.

        Returns
        -------
        evaluation : Evaluation
            The same on all ranks, but for the gradient.
        """
        n_outputs, n_features = matrix.shape
        loss = entropy = curvature = 0.0
        gradient, slopes = np.zeros((n_features, n_outputs)), np.zeros(n_outputs)
        place, kept = (self._problem, self._totals, self._group), None
        if settles:
            kept = settle_intercepts(*place, matrix)
        batches = row_batches(self._problem.shard, n_outputs)
        for number, (_, batch) in enumerate(batches):
            X, weight = self._totals.centred(batch.X), batch.sample_weight
            margins = matrix.product(X) if kept is None else kept[number]
            loss += log_loss_sum(margins, batch.y, weight)
            p = softmax(margins)
            entropy += entropy_sum(p, weight)
            found = p * (1 - p)
            if weight is not None:
                found *= weight[:, np.newaxis]
            curvature += float(found.sum(dtype=np.float64)) / n_outputs
            found = residuals(p, batch.y)
            if weight is not None:
                found *= weight[:, np.newaxis]
            slopes += found.sum(axis=0, dtype=np.float64)
            _add_product(gradient, X, found)
        n_rows = self._problem.total_rows
        sums = allreduce(self._group, np.append(slopes, [loss, entropy, curvature]))
        mean = self._mean_of_all(gradient)
        sums /= n_rows
        slopes, (loss, entropy, curvature) = sums[:-3], sums[-3:].tolist()
        objective = loss + self._prox.value(matrix.whole().T)
        bound = -np.inf
        if self._penalty.has_bound:
            bound = self._bound(matrix, mean, slopes, (objective, loss, entropy))
        # The penalties of the ranks differ by rounding.
        objective = float(broadcast(self._group, objective))
        return Evaluation(objective, bound, loss, mean, slopes, curvature)

    def hessian(
        self,
        matrix: ParameterMatrix,
        features: np.ndarray,
        outputs: np.ndarray,
        stride: int,
    ) -> np.ndarray | None:
        """Second derivatives of the loss by some coefficients; a collective call.

        Parameters
        ----------
        matrix : ParameterMatrix
            The same on all ranks.
        features, outputs : ndarray of int of shape (n_variables,)
            The coefficients, as in :func:`~dask_ma.kernels.softmax_hessian`.
        stride : int
            One row of so many is looked at.

        Returns
        -------
        hessian : ndarray of shape (n_variables, n_variables) or None
            On rank 0.
        """
        n_variables = len(features)
        total, weights = np.zeros((n_variables, n_variables)), 0.0
        for rows, batch in row_batches(self._problem.shard, matrix.shape[0]):
            picked = slice(-rows.start % stride, None, stride)
            X, weight = self._totals.centred(batch.X[picked]), batch.sample_weight
            weight = None if weight is None else weight[picked]
            p = softmax(matrix.product(X))
            total += softmax_hessian(X, p, weight, features, outputs)
            weights += float(len(p) if weight is None else weight.sum())
        weights = float(allreduce(self._group, np.array(weights)))
        found = reduce(self._group, total)
        return None if found is None else found / weights

    def moments_of_outputs(
        self, matrix: ParameterMatrix, stride: int
    ) -> np.ndarray | None:
        """Second derivatives within each output, on rank 0; a collective call."""
        place = self._problem, self._totals, self._group
        return moments_of_outputs(*place, matrix, stride)

    def diagonal(self, matrix: ParameterMatrix) -> np.ndarray | None:
        """Second derivatives of the loss by single variables; a collective call.

        Returns
        -------
        curvatures : ndarray of shape (n_variables,) or None
            Feature by feature, then intercepts, on rank 0.
        """
        n_outputs, n_features = matrix.shape
        total, border = np.zeros((n_features, n_outputs)), np.zeros(n_outputs)
        for _, batch in row_batches(self._problem.shard, n_outputs):
            X = self._totals.centred(batch.X)
            curvature = softmax(matrix.product(X))
            curvature *= 1 - curvature
            if batch.sample_weight is not None:
                curvature *= batch.sample_weight[:, np.newaxis]
            border += curvature.sum(axis=0, dtype=np.float64)
            squares = X.multiply(X).tocsr() if sparse.issparse(X) else X**2
            _add_product(total, squares, curvature)
        border = allreduce(self._group, border) / self.n_rows
        mean = self._mean_of_all(total)
        if mean is None:
            return None
        parts = [mean.ravel()]
        return np.concatenate(parts if matrix.intercept is None else [*parts, border])

    def curvature(self, matrix: ParameterMatrix) -> Curvature:
        """Second derivatives at a point, for products with directions."""
        place = self._problem, self._totals, self._group
        return Curvature(*place, matrix, near_centre(self._totals, matrix.dtype))

    def coupling(self, matrix: ParameterMatrix, inverse: np.ndarray | None) -> Coupling:
        """Second derivatives at a point by outputs and features; collective."""
        place = self._problem, self._totals, self._group
        return Coupling(*place, matrix, inverse)

    def second_moments(
        self, matrix: ParameterMatrix | None = None
    ) -> np.ndarray | None:
        """Weighted mean products of all pairs of features; a collective call.

        Parameters
        ----------
        matrix : ParameterMatrix, default=None
            Where rows are weighted by the mean second derivatives of their losses by
            single linear functions, besides; None weights them alike.

        Returns
        -------
        moments : ndarray of shape (n_features, n_features) or None
            On rank 0.
        """
        n_features = self._problem.shard.n_features
        total = np.zeros((n_features, n_features))
        for _, batch in row_batches(self._problem.shard, self._problem.n_problems):
            # Rounding would make more of what features have in common.
            X, weight = self._totals.centred(batch.X), batch.sample_weight
            if matrix is not None:
                p = softmax(matrix.product(X))
                p *= 1 - p
                own = p.mean(axis=1, dtype=np.float64)
                weight = own if weight is None else own * weight
            total += weighted_gram(X, weight)
        found = reduce(self._group, total)
        return None if found is None else found / self._problem.total_rows

    def largest_square(self, scales: np.ndarray) -> float:
        """Largest squared length of a row, with a 1 for the intercept; collective.

        Parameters
        ----------
        scales : ndarray of shape (n_features,)
            What features are divided by, above 0.

        Returns
        -------
        largest : float
            The same on all ranks.
        """
        largest = 0.0
        for _, batch in row_batches(self._problem.shard, self._problem.n_problems):
            X = self._totals.centred(batch.X)
            if sparse.issparse(X):
                squares = X.multiply(X) @ scales**-2.0
            else:
                squares = ((X / scales) ** 2).sum(axis=1)
            largest = max(largest, float(squares.max(initial=0.0)))
        return 1.0 + max(allgather(self._group, largest))

    def _mean_of_all(self, gradient: np.ndarray) -> np.ndarray | None:
        """Mean over the rows of all ranks, in place, on rank 0; a collective call."""
        # Some features at a time where a copy of all would be large.
        n_features, n_outputs = gradient.shape
        for features in feature_parts(n_features, n_outputs, _PART_BYTES):
            if features.start:
                barrier(self._group)  # none is to send more than rank 0 has taken
            total = reduce(self._group, gradient[features])
            if total is not None:
                np.divide(total, self.n_rows, out=gradient[features])
        return gradient if self._group.rank == 0 else None

    def _bound(
        self,
        matrix: ParameterMatrix,
        gradient: np.ndarray | None,
        slopes: np.ndarray,
        values: tuple[float, float, float],
    ) -> float:
        """What the dual point of the slopes says; a collective call."""
        # `values` are the objective, the mean loss and the mean entropy of that point.
        if self._class_sums is None:
            place = self._problem, self._group, self._totals.centre
            self._class_sums = add_up_classes(*place, to_root=True)
        excess = slopes * self.n_rows if self._fit_intercept else np.zeros_like(slopes)
        mix, found = feasible_mix(excess, self._totals.class_weights), None
        if gradient is not None:  # on rank 0
            found = self._feasible(gradient, mix, *values)
        points = broadcast(self._group, found)
        factors = [factor for factor, _ in points]
        entropies = [values[2]]
        if mix.changes or factors != [1.0]:
            entropies = self._entropies(matrix, mix, factors)
        pairs = zip(points, entropies, strict=True)
        return max(entropy - conjugate for (_, conjugate), entropy in pairs)

    def _feasible(
        self,
        gradient: np.ndarray,
        mix: FeasibleMix,
        objective: float,
        loss: float,
        entropy: float,
    ) -> list[tuple[float, float]]:
        """By what the mixture may be multiplied, and the conjugates there."""
        penalty = self._penalty
        if not penalty.l2:
            parts = self._mixed(gradient, mix)
            if penalty.trace:  # a norm of all features at once
                parts = iter([np.vstack(list(parts))])
            return [(min(map(penalty.shrinkage, parts), default=1.0), 0.0)]
        if not penalty.l1:
            parts = self._mixed(gradient, mix)
            return [(1.0, float(sum(map(penalty.conjugate, parts))))]
        found = np.zeros(3)
        for values in self._mixed(gradient, mix):
            found += penalty.conjugate_along(np.abs(values), 1.0)
        whole, rise = (found[:2] / penalty.l2).tolist()
        # The entropy is concave along the factor: it lies below its tangent at 1.
        slope = max(0.0, entropy - loss)
        wanted = _WORTH * max(0.0, objective - entropy + whole)
        excess, nearer = rise - slope, []
        # The rise is convex along the factor, and nothing at 0: none brings more than
        # if it were linear, nor more than all of the conjugate.
        if excess > 0 and min(whole, excess * (excess / rise) / 2) > wanted:
            factor, least = self._least_along(gradient, mix, slope, found)
            if whole - least - slope * (1 - factor) > wanted:
                nearer = [(factor, least)]
        return [(1.0, whole), *nearer]

    def _least_along(
        self, gradient: np.ndarray, mix: FeasibleMix, slope: float, found: np.ndarray
    ) -> tuple[float, float]:
        """A factor from which on the conjugate rises by `slope`, and that there."""
        # `found` is what `Penalty.conjugate_along` says at 1.
        penalty, factor = self._penalty, 1.0
        sizes: Iterable[np.ndarray] | None = None
        for _ in range(_MOST_FACTORS):
            # Newton's method from above, on slopes that are convex: in pieces, linear.
            beyond = found[1] - penalty.l2 * slope
            if not beyond > _NEAR * found[2]:  # nor where something overflows
                break
            factor -= beyond / found[2]
            if sizes is None:
                sizes = map(np.abs, self._mixed(gradient, mix))
            # What a smaller factor leaves within the L1 part stays there.
            sizes = [part[factor * part > penalty.l1] for part in sizes]
            found = np.zeros(3)
            for part in sizes:
                found += penalty.conjugate_along(part, factor)
        return factor, float(found[0]) / penalty.l2

    def _mixed(self, gradient: np.ndarray, mix: FeasibleMix) -> Iterator[np.ndarray]:
        """Mean products of dual variables and rows, some features at a time."""
        assert self._class_sums is not None
        for features, sums in self._class_sums.chunks(_CHUNK):
            yield mixed_values(-gradient[features], sums, mix, scale=1 / self.n_rows)

    def _entropies(
        self, matrix: ParameterMatrix, mix: FeasibleMix, factors: list[float]
    ) -> list[float]:
        """Mean entropies of the dual point made feasible; a collective call."""
        totals = np.zeros(len(factors))
        for _, batch in row_batches(self._problem.shard, matrix.shape[0]):
            p = softmax(matrix.product(self._totals.centred(batch.X)))
            place = p, batch.y, batch.sample_weight, mix
            totals += [shrunk_entropy_sum(*place, factor) for factor in factors]
        found = allreduce(self._group, totals) / self._problem.total_rows
        return [float(entropy) for entropy in found]


def _add_product(gradient: np.ndarray, X: Any, slopes: np.ndarray) -> None:
    """Add ``X.T @ slopes``, without a second array of that size."""
    if sparse.issparse(X):
        subtract_product(gradient, slopes, X, -1.0)
        return
    size = max(1, _CHUNK // slopes.shape[1])
    for start in range(0, len(gradient), size):
        part = slice(start, start + size)
        add_product(gradient[part], X[:, part], slopes)
