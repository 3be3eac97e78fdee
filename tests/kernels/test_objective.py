"""Loss sums against slow loops, in every layout."""

import numpy as np
import pytest
from scipy import sparse
from traced import traced

from dask_ma.kernels import (
    LOSSES,
    _rows,
    loss_sums,
    loss_values,
    one_vs_rest_targets,
    positive_factors,
)

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


def slow_sums(X, codes, sample_weight, coef, intercept, loss):
    """One prediction at a time."""
    total = np.zeros(len(coef))
    for x, code, s in zip(X, codes, sample_weight, strict=True):
        for k, (w, b) in enumerate(zip(coef, intercept, strict=True)):
            positive = 1 if len(coef) == 1 else k
            y = np.array(1.0 if code == positive else -1.0)
            total[k] += s * loss_values(loss, y[None], np.array([x @ w + b]))[0]
    return total


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_equals_slow_loop(case, loss):
    X, codes, s, coef, intercept = case
    expected = slow_sums(X, codes, s, coef, intercept, loss)
    got = loss_sums(X, codes, s, coef, intercept, loss=loss, one_vs_rest=True)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.each(2)
@pytest.mark.parametrize("container", sorted(CONTAINERS))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_layouts_and_dtypes_agree(case, container, dtype):
    X, codes, s, coef, intercept = case
    expected = loss_sums(X, codes, s, coef, intercept, loss="hinge", one_vs_rest=True)
    got = loss_sums(
        CONTAINERS[container](X.astype(dtype)),
        codes,
        s.astype(dtype),
        coef.astype(dtype),
        intercept.astype(dtype),
        loss="hinge",
        one_vs_rest=True,
    )
    assert got.dtype == np.float64
    np.testing.assert_allclose(
        got, expected, rtol=1e-5 if dtype == np.float32 else 1e-12
    )


@pytest.mark.each(2)
@pytest.mark.parametrize("size", [1, 5, 64, 10**6])
@pytest.mark.parametrize("container", ["dense", "csr_matrix"])
def test_chunking_does_not_matter(case, container, size, monkeypatch):
    X, codes, s, coef, intercept = case
    X = CONTAINERS[container](X)
    expected = loss_sums(
        X, codes, s, coef, intercept, loss="log_loss", one_vs_rest=True
    )
    monkeypatch.setattr(_rows, "_CHUNK_PREDICTIONS", size)
    got = loss_sums(X, codes, s, coef, intercept, loss="log_loss", one_vs_rest=True)
    np.testing.assert_allclose(got, expected, rtol=1e-13)


@pytest.mark.parametrize("container", ["dense", "csr_matrix"])
@pytest.mark.parametrize("weighted", [False, True])
def test_weights_of_each_problems_own_class(case, container, weighted):
    """Each problem has weights of its own then."""
    X, codes, s, coef, intercept = case
    k = len(coef)
    s = s if weighted else np.ones(len(codes))
    factors = np.random.default_rng(2).uniform(0, 4, k)
    got = loss_sums(
        CONTAINERS[container](X),
        codes,
        s if weighted else None,
        coef,
        intercept,
        loss="log_loss",
        one_vs_rest=True,
        positive_weight=factors,
    )
    for j in range(k):
        own = codes == (1 if k == 1 else j)
        alone = loss_sums(
            X,
            np.where(own, 1.0, -1.0),
            s * np.where(own, factors[j], 1),
            coef[j : j + 1],
            intercept[j : j + 1],
            loss="log_loss",
        )
        np.testing.assert_allclose(got[j], alone[0], rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_positive_factors(dtype):
    targets = one_vs_rest_targets(np.array([0, 2]), 3, dtype=dtype)
    got = positive_factors(targets, np.array([5, 0.5, 0], dtype=dtype))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, [[5, 1, 1], [1, 1, 0]])


@pytest.mark.parametrize("shape", [(3,), (2, 1), ()])
def test_weights_of_classes_of_another_shape(shape):
    message = "positive_weight must have one weight per problem.* got weights of shape"
    with pytest.raises(ValueError, match=message):
        positive_factors(np.ones((4, 2)), np.ones(shape))
    with pytest.raises(ValueError, match=message):  # targets that are no classes
        loss_sums(
            np.ones((4, 2)),
            np.ones(4),
            None,
            np.ones((1, 2)),
            np.ones(1),
            loss="hinge",
            positive_weight=np.ones(1),
        )


def test_real_targets():
    rng = np.random.default_rng(0)
    X, y, coef = rng.normal(size=(30, 4)), rng.normal(size=30), rng.normal(size=(1, 4))
    got = loss_sums(X, y, None, coef, np.array([0.5]), loss="squared_error")
    expected = 0.5 * ((X @ coef[0] + 0.5 - y) ** 2).sum()
    np.testing.assert_allclose(got, [expected], rtol=1e-13)


def test_epsilon_acts():
    X, y, coef = np.ones((3, 1)), np.zeros(3), np.ones((1, 1))
    for epsilon, expected in [(0.25, 2.25), (0.5, 1.5)]:
        got = loss_sums(
            X, y, None, coef, np.zeros(1), loss="epsilon_insensitive", epsilon=epsilon
        )
        assert got == [expected]


def test_weights_duplicate_and_remove_rows(case):
    X, codes, _, coef, intercept = case
    s = np.arange(len(codes)) % 3
    rows = np.repeat(np.arange(len(codes)), s)
    options = {"loss": "squared_hinge", "one_vs_rest": True}
    weighted = loss_sums(X, codes, s, coef, intercept, **options)
    repeated = loss_sums(X[rows], codes[rows], None, coef, intercept, **options)
    np.testing.assert_allclose(weighted, repeated, rtol=1e-13)


@pytest.mark.parametrize("container", ["dense", "csr_matrix"])
def test_no_rows(container):
    X = CONTAINERS[container](np.empty((0, 3)))
    y = np.empty(0, dtype=int)
    coef, intercept = np.ones((2, 3)), np.ones(2)
    got = loss_sums(X, y, None, coef, intercept, loss="hinge", one_vs_rest=True)
    np.testing.assert_array_equal(got, [0, 0])


def test_memory_stays_small():
    n, k = 200_000, 10
    X = sparse.csr_matrix(
        (np.ones(n), np.arange(n, dtype=np.int32) % 50, np.arange(n + 1)), (n, 50)
    )
    codes = np.arange(n) % k
    coef, intercept = np.ones((k, 50)), np.zeros(k)
    with traced() as memory:
        loss_sums(X, codes, None, coef, intercept, loss="log_loss", one_vs_rest=True)
    assert memory.peak < 8 * 2**20 < n * k * 8


def test_one_vs_rest_targets():
    codes = np.array([0, 2, 1])
    np.testing.assert_array_equal(
        one_vs_rest_targets(codes, 3), [[1, -1, -1], [-1, -1, 1], [-1, 1, -1]]
    )
    binary = one_vs_rest_targets(np.array([0, 1]), 1, dtype=np.float32)
    np.testing.assert_array_equal(binary, [[-1], [1]])
    assert binary.dtype == np.float32


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"y": np.zeros(3)}, r"y must have shape \(4,\).*got \(3,\)"),
        ({"sample_weight": np.ones((4, 1))}, r"sample_weight must have shape \(4,\)"),
        ({"coef": np.ones((1, 3))}, r"coef must have shape \(1, 2\)"),
        ({"intercept": np.ones(2)}, r"intercept must have shape \(1,\)"),
        ({"X": sparse.csc_matrix((4, 2))}, r"X must be CSR or dense, got csc"),
        ({"coef": np.ones((3, 2)), "intercept": np.ones(3)}, "one_vs_rest=True"),
    ],
)
def test_bad_shapes(changes, message):
    arguments = {
        "X": np.ones((4, 2)),
        "y": np.zeros(4),
        "sample_weight": None,
        "coef": np.ones((1, 2)),
        "intercept": np.ones(1),
    }
    with pytest.raises(ValueError, match=message):
        loss_sums(**(arguments | changes), loss="hinge")
