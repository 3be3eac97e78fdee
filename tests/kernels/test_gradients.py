"""Gradients against finite differences, slow loops and scikit-learn's losses."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import SGDClassifier, SGDRegressor
from traced import traced

from dask_ma.kernels import (
    LOSSES,
    _objective,
    gradient_sums,
    loss_slopes,
    loss_sums,
    loss_values,
)

MARGIN = {"hinge", "log_loss", "modified_huber", "perceptron", "squared_hinge"}
CONTAINERS = {
    "dense": np.asarray,
    "fortran": np.asfortranarray,
    "csr_matrix": sparse.csr_matrix,
    "csr_array": sparse.csr_array,
}


@pytest.fixture(params=[1, 5])
def case(request):
    """Dense rows, codes, weights, coef and intercept for 1 or 5 problems."""
    rng = np.random.default_rng(request.param)
    k, n, d = request.param, 53, 7
    X = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.5)
    codes = rng.integers(0, max(2, k), n)
    return X, codes, rng.random(n), rng.normal(size=(k, d)), rng.normal(size=k)


def slow_gradient(X, codes, sample_weight, coef, intercept, loss):
    """One slope at a time."""
    sums = np.zeros_like(coef), np.zeros_like(intercept)
    for x, code, s in zip(X, codes, sample_weight, strict=True):
        for k, (w, b) in enumerate(zip(coef, intercept, strict=True)):
            y = 1.0 if code == (1 if len(coef) == 1 else k) else -1.0
            slope = s * loss_slopes(loss, np.array([y]), np.array([x @ w + b]))[0]
            sums[0][k] += slope * x
            sums[1][k] += slope
    return sums


# Slopes -----------------------------------------------------------------------------


@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("epsilon", [0.1, 0.7])
def test_slopes_are_derivatives(loss, epsilon):
    rng = np.random.default_rng(0)
    y = rng.choice([-1.0, 1.0], 400) if loss in MARGIN else rng.normal(size=400)
    p, h = rng.normal(size=400) * 2, 1e-6
    # No kink lies within the difference.
    edges = [y * p - 1, y * p, y * p + 1, abs(p - y) - epsilon]
    clear = np.min(np.abs(edges), axis=0) > 10 * h
    up, down = (loss_values(loss, y, p + s, epsilon) for s in (h, -h))
    slopes = loss_slopes(loss, y, p, epsilon)
    expected = (up - down) / (2 * h)
    assert clear.sum() > 390
    np.testing.assert_allclose(slopes[clear], expected[clear], rtol=1e-6, atol=1e-6)


@pytest.mark.each(2)
@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("start", [0.0, 1.0, 0.3, -1.2])
def test_slopes_are_those_of_sklearn(loss, start):
    """One step of scikit-learn's SGD over one row shows its slope, also at kinks."""
    y = np.array([1.0])
    kind = SGDClassifier if loss in MARGIN else SGDRegressor
    sgd = kind(
        loss=loss, penalty=None, learning_rate="constant", eta0=1.0, epsilon=0.25
    )
    classes = {"classes": [-1.0, 1.0]} if loss in MARGIN else {}
    sgd.coef_ = np.zeros((1, 1)) if loss in MARGIN else np.zeros(1)
    sgd.intercept_, sgd.t_ = np.array([start]), 1.0
    sgd.partial_fit(np.zeros((1, 1)), y, **classes)
    slope = loss_slopes(loss, y, np.array([start]), 0.25)
    np.testing.assert_allclose(start - sgd.intercept_, slope, rtol=1e-12, atol=1e-15)


def test_slopes_far_out_are_finite():
    y, p = np.array([1.0, -1.0, 1.0, -1.0]), np.array([1e5, 1e5, -1e5, -1e5])
    np.testing.assert_array_equal(loss_slopes("log_loss", y, p), [0, 1, -1, 0])
    np.testing.assert_array_equal(loss_slopes("modified_huber", y, p), [0, 4, -4, 0])


def test_unknown_loss():
    with pytest.raises(ValueError, match="loss must be one of .* got 'cubic'"):
        loss_slopes("cubic", np.ones(1), np.ones(1))


# Sums -------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_equals_slow_loop(case, loss):
    X, codes, s, coef, intercept = case
    got = gradient_sums(X, codes, s, coef, intercept, loss=loss, one_vs_rest=True)
    expected = slow_gradient(X, codes, s, coef, intercept, loss)
    np.testing.assert_allclose(got.coef, expected[0], rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(got.intercept, expected[1], rtol=1e-11, atol=1e-13)
    assert got.weight == pytest.approx(s.sum(), rel=1e-13)


@pytest.mark.parametrize("loss", ["log_loss", "squared_hinge", "squared_error"])
def test_finite_differences_of_loss_sums(case, loss):
    X, codes, s, coef, intercept = case
    options = {"loss": loss, "one_vs_rest": True}
    got = gradient_sums(X, codes, s, coef, intercept, **options)
    np.testing.assert_allclose(
        got.losses, loss_sums(X, codes, s, coef, intercept, **options), rtol=1e-13
    )
    h = 1e-6
    for j in range(X.shape[1]):
        step = np.zeros_like(coef)
        step[:, j] = h
        up, down = (
            loss_sums(X, codes, s, coef + sign * step, intercept, **options)
            for sign in (1, -1)
        )
        np.testing.assert_allclose(
            got.coef[:, j], (up - down) / (2 * h), rtol=1e-5, atol=1e-6
        )
    up, down = (
        loss_sums(X, codes, s, coef, intercept + sign * h, **options)
        for sign in (1, -1)
    )
    np.testing.assert_allclose(got.intercept, (up - down) / (2 * h), rtol=1e-5)


@pytest.mark.each(2)
@pytest.mark.parametrize("container", sorted(CONTAINERS))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_layouts_and_dtypes_agree(case, container, dtype):
    """Sums are taken in float64, whatever the rows are kept in."""
    X, codes, s, coef, intercept = case
    X = X.astype(np.float32)
    options = {"loss": "log_loss", "one_vs_rest": True}
    expected = gradient_sums(X.astype(np.float64), codes, s, coef, intercept, **options)
    got = gradient_sums(
        CONTAINERS[container](X.astype(dtype)), codes, s, coef, intercept, **options
    )
    for a, b in zip(got, expected, strict=True):
        assert np.asarray(a).dtype == np.float64
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


@pytest.mark.each(2)
@pytest.mark.parametrize("rows", [None, np.arange(0, 53, 2)])
@pytest.mark.parametrize("container", sorted(CONTAINERS))
def test_weights_of_each_problems_own_class(case, container, rows):
    X, codes, s, coef, intercept = case
    k = len(coef)
    factors = np.random.default_rng(2).uniform(0, 4, k)
    got = gradient_sums(
        CONTAINERS[container](X),
        codes,
        s,
        coef,
        intercept,
        loss="log_loss",
        one_vs_rest=True,
        positive_weight=factors,
        rows=rows,
    )
    picked = slice(None) if rows is None else rows
    assert got.weight == pytest.approx(s[picked].sum(), rel=1e-13)
    for j in range(k):
        own = codes == (1 if k == 1 else j)
        alone = gradient_sums(
            X[picked],
            np.where(own, 1.0, -1.0)[picked],
            (s * np.where(own, factors[j], 1))[picked],
            coef[j : j + 1],
            intercept[j : j + 1],
            loss="log_loss",
        )
        for a, b in zip(got[:3], alone[:3], strict=True):
            np.testing.assert_allclose(a[j], b[0], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("container", sorted(CONTAINERS))
def test_some_rows(case, container):
    X, codes, s, coef, intercept = case
    options = {"loss": "log_loss", "one_vs_rest": True}
    for rows in (np.array([3, 4, 50]), np.arange(0, 53, 2), np.array([], dtype=int)):
        got = gradient_sums(
            CONTAINERS[container](X), codes, s, coef, intercept, rows=rows, **options
        )
        expected = gradient_sums(
            X[rows], codes[rows], s[rows], coef, intercept, **options
        )
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


@pytest.mark.pairs
@pytest.mark.parametrize("size", [1, 5, 64])
@pytest.mark.parametrize("container", ["dense", "csr_matrix"])
@pytest.mark.parametrize("bound", ["_CHUNK_PREDICTIONS", "_CHUNK_ELEMENTS"])
@pytest.mark.parametrize("rows", [None, np.arange(1, 53, 3)])
def test_chunks_do_not_matter(case, container, size, bound, rows, monkeypatch):
    X, codes, s, coef, intercept = case
    X = CONTAINERS[container](X)
    options = {"loss": "log_loss", "one_vs_rest": True, "rows": rows}
    expected = gradient_sums(X, codes, s, coef, intercept, **options)
    monkeypatch.setattr(_objective, bound, size)
    got = gradient_sums(X, codes, s, coef, intercept, **options)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


def test_weights_duplicate_and_remove_rows(case):
    X, codes, _, coef, intercept = case
    s = np.arange(len(codes)) % 3
    rows = np.repeat(np.arange(len(codes)), s)
    options = {"loss": "squared_hinge", "one_vs_rest": True}
    weighted = gradient_sums(X, codes, s, coef, intercept, **options)
    repeated = gradient_sums(X[rows], codes[rows], None, coef, intercept, **options)
    for a, b in zip(weighted, repeated, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


def test_real_targets_and_epsilon():
    X, y, coef = np.ones((3, 1)), np.zeros(3), np.ones((1, 1))
    for epsilon, expected in [(0.25, 0.75), (2.0, 3.0)]:
        got = gradient_sums(
            X, y, None, coef, np.zeros(1), loss="huber", epsilon=epsilon
        )
        assert got.coef == got.intercept == [expected]


@pytest.mark.parametrize("container", ["dense", "csr_matrix"])
def test_no_rows(container):
    X = CONTAINERS[container](np.empty((0, 3)))
    y = np.empty(0, dtype=int)
    coef, intercept = np.ones((2, 3)), np.ones(2)
    got = gradient_sums(X, y, None, coef, intercept, loss="hinge", one_vs_rest=True)
    for sums in got:
        assert not np.any(sums)


@pytest.mark.parametrize(("n", "d", "k"), [(300_000, 50, 10), (2_000, 200_000, 1)])
def test_memory_stays_small(n, d, k):
    """No dense copy of sparse rows, and slopes of some rows at a time."""
    columns = np.arange(n, dtype=np.int32) % d
    X = sparse.csr_matrix((np.ones(n), columns, np.arange(n + 1)), (n, d))
    coef, intercept = np.ones((k, d)), np.zeros(k)
    codes = np.arange(n) % max(2, k)
    with traced() as memory:
        gradient_sums(
            X, codes, None, coef, intercept, loss="log_loss", one_vs_rest=True
        )
    assert memory.peak < 8 * 2**20 < n * max(d, 8 * k) * 8


def test_bad_shapes():
    with pytest.raises(ValueError, match=r"y must have shape \(4,\).*got \(3,\)"):
        gradient_sums(
            np.ones((4, 2)),
            np.zeros(3),
            None,
            np.ones((1, 2)),
            np.ones(1),
            loss="hinge",
        )
