"""The multinomial log loss, its slopes and its conjugate.

Rows are samples, columns are classes. One column stands for two classes: its margin is
that of class 1 against class 0, as in scikit-learn's binary logistic regression.

In the dual of the problem each sample has a probability vector `q_i`. The conjugate of
its loss is minus the entropy of `q_i`: for every `q`,
``loss(m) >= entropy(q) + (q - e_y) . m``, with equality at ``q = softmax(m)``.
"""

from __future__ import annotations

import numpy as np
from scipy import special


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
    if margins.shape[1] == 1:
        return special.expit(margins)
    p = margins - margins.max(axis=1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=1, keepdims=True)
    return p


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
    slopes = residuals(softmax(margins), y)
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
    if margins.shape[1] == 1:
        signed = margins[:, 0] * (1 - 2 * y)
        losses = np.logaddexp(0, signed)
    else:
        top = margins.max(axis=1)
        losses = np.log(np.exp(margins - top[:, np.newaxis]).sum(axis=1))
        losses += top - margins[np.arange(len(y)), y]
    return _weighted_sum(losses, sample_weight)


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


def _weighted_sum(values: np.ndarray, sample_weight: np.ndarray | None) -> float:
    """Sum in float64."""
    if sample_weight is None:
        return float(values.sum(dtype=np.float64))
    return float(np.dot(values.astype(np.float64), sample_weight))
