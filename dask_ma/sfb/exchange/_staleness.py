"""Bounded staleness: the iterations that ranks may be apart."""

from __future__ import annotations

from numbers import Integral
from typing import NamedTuple


class Staleness(NamedTuple):
    """The rule of bounded staleness: who has to wait for whom (section 3).

    Parameters
    ----------
    bound : int
        How many iterations a rank may be ahead of one that it hears from. 0 is bulk
        synchronous: all ranks apply the updates of an iteration, in the same order,
        before the next one begins.
    """

    bound: int

    @classmethod
    def checked(cls, bound: int) -> Staleness:
        """A rule with a bound that can be.

        Raises
        ------
        ValueError
            If `bound` is no integer from 0 on.
        """
        if not isinstance(bound, Integral) or isinstance(bound, bool) or bound < 0:
            raise ValueError(f"staleness must be an integer from 0 on, got {bound!r}")
        return cls(int(bound))

    @property
    def is_synchronous(self) -> bool:
        """Whether all ranks are in the same iteration."""
        return self.bound == 0

    def must_wait(self, made: int, received: int) -> bool:
        """Whether a rank must wait for another.

        Parameters
        ----------
        made : int
            Iterations whose factors the rank has sent.
        received : int
            Iterations whose factors it has from the other.

        Returns
        -------
        must_wait : bool
        """
        return made - received > self.bound

    def may_apply(self, made: int, received: int) -> bool:
        """Whether the next factors of another rank can be applied.

        Those of an iteration that this rank has not made itself must wait: they would
        depend on what this rank does next (equation 4).
        """
        return received < made
