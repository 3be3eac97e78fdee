"""Blocks of a Dask collection to the pieces of each rank."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dask_ma import _config
from dask_ma.data import _collections as cluster
from dask_ma.data._blocks import join_rows, n_bytes
from dask_ma.data._frames import as_arrays
from dask_ma.data._input_size import Narrow, size_of_blocks
from dask_ma.data._inputs import (
    InputInfo,
    check_column,
    check_features,
    is_dask_collection,
    no_rows,
    row_lengths,
)
from dask_ma.data._moves import bytes_followed, firsts_of, move, piece_of, settle
from dask_ma.data._placement import (
    Plan,
    main_ranks,
    plan_contiguous,
    plan_dealt,
    plan_in_place,
)
from dask_ma.data._spec import Partition, Piece, Resend, ShardSpec, make_partition
from dask_ma.data._standstill import out_of_reach
from dask_ma.data._stream import (
    Kept,
    RowCache,
    go_to_disks,
    is_little,
    persists,
    usage_before,
)
from dask_ma.exceptions import NoWorkersError

if TYPE_CHECKING:
    from distributed import Client, Future

logger = logging.getLogger("dask_ma.data")

__all__: list[str] = []


class _Columns(NamedTuple):
    """y and weights beside a Dask X: lazy ones and those of this process."""

    lazy: list[Any]
    arrays: tuple[np.ndarray | None, np.ndarray | None]
    is_lazy: tuple[bool, bool]

    @property
    def names(self) -> list[str]:
        """Names of the lazy ones."""
        both = zip(("y", "sample_weight"), self.is_lazy, strict=True)
        return [name for name, lazy in both if lazy]


def from_dask(
    info: InputInfo,
    X: Any,
    y: Any,
    sample_weight: Any,
    n_ranks: int,
    addresses: Sequence[str] | None,
    client: Client | None,
    *,
    multi_output: bool,
    deals: bool,
    dtypes: Sequence[Any],
    copies: Kept,
    needed: Any,
    spares: bool,
    narrow: Narrow | None,
) -> Partition:
    """Blocks of a Dask collection, checked by metadata before anything is computed."""
    X = check_features(X, info)
    columns = _sort_columns(
        check_column(y, "y", X, multi_output=multi_output),
        check_column(sample_weight, "sample_weight", X),
    )
    here = client is None or addresses is None
    X, *lazy = as_arrays([X, *columns.lazy], keep_persisted=not here)
    columns = columns._replace(lazy=lazy)
    chosen, cache = persists(), None
    if chosen is False or (chosen is None and not is_little(info)):
        spares = spares and chosen is None and not here
        if spares:
            logger.info("rows go to local disks from here on (dask-ma.data.persist)")
        certain = chosen is False or spares
        cache = RowCache(dtypes, copies, certain, needed)
    if client is None or addresses is None:
        return _compute_here(info, X, columns, n_ranks, deals, cache)
    return _use_workers(info, X, columns, addresses, client, deals, cache, narrow)


def _sort_columns(y: Any, sample_weight: Any) -> _Columns:
    """Tell lazy columns from those in memory."""
    both = (y, sample_weight)
    is_lazy = (is_dask_collection(y), is_dask_collection(sample_weight))
    return _Columns(
        lazy=[c for c, lazy in zip(both, is_lazy, strict=True) if lazy],
        arrays=tuple(  # type: ignore[arg-type]
            None if lazy else c for c, lazy in zip(both, is_lazy, strict=True)
        ),
        is_lazy=is_lazy,
    )


def _sources(blocks: list[list[Any]], columns: _Columns) -> list[tuple[Any, ...]]:
    """(X, y, sample_weight) of each block; None for what is not lazy."""
    rest = iter(blocks[1:])
    none = [None] * len(blocks[0])
    ys, weights = (next(rest) if lazy else none for lazy in columns.is_lazy)
    return list(zip(blocks[0], ys, weights, strict=True))


def _compute_here(
    info: InputInfo,
    X: Any,
    columns: _Columns,
    n_ranks: int,
    deals: bool,
    cache: RowCache | None,
) -> Partition:
    """Blocks computed by the local scheduler; in memory unless that is not wanted."""
    if cache is not None and not cache.is_certain:
        cache = None  # there are no workers whose memory has a limit
    try:
        return _place_here(info, X, columns, n_ranks, deals, cache)
    except BaseException as error:
        if cache is not None:
            cache.remove(None, ())
        _explain(error, X, columns)
        raise


def _place_here(
    info: InputInfo,
    X: Any,
    columns: _Columns,
    n_ranks: int,
    deals: bool,
    cache: RowCache | None,
) -> Partition:
    """Blocks of this process, given out as the placement says."""
    if cache is None:
        blocks = cluster.compute_locally([X, *columns.lazy])
    else:
        stored = cache.store_here(X)
        blocks = cluster.compute_locally([*stored, *columns.lazy])
        blocks = [[block for [block] in blocks[: len(stored)]], *blocks[len(stored) :]]
    lengths = [block.shape[0] for block in blocks[0]]
    _check_total(info, lengths, columns)
    for name, column in zip(columns.names, blocks[1:], strict=True):
        column[:] = _match_here(name, column, lengths)
    plan = (plan_dealt if deals else plan_contiguous)(lengths, n_ranks)
    firsts = firsts_of(lengths)
    sources = _sources(blocks, columns)
    pieces = [
        [piece_of(sources[s.block], s, lengths, firsts) for s in segments]
        for segments in plan
    ]
    result = make_partition(info, sum(lengths), pieces)
    for shard in result.shards:
        shard.aligned = _cut_columns(columns.arrays, shard.pieces)
    result.remove_files = None if cache is None else partial(cache.remove, None, ())
    return result


def _explain(error: BaseException, X: Any, columns: _Columns) -> None:
    """Say what is wrong where blocks are those of a cluster that nobody can ask."""
    if not isinstance(error, KeyError | ValueError):
        return  # Dask raises these of a key that it has no task for
    both = zip(["X", *columns.names], [X, *columns.lazy], strict=True)
    for name, collection in both:
        if cluster.rests_on_futures(collection):
            raise NoWorkersError(
                f"{name} has blocks that were persisted on a cluster, or scattered to "
                "it, and there is no current client; fit before that client is "
                f"closed, or build {name} again"
            ) from error


def _match_here(name: str, column: list[Any], lengths: list[int]) -> list[Any]:
    """Blocks of y or weights in memory that are as long as those of X."""
    found = cluster.count_rows(column)
    if found == lengths:
        return column
    _check_rows(name, found, lengths)
    return [join_rows(*cut) for cut in cluster.cut_like(column, found, lengths)]


def _use_workers(
    info: InputInfo,
    X: Any,
    columns: _Columns,
    addresses: Sequence[str],
    client: Client,
    deals: bool,
    cache: RowCache | None,
    narrow: Narrow | None,
) -> Partition:
    """Blocks of the workers, given out as the placement says."""
    owned: list[Future] = []
    try:
        return _place_blocks(
            info, X, columns, addresses, client, owned, deals, cache, narrow
        )
    except BaseException:
        cluster.release(owned)
        if cache is not None and cache.is_used:
            cache.remove(client, addresses)
        raise


def _place_blocks(
    info: InputInfo,
    X: Any,
    columns: _Columns,
    addresses: Sequence[str],
    client: Client,
    owned: list[Future],
    deals: bool,
    cache: RowCache | None,
    narrow: Narrow | None,
) -> Partition:
    """Compute what is not computed, plan, move; `owned` gets all new futures."""
    in_place = cluster.rests_on_futures(X)
    pins = known = None
    if not in_place:
        known = usage_before(client, addresses, cache)
        pins = [addresses[rank] for rank in _planned_ranks(X, len(addresses))]
    blocks = cluster.start_blocks(client, [X, *columns.lazy], pins, owned)
    could_spare = cache is not None
    if cache is not None:
        if go_to_disks(client, blocks[0], info, addresses, cache, pins, known):
            blocks[0] = _to_disks(client, cache, blocks[0], pins, addresses, owned)
        else:
            cache = None
    held = _locate(client, blocks, addresses)
    counts = _known_lengths(client, [X, *columns.lazy], blocks, held)
    lengths = counts[0]
    _check_total(info, lengths, columns)
    for number, name in enumerate(columns.names, start=1):
        if counts[number] != lengths:
            _check_rows(name, counts[number], lengths)
            blocks[number] = cluster.cut_on_workers(
                client, blocks[number], counts[number], lengths, held[0]
            )
            owned += blocks[number]
            [held[number]] = _locate(client, [blocks[number]], addresses)
    if narrow is not None and cache is None:
        size = size_of_blocks(client, blocks[0], info, sum(lengths))
        addresses = (size and narrow(size)) or addresses
    plan = _plan_rows(lengths, held[0] if in_place else None, addresses, deals)
    sources = _sources(blocks, columns)
    pieces, moved = move(
        client, plan, sources, held[0], lengths, addresses, owned, cache
    )
    result = make_partition(info, sum(lengths), pieces)
    result.addresses = list(addresses)
    result.bytes_moved = moved
    result.can_spare = could_spare and cache is None
    if cache is not None:
        result.remove_files = partial(cache.remove, client, list(addresses))
        result.settle = partial(settle, client, cache)
    result.bytes_followed = bytes_followed(plan, held, lengths, addresses, columns.lazy)
    result.bytes_scattered = _scatter_columns(client, result, columns, addresses)
    result.owned += owned
    result.resend = _resend_columns(client, columns)
    return result


def _to_disks(
    client: Client,
    cache: RowCache,
    blocks: list[Future],
    pins: Sequence[str] | None,
    addresses: Sequence[str],
    owned: list[Future],
) -> list[Future]:
    """Blocks of X as files, in place of those in memory, which are given up."""
    cache.is_used = True
    if pins is None:
        [held] = _locate(client, [blocks], addresses)
        stored = cache.store_futures(client, blocks, [places[0] for places in held])
    else:
        stored = cache.store_blocks(client, blocks, pins)
    given_up = {block.key for block in blocks}
    mine = [future for future in owned if future.key in given_up]
    owned[:] = [future for future in owned if future.key not in given_up] + stored
    cluster.release(mine)
    return stored


# -- Plans and places ----------------------------------------------------------------


def _plan_rows(
    lengths: list[int],
    holders: list[list[str]] | None,
    addresses: Sequence[str],
    deals: bool,
) -> Plan:
    """Which rows each rank gets; `holders` is None for blocks that are the fit's."""
    if deals:
        return plan_dealt(lengths, len(addresses))
    if holders is not None and _keeps():
        imbalance = _config.get_fraction("data.imbalance")
        return plan_in_place(lengths, holders, addresses, imbalance)
    return plan_contiguous(lengths, len(addresses))


def _keeps() -> bool:
    """Whether blocks in worker memory stay on their worker."""
    placement = _config.get("data.placement")
    if placement not in ("keep", "contiguous"):
        raise ValueError(
            f"The configuration dask-ma.data.placement is {placement!r}, expected "
            "'keep' or 'contiguous'."
        )
    return placement == "keep"


def _planned_ranks(X: Any, n_ranks: int) -> list[int]:
    """Rank on whose worker each block of an uncomputed X is computed."""
    lengths = row_lengths(X)
    known = [n for n in lengths if n is not None]
    return main_ranks(
        known if len(known) == len(lengths) else [1] * len(lengths), n_ranks
    )


def _locate(
    client: Client, blocks: list[list[Future]], addresses: Sequence[str]
) -> list[list[list[str]]]:
    """Workers that hold each block of each collection, once all are in memory."""
    everything = [future for row in blocks for future in row]
    cluster.wait_for_blocks(client, everything, addresses)
    held = cluster.holders_of(client, everything)
    for places, future in zip(held, everything, strict=True):
        if not places:
            raise out_of_reach(future, client)
    rest = iter(held)
    return [[next(rest) for _ in row] for row in blocks]


def _known_lengths(
    client: Client,
    collections: list[Any],
    blocks: list[list[Future]],
    held: list[list[list[str]]],
) -> list[list[int]]:
    """Rows of each block of each collection, by metadata or else counted."""
    lengths = [row_lengths(collection) for collection in collections]
    unknown = [number for number, known in enumerate(lengths) if None in known]
    if unknown:
        counted = iter(
            cluster.lengths_of(
                client,
                [block for number in unknown for block in blocks[number]],
                [places for number in unknown for places in held[number]],
            )
        )
        for number in unknown:
            lengths[number] = [next(counted) for _ in blocks[number]]
    return lengths  # type: ignore[return-value]


def _check_total(info: InputInfo, lengths: list[int], columns: _Columns) -> None:
    """Compare the rows of X, known by now, with columns that are in memory."""
    n_rows = sum(lengths)
    if n_rows == 0:
        raise no_rows((0, info.n_features))
    for name, column in zip(("y", "sample_weight"), columns.arrays, strict=True):
        if column is not None and len(column) != n_rows:
            raise ValueError(
                "Found input variables with inconsistent numbers of samples: "
                f"{[n_rows, len(column)]}. X has {n_rows} rows and {name} has "
                f"{len(column)}; give one {name} value per row of X."
            )


def _check_rows(name: str, found: Sequence[int], expected: Sequence[int]) -> None:
    """Refuse y or weights with another number of rows than X, now that it is known."""
    if sum(found) == sum(expected):
        return
    where = ""
    if len(found) == len(expected):
        pairs = enumerate(zip(expected, found, strict=True))
        index, (ours, theirs) = next((i, p) for i, p in pairs if p[0] != p[1])
        where = f" They differ first in block {index}, with {ours} and {theirs} rows."
    raise ValueError(
        "Found input variables with inconsistent numbers of samples: "
        f"{[sum(expected), sum(found)]}. X has {sum(expected)} rows and {name} has "
        f"{sum(found)}; give one {name} value per row of X, and choose rows of both in "
        f"the same way.{where}"
    )


# -- Columns of this process ---------------------------------------------------------


def _cut_columns(
    arrays: tuple[np.ndarray | None, np.ndarray | None], pieces: list[Piece]
) -> list[tuple[Any, ...]] | None:
    """Rows of y and weights in memory that belong to some pieces."""
    if all(array is None for array in arrays):
        return None
    rows = [slice(p.first, p.first + p.stop - p.start) for p in pieces]
    return [tuple(None if a is None else a[r] for a in arrays) for r in rows]


def _scatter_columns(
    client: Client, result: Partition, columns: _Columns, addresses: Sequence[str]
) -> int:
    """Send y and weights of this process to the ranks of their rows."""
    if all(array is None for array in columns.arrays):
        return 0
    ranks = [rank for rank, shard in enumerate(result.shards) if shard.pieces]
    cuts = [_cut_columns(columns.arrays, result.shards[r].pieces) for r in ranks]
    holders = [addresses[rank] for rank in ranks]
    futures = cluster.scatter_each(
        client, cuts.__getitem__, holders, nbytes=n_bytes(cuts)
    )
    for rank, future in zip(ranks, futures, strict=True):
        result.shards[rank].aligned = future
    result.owned += futures
    return n_bytes(cuts)


def _resend_columns(client: Client, columns: _Columns) -> Resend:
    """How to send again the y and weights of this process that go to a rank."""

    def resend(
        rank: int, spec: ShardSpec, address: str
    ) -> tuple[ShardSpec, list[Future]]:
        cut = _cut_columns(columns.arrays, spec.pieces) if spec.pieces else None
        if cut is None:
            return replace(spec, aligned=None), []
        [future] = cluster.scatter_each(client, lambda _: cut, [address])
        return replace(spec, aligned=future), [future]

    return resend
