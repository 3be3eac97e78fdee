"""Sums of the rows of each class, of which each rank has some features."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

from dask_ma.kernels import class_sums
from dask_ma.sfb.logistic import _class_sums
from dask_ma.sfb.logistic._class_sums import (
    ClassSums,
    FleetingClassSums,
    add_up_classes,
    find_class_sums,
)


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


def find(run_ranks, shards, per_node, is_sparse, centre=None):
    """What ranks have of the sums, and their chunks, asked for twice."""

    def program(group):
        shard = shards[group.rank]
        problem = SimpleNamespace(shard=shard, n_problems=3, dtype=shard.dtype)
        sums = find_class_sums(problem, group, centre, is_sparse=is_sparse)
        return type(sums), [list(sums.chunks(5)) for _ in range(2)]

    return run_ranks(program, len(shards), per_node)


@pytest.mark.parametrize("n_bytes", [1, 60, 10**6])
def test_the_same_bits_kept_or_not(run_ranks, make_shards, rows, monkeypatch, n_bytes):
    """Ranks of one process add them up anew; those of several have their shares."""
    monkeypatch.setattr(_class_sums, "_PART_BYTES", n_bytes)
    monkeypatch.setattr(_class_sums, "_KEPT_BYTES", 0)
    shards = make_shards(4, rows.X.astype(np.float32), rows.y, None)
    centre = rows.X.mean(axis=0).astype(np.float32)
    fleeting, kept = (
        find(run_ranks, shards, per_node, False, centre) for per_node in (4, 1)
    )
    for (kind, found), (other_kind, expected) in zip(fleeting, kept, strict=True):
        assert (kind, other_kind) == (FleetingClassSums, ClassSums)
        for chunks in found:
            pairs = zip((c for c in chunks if len(c[1])), expected[0], strict=True)
            for (features, sums), (same_features, same_sums) in pairs:
                assert features == same_features and sums.dtype == np.float32
                np.testing.assert_array_equal(sums, same_sums)


@pytest.mark.parametrize("reason", ["small", "sparse", "on a disk"])
def test_what_is_kept(run_ranks, make_shards, rows, monkeypatch, reason):
    """What takes little, and what would take long to add up in each pass."""
    if reason != "small":
        monkeypatch.setattr(_class_sums, "_KEPT_BYTES", 0)
    n_looks = []

    def is_on_disk(X):
        n_looks.append(X)
        return len(n_looks) == 1 and reason == "on a disk"  # those of one rank are

    monkeypatch.setattr(_class_sums, "is_on_disk", is_on_disk)
    kind = sparse.csr_array if reason == "sparse" else np.asarray
    shards = make_shards(3, kind(rows.X), rows.y, None)
    found = find(run_ranks, shards, 3, reason == "sparse")
    assert [kind for kind, _ in found] == [ClassSums] * 3


def test_nothing_is_added_up_for_nobody(run_ranks, make_shards, rows, monkeypatch):
    """Without an intercept there is nothing to mix."""
    monkeypatch.setattr(_class_sums, "_KEPT_BYTES", 0)
    monkeypatch.setattr(_class_sums, "_add_own", None)
    shards = make_shards(2, rows.X, rows.y, None)

    def program(group):
        shard = shards[group.rank]
        problem = SimpleNamespace(shard=shard, n_problems=3, dtype=shard.dtype)
        sums = find_class_sums(problem, group, None, is_sparse=False)
        return list(sums.chunks(6, are_wanted=False))

    seen = []
    for chunks in run_ranks(program, 2):
        for features, sums in chunks:
            assert sums.shape == (features.stop - features.start, 3)
            seen += range(features.start, features.stop)
    assert sorted(seen) == list(range(7))
