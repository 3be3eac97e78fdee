"""Chunks of predictions cover all the rows, once, in every layout."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.kernels import _rows, chunked_predictions

X = np.arange(77, dtype=np.float64).reshape(11, 7) % 5


@pytest.mark.each(2)
@pytest.mark.parametrize("n_problems", [1, 3])
@pytest.mark.parametrize("size", [1, 6, 10**6])
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix, sparse.csr_array])
def test_chunks_join_to_the_whole(make, size, n_problems, monkeypatch):
    monkeypatch.setattr(_rows, "_CHUNK_PREDICTIONS", size)
    rng = np.random.default_rng(0)
    coef, intercept = rng.normal(size=(n_problems, 7)), rng.normal(size=n_problems)
    expected = X @ coef.T + intercept
    if n_problems == 1:
        expected = expected[:, 0]
    chunks = list(chunked_predictions(make(X), coef, intercept))
    assert [rows.start for rows, _ in chunks[1:]] == [r.stop for r, _ in chunks[:-1]]
    assert all(p.size <= max(size, n_problems) for _, p in chunks)
    np.testing.assert_allclose(np.concatenate([p for _, p in chunks]), expected)


def test_float32_gives_float64():
    coef, intercept = np.ones((1, 7), dtype=np.float32), np.zeros(1, dtype=np.float32)
    [(_, p)] = chunked_predictions(X.astype(np.float32), coef, intercept)
    assert p.dtype == np.float64


def test_no_rows():
    assert list(chunked_predictions(X[:0], np.ones((1, 7)), np.zeros(1))) == []
