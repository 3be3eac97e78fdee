"""Generated problems: same rows everywhere, known answer, lazy blocks."""

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from dask_ma.datasets import (
    make_dask_sparse_classification,
    make_sparse_classification,
)

SIZES = {"n_samples": 250, "n_features": 300, "n_nonzero": 12, "chunk_rows": 100}


def same(a, b):
    """Whether two CSR matrices are equal bit for bit."""
    return a.shape == b.shape and all(
        np.array_equal(getattr(a, part), getattr(b, part))
        for part in ("data", "indices", "indptr")
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_form(dtype, n_classes):
    X, y, coef = make_sparse_classification(
        **SIZES, n_classes=n_classes, random_state=0, dtype=dtype
    )
    assert sparse.isspmatrix_csr(X)
    assert X.shape == (250, 300)
    assert X.dtype == coef.dtype == dtype
    assert X.indices.dtype == np.int32
    X.check_format(full_check=True)
    assert X.has_canonical_format
    np.testing.assert_allclose(sparse.linalg.norm(X, axis=1), 1, rtol=1e-6)
    assert y.shape == (250,)
    assert y.dtype == np.int64
    assert set(y) == set(range(n_classes))
    assert coef.shape == (1 if n_classes == 2 else n_classes, 300)


def test_row_lengths():
    X, _, _ = make_sparse_classification(2000, 100_000, n_nonzero=10, random_state=0)
    lengths = np.diff(X.indptr)
    assert lengths.max() <= 15
    assert lengths.mean() == pytest.approx(10, rel=0.05)


def test_words_follow_zipf():
    X, _, _ = make_sparse_classification(5000, 2000, n_nonzero=30, random_state=0)
    counts = np.sort(np.bincount(X.indices, minlength=2000))[::-1]
    # 1 / (rank + 20): the 1st word is 6 times as frequent as the 101st
    assert counts[0] / counts[100] == pytest.approx(6, rel=0.3)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.5])
def test_noise_is_the_share_of_wrong_labels(noise, n_classes):
    X, y, coef = make_sparse_classification(
        4000, 200, noise=noise, n_classes=n_classes, random_state=0
    )
    scores = X @ coef.T
    truth = scores[:, 0] > 0 if n_classes == 2 else scores.argmax(axis=1)
    assert np.mean(truth != y) == pytest.approx(noise, abs=0.03)
    if noise == 0:
        np.testing.assert_array_equal(truth, y)


def test_seeds():
    first, second, other = (
        make_sparse_classification(**SIZES, random_state=seed) for seed in (1, 1, 2)
    )
    assert same(first[0], second[0])
    np.testing.assert_array_equal(first[1], second[1])
    np.testing.assert_array_equal(first[2], second[2])
    assert not np.array_equal(first[2], other[2])
    assert not same(first[0], other[0])


def test_no_seed_gives_new_data():
    first, second = (make_sparse_classification(**SIZES) for _ in range(2))
    assert not same(first[0], second[0])


def test_chunks_differ():
    X, _, _ = make_sparse_classification(**SIZES, random_state=0)
    assert not same(X[:50], X[100:150])


def test_more_rows_keep_the_first_chunks():
    few, _, _ = make_sparse_classification(**SIZES, random_state=0)
    many, _, _ = make_sparse_classification(
        **SIZES | {"n_samples": 900}, random_state=0
    )
    assert same(few[:200], many[:200])


@pytest.mark.parametrize("n_classes", [2, 3])
def test_dask_equals_memory(n_classes):
    options = SIZES | {"n_classes": n_classes, "random_state": 5, "dtype": np.float32}
    X, y, coef = make_sparse_classification(**options)
    lazy = make_dask_sparse_classification(**options)
    assert all(isinstance(array, da.Array) for array in lazy)
    lazy_X, lazy_y, lazy_coef = lazy
    assert lazy_X.chunks == ((100, 100, 50), (300,))
    assert lazy_y.chunks == ((100, 100, 50),)
    assert lazy_coef.shape == coef.shape
    assert lazy_X.dtype == np.float32
    assert lazy_y.dtype == np.int64
    got_X, got_y, got_coef = dask.compute(*lazy, scheduler="sync")
    assert same(got_X, X)
    np.testing.assert_array_equal(got_y, y)
    np.testing.assert_array_equal(got_coef, coef)


def test_dask_blocks_are_csr():
    X, y, _ = make_dask_sparse_classification(**SIZES, random_state=0)
    assert sparse.isspmatrix_csr(X._meta)
    blocks = dask.compute(*X.to_delayed().ravel(), scheduler="sync")
    assert all(sparse.isspmatrix_csr(block) for block in blocks)
    assert [block.shape for block in blocks] == [(100, 300), (100, 300), (50, 300)]


def test_dask_makes_nothing_until_computed(monkeypatch):
    from dask_ma.datasets import _sparse_classification as module

    def refuse(*args):
        raise RuntimeError("made on the client")

    monkeypatch.setattr(module, "_make_model", refuse)
    monkeypatch.setattr(module, "_make_chunk", refuse)
    X, _, _ = make_dask_sparse_classification(10**9, 10**6, chunk_rows=10**8)
    assert X.shape == (10**9, 10**6)
    with pytest.raises(RuntimeError, match="made on the client"):
        X.compute(scheduler="sync")


def test_dask_names_follow_the_parameters():
    names = {
        make_dask_sparse_classification(**SIZES | change)[0].name
        for change in [
            {"random_state": 0},
            {"random_state": 0, "noise": 0.2},
            {"random_state": 1},
        ]
    }
    again = make_dask_sparse_classification(**SIZES, random_state=0)[0].name
    assert len(names) == 3
    assert again in names


def test_linear_model_learns_it():
    from sklearn.linear_model import SGDClassifier

    X, y, _ = make_sparse_classification(20_000, 2000, noise=0.05, random_state=0)
    model = SGDClassifier(alpha=1e-5, max_iter=10, tol=None, random_state=0)
    assert model.fit(X[:15_000], y[:15_000]).score(X[15_000:], y[15_000:]) > 0.8


@pytest.mark.parametrize(
    "make", [make_sparse_classification, make_dask_sparse_classification]
)
@pytest.mark.parametrize(
    "change, message",
    [
        ({"n_samples": 0}, "n_samples must be at least 1, got 0"),
        ({"n_features": 0}, "n_features must be at least 1, got 0"),
        ({"n_nonzero": 0}, "n_nonzero must be at least 1, got 0"),
        ({"n_classes": 1}, "n_classes must be at least 2, got 1"),
        ({"chunk_rows": 0}, "chunk_rows must be at least 1, got 0"),
        ({"noise": 1.0}, r"noise must lie in \[0, 1\), got 1.0"),
        ({"dtype": np.int32}, "dtype must be float32 or float64, got int32"),
    ],
)
def test_bad_parameters(make, change, message):
    with pytest.raises(ValueError, match=message):
        make(**SIZES | change)
