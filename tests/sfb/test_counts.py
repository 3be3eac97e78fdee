"""Fits of counts of words as they are: rows of all lengths, more words than rows."""

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from dask_ma import SFBLogisticRegression
from dask_ma.sfb.logistic import _refine


@pytest.fixture(scope="module")
def texts():
    """150 rows of 10 classes, with 1 to 3000 of 400 words."""
    rng = np.random.default_rng(0)
    words = 1 / np.arange(1, 401)
    topics = rng.gamma(0.3, size=(10, 400)) * words
    topics /= topics.sum(axis=1, keepdims=True)
    words /= words.sum()
    y = rng.integers(0, 10, 150)
    lengths = np.exp(rng.normal(4, 1.3, 150)).astype(int) + 1
    rows = [
        rng.multinomial(length, 0.1 * topics[k] + 0.9 * words)
        for length, k in zip(lengths, y, strict=True)
    ]
    return sparse.csr_array(np.array(rows, dtype=float)), y


def test_few_steps_are_enough(texts, value):
    """Those of BFGS have not come there by the maximum of passes."""
    X, y = texts
    for alpha in (1e-4, 1e-2):
        model = SFBLogisticRegression(alpha=alpha, random_state=0, n_ranks=1).fit(X, y)
        assert model.n_iter_ < 100
        assert model.dual_gap_ <= 1e-3 * value(model, X, y)


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("n_blocks", [1, 4])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("solver", ["sdca", "sgd"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_optimum(
    texts, value, best, n_ranks, n_blocks, fit_intercept, solver, dtype, weighted
):
    X, y = texts
    weight = np.random.default_rng(1).uniform(0.5, 2, len(y)) if weighted else None
    rows = [X.astype(dtype), y, weight]
    if n_blocks > 1:
        size = -(-len(y) // n_blocks)
        rows = [
            None
            if each is None
            else da.from_array(each, chunks=(size, *each.shape[1:]))
            for each in rows
        ]
    model = SFBLogisticRegression(
        alpha=0.1,
        fit_intercept=fit_intercept,
        solver=solver,
        n_ranks=n_ranks,
        random_state=0,
    ).fit(*rows)
    found = value(model, X, y, weight)
    least = best(X, y, 0.1, weight, fit_intercept=fit_intercept)
    assert found <= 1.001 * least
    assert found - least <= model.dual_gap_ + 1e-6 <= 1.01e-3 * found


def test_a_resumed_fit_goes_on(texts, interrupted, tmp_path, value):
    X, y = texts

    def fit():
        return SFBLogisticRegression(alpha=0.01, random_state=0, n_ranks=2).fit(X, y)

    whole = fit()
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(whole.n_iter_ - 4):
            fit()
        resumed = fit()
    assert resumed.n_iter_ == whole.n_iter_
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


def test_without_a_penalty_bfgs_has_exact_steps(texts, monkeypatch):
    """Its model has no least point to be searched for."""

    def refused(*args, **kwargs):
        raise AssertionError("the model was searched")

    monkeypatch.setattr(_refine, "model_point", refused)
    X, y = texts
    y = np.random.default_rng(0).integers(0, 3, len(y))
    rows = X[:, :200].toarray()[:, ::10]
    monkeypatch.setattr(_refine, "MOST_VARIABLES", 2)
    model = SFBLogisticRegression(None, random_state=0, max_iter=20)
    model.fit(sparse.csr_array(rows), y)
    values = [record["objective"] for record in model.history_]
    assert values[-1] < values[3]
