"""The optimum of one problem with a hinge, by coordinates of its dual."""

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC

from dask_ma import ButterflySGDClassifier, MASGDClassifier
from dask_ma.linear.refine import _coordinate_ascent, _near_rows
from dask_ma.linear.refine._centred import CentredRows
from dask_ma.linear.refine._coordinate_ascent import CoordinateAscent
from dask_ma.linear.refine._dual_ascent import DualAscent
from dask_ma.linear.refine._row_sets import best_level

pytestmark = pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning")
ALPHA = 1e-3


def counts(n_rows=800, n_columns=500, n_classes=2, seed=0):
    """Rows of counts whose lengths differ by orders of magnitude, and classes."""
    rng = np.random.default_rng(seed)
    X = sparse.random_array((n_rows, n_columns), density=0.03, rng=rng, format="csr")
    X.data = np.ceil(rng.pareto(1.2, size=X.nnz))
    scores = X.sign() @ rng.normal(size=(n_columns, n_classes))
    scores += 0.5 * rng.normal(size=scores.shape)
    return X, scores.argmax(axis=1)


def problem(weights=None, intercept=None, *, is_centred=True):
    """A problem of two classes, and what solves it."""
    X, y = counts()
    n_rows = len(y)
    weights = np.full(n_rows, 1 / n_rows) if weights is None else weights
    centre = np.zeros(X.shape[1])
    if intercept is None and is_centred:
        centre = np.asarray(X.mean(axis=0))
    rows, targets = CentredRows(X, centre), np.where(y, 1.0, -1.0)
    task = rows, targets, weights, ALPHA
    return task, CoordinateAscent(*task, intercept=intercept, tol=1e-4)


def objective(task, coef, level):
    rows, targets, weights, alpha = task
    losses = np.maximum(1 - targets * (rows.values(coef) + level), 0.0)
    return float(weights @ losses + 0.5 * alpha * coef @ coef)


def peer(task, intercept, start):
    """The lowest objective, and coefficients, as others find them."""
    rows, targets, weights, alpha = task
    if intercept is not None:
        ascent = DualAscent(*task, intercept=intercept, tol=1e-6)
        list(ascent.solve(rows.values(start)))
        assert ascent.best.gap <= 2e-5 * ascent.best.objective
        return ascent.best.objective, ascent.best.coef
    found = SVC(kernel="linear", C=1 / alpha, tol=1e-7)
    found.fit(rows.shifted, targets, weights)
    coef = found.coef_.toarray()[0]
    level = best_level(targets, weights, rows.values(coef))
    return objective(task, coef, level), coef


def uneven(n_rows=800):
    """Weights of rows that differ, of which some are zero."""
    weights = np.random.default_rng(2).exponential(size=n_rows) ** 2
    weights[::5] = 0.0
    return weights / weights.sum()


@pytest.mark.parametrize("intercept", [None, 0.0])
@pytest.mark.parametrize("weights", [None, uneven()], ids=["even", "uneven"])
def test_the_optimum_has_a_bound(weights, intercept):
    task, coordinates = problem(weights, intercept)
    assert list(coordinates.solve(20_000))
    best = coordinates.best
    assert best.gap <= 1e-4 * best.objective
    own = objective(task, best.coef, best.intercept)
    assert own == pytest.approx(best.objective, rel=1e-9)
    lowest, coef = peer(task, intercept, best.coef)
    assert own == pytest.approx(lowest, rel=1e-4)
    assert lowest >= best.bound * (1 - 1e-7)
    assert lowest >= best.base - 0.5 * ALPHA * coef @ coef - 1e-7 * lowest


def test_more_is_done_where_the_first_column_was_too_small(monkeypatch):
    """A small column makes the intercept dear, which the bound tells."""
    monkeypatch.setattr(_coordinate_ascent, "_STAGES", ((1e-3, 0.5), (1.0, 0.05)))
    _, coordinates = problem()
    gaps = []
    for _ in coordinates.solve(20_000):
        if coordinates.best is not None:
            gaps.append(coordinates.best.gap / coordinates.best.objective)
    assert len(gaps) == 1 and gaps[0] > 1e-4
    assert coordinates.best.gap <= 1e-4 * coordinates.best.objective


def test_too_few_epochs():
    """There is a model, whose gap says how far it may be; nobody is warned."""
    _, coordinates = problem()
    assert len(list(coordinates.solve(2))) == 1
    _, exact = problem()
    list(exact.solve(20_000))
    found, lowest = coordinates.best, exact.best.objective
    assert found.objective > 1.001 * lowest
    assert found.bound <= lowest


@pytest.mark.parametrize("near", [0.1, 10.0])
def test_variables_are_between_their_bounds(near):
    """Also those that least squares put elsewhere, as of a model that is no optimum."""
    _, coordinates = problem(uneven())
    coef, level, has_ended = coordinates._descend(3, 1e-3, 1.0)
    assert not has_ended
    u, free = coordinates._variables(coef, level, near)
    assert len(free)
    assert u.min() >= 0
    assert (u <= uneven()).all()


def test_variables_add_up_for_the_intercept():
    """Were that left to later, a row that is very long would be moved too far."""
    task, coordinates = problem(is_centred=False)
    coef, level, _ = coordinates._descend(20_000, 1e-5, 1.0)
    u, _ = coordinates._variables(coef, level, 1e-4)
    # The penalty on the intercept, with a column of ones, is what they miss it by.
    assert abs(ALPHA * level) > 1e-4 * u.sum()
    assert abs(u @ task[1]) < 1e-5 * u.sum()


def test_wide_indices():
    """LIBLINEAR takes none."""
    _, coordinates = problem()
    list(coordinates.solve(20_000))
    task, other = problem()
    X = task[0].shifted
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    list(other.solve(20_000))
    assert other.best.objective == pytest.approx(coordinates.best.objective, rel=1e-9)


def test_what_liblinear_cannot_find():
    """Levels that are given, and rows of one sign."""
    _, coordinates = problem(intercept=-0.3)
    assert not list(coordinates.solve(100))
    _, y = counts()
    weights = np.where(y, 1.0, 0.0)
    _, coordinates = problem(weights / weights.sum())
    assert not list(coordinates.solve(100))
    assert coordinates.best is None


# Fits ---------------------------------------------------------------------------------


@pytest.fixture
def tried(monkeypatch):
    """What coordinates were tried for, where ascent finds nothing."""
    monkeypatch.setattr(_near_rows, "_most_rounds", lambda *args: 100_000)
    monkeypatch.setattr(_near_rows, "_set_cost", lambda *args: 1e18)

    def hopeless(self, u, chosen, level, n_steps):
        u[chosen] = 0.0

    monkeypatch.setattr(DualAscent, "_ascend", hopeless)
    solve, calls = CoordinateAscent.solve, []

    def noting(self, n_epochs):
        calls.append(n_epochs)
        return solve(self, n_epochs)

    monkeypatch.setattr(CoordinateAscent, "solve", noting)
    return calls


def refined(model):
    """Rounds of the refinement."""
    return [record for record in model.history_ if record.get("refined")]


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("estimator", [MASGDClassifier, ButterflySGDClassifier])
def test_fits_end_at_the_optimum_in_one_round(estimator, n_ranks, tried):
    X, y = counts(n_classes=8)
    params = {"loss": "hinge", "alpha": ALPHA, "random_state": 0}
    model = estimator(**params, n_ranks=n_ranks).fit(X, y)
    assert len(tried) == 8
    (last,) = refined(model)
    assert last["excess"] <= model.refine_tol
    # The same, whoever solves which class.
    alone = estimator(**params, n_ranks=1, refine_tol=1e-5).fit(X, y)
    best = alone.history_[-1]["objective"]
    assert last["objective"] == pytest.approx(best, rel=1e-3)


def test_steps_go_on_where_coordinates_find_nothing(tried, monkeypatch):
    """After two problems more that were in vain than not, others are not tried."""
    monkeypatch.setattr(CoordinateAscent, "solve", lambda *args: iter(()))
    go, calls = _near_rows._Solving._go_by_coordinates, []

    def noting(self, solver):
        calls.append(1)
        return go(self, solver)

    monkeypatch.setattr(_near_rows._Solving, "_go_by_coordinates", noting)
    X, y = counts(n_classes=8)
    model = MASGDClassifier(alpha=ALPHA, random_state=0, n_ranks=1, refine_max_iter=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    assert len(calls) == 2
    assert len(refined(model)) > 1


def test_derivatives_are_given_up_after_a_problem_without_a_bound(tried, monkeypatch):
    X, y = counts(n_classes=8)
    solve, calls = DualAscent.solve, []

    def noting(self, values):
        for size in solve(self, values):
            calls.append(self)
            yield size

    monkeypatch.setattr(DualAscent, "solve", noting)
    MASGDClassifier(alpha=ALPHA, random_state=0, n_ranks=1).fit(X, y)
    assert len(tried) == 8
    assert calls and all(each is calls[0] for each in calls)
