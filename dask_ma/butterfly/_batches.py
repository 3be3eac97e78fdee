"""The batches of a pass: each row once, in as many steps as all ranks make."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dask_ma.data import Block, Shard
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
    targets : ndarray of shape (n_rows, n_problems)
        -1 or +1.
    sample_weight : ndarray of shape (n_rows,) or None
    """

    X: Any
    targets: np.ndarray
    sample_weight: np.ndarray | None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.targets)

    def rows(self, start: int, stop: int) -> Piece:
        """Some of the rows, as views."""
        weight = self.sample_weight
        return Piece(
            row_slice(self.X, start, stop),
            self.targets[start:stop],
            None if weight is None else weight[start:stop],
        )


def pass_batches(
    shard: Shard, n_steps: int, n_problems: int, rng: np.random.Generator | None
) -> Iterator[list[Piece]]:
    """Cut a pass over a rank's rows into batches of nearly equal size.

    A rank with fewer rows than another has smaller batches, or empty ones, so that all
    ranks make the same number of steps and no row counts twice.

    Parameters
    ----------
    shard : Shard
        The rank's rows; y holds class codes.
    n_steps : int
        Number of batches.
    n_problems : int
        Number of linear functions.
    rng : Generator or None
        Shuffles the blocks, and the rows of a block; None keeps the order.

    Yields
    ------
    pieces : list of Piece
        The rows of a batch: of one block, or of several where it ends within a batch.
    """
    chunks = _chunks(shard, n_problems, rng)
    bounds = [shard.n_rows * step // n_steps for step in range(n_steps + 1)]
    chunk, position = None, 0
    for start, stop in pairwise(bounds):
        pieces, missing = [], stop - start
        while missing:
            if chunk is None or position == chunk.n_rows:
                chunk, position = next(chunks), 0
            taken = min(missing, chunk.n_rows - position)
            pieces.append(chunk.rows(position, position + taken))
            position += taken
            missing -= taken
        yield pieces


def _chunks(
    shard: Shard, n_problems: int, rng: np.random.Generator | None
) -> Iterator[Piece]:
    """The rows of a shard in the order of a pass, some thousand at a time."""
    row_bytes = shard.nbytes // max(1, shard.n_rows) + 8 * n_problems
    size = min(_CHUNK_ROWS, max(1, _CHUNK_BYTES // row_bytes))
    n_blocks = len(shard.blocks)
    order = range(n_blocks) if rng is None else rng.permutation(n_blocks)
    for index in order:
        block = shard.blocks[index]
        n_rows = len(block.y)
        rows = None if rng is None else rng.permutation(n_rows)
        for start in range(0, n_rows, size):
            yield _chunk(block, start, min(start + size, n_rows), rows, n_problems)


def _chunk(
    block: Block, start: int, stop: int, order: np.ndarray | None, n_problems: int
) -> Piece:
    """Rows of a block: as views, or picked in a random order."""
    rows: Any = slice(start, stop) if order is None else order[start:stop]
    X = row_slice(block.X, start, stop) if order is None else block.X[rows]
    weight = block.sample_weight
    return Piece(
        X,
        one_vs_rest_targets(block.y[rows], n_problems, X.dtype),
        None if weight is None else weight[rows],
    )
