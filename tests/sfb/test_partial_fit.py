"""SFBLogisticRegression a pass at a time."""

import pickle

import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from dask_ma import SFBLogisticRegression
from dask_ma.sfb import Exchange

# Fits without a penalty are given the same `alpha` as the others.
pytestmark = pytest.mark.filterwarnings("ignore:alpha=.* has no effect")
PARAMS = {"alpha": 0.02, "random_state": 0, "n_ranks": 3, "batch_size": 8}
PARAMS |= {"communication": Exchange("factors")}


def make(**params):
    return clone(SFBLogisticRegression(**PARAMS)).set_params(**params)


def check_same(model, other):
    np.testing.assert_allclose(model.coef_, other.coef_, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(model.intercept_, other.intercept_, rtol=1e-12)
    assert model.t_ == other.t_


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"penalty": "trace", "learning_rate": "invscaling"},
        {"penalty": None, "learning_rate": "constant", "fit_intercept": False},
        {"communication__broadcast": 1},
        {"class_weight": {0: 2.0, 1: 1.0, 2: 0.5}},
    ],
    ids=str,
)
def test_calls_are_passes(labelled, params):
    X, y = labelled[3]
    X = sparse.csr_array(X)  # only whole data are centred, if they are dense
    params = {"learning_rate": "optimal", "eta0": 0.3, **params, "shuffle": False}
    model = make(**params)
    for _ in range(4):
        model.partial_fit(X, y, classes=[0, 1, 2])
        assert model.n_iter_ == 1 and len(model.history_) == 1
    whole = make(**params, tol=None, max_iter=4).fit(X, y)
    # A fit takes its best pass, which is the last one here.
    assert np.all(np.diff([record["objective"] for record in whole.history_]) < 0)
    check_same(model, whole)
    assert model.history_[-1]["objective"] == pytest.approx(
        whole.history_[-1]["objective"]
    )


def test_steps_that_adapt_fall_with_the_calls(labelled):
    X, y = labelled[3]
    models = [make(learning_rate=rate) for rate in ("adaptive", "optimal", "constant")]
    for model in models:
        for _ in range(3):
            model.partial_fit(X, y, classes=[0, 1, 2])
        assert model.solver_ == "sgd"
    check_same(*models[:2])
    assert abs(models[2].coef_ - models[0].coef_).max() > 1e-6


def test_weights(labelled):
    X, y = labelled[3]
    weight = (np.arange(120) % 4 > 0).astype(float)
    kept = weight > 0
    model = make(n_ranks=1).partial_fit(X, y, [0, 1, 2], sample_weight=weight)
    check_same(model, make(n_ranks=1).partial_fit(X[kept], y[kept], [0, 1, 2]))


def test_it_goes_on_after_fit_and_pickle(labelled):
    X, y = labelled[3]
    X = sparse.csr_array(X)
    params = {"shuffle": False, "tol": None, "learning_rate": "optimal", "eta0": 0.3}
    model = make(**params, max_iter=2).fit(X, y)
    model = pickle.loads(pickle.dumps(model)).partial_fit(X, y)
    check_same(model, make(**params, max_iter=3).fit(X, y))


def test_parts_with_missing_classes(labelled, value):
    """One class in each call, and one class that no rank ever sees."""
    X, y = labelled[3]
    model = make(n_ranks=2)
    for _ in range(8):
        for label in range(3):
            rows = y == label
            model.partial_fit(X[rows], 10 * y[rows], classes=[0, 10, 20, 30])
    assert model.coef_.shape == (4, 8)
    assert model.classes_.tolist() == [0, 10, 20, 30]
    assert 30 not in model.predict(X)
    assert model.predict_proba(X)[:, 3].max() < 0.2
    assert set(model.predict(X)) > {0}


def test_the_only_class_there_is(labelled):
    X, y = labelled[2]
    model = make().partial_fit(X[y == 0], y[y == 0], classes=[0, 1])
    assert set(model.predict(X)) == {0}


def test_batches_of_a_collection(labelled, cluster):
    X, y = labelled[3]
    dX, dy = da.from_array(X, chunks=(30, 8)), da.from_array(y, chunks=30)
    model = make(n_ranks=4).partial_fit(dX, dy, classes=[0, 1, 2])
    check_same(model, make(n_ranks=4).partial_fit(X, y, classes=[0, 1, 2]))
    model.partial_fit(sparse.csr_array(X), y)
    assert model.t_ > 1


def test_classes_have_to_be_known(labelled):
    X, y = labelled[3]
    model = make()
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        model.partial_fit(X, y)
    assert not hasattr(model, "coef_")
    model.partial_fit(X, y, classes=[0, 1, 2])
    before = model.coef_.copy()
    with pytest.raises(ValueError, match="not the same as on last call"):
        model.partial_fit(X, y, classes=[0, 1, 2, 3])
    with pytest.raises(ValueError, match="7"):
        model.partial_fit(X, np.where(y == 0, 7, y))
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :5], y)
    np.testing.assert_array_equal(model.coef_, before)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"early_stopping": True}, "early_stopping cannot be used with partial_fit"),
        ({"class_weight": "balanced"}, "class_weight='balanced' cannot be used"),
        ({"eta0": -1.0}, "'eta0' parameter"),
    ],
)
def test_what_it_refuses(labelled, params, message):
    X, y = labelled[3]
    with pytest.raises(ValueError, match=message):
        make(**params).partial_fit(X, y, classes=[0, 1, 2])
