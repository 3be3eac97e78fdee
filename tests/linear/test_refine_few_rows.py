"""Fits of few rows of many columns, which hundreds of passes left far from the optimum.

Genes, spectra and short texts are like that.
"""

import warnings
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.svm import SVC

from dask_ma import (
    ButterflySGDClassifier,
    ButterflySGDRegressor,
    MASGDClassifier,
    MASGDRegressor,
)
from dask_ma.kernels import FewRowsOptimum, loss_sums, penalty_value
from dask_ma.linear.refine import _few_rows

CLASSIFIERS = [MASGDClassifier, ButterflySGDClassifier]
REGRESSORS = [MASGDRegressor, ButterflySGDRegressor]
MARGINS = ["hinge", "log_loss", "modified_huber", "squared_hinge"]
RESIDUALS = [
    "epsilon_insensitive",
    "huber",
    "squared_epsilon_insensitive",
    "squared_error",
]


def expression(n_rows=48, n_features=600, seed=0):
    """Rows like those of genes: large values, columns of many sizes, correlated."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(n_rows, 5)) @ rng.normal(size=(5, n_features))
    X = factors + rng.normal(size=(n_rows, n_features))
    X = X * rng.lognormal(0, 1.5, n_features) + rng.uniform(0, 50, n_features)
    return X, factors[:, 0] + 0.3 * rng.normal(size=n_rows)


def fit(model, X, y, **params):
    """Fit it, which must not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        return model.fit(X, y, **params)


def objective(model, X, y, weights=None):
    """The objective of one problem, as a fit defines it."""
    weights = np.ones(len(X)) if weights is None else weights * len(X) / weights.sum()
    coef = np.atleast_2d(model.coef_)
    losses = loss_sums(
        X,
        y,
        weights,
        coef,
        np.atleast_1d(model.intercept_),
        loss=model.loss,
        epsilon=model.epsilon,
        one_vs_rest=hasattr(model, "classes_"),
        positive_weight=None,
    )
    penalty = model.alpha * penalty_value("l2", coef, 0.0)
    return float(losses.mean() / weights.sum() + penalty / len(losses))


@pytest.mark.parametrize("loss", MARGINS)
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_classes(kind, loss):
    """In one round; 500 were not enough, and the warning said so."""
    X, y = expression()
    y = (y > 0).astype(int)
    model = fit(kind(loss, random_state=0), X, y)
    refined = [record for record in model.history_ if record.get("refined")]
    assert len(refined) == 1
    assert refined[0]["excess"] <= model.refine_tol
    assert objective(model, X, y) == pytest.approx(refined[0]["objective"], rel=1e-3)


@pytest.mark.parametrize("loss", RESIDUALS)
@pytest.mark.parametrize("kind", REGRESSORS)
def test_numbers(kind, loss):
    X, y = expression()
    y = 1000 + 20 * y
    model = fit(kind(loss, random_state=0), X, y)
    last = model.history_[-1]
    assert last["excess"] <= model.refine_tol
    assert objective(model, X, y) == pytest.approx(last["objective"], rel=1e-3)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_hinge_is_that_of_scikit_learn(kind):
    X, y = expression()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = (y > 0).astype(int)
    ours = fit(kind("hinge", alpha=0.05, refine_tol=1e-9, random_state=0), X, y)
    peer = SVC(kernel="linear", C=1 / (0.05 * len(X)), tol=1e-9).fit(X, y)
    np.testing.assert_allclose(ours.coef_, peer.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.intercept_, peer.intercept_, atol=1e-4)


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("kind", REGRESSORS)
def test_least_squares_is_that_of_scikit_learn(kind, fit_intercept):
    X, y = expression()
    weights = np.random.default_rng(1).uniform(0, 2, len(X))
    weights[:5] = 0
    params = {"alpha": 0.1, "fit_intercept": fit_intercept, "random_state": 0}
    ours = fit(kind(**params), X, y, sample_weight=weights)
    own_alpha = 0.1 * weights.sum()
    peer = Ridge(own_alpha, fit_intercept=fit_intercept).fit(X, y, weights)
    # Weights of 0 count no rows here, and the mean is that of the others.
    np.testing.assert_allclose(ours.coef_, peer.coef_, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(ours.intercept_, peer.intercept_, rtol=1e-5, atol=1e-9)


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_ranks_classes_and_weights(kind, n_ranks):
    """Whichever rank has a row, and whatever the weights of rows and classes."""
    X, y = expression(60)
    y = np.digitize(y, np.quantile(y, [0.3, 0.6]))
    weights = np.random.default_rng(1).uniform(0.1, 2, len(X))
    params = {"loss": "hinge", "class_weight": "balanced", "random_state": 0}
    tight = {**params, "refine_tol": 1e-9}
    one = fit(kind(**tight, n_ranks=1), X, y, sample_weight=weights)
    many = fit(kind(**tight, n_ranks=n_ranks), X, y, sample_weight=weights)
    size = np.abs(one.coef_).max()
    np.testing.assert_allclose(many.coef_, one.coef_, atol=1e-4 * size)
    np.testing.assert_allclose(many.intercept_, one.intercept_, rtol=1e-3)
    # The objective, 2e-7, is that of the rows, whose values have been rounded.
    assert many.history_[-1]["excess"] <= 1e-8
    assert len([r for r in many.history_ if r.get("refined")]) == 1


def test_sparse_rows():
    rng = np.random.default_rng(0)
    X = sparse.random_array((60, 2000), density=0.02, rng=rng, format="csr")
    y = np.asarray(X[:, [0, 1, 2, 3]].sum(axis=1)).ravel() + rng.normal(size=60) > 0
    params = {"loss": "hinge", "refine_tol": 1e-9, "random_state": 0}
    ours = fit(MASGDClassifier(**params, n_ranks=2), X, y)
    dense = fit(MASGDClassifier(**params, n_ranks=1), X.toarray(), y)
    assert len([r for r in ours.history_ if r.get("refined")]) == 1
    size = np.abs(dense.coef_).max()
    np.testing.assert_allclose(ours.coef_, dense.coef_, atol=1e-5 * size)


def far_sparse(column):
    """Sparse rows beside a column that is far from zero, and their classes."""
    rng = np.random.default_rng(0)
    X = sparse.random_array((60, 500), density=0.1, rng=rng, format="csr")
    X.data[:] = rng.normal(size=X.nnz)
    y = np.asarray(X[:, :20].sum(axis=1)).ravel() + 0.1 * rng.normal(size=60)
    values = {
        "times": 1.7e9 + rng.uniform(0, 10, 60),
        "ids": 1e6 + rng.integers(0, 10_000, 60),
        "some": np.where(np.arange(60) % 2, 1.7e9 + rng.uniform(0, 10, 60), 0),
    }[column]
    own = sparse.csr_array(values[:, np.newaxis])
    return sparse.hstack([X, own], format="csr"), y


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("loss", MARGINS)
@pytest.mark.parametrize("column", ["times", "ids"])
def test_sparse_rows_with_a_column_far_from_zero(column, loss, n_ranks):
    """Products of what is not centred lose all others to rounding."""
    X, y = far_sparse(column)
    model = fit(MASGDClassifier(loss, random_state=0, n_ranks=n_ranks), X, y > 0)
    refined = [record for record in model.history_ if record.get("refined")]
    assert len(refined) == 1
    assert refined[0]["excess"] <= model.refine_tol
    own = objective(model, X.toarray(), (y > 0).astype(int))
    assert own == pytest.approx(refined[0]["objective"], rel=1e-4)
    assert model.score(X, y > 0) == 1.0


@pytest.mark.parametrize("shift", [1e4, 1e6])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_stored_columns_all_of_which_are_far_from_zero(loss, shift):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 200))
    y = (X[:, 0] + 0.5 * rng.normal(size=60) > 0).astype(int)
    X = X + shift
    model = MASGDClassifier(loss, alpha=0.01, random_state=0)
    fit(model, sparse.csr_array(X), y)
    last = model.history_[-1]
    dense = fit(MASGDClassifier(loss, alpha=0.01, random_state=0), X, y).history_[-1]
    assert last["objective"] == pytest.approx(dense["objective"], rel=1e-4)
    assert objective(model, X, y) == pytest.approx(last["objective"], rel=1e-4)


def test_a_column_far_from_zero_in_some_rows():
    """Products hold too few digits then, and what is told of the model is so."""
    X, y = far_sparse("some")
    params = {"loss": "hinge", "random_state": 0, "refine_max_iter": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = MASGDClassifier(**params).fit(X, y > 0)
    last = model.history_[-1]
    own = objective(model, X.toarray(), (y > 0).astype(int))
    assert own == pytest.approx(last["objective"], rel=1e-3)


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_the_model_that_is_found_is_evaluated_on_the_rows(kind, n_ranks, monkeypatch):
    """With products that are wrong others go on from the best model."""
    exact = _few_rows.few_rows_optimum

    def rounded(products, *args, **kwargs):
        size = products.diagonal().mean()
        noise = np.random.default_rng(0).normal(size=(200, len(products)))
        return exact(products + size * (noise.T @ noise), *args, **kwargs)

    X, y = expression()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = (y > 0).astype(int)
    params = {"loss": "log_loss", "alpha": 0.1, "n_ranks": n_ranks}
    params["random_state"] = 0
    best = fit(kind(**params), X, y).history_[-1]["objective"]
    monkeypatch.setattr(_few_rows, "few_rows_optimum", rounded)
    model = fit(kind(**params), X, y)
    refined = [record for record in model.history_ if record.get("refined")]
    assert len(refined) > 1
    first, last = refined[0], refined[-1]
    assert first["excess"] > model.refine_tol
    # It is above the optimum by that at most.
    assert best * (1 - 1e-3) <= first["objective"]
    assert first["objective"] * (1 - first["excess"]) <= best * (1 + 1e-3)
    assert last["objective"] <= best * (1 + 1e-3)
    assert last["objective"] <= first["objective"]
    assert objective(model, X, y) == pytest.approx(last["objective"], rel=1e-3)


def test_an_intercept_that_stays():
    X, y = expression()
    model = MASGDRegressor(fit_intercept=False, random_state=0, alpha=0.1)
    fit(model, X, y, intercept_init=[3.0])
    assert model.intercept_.tolist() == [3.0]
    peer = Ridge(0.1 * len(X), fit_intercept=False).fit(X, y - 3)
    np.testing.assert_allclose(model.coef_, peer.coef_, rtol=1e-5, atol=1e-9)


def test_float32_stays_float32():
    X, y = expression()
    model = fit(MASGDRegressor(random_state=0), X.astype(np.float32), y)
    assert model.coef_.dtype == np.float32
    assert model.score(X, y) > 0.99


def test_a_warm_start_is_at_the_optimum_already():
    X, y = expression()
    y = (y > 0).astype(int)
    model = MASGDClassifier("hinge", random_state=0, warm_start=True, max_iter=1)
    fit(model, X, y)
    first = model.history_[-1]["objective"]
    fit(model, X, y)
    assert model.history_[-1]["objective"] == pytest.approx(first, rel=1e-3)


def test_what_is_asked_for_is_heeded():
    """A method, a penalty or a loss that needs other steps."""
    X, y = expression()
    y = (y > 0).astype(int)
    for params in ({"refine": "lbfgs"}, {"penalty": "elasticnet"}, {"alpha": 0.0}):
        model = MASGDClassifier("log_loss", random_state=0, max_iter=2, **params)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.set_params(refine_max_iter=20).fit(X, y)
        assert len([r for r in model.history_ if r.get("refined")]) > 1


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_steps_go_on_where_nothing_is_found(kind, monkeypatch):
    def nothing(products, targets, weights, *args, **kwargs):
        return FewRowsOptimum(np.zeros(len(targets)), 0.0, np.inf, np.inf, -np.inf)

    monkeypatch.setattr(_few_rows, "few_rows_optimum", nothing)
    X, y = expression()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = (y > 0).astype(int)
    model = fit(kind("log_loss", alpha=0.1, random_state=0), X, y)
    refined = [record for record in model.history_ if record.get("refined")]
    assert len(refined) > 1
    assert refined[0]["excess"] == np.inf
    assert refined[-1]["excess"] <= model.refine_tol
    assert np.isfinite(model.coef_).all()


def test_a_better_model_before_is_kept(monkeypatch):
    """Of each problem, where rounding ends the search too early."""
    found = []

    def worse(products, targets, *args, **kwargs):
        found.append(1)
        zeros = np.zeros(len(targets))
        return FewRowsOptimum(zeros, 0.0, 1.0, 1.0, 0.0)

    monkeypatch.setattr(_few_rows, "few_rows_optimum", worse)
    X, y = expression()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = (y > 0).astype(int)
    model = MASGDClassifier("hinge", random_state=0, refine_max_iter=1)
    with pytest.warns(ConvergenceWarning, match="refinement ended after"):
        model.fit(X, y)
    assert found
    last = model.history_[-1]
    assert last["objective"] < 1
    assert objective(model, X, y) == pytest.approx(last["objective"], rel=1e-3)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_fit_that_is_done_goes_on_from_its_checkpoint(kind, tmp_path):
    X, y = expression()
    y = (y > 0).astype(int)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        first, again = (
            fit(kind("squared_hinge", random_state=0, n_ranks=2), X, y)
            for _ in range(2)
        )
    np.testing.assert_array_equal(again.coef_, first.coef_)
    assert again.history_ == first.history_


@pytest.mark.parametrize("n_features", [65, 70])
@pytest.mark.parametrize("kind", REGRESSORS)
def test_rows_that_the_other_methods_crawl_over(kind, n_features, monkeypatch):
    """A tube that nearly all rows fit into: not more than twice as many as features
    are begun with, others come to it after 100 rounds.
    """
    monkeypatch.setattr(_few_rows, "_PATIENCE", 5)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(140, n_features))
    y = X @ rng.normal(size=n_features)
    model = fit(kind("epsilon_insensitive", random_state=0), X, y)
    refined = [record for record in model.history_ if record.get("refined")]
    assert len(refined) == (1 if n_features == 70 else 6)
    last = refined[-1]
    assert last["excess"] <= model.refine_tol
    assert objective(model, X, y) == pytest.approx(last["objective"], rel=1e-3)


@pytest.mark.parametrize("kind", [MASGDClassifier, ButterflySGDClassifier])
def test_rows_so_few_that_their_products_are_nothing(kind):
    """Small widths of a smooth loss took the hinge up to 81 rounds to the same."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 6))
    y = (X @ rng.normal(size=6) > 0).astype(int)
    model = kind("hinge", random_state=0).fit(X, y)
    assert len([record for record in model.history_ if record.get("refined")]) == 1
    assert model.history_[-1]["excess"] <= model.refine_tol
    by_steps = kind("hinge", random_state=0, refine="lbfgs", refine_max_iter=2000)
    best = by_steps.fit(X, y).history_[-1]["objective"]
    assert model.history_[-1]["objective"] <= best * 1.0001


def test_steps_go_on_after_a_look_in_between(monkeypatch):
    """From the best model so far, where rounding leaves a gap."""

    def nothing(products, targets, weights, *args, **kwargs):
        return FewRowsOptimum(np.zeros(len(targets)), 0.0, np.inf, np.inf, -np.inf)

    monkeypatch.setattr(_few_rows, "_PATIENCE", 5)
    monkeypatch.setattr(_few_rows, "few_rows_optimum", nothing)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 60))
    y = X @ rng.normal(size=60) + rng.normal(size=150)
    model = fit(MASGDRegressor("epsilon_insensitive", random_state=0), X, y)
    refined = [record for record in model.history_ if record.get("refined")]
    assert len(refined) > 6
    assert refined[5]["objective"] == pytest.approx(refined[4]["objective"], rel=1e-6)
    assert refined[-1]["excess"] <= model.refine_tol


@pytest.mark.parametrize(
    ("loss", "shape", "density", "after"),
    [
        ("hinge", (1200, 1000), 1.0, 0),
        ("log_loss", (1200, 1000), 1.0, 100),  # others often need few rounds
        ("log_loss", (600, 1000), 1.0, 0),
        ("hinge", (1200, 500), 1.0, 100),  # too few features
        ("hinge", (600, 50_000), 1.0, 100),  # too many products
        ("hinge", (600, 20_000), 1.0, 0),
        ("hinge", (1200, 60_000), 0.1, 100),
        ("hinge", (1200, 60_000), 0.01, 0),
        ("hinge", (2000, 3000), 1.0, 100),
        ("hinge", (2100, 3000), 1.0, None),
        ("perceptron", (100, 1000), 1.0, None),
        ("hinge", (32, 6), 1.0, 0),  # so few that it does not matter
        ("hinge", (33, 6), 1.0, 100),
        ("log_loss", (32, 6), 1.0, 100),
    ],
)
def test_when_the_products_are_looked_at(loss, shape, density, after):
    """At first where they take about half a second, later where they take some."""
    n_rows, n_features = shape
    params = SimpleNamespace(
        refine="auto", loss=loss, penalty="l2", alpha=1e-4, l1_ratio=0.0
    )
    problem = SimpleNamespace(
        n_problems=1,
        total_rows=n_rows,
        total_stored=int(density * n_rows * n_features),
        shard=SimpleNamespace(n_features=n_features),
    )
    assert _few_rows.few_rows_round(params, problem) == after


def test_the_cures_of_few_rows_that_no_method_is_quick_for_are_some():
    rng = np.random.default_rng(0)
    scales = np.arange(1.0, 601.0) ** -1.5
    X = rng.normal(size=(1000, 600)) * scales @ rng.normal(size=(600, 600))
    X, y = X / X.std(), rng.integers(0, 3, size=1000)
    params = {"refine_max_iter": 60, "random_state": 0}
    with pytest.warns(ConvergenceWarning, match="The rows are few beside the features"):
        MASGDClassifier(**params).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MASGDClassifier(**params).fit(PCA(20, whiten=True).fit_transform(X), y)
        MASGDClassifier(**params | {"refine_max_iter": 500}, alpha=10.0).fit(X, y)
    # Beside many rows it is not their number.
    params["refine_max_iter"] = 2
    with pytest.warns(ConvergenceWarning, match="or scale the features$"):
        MASGDClassifier(**params).fit(X[:, :100], y)
