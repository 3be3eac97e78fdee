"""MASGDRegressor where it differs from the classifier."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from dask_ma import MASGDRegressor


def test_finds_the_least_squares(regression):
    X, y = regression
    model = MASGDRegressor(n_ranks=3, max_iter=100, tol=None, alpha=0.1, random_state=0)
    model.fit(X, y)
    # Half the mean square plus alpha / 2 times the norm, against the sum of squares.
    exact = Ridge(alpha=0.1 * len(y)).fit(X, y)
    np.testing.assert_allclose(model.coef_, exact.coef_, atol=0.02)
    assert model.intercept_[0] == pytest.approx(exact.intercept_, abs=0.02)


def test_shapes_are_those_of_scikit_learn(regression):
    model = MASGDRegressor(n_ranks=2, max_iter=2, tol=None).fit(*regression)
    assert model.coef_.shape == (6,)
    assert model.intercept_.shape == (1,)
    assert not hasattr(model, "classes_")
    assert model.predict(regression[0]).shape == (120,)


@pytest.mark.parametrize("dtype", [np.int64, np.float32, bool])
def test_targets_of_any_number_type(regression, dtype):
    X, y = regression
    y = y > 0 if dtype is bool else (10 * y).astype(dtype)
    params = {"n_ranks": 2, "max_iter": 2, "tol": None, "random_state": 0}
    model = MASGDRegressor(**params).fit(X, y)
    other = MASGDRegressor(**params).fit(X, y.astype(np.float64))
    np.testing.assert_array_equal(model.coef_, other.coef_)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_target_that_is_no_number(regression, value):
    X, y = regression
    y = y.copy()
    y[7] = value
    with pytest.raises(ValueError, match="Input y contains (NaN|infinity)"):
        MASGDRegressor(n_ranks=2).fit(X, y)


def test_targets_that_are_words(regression):
    with pytest.raises(ValueError, match="could not convert string to float|numbers"):
        MASGDRegressor(n_ranks=2).fit(regression[0], np.array(["a", "b"] * 60))


def test_one_constant_target_is_fine(regression):
    model = MASGDRegressor(max_iter=50, tol=None, n_ranks=2)
    model.fit(regression[0], np.full(120, 2.0))
    np.testing.assert_allclose(model.predict(regression[0]), 2.0, atol=0.5)


def test_partial_fit_equals_rounds_of_fit_without_shuffling(regression):
    """One rank: what `partial_fit` sees is what a pass of `fit` sees."""
    X, y = regression
    params = {"shuffle": False, "n_ranks": 1, "local_epochs": 1}
    streamed = MASGDRegressor(**params)
    for _ in range(3):
        streamed.partial_fit(X, y)
    fitted = MASGDRegressor(max_iter=3, tol=None, **params).fit(X, y)
    np.testing.assert_allclose(streamed.coef_, fitted.coef_, rtol=1e-12)
    assert streamed.t_ == fitted.t_ == 361
