"""MPCARegressor against scikit-learn's, and on several ranks."""

import warnings

import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.compose import TransformedTargetRegressor
from sklearn.datasets import load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor
from sklearn.preprocessing import StandardScaler

from dask_ma import MPCARegressor
from dask_ma.mpca import Torch

QUICK = {"hidden_layer_sizes": (7, 5), "batch_size": 16, "tol": None, "max_iter": 4}
QUICK |= {"random_state": 0, "learning_rate_init": 0.01}


def fit(data, weight=None, **params):
    model = MPCARegressor(**{**QUICK, **params})
    return model.fit(*data, sample_weight=weight)


def fit_theirs(data, weight=None, **params):
    """To targets of mean 0, with the mean in the intercept afterwards."""
    params = {**QUICK, "tol": 0.0, "n_iter_no_change": 1000, **params}
    X, y = data
    mean = np.average(y, weights=weight)
    with pytest.warns(UserWarning, match="Maximum iterations"):
        model = MLPRegressor(**params).fit(X, y - mean, sample_weight=weight)
    model.intercepts_[-1] += model.intercepts_[-1].dtype.type(mean)
    return model


@pytest.mark.pairs
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


def test_every_strategy_learns(regression, strategy):
    params = {"strategy": strategy, "max_iter": 25, "learning_rate_init": 0.02}
    model = fit(regression, n_ranks=3, **params)
    assert model.score(*regression) > 0.7


def test_collections_are_predicted_and_scored_where_they_are(regression, cluster):
    X, y = regression
    model = fit(regression)
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


# -- Where the targets are -----------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("strategy", ["synchronous", "local"])
@pytest.mark.parametrize("weighted", [False, True])
def test_targets_may_lie_anywhere(regression, weights, strategy, weighted):
    X, y = regression
    given = {"weight": weights if weighted else None, "strategy": strategy}
    near = fit((X, y), n_ranks=3, **given)
    far = fit((X, y + 1000), n_ranks=3, **given)
    np.testing.assert_allclose(far.predict(X) - 1000, near.predict(X), atol=1e-9)
    assert far.score(X, y + 1000) == pytest.approx(near.score(X, y), abs=1e-9)


def test_the_default_fit_to_targets_far_from_zero_is_as_good(regression):
    X, y = regression
    scores = [
        MPCARegressor((20,), n_ranks=1, max_iter=30, tol=None, random_state=0)
        .fit(X, targets)
        .score(X, targets)
        for targets in (y, y + 1000)
    ]
    assert scores[1] == pytest.approx(scores[0], abs=1e-3)


def test_a_model_to_go_on_from_keeps_its_intercept(regression):
    """The mean is added to random first values only."""
    X, y = regression
    model = fit((X, y + 1000), warm_start=True, max_iter=1, learning_rate_init=1e-9)
    before = model.intercepts_[-1].copy()
    with pytest.warns(ConvergenceWarning, match="these rows are unlike those before"):
        model.fit(X, y + 2000)
    np.testing.assert_allclose(model.intercepts_[-1], before, atol=1e-6)
    model.partial_fit(X, y + 3000)
    np.testing.assert_allclose(model.intercepts_[-1], before, atol=1e-6)


def beside_another(X):
    """Features next to one that says nothing, so that they all keep their sizes."""
    other = np.random.default_rng(5).normal(size=len(X))
    return np.column_stack([X, 1.2 * other])


def test_a_network_that_is_no_better_than_the_mean_is_noticed(regression):
    """Features of such sizes leave the network where it began."""
    X, y = regression
    small = beside_another(1e-3 * X)
    model = MPCARegressor((3,), n_iter_no_change=2, random_state=0)
    model.set_params(learning_rate_init=0.02, tol=1e-2)
    with pytest.warns(ConvergenceWarning, match="explains only .* scale the features"):
        model.fit(small, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, y)
        model.set_params(tol=None, n_iter_no_change=10, max_iter=2).fit(small, y)
        model.set_params(tol=0.5, n_iter_no_change=2, max_iter=200)
        model.fit(X, np.full(len(y), 7.0))


@pytest.mark.parametrize(
    ("factor", "rate", "found", "cure"),
    [
        (1.0, 10.0, "predict the mean of y", "lower learning_rate_init"),
        (1e-8, 1e-3, "of the variance", "raise learning_rate_init"),
    ],
)
def test_scaling_is_advised_at_the_last_epoch(regression, factor, rate, found, cure):
    X, y = beside_another(regression[0] * factor), regression[1]
    with pytest.warns(ConvergenceWarning) as seen:
        fit((X, y), tol=1e-4, max_iter=20, learning_rate_init=rate)
    (message,) = [str(each.message) for each in seen]
    for words in (found, cure, "scale the features"):
        assert words in message


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("unit", [1.0, 10.0])
def test_large_features_of_targets_of_any_unit(unit, n_ranks):
    """The alcohol of wines, which varies by 0.8, by columns as large as 1,680."""
    wine = load_wine().data
    X, y = wine[:, 1:], unit * wine[:, 0]
    model = MPCARegressor(n_ranks=n_ranks, random_state=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the maximum of 200 epochs")
        assert model.fit(X, y).score(X, y) > 0.7


@pytest.mark.parametrize("tol", [None, 1e-4])
def test_a_model_behind_the_mean_is_noticed_whatever_tol_is(regression, tol):
    X, y = regression
    with pytest.warns(ConvergenceWarning, match=r"mean of y.* lower learning_rate"):
        fit((X, y), tol=tol, max_iter=20, learning_rate_init=1e3)


@pytest.mark.parametrize(
    ("criterion", "factor", "tol", "is_known"),
    [
        ("auto", 1e4, None, True),
        ("auto", 1e4, 1e-4, True),
        ("MSELoss", 1e4, None, True),
        ("auto", 1.0, 1e-2, False),
        ("L1Loss", 1e4, None, False),  # whose losses of the mean nobody knows
    ],
)
def test_modules_behind_the_mean_are_noticed(
    regression, criterion, factor, tol, is_known
):
    torch = pytest.importorskip("torch")
    X, y = regression
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(6, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1)
    )
    chosen = Torch(module, criterion=criterion)
    params = {"module": chosen, "random_state": 0, "n_ranks": 1}
    params |= {"learning_rate_init": 0.01, "max_iter": 50, "tol": tol}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        # The mean is far from where outputs begin, and 50 epochs bring them no nearer.
        model = MPCARegressor(**params).fit(X, factor * (y + 3))
    told = [str(each.message) for each in seen if "mean of y" in str(each.message)]
    assert bool(told) == is_known
    assert all("TransformedTargetRegressor" in message for message in told)
    assert (model.score(X, factor * (y + 3)) < 0) == (factor > 1)
    if is_known:
        advised = TransformedTargetRegressor(
            MPCARegressor(**params), transformer=StandardScaler()
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*mean of y")
            warnings.filterwarnings("ignore", message=".*maximum of 50")
            advised.fit(X, factor * (y + 3))
        assert advised.score(X, factor * (y + 3)) > 0.9
