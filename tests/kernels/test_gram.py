"""Weighted sums of the products of all pairs of columns."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.kernels import _gram, weighted_gram


@pytest.mark.parametrize("thin", [0.0, 1.0])
@pytest.mark.parametrize("kind", [np.array, sparse.csr_array, sparse.csr_matrix])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighted", [False, True])
def test_against_the_formula(weighted, dtype, kind, thin, monkeypatch):
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(40, 5)) * (rng.random((40, 5)) < 0.5)).astype(dtype)
    weight = rng.uniform(0, 2, 40).astype(dtype) if weighted else None
    rows = kind(X)
    monkeypatch.setattr(_gram, "_THIN", thin)
    wide = X.astype(np.float64)
    expected = wide.T @ (wide if weight is None else wide * weight[:, np.newaxis])
    for chunk in (2**20, 7 * 5):  # a few rows at a time
        monkeypatch.setattr(_gram, "_CHUNK", chunk)
        found = weighted_gram(rows, weight)
        assert type(found) is np.ndarray and found.dtype == np.float64
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_array_equal(rows if kind is np.array else rows.toarray(), X)


def test_thin_rows_do_not_become_dense(monkeypatch):
    monkeypatch.setattr(_gram, "_of_dense", None)
    thin = sparse.eye_array(30, format="csr")
    np.testing.assert_array_equal(weighted_gram(thin), np.eye(30))
    with pytest.raises(TypeError):
        weighted_gram(sparse.csr_array(np.ones((30, 30))))
