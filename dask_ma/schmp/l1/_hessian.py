"""Second derivatives of the loss by the coefficients of a working set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import gather, reduce, reduce_and_gather
from dask_ma.engine import RoundLog
from dask_ma.schmp.l1._problem import Objective


class System(NamedTuple):
    """What rank 0 has of all ranks to solve for some coefficients.

    Attributes
    ----------
    hessian : ndarray of shape (n, n)
        Second derivatives, over the rows of all ranks; with the intercepts in its last
        rows and columns unless the loss is quadratic. It must not be changed.
    order : ndarray of int64
        Which of the coefficients asked for the rows of the Hessian belong to.
    sums : list of ndarray
        Sums of what else each rank has given.
    payloads : list of object
        What the ranks tell, in their order; empty where they tell nothing.
    """

    hessian: np.ndarray
    order: np.ndarray
    sums: list[np.ndarray]
    payloads: list[Any]


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

    def update(
        self,
        coordinates: np.ndarray,
        riders: Sequence[np.ndarray] = (),
        payload: Any = None,
    ) -> System | None:
        """Hessian of some coefficients on rank 0; a collective call.

        Parameters
        ----------
        coordinates : ndarray of int64
            Which coefficients, sorted.
        riders : sequence of ndarray
            What is to be added up over ranks besides, in the same messages if may be.
        payload : object, default=None
            What this rank tells rank 0; the ranks have to agree whether it is None.

        Returns
        -------
        system : System or None
            None but on rank 0.
        """
        if self._objective.loss.is_quadratic:
            return self._extended(coordinates, riders, payload)
        return self._whole(coordinates, riders, payload)

    def _extended(
        self, coordinates: np.ndarray, riders: Sequence[np.ndarray], payload: Any
    ) -> System | None:
        """What is known of the Hessian of a quadratic loss, with what is new."""
        objective, design = self._objective, self._objective.design
        kept = np.isin(self._order, coordinates, assume_unique=True)
        new = np.setdiff1d(coordinates, self._order, assume_unique=True)
        order = np.concatenate([self._order[kept], new])
        n, n_kept = len(order), len(order) - len(new)
        if design.group.rank == 0:
            self._make_room(kept, n)
        sums: list[np.ndarray] = []
        found: Any = None
        if len(new):
            means = objective.means if objective.centers else None
            with self._log.computing():
                found = design.cross_on_root(
                    order, new, objective.loss.weight, means, payload
                )
        elif payload is not None:
            payloads = gather(design.group, payload)
            found = None if payloads is None else (None, payloads)
        if riders:
            sums = reduce(design.group, list(riders)) or []
        self._order = order
        if design.group.rank != 0:
            return None
        total, payloads = found or (None, [])
        if total is not None:
            self._room[:n, n_kept:n] = total
            self._room[n_kept:n, :n] = total.T
        hessian = self._room[:n, :n]
        rows = np.searchsorted(coordinates, order)
        return System(hessian, rows, sums, payloads if payload is not None else [])

    def _make_room(self, kept: np.ndarray, n: int) -> None:
        """Close the gaps that coefficients have left, and have room for `n`."""
        if not kept.all():
            self._room = self._room[: len(kept), : len(kept)][np.ix_(kept, kept)]
        size = int(np.count_nonzero(kept))
        if len(self._room) < n:
            room = np.empty((2 * n, 2 * n))
            room[:size, :size] = self._room[:size, :size]
            self._room = room

    def _whole(
        self, coordinates: np.ndarray, riders: Sequence[np.ndarray], payload: Any
    ) -> System | None:
        """Hessian at the present margins, with the intercepts in its last rows."""
        with self._log.computing():
            hessian = self._own(coordinates)
        group = self._objective.design.group
        found = reduce_and_gather(group, [hessian, *riders], payload)
        if found is None:
            return None
        [hessian, *sums], payloads = found
        rows = np.arange(len(coordinates))
        return System(hessian, rows, sums, payloads if payload is not None else [])

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
