"""Rows that are dealt out to the ranks once these know how different theirs are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dask_ma.comm import Group, allgather, alltoall
from dask_ma.data import Block, join_shard, pack_block, plan_dealt, unpack_block
from dask_ma.kernels import row_slice
from dask_ma.supervised._problem import Problem


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
    shard = problem.shard
    own = [(b.index, b.start or 0, group.rank, len(b.y)) for b in shard.blocks]
    known: list[list[tuple[int, int, int, int]]] = allgather(group, own)
    order = sorted(each for rank in known for each in rank)
    numbers = {each: number for number, each in enumerate(order)}
    mine = {numbers[b]: block for b, block in zip(own, shard.blocks, strict=True)}
    plan = plan_dealt([n_rows for *_, n_rows in order], group.size)
    messages = [
        [
            (tuple(piece), pack_block(_rows(mine[piece.block], *piece[1:])))
            for piece in segments
            if piece.block in mine
        ]
        for segments in plan
    ]
    received = [each for part in alltoall(group, messages) for each in part]
    received.sort(key=_place)
    blocks = [unpack_block(message, shard.n_features) for _, message in received]
    dealt = replace(shard, blocks=blocks)
    dealt = join_shard(dealt, dealt.nbytes)
    weight = float(sum(block.weights().sum() for block in dealt.blocks))
    return replace(problem, shard=dealt, weight=weight, uneven=None, most=None)


def _rows(block: Block, start: int, stop: int) -> Block:
    """Some rows of a block, as views."""
    weights = block.sample_weight
    return block._replace(
        X=row_slice(block.X, start, stop),
        y=block.y[start:stop],
        sample_weight=None if weights is None else weights[start:stop],
    )


def _place(received: tuple[tuple[int, ...], list[Any]]) -> tuple[int, ...]:
    """Where rows that have come are from."""
    return received[0]
