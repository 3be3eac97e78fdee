"""Further rows for an estimator that do not go with the first ones."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np

from bad_input._cases import Call, Case, put, refused, trained
from bad_input._world import CLASSIFIERS, ESTIMATORS, SUPERVISED, Box, N, good_rows

PARTIAL = tuple(e for e, make in ESTIMATORS.items() if hasattr(make(), "partial_fit"))
WITH_CLASSES = tuple(e for e in PARTIAL if e in CLASSIFIERS)
WEIGHTED = tuple(e for e in PARTIAL if e in SUPERVISED)


@cache
def _state(name: str) -> dict[str, Any]:
    """What going over good rows in memory leaves in an estimator; once for all."""
    model, y = ESTIMATORS[name](), Box(name, "numpy").good_y
    classes = {"classes": [0, 1]} if name in CLASSIFIERS else {}
    rows = (good_rows(),) if y is None else (good_rows(), y)
    return vars(model.partial_fit(*rows, **classes))


def first(estimator: Any, box: Box) -> None:
    """It is as after going over good rows in memory."""
    vars(estimator).update(deepcopy(_state(box.estimator)))


def more(**changes: Any) -> Callable[[Box], Call]:
    """A second call of partial_fit."""
    return lambda box: Call(method="partial_fit", before=first, **changes)


def more_rows(change: Callable[[np.ndarray], Any]) -> Callable[[Box], Call]:
    """A second call with other rows."""
    return lambda box: Call(
        X=box.rows(change(good_rows())), method="partial_fit", before=first
    )


def more_labels(change: Callable[[np.ndarray], Any]) -> Callable[[Box], Call]:
    """A second call with other labels."""
    return lambda box: Call(
        y=box.column(change(box.good_y)), method="partial_fit", before=first
    )


_PLACE = " in block 2, row 15 of the whole input"
CASES = [
    Case(
        "partial_fit: NaN",
        more_rows(put(np.nan)),
        refused("Input X contains NaN", lazy="Input X contains NaN" + _PLACE),
        PARTIAL,
    ),
    Case(
        "partial_fit: fewer columns",
        more_rows(lambda X: X[:, :2]),
        refused("X has 2 features, but .* is expecting 3 features as input"),
        PARTIAL,
        ("numpy", "csr", "array"),
    ),
    Case(
        "partial_fit: new labels",
        more_labels(lambda y: y + (np.arange(N) == 15)),
        refused(
            r"y contains labels that are not in classes: \[2\]; classes are \[0, 1"
        ),
        WITH_CLASSES,
    ),
    Case(
        "partial_fit: labels of another type",
        more_labels(lambda y: np.where(y == 1, "yes", "no")),
        refused(
            r"y contains labels that are not in classes: \['.*\]; classes are \[0,"
        ),
        WITH_CLASSES,
    ),
    Case(
        "partial_fit: no classes",
        lambda box: Call(method="partial_fit"),
        refused("classes must be passed on the first call to partial_fit"),
        WITH_CLASSES,
    ),
    Case(
        "partial_fit: other classes",
        more(arguments={"classes": [0, 1, 2]}),
        refused(
            r"classes=\[0, 1, 2\] is not the same as on last call .* was: \[0, 1\]"
        ),
        WITH_CLASSES,
    ),
    Case(
        "partial_fit: balanced",
        lambda box: Call(
            method="partial_fit",
            params={"class_weight": "balanced"},
            arguments={"classes": [0, 1]},
        ),
        refused("class_weight='balanced' cannot be used with partial_fit.*pass a dict"),
        WITH_CLASSES,
    ),
    Case(
        "partial_fit: a number as weight",
        more(arguments={"sample_weight": 0.5}),
        trained(more(arguments={"sample_weight": np.ones(N)})),
        WEIGHTED,
    ),
    Case(
        "partial_fit: negative number as weight",
        more(arguments={"sample_weight": -0.5}),
        refused("sample_weight is -0.5 for all rows, expected a finite number above 0"),
        WEIGHTED,
    ),
    Case(
        "partial_fit: huge",
        more_rows(lambda X: X * 1e200),
        refused(r"Input X holds values up to \de\+200 in block 0.*scale the features"),
        WEIGHTED,
    ),
]
