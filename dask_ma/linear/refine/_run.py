"""The refinement as each rank carries it out."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from dask_ma.comm import allreduce, broadcast
from dask_ma.engine import (
    Adder,
    Method,
    Model,
    RankContext,
    Record,
    Snapshot,
    State,
    Work,
    fit_rounds,
)
from dask_ma.kernels import DescentSums
from dask_ma.linear._model import LinearModel, RefineParams, describe, initial_model
from dask_ma.linear.refine._best import Best, BestModel
from dask_ma.linear.refine._choice import choose_method
from dask_ma.linear.refine._coordinates import Coordinates, Found
from dask_ma.linear.refine._evaluation import Request, Rows
from dask_ma.linear.refine._few_rows import few_rows_round, find_optimum
from dask_ma.linear.refine._reachable import notes_on_units, usual_objective
from dask_ma.linear.refine._search import ZERO, Search, Verdict
from dask_ma.linear.refine._share import Share, Slice
from dask_ma.supervised._problem import Problem

# Fewest columns whose weights are shared out. Rounds of two worker processes of one
# thread took 81 ms and not 105 with as many, and with half of them 57 and not 54: the
# work that is saved grows with the columns, but not the two small messages it takes.
_LEAST_SHARED = 2**20
# What rounding of the values of few rows may leave of the objective: kinks lie at some
# of them, and no step could bring the objective nearer.
_ROUNDING = 1e-8
# Most weights of all problems with which every rank makes the search. It keeps twenty
# vectors of them then: 40 MiB at most.
_MOST_MIRRORED = 2**18


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


def refine(
    rounds: Refinable, state: State | None, t: float, add_up: Adder | None = None
) -> bool:
    """Go on from where rounds have ended to the optimum; a collective call.

    Rank 0 decides at which points it needs objective and derivatives, and sends them
    out; all ranks evaluate them in one pass over their rows. Were each rank to decide
    for itself, ranks on processors of different kinds could round differently, and one
    would end while the others wait for it.

    Where there are many columns and L-BFGS is the method, what it remembers and works
    out is shared out over the ranks, which decide by sums of what they find. Where
    there are few, and ranks of processes of their own, all of them make the search, and
    need not wait for what rank 0 asks, which they compare with what they expect.

    Parameters
    ----------
    rounds : Refinable
        The rounds; afterwards their `current` is the best model evaluated, in the dtype
        of the first.
    state : State or None
        What they have gone on from.
    t : float
        Place in the schedule of the learning rate, which stays as it is.
    add_up : callable, default=None
        Sums arrays over ranks; None is :func:`~dask_ma.comm.allreduce`.

    Returns
    -------
    converged : bool
        Whether the objective is as near to its optimum as asked for, or somebody who
        follows the fit wants it to end.
    """
    method = choose_method(rounds.params, rounds.problem)
    make = Refinement
    if few_rows_round(rounds.params, rounds.problem) is not None:
        make = FewRowsRefinement
    elif _is_shared(rounds, method):
        make = SharedRefinement
    elif _is_mirrored(rounds, add_up):
        make = MirroredRefinement
    refinement = make(rounds, t, add_up, method)
    before = state if rounds.n_refined else None
    ended = fit_rounds(rounds.context, refinement, before, add_up=add_up)
    if (coordinates := refinement.coordinates) is not None:
        group, shard = rounds.context.group, rounds.problem.shard
        for note in notes_on_units(group, shard, rounds.params, coordinates):
            rounds.context.note(note)
    return rounds.has_converged or ended.wanted


def _is_shared(rounds: Refinable, method: str) -> bool:
    """Whether the work of the search is worth the messages that sharing it takes."""
    is_large = rounds.problem.shard.n_features >= _LEAST_SHARED
    return method == "lbfgs" and rounds.context.group.size > 1 and is_large


def _is_mirrored(rounds: Refinable, add_up: Adder | None) -> bool:
    """Whether the search is small beside the messages that spread what it asks for."""
    problem, layout = rounds.problem, rounds.context.group.layout
    # Ranks of one process read what rank 0 asks for where it is.
    are_apart = layout.n_nodes == layout.size > 1
    n_weights = problem.n_problems * problem.shard.n_features
    return are_apart and add_up is None and n_weights <= _MOST_MIRRORED


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
            add_up or (lambda arrays: allreduce(self.context.group, list(arrays))),
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
        problem, params, model = before.problem, before.params, before.output
        # If the rounds have only made the model worse, from where the fit started; a
        # refinement that was interrupted goes on from its best model.
        is_in_vain = before.is_worse and not before.n_refined
        if is_in_vain:
            model = initial_model(problem, params)
        is_warm = before.is_near or before.n_rounds > before.n_refined
        self._is_warm = is_warm and not is_in_vain
        return self._begin(model)

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


class MirroredRefinement(Refinement):
    """Steps whose search every rank makes, which goes on with what it asks at once.

    Rank 0 sends a mark of what it asks, which comes while the others evaluate what they
    expect. One that has expected something else, since its processor rounds in another
    way, leaves its part out and says so in the sums; from then on rank 0 alone makes
    the search.
    """

    _ahead: DescentSums | None = None  # parts of what is asked next
    _is_apart = False  # whether rank 0 asks something else
    _is_led = False  # whether rank 0 makes the search alone

    @property
    def _makes_search(self) -> bool:
        return True

    def _evaluate(self) -> DescentSums:
        sums, self._ahead = self._ahead, None
        return super()._evaluate() if sums is None else sums

    def _agree(self, verdict: Verdict) -> Verdict:
        if self._is_led:
            return super()._agree(verdict)
        assert self._search is not None and self._best is not None
        ask = None if verdict.is_done else self._search.ask()
        own = None if ask is None else ask.mark()
        ahead = None
        if ask is not None and self.context.group.rank and not self._is_last:
            ahead = self._rows.measure(ask, self._best.coordinates)
        told = broadcast(self.context.group, (tuple(verdict), own))
        verdict, mark = Verdict(*told[0]), told[1]
        self._is_apart = mark is not None and mark != own
        if self._is_apart:
            ask, ahead = self._request, self._rows.no_sums(*mark[1:])
        self._next, self._ahead = ask, ahead
        return verdict

    def _prepare(self, sums: DescentSums) -> list[np.ndarray]:
        return [*sums, np.array([float(self._is_apart)])]

    def _find(self, sums: list[np.ndarray]) -> list[Found]:
        *sums, n_apart = sums
        if n_apart[0]:
            sums = self._begin_led()
        return super()._find(sums)

    def _begin_led(self) -> list[np.ndarray]:
        """Have rank 0 make the search alone; sums over ranks of what it has asked."""
        group = self.context.group
        self._is_led, self._is_apart = True, False
        if group.rank:
            self._search = None
        self._request = Request(*broadcast(group, tuple(self._request)))
        return allreduce(group, list(self._evaluate()))


class FewRowsRefinement(Refinement):
    """A round in which rank 0 finds the optimum of few rows, before steps or after."""

    @property
    def _is_due(self) -> bool:
        before = self._before
        return before.n_refined == few_rows_round(before.params, before.problem)

    def round(self) -> Work:
        if not self._is_due:
            return super().round()
        before = self._before
        start = before.current if before.n_refined else before.output
        if before.is_worse and not before.n_refined:
            start = initial_model(before.problem, before.params)
        coordinates = self._coordinates(start)
        with self.log.computing():
            self._optimum = find_optimum(
                self.context.group,
                before.problem,
                before.params,
                coordinates,
                start,
                self._add_up,
            )
        points, objectives, _ = self._optimum
        self._best = Best(start, coordinates)
        self._best.objectives[:] = objectives
        # Of kinked losses no derivative is asked for, and any width will do.
        widths, none = np.full(len(points), coordinates.spread), np.zeros(len(points))
        columns = np.zeros((len(points), 0), dtype=np.intp)
        problems = np.arange(len(points))
        self._request = Request(problems, points, widths, none, columns)
        # Rounding may have made it another one than the products tell.
        self._parts = self._prepare(self._evaluate())
        return self._rows.work()

    def record(self, record: Record, sums: list[np.ndarray]) -> None:
        if not self._is_due:
            super().record(record, sums)
            return
        best, before, optimum = self._best, self._before, self._optimum
        assert best is not None
        best.update(self._request, self._find(sums))
        penalties = best.coordinates.penalties(self._request.points)
        mean = float(best.objectives.mean())
        verdict = self._judge(mean, optimum.bound(penalties))
        record["objective"], record["excess"] = mean, verdict.excess
        self._is_done = before.has_converged = verdict.is_converged
        before.current = best.model
        before.n_refined += 1
        before.n_rounds = self.n_rounds
        if not verdict.is_converged:  # steps begin anew from the better one
            self._best = self._next = None

    def _judge(self, mean: float, bound: float) -> Verdict:
        """What rank 0 makes of the objective, and of what no model is below."""
        start = float(self._optimum.before.mean())
        least = ZERO * start if np.isfinite(start) else 0.0
        gap = max(0.0, mean - bound) if np.isfinite(mean - bound) else np.inf
        tol = max(self._before.params.refine_tol, _ROUNDING)
        is_near = gap <= tol * max(abs(mean), least)
        is_converged = bool(is_near and np.isfinite(gap))
        excess = gap / abs(mean) if mean else 0.0
        told = (excess, is_converged, is_converged)
        return Verdict(*broadcast(self.context.group, told))


class SharedRefinement(Refinement):
    """Steps of L-BFGS whose vectors are shared out, each rank with a slice of all."""

    _share: Slice
    _own: Coordinates
    _slopes: np.ndarray

    def _begin(self, model: LinearModel) -> Best:
        coordinates = self._coordinates(model)
        model = self._nearer(model, coordinates)
        self._share = Slice(
            self.context.group,
            coordinates.n_features,
            self._add_up,
            fit_intercept=self._before.params.fit_intercept,
        )
        self._own = coordinates.part(self._share)
        points = coordinates.to_points(model)[:, self._share.weights]
        self._search = self._search_from(points, self._own, self._share)
        return BestModel(model, coordinates)

    def _ask(self) -> Request:
        assert self._search is not None
        self._asked = self._search.ask()
        points = self._share.gather(self._asked.points)
        return self._asked._replace(points=points)

    def _agree(self, verdict: Verdict) -> Verdict:
        return verdict  # the same on all ranks

    def _prepare(self, sums: DescentSums) -> list[np.ndarray]:
        self._slopes = self._share.scatter(sums.coef)
        penalties = self._own.penalties(self._asked.points)
        return [*sums._replace(coef=np.zeros((len(sums.coef), 0))), penalties]

    def _find(self, sums: list[np.ndarray]) -> list[Found]:
        assert self._best is not None
        *rest, penalties = sums
        total = DescentSums(*rest)._replace(coef=self._slopes)
        own = self._rows.gradients(total, self._asked.points, self._own)
        return self._rows.to_found(
            total, self._request, self._best.coordinates, own, penalties
        )
