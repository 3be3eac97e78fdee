"""Dual ascent against slow searches, the dual itself, and scikit-learn."""

from typing import NamedTuple

import numpy as np
import pytest
from scipy import optimize, sparse, special
from sklearn.linear_model import LogisticRegression

from dask_ma.kernels import (
    _dual,
    dual_steps,
    entropy_sum,
    log_loss_sum,
    residuals,
    row_products,
)

KAPPA2 = 0.3
CONTAINERS = {
    "dense": np.asarray,
    "csr_matrix": sparse.csr_matrix,
    "csr_array": sparse.csr_array,
}
every_container = pytest.mark.parametrize("container", sorted(CONTAINERS))
every_width = pytest.mark.parametrize("n_columns", [1, 2, 4])
every_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])
either_weight = pytest.mark.parametrize("weighted", [False, True])


class Problem(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray | None
    n_columns: int
    alpha: float

    @property
    def total(self):
        return len(self.y) if self.weight is None else self.weight.sum()

    @property
    def scale(self):
        return 1 / (self.alpha * self.total)


def problem(n_columns=3, n_rows=70, weighted=True, alpha=0.01, dtype=np.float64):
    """Rows whose classes overlap."""
    rng = np.random.default_rng([n_columns, n_rows])
    n_classes = max(2, n_columns)
    y = np.concatenate([np.arange(n_classes), rng.integers(n_classes, size=n_rows)])
    y = y[:n_rows]
    X = rng.normal(size=(n_rows, 6)) + 0.8 * rng.normal(size=(n_classes, 6))[y]
    X *= rng.random(X.shape) < 0.7
    weight = rng.uniform(0.2, 2, n_rows).astype(dtype) if weighted else None
    return Problem(X.astype(dtype), y, weight, n_columns, alpha)


def one_hot(p):
    """The dual point of W = 0."""
    zeros = np.zeros((len(p.y), p.n_columns), dtype=p.X.dtype)
    return -residuals(zeros, p.y)


def random_dual(p, seed=0):
    rng = np.random.default_rng(seed)
    full = rng.dirichlet(np.full(max(2, p.n_columns), 0.3), len(p.y))
    return full[:, -p.n_columns :].astype(p.X.dtype)


def weighted_residuals(p, dual):
    a = residuals(dual, p.y)
    return a if p.weight is None else a * p.weight[:, np.newaxis]


def model(p, dual, centre, kappa2=KAPPA2):
    """Coefficients, transposed, and intercepts of a dual point."""
    a = weighted_residuals(p, dual)
    return -p.scale * (p.X.T @ a), centre - kappa2 * p.scale * a.sum(axis=0)


def dual_value(p, dual, centre, kappa2=KAPPA2):
    """What the steps raise, times the weight of all rows."""
    r = weighted_residuals(p, dual).sum(axis=0)
    coef, _ = model(p, dual, centre, kappa2)
    value = entropy_sum(dual, p.weight) + centre @ r - kappa2 * p.scale / 2 * (r @ r)
    return value - p.total * p.alpha / 2 * np.vdot(coef, coef)


def steps(p, rows, dual, centre, kappa2=KAPPA2, X=None, **options):
    """Change the dual of some rows of the whole; the factor."""
    X = p.X if X is None else X
    coef, intercept = model(p, dual, centre, kappa2)
    part = dual[rows]
    changes = dual_steps(
        np.asarray(X[rows] @ coef) + intercept.astype(p.X.dtype),
        row_products(X[rows], kappa2),
        part,
        p.y[rows],
        None if p.weight is None else p.weight[rows],
        scale=p.scale,
        **options,
    )
    dual[rows] = part
    return changes


def fit(p, n_passes, kappa2=KAPPA2, X=None, batch_size=16, **options):
    """Dual point, coefficients and intercepts after some passes."""
    rng = np.random.default_rng(0)
    dual, centre = one_hot(p), np.zeros(p.n_columns)
    for _ in range(n_passes):
        for rows in np.array_split(rng.permutation(len(p.y)), len(p.y) // batch_size):
            steps(p, rows, dual, centre, kappa2, X, **options)
        centre = model(p, dual, centre, kappa2)[1]
    return dual, model(p, dual, centre, kappa2)[0], centre


# A single row ------------------------------------------------------------------------


def slow_proximal_point(m, q, c):
    """argmax_p entropy(p) + p.m - c/2 ||p - q||^2, by bisection on the multiplier."""

    def point(multiplier):
        # log p + c p = t is Wright's omega function.
        t = m + c * q - multiplier
        return special.wrightomega(t + np.log(c)).real / c

    middle = special.logsumexp(m)
    low, high = middle - c - 1, middle + c + 1
    best = optimize.brentq(lambda x: point(x).sum() - 1, low, high, xtol=1e-13)
    return point(best)


@pytest.mark.parametrize("c", [1e-3, 0.5, 4.0, 100.0])
@pytest.mark.parametrize("spread", [0.1, 1, 20])
def test_moves_come_close_to_the_proximal_point(spread, c, monkeypatch):
    # Never good enough: to the end.
    monkeypatch.setattr(_dual, "_TOLERANCE", -1)
    rng = np.random.default_rng(int(10 * spread))
    m = rng.normal(scale=spread, size=(12, 5))
    q = rng.dirichlet(np.full(5, 0.5), 12)
    moves, _ = _dual._proximal_moves(m, q, np.full((12, 1), c))
    for i in range(12):
        expected = slow_proximal_point(m[i], q[i], c)
        np.testing.assert_allclose(q[i] + moves[i], expected, atol=1e-6)


@pytest.mark.parametrize("start", ["random", "one-hot"])
@pytest.mark.parametrize("exponent", [-3, 0, 3, 6])
def test_gains_are_bounds(exponent, start):
    rng = np.random.default_rng(exponent + 10)
    for scale in [0.01, 1, 100]:
        m = rng.normal(scale=scale, size=(20, 7))
        q = rng.dirichlet(np.full(7, 0.3), 20)
        if start == "one-hot":
            q = np.eye(7)[rng.integers(7, size=20)]
        c = np.full((20, 1), 10.0**exponent)
        moves, gains = _dual._proximal_moves(m, q, c)
        after = q + moves
        assert (after >= 0).all()
        np.testing.assert_allclose(after.sum(axis=1), 1)
        change = special.entr(after) - special.entr(q) + moves * m
        assert (gains <= change.sum(axis=1) + 1e-12 * scale).all()
        squares = (moves**2).sum(axis=1)
        # Shorter moves than that are rounding.
        moved = squares > 1e-25
        assert moved.sum() >= 15
        exact = (1 + c[:, 0]) * squares
        assert (np.abs(gains - exact) <= 0.51 * exact)[moved].all()


def test_a_row_at_its_softmax_stays():
    m = np.random.default_rng(1).normal(size=(4, 3))
    q = special.softmax(m, axis=1)
    moves, gains = _dual._proximal_moves(m, q.copy(), np.ones((4, 1)))
    np.testing.assert_allclose(moves, 0, atol=1e-15)
    assert (gains >= 0).all()


# A batch -----------------------------------------------------------------------------


@pytest.mark.pairs
@pytest.mark.parametrize("options", [{}, {"block_size": 5}, {"n_sweeps": 3}])
@either_weight
@every_width
def test_the_dual_rises_with_every_call(n_columns, weighted, options):
    p = problem(n_columns, weighted=weighted, alpha=0.001)
    rng = np.random.default_rng(3)
    dual, centre = random_dual(p), rng.normal(size=n_columns)
    for _ in range(12):
        before = dual_value(p, dual, centre)
        steps(p, rng.permutation(70)[:23], dual, centre, **options)
        assert dual_value(p, dual, centre) > before


def test_the_dual_rises_where_rows_are_alike():
    p = problem(4, alpha=0.001)
    p = p._replace(X=np.ones_like(p.X), y=np.zeros_like(p.y))
    dual = random_dual(p)
    for _ in range(5):
        before = dual_value(p, dual, np.zeros(4))
        steps(p, np.arange(70), dual, np.zeros(4), block_size=70)
        assert dual_value(p, dual, np.zeros(4)) > before


@either_weight
@every_width
def test_the_factor_is_the_weighted_change(n_columns, weighted):
    p = problem(n_columns, weighted=weighted)
    dual = random_dual(p)
    before = weighted_residuals(p, dual)
    changes = steps(p, np.arange(70), dual, np.zeros(n_columns), n_sweeps=2)
    after = weighted_residuals(p, dual)
    np.testing.assert_allclose(changes, after - before, atol=1e-12)
    assert np.abs(changes).max() > 0.01


def test_later_blocks_see_earlier_ones():
    p = problem(3)
    centre = np.zeros(3)
    at_once, apart = random_dual(p), random_dual(p)
    steps(p, np.arange(40), at_once, centre, block_size=20)
    steps(p, np.arange(20), apart, centre, block_size=20)
    steps(p, np.arange(20, 40), apart, centre, block_size=20)
    np.testing.assert_allclose(at_once, apart, atol=1e-12)


def test_a_second_sweep_is_a_second_call():
    p = problem(3)
    centre = np.zeros(3)
    at_once, twice = random_dual(p), random_dual(p)
    steps(p, np.arange(40), at_once, centre, block_size=15, n_sweeps=2)
    for _ in range(2):
        steps(p, np.arange(40), twice, centre, block_size=15)
    np.testing.assert_allclose(at_once, twice, atol=1e-12)


def added_up(p, parts, dual, n_parallel):
    """The dual point after ranks have worked at the same time."""
    after = dual.copy()
    for rows in parts:
        own = dual.copy()
        steps(p, rows, own, np.zeros(p.n_columns), n_parallel=n_parallel)
        after[rows] = own[rows]
    return after


@every_width
def test_ranks_at_the_same_time_raise_the_dual(n_columns):
    p = problem(n_columns, alpha=0.001)
    dual, parts = random_dual(p), np.array_split(np.arange(70), 7)
    for _ in range(6):
        before = dual_value(p, dual, np.zeros(n_columns))
        dual = added_up(p, parts, dual, n_parallel=7)
        assert dual_value(p, dual, np.zeros(n_columns)) > before


def test_ranks_that_know_nothing_of_each_other_may_lower_the_dual():
    p = problem(2, weighted=False, alpha=0.001)
    p = p._replace(X=np.ones_like(p.X), y=np.arange(70) % 2)
    # All of them see the same imbalance, and each wants to mend it alone.
    dual, parts = np.tile([0.51, 0.49], (70, 1)), np.array_split(np.arange(70), 7)
    values = [dual_value(p, dual, np.zeros(2))]
    for n_parallel in (1, 7):
        after = added_up(p, parts, dual, n_parallel)
        values.append(dual_value(p, after, np.zeros(2)))
    assert values[1] < values[0] < values[2]


def test_one_column_is_two_columns_that_move_apart():
    one = problem(1)
    # ||W||^2 counts each of two opposite columns, hence twice the penalty.
    two = one._replace(n_columns=2, alpha=one.alpha / 2)
    narrow, wide = random_dual(one), np.hstack([1 - random_dual(one), random_dual(one)])
    steps(one, np.arange(70), narrow, np.zeros(1), kappa2=0.2)
    changes = dual_steps(
        # Margins of class 1 are half of those against class 0.
        np.hstack(
            [-0.5, 0.5] * (one.X @ model(one, random_dual(one), 0, 0.2)[0])
        ).reshape(70, 2)
        + [-0.5, 0.5] * model(one, random_dual(one), np.zeros(1), 0.2)[1],
        row_products(one.X, 0.2) / 2,
        wide,
        one.y,
        one.weight,
        scale=two.scale / 2,
    )
    np.testing.assert_allclose(wide[:, 1:], narrow, atol=1e-12)
    np.testing.assert_allclose(changes.sum(axis=1), 0, atol=1e-12)


@every_container
@every_dtype
def test_row_products_by_hand(dtype, container):
    X = problem(dtype=dtype).X[:7]
    products = row_products(CONTAINERS[container](X), 0.25)
    assert type(products) is np.ndarray
    assert products.dtype == dtype
    for i, j in np.ndindex(7, 7):
        assert products[i, j] == pytest.approx(X[i] @ X[j] + 0.25, rel=1e-5)


@every_width
def test_rows_of_weight_zero_change_nothing(n_columns, monkeypatch):
    # Rows of a block stop together: other rows, other numbers of iterations.
    monkeypatch.setattr(_dual, "_TOLERANCE", -1)
    p = problem(n_columns)
    p.weight[10:20] = 0
    dual, other = random_dual(p), random_dual(p)
    changes = steps(p, np.arange(40), dual, np.zeros(n_columns), block_size=40)
    assert not changes[10:20].any()
    kept = np.r_[0:10, 20:40]
    steps(p, kept, other, np.zeros(n_columns), block_size=40)
    np.testing.assert_allclose(dual[kept], other[kept], atol=1e-12)


@every_width
def test_float32_stays_float32(n_columns):
    p = problem(n_columns, dtype=np.float32)
    dual = random_dual(p)
    changes = steps(p, np.arange(70), dual, np.zeros(n_columns, dtype=np.float32))
    assert changes.dtype == dual.dtype == np.float32
    assert (dual >= 0).all()
    assert (dual <= 1).all()


def test_no_rows():
    p = problem(3)
    assert steps(p, np.arange(0), random_dual(p), np.zeros(3)).shape == (0, 3)


@pytest.mark.parametrize("wrong", range(1, 5))
def test_shapes_that_disagree(wrong):
    arrays = [np.zeros((4, 3)), np.eye(4), np.zeros((4, 3)), np.zeros(4), np.ones(4)]
    arrays[wrong] = arrays[wrong][:3]
    with pytest.raises(ValueError, match="must have the shapes"):
        dual_steps(*arrays, scale=1.0)


# The optimum -------------------------------------------------------------------------


def sklearn_optimum(p, fit_intercept):
    reference = LogisticRegression(
        C=p.scale, tol=1e-10, max_iter=10_000, fit_intercept=fit_intercept
    )
    reference.fit(p.X, p.y, p.weight)
    return reference.coef_.T, reference.intercept_ if fit_intercept else 0.0


@pytest.mark.each(2)
@pytest.mark.parametrize("fit_intercept", [False, True])
@either_weight
@pytest.mark.parametrize("n_columns", [1, 4])
@every_container
def test_the_fixed_point_is_that_of_scikit_learn(
    container, n_columns, weighted, fit_intercept
):
    p = problem(n_columns, weighted=weighted)
    kappa2 = KAPPA2 if fit_intercept else 0.0
    _, coef, intercept = fit(p, 100, kappa2, CONTAINERS[container](p.X))
    expected, expected_intercept = sklearn_optimum(p, fit_intercept)
    np.testing.assert_allclose(coef, expected, atol=1e-5)
    np.testing.assert_allclose(
        intercept - intercept.mean() * (n_columns > 1), expected_intercept, atol=1e-4
    )


@pytest.mark.parametrize("n_columns", [1, 4])
def test_the_optimum_stays(n_columns):
    p = problem(n_columns)
    dual, coef, intercept = fit(p, 150)
    margins = p.X @ coef + intercept
    changes = dual_steps(
        margins, row_products(p.X, KAPPA2), dual, p.y, p.weight, scale=p.scale
    )
    np.testing.assert_allclose(changes, 0, atol=1e-7)
    value = log_loss_sum(margins, p.y, p.weight) / p.total
    value += p.alpha / 2 * np.vdot(coef, coef)
    assert value == pytest.approx(dual_value(p, dual, intercept) / p.total, abs=1e-8)


def test_float32_comes_close():
    p = problem(4, dtype=np.float32)
    _, coef, _ = fit(p, 60)
    np.testing.assert_allclose(coef, sklearn_optimum(p, True)[0], atol=2e-3)
