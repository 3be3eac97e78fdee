"""Rounds that no longer change a fit whose duality gap stays open, by rounding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dask_ma.schmp.l1._solver import DualityGap

_SAME = 10  # rounds in a row without any change: there are no others to come
# Rounds in a row without progress, where last bits change: what rounding leaves of the
# gradient of a feature far from zero is another number in each, and so is the gap.
_IDLE = 20
# What one of them has to bring: a part of the best gap so far, or of that asked for by
# a lower objective. Where working sets are cut short, a fit goes on in small steps.
_OF_GAP, _OF_TARGET = 1e-2, 1e-4


class Standstill:
    """Counts rounds that bring nothing; the same on all ranks.

    Parameters
    ----------
    may_idle : bool
        Whether changes of last bits count as none. Newton steps of other losses come to
        rest by themselves.
    """

    def __init__(self, *, may_idle: bool) -> None:
        self._may_idle = may_idle
        # Lowest objective and gap when there was progress.
        self._mark = np.full(2, np.inf)
        self._n_same = self._n_idle = 0

    def update(self, before: DualityGap, after: DualityGap, target: float) -> None:
        """Take note of a round.

        Parameters
        ----------
        before, after : DualityGap
            Of the model before the round, and after it.
        target : float
            Gap that is asked for.
        """
        last, now = ([found.objective, found.gap] for found in (before, after))
        self._n_same = self._n_same + 1 if now == last else 0
        is_progress = np.isinf(self._mark).any()
        if not is_progress:
            least = self._mark - [_OF_TARGET * target, _OF_GAP * self._mark[1]]
            is_progress = (np.array(now) < least).any()
        if is_progress:
            self._mark = np.minimum(self._mark, now)
        self._n_idle = 0 if is_progress else self._n_idle + 1

    @property
    def is_reached(self) -> bool:
        """Whether others would bring nothing either."""
        is_idle = self._may_idle and self._n_idle >= _IDLE
        return self._n_same >= _SAME or is_idle

    def state_dict(self) -> list[float]:
        """What another one needs to go on from here."""
        return [*self._mark, self._n_same, self._n_idle]

    def load_state_dict(self, state: Sequence[float]) -> None:
        """Take over the state of another one."""
        self._mark = np.array(state[:2], dtype=np.float64)
        self._n_same, self._n_idle = (int(number) for number in state[2:])
