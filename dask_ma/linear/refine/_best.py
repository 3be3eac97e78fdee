"""The best points that a refinement has found, and the model there."""

from __future__ import annotations

import numpy as np

from dask_ma.linear._model import LinearModel
from dask_ma.linear.refine._coordinates import Coordinates, Found
from dask_ma.linear.refine._evaluation import Request


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


class BestModel(Best):
    """The same where points are large: the model alone is kept.

    Parameters
    ----------
    model : LinearModel
        The model before the first round.
    coordinates : Coordinates
        What the points are.
    """

    def __init__(self, model: LinearModel, coordinates: Coordinates) -> None:
        super().__init__(model, coordinates)
        self.points = np.zeros((len(self.points), 0))

    def update(self, request: Request, found: list[Found]) -> None:
        """Take what was found in a round."""
        asked = zip(request.problems, found, strict=True)
        better = [
            k for k, (i, one) in enumerate(asked) if one.objective < self.objectives[i]
        ]
        if not better:
            return
        problems = request.problems[better]
        self.objectives[problems] = [found[k].objective for k in better]
        exact = self.coordinates.to_model(request.points[better], problems)
        # Somebody may still hold the one before.
        arrays = [array.copy() for array in self.model]
        for array, values in zip(arrays, exact, strict=True):
            array[problems] = values
        self.model = LinearModel(*arrays)
