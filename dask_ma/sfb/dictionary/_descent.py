"""Coordinate descent: on what changes most, or on one coefficient after the other."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from dask_ma.sfb.dictionary._block import CodeBlock
from dask_ma.sfb.dictionary._supports import solve_supports

_CHECK = 8  # steps from one look at which rows have settled to the next
_KEPT = 0.8  # part of the rows that may have settled and are carried on
_TOGETHER = 16  # atoms whose changes reach the others by one product


class GreedyDescent(CodeBlock):
    """Steps on the coefficient of each row that changes most.

    A step of all rows is a few operations on arrays that stay in the cache. Systems on
    the atoms in use end what many small steps would have to.
    """

    _n_left = 0  # steps that may still be made

    def _refine(self, rows: np.ndarray) -> None:
        solve_supports(self._codes, rows, self._products, self._unit)

    def _descend(self, limits: np.ndarray, n_sweeps: int) -> tuple[np.ndarray, int]:
        n_atoms = self._codes.shape[1]
        n_steps = self._n_left = min(n_sweeps, GreedyDescent.round_sweeps) * n_atoms
        moving = self._go_down(limits)
        return moving, max(1, -(-(n_steps - self._n_left) // n_atoms))

    def _go_down(self, limits: np.ndarray) -> np.ndarray:
        """Make steps in place; say which rows would have moved on."""
        codes, residuals = self._codes, self._residuals
        rows = np.flatnonzero(np.isfinite(limits))
        is_part = len(rows) < len(codes)
        if is_part:
            codes, residuals, limits = codes[rows], residuals[rows], limits[rows]
        unsettled = np.zeros(len(self._codes), dtype=bool)
        while len(rows) and self._n_left:
            moving = self._steps(codes, residuals, limits)
            if is_part:
                self._codes[rows], self._residuals[rows] = codes, residuals
            unsettled[rows] = moving
            rows, limits, is_part = rows[moving], limits[moving], True
            codes, residuals = codes[moving], residuals[moving]
        return unsettled

    def _steps(
        self,
        codes: np.ndarray,
        residuals: np.ndarray,
        limits: np.ndarray,
    ) -> np.ndarray:
        """Make steps until many rows have settled; say who would move on."""
        gram, penalties = self._unit.gram, self._unit.penalties
        changes, sizes = np.empty_like(codes), np.empty_like(codes)
        firsts = np.arange(len(codes)) * codes.shape[1]
        flat_codes, flat_changes = codes.reshape(-1), changes.reshape(-1)
        moving = np.ones(len(codes), dtype=bool)
        weights = np.ones(len(codes), dtype=codes.dtype)  # 0 for those that stay
        step = 0
        while self._n_left:
            step, self._n_left = step + 1, self._n_left - 1
            # The best value of a coefficient, the others fixed, is
            # `(r + c) - clip(r + c, -penalty, penalty)`.
            np.add(residuals, codes, out=changes)
            if self._positive:
                np.minimum(changes, penalties, out=changes)
            else:
                np.clip(changes, -penalties, penalties, out=changes)
            np.subtract(residuals, changes, out=changes)
            np.abs(changes, out=sizes)
            best = sizes.argmax(axis=1)
            places = firsts + best
            change = flat_changes.take(places)
            change *= weights
            flat_codes[places] += change
            np.take(gram, best, axis=0, out=sizes, mode="clip")
            sizes *= change[:, None]
            residuals -= sizes
            if step % _CHECK == 0 or not self._n_left:
                moving = np.abs(change) > limits
                # The code of a row must not depend on what other rows there are.
                weights[:] = moving
                if np.count_nonzero(moving) < _KEPT * len(moving):
                    break
        return moving


class Handing(GreedyDescent):
    """Steps of another kind, for a round; what has not settled goes on greedily.

    Where atoms are much alike, these need systems.
    """

    refines_settled = False
    _has_begun = False

    def _descend(self, limits: np.ndarray, n_sweeps: int) -> tuple[np.ndarray, int]:
        if self._has_begun:
            return super()._descend(limits, n_sweeps)
        self._has_begun = True
        n_sweeps = self._n_left = min(n_sweeps, self.round_sweeps)
        moving = self._go_over(limits)
        return moving, max(1, n_sweeps - self._n_left)

    @abstractmethod
    def _go_over(self, limits: np.ndarray) -> np.ndarray:
        """Make steps, a sweep each; say which rows would have moved on."""


class CyclicDescent(Handing):
    """Steps on one coefficient after the other, of all rows at once.

    Changes of a few atoms reach the slopes of all others by one product of matrices.
    """

    round_sweeps = 50

    def _go_over(self, limits: np.ndarray) -> np.ndarray:
        rows = np.flatnonzero(np.isfinite(limits))
        # Numbers of an atom lie next to each other.
        codes = np.ascontiguousarray(self._codes[rows].T)
        residuals = np.ascontiguousarray(self._residuals[rows].T)
        unsettled = np.zeros(len(self._codes), dtype=bool)
        limits = limits[rows]
        unsettled[rows] = True
        while len(rows) and self._n_left:
            self._n_left -= 1
            changes = self._sweep(codes, residuals)
            moving = self._is_open(rows, codes.T, residuals.T, changes, limits)
            if moving.all() and self._n_left:
                continue
            self._codes[rows], self._residuals[rows] = codes.T, residuals.T
            unsettled[rows] = moving
            rows, limits = rows[moving], limits[moving]
            codes, residuals = codes[:, moving], residuals[:, moving]
        return unsettled

    def _sweep(self, codes: np.ndarray, residuals: np.ndarray) -> np.ndarray:
        """Change each coefficient once; the largest change of each row."""
        gram = self._unit.gram
        penalties = np.broadcast_to(self._unit.penalties, len(codes))
        largest = np.zeros(codes.shape[1], dtype=codes.dtype)
        for start in range(0, len(codes), _TOGETHER):
            part = slice(start, start + _TOGETHER)
            some, slopes, curvatures = codes[part], residuals[part], gram[part, part]
            before = some.copy()
            for i, penalty in enumerate(penalties[part]):
                best = slopes[i] + some[i]
                self._best(best, penalty)
                slopes -= curvatures[:, i, None] * (best - some[i])
                some[i] = best
            changes = some - before
            np.maximum(largest, np.abs(changes).max(axis=0), out=largest)
            for rest in (slice(0, start), slice(start + _TOGETHER, None)):
                residuals[rest] -= gram[rest, part] @ changes
        return largest
