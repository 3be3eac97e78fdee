"""How large rows are, as far as anybody knows before they are computed."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import wait
from scipy import sparse

from dask_ma.data import (
    InputInfo,
    InputSize,
    count_classes,
    describe,
    size_of_input,
)
from dask_ma.data._input_size import size_of_blocks


def size_of(X, client):
    return size_of_input(X, describe(X), client)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_matrix, pd.DataFrame])
def test_rows_of_this_process(kind, inproc_client):
    X = np.eye(20, 6)
    size = size_of(kind(X), inproc_client)
    is_sparse = kind is sparse.csr_matrix
    assert size[:3] == (20, 6, 6 if is_sparse else 120)
    assert size.nbytes == (6 * 12 + 21 * 4 if is_sparse else X.nbytes)
    assert size.held == {}


@pytest.mark.parametrize("is_sparse", [False, True])
def test_rows_of_workers_by_their_bytes(is_sparse, inproc_client):
    """Metadata of sparse blocks may be those of dense ones, as here."""
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((600, 50)) < 0.1, rng.normal(size=(600, 50)), 0.0)
    blocks = [sparse.csr_matrix(part) if is_sparse else part for part in (dense,) * 3]
    workers = sorted(inproc_client.nthreads())
    places = [workers[0], workers[2], workers[2]]
    futures = [
        inproc_client.scatter(block, workers=[place], hash=False)
        for block, place in zip(blocks, places, strict=True)
    ]
    parts = [da.from_delayed(f, dense.shape, dtype=np.float64) for f in futures]
    with inproc_client.as_current():
        X = da.concatenate(parts).persist()
        wait(X)
    size = size_of(X, inproc_client)
    n_stored = np.count_nonzero(dense) if is_sparse else dense.size
    assert size[:2] == (1800, 50)
    assert size.n_stored == pytest.approx(3 * n_stored, rel=0.1)
    assert sum(size.held.values()) == size.nbytes
    assert set(size.held) <= set(workers)


def test_lazy_rows_are_known_where_they_are_few(inproc_client):
    X = da.ones((40, 3), chunks=(10, 3), dtype=np.float32)
    assert size_of(X, inproc_client) == InputSize(40, 3, 120, 480, {})
    assert size_of(da.ones((2**20, 3)), inproc_client) is None
    uncounted = X[X[:, 0] > 0]
    assert size_of(uncounted, inproc_client) is None


@pytest.mark.parametrize("kind", ["array", "frame"])
def test_blocks_tell_how_large_rows_are(kind, inproc_client):
    """Columns of a frame take fewer bytes than their common type, and are dense."""
    X = np.zeros((3000, 8))
    frame = pd.DataFrame({name: np.zeros(3000, np.int8) for name in "abcdefgh"})
    blocks = [X, X] if kind == "array" else [frame.assign(b=0.5), frame.assign(b=0.5)]
    futures = [inproc_client.scatter(block, hash=False) for block in blocks]
    info = InputInfo(kind, None, 8, None, np.dtype(np.float64))
    size = size_of_blocks(inproc_client, futures, info, 6000)
    assert size[:3] == (6000, 8, 48_000)
    assert sum(size.held.values()) == size.nbytes > 0
    assert size_of_blocks(inproc_client, futures, info, 0) is None
    no_columns = info._replace(n_features=None)
    assert size_of_blocks(inproc_client, futures, no_columns, 6000) is None


def test_zeros_of_sparse_rows_are_not_stored():
    assert InputSize(10, 2, 19, 160, {}).is_sparse
    assert not InputSize(10, 2, 20, 160, {}).is_sparse


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (["a", "b", "c", "a"], 3),
        (np.arange(5), 5),
        (np.zeros(4), 2),
        (np.eye(4), 2),
        (None, 2),
        (da.arange(9), 2),
        (np.arange(100_001), 2),
    ],
)
def test_classes_of_labels(y, expected):
    assert count_classes(y) == expected


def test_what_has_to_move():
    size = InputSize(10, 2, 20, 160, {"a": 30, "b": 90, "c": 40})
    assert [size.moved(n) for n in range(1, 5)] == [70, 30, 0, 0]
