"""Steps that are too long for the features, where nothing takes them back."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes

from dask_ma import ButterflySGDClassifier, ButterflySGDRegressor


@pytest.fixture(scope="module")
def raw():
    return load_diabetes(return_X_y=True, scaled=False)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_partial_fit_says_that_steps_are_too_long(raw, n_ranks):
    """It left an R2 of -6e13 without a word."""
    model = ButterflySGDRegressor(random_state=0, n_ranks=n_ranks)
    with pytest.warns(UserWarning, match="the objective has risen from .* scale them"):
        model.partial_fit(*raw)


def test_so_does_a_fit_that_takes_nothing_back(raw):
    params = {"learning_rate": "invscaling", "refine": None, "max_iter": 1, "tol": None}
    model = ButterflySGDRegressor(**params, random_state=0, n_ranks=1)
    with pytest.warns(UserWarning, match="the objective has risen"):
        model.fit(*raw)


def test_and_partial_fit_of_a_classifier():
    X, y = load_breast_cancer(return_X_y=True)
    model = ButterflySGDClassifier(eta0=1e4, random_state=0, n_ranks=1)
    with pytest.warns(UserWarning, match="the objective has risen"):
        model.partial_fit(X, y, classes=[0, 1])


def test_the_cure_works_and_nothing_is_said(raw):
    X, y = raw
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ButterflySGDRegressor(random_state=0, n_ranks=1)
        for _ in range(20):
            model.partial_fit(scaled, y)
        assert model.score(scaled, y) > 0.5
        # What `fit` has found is not too long either.
        model = ButterflySGDRegressor(random_state=0, n_ranks=1, refine=None).fit(X, y)
        before = model.score(X, y)
        for part in np.array_split(np.arange(len(y)), 4):
            model.partial_fit(X[part], y[part])
        assert model.score(X, y) > before - 0.2


def test_the_noise_of_steps_at_an_optimum_of_zero_is_no_divergence():
    """It is many times the objective there."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 5))
    y = X @ np.arange(1, 6.0)
    params = {"loss": "epsilon_insensitive", "epsilon": 0.0, "n_ranks": 1}
    model = ButterflySGDRegressor(**params, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(8):
            for part in np.array_split(np.arange(500), 10):
                model.partial_fit(X[part], y[part])
    assert model.score(X, y) > 0.999


@pytest.mark.parametrize("is_sparse", [False, True])
def test_steps_follow_a_stream_whose_scale_grows(is_sparse):
    """The mean square of all rows so far lags behind, which would be -5.8e57."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 20)) * (rng.random((2000, 20)) < 0.5)
    y = X @ rng.normal(size=20)
    scales = np.geomspace(1e-3, 1, 40)
    model = ButterflySGDRegressor(random_state=0, n_ranks=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for part, scale in zip(
            np.array_split(np.arange(2000), 40), scales, strict=True
        ):
            rows = scale * X[part]
            model.partial_fit(sparse.csr_array(rows) if is_sparse else rows, y[part])
    assert model.score(X, y) > 0.5
