"""Schedules: sizes of the steps of SGD, and passes between two merges.

All of scikit-learn's schedules that depend on time alone have one form,
``eta_t = scale / (t + shift)**power``: "constant" and "adaptive" with power 0,
"invscaling" with shift 0, "optimal" with power 1. So have the steps of
"passive-aggressive" SGD as far as the penalty is concerned, which sees the constant
`eta0`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dask_ma.engine import quickest_of
from dask_ma.kernels import loss_slopes
from dask_ma.ma._paradigm import Gradients
from dask_ma.ma.sgd._loss_sgd import LossSGD
from dask_ma.ma.sgd._params import FitParams, gradient_rate, is_refined

_NO_DECAY = 1e-15  # part of a step by which the next one is smaller
_HEAD = 64  # steps that are added up one by one; the others nearly make an integral
# What the choice rests on was measured with asv_bench/studies/local_epochs.py, on
# generated text, imdb and newsgroups20, from 2 to 16 ranks.
#
# Against merging all the time, passes of length `e` over `n` rows per rank need about
# 1 + (24,000 / n) sqrt(e) times as many passes for the same objective.
_DRIFT_ROWS = 24_000
# A pass over a rank's rows comes with one evaluation of the objective, which costs a
# tenth of it. A merge costs as much as SGD over 300,000 non-zeros, at 7 ns each, and
# the time of a link for 16 bytes of each weight but one part in `n_ranks`.
_EVALUATION = 0.1
_MERGE = 300_000
_SECONDS_PER_STORED = 7e-9
_BYTES_PER_WEIGHT = 16
# Longer rounds leave a bias: with the hinge loss that of 10 passes is plain to see.
# More than one is for ranks with so many rows that they lose less than a pass by it.
_CHOICES = (4.0, 2.0, 1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
# A fit of one rank with default parameters makes about so many passes of SGD, and
# rounds of the refinement, which cost an element less; it makes more of both where the
# first pass that brings little is not the last one. A round takes some exchanges.
_HANDED_OVER, _PASSES, _REFINED = 6, 16, 32
_SECONDS_PER_EVALUATED = 4e-9
_EXCHANGES = 3e-3


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


class Sizes(NamedTuple):
    """Sizes that decide how often to merge; the same on all ranks.

    Attributes
    ----------
    n_ranks : int
        Number of ranks.
    n_rows : int
        Rows of all ranks.
    n_stored : int
        Stored elements of X on all ranks: non-zeros, or all elements if dense.
    n_problems : int
        Linear functions to train.
    n_features : int
        Columns of X.
    link_bandwidth : float
        Bytes a second from one worker to another.
    """

    n_ranks: int
    n_rows: int
    n_stored: int
    n_problems: int
    n_features: int
    link_bandwidth: float


def local_epochs(setting: float | str, sizes: Sizes) -> float:
    """How often each rank goes over its rows before the models are merged.

    Parameters
    ----------
    setting : float or "auto"
        The estimator's parameter. "auto" takes the passes, from 1/16 to 4, for which
        passes needed times cost of a pass is least.
    sizes : Sizes
        Sizes of the problem. The clock plays no part, so a seed gives one result.

    Returns
    -------
    epochs : float
    """
    if setting != "auto":
        return float(setting)
    if sizes.n_ranks == 1:
        return 1.0
    choices = [e for e in _CHOICES if e <= 1 or _drift(sizes) * math.sqrt(e) <= 1]
    return min(choices, key=lambda epochs: relative_cost(epochs, sizes))


def relative_cost(epochs: float, sizes: Sizes) -> float:
    """Cost of reaching an objective with merges every `epochs` passes.

    In units of what the passes alone would cost if merging were free.
    """
    work = max(1.0, sizes.n_stored * sizes.n_problems / sizes.n_ranks)
    n_weights = sizes.n_problems * sizes.n_features
    n_bytes = _BYTES_PER_WEIGHT * n_weights * (1 - 1 / sizes.n_ranks)
    merge = _MERGE + n_bytes / sizes.link_bandwidth / _SECONDS_PER_STORED
    cost_of_pass = 1 + _EVALUATION + merge / work / epochs
    return (1 + _drift(sizes) * math.sqrt(epochs)) * cost_of_pass


class Course(NamedTuple):
    """What a fit is taken to be made of.

    Attributes
    ----------
    n_passes : float
        Passes of SGD.
    n_refined : float
        Rounds of the refinement, which all ranks share without a loss.
    """

    n_passes: float
    n_refined: float

    @classmethod
    def of(cls, params: FitParams) -> Course:
        """That of most fits with such parameters, or less if less is allowed."""
        n_passes = _HANDED_OVER if params.hands_over else _PASSES
        n_refined = _REFINED if is_refined(params) else 0
        if params.tol is None:
            n_passes = params.max_iter
        return cls(
            min(n_passes, params.max_iter), min(n_refined, params.refine_max_iter)
        )


def quickest_ranks(
    setting: float | str,
    sizes: Sizes,
    most: int,
    course: Course,
    moved: Callable[[int], float],
) -> int:
    """How many ranks are done soonest, by the costs that :func:`local_epochs` weighs.

    Parameters
    ----------
    setting : float or "auto"
        The estimator's parameter `local_epochs`.
    sizes : Sizes
        Sizes of the problem; their number of ranks is not looked at.
    most : int
        Ranks that there may be.
    course : Course
        What the fit is made of.
    moved : callable
        Given a number of ranks, bytes that have to move to them first.

    Returns
    -------
    n_ranks : int
        `most`, or a power of two below.
    """

    def seconds(n_ranks: int) -> float:
        own = sizes._replace(n_ranks=n_ranks)
        return (
            course.n_passes * _seconds_of_pass(setting, own)
            + course.n_refined * _seconds_of_refined(own)
            + moved(n_ranks) / sizes.link_bandwidth
        )

    return quickest_of(most, seconds)


def _seconds_of_pass(setting: float | str, sizes: Sizes) -> float:
    """Seconds of the rounds in which ranks get as far as one would in a pass."""
    work = sizes.n_stored * sizes.n_problems / sizes.n_ranks * _SECONDS_PER_STORED
    if sizes.n_ranks == 1:
        return work * (1 + _EVALUATION)
    return work * relative_cost(local_epochs(setting, sizes), sizes)


def _seconds_of_refined(sizes: Sizes) -> float:
    """Seconds of a round of the refinement."""
    work = sizes.n_stored * sizes.n_problems / sizes.n_ranks * _SECONDS_PER_EVALUATED
    if sizes.n_ranks == 1:
        return work
    n_bytes = _BYTES_PER_WEIGHT * sizes.n_problems * sizes.n_features
    messages = _EXCHANGES * math.log2(sizes.n_ranks)
    return work + messages + n_bytes / sizes.link_bandwidth


def _drift(sizes: Sizes) -> float:
    """Part of a pass that ranks lose by working alone for as long."""
    return _DRIFT_ROWS * sizes.n_ranks / sizes.n_rows
