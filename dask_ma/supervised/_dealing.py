"""Rows that are dealt out to the ranks once these know how different theirs are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather, alltoall
from dask_ma.data import Block, hand_back, plan_dealt
from dask_ma.kernels import row_slice
from dask_ma.supervised._problem import Problem

# Number of a block among those of all ranks, and rows of it: start, stop.
Piece = tuple[int, int, int]


class DealtRows(NamedTuple):
    """Rows of several pieces, as a message has them.

    Attributes
    ----------
    pieces : list of tuple of int
        Where they come from, in their order.
    X : tuple of ndarray
        The rows; data, column indices and row pointer of sparse ones.
    y : ndarray of shape (n_rows,) or (n_rows, n_targets)
    sample_weight : ndarray of shape (n_rows,) or None
    """

    pieces: list[Piece]
    X: tuple[np.ndarray, ...]
    y: np.ndarray
    sample_weight: np.ndarray | None


def deal_rows(group: Group, problem: Problem) -> Problem:
    """Give each rank rows from everywhere, as one block; a collective call.

    They are dealt out as rows in memory are. Which rank gets what depends on the blocks
    of the input and on the number of ranks, not on where the blocks lie.

    Parameters
    ----------
    group : Group
        This rank.
    problem : Problem
        The rows, of which some copies are in memory for a moment.

    Returns
    -------
    problem : Problem
        The same with other rows on each rank.
    """
    blocks = problem.shard.blocks
    own = [(b.index, b.start or 0, group.rank, len(b.y)) for b in blocks]
    known: list[list[tuple[int, int, int, int]]] = allgather(group, own)
    order = sorted(each for rank in known for each in rank)
    numbers = {each: number for number, each in enumerate(order)}
    mine = {numbers[each]: block for each, block in zip(own, blocks, strict=True)}
    plan = plan_dealt([n_rows for *_, n_rows in order], group.size)
    payloads = [
        _picked(mine, [piece for piece in segments if piece.block in mine])
        for segments in plan
    ]
    for block in blocks:
        hand_back(block.X)
    received = [
        DealtRows(*rows) for rows in alltoall(group, payloads) if rows is not None
    ]
    dealt = [_joined(received, problem)] if received else []
    weight = float(sum(block.weights().sum() for block in dealt))
    shard = replace(problem.shard, blocks=dealt)
    return replace(problem, shard=shard, weight=weight, uneven=None, most=None)


def _picked(mine: dict[int, Block], pieces: Sequence[Piece]) -> tuple[Any, ...] | None:
    """The rows of some pieces of this rank's blocks; None of no pieces."""
    if not pieces:
        return None
    rows = [row_slice(mine[number].X, start, stop) for number, start, stop in pieces]
    if sparse.issparse(rows[0]):
        stack = sparse.vstack(rows, format="csr")
        X = [stack.data, stack.indices, stack.indptr]
    else:
        X = [np.concatenate(rows)]
    y = np.concatenate([mine[n].y[start:stop] for n, start, stop in pieces])
    weights = [
        weight[start:stop]
        for number, start, stop in pieces
        if (weight := mine[number].sample_weight) is not None
    ]
    weight = np.concatenate(weights) if weights else None
    return tuple(DealtRows([(n, a, b) for n, a, b in pieces], tuple(X), y, weight))


def _joined(received: list[DealtRows], problem: Problem) -> Block:
    """Rows from all ranks as one block, in the order of the input."""
    shard = problem.shard
    kind = type(shard.blocks[0].X) if shard.is_sparse else sparse.csr_matrix
    pieces = [piece for rows in received for piece in rows.pieces]
    parts = [
        rows.X[0] if len(rows.X) == 1 else kind(rows.X, (len(rows.y), shard.n_features))
        for rows in received
    ]
    is_csr = sparse.issparse(parts[0])
    X = sparse.vstack(parts, format="csr") if is_csr else np.concatenate(parts)
    y = np.concatenate([rows.y for rows in received])
    weights = [r.sample_weight for r in received if r.sample_weight is not None]
    weight = np.concatenate(weights) if weights else None
    order = sorted(range(len(pieces)), key=pieces.__getitem__)
    if order != list(range(len(pieces))):
        lengths = np.array([stop - start for _, start, stop in pieces])
        ends = np.cumsum(lengths)
        rows = np.concatenate([np.arange(ends[i] - lengths[i], ends[i]) for i in order])
        X, y = X[rows], y[rows]
        weight = None if weight is None else weight[rows]
    return Block(X, y, weight, 0, None)
