"""Conversions of single blocks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sparse

from dask_ma.data._blocks import frame_to_array, n_bytes, take_rows, to_csr


@pytest.mark.parametrize("axis", [0, 1])
def test_gcxs_of_both_orders(axis):
    X = np.array([[0, 1.0, 0], [2, 0, 3]])
    compressed = [sp.csr_array, sp.csc_array][axis](X)
    parts = (compressed.data, compressed.indices, compressed.indptr)
    block = sparse.GCXS(parts, shape=X.shape, compressed_axes=(axis,))
    np.testing.assert_array_equal(to_csr(block).toarray(), X)


def test_foreign_blocks_that_are_refused():
    full = sparse.COO(np.array([[0], [1]]), np.ones(1), shape=(2, 2), fill_value=1.0)
    with pytest.raises(ValueError, match="fill_value 1.0, expected 0"):
        to_csr(full)
    with pytest.raises(ValueError, match="got 1D array"):
        to_csr(sparse.COO(np.array([[0]]), np.ones(1), shape=(2,)))
    with pytest.raises(TypeError, match="sparse.DOK, expected sparse.COO"):
        to_csr(sparse.DOK((2, 2)))


def test_frames_with_extension_columns():
    series = pd.Series([True, None], dtype="boolean")
    np.testing.assert_array_equal(frame_to_array(series), [1.0, np.nan])
    whole = pd.Series([1, 2], dtype="Int32")
    assert frame_to_array(whole).dtype == np.int32
    assert frame_to_array(pd.Series(["a"], dtype="category")).tolist() == ["a"]


@pytest.mark.parametrize("convert", [np.asarray, sp.csr_array, pd.DataFrame])
def test_all_rows_are_the_block_itself(convert):
    block = convert(np.eye(3))
    assert take_rows(block, 0, 3) is block
    assert take_rows(block, 1, 3).shape == (2, 3)


def test_bytes():
    X = sp.csr_array(np.eye(4))
    size = 4 * 8 + 4 * X.indices.itemsize + 5 * X.indptr.itemsize
    assert n_bytes(X) == n_bytes(X.tocoo()) == size
    assert n_bytes(pd.DataFrame(np.eye(4))) == 128
    assert n_bytes(pd.Series(np.ones(4))) == 32
    assert n_bytes((np.ones(4), None, [np.ones(2)])) == 48
