"""MPCARegressor against scikit-learn's, and on several ranks."""

import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.neural_network import MLPRegressor

from dask_ma import MPCARegressor

QUICK = {"hidden_layer_sizes": (7, 5), "batch_size": 16, "tol": None, "max_iter": 4}
QUICK |= {"random_state": 0, "learning_rate_init": 0.01}


def fit(data, weight=None, **params):
    model = MPCARegressor(**{**QUICK, **params})
    return model.fit(*data, sample_weight=weight)


def fit_theirs(data, weight=None, **params):
    params = {**QUICK, "tol": 0.0, "n_iter_no_change": 1000, **params}
    with pytest.warns(UserWarning, match="Maximum iterations"):
        return MLPRegressor(**params).fit(*data, sample_weight=weight)


@pytest.mark.parametrize("solver", ["adam", "sgd"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_one_rank_is_scikit_learn(regression, check_same, solver, dtype, container):
    X, y = regression
    data = container(X.astype(dtype)), y
    ours, theirs = fit(data, solver=solver), fit_theirs(data, solver=solver)
    rtol = 1e-10 if dtype is np.float64 else 1e-4
    check_same(ours, theirs, rtol)
    np.testing.assert_allclose(ours.loss_curve_, theirs.loss_curve_, rtol=rtol)
    assert ours.out_activation_ == theirs.out_activation_ == "identity"
    predicted = ours.predict(X.astype(dtype))
    assert predicted.dtype == dtype
    np.testing.assert_allclose(
        predicted, theirs.predict(X.astype(dtype)), rtol=1e-4, atol=rtol
    )


def test_weights_are_those_of_scikit_learn(regression, check_same, weights):
    weights = weights / weights.mean()
    theirs = fit_theirs(regression, weights)
    check_same(fit(regression, weights), theirs, 1e-10)
    assert abs(fit(regression).coefs_[0] - theirs.coefs_[0]).max() > 1e-3


def test_every_strategy_learns(regression, cluster, strategy):
    X, y = regression
    params = {"strategy": strategy, "max_iter": 25, "learning_rate_init": 0.02}
    model = fit(regression, n_ranks=3, **params)
    assert model.score(X, y) > 0.7
    rows = da.from_array(X, chunks=(50, 6))
    lazy = model.predict(rows)
    assert isinstance(lazy, da.Array)
    assert lazy.dtype == np.float64
    np.testing.assert_allclose(lazy.compute(), model.predict(X), rtol=1e-12)
    score = model.score(rows, da.from_array(y, chunks=50))
    assert score == pytest.approx(model.score(X, y))


def test_early_stopping_scores_r2(regression, cluster):
    """The best model is kept, though the fit goes on without a better one."""
    X, y = regression
    model = fit(
        (X, y), early_stopping=True, validation_fraction=0.5, tol=0.02, max_iter=100,
        n_iter_no_change=3, learning_rate_init=0.05, strategy="local", n_ranks=2,
    )  # fmt: skip
    scores = model.validation_scores_
    assert model.best_validation_score_ == max(scores) <= 1
    assert len(scores) == model.n_iter_ < 100
    assert model.score(X, y) > 0.5


def test_targets_of_other_kinds(regression, check_same):
    X, y = regression
    whole = np.rint(4 * y)
    check_same(fit((X, whole.astype(int))), fit((X, whole)))
    for wrong in (np.nan, np.inf):
        with pytest.raises(ValueError, match="NaN|infinity"):
            fit((X, np.where(np.arange(120) == 70, wrong, y)))
    with pytest.raises(ValueError, match="y must hold numbers"):
        fit((X, np.full(120, "a")))


def test_twin(regression, check_same):
    X, y = regression
    model = fit((X, y))
    second = model.to_sklearn()
    assert type(second) is MLPRegressor
    np.testing.assert_array_equal(second.predict(X), model.predict(X))
    second.partial_fit(X, y)
    assert not np.array_equal(second.coefs_[0], model.coefs_[0])
    check_same(model, fit((X, y)))
