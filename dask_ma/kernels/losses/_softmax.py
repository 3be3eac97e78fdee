"""The multinomial log loss, and sums of it with a column for two classes.

Rows are samples, columns are classes. In the functions, as in scikit-learn's binary
logistic regression, one column stands for two classes: its margin is that of class 1
against class 0.

In the dual of the problem each sample has a probability vector `q_i`. The conjugate of
its loss is minus the entropy of `q_i`: for every `q`,
``loss(m) >= entropy(q) + (q - e_y) . m``, with equality at ``q = softmax(m)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from dask_ma.kernels.losses._base import Loss
from dask_ma.kernels.losses._margin import _SMALLEST_PROBABILITY, LogLoss


class MultinomialLogLoss(Loss):
    """Logistic regression of several classes, with an output for each.

    Parameters
    ----------
    n_classes : int
        Number of classes, at least 2. Their codes are the targets.

    Raises
    ------
    ValueError
        If there are fewer than 2.
    """

    smoothness = 0.5

    def __init__(self, n_classes: int) -> None:
        if n_classes < 2:
            raise ValueError(f"n_classes must be at least 2, got {n_classes}")
        self.n_outputs = n_classes

    def targets(self, y: np.ndarray, dtype: Any = np.float64) -> np.ndarray:
        """Codes of the classes as indices."""
        return np.asarray(y).astype(np.intp, copy=False)

    def value(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``log(sum_k exp(p_k)) - p_y``."""
        shifted = p - _largest(p)
        own = shifted[np.arange(len(y)), y]
        np.exp(shifted, out=shifted)
        return np.asarray(np.log(shifted.sum(axis=1)) - own)

    def slope(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """``softmax(p) - e_y``."""
        slopes = _softmax(p)
        slopes[np.arange(len(y)), y] -= 1
        return slopes

    def value_and_slope(
        self, y: np.ndarray, p: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Both from the same exponentials."""
        rows = np.arange(len(y))
        slopes = p - _largest(p)
        own = slopes[rows, y]
        np.exp(slopes, out=slopes)
        sums = slopes.sum(axis=1)
        slopes /= sums[:, np.newaxis]
        slopes[rows, y] -= 1
        return np.log(sums) - own, slopes

    def curvatures(self, y: np.ndarray, p: np.ndarray) -> Callable[[int], np.ndarray]:
        """``q_k (1 - q_k)``, or ``-q_k q_l`` of two outputs; ``q = softmax(p)``."""
        q = _softmax(p)

        def by(output: int) -> np.ndarray:
            found = -q
            found[:, output] += 1
            found *= q[:, output, np.newaxis]
            return found

        return by

    def conjugate(self, y: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """``sum_k q_k log q_k`` with ``q = slopes + e_y``."""
        q = slopes.copy()
        q[np.arange(len(y)), y] += 1
        # Of a probability near 0 rounding may leave less than nothing.
        return np.asarray(-special.entr(np.maximum(q, 0, out=q)).sum(axis=1))

    def working_squares(self, y: np.ndarray, p: np.ndarray) -> np.ndarray:
        """Variance of ``p_k`` under q, ``2 (p_y - mean)``, and ``1 / q_y - 1``."""
        q, rows = _softmax(p), np.arange(len(y))
        mean = np.einsum("ik,ik->i", q, p)
        spread = np.einsum("ik,ik->i", q, p**2) - mean**2
        right = np.maximum(q[rows, y], _SMALLEST_PROBABILITY)
        return np.asarray(spread + 2 * (p[rows, y] - mean) + 1 / right - 1)


class PartOfLogLoss:
    """The loss of :class:`MultinomialLogLoss` where some outputs lie elsewhere.

    The sums of all parts make it whole. Slopes are made in the place of what they are
    made of, so that they can be had once.

    Parameters
    ----------
    p : ndarray of float32 or float64, shape (n_samples, n_outputs)
        Finite predictions of the outputs that lie here.

    Attributes
    ----------
    sums : ndarray of shape (n_samples, 2)
        Largest prediction of each row, and the sum of exponentials less it.
    """

    def __init__(self, p: np.ndarray) -> None:
        self._largest = _largest(p)
        self._exponentials = p - self._largest
        np.exp(self._exponentials, out=self._exponentials)
        sums = self._exponentials.sum(axis=1, keepdims=True)
        self.sums = np.hstack([self._largest, sums])

    def slope(self, y: np.ndarray, first: int, sums: list[np.ndarray]) -> np.ndarray:
        """These columns of ``softmax(p) - e_y``.

        Parameters
        ----------
        y : ndarray of int, shape (n_samples,)
            Codes of the classes.
        first : int
            The class of the first output here.
        sums : list of ndarray of shape (n_samples, 2)
            Those of all parts.

        Returns
        -------
        slopes : ndarray of shape (n_samples, n_outputs)
        """
        largest, total = _together(sums)
        slopes = self._exponentials
        slopes *= np.exp(self._largest - largest) / total
        rows = _of_outputs(y, first, slopes.shape[1])
        slopes[rows, y[rows] - first] -= 1
        return slopes


def part_of_log_losses(
    p: np.ndarray, y: np.ndarray, first: int, sums: list[np.ndarray]
) -> np.ndarray:
    """What some outputs add to the losses; the first part has the logarithms.

    Parameters
    ----------
    p : ndarray of float32 or float64, shape (n_samples, n_outputs)
        Predictions of these outputs.
    y, first, sums
        As for :meth:`PartOfLogLoss.slope`.

    Returns
    -------
    values : ndarray of float64 of shape (n_samples,)
    """
    values = np.zeros(len(y))
    rows = _of_outputs(y, first, p.shape[1])
    values[rows] = -p[rows, y[rows] - first].astype(np.float64)
    if first == 0:
        largest, total = _together(sums)
        values += (largest + np.log(total))[:, 0]
    return values


def _of_outputs(y: np.ndarray, first: int, n_outputs: int) -> np.ndarray:
    """Rows whose class is one of some outputs."""
    return np.flatnonzero((y >= first) & (y < first + n_outputs))


def _together(sums: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Largest prediction of each row, and sum of exponentials less it, of all parts."""
    largest = np.max([part[:, :1] for part in sums], axis=0)
    total = np.zeros_like(largest)
    for part in sums:
        total += part[:, 1:] * np.exp(part[:, :1] - largest)
    return largest, total


def log_loss_of(n_columns: int) -> Loss:
    """The log loss of so many outputs.

    Parameters
    ----------
    n_columns : int
        Number of classes, or 1 for two classes.

    Returns
    -------
    loss : LogLoss or MultinomialLogLoss
    """
    return LogLoss() if n_columns == 1 else MultinomialLogLoss(n_columns)


def softmax(margins: np.ndarray) -> np.ndarray:
    """Probabilities of the classes.

    Parameters
    ----------
    margins : ndarray of float32 or float64, shape (n_samples, n_columns)
        Finite predictions ``X @ W.T + b``.

    Returns
    -------
    ndarray of the shape and dtype of `margins`
        Rows that sum to 1; with one column, the probability of class 1.
    """
    return special.expit(margins) if margins.shape[1] == 1 else _softmax(margins)


def log_softmax(margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of the probabilities of the classes, and the probabilities.

    Parameters
    ----------
    margins : ndarray of float32 or float64, shape (n_samples, n_columns)
        Finite predictions, of two columns at least.

    Returns
    -------
    logarithms, probabilities : ndarray of the shape and dtype of `margins`
    """
    log_p = margins - _largest(margins)
    p = np.exp(log_p)
    totals = p.sum(axis=1, keepdims=True)
    p /= totals
    log_p -= np.log(totals)
    return log_p, p


def softmax_slopes(
    margins: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None = None
) -> np.ndarray:
    """Derivatives of the weighted losses by the margins.

    Parameters
    ----------
    margins : ndarray of float32 or float64, shape (n_samples, n_columns)
        Finite predictions.
    y : ndarray of int, shape (n_samples,)
        Codes of the classes, ``0 <= y < max(2, n_columns)``.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights of the rows; None weighs each by 1.

    Returns
    -------
    ndarray of the shape and dtype of `margins`
        ``s_i * (softmax(m_i) - e_{y_i})``.
    """
    loss, p = log_loss_of(margins.shape[1]), _predictions(margins)
    slopes = loss.slope(loss.targets(y, margins.dtype), p).reshape(margins.shape)
    if sample_weight is not None:
        slopes *= sample_weight[:, np.newaxis]
    return slopes


def residuals(dual: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Probabilities less the one-hot targets.

    Parameters
    ----------
    dual : ndarray of float32 or float64, shape (n_samples, n_columns)
        Probability vectors; with one column, the probability of class 1.
    y : ndarray of int, shape (n_samples,)
        Codes of the classes.

    Returns
    -------
    ndarray of the shape and dtype of `dual`
        ``a_i = q_i - e_{y_i}``, a new array.
    """
    a = dual.copy()
    if a.shape[1] == 1:
        a[:, 0] -= y
    else:
        a[np.arange(len(y)), y] -= 1
    return a


def log_loss_sum(
    margins: np.ndarray, y: np.ndarray, sample_weight: np.ndarray | None = None
) -> float:
    """Weighted sum of the losses ``log(sum_k exp(m_ik)) - m_{i, y_i}``.

    Parameters
    ----------
    margins : ndarray of float32 or float64, shape (n_samples, n_columns)
        Finite predictions.
    y : ndarray of int, shape (n_samples,)
        Codes of the classes.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights of the rows; None weighs each by 1.

    Returns
    -------
    float
        Not negative; summed in float64.
    """
    loss, p = log_loss_of(margins.shape[1]), _predictions(margins)
    return _weighted_sum(loss.value(loss.targets(y, margins.dtype), p), sample_weight)


def entropy_sum(dual: np.ndarray, sample_weight: np.ndarray | None = None) -> float:
    """Weighted sum of the entropies ``-sum_k q_ik log(q_ik)``.

    Parameters
    ----------
    dual : ndarray of float32 or float64, shape (n_samples, n_columns)
        Probability vectors; with one column, the probability of class 1.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights of the rows; None weighs each by 1.

    Returns
    -------
    float
        Not negative; summed in float64.
    """
    entropies = special.entr(dual).sum(axis=1, dtype=np.float64)
    if dual.shape[1] == 1:
        entropies += special.entr(1 - dual[:, 0])
    return _weighted_sum(entropies, sample_weight)


def _softmax(p: np.ndarray) -> np.ndarray:
    """Softmax of each row."""
    q = p - _largest(p)
    np.exp(q, out=q)
    q /= q.sum(axis=1, keepdims=True)
    return np.asarray(q)


def _largest(p: np.ndarray) -> np.ndarray:
    """Largest element of each row."""
    return np.asarray(p.max(axis=1, keepdims=True))


def _predictions(margins: np.ndarray) -> np.ndarray:
    """Margins as losses take them."""
    return margins[:, 0] if margins.shape[1] == 1 else margins


def _weighted_sum(values: np.ndarray, sample_weight: np.ndarray | None) -> float:
    """Sum in float64."""
    if sample_weight is None:
        return float(values.sum(dtype=np.float64))
    return float(np.dot(values.astype(np.float64), sample_weight))
