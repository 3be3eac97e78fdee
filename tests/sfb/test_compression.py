"""Fewer pairs of factors against the best approximation of a given rank."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.sfb.exchange import _compression
from dask_ma.sfb.exchange._compression import Compressed, compress, message_bytes
from dask_ma.sfb.model._factors import Factors

TIGHT = 1e-12
kinds = pytest.mark.parametrize("kind", ["dense", "csr_array", "csr_matrix"])


def as_kind(v, kind):
    return v if kind == "dense" else getattr(sparse, kind)(v)


def low_rank(n_pairs, n_outputs, n_features, rank, n_columns=None, seed=0):
    """Factors whose product has a given rank, with some columns in use."""
    rng = np.random.default_rng(seed)
    u = rng.normal(size=(n_pairs, n_outputs))
    rows = np.zeros((rank, n_features))
    used = rng.permutation(n_features)[: n_columns or n_features]
    rows[:, used] = rng.normal(size=(rank, len(used)))
    return u, rng.normal(size=(n_pairs, rank)) @ rows


def expanded(factors):
    return factors.expand() if isinstance(factors, Compressed) else factors


def product(factors):
    u, v = expanded(factors)
    return u.T @ (v.toarray() if sparse.issparse(v) else v)


def relative_error(result, factors):
    exact = product(factors)
    return np.linalg.norm(product(result) - exact) / np.linalg.norm(exact)


@kinds
@pytest.mark.parametrize(
    ("shape", "rank"),
    [((30, 6, 40), 6), ((30, 40, 5), 5), ((12, 50, 60), 3), ((1, 1, 1), 1)],
)
def test_exact_low_rank_is_found(kind, shape, rank):
    u, v = low_rank(*shape, rank)
    factors = Factors(u, as_kind(v, kind))
    result = compress(factors, TIGHT)
    if shape[0] == 1:
        assert result is factors
    else:
        assert len(result.u) == rank
        assert message_bytes(result) < message_bytes(factors)
    assert relative_error(result, factors) < 2e-12


@kinds
def test_rows_that_come_up_twice(kind):
    rng = np.random.default_rng(1)
    v = rng.normal(size=(8, 30)) * (rng.random((8, 30)) < 0.7)
    u = rng.normal(size=(24, 20))
    factors = Factors(u, as_kind(np.tile(v, (3, 1)), kind))
    result = compress(factors, TIGHT)
    assert len(result.u) == 8
    assert relative_error(result, factors) < 2e-12


@kinds
@pytest.mark.parametrize("tolerance", [0.5, 0.1, 1e-3, 1e-5, 1e-7, 1e-10])
def test_the_rank_is_the_smallest_within_the_tolerance(kind, tolerance):
    rng = np.random.default_rng(2)
    left = np.linalg.qr(rng.normal(size=(30, 25)))[0]
    right = np.linalg.qr(rng.normal(size=(40, 25)))[0]
    values = 0.3 ** np.arange(25)
    mixing = np.linalg.qr(rng.normal(size=(25, 25)))[0]
    u, v = mixing @ left.T, (mixing * values) @ right.T
    factors = Factors(u, as_kind(v, kind))
    result = compress(factors, tolerance)
    tails = np.sqrt(np.cumsum(values[::-1] ** 2))[::-1] / np.linalg.norm(values)
    assert len(result.u) == np.argmax(tails <= tolerance)
    assert relative_error(result, factors) <= tolerance * (1 + 1e-4)


@pytest.mark.parametrize("tolerance", [0.2, 1e-9])
def test_both_ways_give_the_same_product(monkeypatch, tolerance):
    u, v = low_rank(20, 30, 40, 5)
    factors = Factors(u, v + 1e-11 * np.random.default_rng(3).normal(size=v.shape))
    first = compress(factors, tolerance)
    # Nothing is then left to the Gram matrix.
    monkeypatch.setattr(_compression, "_EPS", 1.0)
    second = compress(factors, tolerance)
    assert len(first.u) == len(second.u) <= 5
    np.testing.assert_allclose(product(first), product(second), atol=1e-9)


def test_pairs_that_cancel_out():
    rng = np.random.default_rng(4)
    u, v = rng.normal(size=(10, 30)), rng.normal(size=(10, 40))
    small = low_rank(3, 30, 40, 3, seed=5)
    factors = Factors(
        np.concatenate([u, -u, 1e-4 * small[0]]), np.concatenate([v, v, small[1]])
    )
    result = compress(factors, 1e-5)
    assert len(result.u) == 3
    assert relative_error(result, factors) < 1e-5


def test_sparse_rows_share_their_columns():
    u, v = low_rank(20, 7, 1000, 4, n_columns=50)
    factors = Factors(u, sparse.csr_array(v))
    result = compress(factors, TIGHT)
    assert isinstance(result, Compressed)
    assert result.block.shape == (4, 50)
    np.testing.assert_array_equal(result.columns, np.flatnonzero(v.any(axis=0)))
    back = result.expand()
    assert back.v.format == "csr"
    assert back.v.shape == (4, 1000)
    assert back.v.has_canonical_format
    assert back.v.indices.dtype == factors.v.indices.dtype
    # Against CSR: each column is named once, and there are no starts of rows.
    assert message_bytes(back) - message_bytes(result) == (3 * 50 + 5) * 4


def test_bytes_of_messages():
    u = np.zeros((3, 5))
    assert message_bytes(Factors(u, np.zeros((3, 10), np.float32))) == 120 + 120
    v = sparse.csr_array(np.eye(3, 10))
    assert message_bytes(Factors(u, v)) == 120 + 3 * 12 + 4 * 4
    columns = np.arange(7, dtype=np.int32)
    assert message_bytes(Compressed(u, np.zeros((3, 7)), columns, 10)) == 120 + 196


def test_full_rank_is_left_alone():
    u, v = low_rank(5, 20, 30, 5)
    for kind in ("dense", "csr_array"):
        factors = Factors(u, as_kind(v, kind))
        assert compress(factors, TIGHT) is factors
    rng = np.random.default_rng(0)
    scattered = sparse.random_array((5, 3000), density=0.01, format="csr", rng=rng)
    factors = Factors(u, scattered)
    assert compress(factors, TIGHT) is factors


def test_sparse_rows_with_little_in_common_are_left_alone():
    v = sparse.csr_array(np.kron(np.eye(10), np.ones((1, 20))))
    factors = Factors(np.ones((10, 2)), v)
    # The one row has as many elements as all rows together: little but `u` is saved.
    result = compress(factors, TIGHT)
    assert len(result.u) == 1
    assert message_bytes(result) < message_bytes(factors)
    several = Factors(np.random.default_rng(0).normal(size=(10, 2)), v)
    assert compress(several, TIGHT) is several


@kinds
def test_an_update_of_zeros_has_no_pairs(kind):
    v = low_rank(6, 4, 9, 6)[1]
    factors = Factors(np.zeros((6, 4)), as_kind(v, kind))
    result = compress(factors, TIGHT)
    assert message_bytes(result) == 0
    assert expanded(result).v.shape == (0, 9)
    assert product(result).shape == (4, 9)
    assert not product(result).any()


@kinds
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_empty_factors(kind, shape):
    n_pairs, n_outputs, n_features = shape
    v = as_kind(np.ones((n_pairs, n_features)), kind)
    factors = Factors(np.ones((n_pairs, n_outputs)), v)
    result = compress(factors, 0.1)
    assert product(result).shape == (n_outputs, n_features)
    assert message_bytes(result) <= message_bytes(factors)


@kinds
def test_types_stay_and_the_input_too(kind):
    u, v = low_rank(30, 6, 40, 6)
    u, v = u.astype(np.float32), v.astype(np.float32)
    factors = Factors(u.copy(), as_kind(v, kind))
    result = compress(factors, 1e-7)
    back = expanded(result)
    assert len(back.u) == 6
    assert back.u.dtype == back.v.dtype == np.float32
    assert relative_error(result, factors) < 1e-6
    np.testing.assert_array_equal(factors.u, u)
    np.testing.assert_array_equal(
        product(factors),
        u.T @ v if kind == "dense" else product(Factors(u, as_kind(v, kind))),
    )


def test_without_tolerance_only_what_is_exact_is_dropped():
    u, v = low_rank(30, 6, 40, 30)
    factors = Factors(u, v)
    result = compress(factors, 0.0)
    assert len(result.u) == 6
    assert relative_error(result, factors) < 1e-14


def test_elements_that_are_not_finite_are_passed_on():
    u, v = low_rank(30, 6, 40, 30)
    v[3, 5] = np.nan
    factors = Factors(u, v)
    assert compress(factors, 0.1) is factors


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, np.nan, np.inf])
def test_wrong_tolerances_are_refused(tolerance):
    factors = Factors(np.ones((2, 2)), np.ones((2, 2)))
    with pytest.raises(ValueError, match="tolerance must be from 0 to below 1"):
        compress(factors, tolerance)
