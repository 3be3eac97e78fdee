"""Common property of the ranks of a process: one matrix, where all have the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dask_ma.comm import Group, broadcast
from dask_ma.kernels import Optimizer
from dask_ma.sfb.exchange._packets import Shown
from dask_ma.sfb.model._matrix import ParameterMatrix

_T = TypeVar("_T")
_FIRST, _ONE, _DONE = "sfb-first", "sfb-one", "sfb-done"


class ProcessRanks:
    """A rank among those of its process.

    Where all ranks have the same matrix at all times, those of a process have one
    together. The first of them owns it and makes all changes. No other looks at it
    meanwhile: the owner changes it with what each of the others has found, and then
    tells them that they may go on.

    Parameters
    ----------
    group : Group
        This rank.
    is_same : bool
        Whether all ranks have the same matrix at all times.

    Attributes
    ----------
    is_same : bool
        Whether there are other ranks here, and they have one matrix with this one.
    """

    def __init__(self, group: Group, *, is_same: bool) -> None:
        self._group = group
        self._first, *self._others = group.local_ranks
        self.is_same = is_same and bool(self._others)

    @property
    def is_owner(self) -> bool:
        """Whether this rank changes its matrix."""
        return not self.is_same or self._group.rank == self._first

    def shared(
        self, make: Callable[[ParameterMatrix | None], ParameterMatrix]
    ) -> ParameterMatrix:
        """The matrix of the process, or this rank's; a collective call.

        Parameters
        ----------
        make : callable
            Gives this rank's matrix, from that of the process if there is one. Ranks
            call it one after the other, so that there are never many at a time.

        Returns
        -------
        matrix : ParameterMatrix
        """
        if not self.is_same:
            return make(None)
        ranks = self._group.local_ranks
        place = ranks.index(self._group.rank)
        shown = self._group.recv(ranks[place - 1], _FIRST).values if place else None
        matrix = make(shown)
        if place + 1 < len(ranks):
            self._group.push(Shown(matrix), ranks[place + 1], _FIRST, copy=False)
        return matrix

    def one(self, make: Callable[[], _T]) -> _T:
        """What the first rank of the process makes, on all of them; a collective call.

        Parameters
        ----------
        make : callable
            Called on the first rank alone.

        Returns
        -------
        made : object
            The same object on all of them.
        """
        if self._group.rank != self._first:
            made: _T = self._group.recv(self._first, _ONE).values
            return made
        made = make()
        self._show(made, _ONE)
        return made

    def one_if_same(self, make: Callable[[], _T]) -> _T:
        """What goes with the matrix: one for all that have that; a collective call."""
        return self.one(make) if self.is_same else make()

    def wait_for_owner(self) -> None:
        """Wait until the owner has made the changes of an iteration; collective."""
        if not self.is_same:
            return
        if self.is_owner:
            self._show(None, _DONE)
        else:
            self._group.recv(self._first, _DONE)

    def take_from_first(
        self, matrix: ParameterMatrix, optimizer: Optimizer | None
    ) -> None:
        """Have the values, and the state of the optimiser, of rank 0; collective.

        Parameters
        ----------
        matrix : ParameterMatrix
            This rank's.
        optimizer : Optimizer or None
            That of the matrix, where its state matters.
        """
        found = None
        if self._group.rank == 0:
            state = optimizer.state_dict() if optimizer else None
            found = [matrix.stored(), matrix.intercept, state]
        values, intercept, state = broadcast(self._group, found)
        if self.is_owner and self._group.rank > 0:
            matrix.replace(values, intercept)
            if optimizer is not None:
                optimizer.load_state_dict(state)
        elif matrix.intercept is not None:
            matrix.intercept[...] = intercept
        self.wait_for_owner()

    def _show(self, made: object, tag: str) -> None:
        """Let the others look at something."""
        for rank in self._others:
            self._group.push(Shown(made), rank, tag, copy=False)
