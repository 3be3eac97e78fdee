"""The penalty of SchMPLogisticRegression by default, and one that leaves nothing."""

import warnings

import dask
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from dask_ma import SchMPLogisticRegression


def same(model, other):
    np.testing.assert_allclose(model.coef_, other.coef_, rtol=1e-6, atol=1e-9)
    return model.coef_.any()


@pytest.mark.parametrize("class_weight", [None, "balanced", {0: 3.0}])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_one_over_the_sum_of_the_weights(wide, weighted, class_weight):
    X, y = wide["X"], wide["three"]
    weight = wide["weight"] if weighted else None
    total = weight.sum() if weighted else 60.0
    if class_weight == {0: 3.0}:
        total += 2 * (weight[y == 0].sum() if weighted else (y == 0).sum())
    params = {"tol": 1e-6, "class_weight": class_weight, "n_ranks": 2}
    model = SchMPLogisticRegression(**params).fit(X, y, sample_weight=weight)
    assert model.alpha_ == pytest.approx(1 / total, rel=1e-12)
    other = SchMPLogisticRegression(model.alpha_, **params).fit(X, y, weight)
    assert other.alpha_ == model.alpha_
    assert same(model, other)


def test_it_is_that_of_scikit_learn(wide):
    X, y, weight = wide["X"], wide["two"], wide["weight"]
    peer = LogisticRegression(
        solver="liblinear", l1_ratio=1.0, fit_intercept=False, tol=1e-9, random_state=0
    )
    if peer.get_params()["penalty"] == "l2":
        peer.set_params(penalty="l1", l1_ratio=None)
    peer.fit(X, y, sample_weight=weight)
    model = SchMPLogisticRegression(fit_intercept=False, tol=1e-9)
    model.fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(model.coef_, peer.coef_, atol=1e-4)
    assert model.coef_.any()


def test_rows_that_are_repeated(wide):
    """2 is the row twice, and 0 no row."""
    X, y = wide["X"], wide["two"]
    weight = np.arange(60) % 3
    twice = np.repeat(np.arange(60), weight)
    expected = SchMPLogisticRegression(tol=1e-9).fit(X[twice], y[twice])
    model = SchMPLogisticRegression(tol=1e-9, n_ranks=3).fit(X, y, weight)
    assert model.alpha_ == expected.alpha_ == 1 / 60
    assert same(model, expected)


def test_a_resumed_fit_has_the_same(wide, tmp_path):
    X, y = wide["X"], wide["three"]
    model = SchMPLogisticRegression(tol=1e-9)
    whole = clone(model).fit(X, y, wide["weight"])
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with pytest.warns(ConvergenceWarning):
            clone(model).set_params(max_iter=2).fit(X, y, wide["weight"])
        resumed = clone(model).fit(X, y, wide["weight"])
    assert resumed.n_iter_ == whole.n_iter_ > 2
    assert resumed.alpha_ == whole.alpha_
    assert same(resumed, whole)


def test_a_warm_start_takes_that_of_its_own_rows(wide):
    X, y = wide["X"], wide["two"]
    model = SchMPLogisticRegression(warm_start=True, tol=1e-9).fit(X[:40], y[:40])
    assert model.alpha_ == 1 / 40
    assert same(model.fit(X, y), SchMPLogisticRegression(tol=1e-9).fit(X, y))
    assert model.alpha_ == 1 / 60


@pytest.mark.parametrize("alpha", ["C", None, -1.0])
def test_other_values_are_refused(wide, alpha):
    with pytest.raises(ValueError, match="'alpha' parameter .* must be"):
        SchMPLogisticRegression(alpha).fit(wide["X"], wide["two"])


@pytest.mark.parametrize("schedule", ["working_set", "cyclic"])
@pytest.mark.parametrize("target", ["two", "three"])
def test_a_penalty_that_leaves_no_coefficient(wide, target, schedule):
    """By default where features are of a small scale; the advice is a cure."""
    X, y = 1e-4 * wide["X"], wide[target]
    is_class = y[:, np.newaxis] == np.unique(y)
    largest = np.abs(X.T @ (is_class - is_class.mean(axis=0))).max() / 60
    model = SchMPLogisticRegression(schedule=schedule, n_ranks=2)
    words = f"one over the sum of .* is not below {largest:.3g}, the least .* set alpha"
    with pytest.warns(UserWarning, match=words):
        assert not model.fit(X, y).coef_.any()
    with pytest.warns(UserWarning, match="alpha=0.5 is not below"):
        model.set_params(alpha=0.5).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for alpha in (largest / 3, largest / 100):
            model = SchMPLogisticRegression(alpha).fit(X, y)
            assert model.score(X, y) > np.bincount(y).max() / 60


@pytest.mark.parametrize(
    "params",
    [{"alpha": 1e-6, "tol": 1.0}, {"class_weight": {0: 1e6, 1: 1e-2, 2: 1e-2}}],
    ids=str,
)
def test_no_coefficient_for_other_reasons(wide, params):
    """A fit that ends at once, and classes that their weights tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = SchMPLogisticRegression(**params).fit(1e-4 * wide["X"], wide["three"])
    assert not model.coef_.any()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("value", [0.1, 1e8 / 3])
def test_columns_that_tell_nothing(wide, value, weighted):
    """No penalty would have left any coefficient."""
    X = np.full((60, 3), value)
    weight = wide["weight"] if weighted else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = SchMPLogisticRegression().fit(X, np.arange(60) % 3 > 0, weight)
    assert not model.coef_.any()


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_columns_of_next_to_no_length(wide, n_ranks, layout):
    """Beside one whose gradient is rounding, and larger."""
    X = np.column_stack([1e-14 * wide["X"], np.full(60, 1e8 / 3)])
    model = SchMPLogisticRegression(layout=layout, n_ranks=n_ranks)
    with pytest.warns(UserWarning, match="all coefficients are zero"):
        model.fit(X, wide["two"], wide["weight"])


def test_weights_of_next_to_nothing(wide):
    weight = 1e-12 * wide["weight"]
    with pytest.warns(UserWarning, match="all coefficients are zero"):
        SchMPLogisticRegression().fit(wide["X"], wide["two"], weight)
