"""From rows on every rank to columns on every rank.

.. code-block:: text

            columns 0 1 2 3 4 5                      rank 0   rank 1   rank 2
   rank 0   | block 0          |                     columns  columns  columns
            | block 1          |   to_columns        0 1      2 3      4 5
   rank 1   | block 0          |  ------------>      | |      | |      | |   block 0
            | block 1          |                     | |      | |      | |   block 1
   rank 2   | block 0          |                     | |      | |      | |   ...

The rows travel some at a time, and what comes is written to where it belongs in the
result. For sparse rows that place is known beforehand: the ranks first tell each other
how many elements each of their columns has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from scipy import sparse

from dask_ma import _config
from dask_ma.comm import Group, allgather, alltoall, alltoall_steps
from dask_ma.data import Block, Shard
from dask_ma.kernels import column_store

# Stored elements of sparse rows, 64 MiB with their places, whose copy by columns is
# worth its memory: fits take half of the time of those that read them from rows.
FEW_STORED = 2**26 // 12
_LARGEST_INT32 = np.iinfo(np.int32).max
_TILE = 512
_KINDS = {True: "sparse", False: "dense"}
# Of the processor: for an element that is laid out by columns, sparse or dense, and for
# a number of a gradient that is added up over ranks.
_SECONDS_LAID_OUT = {True: 40e-9, False: 3e-9}
_SECONDS_ADDED_UP = 2e-9


class ColumnShard(NamedTuple):
    """All rows of some columns: what one rank holds in the layout by columns.

    Attributes
    ----------
    X : ndarray or csc_array of shape (n_rows, stop - start)
        Columns `start` to ``stop - 1`` of the rows of all ranks: first those of rank 0
        in the order of its blocks, then those of rank 1, and so on. An ndarray is in
        Fortran order; the elements of each column of a CSC are sorted by row, with one
        element for each place.
    y : ndarray of shape (n_rows,) or None
        Targets or class codes of all rows; None if no rank has any.
    sample_weight : ndarray of shape (n_rows,) or None
        Weights of all rows, 1 for those of a rank without weights; None if no rank has
        any.
    start, stop : int
        Range of the columns; it may be empty.
    n_features : int
        Number of columns on all ranks.
    """

    X: Any
    y: np.ndarray | None
    sample_weight: np.ndarray | None
    start: int
    stop: int
    n_features: int

    @property
    def n_rows(self) -> int:
        """Number of rows on all ranks."""
        return int(self.X.shape[0])


class Extent(NamedTuple):
    """How large X is on all ranks.

    Attributes
    ----------
    n_rows, n_features : int
        Its shape.
    n_stored : int
        Stored elements.
    itemsize : int
        Bytes of an element.
    is_sparse : bool
        Whether elements have indices.
    """

    n_rows: int
    n_features: int
    n_stored: int
    itemsize: int = 8
    is_sparse: bool = False


def choose_layout(
    extent: Extent, n_ranks: int, n_rounds: int, bandwidth: float
) -> Literal["rows", "columns"]:
    """Whether ranks should share out the rows or the columns of X.

    With rows, each round adds up the gradient over ranks, a number for each column.
    With columns, each rank works its part of the gradient out alone, but X has to
    travel first, and to be laid out anew. Both are seconds of one rank, of a network
    that is given and of a processor whose times have been measured once: equal data are
    laid out alike on any machine.

    Parameters
    ----------
    extent : Extent
        How large X is.
    n_ranks : int
        Number of ranks.
    n_rounds : int
        Rounds to expect.
    bandwidth : float
        Bytes a second between two ranks.

    Returns
    -------
    layout : {"rows", "columns"}
        "columns" if there are several ranks, more columns than rows, and X is laid out
        by columns in less time than the gradients of the rounds take to be added up.
    """
    if n_ranks == 1 or extent.n_features <= extent.n_rows:
        return "rows"
    sent = (n_ranks - 1) / n_ranks / bandwidth  # seconds for a byte of each rank
    own = extent.n_stored / n_ranks
    nbytes = extent.itemsize + 4 * extent.is_sparse
    anew = _SECONDS_LAID_OUT[extent.is_sparse]
    if extent.is_sparse and own <= FEW_STORED:
        anew = 0.0  # rows, too, would be laid out by columns
    laid_out = own * (nbytes * sent + anew)
    added_up = n_rounds * extent.n_features * (8 * sent + _SECONDS_ADDED_UP)
    return "columns" if laid_out < added_up else "rows"


def to_columns(group: Group, shard: Shard) -> ColumnShard:
    """Exchange rows for columns with the other ranks.

    A collective call. Rank `q` of `P` gets columns ``p * q // P`` to
    ``p * (q + 1) // P - 1``, where `p` is the number of columns. Besides the shard and
    the result a rank holds the rows that are under way: a block, or about
    ``dask-ma.comm.push-buffer`` bytes of a larger one; and for sparse X a few integers
    per column.

    Parameters
    ----------
    group : Group
        This rank.
    shard : Shard
        Its rows; it may have none. It is not changed.

    Returns
    -------
    columns : ColumnShard
        X has the dtype of the shards; if they differ, the one that holds all.

    Raises
    ------
    ValueError
        If shards differ in the number of columns, or only some of the rows have labels.
    TypeError
        If X is dense on some ranks and sparse on others.
    """
    chunks = _cut(shard)
    summaries = [_Summary(*s) for s in allgather(group, _summarize(shard, chunks))]
    _check(summaries)
    bounds = [shard.n_features * q // group.size for q in range(group.size + 1)]
    collector = _make_collector(group, shard, summaries, bounds)
    for source, first_row, piece in _exchange(group, chunks, summaries, bounds):
        collector.put(source, first_row, piece)
    return ColumnShard(
        X=collector.finish(),
        y=_join([s.labels for s in summaries]),
        sample_weight=_join_weights(summaries),
        start=bounds[group.rank],
        stop=bounds[group.rank + 1],
        n_features=shard.n_features,
    )


def joined_columns(shard: Shard) -> Any:
    """All sparse rows of a shard as one CSC, with little beside the result.

    Parameters
    ----------
    shard : Shard
        CSR blocks, at least one. It is not changed.

    Returns
    -------
    X : CSC of shape (n_rows, n_features)
        Rows in the order of the blocks.
    """
    if len(shard.blocks) == 1:
        X = column_store(shard.blocks[0].X)
        X.sum_duplicates()  # of rows that name a column twice
        return X
    counts = np.zeros(shard.n_features, dtype=np.int64)
    for block in shard.blocks:
        counts += np.bincount(block.X.indices, minlength=shard.n_features)
    dtype = np.result_type(*[block.X.dtype for block in shard.blocks])
    collector, row = _SparseCollector(shard.n_rows, [counts], dtype), 0
    for chunk in _cut(shard):
        [piece] = _split(chunk, [0, shard.n_features])
        collector.put(0, row, piece)
        row += chunk.n_rows
    return collector.finish()


class _Chunk(NamedTuple):
    """Rows of a block that travel together."""

    X: Any
    start: int
    stop: int

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.stop - self.start


class _Summary(NamedTuple):
    """What a rank tells the others about its shard."""

    n_features: int
    is_sparse: bool
    dtype: np.dtype
    chunk_rows: np.ndarray
    labels: np.ndarray | None
    weights: np.ndarray | None

    @property
    def n_rows(self) -> int:
        """Rows of the rank."""
        return int(self.chunk_rows.sum())


def _summarize(shard: Shard, chunks: list[_Chunk]) -> tuple[Any, ...]:
    """This rank's summary, as a plain tuple, in which messages look for arrays."""
    weights = None
    if any(block.sample_weight is not None for block in shard.blocks):
        weights = np.concatenate([_weights_of(block) for block in shard.blocks])
    return tuple(
        _Summary(
            n_features=shard.n_features,
            is_sparse=shard.is_sparse,
            dtype=shard.dtype,
            chunk_rows=np.array([chunk.n_rows for chunk in chunks], dtype=np.int64),
            labels=_join([block.y for block in shard.blocks]),
            weights=weights,
        )
    )


def _weights_of(block: Block) -> np.ndarray:
    """Weights of a block, 1 where it has none."""
    if block.sample_weight is None:
        return np.ones(block.X.shape[0], dtype=block.X.dtype)
    return block.sample_weight


def _check(summaries: list[_Summary]) -> None:
    """Refuse shards that do not fit together."""
    widths = [s.n_features for s in summaries]
    if len(set(widths)) > 1:
        raise ValueError(
            f"X must have the same columns on all ranks, but their numbers are {widths}"
        )
    filled = [rank for rank, s in enumerate(summaries) if s.n_rows]
    for rank in filled:
        first, other = summaries[filled[0]], summaries[rank]
        if first.is_sparse != other.is_sparse:
            raise TypeError(
                f"X must be of one kind on all ranks, but it is "
                f"{_KINDS[first.is_sparse]} on rank {filled[0]} and "
                f"{_KINDS[other.is_sparse]} on rank {rank}; convert one of them"
            )
    n_rows = sum(s.n_rows for s in summaries)
    n_labels = sum(len(s.labels) for s in summaries if s.labels is not None)
    if n_labels not in (0, n_rows):
        raise ValueError(
            f"y must be given for all rows or for none, but {n_labels} of {n_rows} "
            "rows have labels"
        )


def _join(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Concatenate what is there; ranks without rows have no say in the dtype."""
    given = [part for part in parts if part is not None]
    return np.concatenate(given) if given else None


def _join_weights(summaries: list[_Summary]) -> np.ndarray | None:
    """Weights of all rows, 1 for those of a rank that has none."""
    given = [s.weights for s in summaries if s.weights is not None]
    if not given:
        return None
    dtype = np.result_type(*given)
    return np.concatenate(
        [
            np.ones(s.n_rows, dtype=dtype) if s.weights is None else s.weights
            for s in summaries
        ]
    )


# From rank to rank ------------------------------------------------------------------


def _cut(shard: Shard) -> list[_Chunk]:
    """Blocks, or runs of their rows where a block is too much to be under way."""
    chunks = []
    for block in shard.blocks:
        n_rows, n_bytes = block.X.shape[0], _n_bytes(block.X)
        limit = _config.get_bytes("comm.push-buffer")
        if sparse.issparse(block.X):
            # Sparse rows are there twice while they become columns, which takes time
            # for each of the columns, however few the rows are.
            limit = min(limit, max(n_bytes // 2, 8 * shard.n_features))
        step = max(1, n_rows * limit // max(1, n_bytes))
        chunks += [
            _Chunk(block.X, start, min(start + step, n_rows))
            for start in range(0, n_rows, step)
        ]
    return chunks


def _n_bytes(X: Any) -> int:
    """Bytes of the rows, dense or CSR."""
    return X.data.nbytes + X.indices.nbytes if sparse.issparse(X) else X.nbytes


def _exchange(
    group: Group, chunks: list[_Chunk], summaries: list[_Summary], bounds: list[int]
) -> Iterator[tuple[int, int, Any]]:
    """Source, first row in the result, and content of each piece for this rank."""
    sizes = [s.n_rows for s in summaries]
    next_row = [sum(sizes[:rank]) for rank in range(group.size)]
    for number in range(max(len(s.chunk_rows) for s in summaries)):
        pieces: list[Any] = [None] * group.size
        if number < len(chunks):
            pieces = _split(chunks[number], bounds)
        for source, piece in alltoall_steps(group, pieces):
            chunk_rows = summaries[source].chunk_rows
            if number < len(chunk_rows):
                yield source, next_row[source], piece
                next_row[source] += int(chunk_rows[number])


def _split(chunk: _Chunk, bounds: list[int]) -> list[Any]:
    """The columns of each rank: views of the rows, or of a CSC made of sparse rows."""
    X, start, stop = chunk
    if not sparse.issparse(X):
        return [X[start:stop, low:high] for low, high in pairwise(bounds)]
    if chunk.n_rows < X.shape[0]:
        X = X[start:stop]
    X = X.tocsc()
    pieces = []
    for low, high in pairwise(bounds):
        first, last = X.indptr[low], X.indptr[high]
        starts = X.indptr[low : high + 1] - first
        pieces.append((X.data[first:last], X.indices[first:last], starts))
    return pieces


# The columns of one rank ------------------------------------------------------------


class _Collector(Protocol):
    """Takes pieces in any order of the ranks, and those of one rank in their order."""

    def put(self, source: int, first_row: int, piece: Any) -> None:
        """Write the rows from `first_row` on, which rank `source` has sent."""

    def finish(self) -> Any:
        """All rows of the columns."""


class _DenseCollector:
    """Rows of some columns, in Fortran order."""

    def __init__(self, n_rows: int, n_columns: int, dtype: np.dtype) -> None:
        self._X = np.empty((n_rows, n_columns), dtype=dtype, order="F")

    def put(self, source: int, first_row: int, piece: np.ndarray) -> None:
        """Write some rows."""
        for start in range(0, len(piece), _TILE):
            tile = piece[start : start + _TILE]
            row = first_row + start
            self._X[row : row + len(tile)] = tile

    def finish(self) -> np.ndarray:
        """All rows."""
        return self._X


class _SparseCollector:
    """Rows of some columns as a CSC, of which it is known who has how many elements."""

    def __init__(self, n_rows: int, counts: list[Any], dtype: np.dtype) -> None:
        # A vector of each rank: elements of each column in its rows.
        per_column = np.sum(counts, axis=0)
        n_stored = int(per_column.sum())
        index_dtype = _index_dtype(n_rows, n_stored)
        self._shape = n_rows, len(per_column)
        self._data = np.empty(n_stored, dtype=dtype)
        self._indices = np.empty(n_stored, dtype=index_dtype)
        self._indptr = np.zeros(len(per_column) + 1, dtype=index_dtype)
        np.cumsum(per_column, out=self._indptr[1:])
        # Where the next element of each column goes that a rank sends.
        self._next = [self._indptr[:-1].copy()]
        for count in counts[:-1]:
            self._next.append((self._next[-1] + count).astype(index_dtype))

    def put(self, source: int, first_row: int, piece: tuple[Any, ...]) -> None:
        """Write some rows."""
        data, rows, starts = piece
        following, counts = self._next[source], np.diff(starts)
        places = np.repeat(following - starts[:-1], counts)
        places += np.arange(len(data), dtype=places.dtype)
        self._data[places] = data
        self._indices[places] = rows + self._indices.dtype.type(first_row)
        following += counts

    def finish(self) -> sparse.csc_array:
        """All rows."""
        X = sparse.csc_array(
            (self._data, self._indices, self._indptr), shape=self._shape
        )
        X.sum_duplicates()  # of rows that name a column twice
        return X


def _index_dtype(n_rows: int, n_stored: int) -> type[np.signedinteger[Any]]:
    """Integers for the indices of a CSC, of 64 bits only if they must be."""
    return np.int32 if max(n_rows, n_stored) <= _LARGEST_INT32 else np.int64


def _make_collector(
    group: Group, shard: Shard, summaries: list[_Summary], bounds: list[int]
) -> _Collector:
    """Room for all rows of the columns of this rank; a collective call."""
    filled = [s for s in summaries if s.n_rows]
    n_rows = sum(s.n_rows for s in filled)
    dtype = np.result_type(*[s.dtype for s in filled] or [shard.dtype])
    if not any(s.is_sparse for s in filled):
        width = bounds[group.rank + 1] - bounds[group.rank]
        return _DenseCollector(n_rows, width, dtype)
    counts = np.zeros(shard.n_features, dtype=np.int64)
    for block in shard.blocks:
        counts += np.bincount(block.X.indices, minlength=shard.n_features)
    per_rank = [counts[low:high] for low, high in pairwise(bounds)]
    return _SparseCollector(n_rows, alltoall(group, per_rank), dtype)
