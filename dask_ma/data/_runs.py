"""Rows of a rank as they come, cut out of their blocks (on the worker)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

from dask_ma.data._blocks import take_rows
from dask_ma.data._checks import RawBlock, open_block
from dask_ma.data._spec import pieces_in

__all__: list[str] = []


class RawPiece(NamedTuple):
    """Unconverted rows of one block, which follow each other in the input."""

    raw: RawBlock
    index: int  # type: ignore[assignment]
    start: int | None


class Run(NamedTuple):
    """Pieces that lie behind one another in one source.

    Rows that have been dealt out are as many pieces as there were deals, in one array.

    Attributes
    ----------
    whole : RawPiece
        The rows of all of them.
    cuts : list of (int, int, int)
        Where each starts and stops in the whole, and its first row in the input.
    """

    whole: RawPiece
    cuts: list[tuple[int, int, int]]

    def pieces(self) -> Iterator[RawPiece]:
        """Each piece by itself."""
        if len(self.cuts) == 1:
            yield self.whole._replace(start=self.cuts[0][2])
            return
        X, *columns = self.whole.raw
        for start, stop, first in self.cuts:
            parts = (None if part is None else part[start:stop] for part in columns)
            raw = RawBlock(take_rows(X, start, stop), *parts)
            yield RawPiece(raw, self.whole.index, first)


def read_runs(arguments: dict[str, Any]) -> list[Run]:
    """The rows of a rank; each source is opened and looked at once.

    Parameters
    ----------
    arguments : dict
        ``ShardSpec.arguments`` with futures replaced by their data.
    """
    pieces = pieces_in(arguments)
    aligned = arguments["aligned"] or [(None, None)] * len(pieces)
    pairs = zip(pieces, aligned, strict=True)
    runs: list[Run] = []
    for _, group in groupby(pairs, _source_of):
        members = list(group)
        source, _, _, rows, index, _ = members[0][0]
        opened = open_block(source, rows, index)
        together: list[Any] = []
        for piece, columns in members:
            if together and not _follows(together[-1], piece, columns):
                runs.append(_run_of(opened, together))
                together = []
            together.append((piece, columns))
        runs.append(_run_of(opened, together))
    return [run for run in runs if run.cuts]


def _source_of(member: Any) -> tuple[int, int, int]:
    """What tells the sources of pieces apart."""
    source, _, _, rows, index, _ = member[0]
    return id(source), rows, index


def _follows(member: Any, piece: Any, columns: Any) -> bool:
    """Whether a piece lies behind another one, with y and weights, in their source."""
    return bool(member[0][2] == piece[1]) and columns[0] is None and columns[1] is None


def _run_of(opened: RawBlock, members: list[Any]) -> Run:
    """The run of pieces that lie behind one another in a source."""
    X, y, sample_weight = opened
    pieces = [piece for piece, _ in members]
    columns, first, last = members[0][1], pieces[0][1], pieces[-1][2]
    raw = RawBlock(
        take_rows(X, first, last),
        columns[0] if y is None else y[first:last],
        columns[1] if sample_weight is None else sample_weight[first:last],
    )
    cuts = [
        (start - first, stop - first, row)
        for _, start, stop, _, _, row in pieces
        if stop > start
    ]
    return Run(RawPiece(raw, pieces[0][4], None), cuts)


def read_pieces(arguments: dict[str, Any]) -> list[RawPiece]:
    """The rows of a rank, as pieces of which each follows the other in the input."""
    return [piece for run in read_runs(arguments) for piece in run.pieces()]
