"""Steps of mini-batch SGD against slow loops, finite differences and scikit-learn."""

import numpy as np
import pytest
from scipy import optimize, sparse

from dask_ma.kernels import (
    _minibatch,
    batch_slopes,
    descend,
    feature_moments,
    feature_sums,
    loss_values,
    preconditioner_diagonal,
    project,
    shrink,
)

SLOPES = {
    "hinge": lambda y, p: -y if y * p <= 1 else 0.0,
    "log_loss": lambda y, p: -y / (1 + np.exp(y * p)),
    "squared_hinge": lambda y, p: -2 * y * max(0.0, 1 - y * p),
    "modified_huber": lambda y, p: -2 * y * min(2.0, max(0.0, 1 - y * p)),
    "squared_error": lambda y, p: p - y,
    "huber": lambda y, p: min(0.3, max(-0.3, p - y)),
    "epsilon_insensitive": lambda y, p: float(np.sign(p - y)) * (abs(p - y) > 0.3),
}
LOSSES = sorted(SLOPES)
CONTAINERS = {
    "dense": np.asarray,
    "csr_matrix": sparse.csr_matrix,
    "csr_array": sparse.csr_array,
}
every_container = pytest.mark.parametrize("container", sorted(CONTAINERS))
every_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def batch(n_rows=13, n_features=9, n_problems=3, density=0.4, dtype=np.float64):
    """Weights, dense rows, targets and row weights."""
    rng = np.random.default_rng([n_rows, n_features, n_problems])
    X = rng.normal(size=(n_rows, n_features))
    X *= rng.random(X.shape) < density
    return (
        rng.normal(size=(n_features + 1, n_problems)).astype(dtype),
        X.astype(dtype),
        np.where(rng.random((n_rows, n_problems)) < 0.5, -1.0, 1.0).astype(dtype),
        rng.uniform(0.1, 2, n_rows).astype(dtype),
    )


def tolerance(dtype):
    return {"rtol": 1e-4, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-10}


# Slopes -----------------------------------------------------------------------------


@pytest.mark.each(2)
@every_container
@every_dtype
@pytest.mark.parametrize("n_problems", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("by_class", [False, True])
def test_slopes_by_hand(by_class, loss, weighted, n_problems, dtype, container):
    weights, X, y, s = batch(n_problems=n_problems, dtype=dtype)
    factors = np.array([0.3, 4, 0][:n_problems], dtype=dtype) if by_class else None
    slopes = batch_slopes(
        weights,
        CONTAINERS[container](X),
        y,
        s if weighted else None,
        loss=loss,
        epsilon=0.3,
        positive_weight=factors,
    )
    assert slopes.dtype == dtype
    for i, k in np.ndindex(*y.shape):
        p = sum(X[i, j] * weights[j, k] for j in range(9)) + weights[9, k]
        expected = SLOPES[loss](y[i, k], p) * (s[i] if weighted else 1)
        if by_class and y[i, k] > 0:
            expected *= factors[k]
        assert slopes[i, k] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_targets_of_one_problem_may_be_a_vector():
    weights, X, y, s = batch(n_problems=1)
    column, vector = (
        batch_slopes(weights, X, t, s, loss="squared_error") for t in (y, y[:, 0])
    )
    np.testing.assert_array_equal(vector, column)


# Gradient ---------------------------------------------------------------------------


@pytest.mark.parametrize("n_problems", [1, 3])
@pytest.mark.parametrize("loss", LOSSES)
def test_descent_is_along_finite_differences(loss, n_problems):
    weights, X, y, s = batch(n_problems=n_problems)

    def value(flat):
        w = flat.reshape(weights.shape)
        return float((s[:, None] * loss_values(loss, y, X @ w[:-1] + w[-1], 0.3)).sum())

    expected = optimize.approx_fprime(weights.ravel(), value, 1e-7)
    moved = weights.copy()
    slopes = batch_slopes(weights, X, y, s, loss=loss, epsilon=0.3)
    descend(moved, X, slopes, 1, None, fit_intercept=True)
    np.testing.assert_allclose((weights - moved).ravel(), expected, atol=1e-5)


@pytest.mark.each(2)
@every_container
@every_dtype
@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize(
    ("n_rows", "n_features", "n_problems", "density"),
    [
        (13, 9, 1, 0.4),
        (13, 9, 3, 0.4),
        (1, 9, 2, 1.0),
        (0, 9, 2, 1.0),
        (5, 4000, 1, 0.01),  # entry by entry
        (5, 4000, 3, 0.01),
        (5, 4000, 1, 0.0),
        (200, 50, 1, 0.9),  # by SciPy's product
        (7, 1, 1, 1.0),
    ],
)
def test_descent_by_hand(
    n_rows,
    n_features,
    n_problems,
    density,
    fit_intercept,
    preconditioned,
    dtype,
    container,
):
    weights, X, _, _ = batch(n_rows, n_features, n_problems, density, dtype)
    rng = np.random.default_rng(0)
    slopes = rng.normal(size=(n_rows, n_problems)).astype(dtype)
    H = rng.uniform(0.5, 3, n_features).astype(dtype) if preconditioned else None
    moved = weights.copy()
    descend(
        moved, CONTAINERS[container](X), slopes, 0.3, H, fit_intercept=fit_intercept
    )
    gradient = np.zeros(weights.shape)
    for i in range(n_rows):
        gradient[:-1] += np.outer(X[i], slopes[i])
        gradient[-1] += slopes[i] if fit_intercept else 0
    if preconditioned:
        gradient[:-1] *= H[:, None]
    assert moved.dtype == dtype
    np.testing.assert_allclose(moved, weights - 0.3 * gradient, **tolerance(dtype))


def test_columns_that_a_row_holds_twice_are_added_up():
    X = sparse.csr_array(
        (np.array([1.0, 2.0]), np.array([3, 3]), np.array([0, 2])), shape=(1, 1000)
    )
    weights = np.zeros((1001, 1))
    descend(weights, X, np.ones((1, 1)), 1, None, fit_intercept=False)
    assert weights[3, 0] == -3
    assert np.count_nonzero(weights) == 1


# Penalty and projection -------------------------------------------------------------


@pytest.mark.parametrize("preconditioned", [False, True])
def test_shrinking_is_the_proximal_step(preconditioned):
    """Minimum of w^2 / 2 * amount + (w - v)^2 / (2 H), found numerically."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(5, 2))
    H = np.array([1e-3, 0.5, 2, 1e6]) if preconditioned else np.ones(4)
    shrunk = weights.copy()
    shrink(shrunk, 0.7, H if preconditioned else None)
    for j, k in np.ndindex(4, 2):
        v = weights[j, k]
        found = optimize.minimize_scalar(
            lambda w, v=v, h=H[j]: 0.7 * w**2 / 2 + (w - v) ** 2 / (2 * h)
        )
        assert shrunk[j, k] == pytest.approx(found.x, abs=1e-6)
    np.testing.assert_array_equal(shrunk[-1], weights[-1])


def test_shrinking_by_nothing():
    weights, *_ = batch()
    before = weights.copy()
    shrink(weights, 0, np.full(9, np.inf))
    np.testing.assert_array_equal(weights, before)


@every_dtype
def test_projection(dtype):
    weights = np.array([[3, 0.3], [4, 0.4], [9, 9]], dtype=dtype)
    project(weights, 1)
    assert weights.dtype == dtype
    np.testing.assert_allclose(weights, [[0.6, 0.3], [0.8, 0.4], [9, 9]], rtol=1e-6)
    project(weights, np.inf)
    np.testing.assert_allclose(weights, [[0.6, 0.3], [0.8, 0.4], [9, 9]], rtol=1e-6)


def test_projection_of_zeros():
    weights = np.zeros((3, 2))
    project(weights, 1e-9)
    assert not weights.any()


# Preconditioner ---------------------------------------------------------------------


@every_container
@every_dtype
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_by_hand(weighted, dtype, container):
    _, X, _, s = batch(dtype=dtype)
    X[:, 4] = 0
    moments = feature_moments(CONTAINERS[container](X), s if weighted else None)
    s = s if weighted else np.ones(13)
    for j in range(9):
        count = sum(s[i] for i in range(13) if X[i, j] != 0)
        square = sum(float(s[i]) * float(X[i, j]) ** 2 for i in range(13))
        np.testing.assert_allclose(moments[:, j], [count, square], rtol=1e-5)


def test_a_stored_zero_is_a_zero():
    X = sparse.csr_array(
        (np.array([0.0, 2.0]), np.array([0, 1]), np.array([0, 2])), shape=(1, 3)
    )
    np.testing.assert_array_equal(feature_moments(X, None), [[0, 1, 0], [0, 4, 0]])


def test_moments_of_many_elements(monkeypatch):
    """Some rows at a time; one of them has more elements than are looked at at once."""
    monkeypatch.setattr(_minibatch, "_AT_ONCE", 10)
    monkeypatch.setattr(_minibatch, "_SPARSE_AT_ONCE", 10)
    X = sparse.random_array((40, 6), density=0.4, format="csr", rng=0)
    X = sparse.vstack([X[:5] * 0, X, np.ones((2, 6)), sparse.csr_array((3, 6))], "csr")
    s = np.random.default_rng(0).uniform(0.5, 2, X.shape[0])
    dense = X.toarray()
    expected = [s @ (dense != 0), s @ dense**2]
    np.testing.assert_allclose(feature_moments(X, s), expected, rtol=1e-13)
    np.testing.assert_allclose(feature_moments(dense, s), expected, rtol=1e-13)
    unweighted = [(dense != 0).sum(axis=0), (dense**2).sum(axis=0)]
    np.testing.assert_allclose(feature_moments(X, None), unweighted, rtol=1e-13)
    for rows in (X, dense):
        sums = feature_moments(rows[:17], s[:17])
        assert feature_moments(rows[17:], s[17:], sums) is sums
        np.testing.assert_allclose(sums, expected, rtol=1e-13)
    empty = feature_moments(sparse.csr_array((4, 6)), None)
    np.testing.assert_array_equal(empty, np.zeros((2, 6)))


def test_moments_that_overflow():
    assert np.isinf(feature_moments(np.array([[1e200]]), None)[1, 0])


def diagonal_by_hand(X, s, kind, batch_size):
    """Row by row."""
    expected = []
    for column in X.T:
        present = [(w, x) for w, x in zip(s, column, strict=True) if x != 0]
        if not present:
            expected.append(1.0)
            continue
        weight = sum(w for w, _ in present)
        frequency, square = weight / s.sum(), sum(w * x**2 for w, x in present) / weight
        if kind == "bounded":
            frequency = max(frequency, 1 / batch_size)
        expected.append(
            1 / frequency if kind == "frequency" else 1 / frequency / square
        )
    return expected


@pytest.mark.parametrize("container", ["dense", "csr"])
def test_sums_of_features(container):
    rng = np.random.default_rng(0)
    X, s = rng.normal(size=(30, 4)).astype(np.float32), rng.random(30)
    rows = X if container == "dense" else sparse.csr_array(X)
    exact = X.astype(np.float64)
    np.testing.assert_allclose(feature_sums(rows, None), exact.sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(feature_sums(rows, s), s @ exact, rtol=1e-12)
    assert feature_sums(rows, None).dtype == np.float64


@pytest.mark.parametrize("batch_size", [1, 4, 100])
@pytest.mark.parametrize("kind", ["bounded", "jacobi", "frequency"])
def test_preconditioner_by_hand(kind, batch_size):
    _, X, _, s = batch()
    X[:, 4] = 0
    X[1:, 5] = 0  # in one row only
    H = preconditioner_diagonal(feature_moments(X, s), s.sum(), kind, batch_size)
    np.testing.assert_allclose(H, diagonal_by_hand(X, s, kind, batch_size))


def test_preconditioner_of_words_is_the_inverse_frequency():
    X = np.array([[1, 0, 1, 0], [1, 0, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]], dtype=float)
    moments = feature_moments(X, None)
    for kind in ("bounded", "jacobi", "frequency"):
        H = preconditioner_diagonal(moments, 4, kind, 100)
        np.testing.assert_allclose(H, [1, 4, 2, 1])
    # At least one row in a batch of 3.
    H = preconditioner_diagonal(moments, 4, "bounded", 3)
    np.testing.assert_allclose(H, [1, 3, 2, 1])


@pytest.mark.parametrize("kind", ["bounded", "jacobi"])
def test_preconditioner_undoes_the_scale_of_a_feature(kind):
    _, X, _, s = batch()
    scale = 10.0 ** np.arange(-4, 5)
    plain, scaled = (
        preconditioner_diagonal(feature_moments(rows, s), s.sum(), kind, 4)
        for rows in (X, X * scale)
    )
    np.testing.assert_allclose(scaled * scale**2, plain)


def test_preconditioner_is_the_inverse_diagonal():
    _, X, _, s = batch()
    H = preconditioner_diagonal(feature_moments(X, s), s.sum(), "jacobi", 4)
    diagonal = np.diag(X.T @ (s[:, None] * X)) / s.sum()
    np.testing.assert_allclose(H, 1 / diagonal)


def test_preconditioner_of_another_kind():
    with pytest.raises(ValueError, match="kind must be one of .*got 'newton'"):
        preconditioner_diagonal(np.ones((2, 3)), 1, "newton", 4)
