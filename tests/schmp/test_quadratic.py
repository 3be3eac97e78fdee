"""Small problems of one rank, against scikit-learn and the optimality conditions."""

import numpy as np
import pytest
import sklearn
from scipy.optimize import nnls
from sklearn.linear_model import Lasso, lasso_path

from dask_ma.schmp.l1 import _quadratic
from dask_ma.schmp.l1._gram import ColumnGram, WholeGram
from dask_ma.schmp.l1._quadratic import Quadratic, minimize

GAP = 1e-14


def make_rows(n, p, seed=0, correlation=0.0):
    """Rows whose columns share a part, and targets of some columns."""
    rng = np.random.default_rng([n, p, seed])
    X = rng.normal(size=(n, p)) + correlation * rng.normal(size=(n, 1))
    y = X[:, :4] @ [1.0, -2.0, 3.0, 1.0][: min(4, p)] + rng.normal(size=n)
    return X, y


def quadratic(X, y, l1, positive=False, by_columns=False):
    """Half the mean squared error and the penalties of its coefficients."""
    n = len(y)
    l1 = np.broadcast_to(np.asarray(l1, dtype=float), X.shape[1]).copy()
    gram = WholeGram(X.T @ X / n)
    if by_columns:
        gram = ColumnGram()
        gram.exchange(np.zeros(0, dtype=bool), X.T / np.sqrt(n))
    return Quadratic(gram, X.T @ y / n, l1, float(y @ y / n), positive)


def solve(problem, start=None, gap=GAP):
    zeros = np.zeros(len(problem.linear))
    return minimize(problem, zeros if start is None else start, gap * problem.norm)


def value(problem, coef):
    smooth = coef @ problem.gram.dot(coef) / 2 - problem.linear @ coef
    return smooth + problem.l1 @ np.abs(coef)


def violation(problem, coef):
    """Largest violation of the optimality conditions."""
    slope = problem.gram.dot(coef) - problem.linear
    signs = np.sign(coef)
    at_zero = -slope if problem.positive else np.abs(slope)
    bound = np.maximum(at_zero - problem.l1, 0)
    if problem.positive:
        bound = np.where(problem.l1 == 0, np.abs(slope), bound)
    return np.where(coef == 0, bound, np.abs(slope + problem.l1 * signs)).max()


@pytest.mark.pairs
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("correlation", [0.0, 3.0])
@pytest.mark.parametrize(("n", "p"), [(60, 10), (60, 100), (30, 1)])
@pytest.mark.parametrize("alpha", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("by_columns", [False, True])
def test_optimality(n, p, alpha, correlation, positive, by_columns):
    X, y = make_rows(n, p, correlation=correlation)
    problem = quadratic(X, y, alpha, positive, by_columns)
    coef = solve(problem)
    assert violation(problem, coef) < 1e-10 * np.abs(problem.linear).max()
    if positive:
        assert coef.min() >= 0
    reference = Lasso(
        alpha, fit_intercept=False, positive=positive, tol=1e-12, max_iter=10**6
    ).fit(X, y)
    np.testing.assert_allclose(coef, reference.coef_, atol=2e-5)
    assert (
        value(problem, coef) <= value(problem, reference.coef_) + 1e-14 * problem.norm
    )


def test_no_penalty_is_least_squares():
    X, y = make_rows(50, 8)
    expected = np.linalg.lstsq(X, y)[0]
    np.testing.assert_allclose(solve(quadratic(X, y, 0.0)), expected, rtol=1e-10)


def test_no_penalty_and_fewer_rows_than_columns():
    """The shortest of the solutions."""
    X, y = make_rows(20, 50)
    expected = np.linalg.lstsq(X, y)[0]
    np.testing.assert_allclose(solve(quadratic(X, y, 0.0)), expected, atol=1e-10)


def test_a_vanishing_penalty_of_positive_coefficients_is_nnls():
    X, y = make_rows(60, 20)
    expected = nnls(X, y)[0]
    coef = solve(quadratic(X, y, 1e-9, positive=True))
    np.testing.assert_allclose(coef, expected, atol=1e-7)
    assert (expected == 0).any()


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("n_free", [1, 5])
@pytest.mark.parametrize("p", [10, 80])
def test_free_coefficients(p, n_free, positive):
    """What remains of rows and targets without the free columns is a Lasso."""
    X, y = make_rows(60, p, correlation=1.0)
    l1 = np.full(p, 0.1)
    free = np.arange(p)[-n_free:]
    l1[free] = 0
    problem = quadratic(X, y, l1, positive)
    coef = solve(problem)
    assert violation(problem, coef) < 1e-10
    basis = np.linalg.qr(X[:, free])[0]
    rest = X[:, :-n_free] - basis @ (basis.T @ X[:, :-n_free])
    reference = Lasso(
        0.1, fit_intercept=False, positive=positive, tol=1e-13, max_iter=10**6
    ).fit(rest, y - basis @ (basis.T @ y))
    np.testing.assert_allclose(coef[:-n_free], reference.coef_, atol=1e-6)
    fitted = y - X[:, :-n_free] @ coef[:-n_free]
    np.testing.assert_allclose(
        coef[free], np.linalg.lstsq(X[:, free], fitted)[0], atol=1e-9
    )


def test_free_duplicates():
    X, y = make_rows(60, 10)
    X[:, 9] = X[:, 8]
    l1 = np.r_[np.full(8, 0.1), 0, 0]
    problem = quadratic(X, y, l1)
    coef = solve(problem)
    assert violation(problem, coef) < 1e-10
    assert coef[8] == pytest.approx(coef[9])


@pytest.mark.parametrize("n", [257, 400])
def test_intercepts_of_very_many_classes(n, monkeypatch):
    """A number added to all changes nothing; their singular values take long."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(n), size=600)
    gram = np.diag(p.sum(axis=0)) - p.T @ p
    right = gram @ rng.normal(size=(n, 3))
    shortest = np.linalg.lstsq(gram, right, rcond=1e-12)[0]
    with monkeypatch.context() as patch:
        patch.setattr(np.linalg, "lstsq", None)
        found = _quadratic._solve(gram, right)
        one = _quadratic._solve(gram, right[:, 0])
    np.testing.assert_allclose(found, shortest, atol=1e-9)
    np.testing.assert_allclose(one, shortest[:, 0], atol=1e-9)
    # Others have none of this, whatever else they lack.
    gram[0] = gram[:, 0] = 0
    found = _quadratic._solve(gram, gram @ right)
    np.testing.assert_allclose(gram @ found, gram @ right, atol=1e-9)
    assert not found[0].any()
    gram[1] = gram[:, 1] = 0
    gram[1, 1] = 1
    found = _quadratic._solve(gram, gram @ right)
    np.testing.assert_allclose(gram @ found, gram @ right, atol=1e-9)


def test_weights_of_penalties_are_scales_of_columns():
    X, y = make_rows(60, 30)
    factors = np.geomspace(1e-3, 1e3, 30)
    coef = solve(quadratic(X, y, 0.05 * factors))
    unit = solve(quadratic(X / factors, y, 0.05))
    np.testing.assert_allclose(coef * factors, unit, atol=1e-8)


@pytest.mark.parametrize("scale", [1e-5, 1e5])
@pytest.mark.parametrize("where", ["rows", "targets", "some columns"])
def test_scales(where, scale):
    X, y = make_rows(60, 30)
    alpha = 0.1
    if where == "targets":
        y, alpha = scale * y, scale * alpha
    elif where == "rows":
        X, alpha = scale * X, scale * alpha
    else:
        X[:, ::2] *= scale
        alpha = 1e-4 * np.abs(X.T @ y).max() / 60
    problem = quadratic(X, y, alpha)
    coef = solve(problem)
    assert violation(problem, coef) < 1e-10 * np.abs(problem.linear).max()
    if where != "some columns":
        unit = solve(quadratic(*make_rows(60, 30), 0.1))
        factor = scale if where == "targets" else 1 / scale
        np.testing.assert_allclose(coef, unit * factor, rtol=1e-7, atol=1e-9 * factor)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("alpha", [1e-4, 0.1])
def test_columns_that_depend_on_others(alpha, positive):
    """Duplicates, multiples, sums, and zeros."""
    X, y = make_rows(40, 12, correlation=1.0)
    X = np.hstack([X, X, -X[:, :3], 2 * X[:, 3:6], X[:, :1] + X[:, 1:2], 0 * X[:, :2]])
    problem = quadratic(X, y, alpha, positive)
    coef = solve(problem)
    assert violation(problem, coef) < 1e-10
    assert not coef[-2:].any()
    reference = Lasso(
        alpha, fit_intercept=False, positive=positive, tol=1e-13, max_iter=10**6
    ).fit(X, y)
    assert value(problem, coef) <= value(problem, reference.coef_) + 1e-12
    np.testing.assert_allclose(X @ coef, reference.predict(X), atol=1e-4)


def test_a_strong_penalty_gives_zeros():
    X, y = make_rows(60, 30)
    largest = np.abs(X.T @ y).max() / 60
    assert not solve(quadratic(X, y, 1.0001 * largest)).any()
    assert np.count_nonzero(solve(quadratic(X, y, 0.99 * largest))) == 1


def test_all_zero():
    problem = Quadratic(
        WholeGram(np.zeros((3, 3))), np.zeros(3), np.ones(3), 0.0, False
    )
    np.testing.assert_array_equal(solve(problem), np.zeros(3))


@pytest.mark.parametrize("alpha", [0.01, 0.1])
def test_any_start(alpha):
    X, y = make_rows(60, 100, correlation=1.0)
    problem = quadratic(X, y, alpha)
    expected = solve(problem)
    far = 10 * np.random.default_rng(0).normal(size=100)
    for start in (far, expected):
        before = start.copy()
        np.testing.assert_allclose(solve(problem, start), expected, atol=1e-9)
        np.testing.assert_array_equal(start, before)


@pytest.mark.parametrize("gap", [1e-1, 1e-3, 1e-6])
def test_the_gap_asked_bounds_the_distance(gap):
    X, y = make_rows(60, 100, correlation=1.0)
    problem = quadratic(X, y, 0.02)
    distance = value(problem, solve(problem, gap=gap)) - value(problem, solve(problem))
    assert -1e-14 <= distance <= gap * problem.norm


def test_a_path():
    X, y = make_rows(60, 150, correlation=0.5)
    alphas, expected, _ = lasso_path(X, y, alphas=20, tol=1e-13, max_iter=10**6)
    coef = np.zeros(150)
    for number, alpha in enumerate(alphas):
        coef = solve(quadratic(X, y, alpha), coef)
        np.testing.assert_allclose(coef, expected[:, number], atol=2e-5)


@pytest.mark.parametrize("seed", range(2))
def test_rounding_does_not_lead_newton_steps_upwards(seed, monkeypatch):
    """Along columns that depend on others the curvature is nothing but rounding."""
    from dask_ma.schmp.l1 import _quadratic

    original = _quadratic._newton
    values = []

    def record(even, hessian, slope, coef):
        found = original(even, hessian, slope, coef)
        values.append((even.l1, hessian, slope.copy(), coef.copy(), found[0]))
        return found

    monkeypatch.setattr(_quadratic, "_newton", record)
    X, y = make_rows(60, 100, seed)
    problem = quadratic(X, y, 1e-3)
    solve(problem)
    assert max(len(before) for *_, before, _ in values) > 60
    for l1, hessian, slope, before, after in values:
        step = after - before
        rise = slope @ step + step @ hessian @ step / 2
        rise += l1 * (np.abs(after).sum() - np.abs(before).sum())
        assert rise <= 1e-13 * problem.norm


def test_a_newton_step_comes_before_the_first_sweeps(monkeypatch):
    """Where signs stay from model to model of a path, it is all that is needed."""
    starts = []

    def descent(gram, linear, start, problem, **settings):
        starts.append(start.copy())
        return original(gram, linear, start, problem, **settings)

    original = _quadratic._descent
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 60))
    y = X @ (1 + rng.random(60)) + 0.1 * rng.normal(size=300)
    before = solve(quadratic(X, y, 0.02))
    expected = solve(quadratic(X, y, 0.01))
    assert before.all() and (np.sign(before) == np.sign(expected)).all()
    monkeypatch.setattr(_quadratic, "_descent", descent)
    solve(quadratic(X, y, 0.01), before)
    assert np.abs(starts[0] - expected).max() < 1e-3 * np.abs(before - expected).max()


def test_sweeps_between_newton_steps(monkeypatch):
    """As many as a quarter of the coefficients that are at hand, and never few."""
    sweeps = []

    def descent(gram, linear, start, problem, **settings):
        sweeps.append((len(start), settings["max_iter"]))
        return original(gram, linear, start, problem, **settings)

    original = _quadratic._descent
    monkeypatch.setattr(_quadratic, "_descent", descent)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 400))
    y = X @ rng.normal(size=400) + rng.normal(size=500)
    solve(quadratic(X, y, 1e-3))
    assert {n for n, _ in sweeps if n > 240} and {n for n, _ in sweeps if n < 240}
    assert all(most == max(60, n // 4) for n, most in sweeps)


def test_sweeps_of_very_many_coefficients(monkeypatch):
    """Each takes so long that Newton steps come after fewer, and turns stay few."""
    n, sweeps = 1200, []

    def descent(gram, linear, start, problem, **settings):
        sweeps.append((len(start), settings["max_iter"]))
        return original(gram, linear, start, problem, **settings)

    original = _quadratic._descent
    monkeypatch.setattr(_quadratic, "_descent", descent)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n + 400, n))
    y = X @ rng.normal(size=n) + rng.normal(size=n + 400)
    problem = quadratic(X, y, 1e-3)
    coef = solve(problem, rng.normal(size=n), gap=1e-12)
    assert violation(problem, coef) < 1e-6 * np.abs(problem.linear).max()
    assert sweeps[0][0] == n
    assert all(most <= max(60, 250_000 // m) for m, most in sweeps)
    assert len(sweeps) <= 4


def test_parameters_of_sweeps_are_not_checked(monkeypatch):
    """Each turn has some sweeps, which take less than checks of their parameters."""
    is_unchecked = []
    inner = sklearn.linear_model.enet_path

    def spied(*args, **kwargs):
        is_unchecked.append(sklearn.get_config()["skip_parameter_validation"])
        return inner(*args, **kwargs)

    monkeypatch.setattr(sklearn.linear_model, "enet_path", spied)
    solve(quadratic(*make_rows(60, 10), 0.1))
    assert is_unchecked and all(is_unchecked)
    assert not sklearn.get_config()["skip_parameter_validation"]
