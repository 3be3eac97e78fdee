"""Paths from the products of all columns, against those by working sets."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LassoCV

from dask_ma import SchMPLasso, SchMPLassoCV
from dask_ma.schmp.l1 import _few_columns, _path

LAYOUTS = [(1, "rows"), (3, "rows"), (3, "columns")]


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 12)) * np.geomspace(0.1, 10, 12) + 3
    X[:, 5] = X[:, 4]  # twice
    X[:, 6] = 1.0
    y = X[:, 0] * 4 - X[:, 3] + X[:, 4] + rng.normal(size=90) + 20
    return X, y


@pytest.fixture
def by_working_sets(monkeypatch):
    """A call for which no path is made from products."""

    def call(function):
        with monkeypatch.context() as patch:
            patch.setattr(_few_columns, "_MOST_COLUMNS_EACH", 0)
            return function()

    return call


@pytest.mark.each
@pytest.mark.parametrize(("n_ranks", "layout"), LAYOUTS)
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"fit_intercept": False},
        {"positive": True},
        {"l1_ratio": 0.4},
        {"l1_ratio": 0.4, "positive": True, "feature_weights": np.full(12, 2.0)},
        {"feature_weights": np.linspace(0.5, 2, 12)},
    ],
)
def test_the_same_path(rows, by_working_sets, params, n_ranks, layout):
    X, y = rows
    weight = np.random.default_rng(1).random(90)

    def fit(tol):
        return SchMPLasso.path(
            X,
            y,
            alphas=12,
            tol=tol,
            n_ranks=n_ranks,
            layout=layout,
            sample_weight=weight,
            return_intercept=True,
            **params,
        )

    alphas, coefs, gaps, intercepts = fit(1e-10)
    expected = by_working_sets(lambda: fit(1e-12))
    np.testing.assert_allclose(alphas, expected[0])
    deviations = y - y.mean() * params.get("fit_intercept", True)
    assert (gaps >= 0).all()
    assert gaps.max() <= 1e-9 * (deviations**2).mean()
    sums = coefs[4] + coefs[5]  # only these are unique
    np.testing.assert_allclose(sums, expected[1][4] + expected[1][5], atol=1e-3)
    keep = np.delete(np.arange(12), [4, 5])
    np.testing.assert_allclose(coefs[keep], expected[1][keep], atol=1e-3)
    np.testing.assert_allclose(intercepts, expected[3], atol=5e-3)
    np.testing.assert_array_equal(coefs[:, 0], 0)


@pytest.mark.each
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize(("n_ranks", "layout"), LAYOUTS)
def test_a_fold_takes_few_passes(rows, by_working_sets, n_ranks, layout, kind):
    """However many models its path has, and the errors are the same."""
    X, y = rows
    X = kind(X)

    def fit(**params):
        options = {"alphas": 25, "n_ranks": n_ranks, "layout": layout, **params}
        return SchMPLassoCV(cv=3, **options).fit(X, y)

    model = fit()
    for record in model.history_:
        assert record["n_touched"] <= 30 * X.size
    slow = by_working_sets(lambda: fit(tol=1e-9))
    assert slow.history_[0]["n_touched"] > 50 * X.size
    np.testing.assert_allclose(model.mse_path_, slow.mse_path_, rtol=1e-3)
    assert model.alpha_ == slow.alpha_
    np.testing.assert_allclose(model.coef_ @ X.T, slow.coef_ @ X.T, atol=0.01)


def test_scikit_learn(rows):
    X, y = rows
    model = SchMPLassoCV(tol=1e-10, n_ranks=2).fit(X, y)
    expected = LassoCV(tol=1e-12, max_iter=100_000).fit(X, y)
    np.testing.assert_allclose(model.mse_path_, expected.mse_path_, rtol=1e-6)
    np.testing.assert_allclose(model.alpha_, expected.alpha_)


def test_what_coordinate_descent_leaves_is_solved_for(rows, monkeypatch):
    """Where its sweeps are not enough, and where even that is not enough it is told."""
    X, y = rows
    monkeypatch.setattr(_few_columns, "_MOST_SWEEPS", 1)
    _, _, gaps = SchMPLasso.path(X, y, tol=1e-8)
    assert gaps.max() <= 1e-8 * y.var() / 2
    monkeypatch.setattr(_few_columns, "minimize", lambda problem, start, gap: start)
    with pytest.warns(match="models of the path had not converged"):
        SchMPLasso.path(X, y, tol=1e-8)


def test_no_rank_gets_all_columns_that_are_large(rows, monkeypatch):
    """Where they are cut by columns; by rows each rank has its own rows of them."""
    calls = []
    fit_path = _path.fit_path
    monkeypatch.setattr(
        _path, "fit_path", lambda *given: calls.append(1) or fit_path(*given)
    )
    for layout, n_most, n_expected in [
        ("columns", 8 * 90 * 12, 3),
        ("columns", 8 * 90 * 12 - 1, 0),
        ("rows", 0, 3),
    ]:
        calls.clear()
        monkeypatch.setattr(_few_columns, "_MOST_BYTES", n_most)
        SchMPLasso.path(*rows, alphas=30, n_ranks=3, layout=layout)
        assert len(calls) == n_expected
