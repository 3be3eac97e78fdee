"""Result of partitioning: the pieces of each rank, as futures or arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dask_ma.data._inputs import InputInfo

if TYPE_CHECKING:
    from distributed import Future

__all__ = ["Partition", "Piece", "ShardSpec", "rows_of"]


class Piece(NamedTuple):
    """Rows of one block that belong to one rank.

    Attributes
    ----------
    source : tuple or Future
        (X, y, sample_weight), each an array, a future or None; or a future of such a
        tuple.
    start, stop : int
        Rows of the source that belong to the rank; `stop` is excluded.
    rows : int
        Rows that the source must have.
    index : int
        Number of the block in the input.
    first : int
        Number of the first row in the whole input.
    """

    source: Any
    start: int
    stop: int
    rows: int
    index: int  # type: ignore[assignment]
    first: int


def pack_pieces(pieces: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """Pieces as arguments of a task, each source once.

    Dask goes into containers of what a task is sent, and makes objects of all that they
    hold; rows that have been dealt out are hundreds of pieces.

    Parameters
    ----------
    pieces : sequence of Piece

    Returns
    -------
    packed : dict
        ``sources``, and an array of the numbers of each piece, ``cuts``.
    """
    sources: list[Any] = []
    number_of: dict[int, int] = {}
    cuts = np.zeros((len(pieces), 6), np.int64)
    for cut, (source, *numbers) in zip(cuts, pieces, strict=True):
        if id(source) not in number_of:
            number_of[id(source)] = len(sources)
            sources.append(source)
        cut[:] = number_of[id(source)], *numbers
    return {"sources": sources, "cuts": cuts}


def pieces_in(arguments: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Undo :func:`pack_pieces`.

    Parameters
    ----------
    arguments : dict
        ``ShardSpec.arguments``, perhaps with futures replaced by their data.

    Returns
    -------
    pieces : list of tuple
        As :class:`Piece` has them.
    """
    sources = arguments["sources"]
    return [
        (sources[number], *numbers) for number, *numbers in arguments["cuts"].tolist()
    ]


@dataclass
class ShardSpec:
    """The pieces of one rank.

    Attributes
    ----------
    pieces : list of Piece
        In the order of their rows in the input.
    aligned : Future or list of (y, sample_weight) or None
        Labels and weights that were in memory while X was not, cut to the pieces.
    n_features : int
    dtype : numpy.dtype
        Dtype that the metadata of X say.
    """

    pieces: list[Piece]
    aligned: Any
    n_features: int
    dtype: np.dtype

    @property
    def n_rows(self) -> int:
        """Rows of the rank."""
        return sum(piece.stop - piece.start for piece in self.pieces)

    @property
    def arguments(self) -> dict[str, Any]:
        """Plain containers of futures, arrays and numbers: an argument of a task."""
        return {
            **pack_pieces(self.pieces),
            "aligned": self.aligned,
            "n_features": self.n_features,
            "dtype": self.dtype,
        }


#: Sends what the client has of the rows of a rank to the rank's new worker.
Resend = Callable[[int, ShardSpec, str], tuple[ShardSpec, "list[Future]"]]

#: Has rows in files on the disks of the workers that the ranks are on now.
Settle = Callable[["Partition", Sequence[str]], None]


@dataclass
class Partition:
    """Rows of an input shared out over ranks; keeps the data alive while it lives.

    Attributes
    ----------
    shards : list of ShardSpec
        One per rank; some may have no piece.
    n_rows : int
    n_features : int
    feature_names : ndarray of shape (n_features,), dtype object, or None
    bytes_moved : int
        Bytes of X, y and weights that go from worker to worker for balance or order.
    bytes_followed : int
        Bytes of y and weights that go to the worker of their block of X.
    bytes_scattered : int
        Bytes sent from this process to workers.
    owned : list of Future
        Futures that partition made; those of a persisted input are not among them.
    resend : callable or None
        ``resend(rank, spec, address)`` sends again what this process has of the rows of
        a rank; returns the new spec of the rank, and the futures that it has made.
    is_resendable : bool
        Whether `resend` sends all that a rank has, X among it.
    remove_files : callable or None
        Removes the files of rows that lie on local disks.
    can_spare : bool
        Whether its rows are in memory, and could be on local disks instead.
    settle : callable or None
        ``settle(partition, addresses)`` has such rows on the disk of their rank again.
    addresses : list of str or None
        Worker of each rank, where blocks of workers have been shared out.
    """

    shards: list[ShardSpec]
    n_rows: int
    n_features: int
    feature_names: np.ndarray | None
    bytes_moved: int = 0
    bytes_followed: int = 0
    bytes_scattered: int = 0
    owned: list[Future] = field(default_factory=list, repr=False)
    resend: Resend | None = field(default=None, repr=False)
    is_resendable: bool = False
    remove_files: Callable[[], None] | None = field(default=None, repr=False)
    can_spare: bool = False
    settle: Settle | None = field(default=None, repr=False)
    addresses: list[str] | None = field(default=None, repr=False)

    @property
    def is_on_disks(self) -> bool:
        """Whether rows are in files of the workers."""
        return self.settle is not None

    def release(self) -> None:
        """Give up the data on the cluster at once; what the user persisted stays.

        Dropping the last reference does the same, but after an error tracebacks keep
        references alive, for ever if the workers are in this process.
        """
        for future in self.owned:
            future.release()
        self.owned.clear()
        if self.remove_files is not None:
            self.remove_files()


def make_partition(
    info: InputInfo, n_rows: int, pieces: list[list[Piece]]
) -> Partition:
    """A partition of the given pieces, one list per rank."""
    if info.n_features is None:
        raise ValueError("X has an unknown number of columns, expected a known one.")
    shards = [ShardSpec(p, None, info.n_features, info.dtype) for p in pieces]
    return Partition(shards, n_rows, info.n_features, info.feature_names)


def rows_of(arguments: dict[str, Any]) -> list[list[int]]:
    """Tell which rows of the whole input a rank has.

    Parameters
    ----------
    arguments : dict
        ``ShardSpec.arguments``.

    Returns
    -------
    ranges : list of [int, int]
        Start and stop of each run of consecutive rows, in the order of the rank.
    """
    ranges: list[list[int]] = []
    for _, start, stop, _, _, first in pieces_in(arguments):
        if ranges and ranges[-1][1] == first:
            ranges[-1][1] += stop - start
        elif stop > start:
            ranges.append([first, first + stop - start])
    return ranges
