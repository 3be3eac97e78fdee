"""Batches of one pass after the other, the first of each of them picked early."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain

from dask_ma.supervised import Piece

Batches = Iterator[list[Piece]]


class EarlyBatches:
    """Begins passes with rows that are there already.

    Who asks for a batch more than there are in a pass, as while the weights of the last
    one are under way, has the first rows of the next pass picked.

    Parameters
    ----------
    n_passes : int
        Passes that there may be.
    is_early : bool
        Whether there is anything to wait for; else rows are picked when they are due.
    """

    def __init__(self, n_passes: int, *, is_early: bool) -> None:
        self._n_passes = n_passes
        self._is_early = is_early
        self._kept: tuple[int, Batches] | None = None

    def of_pass(self, number: int, make: Callable[[int], Batches]) -> Batches:
        """Batches of a pass.

        Parameters
        ----------
        number : int
            Passes before it; any may come after any other.
        make : callable
            Makes the batches of a pass, given its number: always the same.

        Yields
        ------
        batch : list of Piece
        """
        kept, self._kept = self._kept, None
        yield from make(number) if kept is None or kept[0] != number else kept[1]
        if not self._is_early or number + 1 >= self._n_passes:
            return
        following = make(number + 1)
        first = next(following, None)
        if first is not None:
            self._kept = number + 1, chain([first], following)
