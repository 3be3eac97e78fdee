"""Where a refinement looks next, and the best that it has found."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dask_ma.kernels import make_loss
from dask_ma.linear._params import LinearModel, RefineParams
from dask_ma.linear.refine._coordinates import Coordinates
from dask_ma.linear.refine._evaluation import Request
from dask_ma.linear.refine._found import Found
from dask_ma.linear.refine._rules import Rules
from dask_ma.linear.refine._track import Track

# An objective this small against that at the start is zero: no model is the best one of
# classes that a plane divides, without a penalty.
_ZERO = 1e-7
_NARROWEST = 1e-9  # smooth loss, against the spread of the targets


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
    coordinates : Coordinates
        What the points are.
    """

    def __init__(self, model: LinearModel, coordinates: Coordinates) -> None:
        self.model = model
        self.points = coordinates.to_points(model)
        self.objectives = np.full(len(self.points), np.inf)
        self.coordinates = coordinates
        self._dtype = model.coef.dtype

    def update(self, request: Request, found: list[Found]) -> None:
        """Take what was found in a round."""
        for k, point, one in zip(request.problems, request.points, found, strict=True):
            if one.objective < self.objectives[k]:
                self.objectives[k] = one.objective
                self.points[k] = point
        exact = self.coordinates.to_model(self.points, np.arange(len(self.points)))
        self.model = LinearModel(*(array.astype(self._dtype) for array in exact))


class Verdict(NamedTuple):
    """What rank 0 makes of a round.

    Attributes
    ----------
    excess : float
        Estimate of how far the mean objective is above its optimum, relative to it.
    is_done : bool
        Whether there is nothing more to be evaluated.
    is_converged : bool
        Whether the objective is as near to its optimum as asked for.
    """

    excess: float = np.inf
    is_done: bool = False
    is_converged: bool = False


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
    """

    def __init__(
        self,
        points: np.ndarray,
        params: RefineParams,
        coordinates: Coordinates,
        method: str,
        spread: float,
    ) -> None:
        self._params = params
        has_curvature = make_loss(params.loss).has_curvature
        is_free = params.refine == "auto" and has_curvature
        self._rules = Rules(coordinates, len(points), method, is_free=is_free)
        least = make_loss(params.loss, params.epsilon).least_width
        least = max(least, _NARROWEST * spread)
        width = max(spread, least)
        self._tracks = [
            Track(
                point.copy(),
                self._rules.make(),
                coordinates,
                width,
                least,
                # Nobody says so of a loss that has no name.
                is_positive=isinstance(params.loss, str),
            )
            for point in points
        ]
        self._asked: list[int] = []
        self._tolerance = 0.0
        self._start: float | None = None

    def ask(self) -> Request:
        """What is to be evaluated next."""
        self._asked = [
            k for k, track in enumerate(self._tracks) if not self._is_ended(track)
        ]
        tracks = [self._tracks[k] for k in self._asked]
        columns = self._rules.columns(tracks)
        return Request(
            np.array(self._asked),
            np.array([track.trial for track in tracks]),
            np.array([track.width for track in tracks]),
            np.array([track.caution for track in tracks]),
            columns,
        )

    def tell(self, found: list[Found]) -> Verdict:
        """Take what was found at the points asked for."""
        asked = [self._tracks[k] for k in self._asked]
        for track, one in zip(asked, found, strict=True):
            track.note(one)
        mean = float(np.mean([track.objective for track in self._tracks]))
        if self._start is None:
            self._start = mean
        # A loss may be negative: relative is then to the size of the objective.
        size = max(abs(mean), _ZERO * abs(self._start))
        self._tolerance = self._params.refine_tol * size
        for track, one in zip(asked, found, strict=True):
            track.update(one, self._tolerance)
        left = float(np.mean([track.excess for track in self._tracks]))
        return Verdict(
            left / abs(mean) if mean else 0.0,
            all(self._is_ended(track) for track in self._tracks),
            all(track.excess <= self._tolerance for track in self._tracks),
        )

    def _is_ended(self, track: Track) -> bool:
        return track.is_stuck or track.excess <= self._tolerance
