"""Random, cyclic and prioritised schedules."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np

from dask_ma._ranges import Interval, StrOptions
from dask_ma._settings import Settings
from dask_ma.comm import Group
from dask_ma.schmp.runtime._program import Request, Schedule
from dask_ma.schmp.runtime._schedulers import Schedulers
from dask_ma.schmp.schedules._sampling import PrioritySampler, distinct


class CandidateSchedule(Settings, Schedule):
    """Base of the schedules here: so many candidates in each iteration.

    An object has its parameters, and notes of the run that it is used in; `clone` makes
    one without notes.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_candidates": [Interval(Integral, 1, None, closed="left")],
        "pipeline_depth": [
            Interval(Integral, 1, None, closed="left"),
            StrOptions({"auto"}),
        ],
        "n_schedulers": [Interval(Integral, 1, None, closed="left")],
    }

    n_candidates: int
    pipeline_depth: int | str
    n_schedulers: int

    def prepare(
        self,
        shard: Any,
        group: Group,
        schedulers: Schedulers,
        *,
        centered: bool = False,
    ) -> None:
        """Check the parameters; a collective call."""
        self.check()


class Random(CandidateSchedule):
    """Parameters drawn at random, all with the same probability (Shotgun [1]_).

    Parameters
    ----------
    n_candidates : int, default=64
        Parameters in an iteration, at least 1. Many of them that depend on each other
        make a program diverge.
    pipeline_depth : int or "auto", default="auto"
        Iterations under way at a time, at least 1, of a fit or a run with this
        schedule. 1 makes each wait for the one before. "auto" is 1 where all ranks
        share a process, and 3 elsewhere; where ranks have parameters of their own it is
        their number, but at least 3. A number gives the same bits on any cluster.
    n_schedulers : int, default=1
        Ranks that schedule, at least 1, each a part of the parameters of its own.

    References
    ----------
    .. [1] J. K. Bradley, A. Kyrola, D. Bickson, C. Guestrin, "Parallel coordinate
       descent for L1-regularized loss minimization", ICML 2011.
    """

    def __init__(
        self,
        n_candidates: int = 64,
        *,
        pipeline_depth: int | str = "auto",
        n_schedulers: int = 1,
    ) -> None:
        self.n_candidates = n_candidates
        self.pipeline_depth = pipeline_depth
        self.n_schedulers = n_schedulers

    def __call__(self, model: np.ndarray, request: Request) -> np.ndarray:
        """Parameters to update in an iteration."""
        parameters, n = request.parameters, self.n_candidates
        wanted = min(n + len(request.pending), len(parameters))
        drawn = request.rng.choice(len(parameters), wanted, replace=False)
        return distinct(drawn + parameters.start, request.pending, n)


class Cyclic(CandidateSchedule):
    """Parameters one after the other, from the first again after the last.

    Parameters
    ----------
    n_candidates : int, default=64
        Parameters in an iteration, at least 1.
    pipeline_depth : int or "auto", default="auto"
        Iterations under way at a time, at least 1, of a fit or a run with this
        schedule. 1 makes each wait for the one before. "auto" is 1 where all ranks
        share a process, and 3 elsewhere; where ranks have parameters of their own it is
        their number, but at least 3. A number gives the same bits on any cluster.
    n_schedulers : int, default=1
        Ranks that schedule, at least 1, each a part of the parameters of its own.
    """

    def __init__(
        self,
        n_candidates: int = 64,
        *,
        pipeline_depth: int | str = "auto",
        n_schedulers: int = 1,
    ) -> None:
        self.n_candidates = n_candidates
        self.pipeline_depth = pipeline_depth
        self.n_schedulers = n_schedulers

    def __call__(self, model: np.ndarray, request: Request) -> np.ndarray:
        """Parameters to update in an iteration."""
        parameters = request.parameters
        if not len(parameters):
            return np.empty(0, dtype=np.int64)
        n = min(self.n_candidates, len(parameters))
        places = (request.turn * n + np.arange(n)) % len(parameters)
        return distinct(places + parameters.start, request.pending, n)


class Priority(CandidateSchedule):
    """Parameters that have moved most, drawn by the squares of their last changes.

    A parameter that was never updated counts like the one that has moved most. There is
    no look at dependencies.

    Parameters
    ----------
    n_candidates : int, default=64
        Parameters in an iteration, at least 1. If so many cannot be drawn because few
        have moved, others are drawn with equal probabilities.
    floor : float, default=0.2
        Fraction of the draws that give all parameters the same probability, from 0 to
        1; it keeps those that have not moved from being forgotten.
    pipeline_depth : int or "auto", default="auto"
        Iterations under way at a time, at least 1, of a fit or a run with this
        schedule. 1 makes each wait for the one before. "auto" is 1 where all ranks
        share a process, and 3 elsewhere; where ranks have parameters of their own it is
        their number, but at least 3. A number gives the same bits on any cluster.
    n_schedulers : int, default=1
        Ranks that schedule, at least 1, each a part of the parameters of its own.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **CandidateSchedule._parameter_constraints,
        "floor": [Interval(Real, 0, 1, closed="both")],
    }

    def __init__(
        self,
        n_candidates: int = 64,
        floor: float = 0.2,
        *,
        pipeline_depth: int | str = "auto",
        n_schedulers: int = 1,
    ) -> None:
        self.n_candidates = n_candidates
        self.floor = floor
        self.pipeline_depth = pipeline_depth
        self.n_schedulers = n_schedulers
        self._sampler: PrioritySampler | None = None
        self._parameters = range(0)

    def __call__(self, model: np.ndarray, request: Request) -> np.ndarray:
        """Parameters to update in an iteration, those that have moved most first."""
        return self._candidates(request)

    def _candidates(self, request: Request) -> np.ndarray:
        """Candidates in the order of their priority."""
        found = self._draw(request)
        order = np.argsort(-request.last_change[found], kind="stable")
        return found[order]

    def _draw(self, request: Request) -> np.ndarray:
        """Different parameters that are not pending."""
        parameters, pending, n = request.parameters, request.pending, self.n_candidates
        last_change = request.last_change[parameters.start : parameters.stop]
        sampler = self._updated_sampler(request, last_change)
        if len(parameters) <= n + len(pending):
            return distinct(np.arange(parameters.start, parameters.stop), pending, n)
        rng, n_draws = request.rng, 2 * n
        drawn = sampler.draw(last_change, n_draws, rng)
        n_even = rng.binomial(len(drawn), self.floor)
        # The draws come in no order, so any of them can be the even ones.
        even = rng.permutation(len(drawn))[:n_even]
        drawn[even] = rng.integers(len(parameters), size=n_even)
        others = rng.integers(len(parameters), size=n_draws)
        found = np.concatenate([drawn, others]) + parameters.start
        return distinct(found, pending, n)

    def _updated_sampler(
        self, request: Request, last_change: np.ndarray
    ) -> PrioritySampler:
        """The sampler, with what has changed since the last iteration."""
        parameters, changed = request.parameters, request.changed
        if self._sampler is None or parameters != self._parameters:
            self._sampler = PrioritySampler(len(parameters), 2 * self.n_candidates)
            self._parameters, changed = parameters, None
        self._sampler.update(last_change, inside(changed, parameters))
        return self._sampler


def inside(changed: np.ndarray | None, parameters: range) -> np.ndarray | None:
    """Which of some parameters have changed, counted from the first of them."""
    if changed is None:
        return None
    inside = (changed >= parameters.start) & (changed < parameters.stop)
    return changed[inside] - parameters.start
