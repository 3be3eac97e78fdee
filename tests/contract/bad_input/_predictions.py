"""Rows that a fitted estimator cannot predict, and estimators that cannot yet."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from scipy import sparse

from bad_input._cases import Call, Case, put, refused, trained
from bad_input._shapes import empty_partition
from bad_input._world import (
    CLASSIFIERS,
    ESTIMATORS,
    METRICS,
    NAMES,
    SUPERVISED,
    TRANSFORMERS,
    Box,
    N,
    good_rows,
)


@cache
def _state(name: str, has_names: bool) -> dict[str, Any]:
    """What a fit to good rows in memory leaves in an estimator; one fit for all."""
    model, y = ESTIMATORS[name](), Box(name, "numpy").good_y
    X = pd.DataFrame(good_rows(), columns=NAMES) if has_names else good_rows()
    return vars(model.fit(X) if y is None else model.fit(X, y))


def fitted(estimator: Any, box: Box) -> None:
    """It is as after a fit to good rows in memory."""
    vars(estimator).update(deepcopy(_state(box.estimator, has_names=False)))


def fitted_with_names(estimator: Any, box: Box) -> None:
    """It is as after a fit to a pandas frame."""
    vars(estimator).update(deepcopy(_state(box.estimator, has_names=True)))


def method_of(box: Box) -> str:
    """What an estimator does with rows."""
    return "transform" if box.estimator in (*METRICS, *TRANSFORMERS) else "predict"


def predict(
    change: Callable[[np.ndarray], Any], method: str | None = None
) -> Callable[[Box], Call]:
    """Prediction of good rows after a change."""
    return lambda box: Call(
        X=box.rows(change(good_rows())),
        method=method or method_of(box),
        before=fitted,
    )


def score(**arguments: Any) -> Callable[[Box], Call]:
    """The score of good rows."""
    return lambda box: Call(method="score", before=fitted, arguments=arguments)


def other_rows(make: Callable[[Box], Any]) -> Callable[[Box], Call]:
    """Prediction of rows as they are."""
    return lambda box: Call(X=make(box), method=method_of(box), before=fitted)


def names(columns: list[str]) -> Callable[[Box], Call]:
    """Prediction of a frame with these columns, after a fit to a, b and c."""

    def call(box: Box) -> Call:
        X = pd.DataFrame(good_rows(), columns=columns)
        X = dd.from_pandas(X, npartitions=4) if box.is_lazy else X
        return Call(X=X, method=method_of(box), before=fitted_with_names)

    return call


def broken(box: Box) -> Any:
    """Rows with an entry in a column that is not there."""

    def spoil(X: Any) -> Any:
        X = sparse.csr_matrix(X)
        X.indices[0] = 7
        return X

    X = box.rows(good_rows())
    return spoil(X) if box.kind == "csr" else X.map_blocks(spoil, dtype=X.dtype)


_NAN = refused(
    memory="Input X contains NaN",
    lazy="Input X contains NaN in block 2, row 3 of the block",
)
_INFINITE = refused(
    memory="Input X contains infinity",
    lazy="Input X contains infinity in block 2, row 3 of the block",
)
_CLASSES = tuple(sorted(CLASSIFIERS))
DENSE_OF_MEMORY = ("numpy", "array")
as_they_are = predict(lambda X: X)

CASES = [
    Case("predict: NaN", predict(put(np.nan)), _NAN),
    Case("predict: infinity", predict(put(np.inf)), _INFINITE),
    Case("predict: minus infinity", predict(put(-np.inf)), _INFINITE),
    Case(
        "predict: NaN in float32",
        predict(lambda X: put(np.nan)(X.astype(np.float32))),
        _NAN,
    ),
    Case("predict_proba: NaN", predict(put(np.nan), "predict_proba"), _NAN, _CLASSES),
    Case(
        "score: NaN",
        lambda box: Call(
            X=box.rows(put(np.nan)(good_rows())), method="score", before=fitted
        ),
        _NAN,
        SUPERVISED,
    ),
    Case(
        "predict: fewer columns",
        lambda box: Call(
            X=(
                box.rows(good_rows())[["a", "b"]]
                if box.kind == "frame"
                else box.rows(good_rows()[:, :2])
            ),
            method=method_of(box),
            before=fitted,
        ),
        refused("X has 2 features, but .* is expecting 3 features as input"),
    ),
    Case(
        "predict: 1-D",
        predict(lambda X: X[0]),
        refused("Expected 2D array, got 1D array instead"),
        containers=DENSE_OF_MEMORY,
    ),
    Case(
        "predict: complex",
        predict(lambda X: X + 1j),
        refused("Complex data not supported|expected real numbers|hold no numbers"),
    ),
    Case(
        "predict: empty partition of objects",
        other_rows(empty_partition),
        trained(as_they_are),
        containers=("frame",),
    ),
    Case(
        "predict: times",
        predict(lambda X: X.astype("M8[s]")),
        refused("expected real numbers"),
        containers=DENSE_OF_MEMORY,
    ),
    Case(
        "predict: masked",
        predict(np.ma.masked_array),
        refused("X is a masked array, expected plain numbers; fill it"),
        containers=DENSE_OF_MEMORY,
    ),
    Case(
        "predict: texts",
        other_rows(lambda box: ["a red rose", "sky"] * 12),
        refused("X holds text .*expected rows of numbers; count the words"),
        containers=("numpy",),
    ),
    Case(
        "predict: a Delayed",
        other_rows(lambda box: dask.delayed(good_rows)()),
        refused(r"X is a Delayed, expected data or a dask.array.*pass X.compute\(\)"),
        containers=("array",),
    ),
    Case(
        "predict: column beyond the last",
        other_rows(broken),
        refused("X is not a valid sparse matrix: .*indices must be < 3"),
        containers=("csr", "array"),
    ),
    Case(
        "predict: columns in another order",
        names(["b", "a", "c"]),
        refused("Feature names must be in the same order as they were in fit"),
        containers=("numpy", "frame"),
    ),
    Case(
        "predict: columns of other names",
        names(["a", "b", "d"]),
        refused("Feature names unseen at fit time:\n- d"),
        containers=("numpy", "frame"),
    ),
    Case(
        "predict: sparse rows after a fit to dense ones",
        predict(sparse.csr_matrix),
        trained(as_they_are),
        containers=("numpy",),
    ),
    Case(
        "predict: unequal blocks",
        other_rows(lambda box: box.rows(good_rows(), 8)),
        trained(as_they_are),
        containers=("array",),
    ),
    Case(
        "predict: not fitted",
        lambda box: Call(method=method_of(box)),
        refused("This .* instance is not fitted yet. Call 'fit' with appropriate"),
    ),
    Case(
        "score: too few labels",
        lambda box: Call(y=box.good_y[:-1], method="score", before=fitted),
        refused("inconsistent numbers of samples: "),
        SUPERVISED,
    ),
    Case(
        "score: a number as weight",
        score(sample_weight=3),
        trained(score()),
        SUPERVISED,
    ),
    Case(
        "score: a word as weight",
        score(sample_weight="equal"),
        refused("sample_weight is the text 'equal', expected a number"),
        SUPERVISED,
    ),
    Case(
        "score: NaN as a weight",
        score(sample_weight=np.where(np.arange(N) == 15, np.nan, 1.0)),
        refused(memory="Input .*contains NaN", lazy="sample_weight adds up to nan"),
        SUPERVISED,
    ),
    Case(
        "score: too few weights",
        score(sample_weight=np.ones(N - 1)),
        refused("inconsistent numbers of samples: "),
        SUPERVISED,
    ),
]
