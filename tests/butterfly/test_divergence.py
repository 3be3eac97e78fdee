"""Steps that are too long for the features, where nothing takes them back."""

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes

from dask_ma import ButterflySGDClassifier, ButterflySGDRegressor
from dask_ma.butterfly._params import Moments
from dask_ma.butterfly._steps import not_below
from dask_ma.losses import Loss, SquaredError


@pytest.fixture(scope="module")
def raw():
    return load_diabetes(return_X_y=True, scaled=False)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_features_in_their_own_units_are_learned_by_partial_fit(raw, n_ranks):
    """An R2 of -1e16 after one call, and of -1e13 after twenty, with a warning."""
    model = ButterflySGDRegressor(random_state=0, n_ranks=n_ranks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(20):
            model.partial_fit(*raw)
    assert model.score(*raw) > 0.4


@pytest.mark.each
@pytest.mark.parametrize("loss", ["squared_error", "squared_epsilon_insensitive"])
@pytest.mark.parametrize("n_rows", [1, 5, 50])
def test_small_calls_do_not_raise_the_objective(n_rows, loss):
    """A step of a few rows has more curvature than the mean square of the features.

    One row has up to 51 times that: after 100 calls, of 100 features, the R2 was -3e21
    with rows one by one, and most calls did not warn.
    """
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50 * n_rows, 50))
    y = X @ rng.normal(size=50)
    model = ButterflySGDRegressor(loss, random_state=0, n_ranks=1)
    scores = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for part in np.split(np.arange(len(X)), 50):
            model.partial_fit(X[part], y[part])
            scores.append(model.score(X, y))
    # The first rows say little of the scale of the features.
    assert min(scores) > -1.5
    assert scores[-1] > (0.2 if n_rows == 1 else 0.85)


def test_small_calls_of_sparse_rows_follow_their_elements():
    """Not the columns, of which a row has few: it was an R2 of -4e4."""
    rng = np.random.default_rng(0)
    X = sparse.random_array((3000, 2000), density=0.02, rng=rng, format="csr")
    y = X @ rng.normal(size=2000)
    model = ButterflySGDRegressor(random_state=0, n_ranks=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for start in range(0, 3000, 50):
            model.partial_fit(X[start : start + 50], y[start : start + 50])
    assert model.score(X, y) > 0.3


def test_the_length_of_later_steps_is_left_alone():
    """Only what begins too long is shortened, for the rows at hand."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5))
    y = X.sum(axis=1)
    model = ButterflySGDRegressor(random_state=0, n_ranks=1)
    model.partial_fit(X, y)
    assert model.history_[-1]["eta"] < 1
    assert model.eta_ == 1
    for _ in range(3):
        model.partial_fit(X, y)
    assert model.history_[-1]["eta"] == 1


def test_so_does_a_fit_that_takes_nothing_back(raw):
    params = {"learning_rate": "invscaling", "refine": None, "max_iter": 1, "tol": None}
    model = ButterflySGDRegressor(**params, random_state=0, n_ranks=1)
    with pytest.warns(UserWarning, match="the objective has risen from .* scale them"):
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


@dataclass
class Pseudohuber(Loss):
    """One that compares by its value, and so has no hash."""

    width: float = 1.0
    smoothness = 1.0

    def value(self, y, p):
        return self.width**2 * (np.sqrt(1 + ((p - y) / self.width) ** 2) - 1)

    def slope(self, y, p):
        return (p - y) / np.sqrt(1 + ((p - y) / self.width) ** 2)


class OwnSquares(SquaredError):
    """One that is a kind of squares."""


@pytest.mark.parametrize(
    ("loss", "has_bound"), [(Pseudohuber(), True), (OwnSquares(), False)]
)
def test_losses_of_the_users_own(loss, has_bound):
    """Steps are held back where slopes have no bound."""
    X = np.random.default_rng(0).normal(size=(5, 30))
    model = ButterflySGDRegressor(loss=loss, random_state=0, n_ranks=1)
    model.partial_fit(X, X[:, 0])
    assert (model.history_[0]["eta"] == 1.0) == has_bound


def test_mean_squares_are_over_the_rows_that_have_the_feature():
    """Of all rows so far, or of the latest, whichever is larger; counts stay."""
    # Of 10 rows so far, the last 4 among them: grows, shrinks, is new, is never there.
    sums = np.array([[10.0, 10, 2, 0], [10, 1000, 8, 0]])
    latest = np.array([[2.0, 4, 2, 0], [8, 4, 8, 0]])
    found = not_below(Moments(sums, 10.0), Moments(latest, 4.0))
    np.testing.assert_array_equal(found.sums, [sums[0], [40, 1000, 8, 0]])
    assert found.total == 10.0
