"""Dependencies of parameters: columns compared on a sample of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import lapack

from dask_ma.comm import Group, allgather
from dask_ma.data import Shard
from dask_ma.kernels import column_entries
from dask_ma.layouts._columns import ColumnShard
from dask_ma.schmp.runtime._schedulers import Schedulers

_SAMPLE_KEY = 2  # keeps the random numbers of the sample apart from others
_TAG = "schmp-sample"


class ColumnSample:
    """Some rows of some columns, to compare columns on.

    Parameters
    ----------
    blocks : list of ndarray or list of CSR
        Rows, with the columns of `columns` only.
    columns : range
        Columns of the whole input that these are.
    total : int, default=None
        Rows of the whole input; None if these are all.

    Attributes
    ----------
    chance : float
        Variance of the correlation on the sample of columns that have none on all rows.
    """

    def __init__(
        self, blocks: list[Any], columns: range, total: int | None = None
    ) -> None:
        self.columns = columns
        self.is_sparse = bool(blocks) and sparse.issparse(blocks[0])
        self.n_rows = n_rows = sum(block.shape[0] for block in blocks)
        self.chance = 0.0 if total is None else 1 / max(1, n_rows) - 1 / max(1, total)
        # Columns lie one after the other, in single precision: 512 rows cannot tell
        # correlations better apart.
        if self.is_sparse:
            self._store = sparse.vstack(blocks, format="csc").astype(np.float32)
        else:
            self._store = np.empty((len(columns), self.n_rows), dtype=np.float32)
            start = 0
            for block in blocks:
                self._store[:, start : start + len(block)] = block.T
                start += len(block)

    def take(self, index: np.ndarray) -> np.ndarray:
        """Columns as rows of a new array of float32 of shape (k, n_rows)."""
        local = index - self.columns.start
        if not self.is_sparse:
            return np.asarray(self._store[local])
        values, rows, bounds = column_entries(self._store, local)
        taken = np.zeros((len(index), self.n_rows), dtype=np.float32)
        taken[np.repeat(np.arange(len(index)), np.diff(bounds)), rows] = values
        return taken

    def correlations(
        self, first: np.ndarray, second: np.ndarray, *, centered: bool
    ) -> np.ndarray:
        """How alike columns are.

        Parameters
        ----------
        first, second : ndarray of int of shape (k,) and (m,)
            Columns.
        centered : bool
            True gives correlations, False the cosines of the angles.

        Returns
        -------
        correlations : ndarray of float32 of shape (k, m)
            From -1 to 1; 0 for a column that is constant, or zero, on the sample.
        """
        both = self.directions(np.concatenate([first, second]), centered=centered)
        return np.asarray(both[: len(first)] @ both[len(first) :].T)

    def directions(self, index: np.ndarray, *, centered: bool) -> np.ndarray:
        """Columns of length 1, whose products are the correlations.

        Parameters
        ----------
        index : ndarray of int of shape (k,)
            Columns.
        centered : bool
            As in :meth:`correlations`.

        Returns
        -------
        directions : ndarray of float32 of shape (k, n_rows)
            Zeros for a column that is constant, or zero, on the sample.
        """
        columns = self.take(index)
        peaks = np.abs(columns).max(axis=1, keepdims=True, initial=0.0)
        columns /= np.where(peaks > 0, peaks, 1.0)  # no square overflows
        if centered:
            columns -= columns.mean(axis=1, keepdims=True, dtype=np.float64)
        norms = np.sqrt(np.einsum("ij,ij->i", columns, columns, dtype=np.float64))
        # What rounding leaves of a constant column has no direction.
        is_constant = norms <= 1e-6 * np.sqrt(max(1, self.n_rows))
        norms[is_constant] = 1.0
        columns /= norms[:, np.newaxis].astype(np.float32)
        columns[is_constant] = 0.0
        return columns


def gather_sample(
    shard: Shard, group: Group, schedulers: Schedulers, n_rows: int
) -> ColumnSample | None:
    """Draw rows from all ranks; each scheduler gets its own columns of them.

    A collective call.

    Parameters
    ----------
    shard : Shard
        Rows of this rank.
    group : Group
        This rank among the others.
    schedulers : Schedulers
        Who schedules what; parameter `j` belongs to column `j`, and parameters beyond
        the last column have none.
    n_rows : int
        Rows wanted over all ranks; all there are if there are fewer.

    Returns
    -------
    sample : ColumnSample or None
        None on a rank that schedules nothing.
    """
    counts = allgather(group, shard.n_rows)
    drawn = _drawn(sum(counts), n_rows, schedulers.seed)
    start = sum(counts[: group.rank])
    own = drawn[(drawn >= start) & (drawn < start + shard.n_rows)] - start
    pieces = list(_take_rows(shard, own))
    for rank, partition in zip(schedulers.ranks, schedulers.partitions, strict=True):
        columns = _with_column(partition, shard.n_features)
        group.push([_as_message(p, columns) for p in pieces], rank, _TAG, copy=False)
    partition_here = schedulers.partition_of(group.rank)
    sample = None
    if partition_here is not None:
        columns = _with_column(partition_here, shard.n_features)
        messages = [m for r in range(group.size) for m in group.recv(r, _TAG)]
        blocks = [_from_message(message, columns) for message in messages]
        sample = ColumnSample(blocks, columns, sum(counts))
    group.flush()
    return sample


def sample_columns(columns: ColumnShard, seed: int, n_rows: int) -> ColumnSample:
    """Draw rows where a rank has all rows of its columns.

    Parameters
    ----------
    columns : ColumnShard
        Columns of this rank.
    seed : int
        Seed of the run.
    n_rows : int
        Rows wanted; all there are if there are fewer.

    Returns
    -------
    sample : ColumnSample
        On the rows that :func:`gather_sample` takes.
    """
    X = columns.X
    if columns.n_rows > n_rows:
        X = X[_drawn(columns.n_rows, n_rows, seed)]
    return ColumnSample([X], range(columns.start, columns.stop), columns.n_rows)


def independent_set(adjacency: np.ndarray) -> np.ndarray:
    """Nodes without edges between them, chosen greedily in their order.

    Parameters
    ----------
    adjacency : ndarray of bool of shape (k, k)
        Symmetric; the diagonal is not looked at.

    Returns
    -------
    chosen : ndarray of int64
        In increasing order, node 0 first. Each node left out has an edge to one before
        it.
    """
    blocked = np.zeros(len(adjacency), dtype=bool)
    chosen = []
    for node in range(len(adjacency)):
        if not blocked[node]:
            chosen.append(node)
            blocked |= adjacency[node]
    return np.array(chosen, dtype=np.int64)


def shrunk(products: np.ndarray, chance: float) -> np.ndarray:
    """Correlations without what they have by chance, as far as that can be told.

    They are drawn towards 0 by the share of their squares that chance has (O. Ledoit,
    M. Wolf, "A well-conditioned estimator for large-dimensional covariance matrices",
    2004, with the identity as the target).

    Parameters
    ----------
    products : ndarray of shape (k, k)
        Correlations on a sample, with 1 or 0 on the diagonal.
    chance : float
        Variance of each by chance, not negative.

    Returns
    -------
    shrunk : ndarray of float64 of shape (k, k)
        With the same diagonal.
    """
    products = np.asarray(products, dtype=np.float64)
    diagonal = np.diag(products)
    squares = float((products**2).sum() - (diagonal**2).sum())
    n_pairs = diagonal.sum() ** 2 - (diagonal**2).sum()
    kept = 1 - min(1.0, chance * n_pairs / squares) if squares > 0 else 0.0
    result = kept * products
    np.fill_diagonal(result, diagonal)
    return result


def safe_prefix(products: np.ndarray, n_fixed: int, most: float) -> int:
    """How many columns may be updated beside others.

    Steps along some coordinates at once, each the best alone, do not raise the
    objective if the largest eigenvalue of the columns' correlations is below 2 (J. K.
    Bradley, A. Kyrola, D. Bickson, C. Guestrin, "Parallel coordinate descent for
    L1-regularized loss minimization", 2011, theorem 3.2 and its proof).

    Parameters
    ----------
    products : ndarray of shape (k, k)
        Correlations, first of those columns that are under way already.
    n_fixed : int
        How many these are.
    most : float
        Largest eigenvalue allowed, above 1.

    Returns
    -------
    n_safe : int
        How many of the columns behind them, from the first on, stay below.
    """
    difference = most * np.eye(len(products)) - products
    # Elimination ends at the first leading part that is not positive definite.
    _, order = lapack.dpotrf(difference, lower=1)
    return max(0, (order - 1 if order else len(products)) - n_fixed)


def _drawn(total: int, n_rows: int, seed: int) -> np.ndarray:
    """Rows of the sample, in their order."""
    if total <= n_rows:
        return np.arange(total)
    key = np.random.SeedSequence(seed, spawn_key=(_SAMPLE_KEY,))
    rng = np.random.default_rng(key)
    return np.sort(rng.choice(total, n_rows, replace=False))


def _with_column(parameters: range, n_features: int) -> range:
    """Those parameters that have a column."""
    start = min(parameters.start, n_features)
    return range(start, min(parameters.stop, n_features))


def _take_rows(shard: Shard, own: np.ndarray) -> Iterator[Any]:
    """Rows of the shard, block by block."""
    start = 0
    for block in shard.blocks:
        stop = start + block.X.shape[0]
        local = own[(own >= start) & (own < stop)] - start
        if len(local):
            yield block.X[local]
        start = stop


def _as_message(piece: Any, columns: range) -> Any:
    """Some columns of some rows as arrays."""
    part = piece[:, columns.start : columns.stop]
    if not sparse.issparse(part):
        return np.ascontiguousarray(part, dtype=np.float32)
    return part.data.astype(np.float32), part.indices, part.indptr


def _from_message(message: Any, columns: range) -> Any:
    """Undo :func:`_as_message`."""
    if isinstance(message, np.ndarray):
        return message
    shape = len(message[2]) - 1, len(columns)
    return sparse.csr_array(tuple(message), shape=shape)
