"""Distances that a fitted metric is asked for: inputs, names, precision, triplets."""

import pickle

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.datasets import load_iris
from sklearn.neighbors import KNeighborsClassifier

from dask_ma import SFBMetricLearner
from dask_ma.sfb import Exchange

X, y = load_iris(return_X_y=True)
FRAME = pd.DataFrame(X, columns=["a", "b", "c", "d"])
RNG = np.random.default_rng(0)
PAIRS = RNG.integers(0, 150, size=(40, 2))
TRIPLETS = np.array([[0, 1, 60], [60, 61, 120], [120, 121, 60], [5, 140, 9]])
FORMS = [{"n_components": 2}, {"metric_form": "diagonal"}]
LAZY = da.from_array(X, chunks=(40, 4))
FRAMES = dd.from_pandas(FRAME, npartitions=4)
INPUTS = {
    "array": X,
    "list": X.tolist(),
    "sparse": sparse.csc_array(X),
    "dask": LAZY,
    "dask of sparse": LAZY.map_blocks(sparse.csr_array),
    "dask of unknown lengths": FRAMES.to_dask_array(),
}


def fit(rows=X, **params):
    params = {"max_iter": 2, "random_state": 0, **params}
    return SFBMetricLearner(loss="triplet", **params).fit(rows, pairs=TRIPLETS)


def slow_distances(learner, tuples):
    """Distances of first rows to second ones, and of triplets to third ones."""
    M = learner.get_mahalanobis_matrix().astype(np.float64)
    D = X[tuples[:, :1]] - X[tuples[:, 1:]]
    return np.sqrt(np.maximum(np.einsum("npi,ij,npj->np", D, M, D), 0))


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_any_rows_that_numbers_name(form, kind):
    learner, rows = fit(**form), INPUTS[kind]
    expected = slow_distances(learner, PAIRS)[:, 0]
    np.testing.assert_allclose(learner.pair_distance(PAIRS, rows), expected, 1e-5)
    near, far = slow_distances(learner, TRIPLETS).T
    found = learner.decision_function(TRIPLETS, rows)
    np.testing.assert_allclose(found, far - near, 1e-5)
    with pytest.raises(ValueError, match="out of range, as .*; X has the rows 0 to 14"):
        learner.pair_distance([[0, 150]], rows)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_names_of_columns(form, inproc_client):
    learner = fit(FRAME, **form)
    expected = slow_distances(learner, PAIRS)[:, 0]
    for rows in (FRAME, FRAMES, FRAMES[FRAMES.a > 0]):
        np.testing.assert_allclose(learner.pair_distance(PAIRS, rows), expected, 1e-5)
        with pytest.raises(ValueError, match="feature names should match"):
            learner.pair_distance(PAIRS, rows[["b", "a", "c", "d"]])


@pytest.mark.parametrize("shift", [1e3, 1e5])
def test_rows_far_from_zero(shift):
    """What they differ by is not lost in what they have in common."""
    learner = fit()
    rows = (np.round(X * 8) / 8 + shift).astype(np.float32)
    D = rows[PAIRS[:, 0]].astype(np.float64) - rows[PAIRS[:, 1]]
    expected = np.linalg.norm(D @ learner.components_.T.astype(np.float64), axis=1)
    for found in (
        learner.pair_distance(PAIRS, rows),
        learner.pair_distance(rows[PAIRS]),
        learner.pair_distance(PAIRS, da.from_array(rows, chunks=(40, 4))),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_metric_can_be_saved(form):
    learner = fit(**form)
    metric = learner.get_metric()
    neighbours = KNeighborsClassifier(3, metric=metric).fit(X, y)
    saved = pickle.loads(pickle.dumps(neighbours))
    np.testing.assert_array_equal(saved.predict(X), neighbours.predict(X))
    assert saved.metric(X[0], X[1]) == metric(X[0], X[1])
    assert metric(X[0], X[1], squared=True) == pytest.approx(metric(X[0], X[1]) ** 2)


def test_a_row_with_itself():
    learner = fit()
    assert learner.pair_distance([[3, 3]], X) == 0
    assert learner.pair_distance(X[[[3, 3]]]) == 0


def test_triplets():
    """They need no threshold."""
    learner = fit()
    near, far = slow_distances(learner, TRIPLETS).T
    labels = np.where(near < far, 1, -1)
    assert set(labels.tolist()) == {1, -1}
    for tuples, rows in ((TRIPLETS, X), (X[TRIPLETS], None)):
        np.testing.assert_array_equal(learner.predict(tuples, rows), labels)
        scores = learner.decision_function(tuples, rows)
        np.testing.assert_allclose(scores, far - near, 1e-5)
        assert learner.score(tuples, X=rows) == (labels > 0).mean()
    with pytest.raises(ValueError, match="not triplets"):
        learner.score(TRIPLETS, labels, X)
    for call in (
        lambda: learner.pair_distance(TRIPLETS, X),
        lambda: learner.calibrate_threshold(TRIPLETS, labels, X),
    ):
        with pytest.raises(ValueError, match=r"expected \(n_pairs, 2\), or"):
            call()


def test_pairs_after_triplets_need_a_threshold():
    learner, labels = fit(), np.where(y[PAIRS[:, 0]] == y[PAIRS[:, 1]], 1, -1)
    for call in (
        lambda: learner.predict(PAIRS, X),
        lambda: learner.decision_function(PAIRS, X),
        lambda: learner.score(PAIRS, labels, X),
    ):
        with pytest.raises(AttributeError, match="there is no threshold yet"):
            call()
    learner.set_threshold(1.0)
    assert 0.5 < learner.score(PAIRS, labels, X) <= 1


def test_the_threshold_is_for_the_components_of_rank_0():
    """Where ranks are at no point together, others have other distances."""
    rng = np.random.default_rng(1)
    pairs = rng.integers(0, 150, size=(200, 2))
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    labels = np.where(y[pairs[:, 0]] == y[pairs[:, 1]], 1, -1)
    exchange = Exchange("factors", broadcast=1, relay=False, averaging=False)
    learner = SFBMetricLearner(
        loss="logistic", optimizer="sgd", communication=exchange, n_ranks=4
    )
    learner.set_params(random_state=0, max_iter=2, batch_size=8)
    learner.fit(X, pairs=pairs, pair_labels=labels)
    found = learner.threshold_
    learner.calibrate_threshold(pairs, labels, X)
    assert found == pytest.approx(learner.threshold_, rel=1e-5)


def test_rows_that_are_not_in_arrays():
    """Names of columns are compared, and what a mask hides is not looked at."""
    pa = pytest.importorskip("pyarrow")
    names = list("abcd")
    table = pa.table({name: X[:, column] for column, name in enumerate(names)})
    learner = SFBMetricLearner(2, max_iter=2, random_state=0).fit(table.to_pandas(), y)
    expected = learner.pair_distance(PAIRS, table.to_pandas())
    found = learner.pair_distance(PAIRS, table)
    np.testing.assert_allclose(found, expected)
    with pytest.raises(ValueError, match="feature names"):
        learner.pair_distance(PAIRS, table.select(names[::-1]))
    learner = SFBMetricLearner(2, max_iter=2, random_state=0).fit(X, y)
    hidden = np.ma.masked_greater(X, 3)
    for pairs, rows in ((PAIRS, hidden), (hidden[PAIRS], None)):
        with pytest.raises(TypeError, match="masked array"):
            learner.pair_distance(pairs, rows)
    with pytest.raises(ValueError, match="Expected 2D array"):
        learner.pair_distance(PAIRS, 5.0)


def test_a_metric_of_bytes_does_not_wrap_around():
    learner = SFBMetricLearner(2, max_iter=2, random_state=0).fit(X, y)
    u, v = np.array([1, 2, 3, 4], np.uint8), np.array([5, 1, 9, 2], np.uint8)
    expected = learner.pair_distance([[u, v]])
    assert learner.get_metric()(u, v) == pytest.approx(expected[0], rel=1e-6)
