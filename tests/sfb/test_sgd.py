"""SFBLogisticRegression by stochastic gradient descent: optima, steps, divergence."""

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from dask_ma import SFBLogisticRegression
from dask_ma.sfb import Exchange

# Fits without a penalty are given the same `alpha` as the others.
pytestmark = pytest.mark.filterwarnings("ignore:alpha=.* has no effect")
ALPHA = 0.02
CLOSE = {"alpha": ALPHA, "tol": None, "max_iter": 30, "random_state": 0}
CLOSE |= {"communication": Exchange("factors"), "solver": "sgd"}
QUICK = {**CLOSE, "max_iter": 3, "n_ranks": 2, "batch_size": 8}
every_size = pytest.mark.parametrize("n_ranks", [1, 3])


def fit(X, y, weight=None, **params):
    model = clone(SFBLogisticRegression(**CLOSE)).set_params(**params)
    return model.fit(X, y, sample_weight=weight)


def check(found, expected, rtol=1e-2):
    """The objective is near that of the optimum, and not below it."""
    assert -1e-7 < found - expected <= rtol * expected


@pytest.mark.each
@every_size
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_scikit_learn(labelled, value, best, n_classes, fit_intercept, n_ranks):
    X, y = labelled[n_classes]
    expected = best(X, y, ALPHA, fit_intercept=fit_intercept)
    rows = sparse.csr_matrix(X) if n_ranks == 3 else X
    model = fit(rows, y, fit_intercept=fit_intercept, n_ranks=n_ranks)
    found = value(model, X, y)
    check(found, expected)
    least = min(record["objective"] for record in model.history_)
    assert least == pytest.approx(found, rel=1e-10)
    assert fit_intercept or not model.intercept_.any()


@pytest.fixture(scope="module")
def trace_optimum(labelled):
    """Objective and rank after many steps of proximal gradient descent."""
    (X, y), alpha = labelled[10], ALPHA
    n_rows, n_classes = len(y), y.max() + 1
    rows, truth = np.c_[X, np.ones(n_rows)], np.eye(n_classes)[y]
    step = 2 * n_rows / np.linalg.norm(rows, 2) ** 2
    W = np.zeros((n_classes, rows.shape[1]))
    for _ in range(1000):
        p = np.exp(rows @ W.T)
        p /= p.sum(axis=1, keepdims=True)
        W -= step / n_rows * (p - truth).T @ rows
        U, s, V = np.linalg.svd(W[:, :-1], full_matrices=False)
        s = np.maximum(s - step * alpha, 0)
        W[:, :-1] = U * s @ V
    p = np.exp(rows @ W.T)
    p /= p.sum(axis=1, keepdims=True)
    return -np.log(p[range(n_rows), y]).mean() + alpha * s.sum(), int((s > 0).sum())


@every_size
def test_trace_norm(labelled, value, trace_optimum, n_ranks):
    X, y = labelled[10]
    expected, rank = trace_optimum
    model = fit(X, y, penalty="trace", max_iter=100, n_ranks=n_ranks)
    check(value(model, X, y, penalty="trace"), expected)
    assert np.linalg.matrix_rank(model.coef_, 1e-6) < 8 and rank < 8


@pytest.mark.each
@every_size
@pytest.mark.parametrize("n_classes", [2, 3])
def test_l1(labelled, value, best, n_classes, n_ranks):
    X, y = labelled[n_classes]
    expected = best(X, y, ALPHA, penalty="l1")
    rows = sparse.csr_array(X) if n_ranks == 3 else X
    model = fit(rows, y, penalty="l1", n_ranks=n_ranks)
    check(value(model, X, y, penalty="l1"), expected)


@every_size
def test_no_penalty(labelled, value, best, n_ranks):
    X, y = labelled[2]
    flipped = np.where(np.arange(120) % 3, y, 1 - y)  # else there is no optimum
    expected = best(X, flipped, 0)
    model = fit(X, flipped, penalty=None, n_ranks=n_ranks)
    check(value(model, X, flipped, penalty=None), expected)
    params = {"learning_rate": "constant", "max_iter": 2, "n_ranks": n_ranks}
    none = fit(X, flipped, penalty=None, **params)
    for penalty in ("l2", "l1", "trace"):
        other = fit(X, flipped, penalty=penalty, alpha=0, **params)
        np.testing.assert_array_equal(other.coef_, none.coef_)


@pytest.mark.parametrize(
    "params",
    [
        {"communication__staleness": 2},
        {"communication__staleness": 2, "communication__broadcast": 1},
        {
            "communication__broadcast": [
                [1 - (p == q) for q in range(3)] for p in range(3)
            ]
        },
        {"communication__broadcast": 1, "communication__relay": False},
        {"communication": "full_matrix"},
        {"communication": "server"},
        {"communication": "auto"},
    ],
    ids=lambda params: "-".join(params),
)
def test_every_way_leads_to_the_optimum(labelled, value, best, params):
    X, y = labelled[3]
    model = fit(X, y, n_ranks=3, max_iter=20, **params)
    check(value(model, X, y), best(X, y, ALPHA), 2e-2)
    assert model.communication_ in ("factors", "full_matrix", "server")


@pytest.mark.parametrize("n_classes", [2, 3])
def test_weights(labelled, value, best, weights, n_classes):
    X, y = labelled[n_classes]
    check(value(fit(X, y, weights), X, y, weights), best(X, y, ALPHA, weights))
    given = {label: [0.5, 2.0, 1.5][label] for label in range(n_classes)}
    sums = np.bincount(y, weights)
    for class_weight, factors in [
        (given, np.array(list(given.values()))),
        ("balanced", sums.sum() / (n_classes * sums)),
    ]:
        total = weights * factors[y]
        model = fit(X, y, weights, class_weight=class_weight, n_ranks=2)
        check(value(model, X, y, total), best(X, y, ALPHA, total))


def test_types(labelled, value, best):
    X, y = labelled[3]
    model = fit(X.astype(np.float32), y, n_ranks=2)
    assert model.coef_.dtype == np.float32
    check(value(model, X, y), best(X, y, ALPHA))
    short = fit(X, y, n_ranks=2, communication__wire_dtype="float32")
    assert short.coef_.dtype == np.float64
    np.testing.assert_allclose(short.coef_, fit(X, y, n_ranks=2).coef_, atol=1e-5)


# Lengths of steps ---------------------------------------------------------------------


@pytest.mark.parametrize("penalty", ["l2", "l1", "trace", None])
@pytest.mark.parametrize(
    "learning_rate", ["adaptive", "optimal", "invscaling", "constant"]
)
def test_schedules(labelled, penalty, learning_rate):
    """The first passes from formulas, with all rows in each step."""
    X, y = labelled[3]
    eta0, alpha, power = 1.5, 0.05, 0.5
    if learning_rate == "invscaling" or (learning_rate, penalty) == ("optimal", "l1"):
        power = 0.7  # elsewhere, another one than the default is warned of
    model = fit(
        X,
        y,
        penalty=penalty,
        learning_rate=learning_rate,
        eta0=eta0,
        alpha=alpha,
        power_t=power,
        batch_size=120,
        max_iter=4,
        fit_intercept=False,
    )
    W, truth = np.zeros((3, 8)), np.eye(3)[y]
    # Without intercepts, rows are not centred.
    for t in range(4):
        step = eta0
        if learning_rate == "optimal" and penalty == "l2":
            step = eta0 / (1 + eta0 * alpha * t)
        elif learning_rate in ("optimal", "invscaling"):
            step = eta0 / (1 + t) ** power
        p = np.exp(X @ W.T)
        p /= p.sum(axis=1, keepdims=True)
        W = W - step / 120 * (p - truth).T @ X
        if penalty == "l2":
            W /= 1 + step * alpha
        elif penalty == "l1":
            W = np.sign(W) * np.maximum(np.abs(W) - step * alpha, 0)
        elif penalty == "trace":
            U, s, V = np.linalg.svd(W, full_matrices=False)
            W = U * np.maximum(s - step * alpha, 0) @ V
    np.testing.assert_allclose(model.coef_, W, atol=1e-12)
    assert model.eta0_ == eta0
    assert model.t_ == 5


@pytest.mark.each
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("batch_size", [1, 16, 120])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_automatic_steps_are_stable(labelled, n_classes, batch_size, scale):
    """Whatever the features are scaled by, with a row of zeros first."""
    X, y = labelled[n_classes]
    X, y = np.r_[np.zeros((1, 8)), X], np.r_[0, y]
    X = np.c_[X, 0.01 * X] * scale  # half of the features are much smaller
    rows = sparse.csr_array(X)  # which stay as long as they are: they are not centred
    params = {"learning_rate": "invscaling", "max_iter": 5}
    model = fit(rows, y, batch_size=batch_size, alpha=0.0, **params)
    objectives = [record["objective"] for record in model.history_]
    # Single rows of a noisy class may make the first passes worse than no model.
    assert max(objectives) < (2 if batch_size == 1 else 1) * np.log(n_classes)
    assert objectives[-1] < 0.8 * np.log(n_classes)
    # The longest step of one row of length 1, and longer ones for many.
    curvature = scale**2 / (4 if n_classes == 2 else 3)
    shortest = 2 / (curvature * (1 + 1e-4))
    assert shortest * (1 - 1e-9) <= model.eta0_ <= 10 * shortest
    if batch_size == 1:
        assert model.eta0_ == pytest.approx(shortest)


def test_features_of_zeros_leave_the_intercept(labelled):
    y = labelled[2][1]
    model = fit(np.zeros((120, 3)), y)
    assert not model.coef_.any()
    assert model.predict_proba(np.zeros((1, 3)))[0, 1] == pytest.approx(y.mean(), 0.02)


@pytest.mark.parametrize("penalty", ["l2", "l1", "trace", None])
@every_size
def test_divergence(labelled, penalty, n_ranks):
    """An error that shows what the objectives were, and names the parameter."""
    X, y = labelled[3]
    params = {"eta0": 1e308, "learning_rate": "constant", "batch_size": 16}
    with pytest.raises(ValueError, match="grows without bound") as caught:
        fit(100 * X, y, penalty=penalty, n_ranks=n_ranks, **params)
    assert "its last values are" in str(caught.value)
    assert "lower eta0" in str(caught.value)


def test_a_model_worse_than_none_has_not_converged(labelled):
    X, y = labelled[3]
    noise = np.random.default_rng(0).permutation(y)
    params = {"eta0": 1e4, "learning_rate": "constant", "batch_size": 16}
    with pytest.warns(ConvergenceWarning):
        model = fit(X, noise, **params, tol=1e-4, max_iter=30, refine=False)
    objectives = [record["objective"] for record in model.history_]
    assert min(objectives) > np.log(3)
    assert min(objectives[:-3]) < min(objectives[-3:])  # the rule alone would stop


# Stopping and going on ----------------------------------------------------------------


def test_it_stops_by_tol(labelled):
    X, y = labelled[3]
    params = {"tol": 1e-3, "n_iter_no_change": 2, "max_iter": 100, "refine": False}
    params |= {"learning_rate": "optimal"}
    model = fit(X, y, **params)
    objectives = [record["objective"] for record in model.history_]
    assert 2 < model.n_iter_ == len(objectives) < 100
    least = np.minimum.accumulate(objectives)
    idle = objectives[1:] > least[:-1] * (1 - 1e-3)
    assert idle[-2:].all() and not (idle[:-2] & idle[1:-1]).any()
    longer = fit(X, y, **{**params, "n_iter_no_change": 6})
    assert longer.n_iter_ > model.n_iter_
    with pytest.warns(ConvergenceWarning, match="maximum of 2 rounds"):
        fit(X, y, **{**params, "max_iter": 2})


def test_early_stopping(labelled):
    X, y = labelled[3]
    params = {"early_stopping": True, "tol": 1e-3, "n_iter_no_change": 2}
    model = fit(X, y, **params, n_ranks=3)
    assert model.n_iter_ < 60
    scores = [record["validation_score"] for record in model.history_]
    assert max(scores) > 0.5
    assert np.all(np.array(scores) <= 1)
    n_rows = {
        share: fit(X, y, **params, validation_fraction=share).history_[0]["n_samples"]
        for share in (0.1, 0.5)
    }
    assert n_rows == {0.1: 108, 0.5: 60}
    with pytest.raises(ValueError, match="early_stopping holds out"):
        fit([[0.0], [1.0]], [0, 1], early_stopping=True, n_ranks=2)


def test_warm_start_goes_on(labelled):
    X, y = labelled[3]
    params = {"warm_start": True, "max_iter": 2, "learning_rate": "constant"}
    params |= {"shuffle": False, "n_ranks": 2}
    model = fit(X, y, **params).fit(X, y)
    once = fit(X, y, **{**params, "max_iter": 4})
    np.testing.assert_allclose(model.coef_, once.coef_, rtol=1e-12)
    np.testing.assert_allclose(model.intercept_, once.intercept_, rtol=1e-12)
    cold = model.set_params(warm_start=False).fit(X, y)
    assert np.abs(cold.coef_ - once.coef_).max() > 1e-3


def test_warm_start_from_the_other_solver(labelled, value, best):
    X, y = labelled[3]
    model = fit(X, y, solver="sdca", tol=1e-5, max_iter=300, refine=False)
    assert model.dual_gap_ <= 1e-5 * np.log(3) and not hasattr(model, "eta0_")
    model.set_params(solver="sgd", warm_start=True, max_iter=1, tol=None, eta0=1e-3)
    model.fit(X, y)
    check(value(model, X, y), best(X, y, ALPHA), 1e-3)
    assert model.eta0_ == 1e-3 and not hasattr(model, "dual_gap_")
    # What dual ascent has no use for goes, too.
    model.set_params(solver="sdca", eta0="auto", tol=1e-3, max_iter=300).fit(X, y)
    assert model.dual_gap_ <= 1e-3 * np.log(3) and not hasattr(model, "eta0_")


@pytest.mark.each
@pytest.mark.parametrize("penalty", ["l2", "l1", "trace"])
@pytest.mark.parametrize(
    "params", [{}, {"communication__broadcast": 1}, {"communication": "server"}]
)
def test_a_resumed_fit_is_an_uninterrupted_one(labelled, tmp_path, penalty, params):
    X, y = labelled[3]
    params = {**QUICK, **params, "penalty": penalty, "n_ranks": 3, "max_iter": 5}
    whole = fit(X, y, **params)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        fit(X, y, **{**params, "max_iter": 2})
        resumed = fit(X, y, **params)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)
    np.testing.assert_array_equal(resumed.intercept_, whole.intercept_)
    assert [record["round"] for record in resumed.history_] == [1, 2, 3, 4, 5]
    assert resumed.t_ == whole.t_


@pytest.mark.parametrize(
    "params", [{}, {"refine": False, "n_iter_no_change": 2}, {"penalty": "l1"}], ids=str
)
def test_the_stop_rule_goes_on(labelled, tmp_path, params):
    """In steps on the whole objective, and in those that become shorter."""
    X, y = labelled[3]
    params = {"tol": 1e-3, "n_ranks": 2, "max_iter": 100, **params}
    whole = fit(X, y, **params)
    assert whole.n_iter_ > 3
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with pytest.warns(ConvergenceWarning):
            fit(X, y, **{**params, "max_iter": whole.n_iter_ - 1})
        resumed = fit(X, y, **params)
    assert resumed.n_iter_ == whole.n_iter_
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


def test_other_data_and_parameters(labelled, tmp_path):
    X, y = labelled[3]
    others = [((X[:, :7], y), QUICK), ((X, y), {**QUICK, "alpha": 0.1})]
    plain = [fit(*data, **params) for data, params in others]
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        fit(X, y, **{**QUICK, "max_iter": 1})
        for (data, params), expected in zip(others, plain, strict=True):
            np.testing.assert_array_equal(fit(*data, **params).coef_, expected.coef_)
