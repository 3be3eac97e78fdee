"""Rows of workers that were lost: brought back where that is possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from distributed.client import FuturesCancelledError

from dask_ma.data._spec import Partition, Piece, ShardSpec

if TYPE_CHECKING:
    from distributed import Client, Future

__all__ = ["drop_shards", "recover_shards"]

_SHORT_WAIT = 0.02  # seconds between looks at blocks that are being computed again
_GONE = ("cancelled", "error")


def recover_shards(
    shards: Partition, moved: Mapping[int, str], client: Client, timeout: float
) -> int:
    """Bring back the rows that went with lost workers.

    Rows of this process are sent again. Blocks that Dask has computed it computes
    again by itself, from the graph that the scheduler has; they are only waited for.
    Blocks that were scattered, or are tied to a worker that has gone, are lost.

    Parameters
    ----------
    shards : Partition
        Changed in place.
    moved : dict of int to str
        New worker of each rank whose worker was lost.
    client : distributed.Client
        The client of the partition.
    timeout : float
        Seconds to wait for blocks that are computed again.

    Returns
    -------
    n_rows : int
        Rows that are lost for good.
    """
    for rank, address in moved.items():
        if shards.resend is not None:
            shards.shards[rank] = _resent(shards, rank, address)
    wanted = [future for spec in shards.shards for future in _futures(spec)]
    missing = _wait(client, wanted, timeout)
    n_lost = 0
    for rank, spec in enumerate(shards.shards):
        there = [
            piece
            for piece in spec.pieces
            if missing.isdisjoint(f.key for f in _sources(piece.source))
        ]
        if len(there) == len(spec.pieces):
            continue
        kept = replace(spec, pieces=there, aligned=spec.aligned if there else None)
        n_lost += spec.n_rows - kept.n_rows
        shards.shards[rank] = kept
        if shards.resend is not None and there:
            address = moved.get(rank) or _place(client, there[0])
            shards.shards[rank] = _resent(shards, rank, address)
    shards.n_rows -= n_lost
    return n_lost


def drop_shards(shards: Partition, ranks: Sequence[int]) -> int:
    """Leave ranks without rows; return how many rows they had."""
    n_lost = 0
    for rank in ranks:
        spec = shards.shards[rank]
        n_lost += spec.n_rows
        shards.shards[rank] = replace(spec, pieces=[], aligned=None)
    shards.n_rows -= n_lost
    return n_lost


def _resent(shards: Partition, rank: int, address: str) -> ShardSpec:
    """The spec of a rank after its rows in this process have been sent again."""
    if shards.resend is None:
        raise RuntimeError("nothing of the rows is in this process")
    spec, futures = shards.resend(rank, shards.shards[rank], address)
    shards.owned += futures
    return spec


def _futures(spec: ShardSpec) -> list[Future]:
    """Futures of the blocks of a rank."""
    return [future for piece in spec.pieces for future in _sources(piece.source)]


def _sources(source: Any) -> list[Future]:
    """Futures in the source of a piece."""
    parts = source if isinstance(source, tuple) else (source,)
    return [part for part in parts if hasattr(part, "status")]


def _wait(client: Client, futures: Sequence[Future], timeout: float) -> set[Any]:
    """Wait for blocks; return the keys of those that are not coming.

    The scheduler is asked who holds them: a future may not know yet of its loss.
    """
    deadline = monotonic() + timeout
    pending = list(futures)
    gone: set[Any] = set()
    while pending:
        gone |= {future.key for future in pending if future.status in _GONE}
        pending = [future for future in pending if future.key not in gone]
        try:
            places = client.who_has(pending)
        except FuturesCancelledError:
            continue  # by now the futures know it, too
        pending = [future for future in pending if not places.get(future.key)]
        if monotonic() >= deadline:
            break
        sleep(_SHORT_WAIT)
    return gone | {future.key for future in pending}


def _place(client: Client, piece: Piece) -> str:
    """A worker that holds a piece."""
    futures = _sources(piece.source)
    return str(next(iter(client.who_has(futures)[futures[0].key])))
