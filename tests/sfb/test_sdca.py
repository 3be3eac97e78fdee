"""SFBLogisticRegression by dual ascent: optima, duality gaps, and what it refuses."""

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from dask_ma import SFBLogisticRegression
from dask_ma.sfb import Exchange
from dask_ma.sfb.topology import Topology

ALPHA = 0.02
EXACT = {"alpha": ALPHA, "solver": "sdca", "tol": 3e-5, "random_state": 0}
EXACT |= {"max_iter": 300, "communication": Exchange("factors"), "refine": False}
every_size = pytest.mark.parametrize("n_ranks", [1, 3])


def fit(X, y, weight=None, **params):
    model = clone(SFBLogisticRegression(**EXACT)).set_params(**params)
    return model.fit(X, y, sample_weight=weight)


def check(found, expected, rtol=1e-4):
    """The objective is that of the optimum, and not below it."""
    assert -1e-8 < found - expected <= rtol * expected


@pytest.mark.each
@every_size
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_scikit_learn(labelled, value, best, n_classes, fit_intercept, n_ranks):
    X, y = labelled[n_classes]
    expected = best(X, y, ALPHA, fit_intercept=fit_intercept)
    rows = sparse.csr_array(X) if n_ranks == 3 else X
    model = fit(rows, y, fit_intercept=fit_intercept, n_ranks=n_ranks)
    found = value(model, X, y)
    check(found, expected)
    least = min(record["objective"] for record in model.history_)
    assert least == pytest.approx(found, rel=1e-10)
    assert fit_intercept or not model.intercept_.any()
    n_outputs = 1 if n_classes == 2 else n_classes
    assert model.coef_.shape == (n_outputs, 8)
    assert model.intercept_.shape == (n_outputs,)


@pytest.mark.parametrize(
    "params",
    [
        {"communication__staleness": 2},
        {"communication__staleness": 2, "communication__broadcast": 1},
        {"communication__broadcast": Topology.optimal(3, 1)},
        {"communication": "full_matrix"},
        {"shuffle": False},
        {"batch_size": 4},
    ],
    ids=str,
)
def test_every_way_leads_to_the_optimum(labelled, value, best, params):
    X, y = labelled[3]
    model = fit(X, y, n_ranks=3, **params)
    check(value(model, X, y), best(X, y, ALPHA))
    assert model.communication_ == params.get("communication", "factors")


@pytest.mark.parametrize("n_classes", [2, 3])
def test_weights(labelled, value, best, weights, n_classes):
    X, y = labelled[n_classes]
    check(value(fit(X, y, weights), X, y, weights), best(X, y, ALPHA, weights))
    given = {0: 0.5, 1: 2.0, 2: 1.5}
    given = {label: given[label] for label in range(n_classes)}
    sums = np.bincount(y, weights)
    balanced = sums.sum() / (n_classes * sums)
    for class_weight, factors in [
        (given, np.array(list(given.values()))),
        ("balanced", balanced),
    ]:
        total = weights * factors[y]
        model = fit(X, y, weights, class_weight=class_weight, n_ranks=2)
        check(value(model, X, y, total), best(X, y, ALPHA, total))


def test_float32(labelled, value, best):
    X, y = labelled[3]
    model = fit(X.astype(np.float32), y, n_ranks=2)
    assert model.coef_.dtype == np.float32
    check(value(model, X, y), best(X, y, ALPHA))


@pytest.mark.each
@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("penalty", ["l2", "elasticnet"])
def test_strong_penalties_take_few_passes(labelled, penalty, alpha):
    """All there is to be found are the intercepts, in steps that suit these."""
    X, y = labelled[3]
    model = fit(X, y, penalty=penalty, alpha=alpha, tol=1e-4, max_iter=15)
    assert model.dual_gap_ <= 1e-4 * model.history_[-1]["objective"]


# The duality gap ----------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_the_gap_bounds_the_distance(
    labelled, best, weights, n_classes, fit_intercept, weighted
):
    """In every pass, though not much more."""
    X, y = labelled[n_classes]
    weight = weights if weighted else None
    expected = best(X, y, ALPHA, weight, fit_intercept=fit_intercept)
    for n_ranks in (1, 3):
        model = fit(
            X, y, weight, fit_intercept=fit_intercept, n_ranks=n_ranks, tol=1e-6
        )
        gaps, objectives = (
            np.array([record[name] for record in model.history_])
            for name in ("dual_gap", "objective")
        )
        assert len(gaps) > 2
        distances = objectives - expected
        assert (gaps >= distances - 1e-7).all() and (distances > -1e-7).all()
        # The best model of all passes, and the best bound.
        bound = (objectives - gaps)[-1]
        assert bound == max(objectives - gaps)
        least = min(objectives)
        assert model.dual_gap_ == pytest.approx(least - bound, abs=1e-12)
        assert model.dual_gap_ <= 1e-6 * least
        assert (gaps[:-1] > 1e-6 * least).all()


def test_the_gap_belongs_to_the_model(labelled, value):
    X, y = labelled[10]
    for max_iter in (1, 2, 3):
        model = fit(X, y, max_iter=max_iter, tol=None, n_ranks=2)
        best = min(model.history_, key=lambda record: record["objective"])
        assert best["objective"] == pytest.approx(value(model, X, y), rel=1e-10)
        last = model.history_[-1]
        bound = last["objective"] - last["dual_gap"]
        assert model.dual_gap_ == pytest.approx(best["objective"] - bound, abs=1e-12)
        assert len(model.history_) == model.n_iter_ == max_iter


def test_a_gap_that_is_too_large_warns(labelled, value):
    X, y = labelled[3]
    with pytest.warns(ConvergenceWarning, match="maximum of 2 passes") as caught:
        model = fit(X, y, max_iter=2, tol=1e-6)
    text, objective = str(caught[0].message), value(model, X, y)
    assert f"a duality gap of {model.dual_gap_:.3e}" in text
    assert f"{model.dual_gap_ / objective:.2%} of the objective" in text
    assert "tol=1e-06" in text and "max_iter" in text
    fit(X, y, max_iter=2, tol=None)  # without a warning


def test_early_stopping(labelled):
    X, y = labelled[3]
    model = fit(X, y, early_stopping=True, tol=0.5, n_iter_no_change=2, n_ranks=2)
    assert model.n_iter_ == 3
    assert all(0 <= r["validation_score"] <= 1 for r in model.history_)
    with pytest.warns(ConvergenceWarning, match="rounds was reached"):
        fit(X, y, early_stopping=True, max_iter=1)


def test_early_stopping_keeps_the_objective(labelled, weights):
    """Held-out rows take their weights with them; alpha does not change."""
    X, y = labelled[3]
    heavy = np.where(np.arange(120) % 2, 1.0, 30.0) * weights
    params = {"early_stopping": True, "validation_fraction": 0.6, "tol": None}
    params |= {"max_iter": 1, "eta0": 1e-12, "solver": "sgd", "refine": "auto"}
    record = fit(X, y, heavy, **params).history_[0]
    assert record["objective"] == pytest.approx(np.log(3), rel=1e-9)


# Going on -----------------------------------------------------------------------------


def test_warm_start_goes_on(labelled):
    X, y = labelled[3]
    model = fit(X, y, tol=1e-6, warm_start=True, n_ranks=2)
    n_iter = model.n_iter_
    assert model.set_params(tol=1e-5).fit(X, y).n_iter_ == 1 < n_iter
    cold = fit(X, y, tol=1e-5, n_ranks=2)
    assert cold.n_iter_ > 1


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_resumed_fit_is_an_uninterrupted_one(labelled, tmp_path, n_classes):
    """Dual variables and the intercepts' centre included."""
    X, y = labelled[n_classes]
    params = {"tol": None, "max_iter": 5, "n_ranks": 3}
    whole = fit(X, y, **params)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        fit(X, y, **{**params, "max_iter": 2})
        resumed = fit(X, y, **params)
        again = fit(X, y, **params)
    for model in (resumed, again):
        np.testing.assert_array_equal(model.coef_, whole.coef_)
        np.testing.assert_array_equal(model.intercept_, whole.intercept_)
        assert model.dual_gap_ == whole.dual_gap_
        assert [record["round"] for record in model.history_] == [1, 2, 3, 4, 5]


def test_other_ranks_find_the_dual_variables(labelled, value, best, tmp_path):
    X, y = labelled[3]
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        first = fit(X, y, tol=None, max_iter=3, n_ranks=3)
        with pytest.warns(UserWarning, match="by 3 ranks and goes on with 2"):
            model = fit(X, y, tol=None, max_iter=60, n_ranks=2)
    assert model.history_[:3] == first.history_
    check(value(model, X, y), best(X, y, ALPHA))
    assert model.dual_gap_ >= value(model, X, y) - best(X, y, ALPHA) - 1e-9


def test_other_rows(labelled, tmp_path):
    X, y = labelled[3]
    params = {"tol": None, "n_ranks": 2, "max_iter": 2}
    others = [(X[:160], y[:160]), (X[:, :7], y)]
    plain = [fit(*data, **params) for data in others]
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        fit(X, y, **params)
        for data, expected in zip(others, plain, strict=True):
            np.testing.assert_array_equal(fit(*data, **params).coef_, expected.coef_)


# Refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"penalty": "l1"}, "penalty='l1'"),
        ({"penalty": "trace"}, "penalty='trace'"),
        ({"penalty": None}, "penalty=None"),
        ({"alpha": 0}, "alpha=0"),
        (
            {"communication__relay": False, "communication__broadcast": 1},
            "relay is False",
        ),
        ({"communication__compression": 0.1}, "compression is 0.1"),
        ({"communication__wire_dtype": "float32"}, "wire_dtype is 'float32'"),
    ],
    ids=str,
)
def test_what_dual_ascent_cannot_do(labelled, params, message):
    with pytest.raises(ValueError, match="solver='sdca' needs") as caught:
        fit(*labelled[3], **params)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("eta0", 1.0),
        ("learning_rate", "constant"),
        ("power_t", 0.7),
        ("n_iter_no_change", 9),
    ],
)
def test_what_dual_ascent_does_not_have(labelled, name, setting):
    with pytest.raises(ValueError, match="has no effect with solver='sdca'") as caught:
        fit(*labelled[3], **{name: setting})
    assert name in str(caught.value) and repr(setting) in str(caught.value)


def test_no_partial_fit(labelled):
    model = SFBLogisticRegression(solver="sdca")
    assert not hasattr(model, "partial_fit")
    with pytest.raises(AttributeError, match="partial_fit"):
        model.partial_fit(*labelled[3], classes=[0, 1, 2])
    assert hasattr(SFBLogisticRegression(), "partial_fit")
