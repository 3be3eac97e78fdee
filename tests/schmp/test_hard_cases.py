"""Columns, rows and targets that make other solvers stumble."""

import warnings
from itertools import islice, pairwise

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_diabetes, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso, LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import scale

from dask_ma import SchMPLasso, SchMPLassoCV, SchMPLogisticRegression
from dask_ma.schmp.l1._solver import DualityGap
from dask_ma.schmp.l1._standstill import Standstill

LAYOUTS = [(1, "rows"), (3, "rows"), (4, "columns")]
every_layout = pytest.mark.parametrize(("n_ranks", "layout"), LAYOUTS)
BOTH = [SchMPLasso, SchMPLogisticRegression]
every_model = pytest.mark.parametrize("cls", BOTH)


def target_of(cls, data):
    return data["number" if cls is SchMPLasso else "two"]


def reference(X, y, alpha, **params):
    return Lasso(alpha, tol=1e-14, max_iter=10**6, **params).fit(X, y)


def largest_alpha(cls, X, y):
    """The smallest weight of the penalty that gives zeros."""
    return np.abs((X - X.mean(axis=0)).T @ (y - y.mean())).max() / len(y)


@pytest.mark.each
@every_layout
@every_model
def test_columns_of_no_use(wide, cls, n_ranks, layout):
    """Constants and zeros get no coefficient, and change nothing else."""
    X, y = wide["X"], target_of(cls, wide)
    params = {"alpha": 0.02, "tol": 1e-10, "n_ranks": n_ranks, "layout": layout}
    expected = cls(**params).fit(X, y)
    more = np.hstack([np.zeros((60, 2)), X, np.full((60, 1), 7.0), np.ones((60, 1))])
    for rows in (more, sparse.csr_array(more)):
        model = cls(**params).fit(rows, y)
        coef = np.atleast_2d(model.coef_)[0]
        np.testing.assert_array_equal(coef[[0, 1, 92, 93]], 0)
        np.testing.assert_allclose(coef[2:-2], expected.coef_.ravel(), atol=1e-5)


@pytest.mark.each
@every_layout
@every_model
def test_duplicates(wide, cls, n_ranks, layout):
    """The sum of their coefficients is that of the column alone."""
    X, y = wide["X"][:, :20], target_of(cls, wide)
    params = {"alpha": 0.02, "tol": 1e-11, "n_ranks": n_ranks, "layout": layout}
    expected = cls(**params).fit(X, y)
    model = cls(**params).fit(np.hstack([X, X, X[:, :3]]), y)
    coef = np.atleast_2d(model.coef_)[0]
    total = coef[:20] + coef[20:40]
    total[:3] += coef[40:]
    np.testing.assert_allclose(total, expected.coef_.ravel(), atol=1e-4)
    assert model.dual_gap_ <= 1e-11 * expected.history_[0]["objective"] * 100
    assert model.n_iter_ < 20


@every_layout
def test_columns_that_are_almost_one(n_ranks, layout):
    rng = np.random.default_rng(0)
    common = rng.normal(size=(50, 1))
    X = common + 1e-4 * rng.normal(size=(50, 80))
    y = common[:, 0] + 0.1 * rng.normal(size=50)
    model = SchMPLasso(1e-3, tol=1e-8, n_ranks=n_ranks, layout=layout).fit(X, y)
    slopes = (X - X.mean(axis=0)).T @ (y - model.predict(X)) / 50
    assert np.abs(slopes).max() < 1.01e-3
    assert slopes[model.coef_ > 0].min() > 0.99e-3
    assert model.dual_gap_ <= 1e-8 * y.var() / 2
    assert model.n_iter_ < 30


@every_layout
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_scales_and_offsets(n_ranks, layout, offset):
    """Columns from 1e-6 to 1e6, all of them far from 0."""
    rng = np.random.default_rng(1)
    base = rng.normal(size=(80, 13))
    scales = np.geomspace(1e-6, 1e6, 13)
    if offset:
        scales = np.geomspace(1e-1, 1e6, 13)
    X = base * scales + offset
    y = base[:, [0, 6, 12]] @ [1.0, -1, 2] + 0.1 * rng.normal(size=80)
    model = SchMPLasso(
        1e-3, tol=1e-9, n_ranks=n_ranks, layout=layout, feature_weights=scales
    ).fit(X, y)
    expected = reference(base, y, 1e-3)
    np.testing.assert_allclose(
        model.coef_ * scales, expected.coef_, atol=1e-4, rtol=1e-4
    )
    np.testing.assert_allclose(model.predict(X), expected.predict(base), atol=1e-3)


@every_model
def test_scales_of_columns_that_share_a_penalty(cls):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 13)) * np.geomspace(1e-6, 1e6, 13)
    y = X[:, 6] + X[:, 5] + 0.1 * rng.normal(size=80)
    y = y if cls is SchMPLasso else (y > 0).astype(int)
    model = cls(1e-3, tol=1e-6, n_ranks=2).fit(X, y)
    null = y.var() / 2 if cls is SchMPLasso else np.log(2)
    assert model.dual_gap_ <= 1e-6 * null * 1.01
    assert model.score(X, y) > 0.9


@pytest.mark.each
@pytest.mark.filterwarnings("ignore:all coefficients are zero")
@every_layout
@every_model
@pytest.mark.parametrize("factor", [1.0 + 1e-9, 10.0, 1e6])
def test_a_strong_penalty(wide, cls, n_ranks, layout, factor):
    X, y = wide["X"], target_of(cls, wide)
    alpha = factor * largest_alpha(cls, X, y)
    model = cls(alpha, n_ranks=n_ranks, layout=layout, tol=1e-6).fit(X, y)
    assert not model.coef_.any()
    assert model.n_iter_ == 1
    assert model.dual_gap_ < 1e-12
    mean = y.mean()
    intercept = mean if cls is SchMPLasso else np.log(mean / (1 - mean))
    assert np.ravel(model.intercept_)[0] == pytest.approx(intercept)
    weaker = cls(0.99 * alpha / factor, n_ranks=n_ranks, layout=layout, tol=1e-6)
    assert np.count_nonzero(weaker.fit(X, y).coef_) >= 1


@every_layout
def test_no_penalty(n_ranks, layout):
    """More columns than rows fit all rows; fewer are least squares."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 50)), rng.normal(size=30)
    params = {"tol": 1e-9, "n_ranks": n_ranks, "layout": layout}
    np.testing.assert_allclose(SchMPLasso(0, **params).fit(X, y).predict(X), y)
    few = X[:, :8]
    coef = np.linalg.lstsq(np.c_[few, np.ones(30)], y)[0]
    model = SchMPLasso(0, **params).fit(few, y)
    np.testing.assert_allclose(model.coef_, coef[:-1], atol=1e-10)
    assert model.dual_gap_ <= 1e-9 * y.var() / 2


@every_layout
def test_no_penalty_of_classes(binary, n_ranks, layout):
    X, y = binary
    y = np.where(np.arange(120) % 5 == 0, 1 - y, y)  # not separable
    model = SchMPLogisticRegression(0, tol=1e-9, n_ranks=n_ranks, layout=layout)
    expected = LogisticRegression(C=1e9, tol=1e-10, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(model.fit(X, y).coef_, expected.coef_, atol=1e-3)


@every_layout
@pytest.mark.parametrize("positive", [False, True])
def test_one_column(n_ranks, layout, positive):
    X = np.arange(10.0)[:, np.newaxis]
    params = {"tol": 1e-12, "n_ranks": n_ranks, "layout": layout}
    for sign in (1, -1):
        y = sign * X[:, 0] + 3
        model = SchMPLasso(0.5, positive=positive, **params).fit(X, y)
        expected = 0.0 if positive and sign < 0 else sign * (1 - 0.5 / X.var())
        assert model.coef_ == pytest.approx(np.array([expected]))
        assert model.predict([[4.5]]) == pytest.approx(y.mean())


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_one_row(layout, fit_intercept):
    X, y = np.array([[1.0, 2.0]]), np.array([3.0])
    model = SchMPLasso(0.5, fit_intercept=fit_intercept, layout=layout, tol=1e-12)
    model.set_params(n_ranks=3).fit(X, y)
    if fit_intercept:
        assert not model.coef_.any() and model.intercept_ == 3
    else:
        # Of the larger column alone: (3 * 2 - 0.5) / 4.
        np.testing.assert_allclose(model.coef_, [0, 5.5 / 4])
        assert model.intercept_ == 0


@pytest.mark.each
@every_layout
@pytest.mark.parametrize("value", [0.0, 3.0, 0.1, -1e8])
def test_a_constant_target(wide, n_ranks, layout, value):
    X = wide["X"]
    model = SchMPLasso(0.1, n_ranks=n_ranks, layout=layout)
    model.fit(X, np.full(60, value))
    assert not model.coef_.any()
    # A hair beside it there is an R2 of 0.
    assert model.intercept_ == value
    assert model.score(X, np.full(60, value)) == 1
    assert 0 <= model.dual_gap_ < 1e-12 * max(1, value**2)
    assert model.n_iter_ == 1
    chosen = SchMPLassoCV(cv=3, alphas=3, n_ranks=n_ranks, layout=layout)
    chosen.fit(X, np.full(60, value))
    np.testing.assert_allclose(chosen.predict(X), value, rtol=1e-6, atol=1e-12)


@pytest.mark.each
@every_layout
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_separable_classes(n_ranks, layout, n_classes, fit_intercept):
    rng = np.random.default_rng(0)
    y = np.arange(60) % n_classes
    X = 0.3 * rng.normal(size=(60, 20)) + 4 * np.eye(n_classes, 20)[y]
    model = SchMPLogisticRegression(
        1e-6,
        tol=1e-5,
        fit_intercept=fit_intercept,
        n_ranks=n_ranks,
        layout=layout,
    ).fit(X, y)
    assert model.score(X, y) == 1
    assert model.dual_gap_ <= 1e-5 * np.log(n_classes) * 1.001
    assert model.history_[-1]["objective"] < 1e-4
    assert np.isfinite(model.coef_).all() and model.n_iter_ < 100


@every_layout
def test_one_class(n_ranks, layout):
    X, y = np.eye(6), np.ones(6, dtype=int)
    model = SchMPLogisticRegression(n_ranks=n_ranks, layout=layout)
    with pytest.raises(ValueError, match="greater than one; got 1 class"):
        model.fit(X, y)
    with pytest.raises(ValueError, match="greater than one; got 1 class"):
        model.fit(X, np.arange(6) % 2, sample_weight=np.arange(6) % 2)


@pytest.mark.each
@every_model
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(89), r"feature_weights must have shape \(90,\).*got \(89,\)"),
        (np.ones(91), r"feature_weights must have shape \(90,\).*got \(91,\)"),
        (np.ones((1, 90)), r"feature_weights must be a vector.*\(1, 90\)"),
        (-np.ones(90), "feature_weights must be .* none of them negative"),
        (np.full(90, np.nan), "feature_weights must be a vector of finite numbers"),
        (np.full(90, np.inf), "feature_weights must be a vector of finite numbers"),
        (3.0, "The 'feature_weights' parameter"),
    ],
    ids=["short", "long", "matrix", "negative", "nan", "inf", "number"],
)
def test_wrong_weights_of_features(wide, cls, weights, message, n_ranks):
    model = cls(feature_weights=weights, n_ranks=n_ranks)
    with pytest.raises(ValueError, match=message):
        model.fit(wide["X"], target_of(cls, wide))
    assert not hasattr(model, "coef_")


@every_model
@pytest.mark.parametrize("bad", ["nan in X", "inf in X", "nan in y", "weight", "all 0"])
def test_wrong_data(wide, cls, bad):
    X, y = wide["X"].copy(), target_of(cls, wide).astype(float)
    weight = np.ones(60)
    if bad.endswith("X"):
        X[50, 3] = np.nan if "nan" in bad else np.inf
    elif bad == "nan in y":
        y[50] = np.nan
    else:
        weight[50 if bad == "weight" else slice(None)] = -1 if bad == "weight" else 0
    model = cls(n_ranks=2)
    with pytest.raises(ValueError, match="NaN|infinity|weight"):
        model.fit(X, y, sample_weight=weight)
    assert not hasattr(model, "coef_")


@every_model
def test_a_failed_fit_leaves_the_model(wide, cls):
    X, y = wide["X"], target_of(cls, wide)
    model = cls(0.05).fit(X, y)
    before = model.coef_.copy()
    with pytest.raises(ValueError, match="feature_weights"):
        model.set_params(feature_weights=np.ones(2)).fit(X, y)
    np.testing.assert_array_equal(model.coef_, before)


@every_model
def test_fewer_rows_than_ranks(cls):
    X, y = np.eye(3) + 1, np.arange(3) % 2
    for layout in ("rows", "columns"):
        model = cls(0.01, n_ranks=8, layout=layout).fit(X, y)
        expected = cls(0.01).fit(X, y)
        np.testing.assert_allclose(model.predict(X), expected.predict(X), atol=1e-2)


@every_model
def test_stored_zeros_and_repeated_elements(wide, cls):
    """A CSR may store zeros, and an element in parts."""
    X, y = wide["X"], target_of(cls, wide)
    full = sparse.csr_matrix(np.ones_like(X))
    full.data = X.ravel().copy()
    rows, columns = X.nonzero()
    halves = sparse.csr_matrix(
        (
            np.tile(X[rows, columns] / 2, 2),
            (np.tile(rows, 2), np.tile(columns, 2)),
        ),
        shape=X.shape,
    )
    expected = cls(0.02, tol=1e-10).fit(X, y)
    for made in (full, halves):
        for layout in ("rows", "columns"):
            model = cls(0.02, tol=1e-10, n_ranks=2, layout=layout).fit(made, y)
            np.testing.assert_allclose(model.coef_, expected.coef_, atol=1e-5)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_columns_of_large_values_that_separate_the_classes(n_classes):
    """The optimum is far below `tol` times the objective without coefficients."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % n_classes
    X = rng.normal(size=(60, 1500)) + 0.5 * (y[:, np.newaxis] == np.arange(1500) % 9)
    X = 1e3 * X * np.exp(rng.normal(size=1500))
    model = SchMPLogisticRegression(1e-3).fit(X, y)
    best = SchMPLogisticRegression(1e-3, tol=1e-9).fit(X, y)
    found, least = (m.history_[-1]["objective"] for m in (model, best))
    assert least < 1e-4 * np.log(n_classes)
    assert found <= 1.01 * least
    assert np.count_nonzero(model.coef_) <= 1.1 * np.count_nonzero(best.coef_)
    assert best.n_iter_ <= 16
    # There are 60 rows, and not as many coefficients come into a Hessian as violate
    # optimality.
    assert max(record["working_set"] for record in best.history_) <= 800


@pytest.mark.parametrize("schedule", ["working_set", "dynamic"])
@pytest.mark.parametrize("cls", [SchMPLasso, SchMPLogisticRegression])
def test_the_gap_is_a_part_of_the_objective_reached(cls, schedule):
    """Of 1 % by default, where little is left of that without coefficients."""
    rng = np.random.default_rng(1)
    X = 100 * rng.normal(size=(80, 12))
    y = X[:, 0] - X[:, 1] + 0.5 * X[:, 2]
    y = y if cls is SchMPLasso else (y > 0).astype(int)
    model = cls(alpha=1e-4, schedule=schedule, random_state=0).fit(X, y)
    last = model.history_[-1]
    assert model.dual_gap_ <= 0.01 * last["objective"]


def test_a_model_of_the_loss_that_ends_very_far_off():
    """Some steps are of use only in their first millionth, and no round is lost."""
    X, y = load_digits(return_X_y=True)
    rows = next(islice(StratifiedKFold(3).split(X, y), 1, None))[0]
    model = SchMPLogisticRegression(1e-3, max_iter=30, n_ranks=2)
    model.fit(scale(X[rows]), y[rows], sample_weight=y[rows] + 1)
    last = model.history_[-1]
    assert model.dual_gap_ <= 0.01 * last["objective"]
    assert last["round"] <= 15


def test_a_negligible_penalty(wide):
    """Far below what rounding allows: no endless rounds, and a gap that says so."""
    X, y = wide["X"], wide["number"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = SchMPLasso(1e-9, tol=1e-4, max_iter=50, n_ranks=2).fit(X, y)
    np.testing.assert_allclose(model.predict(X), y, atol=0.1 * y.std())
    assert np.isfinite(model.dual_gap_)


@pytest.mark.parametrize("schedule", ["working_set", "random"])
def test_advice_depends_on_the_schedule(schedule, monkeypatch):
    """Only updates at the same time can outdo each other."""
    monkeypatch.setattr("dask_ma.supervised._problem.check_size", lambda *args: None)
    X = np.random.default_rng(0).normal(size=(30, 4))
    words = "choose the schedule" if schedule == "random" else "scale the features, and"
    model = SchMPLasso(alpha=0.01, schedule=schedule)
    with np.errstate(all="ignore"), pytest.raises(ValueError, match=words) as error:
        model.fit(X, X[:, 0] * 1e200)
    assert ("working_set" in str(error.value)) == (schedule == "random")


@pytest.mark.parametrize("n_ranks", [1, 13])  # some of the latter have no rows
def test_rows_far_on_the_wrong_side(n_ranks):
    """Their second derivatives are nearly 0, and the first step ends beyond exp(80)."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(12, 5))
    y = X[:, 0] > 0
    params = {"tol": 1e-6, "max_iter": 30, "n_ranks": n_ranks}
    model = SchMPLogisticRegression(1e-3, warm_start=True, **params).fit(X, y)
    model.coef_ *= 100 / np.abs(model.decision_function(X)).max()
    model.fit(X, ~y)
    assert model.dual_gap_ <= 1e-6 * np.log(2)
    assert model.score(X, ~y) == 1


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_rounds_that_change_nothing_end(n_ranks):
    """Rounding keeps the gap open where a feature is a million deviations from zero."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5))
    y = X @ [2.0, 1, 0, 0, -1] + rng.normal(size=300) > 0
    X[:, 0] = 1.7e9 + 1e3 * X[:, 0]  # seconds of an hour
    model = SchMPLogisticRegression(n_ranks=n_ranks)
    with pytest.warns(ConvergenceWarning, match="change nothing any more after"):
        model.fit(X, y)
    assert model.n_iter_ < 100
    assert model.history_[-11]["objective"] == model.history_[-1]["objective"]
    assert model.score(X, y) > 0.8


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("spread", [1e9, 6e10, 1e15])
def test_rounds_that_change_last_bits_alone_end(spread, n_ranks):
    """Of nanoseconds since 1970, which leave another rounding in each round."""
    X, y = load_diabetes(return_X_y=True)
    times = 1.7e18 + spread * np.random.default_rng(0).random(len(X))
    model = SchMPLasso(n_ranks=n_ranks)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(np.column_stack([X, times]), y)
    # Where times differ by most, rounding may leave a gap that is small enough: some
    # processors add up in another order than others.
    assert caught or spread == 1e15
    for warning in caught:
        assert "change nothing any more after" in str(warning.message)
    assert model.n_iter_ < 100
    assert model.score(np.column_stack([X, times]), y) > 0.35


def test_a_standstill_is_one_of_many_rounds_without_progress():
    def certificates(objectives, gaps):
        pairs = np.broadcast(objectives, gaps)
        return [DualityGap(objective, gap, 1.0, gap) for objective, gap in pairs]

    def after(states, found, may_idle=True):
        standstill = Standstill(may_idle=may_idle)
        if states:
            standstill.load_state_dict(states.state_dict())
        for before, now in pairwise(found):
            standstill.update(before, now, 1e-3)
        return standstill

    some = np.arange(31)
    # Each round brings a part of the gap, or of the objective.
    moving = after(None, certificates(2.0, 0.97**some))
    assert not moving.is_reached
    moving = after(moving, certificates(2.0 - 1e-6 * some, 0.4))
    assert not moving.is_reached
    flicker = certificates(1.0 + 1e-15 * (some[:25] % 3), 0.4)  # last bits
    assert after(moving, flicker).is_reached
    assert not after(moving, flicker, may_idle=False).is_reached
    assert after(moving, certificates(1.0, np.full(11, 0.4)), may_idle=False).is_reached
