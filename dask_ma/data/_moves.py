"""Moves of rows between workers: pieces of blocks, and rows on disks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_ma.data import _collections as cluster
from dask_ma.data._blocks import n_bytes
from dask_ma.data._checks import cut_rows
from dask_ma.data._placement import Plan, Segment
from dask_ma.data._spec import Partition, Piece
from dask_ma.data._stream import RowCache

if TYPE_CHECKING:
    from distributed import Client, Future

__all__: list[str] = []


def move(
    client: Client,
    plan: Plan,
    sources: list[tuple[Any, ...]],
    held: list[list[str]],
    lengths: list[int],
    addresses: Sequence[str],
    owned: list[Future],
    cache: RowCache | None,
) -> tuple[list[list[Piece]], int]:
    """Pieces of each rank, and the bytes that change workers.

    A whole block moves as it is; part of one is cut where it lies, so that no more than
    the part travels. Nothing is submitted when nothing moves. Files are read where they
    are, and written where they are to be.
    """
    firsts = firsts_of(lengths)
    pieces: list[list[Piece]] = []
    moving: list[tuple[Any, str]] = []
    for address, segments in zip(addresses, plan, strict=True):
        own: list[Piece] = []
        pieces.append(own)
        for segment in segments:
            block, start, stop = segment
            piece = piece_of(sources[block], segment, lengths, firsts)
            holders = held[block]
            if address in holders:
                own.append(piece)
                continue
            if cache is not None or stop - start < lengths[block]:
                piece = _cut(client, piece, holders[0])
            moving.append((piece.source, holders[0]))
            if cache is not None:
                stored = cache.store_at(client, piece.source, address)
                piece = piece._replace(source=stored)
            if piece.source is not sources[block]:
                owned.append(piece.source)
            own.append(piece)
    return pieces, _count_bytes(client, moving)


def settle(
    client: Client, cache: RowCache, shards: Partition, addresses: Sequence[str]
) -> None:
    """Write rows anew whose files are not where their rank is, after a loss."""
    for spec, address in zip(shards.shards, addresses, strict=True):
        for place, piece in enumerate(spec.pieces):
            main = piece.source[0] if isinstance(piece.source, tuple) else piece.source
            [holders] = cluster.holders_of(client, [main])
            if address in holders or not holders:
                continue
            cut = _cut(client, piece, holders[0])
            stored = cache.store_at(client, cut.source, address)
            shards.owned.append(stored)
            spec.pieces[place] = cut._replace(source=stored)


def _cut(client: Client, piece: Piece, holder: str) -> Piece:
    """The same rows, as a future of their own on the worker that holds the block."""
    source, start, stop, rows, index, first = piece
    arguments = (source, start, stop, rows, index)
    [cut] = cluster.run_together(client, [(cut_rows, arguments, holder)], strict=False)
    return Piece(cut, 0, stop - start, stop - start, index, first)


def _count_bytes(client: Client, moving: list[tuple[Any, str]]) -> int:
    """Bytes of data that are to leave their workers, measured there."""
    if not moving:
        return 0
    by_holder: defaultdict[str, list[Any]] = defaultdict(list)
    for source, holder in moving:
        by_holder[holder].append(source)
    calls = [(n_bytes, (sources,), holder) for holder, sources in by_holder.items()]
    return sum(cluster.call_now(client, calls))


def bytes_followed(
    plan: Plan,
    held: list[list[list[str]]],
    lengths: list[int],
    addresses: Sequence[str],
    columns: Sequence[Any],
) -> int:
    """Bytes of y and weights that lie elsewhere than their block of X."""
    total = 0
    for column, places in zip(columns, held[1:], strict=True):
        width = int(getattr(column.dtype, "itemsize", 8))
        wanted = {
            (address, segment.block)
            for address, segments in zip(addresses, plan, strict=True)
            for segment in segments
            if address in held[0][segment.block]
        }
        total += sum(
            lengths[block] * width
            for address, block in wanted
            if address not in places[block]
        )
    return total


def firsts_of(lengths: Sequence[int]) -> list[int]:
    """Number of the first row of each block in the whole input."""
    return [0, *np.cumsum(lengths).tolist()]


def piece_of(
    source: Any, segment: Segment, lengths: Sequence[int], firsts: Sequence[int]
) -> Piece:
    """Rows of a block that its rank slices by itself."""
    block, start, stop = segment
    return Piece(source, start, stop, lengths[block], block, firsts[block] + start)
