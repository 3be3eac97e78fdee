"""Sums of the rows of each class, of which each rank has some features."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

from dask_ma.kernels import class_sums
from dask_ma.sfb.logistic import _class_sums
from dask_ma.sfb.logistic._class_sums import ClassSums, add_up_classes


def add_up(run_ranks, shards, group_size, centre, *, to_root=False, chunk=5):
    """Chunks of each rank, as lists."""

    def program(group):
        shard = shards[group.rank]
        place = {"shard": shard, "n_problems": 3, "dtype": shard.dtype}
        sums = add_up_classes(SimpleNamespace(**place), group, centre, to_root=to_root)
        return list(sums.chunks(chunk))

    return run_ranks(program, group_size)


@pytest.mark.pairs
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_ranks", [1, 2, 5])
@pytest.mark.parametrize("n_bytes", [1, 60, 10**6])
@pytest.mark.parametrize("to_root", [False, True])
def test_each_feature_is_on_one_rank(
    run_ranks, make_shards, rows, monkeypatch, kind, dtype, n_ranks, n_bytes, to_root
):
    """However many are added up at a time, and however many a rank has."""
    monkeypatch.setattr(_class_sums, "_PART_BYTES", n_bytes)
    X, weight = kind(rows.X.astype(dtype)), rows.weight.astype(dtype)
    centre = None if kind is sparse.csr_array else rows.X.mean(axis=0).astype(dtype)
    shards = make_shards(n_ranks, X, rows.y, weight)
    found = add_up(run_ranks, shards, n_ranks, centre, to_root=to_root)
    less = X if centre is None else X - centre
    expected = class_sums(less, rows.y, weight, 3)
    whole, seen = np.full((7, 3), np.nan), []
    for chunks in found:
        for features, sums in chunks:
            assert sums.shape[0] == features.stop - features.start
            assert sums.dtype == (np.float64 if to_root else dtype)
            whole[features] = sums
            seen += range(features.start, features.stop)
    assert sorted(seen) == list(range(7))
    tol = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(whole, expected, rtol=tol, atol=tol)
    if to_root:
        assert not any(found[1:])
    elif n_bytes > 1:
        assert all(
            sum(len(s) for _, s in chunks) <= 7 // n_ranks + 2 for chunks in found
        )


@pytest.mark.parametrize("n_filled", [0, 3, 200])
def test_few_elements_are_kept_alone(n_filled):
    """Sums of sparse rows are not kept as whole matrices."""
    array = np.zeros((20, 10))
    array.flat[np.arange(n_filled)] = 1 + np.arange(n_filled)
    sums = ClassSums(10)
    sums.add(5, array, np.float32)
    ((_, kept),) = sums._pieces
    assert sparse.issparse(kept) == (n_filled < 100)
    chunks = list(sums.chunks(70))
    assert [features for features, _ in chunks] == [
        slice(5, 12),
        slice(12, 19),
        slice(19, 25),
    ]
    np.testing.assert_array_equal(np.vstack([part for _, part in chunks]), array)
