"""SGD for a loss of one's own, of which scikit-learn's compiled loop knows nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from dask_ma.kernels import Loss, row_slice

if TYPE_CHECKING:
    from dask_ma.ma.sgd._steps import Steps

# Rows of a step. One at a time would cost the calls of NumPy and nothing else; from
# many at once a step learns little more than from a few.
_BATCH_ROWS = 16
_PICKED_ROWS = 64 * _BATCH_ROWS  # copied at a time where they are shuffled
_SMALLEST_SCALE = 1e-9  # from which on the scale goes into the weights


class LossSGD:
    """What the local pass asks of scikit-learn's SGD, for any loss.

    A step takes a few rows; its length is the sum of those that they would have had one
    by one. The weights are ``scale * vector``, so that the L2 penalty costs a step
    nothing and sparse rows cost their stored elements.

    Parameters
    ----------
    loss : Loss
        Of one output.
    alpha : float
        Weight of ``||w||^2 / 2``.
    is_classifier : bool
        Whether targets are 0 and 1, which stand for -1 and 1.
    fit_intercept, shuffle : bool
        As in scikit-learn's ``SGDClassifier``.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (1, n_features)
        Weights, changed in place.
    intercept_ : ndarray of shape (1,)
        Intercept, changed in place.
    steps : Steps
        Lengths of the steps of a row each.
    t_ : float
        Number of the next one.
    class_weight : dict or None
        Weights of the targets 0 and 1.
    random_state : RandomState or int
        Decides on the order of the rows.
    """

    classes_ = (0, 1)

    coef_: np.ndarray
    intercept_: np.ndarray
    steps: Steps
    t_: float

    def __init__(
        self,
        loss: Loss,
        alpha: float,
        *,
        is_classifier: bool,
        fit_intercept: bool,
        shuffle: bool,
    ) -> None:
        self._loss = loss
        self._alpha = alpha
        self._is_classifier = is_classifier
        self._fit_intercept = fit_intercept
        self._shuffle = shuffle
        self.class_weight: dict[int, float] | None = None
        self.random_state: Any = None

    def partial_fit(
        self, X: Any, y: np.ndarray, sample_weight: np.ndarray | None = None
    ) -> LossSGD:
        """Go over the rows once.

        Parameters
        ----------
        X : ndarray, csr_matrix or csr_array of shape (n_samples, n_features)
            Rows.
        y : ndarray of shape (n_samples,)
            Targets; 0 and 1 of a classifier.
        sample_weight : ndarray of shape (n_samples,) or None, default=None
            Weights of the rows.

        Returns
        -------
        self : LossSGD

        Raises
        ------
        ValueError
            If the steps are so long that the weights are no numbers any more.
        """
        signs = np.where(y > 0, 1.0, -1.0) if self._is_classifier else y
        targets = self._loss.targets(signs, self.coef_.dtype)
        weights = self._row_weights(y, sample_weight)
        order = self._generator().permutation(len(y)) if self._shuffle else None
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            for start in range(0, len(y), _PICKED_ROWS):
                stop = min(start + _PICKED_ROWS, len(y))
                picked = slice(start, stop) if order is None else order[start:stop]
                rows = row_slice(X, start, stop) if order is None else X[picked]
                own = None if weights is None else weights[picked]
                self._descend(rows, targets[picked], own)
                self.t_ += stop - start
        if not (np.isfinite(self.coef_).all() and np.isfinite(self.intercept_).all()):
            raise ValueError(
                "the steps of SGD have led to weights that are not finite; scale the "
                "features, or lower eta0"
            )
        return self

    def _generator(self) -> np.random.RandomState:
        """scikit-learn's kind of random numbers."""
        given = self.random_state
        is_generator = isinstance(given, np.random.RandomState)
        return given if is_generator else np.random.RandomState(given)

    def _row_weights(
        self, y: np.ndarray, sample_weight: np.ndarray | None
    ) -> np.ndarray | None:
        """Weights of the rows, with those of their classes."""
        if self.class_weight is None:
            return sample_weight
        own = np.where(y > 0, self.class_weight[1], self.class_weight[0])
        return own if sample_weight is None else own * sample_weight

    def _descend(self, X: Any, targets: np.ndarray, weights: np.ndarray | None) -> None:
        """Make the steps."""
        vector, scale = self.coef_.reshape(-1), 1.0
        for start in range(0, len(targets), _BATCH_ROWS):
            stop = min(start + _BATCH_ROWS, len(targets))
            rows = row_slice(X, start, stop)
            predictions = scale * (rows @ vector) + self.intercept_[0]
            slopes = self._loss.slope(targets[start:stop], predictions)
            if weights is not None:
                slopes = slopes * weights[start:stop]
            eta = self.steps.at(self.t_ + (start + stop - 1) / 2)
            # The proximal step of the penalty, which cannot overshoot.
            scale /= 1 + eta * self._alpha * (stop - start)
            _subtract_rows(vector, rows, slopes * (eta / scale))
            if self._fit_intercept:
                self.intercept_[0] -= eta * slopes.sum()
            if scale < _SMALLEST_SCALE:
                vector *= scale
                scale = 1.0
        vector *= scale


def _subtract_rows(vector: np.ndarray, rows: Any, factors: np.ndarray) -> None:
    """Subtract each row times its factor, in place."""
    if not sparse.issparse(rows):
        vector -= rows.T @ factors
        return
    values = rows.data * np.repeat(factors, np.diff(rows.indptr))
    np.subtract.at(vector, rows.indices, values.astype(vector.dtype, copy=False))
