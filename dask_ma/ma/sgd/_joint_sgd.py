"""SGD over sparse rows for many classes at once.

scikit-learn's loop goes over the rows once for each class. Where there are many, most
of its time goes by on reading rows again, and on what each call costs besides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.data import Block, Shard
from dask_ma.kernels import (
    RowPlaces,
    batch_slopes,
    one_vs_rest_targets,
    row_slice,
    transposed,
    transposed_copy,
)
from dask_ma.linear import LinearModel
from dask_ma.ma.sgd._params import FitParams, penalty_weights
from dask_ma.ma.sgd._steps import Steps

# Rows of a step: a pass with so many brings as much as one with a row at a time, for
# text with 20 and 150 classes; twice as many bring less with a kinked loss.
_BATCH_ROWS = 16
# All rows of a step move the intercepts, but few of them each other weight. Steps of
# intercepts are this much shorter; those of scikit-learn 100 times, with a row each.
_OF_INTERCEPT = 0.1
_PICKED_ROWS = 64 * _BATCH_ROWS  # copied at a time
_SMALLEST_SCALE = 1e-9  # from which on the scale goes into the weights
# With fewer classes the calls of NumPy take longer than scikit-learn's loop.
_LEAST_PROBLEMS = 32


def goes_jointly(shard: Shard, n_problems: int, params: FitParams) -> bool:
    """Whether many classes share the steps, whose sizes are found by trial then."""
    is_tried = params.learning_rate == "auto"
    return is_tried and shard.is_sparse and n_problems >= _LEAST_PROBLEMS


class JointSGD:
    """SGD for all classes, each against the rest.

    A step takes a few rows; its length is the sum of those that they would have had one
    by one. The weights are ``scale * weights``, so that the L2 penalty costs a step
    nothing.

    Parameters
    ----------
    n_features, n_problems : int
        Columns of the rows, and classes.
    params : FitParams
        Parameters of the fit.
    positive_weight : ndarray of shape (n_problems,) or None
        Weights of each class in its own problem.
    dtype : dtype
        Of the weights.
    """

    def __init__(
        self,
        n_features: int,
        n_problems: int,
        params: FitParams,
        positive_weight: np.ndarray | None,
        dtype: Any,
    ) -> None:
        self._n_problems = n_problems
        self._params = params
        self._l2 = penalty_weights(params)[0]
        self._positive_weight = positive_weight
        self._places = RowPlaces(n_features)
        self._weights = np.empty((n_features, n_problems), dtype)
        self._intercept = np.empty(n_problems, dtype)

    def load(self, model: LinearModel) -> None:
        """Copy a model, to go on from it."""
        # Fresh memory for a large model would take longer than the copy.
        transposed_copy(model.coef, self._weights)
        self._intercept[:] = model.intercept

    def copy(self) -> LinearModel:
        """The model that the steps have led to."""
        return LinearModel(transposed_copy(self._weights), self._intercept.copy())

    def go_over(self, block: Block, steps: Steps, t: float, random: Any) -> None:
        """Go over some rows once.

        Parameters
        ----------
        block : Block
            Rows, and codes of their classes.
        steps : Steps
            Lengths of the steps of a row each.
        t : float
            Number of the first one.
        random : RandomState
            Decides on the order of the rows.

        Raises
        ------
        ValueError
            If the steps are so long that the weights are no numbers any more.
        """
        n_rows, weight = len(block.y), block.sample_weight
        order = random.permutation(n_rows) if self._params.shuffle else None
        scale = 1.0
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            for start in range(0, n_rows, _PICKED_ROWS):
                stop = min(start + _PICKED_ROWS, n_rows)
                picked = slice(start, stop) if order is None else order[start:stop]
                rows = row_slice(block.X, start, stop) if order is None else None
                own = block._replace(
                    X=block.X[picked] if rows is None else rows,
                    y=block.y[picked],
                    sample_weight=None if weight is None else weight[picked],
                )
                scale = self._descend(own, steps, t + start, scale)
            self._weights *= self._weights.dtype.type(scale)
        if not (
            np.isfinite(self._weights).all() and np.isfinite(self._intercept).all()
        ):
            raise ValueError(
                "the steps of SGD have led to weights that are not finite; scale the "
                "features, or set learning_rate"
            )

    def _descend(self, rows: Block, steps: Steps, t: float, scale: float) -> float:
        """Make the steps; return the scale after them."""
        dtype, own_weight = self._weights.dtype, rows.sample_weight
        targets = one_vs_rest_targets(rows.y, self._n_problems, dtype)
        batch: _Batch | None = None
        for start in range(0, len(targets), _BATCH_ROWS):
            stop = min(start + _BATCH_ROWS, len(targets))
            n_rows = stop - start
            if batch is None or batch.n_rows != n_rows:
                batch = _Batch(rows.X, n_rows, self._n_problems)
            features = batch.read(rows.X, start, self._places, self._weights)
            batch.weights[-1] = self._intercept
            slopes = batch_slopes(
                batch.weights,
                batch.scaled(scale),
                targets[start:stop],
                None if own_weight is None else own_weight[start:stop],
                loss=self._params.loss,
                epsilon=self._params.epsilon,
                positive_weight=self._positive_weight,
            )
            eta = steps.at(t + (start + stop - 1) / 2)
            # The proximal step of the penalty, which cannot overshoot.
            scale /= 1 + eta * self._l2 * n_rows
            self._weights[features] = batch.less(slopes * dtype.type(eta / scale))
            if self._params.fit_intercept:
                self._intercept -= _OF_INTERCEPT * eta * slopes.sum(axis=0)
            if scale < _SMALLEST_SCALE:
                self._weights *= dtype.type(scale)
                scale = 1.0
        return scale


class _Batch:
    """Some rows on the features alone that they have, one batch after the other."""

    # To make matrices of SciPy for each batch would take longer than its step. In the
    # last row of `weights` there is room for intercepts.

    def __init__(self, X: Any, n_rows: int, n_problems: int) -> None:
        self.n_rows = n_rows
        ends = X.indptr[n_rows:]
        most = int((ends - X.indptr[: len(ends)]).max())
        self.weights = np.zeros((most + 1, n_problems), X.dtype)
        self._rows = type(X)((n_rows, most), dtype=X.dtype)
        self._columns = transposed(self._rows)

    def read(
        self, X: Any, start: int, places: RowPlaces, weights: np.ndarray
    ) -> np.ndarray:
        """Take the rows from `start` on; return the features that they have."""
        first, last = X.indptr[start], X.indptr[start + self.n_rows]
        features, own = places.named(X.indices[first:last])
        pointer = (X.indptr[start : start + self.n_rows + 1] - first).astype(own.dtype)
        for matrix in (self._rows, self._columns):
            matrix.data, matrix.indices, matrix.indptr = (
                X.data[first:last],
                own,
                pointer,
            )
        self._read = self.weights[: len(features)]
        np.take(weights, features, axis=0, out=self._read, mode="clip")
        return features

    def scaled(self, scale: float) -> Any:
        """The rows times a number."""
        self._rows.data = self._columns.data * self._columns.dtype.type(scale)
        return self._rows

    def less(self, slopes: np.ndarray) -> np.ndarray:
        """The weights that were read, less the sum of the rows times slopes."""
        self._read -= (self._columns @ slopes)[: len(self._read)]
        return self._read
