"""The stopping rule: objectives or scores that no longer improve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# A value this small against the first one is as good as zero: of rows that a model fits
# exactly, it goes down forever.
_ZERO = 1e-7


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
    is_relative : bool, default=False
        Whether `tol` is a part of the best value so far, of 1e-7 times the first one
        at least.
    """

    def __init__(
        self,
        tol: float | None,
        patience: int,
        *,
        maximize: bool,
        is_relative: bool = False,
    ) -> None:
        self._tol = -np.inf if tol is None else tol
        self._is_relative = is_relative
        self._patience = patience
        self._sign = -1.0 if maximize else 1.0
        self._best = self._first = np.inf
        self._idle = 0

    def update(self, value: float) -> bool:
        """Take the value of a round; return whether patience has run out."""
        value = self._sign * value
        if np.isinf(self._first):
            self._first = value
        # As in scikit-learn: the value is set against the best so far.
        gain = self._tol
        if self._is_relative and np.isfinite(self._best):
            gain *= max(abs(self._best), _ZERO * abs(self._first))
        self._idle = self._idle + 1 if value > self._best - gain else 0
        self._best = min(self._best, value)
        return self._idle >= self._patience

    def state_dict(self) -> list[float]:
        """What another rule needs to go on from here."""
        return [self._best, float(self._idle), self._first]

    def load_state_dict(self, state: Sequence[float]) -> None:
        """Take over the state of another rule."""
        self._best, self._idle = float(state[0]), int(state[1])
        self._first = float(state[2])

    def restart(self) -> None:
        """Give as many rounds again."""
        self._idle = 0
