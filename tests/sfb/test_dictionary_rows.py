"""Rows of ranks: those that become atoms are the same on all."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma.comm import Group
from dask_ma.data import Block, Shard
from dask_ma.engine import RankContext
from dask_ma.sfb.dictionary._rows import (
    Rows,
    first_atoms,
    with_unit_length,
    worst_rows,
)

SIZES = [[4, 3], [], [5]]  # rows of the blocks of each rank


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 5)) * (rng.random((12, 5)) < 0.7)
    X[:, 0] = 0.1 + abs(X[:, 0])
    X[2] = 0
    return X


def rows_of(X, rank, is_sparse):
    """The rows of a rank."""
    start = sum(sum(sizes) for sizes in SIZES[:rank])
    blocks = []
    for index, n in enumerate(SIZES[rank]):
        part = X[start : start + n]
        part = sparse.csr_array(part) if is_sparse else part
        blocks.append(Block(part, None, None, index, start))
        start += n
    shard = Shard(blocks, X.shape[1], X.dtype)
    return Rows(
        shard,
        [sum(sizes) for sizes in SIZES],
        X.dtype,
        is_sparse,
        float(sum(map(sum, SIZES))),
    )


@pytest.mark.parametrize("is_sparse", [False, True])
def test_taken_rows(run_ranks, X, is_sparse):
    numbers = np.array([11, 0, 4, 6, 7])

    def program(group: Group):
        return rows_of(X, group.rank, is_sparse).take(group, numbers)

    for found in run_ranks(program, 3):
        np.testing.assert_array_equal(found, X[numbers])


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("n_components", [4, 20])
def test_first_atoms(run_ranks, X, is_sparse, positive, n_components):
    """More atoms than rows, and a row of zeros, are filled up at random."""

    def program(group: Group):
        context = RankContext(group, 5)
        rows = rows_of(X, group.rank, is_sparse)
        return first_atoms(context, rows, n_components, positive=positive)

    found = run_ranks(program, 3)
    atoms = found[0]
    assert atoms.shape == (n_components, 5)
    assert all(each.tobytes() == atoms.tobytes() for each in found)
    np.testing.assert_allclose((atoms**2).sum(axis=1), 1)
    assert atoms.min() >= 0 or not positive
    rows = with_unit_length(np.maximum(X, 0) if positive else X)
    is_row = (abs(atoms[:, None] - rows).max(axis=2) < 1e-12).any(axis=1)
    n_filled = np.count_nonzero((rows**2).sum(axis=1))
    assert is_row.sum() == (n_filled if n_components == 20 else 4)


def test_batches_hold_each_row_once(run_ranks, X):
    def program(group: Group):
        context = RankContext(group, 5)
        rows = rows_of(X, group.rank, True)
        return [
            [part.toarray() for part, _ in rows.batches(context, 3, n, shuffle=True)]
            for n in range(2)
        ]

    found = run_ranks(program, 3)
    orders = []
    for n_pass in range(2):
        parts = [part for own in found for part in own[n_pass]]
        assert len(parts) == 9
        order = np.vstack(parts)
        orders.append(order)
        np.testing.assert_array_equal(np.sort(order, axis=0), np.sort(X, axis=0))
    assert (orders[0] != orders[1]).any()


@pytest.mark.parametrize("is_sparse", [False, True])
def test_worst_rows(run_ranks, X, is_sparse):
    """Largest first; rows of equal value in the order of ranks; no zeros."""
    values = np.array([1, 5, 0, 2, 2, 0, 0, 7, 2, 0, 0, 0], dtype=float)
    bounds = [0, 7, 7, 12]

    def program(group: Group):
        own = slice(bounds[group.rank], bounds[group.rank + 1])
        rows = sparse.csr_array(X[own]) if is_sparse else X[own]
        return [worst_rows(group, rows, values[own], n) for n in (4, 20)]

    for found in run_ranks(program, 3):
        np.testing.assert_array_equal(found[0], X[[7, 1, 3, 4]])
        np.testing.assert_array_equal(found[1], X[[7, 1, 3, 4, 8, 0]])


def test_unit_lengths():
    atoms = np.array([[3e-200, 4e-200], [0.0, 0.0], [3e180, -4e180]])
    expected = [[0.6, 0.8], [0, 0], [0.6, -0.8]]
    np.testing.assert_allclose(with_unit_length(atoms), expected)
