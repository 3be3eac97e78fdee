"""Inputs of a metric learner besides rows: pairs, weights, components."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.engine import as_text
from dask_ma.sfb.metric._fitted import check_labels
from dask_ma.sfb.model._pairs import Tuples, check_tuples, known_length

#: Names of components to start from.
INITS = {"auto", "pca", "lda", "identity", "random"}


def tuples_of(
    estimator: Any, X: Any, y: Any, sample_weight: Any, pairs: Any, pair_labels: Any
) -> tuple[Any, Tuples | None]:
    """Weights of rows, and pairs to learn from with theirs, checked.

    Parameters
    ----------
    estimator : SFBMetricLearner
    X, y, sample_weight, pairs, pair_labels
        As `fit` gets them.

    Returns
    -------
    sample_weight : object
        As given for labels; None for pairs.
    tuples : Tuples or None
        None for labels.

    Raises
    ------
    ValueError, TypeError
        For labels and pairs together, or for neither; for pairs that cannot be used.
    """
    if pairs is None:
        if pair_labels is not None:
            raise ValueError("pair_labels are those of pairs; pass pairs, too")
        if y is None:
            raise ValueError(
                f"{type(estimator).__name__} requires y to be passed, but the target y "
                "is None; pass labels, or pairs"
            )
        return sample_weight, None
    if y is not None:
        raise ValueError("y and pairs cannot both be learnt from; pass one of them")
    if X is None:
        raise ValueError(
            "X is None, expected rows, of which pairs have the numbers; of an array of "
            "shape (n_pairs, 2, n_features) the rows are A.reshape(-1, A.shape[-1]), "
            "and the pairs np.arange(2 * len(A)).reshape(-1, 2)"
        )
    tuples = check_tuples(pairs, pair_labels, known_length(X))
    loss, width = estimator.loss, tuples.rows.shape[1]
    if loss == "nca" or (width == 3) != (loss == "triplet"):
        needs = {"nca": "labels y", "triplet": "pairs of three rows"}
        raise ValueError(
            f"loss={loss!r} needs {needs.get(loss, 'pairs of two rows')},"
            f" got pairs of shape {tuples.rows.shape}; set loss='hinge' or "
            "'logistic' for pairs, 'triplet' for triplets"
        )
    if width == 3 and pair_labels is not None:
        raise ValueError("pair_labels are for pairs of two rows, not triplets")
    if width == 2 and pair_labels is None:
        raise ValueError("pairs need pair_labels: 1 for similar pairs, -1 for others")
    if isinstance(estimator.init, str) and estimator.init == "lda":
        raise ValueError("init='lda' needs labels y, got pairs; set init='pca'")
    if sample_weight is not None:
        tuples = with_weights(tuples, sample_weight)
    if width == 2:
        labels = check_labels(tuples.labels, len(tuples.rows))
        tuples = tuples._replace(labels=labels)
    return None, tuples


def with_weights(tuples: Tuples, sample_weight: Any) -> Tuples:
    """Pairs with weights of mean 1; those of weight 0 are left out."""
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (len(tuples.rows),):
        raise ValueError(
            f"sample_weight has the shape {weights.shape}, expected "
            f"({len(tuples.rows)},), one for each of the pairs"
        )
    if not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
        raise ValueError(
            "sample_weight has to be finite and not negative, and to have an element "
            "that is above 0"
        )
    kept = np.flatnonzero(weights)
    shares = (weights[kept] / weights[kept].mean()).astype(np.float32)
    return tuples.pick(kept)._replace(weights=shares)


def checked_init(init: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Components that the user wants to start from, one row of them for a diagonal."""
    values = np.asarray(init, dtype=np.float32)
    if values.shape != shape or not np.isfinite(values).all():
        names = "(n_components, n_features)" if len(shape) > 1 else "(n_features,)"
        raise ValueError(
            f"init has the shape {values.shape}, expected finite numbers of shape "
            f"{shape}, {names}"
        )
    if not values.any():
        raise ValueError(
            "init has zeros alone, where all distances are equal and no step leads "
            "away; give other numbers, or set init='random'"
        )
    return np.atleast_2d(values)


def described(tuples: Tuples) -> dict[str, str]:
    """What tells a fit to pairs from others."""
    return {
        "pairs": as_text(tuples.rows),
        "pair_labels": as_text(tuples.labels),
        "pair_weights": as_text(tuples.weights),
    }
