"""Validation rows that users choose, and scores of their own on the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import Group
from dask_ma.data import Block, Shard, encode_labels
from dask_ma.linear import UsedColumns

if TYPE_CHECKING:
    from dask_ma.mpca.training._params import MPCAParams


class ValidationRows(NamedTuple):
    """Rows to score models on, as every rank gets them.

    Attributes
    ----------
    X : ndarray or CSR of shape (n_rows, n_features)
    y : ndarray of shape (n_rows,) or (n_rows, n_targets)
        As users give it.
    sample_weight : ndarray of shape (n_rows,) or None
    """

    X: Any
    y: np.ndarray
    sample_weight: np.ndarray | None


def shard_of(
    group: Group, rows: ValidationRows, classes: np.ndarray | None, like: Shard
) -> Shard:
    """The part of the validation rows that a rank scores models on.

    Parameters
    ----------
    group : Group
        This rank: of P ranks it takes every P-th row.
    rows : ValidationRows
        All of them.
    classes : ndarray of shape (n_classes,) or None
        Sorted labels, where y holds labels.
    like : Shard
        Rows that are trained on, whose type the others get.

    Returns
    -------
    shard : Shard
        y encoded; there may be no rows.

    Raises
    ------
    ValueError
        For labels that are not among the classes.
    """
    own = slice(group.rank, None, group.size)
    X, y = rows.X[own].astype(like.dtype, copy=False), rows.y[own]
    y = y.astype(np.float64) if classes is None else encode_labels(y, classes)
    weight = None if rows.sample_weight is None else rows.sample_weight[own]
    blocks = [Block(X, y, weight, 0, None)] if X.shape[0] else []
    return Shard(blocks, like.n_features, like.dtype)


def codes_of(probabilities: np.ndarray, n_codes: int) -> np.ndarray:
    """Numbers of the likeliest classes, place by place.

    Parameters
    ----------
    probabilities : ndarray of shape (n_rows, n_codes * n_places)
        As :meth:`NetworkSpec.forward` gives them.
    n_codes : int
        Number of classes.

    Returns
    -------
    codes : ndarray of int, shape (n_rows, n_places)
    """
    codes: np.ndarray = probabilities.reshape(
        len(probabilities), n_codes, probabilities.shape[1] // n_codes
    ).argmax(axis=1)
    return codes


def make_scorer(chosen: Any) -> Callable[..., float] | None:
    """What the parameter `early_stopping` says of the score; None for the own one.

    Raises
    ------
    ValueError
        For a name that scikit-learn does not know.
    """
    if isinstance(chosen, bool | np.bool_):
        return None
    scorer: Callable[..., float] = chosen
    if isinstance(chosen, str):
        from sklearn.metrics import get_scorer  # few ranks need it

        scorer = get_scorer(chosen)
    return scorer


def score_of_rank(
    params: MPCAParams,
    vector: np.ndarray,
    columns: UsedColumns,
    classes: np.ndarray | None,
    shard: Shard,
    scorer: Callable[..., float],
) -> np.ndarray:
    """Sums from which the mean score over ranks follows.

    Parameters
    ----------
    params : MPCAParams
        Parameters of the fit.
    vector : ndarray of shape (n_values,)
        Values of the network, for rows as they are.
    columns : UsedColumns
        The columns that it has inputs for: weights of all may be a thousand times as
        many.
    classes : ndarray of shape (n_classes,) or None
        Sorted labels.
    shard : Shard
        Rows of this rank, perhaps none, y encoded.
    scorer : callable
        ``scorer(estimator, X, y)`` or with `sample_weight`, where there are weights. A
        function of the user's gets rows and targets in the form in which they were
        given; one of scikit-learn, chosen by name, has them with one dimension each.

    Returns
    -------
    sums : ndarray of shape (4,)
        Weight of the rows, and the score times it, as of correct predictions; zeros
        where there are no rows, or where the score of these is NaN.
    """
    from dask_ma.mpca.training import _scored  # with scikit-learn

    sums = np.zeros(4)
    if not shard.blocks:
        return sums
    parts = [block.X for block in shard.read()]
    X = sparse.vstack(parts, "csr") if shard.is_sparse else np.concatenate(parts)
    y = np.concatenate([block.y for block in shard.blocks])
    spec, is_flat = params.spec, isinstance(params.early_stopping, str)
    if classes is not None and spec.n_targets is None:
        y = classes[y]
    if not is_flat:
        X = spec.as_given(X)
        y = y if spec.target_shape is None else y.reshape(len(y), *spec.target_shape)
    if not params.is_classifier:
        y = y.astype(np.float64, copy=False)  # bytes would wrap in what is made of them
    kind = _scored.RankClassifier if params.is_classifier else _scored.RankRegressor
    model = kind(spec, vector, columns, classes, is_flat)
    weight = np.concatenate([block.weights() for block in shard.blocks])
    has_weights = any(block.sample_weight is not None for block in shard.blocks)
    options = {"sample_weight": weight} if has_weights else {}
    value = float(scorer(model, X, y, **options))
    if np.isfinite(value):
        sums[:2] = weight.sum(), weight.sum() * value
    return sums
