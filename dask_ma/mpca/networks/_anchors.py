"""Proximal terms, and anchors: what they draw the values of a network to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np


class ProximalTerm(NamedTuple):
    """A penalty on the distance of some values from the joint model.

    Attributes
    ----------
    start, stop : int
        The values, as positions in the network's vector.
    strength : float
        `alpha` in equations 6 and 7 of the paper, at least 0.
    """

    start: int
    stop: int
    strength: float


class _Anchor(NamedTuple):
    """Where some values of the vector are drawn to."""

    start: int
    values: np.ndarray

    @property
    def stop(self) -> int:
        return self.start + len(self.values)

    def within(self, start: int, stop: int) -> _Anchor:
        """What lies from `start` to `stop`, perhaps nothing."""
        start = min(max(start, self.start), self.stop)
        stop = max(start, min(stop, self.stop))
        return _Anchor(start, self.values[start - self.start : stop - self.start])


class Anchors:
    """The anchor of each value of a network's vector that has one."""

    def __init__(self) -> None:
        self._parts: list[_Anchor] = []

    def set(self, start: int, values: np.ndarray) -> None:
        """Set the anchor of the values from `start` on.

        Parameters
        ----------
        start : int
        values : ndarray of shape (n,)
            It must not change afterwards.
        """
        new = _Anchor(start, values)
        kept = [new]
        for old in self._parts:
            kept.append(old.within(0, new.start))
            kept.append(old.within(new.stop, old.stop))
        # Another thread may be in a step: it sees the old list or the new one.
        self._parts = [part for part in kept if len(part.values)]

    def drawn(
        self, terms: Sequence[ProximalTerm]
    ) -> Iterator[tuple[slice, np.ndarray, float]]:
        """What is drawn somewhere.

        Parameters
        ----------
        terms : sequence of ProximalTerm

        Yields
        ------
        part : slice
            Of the vector.
        anchor : ndarray
            Where these values are drawn to.
        strength : float
            Above 0.
        """
        for term in terms:
            for anchor in self._parts if term.strength > 0 else ():
                part = anchor.within(term.start, term.stop)
                if len(part.values):
                    yield slice(part.start, part.stop), part.values, term.strength
