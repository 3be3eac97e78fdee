"""Fits that open with steps on the whole objective, and those that do not."""

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from dask_ma import SFBLogisticRegression
from dask_ma.sfb._engine import BroadcastEngine
from dask_ma.sfb.logistic import _cost, _fit, _opening
from dask_ma.sfb.logistic._cost import Passes
from dask_ma.sfb.logistic._objective import Objective
from dask_ma.sfb.logistic._opening import pass_seconds, step_seconds, takes_steps
from dask_ma.sfb.logistic._penalty import Penalty
from dask_ma.sfb.logistic._room import Room

ALPHA = 1e-3
L2 = Penalty(l2=ALPHA)


@pytest.fixture
def rows():
    """1,500 dense rows of 6 features and two classes, and their weights."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 6)) * [1, 2, 1, 1, 3, 1] + 0.5
    y = (X @ rng.normal(size=6) + rng.logistic(size=1500) > 0).astype(int)
    return X, y, rng.integers(1, 4, 1500) / 2


@pytest.fixture
def passes_made(monkeypatch):
    """What is added to with each pass of a rank."""
    made, original = [], BroadcastEngine.run_pass

    def run_pass(engine):
        made.append(engine)
        original(engine)

    monkeypatch.setattr(BroadcastEngine, "run_pass", run_pass)
    return made


def fit(X, y, weight=None, **params):
    model = SFBLogisticRegression(alpha=ALPHA, random_state=0)
    return model.set_params(**params).fit(X, y, sample_weight=weight)


# What is chosen -----------------------------------------------------------------------


def sizes(n_rows, shape, n_entries=None, n_ranks=1):
    is_sparse = n_entries is not None
    n_entries = n_entries or shape[1]
    most = -(-n_rows // n_ranks)
    return Passes(n_rows, most, 1.0, n_entries, is_sparse, shape, 8, n_ranks, 64)


@pytest.mark.parametrize(
    ("fit_sizes", "expected"),
    [
        # Seconds of the processor of whole fits, with passes first and without.
        ((569, (1, 30)), True),  # 0.08, 0.03
        ((1797, (10, 64)), True),  # 1.3, 0.3
        ((32_561, (1, 123), 14), True),  # 3.7, 0.3
        ((25_000, (1, 37_171), 138), True),  # 3.9, 1.3
        ((200_000, (1, 20)), True),  # 14, 0.6
        ((11_314, (20, 31_901), 87), False),  # 2.5, 2.3
        ((15_000, (150, 5026), 8), False),  # 5.1, 6.0
        ((20_000, (10, 784)), False),  # 20.7, 25.8
        # Of sparse rows and some coefficients, on a quicker machine.
        ((20_000, (1, 800), 16), True),  # 1.8, 0.15
        ((10_000, (10, 100), 2), True),  # 0.53, 0.17
        ((11_314, (20, 50), 9), True),  # 0.66, 0.23
        ((25_000, (1, 800), 87), True),  # 1.2, 0.58
        ((32_561, (1, 1000), 65), True),  # 3.2, 1.2
    ],
)
def test_what_the_processor_has_said(fit_sizes, expected):
    assert takes_steps(sizes(*fit_sizes), L2) is expected


@pytest.mark.parametrize(
    ("fit_sizes", "expected"),
    [
        # The same with an L1 part of 0.15 and alpha=1e-3.
        ((32_561, (1, 123), 14), True),  # 3.1, 0.28
        ((20_000, (1, 20)), True),  # 0.9, 0.1
        ((20_000, (1, 300)), True),  # 1.0, 0.4
        ((20_000, (1, 800)), True),  # 3.7, 2.0
        ((25_000, (1, 800), 87), True),  # 1.8, 0.7
        ((20_000, (1, 800), 16), True),  # 1.1, 0.2
        ((10_000, (10, 30)), True),  # 1.1, 0.4
        ((1797, (10, 64)), True),  # 0.23, 0.22
        ((10_000, (10, 100), 10), False),  # 0.6, 1.7
        ((11_314, (20, 50), 8.5), False),  # 0.8, 1.1
    ],
)
def test_what_the_processor_has_said_with_an_l1_part(fit_sizes, expected):
    penalty = Penalty(l1=1.5e-4, l2=8.5e-4)
    assert takes_steps(sizes(*fit_sizes), penalty) is expected


@pytest.mark.parametrize(
    ("fit_sizes", "expected"),
    [
        # The same with an L1 penalty.
        ((569, (1, 30)), True),  # 0.14, 0.08
        ((32_561, (1, 123), 14), True),  # 0.7, 0.19
        ((25_000, (1, 800), 87), True),  # 1.3, 1.4; with alpha=1e-2 0.86, 0.06
        ((1797, (10, 64)), False),  # 0.24, 0.37
    ],
)
def test_what_the_processor_has_said_with_an_l1_penalty(fit_sizes, expected):
    found = takes_steps(sizes(*fit_sizes), Penalty(l1=1e-4), is_dual=False)
    assert found is expected


@pytest.mark.parametrize(
    ("fit_sizes", "expected"),
    [
        # The same with alpha=1e-2 and tf-idf, of which all rows have the length 1.
        ((11_314, (20, 31_901), 87), True),  # 1.1, 0.56
        ((15_000, (150, 5026), 8), False),  # 0.46, 0.82
    ],
)
def test_what_the_processor_has_said_with_a_strong_penalty(fit_sizes, expected):
    assert takes_steps(sizes(*fit_sizes), L2, is_strong=True) is expected


@pytest.mark.parametrize("kind", [np.array, sparse.csr_array])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_what_is_strong(rows, monkeypatch, kind, n_ranks):
    """By the mean squared length of the rows, here 500."""
    asked = []
    monkeypatch.setattr(
        _opening, "takes_steps", lambda *_, is_strong, **__: asked.append(is_strong)
    )
    X, y, _ = rows
    X = X * np.sqrt(500 / np.square(X).sum(axis=1).mean())
    for alpha in (0.499, 0.501):
        fit(kind(X), y, alpha=alpha, n_ranks=n_ranks)
    assert asked == n_ranks * [False] + n_ranks * [True]


def test_which_passes_there_would_be(rows, monkeypatch):
    asked = []
    monkeypatch.setattr(
        _opening, "takes_steps", lambda *_, is_dual, **__: asked.append(is_dual)
    )
    for penalty in ("l2", "elasticnet", "l1"):
        fit(*rows, penalty=penalty)
    assert asked == [True, True, False]


def test_more_of_anything_takes_longer():
    def of_step(found, **place):
        return step_seconds(found, L2, **place)

    for plain in (sizes(5000, (3, 20)), sizes(5000, (30, 800), 20)):
        for find in (pass_seconds, of_step):
            assert find(sizes(9000, plain.shape, plain.n_entries)) > find(plain)
            assert find(plain._replace(n_entries=2 * plain.n_entries)) > find(plain)
            more = plain._replace(shape=(2 * plain.shape[0], plain.shape[1]))
            assert find(more) > find(plain)
            shared = plain._replace(n_ranks=2, most_rows=2500)
            assert find(shared, is_far=True) > find(shared)
            assert find(shared) < find(plain)


def test_dense_features_that_stay_alike_take_more_products():
    """Those of more than 200 for each class."""
    few, many = (step_seconds(sizes(5000, (3, n)), L2) for n in (600, 601))
    assert many > 2 * few


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_default_parameters(rows, passes_made, n_ranks):
    model = fit(*rows, n_ranks=n_ranks)
    assert not passes_made and model.t_ == 1
    assert model.solver_ == "sdca" and not hasattr(model, "eta0_")


@pytest.mark.parametrize(
    "params",
    [
        {"solver": "sdca"},
        {"solver": "sgd"},
        {"batch_size": 32},
        {"shuffle": False},
        {"communication": "factors"},
        {"eta0": 0.1},
        {"penalty": "l1", "solver": "sgd"},
        {"penalty": "l1", "eta0": 0.1},
        {"penalty": "l1", "learning_rate": "constant"},
        {"penalty": "l1", "n_iter_no_change": 5},
        {"penalty": "l1", "communication": "factors"},
        {"penalty": "elasticnet", "l1_ratio": 0.99, "batch_size": 32},
        {"penalty": None, "alpha": 1e-4},
        {"refine": False},
        {"tol": None, "max_iter": 3},
        {"early_stopping": True},
    ],
    ids=str,
)
def test_parameters_that_ask_for_passes(rows, passes_made, params):
    fit(*rows, **params)
    assert passes_made


def test_few_rows_have_passes(rows, passes_made):
    X, y, _ = rows
    fit(X[:60], y[:60])
    assert passes_made


def test_rows_on_disks_have_passes(rows, passes_made, monkeypatch):
    monkeypatch.setattr(_cost, "is_on_disk", lambda X: True)
    fit(*rows)
    assert passes_made


def test_without_memory_there_are_passes(rows, passes_made, monkeypatch):
    none = Room(steps=False, lacks="nothing at all")
    monkeypatch.setattr(_fit, "find_room", lambda *_, **__: none)
    fit(*rows)
    assert passes_made


# What is found ------------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("kind", [np.float64, np.float32, sparse.csr_array])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_the_optimum(rows, value, best, passes_made, kind, fit_intercept, n_ranks):
    X, y, weight = rows
    given = X.astype(kind) if kind is np.float32 else kind(X)
    model = fit(given, y, weight, fit_intercept=fit_intercept, n_ranks=n_ranks)
    assert not passes_made
    least = best(X, y, ALPHA, weight, fit_intercept=fit_intercept)
    found = value(model, X, y, weight)
    assert -1e-6 < found - least <= model.dual_gap_ + 1e-6 <= 1.01e-3 * found
    assert model.n_iter_ == len(model.history_)
    last = model.history_[-1]
    assert last["objective"] == pytest.approx(found, rel=1e-6)
    assert last["dual_gap"] == model.dual_gap_ and last["n_samples"] == len(y)


@pytest.mark.parametrize("kind", [np.array, sparse.csr_array])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_the_optimum_of_an_elastic_net(rows, passes_made, kind, fit_intercept, n_ranks):
    """Where no coefficient gains by a change (the conditions of Karush, Kuhn and
    Tucker), as with passes before."""
    X, y, weight = rows
    params = {"penalty": "elasticnet", "l1_ratio": 0.7, "alpha": 0.05, "tol": 1e-9}
    params.update(fit_intercept=fit_intercept, n_ranks=n_ranks)
    model = fit(kind(X), y, weight, **params)
    assert not passes_made
    coef = model.coef_[0].astype(np.float64)
    margins = X @ coef + model.intercept_
    slopes = weight * (1 / (1 + np.exp(-margins)) - y) / weight.sum()
    if fit_intercept:
        assert slopes.sum() == pytest.approx(0, abs=1e-5)
    gradient = X.T @ slopes + 0.05 * 0.3 * coef
    is_zero = coef == 0
    assert is_zero.any() and not is_zero.all()
    assert (np.abs(gradient[is_zero]) <= 0.05 * 0.7).all()
    expected = -0.05 * 0.7 * np.sign(coef[~is_zero])
    np.testing.assert_allclose(gradient[~is_zero], expected, atol=1e-5)
    other = fit(kind(X), y, weight, solver="sdca", **params)
    assert passes_made
    np.testing.assert_allclose(model.coef_, other.coef_, atol=1e-4)


@pytest.mark.parametrize("kind", [np.array, sparse.csr_array])
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize(
    "penalty", [{"penalty": "l1"}, {"penalty": "elasticnet", "l1_ratio": 0.99}], ids=str
)
def test_the_optimum_of_a_1_norm(rows, passes_made, kind, n_ranks, penalty):
    X, y, weight = rows
    params = {**penalty, "alpha": 0.05, "tol": 1e-5, "n_ranks": n_ranks}
    model = fit(kind(X), y, weight, **params)
    assert not passes_made and model.t_ == 1
    assert model.solver_ == "sgd" and not hasattr(model, "eta0_")
    assert model.dual_gap_ <= 1e-5 * model.history_[-1]["objective"]
    other = fit(kind(X), y, weight, solver="sgd", **params)
    assert passes_made and other.eta0_ > 0
    assert (model.coef_ == 0).any() and model.coef_.any()
    np.testing.assert_allclose(model.coef_, other.coef_, atol=1e-3)
    np.testing.assert_allclose(model.intercept_, other.intercept_, atol=1e-3)


def test_an_elastic_net_of_many_coefficients(rows, passes_made, monkeypatch):
    """Passes find out which of them count."""
    fit(*rows, penalty="elasticnet")
    assert not passes_made
    monkeypatch.setattr(_opening, "MOST_VARIABLES", 5)
    fit(*rows, penalty="elasticnet")
    assert passes_made


def test_weights_of_classes(rows, value, best, passes_made):
    X, y, _ = rows
    model = fit(X, y, class_weight={0: 3.0, 1: 1.0})
    assert not passes_made
    weight = np.where(y == 0, 3.0, 1.0)
    found = value(model, X, y, weight)
    assert found <= 1.001 * best(X, y, ALPHA, weight)


def test_few_steps_warn(rows, passes_made):
    with pytest.warns(ConvergenceWarning, match="raise max_iter|Raise max_iter"):
        model = fit(*rows, max_iter=1)
    assert model.n_iter_ == 1 and not passes_made
    assert model.dual_gap_ > 1e-3 * model.history_[0]["objective"]


def test_a_warm_start(rows, passes_made):
    model = fit(*rows, tol=1e-6, warm_start=True)
    n_iter, first = model.n_iter_, model.history_[0]["objective"]
    X, y, weight = rows
    model.fit(X, y, sample_weight=weight)
    assert model.n_iter_ == 1 < n_iter and not passes_made
    assert model.history_[0]["objective"] < first


def test_partial_fits_go_on(rows, passes_made):
    X, y, _ = rows
    model = fit(X, y)
    before = model.coef_.copy()
    model.partial_fit(X, y)
    assert len(passes_made) == 1 and model.t_ > 1
    assert np.abs(model.coef_ - before).max() < np.abs(before).max()


def test_no_dual_variables(rows, monkeypatch):
    monkeypatch.setattr(_fit, "DualModel", None)
    with pytest.raises(TypeError):
        fit(*rows, solver="sdca")
    monkeypatch.undo()
    made = []
    original = _fit.DualModel.__init__
    monkeypatch.setattr(
        _fit.DualModel, "__init__", lambda *a: made.append(a) or original(*a)
    )
    fit(*rows)
    assert not made


# Second derivatives of all pairs ------------------------------------------------------


@pytest.fixture
def hessians(monkeypatch):
    """What is added to where these are found."""
    found, original = [], Objective.hessian

    def hessian(*args):
        found.append(args)
        return original(*args)

    monkeypatch.setattr(Objective, "hessian", hessian)
    return found


@pytest.mark.parametrize(
    ("n_features", "far", "params", "has_any", "kind"),
    [
        (60, 1.0, {}, False, np.array),
        (60, 1.0, {}, False, sparse.csr_array),
        (30, 1.0, {}, True, np.array),
        (30, 1.0, {}, True, sparse.csr_array),
        (60, 1e10, {}, True, np.array),
        (60, 1.0, {"alpha": 0, "tol": 0.1}, True, np.array),
        (60, 1.0, {"alpha": 0, "tol": 0.1}, True, sparse.csr_array),
    ],
)
@pytest.mark.filterwarnings("ignore:the classes are linearly separable")
def test_who_has_them(hessians, n_features, far, params, has_any, kind):
    """Few coefficients, and those of features whose spreads are far apart."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, n_features))
    y = (X @ rng.normal(size=(n_features, 8)) + rng.gumbel(size=(400, 8))).argmax(1)
    X[:, 0] *= far
    fit(kind(X), y, **{"alpha": 1e-2, "tol": 1e-4, **params})
    assert bool(hessians) is has_any


# Going on -----------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", ["l2", "elasticnet", "l1"])
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("n_kept", [1, 3])
def test_a_resumed_fit(
    rows, passes_made, interrupted, tmp_path, n_ranks, n_kept, penalty
):
    params = {"n_ranks": n_ranks, "tol": 1e-6, "penalty": penalty}
    whole = fit(*rows, **params)
    assert whole.n_iter_ > 3
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(n_kept):
            fit(*rows, **params)
        resumed = fit(*rows, **params)
    assert resumed.n_iter_ == whole.n_iter_ and not passes_made
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


def test_a_resumed_fit_with_passes(rows, interrupted, tmp_path):
    """Steps have taken over from those of gradient descent, whose length is told."""
    params = {"penalty": "l1", "solver": "sgd", "tol": 1e-6}
    whole = fit(*rows, **params)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(whole.n_iter_ - 1):
            fit(*rows, **params)
        resumed = fit(*rows, **params)
    assert resumed.n_iter_ == whole.n_iter_ and resumed.eta0_ == whole.eta0_


def test_ranks_that_start_again(rows, passes_made, regrouped):
    whole = fit(*rows, tol=1e-6)
    model = SFBLogisticRegression(alpha=ALPHA, random_state=0, tol=1e-6, n_ranks=3)
    X, y, weight = rows
    found = regrouped(model, 2, X, y, weight)
    assert not passes_made and found.history_[-1]["restarts"] == 1
    np.testing.assert_allclose(found.coef_, whole.coef_, rtol=1e-3, atol=1e-4)
