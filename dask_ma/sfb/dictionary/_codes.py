"""Codes of rows: the lasso on a dictionary, solved for many rows at a time.

The code ``c`` of a row ``x`` minimises ``0.5 |x - c D|^2 + alpha |c|_1``, with an atom
in each row of ``D``. Coordinate descent picks for each row the atom whose coefficient
changes most; a step of all rows is a few operations on arrays that stay in the cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.kernels import row_slice
from dask_ma.sfb.dictionary._supports import solve_supports

# An array of a block of rows; four of them are in use at once.
_BLOCK_BYTES = 2**18
_LEAST_ROWS = 32
_CHECK = 8  # steps from one look at which rows have settled to the next
_KEPT = 0.8  # part of the rows that may have settled and are carried on
_ROUNDING = 16  # steps whose rounding adds up
_SHARPER = 0.1  # what the tolerance of steps is multiplied by where a gap is too wide


class Codes(NamedTuple):
    """Codes of some rows.

    Attributes
    ----------
    values : ndarray of shape (n_rows, n_atoms)
    objectives : ndarray of shape (n_rows,)
        ``0.5 |x - c D|^2 + alpha |c|_1`` of each row.
    n_unsettled : int
        Rows that would have needed more steps.
    """

    values: np.ndarray
    objectives: np.ndarray
    n_unsettled: int


class Accuracy(NamedTuple):
    """When the code of a row is good enough.

    Attributes
    ----------
    step : float
        The largest change that is left undone, in lengths of the row.
    gap : float or None
        Duality gap, in squared lengths of the row, which bounds what the objective is
        above its minimum; the tolerance of steps sharpens until it is reached. None
        does not look at it.
    max_sweeps : int
        Most changes of a row, in numbers of atoms.
    """

    step: float
    gap: float | None
    max_sweeps: int


#: While a dictionary is learned: its own errors are larger.
ROUGH = Accuracy(step=1e-2, gap=None, max_sweeps=10)


class UnitAtoms(NamedTuple):
    """A dictionary whose atoms have the length 1, which is the same lasso.

    An atom of length ``l`` gets the penalty ``alpha / l``, and codes ``l`` times as
    large.

    Attributes
    ----------
    atoms : ndarray of shape (n_atoms, n_features)
        Atoms of zeros are left as they are.
    lengths : ndarray of shape (n_atoms,)
        What atoms had; 1 for atoms of zeros.
    gram : ndarray of shape (n_atoms, n_atoms)
        Their products.
    penalties : ndarray of shape (n_atoms,) or ()
        A number where all are alike; infinite for atoms of zeros, which no row uses.
    """

    atoms: np.ndarray
    lengths: np.ndarray
    gram: np.ndarray
    penalties: np.ndarray

    @classmethod
    def of(cls, atoms: np.ndarray, alpha: float, dtype: Any) -> UnitAtoms:
        """The unit atoms of a dictionary, in another type."""
        atoms = np.ascontiguousarray(atoms, dtype=dtype)
        lengths = np.sqrt(np.einsum("ij,ij->i", atoms, atoms))
        is_zero = lengths == 0
        rounding = 16 * np.finfo(dtype).eps
        if (np.abs(lengths - 1) <= rounding).all():
            lengths, penalties = np.ones_like(lengths), np.asarray(alpha, dtype=dtype)
        else:
            lengths[is_zero] = 1
            atoms = atoms / lengths[:, None]
            penalties = np.where(is_zero, np.inf, alpha / lengths).astype(dtype)
        gram = atoms @ atoms.T
        np.fill_diagonal(gram, 1)
        return cls(atoms, lengths, gram, penalties)


def lasso_codes(
    X: Any,
    atoms: np.ndarray,
    alpha: float,
    accuracy: Accuracy,
    *,
    positive: bool = False,
) -> Codes:
    """Codes of rows on a dictionary.

    Parameters
    ----------
    X : ndarray or CSR of float, shape (n_rows, n_features)
        CSR is never made dense.
    atoms : ndarray of shape (n_atoms, n_features)
        Of any length.
    alpha : float
        Penalty, above 0.
    accuracy : Accuracy
    positive : bool, default=False
        Whether codes must not be negative.

    Returns
    -------
    codes : Codes
        In the type of the rows. A row of zeros has a code of zeros.
    """
    unit = UnitAtoms.of(atoms, alpha, X.dtype)
    n_rows, n_atoms = X.shape[0], len(atoms)
    values = np.zeros((n_rows, n_atoms), dtype=X.dtype)
    objectives = np.zeros(n_rows, dtype=X.dtype)
    size = max(_LEAST_ROWS, _BLOCK_BYTES // (n_atoms * X.dtype.itemsize))
    n_unsettled = 0
    for start in range(0, n_rows, size):
        stop = min(start + size, n_rows)
        solver = _Block(row_slice(X, start, stop), unit, positive, values[start:stop])
        n_unsettled += solver.solve(accuracy)
        objectives[start:stop] = solver.objectives()
    values /= unit.lengths
    return Codes(values, objectives, n_unsettled)


def row_squares(X: Any) -> np.ndarray:
    """Squared length of each row.

    Parameters
    ----------
    X : ndarray or CSR of shape (n_rows, n_features)

    Returns
    -------
    squares : ndarray of shape (n_rows,)
    """
    if sparse.issparse(X):
        parts = X.data**2, X.indices, X.indptr
        return np.asarray(sparse.csr_array(parts, shape=X.shape).sum(axis=1))
    squares: np.ndarray = np.einsum("ij,ij->i", X, X)
    return squares


class _Block:
    """Codes of a few rows, which stay in the cache with all that belongs to them."""

    def __init__(
        self, X: Any, unit: UnitAtoms, positive: bool, codes: np.ndarray
    ) -> None:
        self._unit, self._positive = unit, positive
        self._squares = row_squares(X)
        self._products = np.ascontiguousarray(X @ unit.atoms.T)
        self._residuals = self._products.copy()  # (x - c D) D^T
        self._codes = codes
        self._n_left = 0  # steps that may still be made

    def solve(self, accuracy: Accuracy) -> int:
        """Number of rows that have not settled."""
        lengths = np.sqrt(self._squares)
        n_steps = accuracy.max_sweeps * self._codes.shape[1]
        step, wide = accuracy.step, np.ones(len(lengths), dtype=bool)
        stuck = np.zeros_like(wide)
        while True:
            self._n_left = n_steps
            # Rows that are good enough do not move by less than infinity.
            limits = np.where(wide, lengths * step, np.inf).astype(lengths.dtype)
            moving = self._descend(limits)
            if accuracy.gap is None:
                self._round()
                return int(np.count_nonzero(moving))
            solve_supports(
                self._codes, np.flatnonzero(wide), self._products, self._unit
            )
            # Rounding of many small steps has added up.
            np.matmul(self._codes, self._unit.gram, out=self._residuals)
            np.subtract(self._products, self._residuals, out=self._residuals)
            stuck |= moving
            is_open = self.gaps() > accuracy.gap * self._squares
            wide = is_open & ~stuck
            step *= _SHARPER
            if not wide.any() or step < np.finfo(lengths.dtype).eps:
                self._round()
                return int(np.count_nonzero(is_open))

    def objectives(self) -> np.ndarray:
        """Value of the lasso for each row."""
        values: np.ndarray = 0.5 * self._rest() + self._penalty()
        return values

    def gaps(self) -> np.ndarray:
        """Duality gap of each row: the residual is scaled to a dual point."""
        codes, residuals = self._codes, self._residuals
        sizes = residuals if self._positive else np.abs(residuals)
        # What makes the products with all atoms as small as their penalties.
        scale = 1 / np.maximum((sizes / self._unit.penalties).max(axis=1), 1)
        slack = self._penalty() - scale * np.einsum("ij,ij->i", codes, residuals)
        gaps: np.ndarray = 0.5 * self._rest() * (1 - scale) ** 2 + slack
        return gaps

    def _round(self) -> None:
        """Make zeros of what is nothing but rounding."""
        least = _ROUNDING * np.finfo(self._codes.dtype).eps * np.sqrt(self._squares)
        self._codes[np.abs(self._codes) <= least[:, None]] = 0
        if self._positive:
            np.maximum(self._codes, 0, out=self._codes)

    def _penalty(self) -> np.ndarray:
        """Sum of the penalties of each row's coefficients."""
        penalties = self._unit.penalties
        finite = np.where(np.isfinite(penalties), penalties, 0)
        penalty: np.ndarray = (np.abs(self._codes) * finite).sum(axis=1)
        return penalty

    def _rest(self) -> np.ndarray:
        """Squared length of what the code leaves of each row."""
        products = self._products + self._residuals
        rest = self._squares - np.einsum("ij,ij->i", self._codes, products)
        return np.maximum(rest, 0)

    def _descend(self, limits: np.ndarray) -> np.ndarray:
        """Make steps in place; say of each row whether it would have moved on."""
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
