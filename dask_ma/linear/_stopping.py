"""When a fit has done enough."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class StopRule:
    """Counts rounds that have brought less than `tol`.

    Parameters
    ----------
    tol : float or None
        What a round must bring; None never stops.
    patience : int
        How many rounds in a row may bring less.
    maximize : bool
        Whether a larger value is better.
    """

    def __init__(self, tol: float | None, patience: int, *, maximize: bool) -> None:
        self._tol = -np.inf if tol is None else tol
        self._patience = patience
        self._sign = -1.0 if maximize else 1.0
        self._best = np.inf
        self._idle = 0

    def update(self, value: float) -> bool:
        """Take the value of a round; return whether patience has run out."""
        value = self._sign * value
        # As in scikit-learn: the value is set against the best so far.
        self._idle = self._idle + 1 if value > self._best - self._tol else 0
        self._best = min(self._best, value)
        return self._idle >= self._patience

    def state(self) -> list[float]:
        """What another rule needs to go on from here."""
        return [self._best, float(self._idle)]

    def go_on(self, state: Sequence[float]) -> None:
        """Take over the state of another rule."""
        self._best, self._idle = float(state[0]), int(state[1])

    def restart(self) -> None:
        """Give as many rounds again."""
        self._idle = 0
