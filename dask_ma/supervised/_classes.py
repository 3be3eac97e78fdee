"""Classes of all ranks: labels, weights, shares, and how the ranks differ."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from dask_ma.data import encode_labels, merge_labels
from dask_ma.supervised._params import ProblemParams
from dask_ma.supervised._summary import Summary

_UNEVEN = 0.2  # part of a rank's rows that would have to be of other classes
_UNLIKELY = 1.5  # times what is to be expected of a random draw


def agree_on_classes(
    summaries: list[Summary], params: ProblemParams
) -> np.ndarray | None:
    """Sorted labels of all ranks, None for a regressor."""
    if not params.has_classes:
        return None
    found = merge_labels(
        [s.labels for s in summaries if s.labels is not None and len(s.labels)]
    )
    if params.classes is not None:
        encode_labels(found, params.classes)  # refuses labels that are not among them
        found = params.classes
    if len(found) < 2:
        n_weightless = sum(s.n_weightless for s in summaries)
        reason = ""
        if n_weightless:
            reason = (
                f", for {n_weightless} rows have the weight 0 in sample_weight and do "
                "not count; give rows of another class a positive weight"
            )
        raise ValueError(
            "The number of classes has to be greater than one; got 1 class: "
            f"{found.tolist()[0]!r}{reason}"
        )
    known = params.warm_classes
    if known is not None and not np.array_equal(found, known):
        raise ValueError(
            "warm_start can only be used where `y` has the same classes as in the "
            f"previous call to fit. Previously got {known}, `y` has {found}; set "
            "warm_start=False"
        )
    return found


def class_factors(
    summaries: list[Summary], classes: np.ndarray | None, params: ProblemParams
) -> np.ndarray | None:
    """Weight of each class, None if all are 1."""
    if classes is None or params.class_weight is None:
        return None
    sums = _label_sums(summaries, classes)
    if params.class_weight == "balanced":
        present = sums > 0
        factors = np.ones(len(classes))
        factors[present] = sums.sum() / (present.sum() * sums[present])
        return factors
    known = classes.tolist()
    unknown = [label for label in params.class_weight if label not in known]
    if unknown:
        raise ValueError(
            f"class_weight names the labels {unknown}, which are not among the classes "
            f"{known}"
        )
    return np.array([_class_weight(params.class_weight, label) for label in known])


def _class_weight(weights: dict[Any, Any], label: Any) -> float:
    """Weight of a class, which must be a finite number, not negative."""
    weight = weights.get(label, 1.0)
    if isinstance(weight, Real) and 0 <= float(weight) < np.inf:
        return float(weight)
    raise ValueError(
        f"class_weight must not be negative, NaN, infinite or no number, but that of "
        f"the label {label!r} is {weight!r}; use 0 for a class whose rows are not to "
        "be learned as such"
    )


def shares_of(
    summaries: list[Summary], classes: np.ndarray | None, factors: np.ndarray | None
) -> np.ndarray | None:
    """Share of each class in the weights of all ranks."""
    if classes is None:
        return None
    sums = _label_sums(summaries, classes) * (1.0 if factors is None else factors)
    return sums / sums.sum()


def _label_sums(summaries: list[Summary], classes: np.ndarray) -> np.ndarray:
    """Sum of the weights of each class over all ranks."""
    sums = np.zeros(len(classes))
    for summary in summaries:
        if summary.labels is not None and len(summary.labels):
            codes = encode_labels(summary.labels, classes)
            np.add.at(sums, codes, summary.label_weights)
    return sums


def uneven_classes(summaries: list[Summary], classes: np.ndarray | None) -> str | None:
    """Say so if the classes of some rank are not a random draw from those of all."""
    filled = [(rank, s) for rank, s in enumerate(summaries) if s.n_rows]
    if classes is None or len(filled) < 2:
        return None
    sums = np.zeros((len(filled), len(classes)))
    for row, (_, summary) in zip(sums, filled, strict=True):
        row[encode_labels(summary.labels, classes)] = summary.label_weights
    shares = sums / np.maximum(sums.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    common = sums.sum(axis=0) / sums.sum()
    # Total variation, which grows with the root of classes per row by chance alone.
    distance = np.abs(shares - common).sum(axis=1) / 2
    chance = np.sqrt([len(classes) / summary.n_rows for _, summary in filled])
    excess = distance - np.maximum(_UNEVEN, _UNLIKELY * chance)
    worst = int(excess.argmax())
    if excess[worst] <= 0:
        return None
    k = int((shares[worst] - common).argmax())
    return (
        f"the ranks have rows of different classes: of those of rank "
        f"{filled[worst][0]} {shares[worst, k]:.0%} are of class "
        f"{classes.tolist()[k]!r}, of all rows {common[k]:.0%}"
    )


def class_weighted(
    summary: Summary, classes: np.ndarray | None, factors: np.ndarray | None
) -> float:
    """Sum of a rank's weights with the class weights in them."""
    if factors is None or classes is None:
        return summary.weight
    if summary.labels is None or not len(summary.labels):
        return 0.0
    codes = encode_labels(summary.labels, classes)
    return float(summary.label_weights @ factors[codes])
