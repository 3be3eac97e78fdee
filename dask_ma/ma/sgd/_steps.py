"""Step sizes of SGD: how large each one is, and what they add up to.

All of scikit-learn's schedules that depend on time alone have one form,
``eta_t = scale / (t + shift)**power``: "constant" and "adaptive" with power 0,
"invscaling" with shift 0, "optimal" with power 1. So have the steps of
"passive-aggressive" SGD as far as the penalty is concerned, which sees the constant
`eta0`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_ma.kernels import loss_slopes
from dask_ma.ma._paradigm import Gradients
from dask_ma.ma.sgd._loss_sgd import LossSGD
from dask_ma.ma.sgd._params import FitParams

_NO_DECAY = 1e-15  # part of a step by which the next one is smaller
_HEAD = 64  # steps that are added up one by one; the others nearly make an integral


@dataclass(frozen=True)
class Steps:
    """Sizes ``scale / (t + shift)**power`` of the steps ``t = 1, 2, ...``.

    Parameters
    ----------
    scale, shift, power : float
        As in the formula.
    rule : str
        Name of the schedule in scikit-learn.
    """

    scale: float
    shift: float = 0.0
    power: float = 0.0
    rule: str = "constant"

    def at(self, t: float) -> float:
        """Size of the step with the number `t`."""
        return float(self.scale / (t + self.shift) ** self.power)

    def halved(self, t: float) -> Steps:
        """Steps that are half as large from step `t` on."""
        if self.power == 0:
            return replace(self, scale=self.scale / 2)
        shift = 2 ** (1 / self.power) * (t + self.shift) - t
        return replace(self, shift=shift)

    def sum(self, t: float, n: int) -> float:
        """Sum of the sizes of `n` steps from number `t` on.

        After some terms, the sum goes over into the integral from half a step before to
        half a step after, which is right to the second order.
        """
        head = min(n, _HEAD)
        first = t + self.shift
        total = float((self.scale / (first + np.arange(head)) ** self.power).sum())
        start, stop = first + head - 0.5, first + n - 0.5
        if n == head:
            return total
        if self.power == 0:
            return total + self.scale * (n - head)
        if self.power == 1:
            return total + self.scale * float(np.log(stop / start))
        order = 1 - self.power
        return total + self.scale * float(stop**order - start**order) / order

    def set_on(self, estimator: Any, t: float) -> None:
        """Have a local solver go on with step `t` of these."""
        if isinstance(estimator, LossSGD):
            estimator.steps, estimator.t_ = self, t
            return
        if self.rule in ("optimal", "pa1", "pa2"):
            estimator.learning_rate, estimator.eta0 = self.rule, self.scale
            estimator.t_ = t
            return
        # Not by `set_params`, which takes longer than the steps over a few rows.
        estimator.learning_rate = "invscaling" if self.power else "constant"
        estimator.eta0, estimator.t_ = self.scale, t + self.shift
        if self.power:
            estimator.power_t = self.power


def steps_of(params: FitParams) -> Steps:
    """The schedule that the parameters of a fit ask for.

    Parameters
    ----------
    params : FitParams
        Parameters of the fit.

    Returns
    -------
    steps : Steps
        "optimal" is ``1 / (alpha (t0 + t - 1))``, where `t0` makes the first step what
        a weight of typical size may move at most. With "auto" they only hold until a
        trial has found better ones.
    """
    rate, eta0 = params.learning_rate, params.eta0
    if rate == "auto":
        rate = "constant"
        if isinstance(params.paradigm, Gradients):
            rate = gradient_rate(params.is_classifier)
    if rate == "invscaling":
        return Steps(eta0, power=params.power_t)
    if rate == "optimal":
        shift = _optimal_start(params) - 1
        # Where SGD has only a part of alpha, scikit-learn would step by that part.
        rule = rate if params.penalty in ("l2", None) else "invscaling"
        return Steps(1 / params.alpha, shift, 1.0, rule)
    return Steps(eta0, rule=rate)


def gradient_rate(is_classifier: bool) -> str:
    """What "auto" stands for where a round is one step, on which nothing is tried."""
    return "optimal" if is_classifier else "invscaling"


def balanced_steps(params: FitParams, eta: float, t: float) -> Steps:
    """Steps of size `eta` at `t` that shrink as fast as the penalty lets them.

    ``1 / (1 / eta + alpha (t' - t))`` for the steps ``t' >= t``, which is Bottou's rule
    in the form that forgets the start at the rate of the penalty; without a penalty
    they are constant.
    """
    if params.penalty is None or params.alpha * eta < _NO_DECAY:
        return Steps(eta, rule="auto")
    return Steps(1 / params.alpha, 1 / (params.alpha * eta) - t, 1.0, "auto")


def _optimal_start(params: FitParams) -> float:
    """`t0` of the schedule "optimal"."""
    typical = np.sqrt(1 / np.sqrt(params.alpha))
    target, value = np.array([1.0]), np.array([-typical])
    slope = loss_slopes(params.loss, target, value, params.epsilon)
    return max(1.0, float(slope[0])) / (float(typical) * params.alpha)
