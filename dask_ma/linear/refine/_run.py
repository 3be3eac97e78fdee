"""The refinement as each rank carries it out."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dask_ma.comm import broadcast
from dask_ma.engine import RankContext
from dask_ma.linear._evaluation import Evaluator
from dask_ma.linear._model import describe
from dask_ma.linear._params import LinearModel, RefineParams
from dask_ma.linear.refine._coordinates import Coordinates
from dask_ma.linear.refine._evaluation import Adder, Request, Rows
from dask_ma.linear.refine._found import Found
from dask_ma.linear.refine._lbfgs import LBFGS
from dask_ma.linear.refine._newton import Newton
from dask_ma.linear.refine._track import Track
from dask_ma.supervised._problem import Problem

# Newton's method needs a pass that costs each row the square of the columns, and sums
# of as many numbers per problem.
_MOST_COLUMNS, _MOST_SECOND = 512, 2**20
# An objective this small against that at the start is zero: no model is the best one of
# classes that a plane divides, without a penalty.
_ZERO = 1e-7
_NARROWEST = 1e-9  # smooth loss, against the spread of the targets

#: Called after each round with the best model, the rounds so far, whether this was the
#: last one, and whether the refinement has converged; keeps all of it in case the fit
#: has to go on.
Keeper = Callable[[LinearModel, int, bool, bool], None]


class Outcome(NamedTuple):
    """What a refinement ends with, the same on all ranks.

    Attributes
    ----------
    model : LinearModel
        The best one evaluated, in the dtype of the first.
    n_iter : int
        Rounds so far.
    converged : bool
        Whether the objective is as near to its optimum as asked for, or somebody who
        follows the fit wants it to end.
    """

    model: LinearModel
    n_iter: int
    converged: bool


def refine(
    context: RankContext,
    problem: Problem,
    params: RefineParams,
    evaluator: Evaluator,
    model: LinearModel,
    n_iter: int,
    t: float,
    *,
    add_up: Adder,
    keep: Keeper,
    most_rounds: int,
) -> Outcome:
    """Go on from a model to the optimum of its objective; a collective call.

    Rank 0 decides at which points it needs objective and derivatives, and sends them
    out; all ranks evaluate them in one pass over their rows. Were each rank to decide
    for itself, ranks on processors of different kinds could round differently, and one
    would end while the others wait for it.

    Parameters
    ----------
    context : RankContext
        This rank.
    problem : Problem
        What is to be trained.
    params : RefineParams
        Parameters of the fit.
    evaluator : Evaluator
        What has evaluated the rounds so far.
    model : LinearModel
        Where to start.
    n_iter : int
        Rounds so far.
    t : float
        Place in the schedule of the learning rate, which stays as it is.
    add_up : callable
        Sums arrays over ranks.
    keep : callable
        Keeps the model after each round.
    most_rounds : int
        Rounds that there may be, at least 1.

    Returns
    -------
    outcome : Outcome
    """
    method = choose_method(params.refine, problem)
    rows = Rows(problem, params, evaluator, add_up, has_hessian=method == "newton")
    coordinates = rows.coordinates(model)
    best = Best(model, coordinates)
    search = None
    if context.group.rank == 0:
        search = Search(best.points, params, coordinates, method, rows.spread)
    verdict = np.inf, False, False
    for number in range(1, most_rounds + 1):
        ask = None if search is None else search.ask()
        request = Request(*broadcast(context.group, ask))
        n_iter += 1
        found, record = rows.evaluate(request, coordinates, n_iter)
        best.update(request, found)
        if search is not None:
            search.tell(found)
            verdict = search.excess, search.is_done, search.is_converged
        verdict = broadcast(context.group, verdict)
        excess, is_done, converged = verdict
        record["objective"] = float(best.objectives.mean())
        record["excess"] = excess
        wanted = context.record(record, describe(best.model, problem, t, n_iter))
        is_last = is_done or wanted or number == most_rounds
        converged = converged or wanted
        keep(best.model, number, is_last, converged)
        if is_last:
            break
    return Outcome(best.model, n_iter, converged)


def choose_method(method: str | None, problem: Problem) -> str:
    """Newton's method where its matrices are small, unless L-BFGS is asked for."""
    if method in ("newton", "lbfgs"):
        return str(method)
    n_columns = problem.shard.n_features + 1
    n_second = problem.n_problems * n_columns**2
    is_small = n_columns <= _MOST_COLUMNS and n_second <= _MOST_SECOND
    return "newton" if is_small else "lbfgs"


class Best:
    """Where each problem's objective was lowest.

    Parameters
    ----------
    model : LinearModel
        The model before the first round.
    coordinates : Coordinates
        What the points are.

    Attributes
    ----------
    points : ndarray of shape (n_problems, n_weights)
        The points.
    objectives : ndarray of shape (n_problems,)
        The objectives.
    model : LinearModel
        The model there, in the dtype of the first.
    """

    def __init__(self, model: LinearModel, coordinates: Coordinates) -> None:
        self.model = model
        self.points = coordinates.to_points(model)
        self.objectives = np.full(len(self.points), np.inf)
        self._coordinates = coordinates
        self._dtype = model.coef.dtype

    def update(self, request: Request, found: list[Found]) -> None:
        """Take what was found in a round."""
        for k, point, one in zip(request.problems, request.points, found, strict=True):
            if one.objective < self.objectives[k]:
                self.objectives[k] = one.objective
                self.points[k] = point
        exact = self._coordinates.to_model(self.points, np.arange(len(self.points)))
        self.model = LinearModel(*(array.astype(self._dtype) for array in exact))


class Search:
    """Looks for the optimum of all problems at once, on rank 0.

    Each problem has a line search of its own; their trials are evaluated in the same
    pass, and those that have come to their end are left out.

    Parameters
    ----------
    points : ndarray of shape (n_problems, n_weights)
        Where to start.
    params : RefineParams
        Parameters of the fit.
    coordinates : Coordinates
        What the points are.
    method : {"newton", "lbfgs"}
        What gives the directions.
    spread : float
        Typical size of a residual.

    Attributes
    ----------
    excess : float
        Estimate of how far the mean objective is above its optimum, relative to it.
    is_done : bool
        Whether there is nothing more to be evaluated.
    is_converged : bool
        Whether the objective is as near to its optimum as asked for.
    """

    def __init__(
        self,
        points: np.ndarray,
        params: RefineParams,
        coordinates: Coordinates,
        method: str,
        spread: float,
    ) -> None:
        rule: type[LBFGS | Newton] = Newton if method == "newton" else LBFGS
        self._params = params
        least = 0.5 * params.epsilon if params.loss == "huber" else 0.0
        least = max(least, _NARROWEST * spread)
        width = max(spread, least)
        self._tracks = [
            Track(point.copy(), rule(coordinates.l1), coordinates, width, least)
            for point in points
        ]
        self._asked: list[int] = []
        self._tolerance = 0.0
        self._start: float | None = None
        self.excess, self.is_done, self.is_converged = np.inf, False, False

    def ask(self) -> Request:
        """What is to be evaluated next."""
        self._asked = [
            k for k, track in enumerate(self._tracks) if not self._is_ended(track)
        ]
        tracks = [self._tracks[k] for k in self._asked]
        return Request(
            np.array(self._asked),
            np.array([track.trial for track in tracks]),
            np.array([track.width for track in tracks]),
            np.array([track.caution for track in tracks]),
        )

    def tell(self, found: list[Found]) -> None:
        """Take what was found at the points asked for."""
        asked = [self._tracks[k] for k in self._asked]
        for track, one in zip(asked, found, strict=True):
            track.note(one)
        mean = float(np.mean([track.objective for track in self._tracks]))
        if self._start is None:
            self._start = mean
        self._tolerance = self._params.refine_tol * max(mean, _ZERO * self._start)
        for track, one in zip(asked, found, strict=True):
            track.update(one, self._tolerance)
        left = float(np.mean([track.excess for track in self._tracks]))
        self.excess = left / mean if mean > 0 else 0.0
        self.is_done = all(self._is_ended(track) for track in self._tracks)
        self.is_converged = all(
            track.excess <= self._tolerance for track in self._tracks
        )

    def _is_ended(self, track: Track) -> bool:
        return track.is_stuck or track.excess <= self._tolerance
