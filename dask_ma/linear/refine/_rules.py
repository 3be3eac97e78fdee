"""Rules that give directions, and which of them the problems of a search go by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dask_ma.linear.refine._coordinates import Coordinates
from dask_ma.linear.refine._lbfgs import LBFGS, SharedLBFGS
from dask_ma.linear.refine._newton import Newton
from dask_ma.linear.refine._share import Share, Slice

if TYPE_CHECKING:
    from dask_ma.linear.refine._search import Track

# Newton's method needs a pass that costs each row the square of the columns, and sums
# of as many numbers per problem.
_MOST_WEIGHTS, _MOST_SECOND = 512, 2**20
# Rounds of L-BFGS before Newton's method takes over on the active columns. Smooth
# losses seldom need as many; with a kink and L1 some hundreds are not enough.
_PATIENCE = 100
_ROOM = 0.75  # part of the most columns that may be active then


def most_weights(n_problems: int) -> int:
    """How many weights of each problem second derivatives are affordable of."""
    return min(_MOST_WEIGHTS, math.isqrt(_MOST_SECOND // n_problems))


class Rules:
    """L-BFGS or Newton's method, the same for all problems.

    Newton's method is for all columns or, where L-BFGS has made many rounds with an L1
    penalty, for the active ones of each problem, as long as they are few.

    Parameters
    ----------
    coordinates : Coordinates
        What the points are.
    n_problems : int
        How many problems there are.
    method : {"newton", "lbfgs"}
        The method to begin with; "newton" is for all columns.
    share : Share
        Of which weights these are.
    is_free : bool
        Whether it may be changed.
    """

    def __init__(
        self,
        coordinates: Coordinates,
        n_problems: int,
        method: str,
        share: Share,
        *,
        is_free: bool,
    ) -> None:
        self._l1 = coordinates.l1
        self._share = share
        self._n_features = share.n_features
        self._most_active = most_weights(n_problems) - 1
        self._method = method
        self._is_free = is_free and method == "lbfgs" and coordinates.penalty.l1 > 0
        self._n_rounds = 0

    def make(self) -> LBFGS | Newton:
        """A new rule for one problem."""
        if self._method == "newton":
            return Newton(self._l1, self._share)
        if isinstance(self._share, Slice):
            return SharedLBFGS(self._l1, self._share)
        return LBFGS(self._l1, self._share)

    def columns(self, tracks: Sequence[Track]) -> np.ndarray:
        """The columns of each problem's second derivatives; may change the method.

        Parameters
        ----------
        tracks : sequence of Track
            Problems that are to be evaluated.

        Returns
        -------
        columns : ndarray of int, shape (len(tracks), n_columns)
            Without columns for L-BFGS.
        """
        if self._is_free:
            self._choose(tracks)
        if self._method == "lbfgs":
            return np.zeros((len(tracks), 0), dtype=np.intp)
        size = self._n_features
        if self._is_free:
            wanted = max((track.n_active for track in tracks), default=0)
            size = max(1, min(wanted, self._most_active, size))
        return np.array([track.active(size) for track in tracks]).reshape(-1, size)

    def _choose(self, tracks: Sequence[Track]) -> None:
        """Go over to Newton's method when it is due, and back if it does not fit."""
        self._n_rounds += 1
        n_used = max((track.n_used for track in tracks), default=0)
        if self._method == "newton":
            is_due = n_used > self._most_active
        else:
            is_due = self._n_rounds > _PATIENCE and n_used <= _ROOM * self._most_active
        if not is_due:
            return
        self._method = "lbfgs" if self._method == "newton" else "newton"
        self._n_rounds = 0
        for track in tracks:
            track.change_rule(self.make())
