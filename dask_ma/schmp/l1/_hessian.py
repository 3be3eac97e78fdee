"""Second derivatives of the loss by the coefficients of a working set."""

from __future__ import annotations

import numpy as np

from dask_ma.comm import reduce
from dask_ma.engine import RoundLog
from dask_ma.schmp.l1._problem import Objective


class HessianCache:
    """Second derivatives of the loss, added up over ranks for rank 0.

    Those of a quadratic loss stay as they are, and are kept.

    Parameters
    ----------
    objective : Objective
        Loss and data.
    log : RoundLog
        Where computing is timed.
    """

    def __init__(self, objective: Objective, log: RoundLog) -> None:
        self._log = log
        self._objective = objective
        self._order = np.zeros(0, dtype=np.int64)  # in which coefficients have come
        self._room = np.zeros((0, 0))  # for the Hessian in that order

    def update(self, coordinates: np.ndarray) -> np.ndarray:
        """Hessian of some coefficients on rank 0; a collective call."""
        if self._objective.loss.is_quadratic:
            return self._extended(coordinates)
        return self._whole(coordinates)

    def _extended(self, coordinates: np.ndarray) -> np.ndarray:
        """What is known of the Hessian of a quadratic loss, with what is new."""
        objective, design = self._objective, self._objective.design
        kept = np.isin(self._order, coordinates, assume_unique=True)
        new = np.setdiff1d(coordinates, self._order, assume_unique=True)
        order = np.concatenate([self._order[kept], new])
        n, n_kept = len(order), len(order) - len(new)
        is_root = design.group.rank == 0
        if is_root:
            self._make_room(kept, n)
        if len(new):
            means = objective.means if objective.centers else None
            with self._log.computing():
                cross = design.cross(order, new, objective.loss.weight, means)
            total = reduce(design.group, cross)
            if total is not None:
                self._room[:n, n_kept:n] = total
                self._room[n_kept:n, :n] = total.T
        self._order = order
        if not is_root:
            return np.zeros((0, 0))
        places = np.argsort(order)
        return self._room[places, :n].take(places, axis=1)

    def _make_room(self, kept: np.ndarray, n: int) -> None:
        """Close the gaps that coefficients have left, and have room for `n`."""
        if not kept.all():
            self._room = self._room[: len(kept), : len(kept)][np.ix_(kept, kept)]
        size = int(np.count_nonzero(kept))
        if len(self._room) < n:
            room = np.empty((2 * n, 2 * n))
            room[:size, :size] = self._room[:size, :size]
            self._room = room

    def _whole(self, coordinates: np.ndarray) -> np.ndarray:
        """Hessian at the present margins, with the intercepts in its last rows."""
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
