"""Tokens that are laid out from rows in memory, and counts as small numbers."""

import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from dask_ma import SchMPLDA
from dask_ma.comm import LocalGroup
from dask_ma.data import Block, Room, Shard
from dask_ma.kernels import document_stages
from dask_ma.schmp.topics import _cells, _documents
from dask_ma.schmp.topics._cells import rows_in_order
from dask_ma.schmp.topics._documents import Documents, as_small_counts
from dask_ma.schmp.topics._layout import tokens_of_blocks

N_WORDS = 30


def counts(n_rows, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    dense = rng.poisson(0.4, (n_rows, N_WORDS)) * rng.integers(0, 2, (n_rows, 1))
    dense[0, 3] = 200
    dense[0, 4] = 100  # more than a byte holds, together
    X = sparse.csr_matrix(dense.astype(dtype))
    X.data[5] = 0  # stored, and no token
    return X


def shard_of(*parts):
    """Blocks whose rows have numbers, not in the order of these."""
    starts = np.cumsum([0, *(X.shape[0] for X in parts)])
    blocks = [
        Block(X, None, None, 0, int(start))
        for X, start in zip(parts, starts, strict=False)
    ]
    return Shard(blocks[1:] + blocks[:1], N_WORDS, parts[0].dtype)


def laid_out(shard, n_blocks, fractions="raise"):
    """Documents, and their tokens by blocks of words."""
    [group] = LocalGroup.create(1)
    documents = Documents.of_shard(shard, group, fractions=fractions)
    documents.sort(document_stages(documents.keys, 3))
    documents.read(shard, Room(), fractions=fractions)
    blocks = [np.arange(i, N_WORDS, n_blocks) for i in range(n_blocks)]
    return documents, list(tokens_of_blocks(documents, blocks, N_WORDS))


@pytest.mark.parametrize("n_blocks", [1, 4])
@pytest.mark.parametrize("dtype", [np.float64, np.uint8, np.uint16])
def test_rows_give_the_tokens_that_their_words_give(n_blocks, dtype, monkeypatch):
    monkeypatch.setattr(_cells, "_CHUNK", 40)
    shard = shard_of(*(counts(n, dtype, seed=n) for n in (20, 1, 33)))
    documents, found = laid_out(shard, n_blocks)
    assert documents.rows is not None and not len(documents.words)
    assert documents.n_cells == sum(np.sum(b.X.data > 0) for b in shard.blocks)
    weights = documents.rows.count(N_WORDS)
    monkeypatch.setattr(_documents, "rows_in_order", lambda shard: None)
    documents, expected = laid_out(shard, n_blocks)
    assert documents.rows is None
    np.testing.assert_array_equal(
        weights, np.bincount(documents.words, minlength=N_WORDS)
    )
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


def test_rows_are_rounded_as_their_words_are(monkeypatch):
    X = counts(40)
    X.data += 0.3
    _, found = laid_out(shard_of(X), 2, "round")
    monkeypatch.setattr(_documents, "rows_in_order", lambda shard: None)
    _, expected = laid_out(shard_of(X), 2, "round")
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.owners, theirs.owners)
        np.testing.assert_array_equal(ours.words, theirs.words)


def test_rows_that_are_not_in_order_are_read_once():
    unsorted = sparse.csr_matrix(([1.0, 2.0], [3, 1], [0, 2]), shape=(1, N_WORDS))
    assert rows_in_order(shard_of(counts(4), unsorted)) is None
    dense = Shard([Block(np.ones((2, N_WORDS)), None, None, 0, 0)], N_WORDS, float)
    assert rows_in_order(dense) is None
    in_order = counts(4)
    [X] = rows_in_order(shard_of(in_order))
    assert np.shares_memory(X.data, in_order.data)


@pytest.mark.parametrize(
    ("largest", "expected"), [(255, np.uint8), (256, np.uint16), (65535, np.uint16)]
)
@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
def test_counts_become_small(largest, expected, dtype):
    X = counts(9, dtype)
    X.data[0] = largest
    for rows in (X, sparse.csr_array(X), X.toarray()):
        found = as_small_counts(rows)
        assert type(found) is type(rows) and found.dtype == expected
        different = found != rows
        assert not (different.nnz if sparse.issparse(rows) else different.any())
    assert np.shares_memory(as_small_counts(X).indices, X.indices)


@pytest.mark.parametrize("value", [-1, 0.5, 65536, np.nan, np.inf])
def test_what_are_no_small_counts_stays(value):
    X = counts(9)
    X.data[0] = value
    assert as_small_counts(X) is X
    dense = X.toarray()
    assert as_small_counts(dense) is dense


def test_rows_of_other_kinds_stay():
    twice = sparse.csr_matrix(([200.0, 100.0], [3, 3], [0, 2]), shape=(1, N_WORDS))
    assert as_small_counts(twice) is twice
    for X in (counts(9, np.float32), counts(9).tocsc(), counts(9, np.int8)):
        assert as_small_counts(X) is X
    empty = sparse.csr_matrix((0, 3))
    assert as_small_counts(empty) is empty


def test_ranks_get_small_counts_and_find_the_same_topics(inproc_client, monkeypatch):
    X, seen = counts(60), []
    original = Documents.of_shard.__func__

    def noted(cls, shard, group, *, fractions):
        seen.append(shard.dtype)
        return original(cls, shard, group, fractions=fractions)

    monkeypatch.setattr(Documents, "of_shard", classmethod(noted))
    model = SchMPLDA(3, max_iter=2, n_ranks=2, random_state=0)
    expected = model.fit(X).components_
    assert seen == [np.float64] * 2
    blocks = da.from_array(X.toarray().astype(np.uint16), (20, N_WORDS))
    lazy = blocks.map_blocks(sparse.csr_matrix)
    with inproc_client.as_current():
        for rows in (X, X.astype(np.int64), lazy):
            seen.clear()
            np.testing.assert_array_equal(model.fit(rows).components_, expected)
            assert seen == [np.uint16 if rows is lazy else np.uint8] * 2
