"""Feasible points of the dual of multinomial logistic regression.

With an intercept, the dual asks for ``sum_i s_i a_i = 0``, and dual ascent keeps that
only in the limit (see :mod:`dask_ma.kernels._dual` for the symbols). Only a feasible
point bounds the optimum from below. So the vectors `q_i` are mixed with a common
probability vector, by as little as the constraint asks for.

Where a class has next to no weight, or none, this would leave nothing of the `q_i`: in
what is mixed in the class may not have more than its weight, and what there is has to
come from somewhere. The probabilities of such a class are made smaller themselves, each
by the same share, which is added to the classes that lack some.

The bound holds as far as `W` is what the `q_i` make of it: up to the rounding of all
updates so far, which shows in float32.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.kernels.losses import entropy_sum

# Share of a mixture from which on the class that asks for it is made smaller instead.
_MOST = 0.5


class FeasibleMix(NamedTuple):
    """A point of the dual that keeps the constraint of the intercept.

    Attributes
    ----------
    share : float
        Share of `prior` in the mixture, from 0 to 1; in the formulas, `epsilon`.
    prior : ndarray of float64, shape (n_columns,)
        The probability vector that is mixed in; in the formulas, `pi`.
    taken : ndarray of float64, shape (n_classes,), or None
        Share of the probabilities of each class that is taken off them before; None
        takes nothing.
    given : ndarray of float64, shape (n_classes,), or None
        To which classes, in parts that add up to 1, what is taken is added.
    """

    share: float
    prior: np.ndarray
    taken: np.ndarray | None = None
    given: np.ndarray | None = None

    @property
    def changes(self) -> bool:
        """Whether it is another point than the one it was made for."""
        return self.share > 0 or self.taken is not None


def feasible_mix(imbalance: np.ndarray, class_weight: np.ndarray) -> FeasibleMix:
    """The smallest change of a dual point that makes it feasible.

    Every `q_i` becomes ``(1 - epsilon) q_i + epsilon pi`` with one `pi` for all rows,
    such that the sum of the ``s_i a_i`` is 0. A class that would ask for more than half
    of `pi` gives its surplus to those that lack some first.

    Parameters
    ----------
    imbalance : ndarray of shape (n_columns,)
        ``sum_i s_i a_i`` over all rows.
    class_weight : ndarray of shape (n_classes,)
        Weight of the rows of each class; ``n_classes = max(2, n_columns)``. Their sum
        is above 0.

    Returns
    -------
    FeasibleMix
    """
    n = np.asarray(class_weight, dtype=np.float64)
    r = np.asarray(imbalance, dtype=np.float64)
    if len(r) == 1:
        r = np.array([-r[0], r[0]])
    shares, taken, given = _shares_of(r, n), None, None
    prior = n / n.sum()
    is_far = shares > _MOST
    if is_far.any():
        taken, lacking = np.where(is_far, shares, 0), np.maximum(-r, 0)
        given = lacking / lacking.sum() if lacking.any() else prior
        r = np.where(is_far, 0, r + given * r[is_far].sum())
        shares = _shares_of(r, n)
    share = float(shares.max())
    if share > 0:
        found = np.maximum(prior - (1 - share) / share * r / n.sum(), 0)
        # Nothing is left where all have too much, by rounding.
        prior = found / found.sum() if found.any() else prior
    return FeasibleMix(share, prior[-len(imbalance) :], taken, given)


def _shares_of(r: np.ndarray, n: np.ndarray) -> np.ndarray:
    """What has to be mixed in for each class to have no more than its weight."""
    surplus = np.maximum(r, 0)
    # A class without rows and without surplus asks for nothing.
    return np.divide(surplus, n + surplus, out=np.zeros_like(n), where=surplus > 0)


def class_sums(
    X: Any,
    y: np.ndarray,
    sample_weight: np.ndarray | None,
    n_classes: int,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Weighted sums of the rows of each class.

    Parameters
    ----------
    X : ndarray, csr_matrix or csr_array of shape (n_samples, n_features)
        Rows of a block.
    y : ndarray of int, shape (n_samples,)
        Codes of the classes, ``0 <= y < n_classes``.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights of the rows; None weighs each by 1.
    n_classes : int
        Classes, two at least.
    out : ndarray of float64 of shape (n_features, n_classes), default=None
        What they are added to, in place; None is one of zeros.

    Returns
    -------
    ndarray of float64, shape (n_features, n_classes)
    """
    if out is None:
        out = np.zeros((X.shape[1], n_classes))
    weight = np.ones(len(y)) if sample_weight is None else sample_weight
    columns = np.arange(n_classes)
    if not sparse.issparse(X):
        # Of many classes few rows have few, and others need not be touched.
        columns, y = np.unique(y, return_inverse=True)
    one_hot = sparse.csr_array(
        (weight.astype(np.float64), y, np.arange(len(y) + 1)),
        shape=(len(y), len(columns)),
    )
    sums = X.T @ one_hot
    if sparse.issparse(sums):
        # Few elements, each of them once: most of a large array is not looked at.
        sums = sums.tocoo()
        out[sums.row, sums.col] += sums.data
    elif len(columns) == n_classes:
        out += sums
    else:
        out[:, columns] += sums
    return out


def mixed_values(
    values: np.ndarray, sums: np.ndarray, mix: FeasibleMix, *, scale: float
) -> np.ndarray:
    """Coefficients of a mixture, ``W((1 - epsilon) q + epsilon pi)``.

    Parameters
    ----------
    values : ndarray of shape (n_features, n_columns)
        ``W(q)``, transposed.
    sums : ndarray of float64, shape (n_features, n_classes)
        What :func:`class_sums` gives, summed over all data.
    mix : FeasibleMix
        What :func:`feasible_mix` gives.
    scale : float
        ``1 / (alpha * N)``.

    Returns
    -------
    ndarray of float64, shape (n_features, n_columns)
    """
    if mix.taken is not None and mix.given is not None:
        values = _moved_values(values, sums, mix.taken, mix.given, scale)
    of_prior = sums[:, -values.shape[1] :] - np.outer(sums.sum(axis=1), mix.prior)
    of_prior *= mix.share * scale
    of_prior += (1 - mix.share) * values
    return of_prior


def _moved_values(
    values: np.ndarray,
    sums: np.ndarray,
    taken: np.ndarray,
    given: np.ndarray,
    scale: float,
) -> np.ndarray:
    """Coefficients where probabilities have gone from some classes to others."""
    whole = values if values.shape[1] > 1 else np.hstack([-values, values])
    (classes,) = np.nonzero(taken)
    # Sums of the rows by the probabilities of a class, in units of coefficients.
    gone = (scale * sums[:, classes] - whole[:, classes]) * taken[classes]
    found = whole - np.outer(gone.sum(axis=1), given)
    found[:, classes] += gone
    return found[:, -values.shape[1] :]


def mixed_entropy_sum(
    dual: np.ndarray, sample_weight: np.ndarray | None, mix: FeasibleMix
) -> float:
    """Weighted sum of the entropies of ``(1 - epsilon) q_i + epsilon pi``.

    The feasible dual value is this sum over all rows divided by `N`, less
    ``alpha/2`` times the squared norm of :func:`mixed_values`.

    Parameters
    ----------
    dual : ndarray of float32 or float64, shape (n_samples, n_columns)
        The vectors `q_i` of a block.
    sample_weight : ndarray of shape (n_samples,) or None
        Weights of the rows; None weighs each by 1.
    mix : FeasibleMix
        What :func:`feasible_mix` gives.

    Returns
    -------
    float
        Not negative.
    """
    if not mix.changes:
        return entropy_sum(dual, sample_weight)
    return entropy_sum(_mixed(dual, mix), sample_weight)


def shrunk_entropy_sum(
    dual: np.ndarray,
    y: np.ndarray,
    sample_weight: np.ndarray | None,
    mix: FeasibleMix,
    factor: float,
) -> float:
    """The same of mixtures that are then drawn towards the targets.

    A penalty that is a norm, as the 1-norm, asks that ``sum_i s_i a_i x_i^T`` is small
    enough in the dual norm. With `factor` times each ``a_i`` it is `factor` times as
    large, and every ``q_i`` is a probability vector still.

    Parameters
    ----------
    dual, sample_weight, mix
        As in :func:`mixed_entropy_sum`.
    y : ndarray of int, shape (n_samples,)
        Codes of the classes.
    factor : float
        From 0 to 1.

    Returns
    -------
    float
        Not negative.
    """
    if factor == 1:
        return mixed_entropy_sum(dual, sample_weight, mix)
    mixed = _mixed(dual, mix)
    mixed *= mixed.dtype.type(factor)
    if dual.shape[1] == 1:
        mixed[:, 0] += (1 - factor) * y
    else:
        mixed[np.arange(len(y)), y] += mixed.dtype.type(1 - factor)
    # Rounding must not lead out of the interval from 0 to 1.
    return entropy_sum(np.minimum(mixed, 1, out=mixed), sample_weight)


def _mixed(dual: np.ndarray, mix: FeasibleMix) -> np.ndarray:
    """``(1 - epsilon) q_i + epsilon pi``, in a new array."""
    if mix.taken is not None and mix.given is not None:
        dual = _moved(dual, mix.taken, mix.given)
    mixed = dual * (1 - mix.share)
    mixed += (mix.share * mix.prior).astype(dual.dtype)
    return np.asarray(mixed, dtype=dual.dtype)


def _moved(dual: np.ndarray, taken: np.ndarray, given: np.ndarray) -> np.ndarray:
    """The `q_i` after some classes have given to others, in a new array."""
    whole = dual.copy() if dual.shape[1] > 1 else np.hstack([1 - dual, dual])
    (classes,) = np.nonzero(taken)
    gone = whole[:, classes] @ taken[classes].astype(dual.dtype)
    whole[:, classes] *= (1 - taken[classes]).astype(dual.dtype)
    whole += np.outer(gone, given.astype(dual.dtype))
    return whole[:, -dual.shape[1] :]
