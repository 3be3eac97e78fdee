"""Schedules of cycles, and of the learning rate."""

from __future__ import annotations

from math import cos, pi
from typing import NamedTuple

from dask_ma.mpca.strategies._parameters import MPCA

#: Cycles until blending and extrapolation have their values. The paper takes 20
#: (section 7.1); where messages take long, that is most of a fit.
N_RAMP = 5

#: Part of its distance from the joint model by which a rank is drawn there in a cycle.
CYCLE_PULL = 0.2

_EXTRAPOLATION = 3.5  # with that pull
_EXTRAPOLATION_OF_A_PENALTY = 2.5  # which may draw ranks further in a long cycle
_N_ALONE = 2  # cycles without a penalty, in which ranks look around (section 6.3)
_FIRST_PENALTY = 0.5  # after which they are drawn together
_N_DECAY = 10  # cycles from there to the penalty asked for
_LOSS_PENALTY = 0.05  # the paper's, where the pull of a step is not known
_LEAST_RATE = 1e-6
_ADAPTIVE_FACTOR = 5.0


class CycleSchedule(NamedTuple):
    """Values of the exchange by number of cycle (sections 4.3 to 4.5 of the paper).

    Attributes
    ----------
    extrapolation : float
        `gamma` of equation 5 after the ramp, at least 0.
    smoothing : float
        `delta` of equation 4, from 0 to below 1.
    penalty : float or None
        `alpha` of equations 6 and 7 after the start, from 0 to 1; None for one that
        draws a rank by `pull` of the distance in a cycle.
    blending : float
        `beta` of equation 8 after the ramp, above 0 and at most 1.
    pull : float, default=CYCLE_PULL
        Where `penalty` is None: by which part of its distance from the joint model the
        steps of a cycle together draw a rank there, from 0 to below 1.
    """

    extrapolation: float
    smoothing: float
    penalty: float | None
    blending: float
    pull: float = CYCLE_PULL

    def blending_at(self, cycle: int) -> float:
        """Part of the joint model that is replaced: from 1 down by a constant factor.

        Parameters
        ----------
        cycle : int
            Cycles before this one, from 0.
        """
        return float(self.blending ** (min(cycle, N_RAMP) / N_RAMP))

    def extrapolation_at(self, cycle: int) -> float:
        """How many cycles ahead the joint model is projected: from 0 up in a line."""
        return self.extrapolation * min(cycle, N_RAMP) / N_RAMP

    def penalty_at(self, cycle: int, tau: float = 1.0) -> float:
        """How strongly a step draws a rank to the joint model.

        A penalty that is given: not at all in the first cycles, then by 0.5, which
        decays by a constant factor to the penalty asked for. Otherwise by as much as
        makes `pull` in all steps of a cycle, from the first joint model on.

        Parameters
        ----------
        cycle : int
            Cycles before this one, from 0.
        tau : float, default=1.0
            Steps that the rank makes in a cycle, at least 1.
        """
        if self.penalty is None:
            return float(1 - (1 - self.pull) ** (1 / tau)) if cycle else 0.0
        if cycle < _N_ALONE or self.penalty == 0:
            return 0.0
        if self.penalty >= _FIRST_PENALTY:
            return self.penalty
        progress = min(1.0, (cycle - _N_ALONE) / _N_DECAY)
        return float(_FIRST_PENALTY * (self.penalty / _FIRST_PENALTY) ** progress)


def schedule_of(chosen: MPCA) -> CycleSchedule:
    """Schedule of the cycles that parameters ask for."""
    automatic = None if chosen.penalty_form == "shift" else _LOSS_PENALTY
    penalty = automatic if isinstance(chosen.penalty, str) else chosen.penalty
    extrapolation = chosen.extrapolation
    if isinstance(extrapolation, str):
        extrapolation = (
            _EXTRAPOLATION if penalty is None else _EXTRAPOLATION_OF_A_PENALTY
        )
    return CycleSchedule(extrapolation, chosen.smoothing, penalty, chosen.blending)


class LearningRate:
    """Step size of the optimisers, the same on all ranks.

    Parameters
    ----------
    schedule : {"constant", "invscaling", "adaptive", "cosine"}
        "invscaling" divides the first rate by the number of rows seen, to the power of
        `power_t`; "adaptive" divides the rate by 5 where the fit would otherwise end;
        "cosine" follows half a cosine down to 0.
    first : float
        Rate at the start, above 0.
    power_t : float
        Exponent for "invscaling".

    Attributes
    ----------
    value : float
        The rate now.
    """

    def __init__(self, schedule: str, first: float, power_t: float) -> None:
        self.value = first
        self._schedule = schedule
        self._first = first
        self._power_t = power_t

    def end_epoch(self, n_samples: float, part_done: float) -> None:
        """Set the rate for the next epoch.

        Parameters
        ----------
        n_samples : float
            Rows seen so far, by all ranks.
        part_done : float
            Part of all epochs that has been made, from 0 to 1.
        """
        if self._schedule == "invscaling":
            self.value = self._first / (n_samples + 1) ** self._power_t
        elif self._schedule == "cosine":
            self.value = self._first * (1 + cos(pi * part_done)) / 2

    def goes_on(self) -> bool:
        """Lower an adaptive rate; whether the fit can go on with it."""
        if self._schedule != "adaptive" or self.value <= _LEAST_RATE:
            return False
        self.value /= _ADAPTIVE_FACTOR
        return True
