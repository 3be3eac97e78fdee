"""Rounds of a fit that a refinement may follow, and the refinement by steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

import numpy as np

from dask_ma.comm import Group, allreduce, broadcast
from dask_ma.engine import (
    Adder,
    Method,
    Model,
    RankContext,
    Record,
    Snapshot,
    State,
    Work,
)
from dask_ma.kernels import DescentSums
from dask_ma.linear._model import LinearModel, RefineParams, describe, initial_model
from dask_ma.linear.refine._best import Best
from dask_ma.linear.refine._coordinates import Coordinates, Found
from dask_ma.linear.refine._evaluation import Request, Rows
from dask_ma.linear.refine._reachable import usual_objective
from dask_ma.linear.refine._search import Search, Verdict
from dask_ma.linear.refine._share import Share
from dask_ma.supervised._problem import Problem


class Refinable(Method):
    """Rounds of a linear model's fit, which a refinement may follow.

    Attributes
    ----------
    problem : Problem
        What is trained.
    params : RefineParams
        Parameters of the fit.
    current : LinearModel
        The model to go on from; once refined, the best one.
    n_refined : int
        Rounds of the refinement among those made; a part of the state.
    has_converged : bool
        Whether the refinement has; a part of the state.
    is_near : bool
        Whether the model that the fit starts from is near the optimum already.
    """

    def __init__(
        self,
        context: RankContext,
        problem: Problem,
        params: RefineParams,
        model: LinearModel,
    ) -> None:
        super().__init__(context)
        self.problem = problem
        self.params = params
        self.current = model
        self.n_refined = 0
        self.has_converged = self.is_near = False

    @property
    def output(self) -> LinearModel:
        """What the rounds have ended with."""
        return self.current

    def whole(self, model: LinearModel) -> LinearModel:
        """A model of the problem as one for all columns of X."""
        return model

    @property
    @abstractmethod
    def is_worse(self) -> bool:
        """Whether that is worse than the model that the fit has started from."""

    @abstractmethod
    def state_dict(self) -> Snapshot:
        """State after the round, also of the refinement."""


def sum_over_ranks(group: Group, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Sums of the arrays of all ranks."""
    return allreduce(group, list(arrays))


def start_of(rounds: Refinable) -> LinearModel:
    """The model that a round goes on from.

    Parameters
    ----------
    rounds : Refinable
        Rounds, perhaps refined ones among them.

    Returns
    -------
    model : LinearModel
        That of the start of the fit where rounds of SGD have only made it worse; a
        refinement that was interrupted goes on from its best one.
    """
    if rounds.n_refined:
        return rounds.current
    if rounds.is_worse:
        return initial_model(rounds.problem, rounds.params)
    return rounds.output


class Refinement(Method):
    """Steps of second order, each of which takes a pass over the rows."""

    def __init__(
        self, rounds: Refinable, t: float, add_up: Adder | None, method: str
    ) -> None:
        super().__init__(rounds.context, rounds.log)
        self.n_rounds = rounds.n_rounds
        self._before = rounds
        self._t = t
        self._method = method
        self._add_up = add_up
        self._rows = Rows(
            rounds.problem,
            rounds.params,
            self.log,
            add_up or partial(sum_over_ranks, rounds.context.group),
        )
        self._best: Best | None = None
        self._search: Search | None = None  # on ranks that make it
        self._next: Request | None = None  # has come with the verdict on the last round
        self._is_warm = False

    @property
    def is_complete(self) -> bool:
        return self._before.n_refined >= self._before.params.refine_max_iter

    def load_state_dict(self, state: State) -> None:
        """The rounds before, whose state it is a part of, have taken it over."""

    def state_dict(self) -> Snapshot:
        return self._before.state_dict()

    def round(self) -> Work:
        if self._best is None:
            self._best = self._start()
        self._request = self._next or self._ask()
        self._parts = self._prepare(self._evaluate())
        return self._rows.work()

    def measure(self) -> list[np.ndarray]:
        return self._parts

    def record(self, record: Record, sums: list[np.ndarray]) -> None:
        best, before, verdict = self._best, self._before, Verdict()
        assert best is not None
        found = self._find(sums)
        if self._search is not None:
            verdict = self._search.tell(found)
        verdict = self._agree(verdict)
        best.update(self._request, found)  # others wait for what is asked next
        record["objective"] = float(best.objectives.mean())
        record["excess"] = verdict.excess
        self._is_done = verdict.is_done
        is_over = verdict.is_done or self._is_last
        before.has_converged = verdict.is_converged and is_over
        before.current = best.model
        before.n_refined += 1
        before.n_rounds = self.n_rounds

    def is_done(self, record: Record) -> bool:
        """Whether there is nothing more to be evaluated."""
        return self._is_done

    def model(self) -> Model:
        before = self._before
        model = before.whole(before.current)
        return describe(model, before.problem, self._t, self.n_rounds)

    def _start(self) -> Best:
        """Look at the rows, and at where to begin; a collective call."""
        before = self._before
        is_in_vain = before.is_worse and not before.n_refined
        is_warm = before.is_near or before.n_rounds > before.n_refined
        self._is_warm = is_warm and not is_in_vain
        return self._begin(start_of(before))

    def _begin(self, model: LinearModel) -> Best:
        """Begin the search at a model; a collective call."""
        coordinates = self._coordinates(model)
        best = Best(self._nearer(model, coordinates), coordinates)
        if self._makes_search:
            share = Share(coordinates.n_features)
            self._search = self._search_from(best.points, coordinates, share)
        return best

    def _coordinates(self, model: LinearModel) -> Coordinates:
        """Coordinates, with what an objective is by the targets; a collective call."""
        group, before = self.context.group, self._before
        coordinates = self._rows.coordinates(model)
        coordinates.usual = usual_objective(group, before.problem.shard, before.params)
        return coordinates

    def _nearer(self, model: LinearModel, coordinates: Coordinates) -> LinearModel:
        """The model, or the mean of the targets where its values are far from all."""
        points = coordinates.to_points(model)
        if not coordinates.is_far(points):
            return model
        self._is_warm = False
        constant = coordinates.to_model(np.zeros_like(points), np.arange(len(points)))
        return LinearModel(*(array.astype(model.coef.dtype) for array in constant))

    @property
    def coordinates(self) -> Coordinates | None:
        """Those of the points, if any round has been made."""
        return None if self._best is None else self._best.coordinates

    @property
    def _is_last(self) -> bool:
        """Whether no other round follows the one that is being recorded."""
        before = self._before
        return before.n_refined + 1 >= before.params.refine_max_iter

    @property
    def _makes_search(self) -> bool:
        """Whether this rank looks for the next points."""
        return self.context.group.rank == 0

    def _search_from(
        self, points: np.ndarray, coordinates: Coordinates, share: Share
    ) -> Search:
        return Search(
            points,
            self._before.params,
            coordinates,
            self._method,
            share,
            is_warm=self._is_warm,
        )

    def _ask(self) -> Request:
        """What is to be evaluated, from rank 0."""
        ask = None if self._search is None else self._search.ask()
        return Request(*broadcast(self.context.group, ask))

    def _agree(self, verdict: Verdict) -> Verdict:
        """What rank 0 makes of the round, and asks next."""
        told = None
        if self._search is not None:
            told = tuple(verdict), None if verdict.is_done else self._search.ask()
        verdict, ask = broadcast(self.context.group, told)
        self._next = None if ask is None else Request(*ask)
        return Verdict(*verdict)

    def _evaluate(self) -> DescentSums:
        """This rank's parts of what was asked for."""
        assert self._best is not None
        return self._rows.measure(self._request, self._best.coordinates)

    def _prepare(self, sums: DescentSums) -> list[np.ndarray]:
        """This rank's parts of what is to be summed over ranks."""
        return list(sums)

    def _find(self, sums: list[np.ndarray]) -> list[Found]:
        """Means from the sums over ranks."""
        assert self._best is not None
        coordinates = self._best.coordinates
        return self._rows.to_found(DescentSums(*sums), self._request, coordinates)
