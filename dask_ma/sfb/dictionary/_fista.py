"""Accelerated proximal gradient steps for codes of many rows (FISTA).

A. Beck, M. Teboulle. "A fast iterative shrinkage-thresholding algorithm for linear
inverse problems." SIAM Journal on Imaging Sciences 2(1), 2009; with the restarts of
B. O'Donoghue, E. Candes, "Adaptive restart for accelerated gradient schemes", 2015.
"""

from __future__ import annotations

import numpy as np

from dask_ma.sfb.dictionary._descent import Handing

_CHECK = 8  # steps from one look at which rows have settled to the next


class Fista(Handing):
    """Steps on all coefficients, each row with a momentum of its own."""

    round_sweeps = 200

    def _go_over(self, limits: np.ndarray) -> np.ndarray:
        unsettled = np.isfinite(limits)
        while unsettled.any() and self._n_left:
            rows = np.flatnonzero(unsettled)
            self._accelerate(rows, limits[rows], unsettled)
        return unsettled

    def _accelerate(
        self, rows: np.ndarray, limits: np.ndarray, unsettled: np.ndarray
    ) -> None:
        """Make steps until some rows have settled, which are marked."""
        codes, products = self._codes[rows], self._products[rows]
        ahead, pace = codes.copy(), np.ones((len(rows), 1), dtype=codes.dtype)
        while len(rows) and self._n_left:
            n_steps = min(_CHECK, self._n_left)
            self._n_left -= n_steps
            for _ in range(n_steps):
                codes, ahead, pace = self._step(codes, ahead, pace, products)
            residuals = products - codes @ self._unit.gram
            self._codes[rows], self._residuals[rows] = codes, residuals
            best = residuals + codes
            self._best(best, self._unit.penalties)
            changes = np.abs(best - codes).max(axis=1)
            moving = self._is_open(rows, codes, residuals, changes, limits)
            unsettled[rows] = moving
            if not moving.all():
                rows, limits, products = rows[moving], limits[moving], products[moving]
                codes, ahead, pace = codes[moving], ahead[moving], pace[moving]

    def _step(
        self,
        codes: np.ndarray,
        ahead: np.ndarray,
        pace: np.ndarray,
        products: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Codes after a step from the points ahead of them, and what goes with them."""
        length = codes.dtype.type(1 / self._unit.curvature)
        new = products - ahead @ self._unit.gram
        new *= length
        new += ahead
        self._best(new, self._unit.penalties * length)
        changes = new - codes
        ahead -= new
        # A momentum that leads uphill is given up.
        is_uphill = np.einsum("ij,ij->i", ahead, changes)[:, None] > 0
        paces = np.where(is_uphill, 1, (1 + np.sqrt(1 + 4 * pace**2)) / 2)
        momentum = np.where(is_uphill, 0, (pace - 1) / paces).astype(codes.dtype)
        changes *= momentum
        changes += new
        return new, changes, paces.astype(codes.dtype)
