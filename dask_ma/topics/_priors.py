"""Priors and first topics of a topic model, checked against its sizes."""

from __future__ import annotations

from typing import Any

import numpy as np


def is_auto(value: Any) -> bool:
    """Whether a parameter is "auto", the only string that its check lets pass."""
    return isinstance(value, str)


def check_doc_topic_prior(value: Any, n_components: int) -> np.ndarray:
    """Prior of the documents' topics as numbers above 0.

    Parameters
    ----------
    value : float or array-like
        What the user has given.
    n_components : int
        Number of topics.

    Returns
    -------
    prior : ndarray of float64, shape (1,) or (n_components,)

    Raises
    ------
    ValueError
        For another shape, and for elements that are not finite and above 0.
    """
    prior = _numbers(value, "doc_topic_prior").astype(np.float64)  # not the user's
    if prior.ndim and prior.shape != (n_components,):
        raise ValueError(
            f"doc_topic_prior should be a number or have {n_components} elements, one "
            f"per topic; got an array of shape {prior.shape}"
        )
    _check_positive(prior, "doc_topic_prior")
    return np.atleast_1d(prior)


def check_topic_word_prior(
    value: Any, n_components: int, n_features: int, dtype: np.dtype
) -> np.ndarray:
    """Prior of the topics' words as numbers above 0.

    Parameters
    ----------
    value : float or array-like
        What the user has given.
    n_components, n_features : int
        Numbers of topics and of words.
    dtype : dtype
        Of the result if it has a row for each topic, and is as large as the topics.

    Returns
    -------
    prior : ndarray of shape (), (n_features,) or (n_components, n_features)
        In float64 unless it is a matrix.

    Raises
    ------
    ValueError
        For another shape, and for elements that are not finite and above 0.
    """
    given = _numbers(value, "topic_word_prior")
    shape = n_components, n_features
    if given.shape not in ((), (n_features,), shape):
        raise ValueError(
            f"topic_word_prior should be a number, have {n_features} elements, one per "
            f"feature, or have the shape {shape}, one row per topic; got an array of "
            f"shape {given.shape}"
        )
    prior = given.astype(dtype if given.ndim == 2 else np.float64)  # not the user's
    _check_positive(prior, "topic_word_prior")
    return prior


def _check_positive(prior: np.ndarray, name: str) -> None:
    """Refuse elements that are not finite and above 0."""
    right = np.isfinite(prior) & (prior > 0)
    if right.all():
        return
    place = tuple(int(i) for i in np.argwhere(~right)[0])
    element = place[0] if len(place) == 1 else place
    which = f"element {element} is" if place else "it is"
    raise ValueError(f"{name} should be finite and above 0, but {which} {prior[place]}")


def check_components(value: Any, n_components: int, n_features: int) -> np.ndarray:
    """Parameters of first topics as numbers above 0.

    Parameters
    ----------
    value : array-like
        What the user has given as `components_init`.
    n_components, n_features : int
        Shape that it must have.

    Returns
    -------
    components : ndarray of shape (n_components, n_features)

    Raises
    ------
    ValueError
        For another shape, and for elements that are not finite and above 0.
    """
    components = _numbers(value, "components_init")
    if components.shape != (n_components, n_features):
        raise ValueError(
            f"components_init should have the shape {(n_components, n_features)}, one "
            f"row per topic and one column per feature; got {components.shape}"
        )
    right = np.isfinite(components) & (components > 0)
    if not right.all():
        row, column = np.argwhere(~right)[0]
        raise ValueError(
            "components_init should be finite and above 0, but row "
            f"{row} has {components[row, column]} in column {column}"
        )
    return components


def _numbers(value: Any, name: str) -> np.ndarray:
    """An array of float32 or float64."""
    array = np.asarray(value)
    if array.dtype in (np.float32, np.float64):
        return array
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} should hold numbers: {error}") from error
