"""From any accepted input to the pieces of each rank.

Four ways in, one plan out::

    in memory, no client     slices of the user's own arrays, nothing is copied
    in memory, client        the rows of each rank, scattered once to its worker
    Dask, no client          blocks computed here, one by one, kept separate
    Dask, client             blocks computed (or left) on the workers; only what the
                             plan wants elsewhere moves, cut where it lies

X itself never comes to the client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dask_ma.data._aligned import in_one_place
from dask_ma.data._blocks import is_frame, n_bytes, take_rows
from dask_ma.data._checks import RawBlock
from dask_ma.data._collections import check_client, scatter_each
from dask_ma.data._demand import NOTHING_KEPT, Kept
from dask_ma.data._from_dask import from_dask
from dask_ma.data._input_size import Narrow
from dask_ma.data._inputs import (
    InputInfo,
    describe,
    is_dask_collection,
    memory_column,
    no_rows,
    to_memory,
)
from dask_ma.data._placement import Plan, Segment, plan_contiguous, plan_dealt
from dask_ma.data._spec import Partition, Piece, ShardSpec, make_partition

if TYPE_CHECKING:
    from distributed import Client, Future

__all__ = ["Deal", "partition"]

Deal = Literal["never", "memory", "always"]


def partition(
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    n_ranks: int,
    addresses: Sequence[str] | None,
    client: Client | None = None,
    allow_unlabelled: bool = False,
    multi_output: bool = False,
    deal: Deal = "never",
    info: InputInfo | None = None,
    dtypes: Sequence[Any] = (np.float64, np.float32),
    sent_as: Callable[[Any], Any] | None = None,
    copies: Kept = NOTHING_KEPT,
    needed: Any = None,
    spares_memory: bool = False,
    narrow: Narrow | None = None,
) -> Partition:
    """Share the rows of an input out over ranks.

    Parameters
    ----------
    X : array-like, sparse, DataFrame, dask.array or dask.dataframe
        Of shape (n_rows, n_features). Data of this process are taken as validated.
    y : array-like or Dask column of shape (n_rows,) or (n_rows, n_targets), optional
    sample_weight : array-like or Dask column of shape (n_rows,), optional
    n_ranks : int
    addresses : sequence of str or None
        Worker of each rank; None for this process.
    client : distributed.Client, optional
        None for this process.
    allow_unlabelled : bool, default=False
        Whether `y` may be None.
    multi_output : bool, default=False
        Whether `y` may have several columns.
    deal : {"never", "memory", "always"}, default="never"
        What is dealt out in short runs of rows, so that each rank gets some from
        everywhere: nothing, rows of this process, or blocks of Dask collections, too.
        Of these all but one part in `n_ranks` changes workers.
    info : InputInfo, default=None
        What X is; None looks at it.
    dtypes : sequence of dtypes, default=(float64, float32)
        Types that rows may have where they go to disks; any other becomes the first.
    sent_as : callable, optional
        Makes of rows of X, in memory, what is sent to their worker; None sends them as
        they are.
    copies : Kept, optional
        What the fit is going to keep in memory; by default nothing.
    needed : object, default=None
        Comes from modules that the fit loads on the workers, such as its agent: it is
        sent to them before it is asked what memory they have left.
    spares_memory : bool, default=False
        Whether rows go to disks where it depends on their size, since workers have been
        ended for want of memory.
    narrow : callable, default=None
        Given the size of the blocks of a Dask collection, once these are in the memory
        of workers: the worker of each rank, if it is not to be that of `addresses`.

    Returns
    -------
    Partition
        When it is returned, every block is in memory, or on the disk of its worker.

    Raises
    ------
    ValueError, TypeError
        If metadata or block lengths show that the input cannot be used.
    NoWorkersError
        If the client is closed.
    PeerLostError
        If a worker goes while its blocks are computed or sent.
    InsufficientMemoryError
        If the copies alone are too much for the workers.
    """
    if y is None and not allow_unlabelled:
        raise ValueError("requires y to be passed, but the target y is None.")
    if (client is None) != (addresses is None):
        raise ValueError("client and addresses go together: give both or neither.")
    if addresses is not None and len(addresses) != n_ranks:
        raise ValueError(
            f"addresses has {len(addresses)} entries, expected one for each of the "
            f"{n_ranks} ranks."
        )
    if client is not None:
        check_client(client)
    info = describe(X) if info is None else info
    if is_dask_collection(X):
        return from_dask(
            info,
            X,
            y,
            sample_weight,
            n_ranks,
            addresses,
            client,
            multi_output=multi_output,
            deals=deal == "always",
            dtypes=dtypes,
            copies=copies,
            needed=needed,
            spares=spares_memory,
            narrow=narrow,
        )
    return _from_memory(
        info,
        X,
        y,
        sample_weight,
        n_ranks,
        addresses,
        client,
        multi_output=multi_output,
        plan_rows=plan_contiguous if deal == "never" else plan_dealt,
        sent_as=sent_as,
    )


# -- Data of this process ------------------------------------------------------------


def _from_memory(
    info: InputInfo,
    X: Any,
    y: Any,
    sample_weight: Any,
    n_ranks: int,
    addresses: Sequence[str] | None,
    client: Client | None,
    *,
    multi_output: bool,
    plan_rows: Callable[[Sequence[int], int], Plan],
    sent_as: Callable[[Any], Any] | None,
) -> Partition:
    """Equal shares of the rows, as slices of one block."""
    for name, column in (("y", y), ("sample_weight", sample_weight)):
        if is_dask_collection(column):
            raise TypeError(
                f"{name} is a Dask object while X is in memory; pass {name}.compute()."
            )
    if info.n_features is None:
        raise ValueError("Expected 2D array, got 1D array instead: reshape X.")
    if not info.n_rows:
        raise no_rows((0, info.n_features))
    y = None if y is None else memory_column(y, "y", multi_output=multi_output)
    if sample_weight is not None:
        sample_weight = memory_column(sample_weight, "sample_weight")
    for name, column in (("y", y), ("sample_weight", sample_weight)):
        if column is not None and len(column) != info.n_rows:
            raise ValueError(
                "Found input variables with inconsistent numbers of samples: "
                f"{[info.n_rows, len(column)]}; give one {name} value per row of X."
            )
    data = (to_memory(X), y, sample_weight)
    plan = plan_rows([info.n_rows], n_ranks)
    if client is None or addresses is None:
        pieces = [
            [Piece(data, s.start, s.stop, info.n_rows, 0, s.start) for s in segments]
            for segments in plan
        ]
        return make_partition(info, info.n_rows, pieces)
    return _scatter(info, info.n_rows, data, plan, addresses, client, sent_as)


def _scatter(
    info: InputInfo,
    n_rows: int,
    data: tuple[Any, Any, Any],
    plan: Plan,
    addresses: Sequence[str],
    client: Client,
    sent_as: Callable[[Any], Any] | None,
) -> Partition:
    """Send each rank its rows, once."""
    ranks = [rank for rank, segments in enumerate(plan) if segments]
    sizes: dict[int, int] = {}

    def rows_of(rank: int) -> RawBlock:
        own = (part if part is None else _take(part, plan[rank]) for part in data)
        X, *columns = own
        block = RawBlock(X if sent_as is None else sent_as(X), *columns)
        sizes[rank] = n_bytes(block)
        return in_one_place(block)

    def pieces_of(rank: int, future: Future) -> list[Piece]:
        stops = np.cumsum([s.stop - s.start for s in plan[rank]]).tolist()
        starts = [0, *stops[:-1]]
        return [
            Piece(future, start, stop, stops[-1], rank, segment.start)
            for start, stop, segment in zip(starts, stops, plan[rank], strict=True)
        ]

    def resend(
        rank: int, spec: ShardSpec, address: str
    ) -> tuple[ShardSpec, list[Future]]:
        if not spec.pieces:
            return spec, []
        [future] = scatter_each(
            client, lambda _: rows_of(rank), [address], nbytes=sizes[rank]
        )
        return replace(spec, pieces=pieces_of(rank, future)), [future]

    futures = scatter_each(
        client,
        lambda place: rows_of(ranks[place]),
        [addresses[rank] for rank in ranks],
        nbytes=n_bytes(data),
    )
    pieces: list[list[Piece]] = [[] for _ in addresses]
    for rank, future in zip(ranks, futures, strict=True):
        pieces[rank] = pieces_of(rank, future)
    result = make_partition(info, n_rows, pieces)
    result.bytes_scattered = sum(sizes.values())
    result.owned += futures
    result.resend, result.is_resendable = resend, True
    return result


def _take(part: Any, segments: Sequence[Segment]) -> Any:
    """Rows of some segments; those of a single one without a copy."""
    if len(segments) == 1:
        return take_rows(part, segments[0].start, segments[0].stop)
    rows = np.concatenate([np.arange(s.start, s.stop) for s in segments])
    return part.iloc[rows] if is_frame(part) else part[rows]
