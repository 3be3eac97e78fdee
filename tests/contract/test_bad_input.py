"""Each kind of bad input is refused with words that help, or trained rightly."""

from __future__ import annotations

import re
import time
from functools import cache

import numpy as np
import pytest
from bad_input import (
    CASES,
    CONTAINERS,
    ESTIMATORS,
    GOOD,
    TOPICS,
    Box,
    good_rows,
    learned,
)
from pairs import each, pairwise

_SECONDS = 5.0  # of the processor, for any case
_N_KINDS = 120
#: Estimators that learn in single precision, whatever the rows are in.
SHORT = frozenset({"SFBMetricLearner"})


def family(estimator):
    """Of estimators that read rows alike."""
    methods = "LDA", "SGDClassifier", "SGDRegressor", "MPCA", "SchMPL", "SFB"
    return next(method for method in methods if method in estimator)


ALL = [
    (case, Box(estimator, kind))
    for case in CASES
    for estimator in ESTIMATORS
    if estimator in case.estimators
    for kind in case.containers
]
REFUSED, TRAINED = (
    [row for row in ALL if (row[0].expect(row[1]).message is None) == is_trained]
    for is_trained in (False, True)
)
TOPIC = {case.name: topic for topic, cases in TOPICS.items() for case in cases}


def who_refuses(row):
    """Rows are looked at alike in a family; parameters are those of an estimator."""
    case, box = row
    is_of_rows = TOPIC[case.name] != "parameters"
    who = family(box.estimator) if is_of_rows else box.estimator
    return case.name, who, box.kind


def who_trains(row):
    """Each kind of bad input in each container, each family, and each estimator."""
    case, box = row
    name = family(box.estimator)
    topic = TOPIC[case.name]
    return (case.name, box.kind), (topic, name), (name, box.kind), box.estimator


TABLE = pairwise(REFUSED, who_refuses)
TABLE += [
    row
    for row in each(REFUSED, lambda row: [(TOPIC[row[0].name], row[1].estimator)])
    if row not in TABLE
]
# Whole fits tell that rows are trained rightly, and take most of the time.
TABLE += each(TRAINED, who_trains)
BOXES = {case.name: [box for other, box in TABLE if other is case] for case in CASES}


def label(value):
    """Words of an identifier."""
    if isinstance(value, Box):
        return f"{value.estimator}-{value.kind}"
    return value.name


def outcome(box, call):
    """What a call gives: what is learned, or the values of the rows."""
    estimator = ESTIMATORS[box.estimator](**call.params)
    if call.before is not None:
        call.before(estimator, box)
    arguments = [box.rows(good_rows()) if call.X is GOOD else call.X]
    if box.good_y is not None and call.method in ("fit", "partial_fit", "score"):
        arguments.append(box.column(box.good_y) if call.y is GOOD else call.y)
    result = getattr(estimator, call.method)(*arguments, **call.arguments)
    if call.method in ("fit", "partial_fit"):
        return learned(estimator)
    return {"result": np.asarray(result)}


@cache
def reference(box, make):
    """What a clean call gives."""
    return outcome(box, make(box))


def check(case, box):
    """One row of the table in one box."""
    expected, call = case.expect(box), case.make(box)
    if expected.message is not None:
        with pytest.raises((ValueError, TypeError, OSError)) as error:
            outcome(box, call)
        text = str(error.value)
        assert re.search(expected.message, text, re.DOTALL), text
        return
    found, wanted = outcome(box, call), reference(box, expected.like)
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        if values.dtype.kind in "fiu":
            assert np.isfinite(found[name]).all()
            # Products of blocks of other sizes are rounded otherwise.
            is_short = values.dtype == np.float32 or box.estimator in SHORT
            atol = 1e-5 * np.abs(values).max(initial=0) if is_short else 1e-9
            np.testing.assert_allclose(found[name], values, rtol=1e-6, atol=atol)
        else:
            np.testing.assert_array_equal(found[name], values)


def test_the_table_is_large_enough():
    names = [case.name for case in CASES]
    assert len(names) == len(set(names)) >= _N_KINDS
    assert {box.kind for _, box in TABLE} == set(CONTAINERS)
    assert {box.estimator for _, box in TABLE} == set(ESTIMATORS)


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore:partial_fit has taken")
@pytest.mark.filterwarnings("ignore:X (has|does not have valid) feature names")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("case", CASES, ids=label)
def test_refused_or_trained_rightly(case):
    """All boxes of a kind of bad input, each of which is told of if it fails.

    A test for each would take a third more, for some milliseconds of its own.
    """
    failures = []
    for box in BOXES[case.name]:
        start = time.process_time()
        try:
            check(case, box)
            # Time of the processor, which does not pass while others have it.
            assert time.process_time() - start < _SECONDS
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"in the box {label(box)}")
            failures.append(error)
    if failures:
        raise BaseExceptionGroup(f"{case.name} in {len(failures)} boxes", failures)


# How errors come back from workers has nothing to do with who is fitted.
ON_CLUSTER = each(
    [
        (case, box)
        for case, box in ALL
        if case.name
        in {
            "NaN",
            "block of objects",
            "block that is masked",
            "block that raises",
            "class_weight: negative",
            "huge",
            "labels: pd.NA",
            "partial_fit: new labels",
            "predict: NaN",
            "score: NaN",
            "sparse: column beyond the last",
            "sparse: duplicate entries",
            "targets: huge",
            "weights: a number",
            "weights: negative",
            "weights: zero for a class",
            "X: a Delayed",
        }
        and box.kind == "array"
        and box.estimator in ("ButterflySGDClassifier", "MPCARegressor", "MALDA")
    ],
    lambda row: (row[0].name, row[1].estimator),
)


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore:partial_fit has taken")
@pytest.mark.parametrize(("case", "box"), ON_CLUSTER, ids=label)
def test_on_a_cluster(case, box, cluster):
    check(case, box)
