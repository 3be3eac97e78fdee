"""Rows of workers that were lost: brought back where that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from distributed.client import FuturesCancelledError

from dask_ma.data._collections import rests_on_futures
from dask_ma.data._inputs import is_dask_collection
from dask_ma.data._spec import Partition, ShardSpec
from dask_ma.data._standstill import Standstill
from dask_ma.exceptions import CommTimeoutError

if TYPE_CHECKING:
    from distributed import Client, Future

__all__ = ["can_be_had_again", "drop_shards", "recover_shards"]

_SHORT_WAIT = 0.05  # seconds between looks at blocks that are being computed again
_STILL = 5.0  # seconds without work on anything, after which blocks will not come


def can_be_had_again(*columns: Any) -> bool:
    """Whether an input can be partitioned once more, whatever the cluster has lost.

    Parameters
    ----------
    *columns : array-like, Dask collection or None
        X, y and sample weights.

    Returns
    -------
    bool
        False if a collection rests on data in worker memory.
    """
    collections = [column for column in columns if is_dask_collection(column)]
    return not any(map(rests_on_futures, collections))


def recover_shards(
    shards: Partition,
    moved: Sequence[int],
    addresses: Sequence[str],
    client: Client,
    timeout: float,
    *,
    allow_pending: bool,
) -> int:
    """Bring back the rows that went with lost workers.

    Rows of this process are sent again. Blocks that Dask has computed it computes
    again by itself, from the graph that the scheduler has; they are only waited for.
    Blocks that were scattered, or whose tasks the scheduler has forgotten, are lost.

    Parameters
    ----------
    shards : Partition
        Changed in place.
    moved : sequence of int
        Ranks whose worker was lost.
    addresses : sequence of str
        Worker of each rank now.
    client : distributed.Client
        The client of the partition.
    timeout : float
        Seconds to wait for blocks that are computed again.
    allow_pending : bool
        Whether blocks that are not there by then count as lost, or that no worker is
        going to make; otherwise they are an error, since they may still come.

    Returns
    -------
    n_rows : int
        Rows that are lost for good.

    Raises
    ------
    PeerLostError
        If a worker goes while rows are sent to it.
    CommTimeoutError
        If blocks are still being computed after `timeout`.
    Exception
        What the computation of a block has raised.
    """
    for rank in moved:
        _resend(shards, rank, addresses)
    wanted = [future for spec in shards.shards for future in _futures(spec)]
    missing, pending = _wait(client, wanted, timeout, allow_pending=allow_pending)
    if pending and not (allow_pending or shards.is_resendable):
        raise CommTimeoutError(
            f"{len(pending)} blocks that were lost with workers have not been computed "
            f"again within {timeout:g} s (dask-ma.recovery.data-timeout)"
        )
    missing |= pending
    n_lost = 0
    for rank, spec in enumerate(shards.shards):
        there = [
            piece
            for piece in spec.pieces
            if missing.isdisjoint(f.key for f in _sources(piece.source))
        ]
        if len(there) == len(spec.pieces):
            if not missing.isdisjoint(f.key for f in _sources(spec.aligned)):
                _resend(shards, rank, addresses)
            continue
        if shards.is_resendable:
            # Gone since, with a worker or by a restart of the cluster.
            _resend(shards, rank, addresses)
            continue
        kept = replace(spec, pieces=there, aligned=spec.aligned if there else None)
        n_lost += spec.n_rows - kept.n_rows
        shards.shards[rank] = kept
        if there:
            _resend(shards, rank, addresses)
    shards.n_rows -= n_lost
    if shards.settle is not None:
        shards.settle(shards, addresses)
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


def _resend(shards: Partition, rank: int, addresses: Sequence[str]) -> None:
    """Send a rank again what this process has of its rows."""
    if shards.resend is None:
        return
    spec, futures = shards.resend(rank, shards.shards[rank], addresses[rank])
    shards.shards[rank] = spec
    shards.owned += futures


def _futures(spec: ShardSpec) -> list[Future]:
    """Futures of the blocks of a rank, and of what the client has sent beside them."""
    blocks = [future for piece in spec.pieces for future in _sources(piece.source)]
    return blocks + _sources(spec.aligned)


def _sources(source: Any) -> list[Future]:
    """Futures in the source of a piece."""
    parts = source if isinstance(source, tuple) else (source,)
    return [part for part in parts if hasattr(part, "status")]


def _wait(
    client: Client, futures: Sequence[Future], timeout: float, *, allow_pending: bool
) -> tuple[set[Any], set[Any]]:
    """Wait for blocks; return keys of those lost, and of those still to come."""
    deadline, standstill = monotonic() + timeout, Standstill(client)
    pending = list(futures)
    gone: set[Any] = set()
    while pending:
        for future in pending:
            if future.status == "error":
                future.result()
        gone |= {future.key for future in pending if future.status == "cancelled"}
        pending = [future for future in pending if future.key not in gone]
        # The scheduler is asked: a future may not know yet of its loss.
        try:
            places = client.who_has(pending)
        except FuturesCancelledError:
            continue  # by now the futures know it, too
        pending = [future for future in pending if not places.get(future.key)]
        if monotonic() >= deadline:
            break
        if allow_pending and standstill.seconds() >= _STILL and standstill.n_running:
            break
        sleep(_SHORT_WAIT)
    return gone, {future.key for future in pending}
