"""Units of coefficients, and what steps in those of uncorrelated features bring."""

from types import SimpleNamespace

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits

from dask_ma import SFBLogisticRegression
from dask_ma.kernels import softmax
from dask_ma.sfb.logistic import _refine, _unit_choice, _units
from dask_ma.sfb.logistic._curvature import Curvature
from dask_ma.sfb.logistic._objective import Objective
from dask_ma.sfb.logistic._penalty import Penalty
from dask_ma.sfb.logistic._units import UncorrelatedUnits, Units
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.prox import NoPenalty

RNG = np.random.default_rng(0)
N_FEATURES, N_OUTPUTS, L2 = 6, 3, 0.02
SCALES = RNG.uniform(0.1, 10, N_FEATURES)
ROWS = RNG.normal(size=(40, N_FEATURES)) @ RNG.normal(size=(N_FEATURES, N_FEATURES))


def make_units(kind, *, has_intercept):
    place = SCALES, N_OUTPUTS, L2
    if kind is Units:
        return Units(*place, has_intercept=has_intercept)
    moments = ROWS.T @ ROWS / len(ROWS)
    return UncorrelatedUnits(*place, has_intercept=has_intercept, moments=moments)


@pytest.mark.parametrize("kind", [Units, UncorrelatedUnits])
@pytest.mark.parametrize("has_intercept", [False, True])
def test_there_and_back(kind, has_intercept, check_there_and_back):
    units = make_units(kind, has_intercept=has_intercept)
    check_there_and_back(units, (N_FEATURES, N_OUTPUTS), has_intercept)


@pytest.mark.parametrize("kind", [Units, UncorrelatedUnits])
def test_gradient_by_differences(kind, check_gradient):
    check_gradient(make_units(kind, has_intercept=True), (N_FEATURES, N_OUTPUTS), L2)


def test_second_moments_with_the_penalty_are_the_identity():
    units = make_units(UncorrelatedUnits, has_intercept=False)
    system = 0.2 * ROWS.T @ ROWS / len(ROWS) + L2 * np.eye(N_FEATURES)
    points = RNG.normal(size=(N_FEATURES * N_OUTPUTS, 2))
    first, second = (units.values_of(point)[0] for point in points.T)
    product = (first * (system @ second)).sum()
    assert product == pytest.approx(points[:, 0] @ points[:, 1], rel=1e-2)


@pytest.fixture(scope="module")
def alike():
    """Rows of 150 features that are nearly sums of 30, and 9 classes."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(500, 30)) @ rng.normal(size=(30, 150))
    X += 0.03 * rng.normal(size=X.shape)
    noise = rng.gumbel(size=(500, 9))
    return X, (X @ rng.normal(size=(150, 9)) / 20 + noise).argmax(axis=1)


def fit(X, y, **params):
    given = {"alpha": 1e-5, "random_state": 0, "tol": 1e-4, "max_iter": 150}
    return SFBLogisticRegression(**{**given, **params}).fit(X, y)


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_weak_penalty_of_features_that_are_alike(alike, monkeypatch, kind, n_ranks):
    """The optimum is found, and in fewer passes."""
    X, y = alike
    found = fit(X.astype(kind), y, n_ranks=n_ranks)
    last = found.history_[-1]
    assert found.dual_gap_ <= 1e-4 * last["objective"]
    monkeypatch.setattr(_unit_choice, "_MOST_FEATURES", 0)
    with pytest.warns(UserWarning, match="maximum of"):
        other = fit(X, y, max_iter=found.n_iter_)
    assert other.history_[-1]["objective"] >= last["objective"] * (1 - 1e-4)


def test_where_features_stay_as_they_are(alike, monkeypatch):
    """Sparse rows, an L1 penalty, and few features for a class."""
    X, y = alike
    monkeypatch.setattr(_refine, "UncorrelatedUnits", None)
    monkeypatch.setattr(
        _refine.Refinement, "_is_uncorrelated", property(lambda self: False)
    )
    few = {"max_iter": 6, "solver": "sgd", "refine": True}
    for params in ({"X": sparse.csr_array(X)}, {"penalty": "l1"}):
        with pytest.warns(UserWarning):
            fit(**{"X": X, "y": y, **few, **params})
    monkeypatch.setattr(_unit_choice, "_FEATURES_PER_OUTPUT", 10)
    with pytest.warns(UserWarning):
        fit(X, y, **few)


@pytest.mark.parametrize("rank", [0, 3])
def test_features_that_depend_on_each_other(rank):
    """Rounding may leave their second moments with directions below 0."""
    rows = RNG.normal(size=(40, rank)) @ RNG.normal(size=(rank, N_FEATURES))
    moments = rows.T @ rows / 40 - 1e-5 * np.eye(N_FEATURES)
    if not rank:
        moments[:] = 0
    place = np.ones(N_FEATURES), N_OUTPUTS, 0.0
    units = UncorrelatedUnits(*place, has_intercept=False, moments=moments)
    values = RNG.normal(size=(N_FEATURES, N_OUTPUTS))
    there = units.point_of(values, None)
    np.testing.assert_allclose(units.values_of(there)[0], values, atol=1e-6)


@pytest.mark.parametrize("curvature", [1e-5, 0.0])
def test_units_follow_the_second_derivatives(curvature):
    """Where these are a small share of the second moments, and where they vanish."""
    units = make_units(UncorrelatedUnits, has_intercept=True)
    before, scale = units.state_dict(), units.scales[-1]
    assert not units.meet(0.1)
    assert units.state_dict() == before
    assert units.meet(curvature)
    assert not units.meet(2 * curvature)
    share = max(curvature, 1e-12)
    system = share * ROWS.T @ ROWS / len(ROWS) + L2 * np.eye(N_FEATURES)
    points = RNG.normal(size=(len(units.scales), 2))
    first, second = (units.values_of(point)[0] for point in points.T)
    n_values = first.size
    expected = points[:n_values, 0] @ points[:n_values, 1]
    assert (first * (system @ second)).sum() == pytest.approx(expected, rel=1e-2)
    np.testing.assert_allclose(units.scales[-1] / scale, np.sqrt(share / 0.2))
    other = make_units(UncorrelatedUnits, has_intercept=True)
    other.load_state_dict(units.state_dict())
    for found, same in zip(
        units.values_of(points[:, 0]), other.values_of(points[:, 0]), strict=True
    ):
        np.testing.assert_array_equal(found, same)


@pytest.fixture(scope="module")
def images():
    """Raw pixels, and more of their kind: classes can be told apart."""
    X, y = load_digits(return_X_y=True)
    return np.hstack([X, X**2 / 16])[:200] * 16, y[:200]


@pytest.fixture
def products(monkeypatch):
    """Ranks that have worked out products with second derivatives."""
    ranks, original = [], Curvature.product

    def product(self, *direction):
        ranks.append(self._group.rank)
        return original(self, *direction)

    monkeypatch.setattr(Curvature, "product", product)
    return ranks


def test_classes_that_can_be_told_apart(images, monkeypatch, products):
    """A tenth of the products, as the penalty is no small part of a wrong sum."""
    params = {"random_state": 0, "n_ranks": 2}
    found = SFBLogisticRegression(**params).fit(*images)
    assert found.dual_gap_ <= 1e-3 * found.history_[-1]["objective"]
    n_now = len(products)
    monkeypatch.setattr(_units, "_OTHER", np.inf)
    monkeypatch.setattr(_units, "_PRODUCT", 0)
    SFBLogisticRegression(**params).fit(*images)
    assert 0 < n_now < (len(products) - n_now) / 5


def far_rows(seed):
    """Few rows that lead passes to large weights, and 9 classes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(100, 12)) @ rng.normal(size=(12, 140))
    X += 0.3 * rng.normal(size=X.shape)
    values = X @ rng.normal(size=(140, 9)) / 8
    return 100 * (X + 3), (values + rng.gumbel(size=(100, 9))).argmax(axis=1)


def test_a_resumed_fit_has_the_same_units(interrupted, tmp_path, monkeypatch):
    """And does not go on from zero once more, which has been tried."""
    monkeypatch.setattr(_refine, "_SHORT", 1.0)

    def fit():
        return SFBLogisticRegression(random_state=0, n_ranks=2).fit(*far_rows(0))

    whole = fit()
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        for n_left in (15, 2):
            with interrupted(whole.n_iter_ - n_left):
                fit()
            monkeypatch.setattr(_refine.Refinement, "_begin_anew", None)
        resumed = fit()
    assert resumed.n_iter_ == whole.n_iter_
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


def steps(seed, n_ranks=1):
    """Passes and steps of a fit, which ends at the optimum."""
    model = SFBLogisticRegression(random_state=0, n_ranks=n_ranks).fit(*far_rows(seed))
    last = model.history_[-1]
    assert last["dual_gap"] <= 1e-3 * last["objective"]
    return model.n_iter_


def test_large_weights_are_left_by_a_step_from_zero(monkeypatch):
    n_steps = steps(2)
    monkeypatch.setattr(_refine.Refinement, "_begin_anew", lambda _: None)
    assert n_steps < 0.6 * steps(2)


def test_several_ranks_leave_them_together(monkeypatch):
    monkeypatch.setattr(_refine, "_SHORT", 2.0)
    steps(2, n_ranks=3)


def test_steps_cut_by_too_much_are_made_longer(monkeypatch):
    monkeypatch.setattr(_refine.Refinement, "_begin_anew", lambda _: None)
    n_steps = steps(0)
    monkeypatch.setattr(_refine, "_MOST_LONGER", 0)
    assert n_steps < 0.8 * steps(0)


def test_rows_in_doubt_say_more_of_second_derivatives(monkeypatch):
    n_steps = steps(0)
    monkeypatch.setattr(UncorrelatedUnits, "note", lambda *_: None)
    assert n_steps < 0.8 * steps(0)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_a_place_that_is_lower_stays(monkeypatch, fit_intercept):
    """Bit for bit, on all ranks, as if nothing had been tried."""
    params = {"random_state": 0, "n_ranks": 2, "fit_intercept": fit_intercept}
    model = SFBLogisticRegression(warm_start=True, **params).fit(*far_rows(0))
    places, original = [], _refine.Refinement._begin_anew

    def place(refinement):
        matrix, now = refinement._matrix, refinement.now
        intercept = 0 if matrix.intercept is None else matrix.intercept.copy()
        return matrix.whole().copy(), intercept, now.objective, now.bound

    def start(refinement):
        before = place(refinement)
        original(refinement)
        places.append((before, place(refinement)))

    monkeypatch.setattr(_refine, "_SHORT", 2.0)
    monkeypatch.setattr(_refine.Refinement, "_begin_anew", start)
    model.set_params(tol=1e-5, max_iter=40, solver="sgd").fit(*far_rows(0))
    assert len(places) == 2
    for before, after in places:
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_second_moments_of_rows_in_doubt(n_outputs, rows, make_shards, run_ranks):
    """Weighted by mean second derivatives of their losses, and as they are."""
    weight = rows.weight / rows.weight.mean()
    shards = make_shards(2, rows.X, rows.y, weight)
    W = np.random.default_rng(0).normal(size=(n_outputs, rows.X.shape[1]))

    def program(group):
        shard = shards[group.rank]
        problem = SimpleNamespace(
            shard=shard, n_problems=n_outputs, total_rows=len(rows.y)
        )
        totals = SimpleNamespace(centred=lambda X: X)
        place = {"fit_intercept": False, "totals": totals, "group": group}
        objective = Objective(problem, Penalty(0.0, 0.1), **place)
        matrix = ParameterMatrix(W.copy(), None, NoPenalty())
        return objective.second_moments(), objective.second_moments(matrix)

    found, others = run_ranks(program, 2)
    assert others == (None, None)
    p = softmax(rows.X @ W.T)
    doubts = (p * (1 - p)).mean(axis=1)
    for moments, factor in zip(found, (1, doubts), strict=True):
        expected = (rows.X.T * (weight * factor)) @ rows.X / len(rows.y)
        np.testing.assert_allclose(moments, expected, atol=1e-12)


def test_units_take_second_moments_of_rows_in_doubt():
    """Until second derivatives are a small part of what they were."""
    units = make_units(UncorrelatedUnits, has_intercept=False)
    few = ROWS[:12].T @ ROWS[:12] / len(ROWS)
    assert units.meet(0.1, 0.1 * few)
    points = RNG.normal(size=(len(units.scales), 2))
    for curvature in (0.1, 0.01):
        units.meet(curvature)
        other = make_units(UncorrelatedUnits, has_intercept=False)
        other.load_state_dict(units.state_dict())
        system = curvature * few + L2 * np.eye(N_FEATURES)
        for one in (units, other):
            first, second = (one.values_of(point)[0] for point in points.T)
            product = (first * (system @ second)).sum()
            assert product == pytest.approx(points[:, 0] @ points[:, 1], rel=1e-2)


def test_second_moments_are_found_anew_after_as_much_work():
    units = make_units(UncorrelatedUnits, has_intercept=True)
    due = []
    for n_products in (0, 1, 100):
        units.note(n_products)
        due.append(units.is_due)
    assert due == [False, True, True]  # 6 features, and 3 outputs
    other = make_units(UncorrelatedUnits, has_intercept=True)
    other.load_state_dict(units.state_dict())
    assert other.is_due


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("class_weight", [None, "balanced"])
@pytest.mark.parametrize("value", [0.1, 7.3])
def test_a_column_that_is_the_same_in_all_rows(
    images, class_weight, kind, n_ranks, value
):
    """What rounding leaves of it, less its mean, is no unit."""
    X, y = images
    X = (X / 16).astype(kind)
    params = {"class_weight": class_weight, "n_ranks": n_ranks, "random_state": 0}
    expected = SFBLogisticRegression(**params).fit(X, y).history_[-1]["objective"]
    rows = np.hstack([X, np.full((len(X), 1), value, dtype=kind)])
    found = SFBLogisticRegression(**params).fit(rows, y)
    assert found.history_[-1]["objective"] == pytest.approx(expected, rel=2e-3)
