"""Control of the step length by the objective of each pass."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# A pass that lowers the objective makes the steps of the next one longer, one that does
# not makes them shorter. In trials on dense and on sparse rows, with 1 to 8 ranks, to
# lengthen by half and to shorten by 30 % were as good.
_LONGER = 1.2
_SHORTER = 0.5
# Before any pass has done better than the start the steps are far too long, mostly.
_FAR_SHORTER = 0.125
# Where no pass does better with steps this short, the start was the optimum.
_SHORTEST = 1e-9


class StepControl:
    """Adapts the length of the steps, and takes back the passes that have failed.

    Steps of length ``eta / sqrt(t)`` converge for every `eta`, but at a pace that
    depends on how `eta` fits the curvature of the objective and the weight of its
    penalty, which nobody knows beforehand. All ranks know the objective of each pass,
    the same number to the last bit, and so agree on the next `eta` without a message.

    Parameters
    ----------
    is_adaptive : bool
        False leaves `eta` as it is and takes no pass back.
    takes_back : bool
        Whether the model of a pass that has failed can be given up: not if the ranks'
        models are never mixed, and a rank has no other one to go on from.

    Attributes
    ----------
    factor : float
        Length of the steps, in units of the first one.
    """

    def __init__(self, *, is_adaptive: bool, takes_back: bool) -> None:
        self._is_adaptive = is_adaptive
        self._takes_back = is_adaptive and takes_back
        self._best = np.inf
        self._score = np.nan
        self._has_gained = False
        self.factor = 1.0

    @property
    def takes_back(self) -> bool:
        """Whether a pass can be taken back, so that its objective may be anything."""
        return self._takes_back

    @property
    def may_stop(self) -> bool:
        """Whether passes without progress mean that the fit has converged.

        They do not while the steps are still too long for any progress.
        """
        gains = self._has_gained or not self._takes_back
        return gains or self.factor < _SHORTEST

    def update(self, objective: float, start: float, score: float) -> bool:
        """Take the result of a pass.

        Parameters
        ----------
        objective : float
            Objective of the model after the pass; it may be infinite.
        start : float
            Objective of the model that the fit started from.
        score : float
            Score of the model on the rows held out, NaN without them.

        Returns
        -------
        kept : bool
            Whether the model of the pass is to be kept.
        """
        if not self._is_adaptive:
            return True
        best = min(self._best, start)
        is_better = objective < best
        if is_better:
            self.factor *= _LONGER
        else:
            self.factor *= _SHORTER if self._has_gained else _FAR_SHORTER
        self._has_gained = self._has_gained or is_better
        self._best = min(best, objective)
        if is_better or np.isnan(self._score):
            self._score = score
        return is_better or not self._takes_back

    @property
    def kept(self) -> tuple[float, float]:
        """Objective and score of the best model so far."""
        return self._best, self._score

    def forget(self) -> None:
        """Take the next pass as it is: the rows are others now."""
        self._best, self._score = np.inf, np.nan

    def state_dict(self) -> list[float]:
        """What another control needs to go on from here."""
        return [self.factor, self._best, self._score, float(self._has_gained)]

    def load_state_dict(self, state: Sequence[float]) -> None:
        """Take over the state of another control."""
        self.factor, self._best, self._score = (float(value) for value in state[:3])
        self._has_gained = bool(state[3])
