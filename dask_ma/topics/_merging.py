"""Topic models of different documents, put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from dask_ma.topics._priors import is_auto

_KEPT = ("doc_topic_prior_", "topic_word_prior_", "n_features_in_")


def merge_models(model: Any, others: Sequence[Any], *, align: bool) -> Any:
    """A model that has learned what each of some models has, beyond their prior.

    Parameters
    ----------
    model : estimator
        A fitted topic model.
    others : sequence of estimators
        Of the same kind.
    align : bool
        Whether topics are first put in the order that resembles those of `model` most.

    Returns
    -------
    merged : estimator
        A new one, with the parameters of `model`, and with its priors and names.

    Raises
    ------
    ValueError
        If the models do not fit together.
    """
    merged_components = model.components_.astype(np.float64)
    for number, other in enumerate(others):
        check_is_fitted(other)
        _check_mergeable(model, other, number)
        excess = other.components_ - other._word_prior()
        merged_components += excess[_alike(model, other)] if align else excess
    merged = clone(model)
    for name in _KEPT:
        setattr(merged, name, getattr(model, name))
    if hasattr(model, "feature_names_in_"):
        merged.feature_names_in_ = model.feature_names_in_
    merged.components_ = merged_components.astype(model.components_.dtype)
    return merged


def _check_mergeable(model: Any, other: Any, number: int) -> None:
    """Refuse a model of another kind, shape, vocabulary or prior."""
    if type(other) is not type(model):
        raise TypeError(
            f"others[{number}] is a {type(other).__name__}, expected a "
            f"{type(model).__name__}"
        )
    if other.components_.shape != model.components_.shape:
        raise ValueError(
            f"others[{number}] has components_ of shape {other.components_.shape}, "
            f"expected {model.components_.shape}"
        )
    own, names = (getattr(e, "feature_names_in_", None) for e in (model, other))
    if own is not None and names is not None and not np.array_equal(own, names):
        raise ValueError(f"others[{number}] has other feature names than this")
    # What each has learned lies beyond the prior that it has learned with it.
    if is_auto(model.topic_word_prior) and is_auto(other.topic_word_prior):
        return
    if not np.array_equal(other.topic_word_prior_, model.topic_word_prior_):
        raise ValueError(
            f"others[{number}] has another topic_word_prior_ than this model"
        )


def _alike(model: Any, other: Any) -> np.ndarray:
    """Numbers of the topics of `other` that resemble those of `model`, in its order."""
    shares = [
        np.sqrt(e.components_ / e.components_.sum(axis=1, keepdims=True))
        for e in (model, other)
    ]
    # Hellinger affinity: 1 for equal distributions.
    return np.asarray(linear_sum_assignment(shares[0] @ shares[1].T, maximize=True)[1])
