"""Pairs of factors: stacking, and what models may return."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.sfb.model._factors import Factors, checked, stack


def make_part(n_pairs, kind="dense", start=0.0, dtype=np.float64):
    u = (start + np.arange(2.0 * n_pairs)).reshape(n_pairs, 2).astype(dtype)
    v = (start - np.arange(3.0 * n_pairs)).reshape(n_pairs, 3).astype(dtype)
    return Factors(u, v if kind == "dense" else getattr(sparse, kind)(v))


def dense(v):
    return v.toarray() if sparse.issparse(v) else v


@pytest.mark.parametrize(
    ("kinds", "is_sparse"),
    [
        (["dense", "dense"], False),
        (["csr_array", "csr_matrix"], True),
        (["csr_array", "dense", "csr_array"], False),
        (["csr_matrix"], True),
    ],
)
def test_stack(kinds, is_sparse):
    parts = [make_part(n + 1, kind, 10.0 * n) for n, kind in enumerate(kinds)]
    whole = stack(parts)
    assert whole.is_sparse == is_sparse
    assert whole.n_pairs == sum(part.n_pairs for part in parts)
    update = sum(part.u.T @ dense(part.v) for part in parts)
    np.testing.assert_allclose(whole.u.T @ dense(whole.v), update)
    np.testing.assert_array_equal(whole.u, np.vstack([part.u for part in parts]))


def test_slopes_alone():
    parts = [make_part(2), make_part(0), make_part(3, "csr_array")]
    whole, slopes = stack(parts), stack(parts, with_rows=False)
    np.testing.assert_array_equal(slopes.u, whole.u)
    assert slopes.v.shape == (5, 0)


def test_ranks_without_rows_do_not_make_others_dense():
    empty, full = make_part(0), make_part(2, "csr_array")
    assert stack([empty, full, empty]) is full
    assert stack([full, empty, full]).is_sparse
    assert stack([empty, empty]).n_pairs == 0


def test_astype():
    for kind in ("dense", "csr_array"):
        factors = make_part(3, kind)
        assert factors.astype(np.float64).u is factors.u
        single = factors.astype("float32")
        assert single.u.dtype == single.v.dtype == np.float32
        assert single.is_sparse == factors.is_sparse


@pytest.mark.parametrize("kind", ["dense", "csr_array", "csc_array", "coo_matrix"])
def test_what_may_be_returned(kind):
    u, v = make_part(4)
    given = v if kind == "dense" else getattr(sparse, kind)(v)
    factors = checked([u.tolist(), given], 9, (2, 3), "here")
    np.testing.assert_array_equal(factors.u, u)
    np.testing.assert_array_equal(dense(factors.v), v)
    assert kind == "dense" or factors.v.format == "csr"


@pytest.mark.parametrize("dtype", [np.int32, bool])
def test_whole_numbers_become_floats(dtype):
    u, v = np.ones((4, 2), dtype), np.ones((4, 3), dtype)
    for given in (v, sparse.csr_array(v)):
        factors = checked((u, given), 4, (2, 3), "here")
        assert factors.u.dtype == factors.v.dtype == np.float64
        np.testing.assert_array_equal(
            factors.u.T @ dense(factors.v), np.full((2, 3), 4)
        )
    single = make_part(2, dtype=np.float32)
    assert checked(single, 2, (2, 3), "here").u is single.u


BAD = {
    "nothing": (None, TypeError, r"a pair \(u, v\), got NoneType"),
    "three": ((1, 2, 3), TypeError, r"a pair \(u, v\), got tuple"),
    "flat u": ((np.ones(4), np.ones((4, 3))), ValueError, r"u of shape \(4,\)"),
    "wide u": (
        (np.ones((4, 5)), np.ones((4, 3))),
        ValueError,
        r"u of shape \(4, 5\), expected \(n_pairs, 2\) for a batch of 9 rows",
    ),
    "sparse u": ((sparse.eye_array(2), np.ones((2, 3))), ValueError, "u of shape"),
    "narrow v": (
        (np.ones((4, 2)), np.ones((4, 2))),
        ValueError,
        r"v of shape \(4, 2\), expected \(4, 3\)",
    ),
    "short v": (
        (np.ones((4, 2)), sparse.csr_array((3, 3))),
        ValueError,
        r"v of shape \(3, 3\), expected \(4, 3\)",
    ),
    "NaN": (
        (np.full((4, 2), np.nan), np.ones((4, 3))),
        ValueError,
        "u with NaN or inf",
    ),
    "infinite": (
        (np.ones((4, 2)), sparse.csr_array(np.full((4, 3), np.inf))),
        ValueError,
        "v with NaN or infinite elements; if .* lower the step size",
    ),
    "complex": ((np.ones((4, 2)) * 1j, np.ones((4, 3))), TypeError, "u of complex128"),
    "text": (
        (np.ones((1, 2)), [["a", "b", "c"]]),
        TypeError,
        "v of <U1, expected real",
    ),
}


@pytest.mark.parametrize(("given", "error", "message"), BAD.values(), ids=BAD)
def test_what_may_not_be_returned(given, error, message):
    with pytest.raises(error, match=f"^here .*{message}"):
        checked(given, 9, (2, 3), "here")
