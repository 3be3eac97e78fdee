"""Shards: the rows of one rank, as blocks ready for the kernels (on the worker)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from dask_ma.data._blocks import (
    align,
    as_whole,
    csr_of,
    frame_to_array,
    is_frame,
    is_sparse,
    n_bytes,
    take_rows,
)
from dask_ma.data._checks import (
    check_columns,
    check_finite,
    check_kind,
    check_numbers,
    check_size,
    check_sparse,
    check_weights,
    not_a_column,
    without_duplicates,
)
from dask_ma.data._mapped import hand_back, read_ahead
from dask_ma.data._runs import RawPiece, Run, read_runs

__all__ = ["Block", "Shard", "build_shard", "join_groups", "join_shard"]


class Block(NamedTuple):
    """Consecutive rows of a shard.

    Attributes
    ----------
    X : ndarray or CSR of shape (n_rows, n_features)
    y : ndarray of shape (n_rows,) or (n_rows, n_targets), or None
    sample_weight : ndarray of shape (n_rows,) or None
    index : int
        Number of the input's block that the rows come from.
    start : int or None
        Number of the first row in the whole input, counted before rows of weight 0
        were removed.
    """

    X: Any
    y: Any
    sample_weight: np.ndarray | None
    index: int  # type: ignore[assignment]
    start: int | None

    def weights(self) -> np.ndarray:
        """Weights of the rows, float64 of shape (n_rows,); 1 where none are given."""
        if self.sample_weight is None:
            return np.ones(self.X.shape[0])
        return self.sample_weight.astype(np.float64, copy=False)


@dataclass
class Shard:
    """All rows of one rank, as a sequence of blocks that is never concatenated.

    Attributes
    ----------
    blocks : list of Block
        None of them is empty.
    n_features : int
    dtype : numpy.dtype
        Common dtype of the blocks of X, and what it would be if there were any.
    n_weightless : int
        Rows left out because their weight is 0.
    """

    blocks: list[Block]
    n_features: int
    dtype: np.dtype
    n_weightless: int = 0

    def read(self) -> Iterator[Block]:
        """Go over all rows; of those on disks, one block at a time is in memory.

        Yields
        ------
        block : Block
        """
        for block in read_ahead(self.blocks, lambda block: block.X):
            yield block
            hand_back(block.X)

    @property
    def n_rows(self) -> int:
        """Rows of all blocks."""
        return sum(block.X.shape[0] for block in self.blocks)

    @property
    def is_sparse(self) -> bool:
        """Whether the blocks of X are CSR; False for a shard without rows."""
        return bool(self.blocks) and is_sparse(self.blocks[0].X)

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks, with labels and weights."""
        return sum(n_bytes(block[:3]) for block in self.blocks)


def build_shard(
    arguments: dict[str, Any],
    *,
    dtype: Sequence[Any] = (np.float64, np.float32),
    n_features: int | None = None,
    accept_sparse: bool = True,
    require_labels: bool = True,
    drop_weightless: bool = True,
    n_targets: int | None = None,
    needs_squares: bool = False,
    join_limit: int = 0,
) -> Shard:
    """Turn the pieces of one rank into a shard.

    Parameters
    ----------
    arguments : dict
        ``ShardSpec.arguments`` with futures replaced by their data.
    dtype : sequence of dtypes, default=(float64, float32)
        Dtypes that X may have; any other becomes the first.
    n_features : int, optional
        Expected number of columns; by default what the metadata of the input say.
    accept_sparse : bool, default=True
        Whether X may be sparse.
    require_labels : bool, default=True
        Whether y must be given.
    drop_weightless : bool, default=True
        Whether rows of weight 0 are left out.
    n_targets : int or None, default=None
        Columns of y; None for a y of one dimension.
    needs_squares : bool, default=False
        Whether squares of the elements of X have to be finite.
    join_limit : int, default=0
        Bytes of a shard up to which rows that have been dealt out, and lie behind one
        another now, are one block.

    Returns
    -------
    Shard
        Blocks that were right already are the input's own, not copies.

    Raises
    ------
    ValueError
        For NaN, infinity, negative weights, lengths or columns that disagree, rows
        without labels. The message names the block and the rows.
    TypeError
        For a mixture of dense and sparse blocks, masked arrays, or sparse blocks where
        they are not accepted.
    """
    columns = arguments["n_features"] if n_features is None else n_features
    runs = read_runs(arguments)
    wholes = [run.whole for run in runs]
    kinds: dict[bool, int] = {}
    for raw, index, _ in wholes:
        check_columns(raw.X, index, columns)
        check_numbers(raw.X, index)
        check_kind(kinds, raw.X, index, accept_sparse)
        if require_labels and raw.y is None:
            raise ValueError(
                f"requires y to be passed, but block {index} has no labels."
            )
        _check_targets(raw.y, index, n_targets)
    target = _common_dtype([p.raw.X for p in wholes], arguments["dtype"], dtype)
    options = target, drop_weightless, needs_squares
    joins = sum(n_bytes(piece.raw) for piece in wholes) <= join_limit
    blocks = [block for run in runs for block in _finish_run(run, options, joins)]
    shard = Shard([b for b in blocks if b.X.shape[0]], columns, target)
    shard.n_weightless = sum(p.raw.X.shape[0] for p in wholes) - shard.n_rows
    return shard


def _check_targets(y: np.ndarray | None, index: int, n_targets: int | None) -> None:
    """Refuse a block of y with another number of columns than the fit has."""
    if y is None or y.shape[1:] == (() if n_targets is None else (n_targets,)):
        return
    if n_targets is None:
        raise not_a_column("y", y, index)
    raise ValueError(
        f"Block {index} of y has shape {y.shape}, expected {n_targets} columns; all "
        "blocks need the same columns."
    )


def _common_dtype(
    blocks: list[Any], declared: np.dtype, allowed: Sequence[Any]
) -> np.dtype:
    """Dtype that all blocks get: the smallest allowed one that holds them."""
    found = [_dtype_of(block) for block in blocks] or [np.dtype(declared)]
    common = np.result_type(*found)
    return common if common in [np.dtype(a) for a in allowed] else np.dtype(allowed[0])


def _dtype_of(block: Any) -> np.dtype:
    """NumPy dtype of a block of X."""
    if not is_frame(block):
        return block.dtype
    return frame_to_array(block.iloc[:0]).dtype


def _finish_run(
    run: Run, options: tuple[np.dtype, bool, bool], joins: bool
) -> list[Block]:
    """Convert and check the pieces of a run, all at once if nothing is wrong."""
    if len(run.cuts) > 1:
        try:
            whole = _finish(run.whole, *options)
        except (TypeError, ValueError):
            pass  # which row of the input is wrong, its piece knows
        else:
            if joins:
                return [whole]
            if whole.X.shape[0] == run.whole.raw.X.shape[0]:
                return [_rows(whole, *cut) for cut in run.cuts]
    return [_finish(piece, *options) for piece in run.pieces()]


def _rows(block: Block, start: int, stop: int, first: int) -> Block:
    """Some rows of a block as one, of which the first has a number in the input."""
    y, weights = (
        None if column is None else column[start:stop] for column in block[1:3]
    )
    return Block(take_rows(block.X, start, stop), y, weights, block.index, first)


def _finish(
    piece: RawPiece, dtype: np.dtype, drop_weightless: bool, needs_squares: bool
) -> Block:
    """Convert one piece and check its values."""
    (X, y, weights), index, start = piece
    if is_sparse(X):
        check_sparse(X, f"Block {index} of X")
        # Sums of duplicates may need the range of the type that they get.
        X = without_duplicates(X.astype(dtype, copy=False))
    else:
        X = frame_to_array(X) if is_frame(X) else X
        X = np.ascontiguousarray(X, dtype=dtype)
    X = align(X)
    has_squares = check_finite(X, "X", index, start)
    if y is not None:
        check_finite(y, "y", index, start)
    if weights is not None:
        check_weights(weights, index, start)
    if weights is not None and drop_weightless:
        X, y, weights = _drop_weightless(X, y, weights)
    if needs_squares and not has_squares:
        check_size(X, "X", index, "the features")
    hand_back(X)
    return Block(X, y, weights, index, start)


def _drop_weightless(
    X: Any, y: np.ndarray | None, weights: np.ndarray
) -> tuple[Any, np.ndarray | None, np.ndarray]:
    """Remove the rows whose weight is exactly 0."""
    kept = weights != 0
    if kept.all():
        return X, y, weights
    return X[kept], None if y is None else y[kept], weights[kept]


# -- Blocks put together -------------------------------------------------------------

# What a solver does once per block, such as a pass over all coefficients, costs as much
# for a block of ten rows as for one of a million. So small blocks are joined, as far as
# memory allows it.


def join_shard(shard: Shard, limit: int) -> Shard:
    """Make one block of a shard that is small enough.

    Parameters
    ----------
    shard : Shard
        Blocks of one kind and dtype.
    limit : int
        Most bytes that the copy may take; a larger shard stays as it is.

    Returns
    -------
    shard : Shard
        The same rows in the same order. A shard of one block is returned as it is.
    """
    if len(shard.blocks) < 2 or shard.nbytes > limit:
        return shard
    return replace(shard, blocks=[_join(shard.blocks)])


def join_groups(blocks: Iterable[Block], limit: int) -> Iterator[Block]:
    """Join blocks that follow each other, one group at a time.

    Parameters
    ----------
    blocks : iterable of Block
        Blocks of one kind and dtype.
    limit : int
        Bytes of a group; a block that takes more by itself is passed on as it is.

    Yields
    ------
    block : Block
        The rows of a group. Only one copy is made at a time.
    """
    group: list[Block] = []
    size = 0
    for block in blocks:
        added = n_bytes(block[:3])
        if group and size + added > limit:
            yield _join(group)
            group, size = [], 0
        group.append(block)
        size += added
    if group:
        yield _join(group)


def _join(blocks: Sequence[Block]) -> Block:
    """The rows of some blocks as one, which has the number of the first."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    parts = [block.X for block in blocks]
    sparse = scipy.sparse.issparse(first.X)
    columns = [
        None if column[0] is None else np.concatenate(column)
        for column in zip(*((b.y, b.sample_weight) for b in blocks), strict=True)
    ]
    X = _stacked(parts) if sparse else _put_together(parts)
    for part in parts:
        hand_back(part)
    return first._replace(X=X, y=columns[0], sample_weight=columns[1])


def _stacked(parts: Sequence[Any]) -> Any:
    """The rows of CSR matrices one below the other."""
    lie_together = _view_of_all([part.data for part in parts]) is not None
    if not lie_together:
        return scipy.sparse.vstack(parts, format="csr")
    data, indices = (
        _put_together([getattr(part, name) for part in parts])
        for name in ("data", "indices")
    )
    ends = np.cumsum([part.nnz for part in parts], dtype=parts[0].indptr.dtype)
    starts = np.concatenate([[0], ends[:-1]]).astype(ends.dtype)
    pointers = [p.indptr[1:] + start for p, start in zip(parts, starts, strict=True)]
    indptr = np.concatenate([[0], *pointers]).astype(ends.dtype)
    shape = sum(part.shape[0] for part in parts), parts[0].shape[1]
    return csr_of((data, indices, indptr), shape, type(parts[0]))


def _put_together(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays one behind the other; not copied where they lie like that already."""
    whole = _view_of_all(arrays)
    return np.concatenate(arrays) if whole is None else whole


def _view_of_all(arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """One array of neighbours in memory, as the shares of a rank are; None if not."""
    owner, first = _owner(arrays[0]), arrays[0]
    if isinstance(owner, np.memmap) or not owner.flags.c_contiguous:
        return None
    address = first.ctypes.data
    for array in arrays:
        is_next = array.ctypes.data == address and _owner(array) is owner
        if not is_next or not array.flags.c_contiguous or array.dtype != first.dtype:
            return None
        address += array.nbytes
    start = first.ctypes.data - owner.ctypes.data
    stop = address - owner.ctypes.data
    found = owner.reshape(-1).view(np.uint8)[start:stop].view(first.dtype)
    return as_whole(found.reshape(-1, *first.shape[1:]))


def _owner(array: np.ndarray) -> np.ndarray:
    """The array whose memory an array is a part of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
