"""Second derivatives of the loss by the coefficients of a working set."""

from __future__ import annotations

import numpy as np

from dask_ma.comm import reduce
from dask_ma.engine import RoundLog
from dask_ma.schmp._problem import Objective


class HessianCache:
    """Second derivatives of the loss, added up over ranks for rank 0.

    Those of a quadratic loss stay as they are, and are kept.

    Parameters
    ----------
    objective : Objective
        Loss and data.
    log : RoundLog
        Where computing is timed.

    Attributes
    ----------
    n_touched : int
        Elements of the data that the last update has gone over.
    """

    def __init__(self, objective: Objective, log: RoundLog) -> None:
        self._log = log
        self._objective = objective
        self._coordinates = np.zeros(0, dtype=np.int64)
        self._hessian: np.ndarray = np.zeros((0, 0))
        self.n_touched = 0

    def update(self, coordinates: np.ndarray) -> np.ndarray:
        """Hessian of some coefficients on rank 0; a collective call."""
        if self._objective.loss.is_quadratic:
            return self._extended(coordinates)
        return self._whole(coordinates)

    def _extended(self, coordinates: np.ndarray) -> np.ndarray:
        """What is known of the Hessian of a quadratic loss, with what is new."""
        objective, design = self._objective, self._objective.design
        known = np.isin(coordinates, self._coordinates, assume_unique=True)
        new = coordinates[~known]
        at = np.searchsorted(self._coordinates, coordinates[known])
        self.n_touched = 0
        hessian = np.zeros((0, 0))
        if design.group.rank == 0:
            hessian = np.empty((len(coordinates), len(coordinates)))
            hessian[np.ix_(known, known)] = self._hessian[np.ix_(at, at)]
        if len(new):
            means = objective.means if objective.centers else None
            with self._log.computing():
                weight = objective.loss.weight
                cross = design.cross(coordinates, new, weight, means)
            self.n_touched = design.n_rows * len(new)
            total = reduce(design.group, cross)
            if total is not None:
                hessian[:, ~known] = total
                hessian[~known] = total.T
        self._coordinates, self._hessian = coordinates, hessian
        return hessian

    def _whole(self, coordinates: np.ndarray) -> np.ndarray:
        """Hessian at the present margins, with the intercepts in its last rows."""
        self.n_touched = self._objective.design.n_rows * len(coordinates)
        with self._log.computing():
            hessian = self._own(coordinates)
        total = reduce(self._objective.design.group, hessian)
        return hessian if total is None else total

    def _own(self, coordinates: np.ndarray) -> np.ndarray:
        """This rank's part of the Hessian at the present margins."""
        objective, design = self._objective, self._objective.design
        K, loss, margins = objective.n_outputs, objective.loss, objective.margins
        features, outputs = np.divmod(coordinates, K)
        n = len(coordinates)
        hessian = np.zeros((n + K, n + K))
        groups = [np.flatnonzero(outputs == k) for k in range(K)]
        curvatures = loss.curvatures(margins)
        for left in range(K):
            by_left = curvatures(left)
            rows = groups[left]
            for right in range(left, K):
                columns = groups[right]
                block = design.cross(
                    features[rows], features[columns], by_left[:, right]
                )
                hessian[np.ix_(rows, columns)] = block
                if left != right:
                    hessian[np.ix_(columns, rows)] = block.T
            if design.is_counted():
                border = design.transposed_dot(features[rows], by_left)
                hessian[rows, n:] = border
                hessian[n:, rows] = border.T
                hessian[n + left, n:] = by_left.sum(axis=0)
        return hessian
