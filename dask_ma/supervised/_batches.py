"""The batches of a pass: each row once, in as many steps as all ranks make."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dask_ma.data import Block, Shard, hand_back, read_ahead
from dask_ma.engine import RankContext
from dask_ma.kernels import one_vs_rest_targets, row_slice

# SciPy takes longer to pick the rows of a small batch than a step takes. Rows are
# picked for many batches at a time, which are then views; this bounds the copy.
_CHUNK_BYTES = 4 * 2**20
_CHUNK_ROWS = 4096


class Piece(NamedTuple):
    """Rows of one block, all or some of a batch.

    Attributes
    ----------
    X : ndarray or CSR of shape (n_rows, n_features)
    y : ndarray of shape (n_rows,) or (n_rows, n_problems), or None
        Targets as the shard has them, or -1 and +1 for each problem.
    sample_weight : ndarray of shape (n_rows,) or None
    rows : ndarray of int64 of shape (n_rows,)
        Which rows of the shard these are.
    """

    X: Any
    y: Any
    sample_weight: np.ndarray | None
    rows: np.ndarray

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.rows)

    def part(self, start: int, stop: int) -> Piece:
        """Some of the rows, as views."""
        y, weight = self.y, self.sample_weight
        return Piece(
            row_slice(self.X, start, stop),
            None if y is None else y[start:stop],
            None if weight is None else weight[start:stop],
            self.rows[start:stop],
        )


def pass_batches(
    shard: Shard,
    n_steps: int,
    rng: np.random.Generator | None,
    *,
    n_problems: int | None = None,
    period: int | None = None,
    chunk_bytes: int | None = None,
) -> Iterator[list[Piece]]:
    """Cut a pass over a rank's rows into batches of nearly equal size.

    A rank with fewer rows than another has smaller batches, or empty ones, so that all
    ranks make the same number of steps and no row counts twice.

    Parameters
    ----------
    shard : Shard
        The rank's rows.
    n_steps : int
        Number of batches.
    rng : Generator or None
        Shuffles the blocks, and the rows of a block; None keeps the order.
    n_problems : int, default=None
        Number of linear functions, where y holds class codes and the batches are to
        hold the targets -1 and +1 of one class against the rest.
    period : int, default=None
        Batches after which the caller waits for something else, while which the next
        rows are best picked.
    chunk_bytes : int, default=None
        Of rows that are picked at a time, but no fewer than those of a batch. It makes
        no difference to the batches.

    Yields
    ------
    pieces : list of Piece
        The rows of a batch: of one block, or of several where it ends within a batch.
    """
    bounds = [shard.n_rows * step // n_steps for step in range(n_steps + 1)]
    size, ends = _rows_at_once(shard, n_problems, _CHUNK_BYTES), [shard.n_rows]
    if chunk_bytes is not None:
        of_batch = -(-shard.n_rows // n_steps)
        few = _rows_at_once(shard, n_problems, chunk_bytes)
        size = min(size, max(few, of_batch))
    if period is not None:
        # Not so often that fewer rows are picked at a time than are half of a chunk.
        n_periods = -(-size * n_steps // (2 * period * max(1, shard.n_rows)))
        ends = [*bounds[:: period * max(1, n_periods)], shard.n_rows]
    chunks = _chunks(shard, rng, n_problems, size, ends)
    chunk, position = None, 0
    for start, stop in pairwise(bounds):
        pieces, missing = [], stop - start
        while missing:
            if chunk is None or position == chunk.n_rows:
                chunk = None  # not two at a time
                chunk, position = next(chunks), 0
            taken = min(missing, chunk.n_rows - position)
            pieces.append(chunk.part(position, position + taken))
            position += taken
            missing -= taken
        if chunk is not None and position == chunk.n_rows:
            chunk = None  # no longer than the caller wants it
        yield pieces


def pass_generator(context: RankContext, n_passes: int) -> np.random.Generator:
    """Random numbers of this rank for the pass after `n_passes` passes."""
    key = (*context.seed.spawn_key, n_passes)
    return np.random.default_rng(
        np.random.SeedSequence(context.seed.entropy, spawn_key=key)
    )


def _rows_at_once(shard: Shard, n_problems: int | None, chunk_bytes: int) -> int:
    """Most rows that are picked at a time."""
    row_bytes = shard.nbytes // max(1, shard.n_rows) + 8 * (n_problems or 0)
    return min(_CHUNK_ROWS, max(1, chunk_bytes // max(1, row_bytes)))


def _chunks(
    shard: Shard,
    rng: np.random.Generator | None,
    n_problems: int | None,
    size: int,
    ends: Sequence[int],
) -> Iterator[Piece]:
    """The rows of a shard in the order of a pass, at most `size` of them at a time."""
    # Nor does a chunk go beyond one of `ends`, numbers of rows in this order, rising.
    firsts = np.cumsum([0, *(block.X.shape[0] for block in shard.blocks)])
    n_blocks = len(shard.blocks)
    order = range(n_blocks) if rng is None else rng.permutation(n_blocks)
    n_before = 0  # rows of the blocks before
    for index in read_ahead(order, lambda i: shard.blocks[i].X):
        block, first = shard.blocks[index], firsts[index]
        n_rows = block.X.shape[0]
        rows = None if rng is None else rng.permutation(n_rows)
        stop = 0
        while stop < n_rows:
            start = stop
            end = ends[bisect_right(ends, n_before + start)] - n_before
            stop = min(start + size, n_rows, end)
            # No name for it: it would be kept here until the next one is wanted.
            yield _chunk(block, start, stop, rows, n_problems, first)
            hand_back(block.X)
        n_before += n_rows


def _chunk(
    block: Block,
    start: int,
    stop: int,
    order: np.ndarray | None,
    n_problems: int | None,
    first: int,
) -> Piece:
    """Rows of a block: as views, or picked in a random order."""
    rows = np.arange(start, stop) if order is None else order[start:stop]
    picked: Any = slice(start, stop) if order is None else rows
    X = row_slice(block.X, start, stop) if order is None else block.X[rows]
    y, weight = block.y, block.sample_weight
    if y is not None:
        y = y[picked]
        if n_problems is not None:
            y = one_vs_rest_targets(y, n_problems, X.dtype)
    return Piece(X, y, None if weight is None else weight[picked], first + rows)
