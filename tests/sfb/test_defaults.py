"""Default parameters against the optimum, found by SciPy from dense formulas."""

import warnings
from functools import cache

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse, special
from scipy.optimize import minimize
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler

from dask_ma import SFBLogisticRegression
from dask_ma.sfb import Exchange

RATIOS = {"l2": 0.0, "l1": 1.0, "elasticnet": 0.15}
LOADERS = {
    "cancer": load_breast_cancer,
    "wine": load_wine,
    "iris": load_iris,
    "digits": load_digits,
}


@cache
def data(name):
    """Rows and codes of a set; a name that ends in "raw" leaves rows as they are."""
    if name == "text":
        return make_text()
    X, y = LOADERS[name.removesuffix(" raw")](return_X_y=True)
    if name == "digits":
        X, y = X[:600], y[:600]
    return (X if name.endswith("raw") else StandardScaler().fit_transform(X)), y


def make_text():
    """Rows of length 1 with few of many words, some of which tell the class."""
    rng = np.random.default_rng(0)
    X = sparse.random(800, 2000, 0.01, "csr", rng=rng)
    X = sparse.csr_array(X / np.sqrt(X.multiply(X).sum(axis=1)).reshape(-1, 1))
    signs = rng.normal(size=2000) * (rng.random(2000) < 0.05)
    margins = X @ signs
    noise = 0.3 * margins.std() * rng.normal(size=800)
    return X, (margins + noise > 0).astype(int)


def objective(values, intercept, X, y, alpha, ratio):
    """Value, and gradient without the 1-norm; `values` has a column per output."""
    margins = np.asarray(X @ values) + intercept
    if margins.shape[1] == 1:
        loss = np.logaddexp(0, margins[:, 0] * (1 - 2 * y)).mean()
        slopes = special.expit(margins) - y[:, np.newaxis]
    else:
        own = margins[np.arange(len(y)), y]
        loss = (special.logsumexp(margins, axis=1) - own).mean()
        slopes = special.softmax(margins, axis=1) - np.eye(margins.shape[1])[y]
    gradient = X.T @ slopes / len(y) + alpha * (1 - ratio) * values
    loss += alpha * (1 - ratio) / 2 * (values**2).sum()
    return loss + alpha * ratio * abs(values).sum(), gradient, slopes.mean(axis=0)


@cache
def optimum(name, alpha, penalty):
    """Least value; positive and negative parts are variables, in scaled units."""
    X, y = data(name)
    ratio, J = RATIOS[penalty], 1 if y.max() == 1 else y.max() + 1
    scale = np.ones((X.shape[1], 1))
    centre = np.zeros(X.shape[1])
    if not sparse.issparse(X):
        scale[:, 0], centre = np.where(X.std(axis=0), X.std(axis=0), 1), X.mean(axis=0)
    n = len(scale) * J

    def split(z):
        parts = z[: 2 * n].reshape(2, -1, J) / scale
        values = parts[0] - parts[1]
        b = z[2 * n :] - centre @ values
        loss, gradient, slopes = objective(values, b, X, y, alpha * (1 - ratio), 0)
        gradient -= np.outer(centre, slopes)
        both = np.array([gradient + alpha * ratio, -gradient + alpha * ratio]) / scale
        return loss + alpha * ratio * parts.sum(), np.r_[both.ravel(), slopes]

    start, least = np.zeros(2 * n + J), np.inf
    for _ in range(20):  # with what it has learnt of the curvature it may get stuck
        found = minimize(
            split,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=[(0, None)] * (2 * n) + [(None, None)] * J,
            options={"maxiter": 10**4, "maxfun": 10**4, "ftol": 0, "gtol": 1e-9},
        )
        if found.fun >= least * (1 - 1e-7):
            break
        start, least = found.x, found.fun
    return least


def arranged(X, y, layout):
    if layout == "sorted":
        order = np.argsort(y, kind="stable")
        return X[order], y[order]
    if layout == "20 blocks":
        size = -(-len(y) // 20)
        return da.from_array(X, chunks=(size, -1)), da.from_array(y, chunks=size)
    return X, y


def check(name, alpha, penalty, layout="mixed", n_ranks=1, **params):
    """At most 1 % above the optimum, without a warning."""
    X, y = data(name)
    params |= {"alpha": alpha, "penalty": penalty, "n_ranks": n_ranks}
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = SFBLogisticRegression(random_state=0, communication=Exchange())
        model.set_params(**params).fit(*arranged(X, y, layout))
    found, *_ = objective(model.coef_.T, model.intercept_, X, y, alpha, RATIOS[penalty])
    least = optimum(name, alpha, penalty)
    assert -1e-3 * least < found - least <= 1e-2 * least
    # The gap says how far the optimum is at most.
    assert found - least <= model.dual_gap_ * (1 + 1e-6) <= 1.001e-3 * found
    return model


@pytest.mark.each
@pytest.mark.parametrize("layout", ["mixed", "sorted", "20 blocks"])
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("penalty", ["l2", "l1", "elasticnet"])
@pytest.mark.parametrize("name", ["cancer", "wine", "iris"])
def test_small_sets(name, penalty, n_ranks, layout):
    check(name, 1e-3, penalty, layout, n_ranks)


@pytest.mark.each
@pytest.mark.parametrize("penalty", ["l2", "l1", "elasticnet"])
@pytest.mark.parametrize("name", ["cancer", "wine", "iris", "wine raw", "iris raw"])
def test_weak_penalties_and_features_as_they_are(name, penalty):
    model = check(name, 1e-4, penalty, n_ranks=2)
    if penalty != "elasticnet":  # with so little of the 1-norm, all may be needed
        assert (model.coef_ == 0).any() == (penalty == "l1")


@pytest.mark.each
@pytest.mark.parametrize("penalty", ["l2", "l1"])
@pytest.mark.parametrize("name", ["digits", "text"])
def test_more_coefficients(name, penalty):
    model = check(name, 1e-3, penalty, n_ranks=2)
    if penalty == "l1":
        assert (model.coef_ == 0).mean() > 0.3


@pytest.mark.parametrize(
    "params",
    [
        {"communication__staleness": 2},
        {"communication__broadcast": 1, "communication__relay": False},
        {"communication__compression": 0.1},
        {"communication__wire_dtype": "float32"},
        {"learning_rate": "constant"},
    ],
    ids=lambda params: "-".join(params),
)
def test_other_ways_of_going_there(params):
    model = check("wine", 1e-3, "l1", n_ranks=3, **params)
    assert model.solver_ == "sgd" and (model.coef_ == 0).any()


def test_rows_of_float32():
    X, y = data("wine")
    model = SFBLogisticRegression(alpha=1e-3, random_state=0).fit(X.astype("f4"), y)
    assert model.coef_.dtype == np.float32
    found, *_ = objective(model.coef_.T, model.intercept_, X, y, 1e-3, 0.0)
    assert found <= 1.01 * optimum("wine", 1e-3, "l2")


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_rows_of_float32_in_units_of_their_own(kind, interrupted, tmp_path):
    """Single precision leaves something to gain, and a state keeps double precision."""
    X, y = data("wine raw")
    rows = kind(X.astype("f4"))
    make = SFBLogisticRegression(
        alpha=1e-5, random_state=0, n_ranks=2, communication=Exchange("factors")
    ).fit
    model = make(rows, y)
    assert model.coef_.dtype == np.float32
    found, *_ = objective(model.coef_.T, model.intercept_, X, y, 1e-5, 0.0)
    assert found <= 1.001 * optimum("wine raw", 1e-5, "l2")
    whole, n_iter = model.coef_, model.n_iter_
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(n_iter - 1):
            make(rows, y)
        resumed = make(rows, y)
    assert resumed.n_iter_ == n_iter
    np.testing.assert_array_equal(resumed.coef_, whole)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_in_units_far_apart(dtype):
    """The gap of the dual is rounding there; second derivatives bound the excess."""
    rng = np.random.default_rng(0)
    Z, units = rng.normal(size=(300, 8)), np.logspace(-12, 12, 8)
    y = (Z @ rng.normal(size=8) + rng.normal(size=300) > 0).astype(int)
    X = (Z * units).astype(dtype).astype(np.float64)
    scale = np.sqrt(0.25 * units**2 + 1e-3)

    def value(z):
        w = (z[:8] / scale)[:, np.newaxis]
        found, gradient, slope = objective(w, z[8:], X, y, 1e-3, 0.0)
        return found, np.append(gradient[:, 0] / scale, slope)

    least = minimize(value, np.zeros(9), jac=True, tol=1e-12).fun
    model = SFBLogisticRegression(alpha=1e-3, random_state=0).fit(X.astype(dtype), y)
    found, *_ = objective(model.coef_.T, model.intercept_, X, y, 1e-3, 0.0)
    assert found - least <= model.dual_gap_ + 1e-7 <= 1e-6


def test_many_coefficients_are_left_to_bfgs(monkeypatch):
    monkeypatch.setattr("dask_ma.sfb.logistic._refine.MOST_VARIABLES", 2)
    monkeypatch.setattr("dask_ma.sfb.logistic._fit.MOST_VARIABLES", 10**6)
    # Those of dense rows have second derivatives within outputs.
    monkeypatch.setattr("dask_ma.sfb.logistic._models.has_blocks", lambda *_: False)
    for penalty in ("l2", "l1"):
        check("wine", 1e-3, penalty, n_ranks=3)


@pytest.mark.parametrize("penalty", ["l1", "trace"])
def test_far_from_the_optimum_it_warns(penalty):
    X, y = data("cancer")
    model = SFBLogisticRegression(penalty, max_iter=3, random_state=0)
    with pytest.warns(ConvergenceWarning, match="duality gap of .* raise|Raise"):
        model.fit(X, y)
    assert model.dual_gap_ > 1e-3 * min(r["objective"] for r in model.history_)


def test_without_refinement_the_gap_is_looked_at_in_the_end():
    """Steps that bring no more are no proof."""
    X, y = data("cancer")
    params = {"penalty": "l1", "refine": False, "max_iter": 1000, "tol": 0.05}
    params |= {"learning_rate": "constant", "eta0": 1e-3, "n_iter_no_change": 1}
    with pytest.warns(ConvergenceWarning, match="no longer lowered the objective"):
        model = SFBLogisticRegression(random_state=0, **params).fit(X, y)
    assert model.n_iter_ < 1000 and "dual_gap" not in model.history_[-1]
    assert model.dual_gap_ > 0.05 * model.history_[-1]["objective"]


def test_the_best_pass_is_returned():
    X, y = data("iris")
    params = {"learning_rate": "constant", "eta0": 2.0, "batch_size": 1, "tol": None}
    model = SFBLogisticRegression(max_iter=8, alpha=1e-3, random_state=0, **params)
    model.fit(X, y)
    objectives = [record["objective"] for record in model.history_]
    assert objectives[-1] > min(objectives)
    found, *_ = objective(model.coef_.T, model.intercept_, X, y, 1e-3, 0.0)
    assert found == pytest.approx(min(objectives), rel=1e-10)


def test_steps_become_shorter():
    """Below the noise of a constant step."""
    X, y = data("iris")
    params = {"refine": False, "eta0": 2.0, "batch_size": 1, "max_iter": 35}
    params |= {"alpha": 1e-2, "solver": "sgd", "random_state": 0}
    least = {
        rate: min(
            record["objective"]
            for record in SFBLogisticRegression(learning_rate=rate, tol=None, **params)
            .fit(X, y)
            .history_
        )
        for rate in ("adaptive", "constant")
    }
    bound = optimum("iris", 1e-2, "l2")
    assert least["adaptive"] < 1.02 * bound < least["constant"]


def test_the_solver_is_chosen(labelled):
    X, y = labelled[2]
    for params, expected in [
        ({}, "sdca"),
        ({"communication__broadcast": 1}, "sdca"),
        ({"alpha": 0}, "sgd"),
        ({"penalty": "l1"}, "sgd"),
        ({"penalty": "elasticnet"}, "sdca"),
        ({"penalty": "elasticnet", "l1_ratio": 0.98}, "sdca"),
        ({"penalty": "elasticnet", "l1_ratio": 0.99}, "sgd"),
        ({"penalty": "elasticnet", "l1_ratio": 0.99, "solver": "sdca"}, "sdca"),
        ({"penalty": "elasticnet", "l1_ratio": 1.0}, "sgd"),
        ({"penalty": "elasticnet", "alpha": 0}, "sgd"),
        ({"communication__staleness": 1}, "sgd"),
        ({"eta0": 0.1}, "sgd"),
        ({"communication__wire_dtype": "float32"}, "sgd"),
        ({"solver": "sgd"}, "sgd"),
    ]:
        model = SFBLogisticRegression(max_iter=1, tol=None, communication=Exchange())
        model.set_params(**params).fit(X, y)
        assert model.solver_ == expected
        assert hasattr(model, "eta0_") == (expected == "sgd")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"communication__relay": False},
            "relay=False has no effect with .*broadcast=None",
        ),
        ({"refine": True, "penalty": "trace"}, "does not go with penalty='trace'"),
        ({"refine": True, "tol": None}, "does not go with tol=None"),
        ({"refine": True, "early_stopping": True}, "with early_stopping=True"),
    ],
    ids=str,
)
def test_parameters_that_would_do_nothing(labelled, params, message):
    with pytest.raises(ValueError, match=message):
        model = SFBLogisticRegression(communication=Exchange())
        model.set_params(**params).fit(*labelled[2])
