"""MPCAClassifier and MPCARegressor an epoch at a time."""

import pickle
from copy import deepcopy

import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.neural_network import MLPClassifier, MLPRegressor

from dask_ma import MPCAClassifier, MPCARegressor
from dask_ma.mpca import strategies

PARAMS = {"hidden_layer_sizes": (8,), "batch_size": 16, "random_state": 0}
PARAMS |= {"learning_rate_init": 0.01}


def make(**params):
    return MPCAClassifier(**{**PARAMS, **params})


@pytest.mark.parametrize("solver", ["adam", "sgd"])
@pytest.mark.parametrize("weighted", [False, True])
def test_calls_are_those_of_scikit_learn(multi, check_same, weights, solver, weighted):
    """On other rows each time, with the optimiser as it was."""
    X, y = multi
    ours, theirs = make(solver=solver), MLPClassifier(**PARAMS, solver=solver)
    for rows in (slice(0, 80), slice(40, 120), slice(0, 120)):
        weight = None
        if weighted:
            weight = weights[rows] / weights[rows].mean()
        for model in (ours, theirs):
            model.partial_fit(
                X[rows], y[rows], classes=[0, 1, 2, 3], sample_weight=weight
            )
        check_same(ours, theirs, 1e-10)
        assert ours.loss_ == pytest.approx(theirs.loss_)
        assert ours.n_iter_ == 1


def test_calls_of_the_regressor(regression, check_same):
    """It begins with the mean of the targets of the first call."""
    ours, theirs = MPCARegressor(**PARAMS), MLPRegressor(**PARAMS)
    X, y = regression
    mean = y.mean()
    for part in (y, y + 1, y - 2):
        ours.partial_fit(X, part)
        theirs.partial_fit(X, part - mean)
        raised = deepcopy(theirs)
        raised.intercepts_[-1] += mean
        check_same(ours, raised, 1e-9)


def test_the_optimiser_is_remembered(multi, check_same):
    """Also by a pickle; a fresh one takes other steps."""
    X, y = multi
    model = make().partial_fit(X, y, classes=[0, 1, 2, 3])
    copy = pickle.loads(pickle.dumps(model)).partial_fit(X, y)
    forgetful = pickle.loads(pickle.dumps(model))
    forgetful._optimizer_state = None
    forgetful.partial_fit(X, y)
    model.partial_fit(X, y)
    check_same(copy, model)
    assert abs(forgetful.coefs_[0] - model.coefs_[0]).max() > 1e-3


def test_ranks_learn(digits, strategy):
    X, y = (array[:600] for array in digits.train)
    model = make(strategy=strategy, n_ranks=3, hidden_layer_sizes=(32,))
    for _ in range(5):
        model.partial_fit(X, y, classes=np.arange(10))
        assert model.n_iter_ == 1
    assert model.score(*digits.test) > 0.7


def test_parts_with_missing_classes(multi):
    """One class in each call, and one that no rank ever sees."""
    X, y = multi
    model = make(n_ranks=2, strategy=strategies.Synchronous(1))
    for _ in range(5):
        for label in range(4):
            rows = y == label
            model.partial_fit(X[rows], 10 * y[rows], classes=[0, 10, 20, 30, 40])
    assert model.classes_.tolist() == [0, 10, 20, 30, 40]
    assert model.predict_proba(X).shape == (120, 5)
    assert 40 not in model.predict(X)


def test_it_goes_on_after_fit(multi):
    X, y = multi
    model = make(max_iter=10, tol=None).fit(X, y)
    loss = model.loss_
    assert model.partial_fit(sparse.csr_array(X), y).loss_ < loss


@pytest.mark.usefixtures("undealt")
def test_batches_of_a_collection(multi, cluster, check_same):
    X, y = multi
    params = {"n_ranks": 4, "strategy": "synchronous"}
    dX, dy = da.from_array(X, chunks=(30, 6)), da.from_array(y, chunks=30)
    model = make(**params).partial_fit(dX, dy, classes=[0, 1, 2, 3])
    expected = make(**params).partial_fit(X, y, classes=[0, 1, 2, 3])
    check_same(model, expected)
    check_same(model.partial_fit(dX, dy), expected.partial_fit(X, y))


def test_classes_have_to_be_known(multi):
    X, y = multi
    model = make()
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        model.partial_fit(X, y)
    assert not hasattr(model, "coefs_")
    model.partial_fit(X, y, classes=[0, 1, 2, 3])
    before = model.coefs_[0].copy()
    with pytest.raises(ValueError, match="not the same as on last call"):
        model.partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="7"):
        model.partial_fit(X, np.where(y == 0, 7, y))
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :5], y)
    np.testing.assert_array_equal(model.coefs_[0], before)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"early_stopping": True}, "partial_fit does not support early_stopping=True"),
        ({"class_weight": "balanced"}, "class_weight='balanced' cannot be used"),
        ({"alpha": -1.0}, "'alpha' parameter"),
    ],
)
def test_what_it_refuses(multi, params, message):
    with pytest.raises(ValueError, match=message):
        make(**params).partial_fit(*multi, classes=[0, 1, 2, 3])
