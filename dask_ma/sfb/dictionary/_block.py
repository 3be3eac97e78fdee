"""A few rows whose codes are found together, and when these are good enough."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import eigsh

from dask_ma.sfb.dictionary._paths import path_ends

_ROUNDING = 16  # steps whose rounding adds up
_SHARPER = 0.1  # what the tolerance of steps is multiplied by where a gap is too wide
# Atoms of which all eigenvalues are found, and how well the largest of more is.
_FEW_ATOMS, _ROUGHLY = 64, 1e-2


class Accuracy(NamedTuple):
    """When the code of a row is good enough.

    Attributes
    ----------
    step : float
        The largest change that is left undone, in roots of twice the objective of the
        row: the length of the row while its code is 0.
    gap : float or None
        Duality gap, in objectives of the row, which bounds what the objective is above
        its minimum; the tolerance of steps sharpens until it is reached, or what
        rounding leaves of it. None does not look at it.
    max_sweeps : int
        Most changes of a row, in numbers of atoms.
    refines_all : bool
        Whether rows that steps have brought to the gap solve the system of their atoms,
        too.
    """

    step: float
    gap: float | None
    max_sweeps: int
    refines_all: bool = True


@dataclass(frozen=True)
class UnitAtoms:
    """A dictionary whose atoms have the length 1, which is the same lasso.

    An atom of length ``l`` gets the penalty ``alpha / l``, and codes ``l`` times as
    large.

    Attributes
    ----------
    lengths : ndarray of shape (n_atoms,)
        What atoms had; 1 for atoms of zeros.
    gram : ndarray of shape (n_atoms, n_atoms)
        Their products.
    n_features : int
    penalties : ndarray of shape (n_atoms,) or ()
        A number where all are alike; infinite for atoms of zeros, which no row uses.
    """

    lengths: np.ndarray
    gram: np.ndarray
    penalties: np.ndarray
    n_features: int

    @classmethod
    def of(cls, gram: np.ndarray, alpha: float, n_features: int) -> UnitAtoms:
        """The unit atoms of a dictionary, from the products of its atoms."""
        squares, dtype = gram.diagonal(), gram.dtype
        is_zero = squares == 0
        lengths = np.sqrt(squares)
        rounding = 16 * np.finfo(dtype).eps
        if (np.abs(lengths - 1) <= rounding).all():
            gram, lengths = gram.copy(), np.ones_like(lengths)
            penalties = np.asarray(alpha, dtype=dtype)
        else:
            lengths[is_zero] = 1
            gram = gram / lengths / lengths[:, None]
            penalties = np.where(is_zero, np.inf, alpha / lengths).astype(dtype)
        np.fill_diagonal(gram, 1)
        return cls(lengths, gram, penalties, n_features)

    @cached_property
    def curvature(self) -> float:
        """The largest eigenvalue of the products, or a little more."""
        n_atoms = len(self.gram)
        gram = self.gram.astype(np.float64, copy=False)
        if n_atoms <= _FEW_ATOMS:
            return float(np.linalg.eigvalsh(gram)[-1])
        # A start that is at right angles to what is looked for would not find it.
        start = np.random.default_rng(0).standard_normal(n_atoms)
        found = eigsh(gram, 1, v0=start, tol=_ROUGHLY, return_eigenvectors=False)
        return float(found[0]) * (1 + 2 * _ROUGHLY)


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


class CodeBlock(ABC):
    """Codes of a few rows, which stay in the cache with all that belongs to them.

    Parameters
    ----------
    products : ndarray of shape (n_rows, n_atoms)
        Of the rows with the atoms of the dictionary, of any lengths.
    squares : ndarray of shape (n_rows,)
        Squared lengths of the rows.
    unit : UnitAtoms
    positive : bool
        Whether codes must not be negative.
    codes : ndarray of shape (n_rows, n_atoms)
        Of unit atoms; changed in place.
    """

    #: Sweeps until systems are solved, and steps begin anew.
    round_sweeps: ClassVar[int] = 10
    #: Whether steps leave what systems make better where the gap is small enough.
    refines_settled: ClassVar[bool] = True

    def __init__(
        self,
        products: np.ndarray,
        squares: np.ndarray,
        *,
        unit: UnitAtoms,
        positive: bool,
        codes: np.ndarray,
    ) -> None:
        self._unit, self._positive = unit, positive
        self._squares = squares
        self._products = np.ascontiguousarray(products / unit.lengths)
        self._residuals = self._products.copy()  # (x - c D) D^T
        self._codes = codes
        self._gap: float | None = None
        self._looks_at_changes = True

    def solve(self, accuracy: Accuracy) -> int:
        """Number of rows that have not settled."""
        self._gap, refines_all = accuracy.gap, accuracy.refines_all
        self._looks_at_changes = accuracy.gap is None or not refines_all
        eps = float(np.finfo(self._codes.dtype).eps)
        step, n_left = accuracy.step, accuracy.max_sweeps
        wide, objectives = self._begin(accuracy), self.objectives()
        while True:
            # Rows that are good enough do not move by less than infinity.
            limits = np.where(wide, np.sqrt(2 * objectives) * step, np.inf)
            limits = limits.astype(self._codes.dtype)
            moving, n_made = self._descend(limits, n_left)
            if accuracy.gap is None:
                self._round()
                return int(np.count_nonzero(moving))
            if not (refines_all and self.refines_settled):
                wide &= self._are_wide()
            self._round()  # else rounding is taken for atoms in use
            self._refine(np.flatnonzero(wide))
            # Rounding of many small steps has added up.
            self._find_residuals()
            before, objectives = objectives, self.objectives()
            is_open = self._are_wide()
            wide &= is_open
            if step < eps:  # there is nothing but rounding left to be gained
                wide &= before - objectives > eps * self._squares
            step, n_left = step * _SHARPER, n_left - n_made
            if n_left <= 0 or not wide.any():
                break
        if refines_all and is_open.any():
            self._follow(np.flatnonzero(is_open), accuracy.max_sweeps)
            is_open = self._are_wide()
        self._round()
        return int(np.count_nonzero(is_open))

    def _begin(self, accuracy: Accuracy) -> np.ndarray:
        """Say which rows need steps."""
        return np.ones(len(self._codes), dtype=bool)

    @abstractmethod
    def _descend(self, limits: np.ndarray, n_sweeps: int) -> tuple[np.ndarray, int]:
        """Make steps, those of finite limits; say who would move on, and the sweeps."""

    def _refine(self, rows: np.ndarray) -> None:
        """Do more for some rows than their steps have done."""

    def _follow(self, rows: np.ndarray, n_steps: int) -> None:
        """Take the ends of paths of some rows, where that leaves smaller gaps."""
        before, kept = self.gaps()[rows], self._codes[rows]
        self._codes[rows] = path_ends(
            self._products[rows], self._unit, n_steps=n_steps, positive=self._positive
        )
        self._find_residuals()
        is_worse = self.gaps()[rows] >= before
        self._codes[rows[is_worse]] = kept[is_worse]
        self._find_residuals()

    def _find_residuals(self) -> None:
        """Work out the products of atoms with what codes leave of rows."""
        np.matmul(self._codes, self._unit.gram, out=self._residuals)
        np.subtract(self._products, self._residuals, out=self._residuals)

    def _best(self, slopes: np.ndarray, penalties: Any) -> None:
        """Coefficients that are best for slopes, which they take the place of."""
        if self._positive:
            slopes -= penalties
            np.maximum(slopes, 0, out=slopes)
        else:
            slopes -= np.clip(slopes, -penalties, penalties)

    def objectives(self) -> np.ndarray:
        """Value of the lasso for each row."""
        rest = self._rest(self._codes, self._products + self._residuals, self._squares)
        values: np.ndarray = 0.5 * rest + self._penalty(self._codes)
        return values

    def gaps(self) -> np.ndarray:
        """Duality gap of each row: the residual is scaled to a dual point."""
        rows = np.arange(len(self._codes))
        return self._gaps_of(rows, self._codes, self._residuals)[0]

    def _are_wide(self) -> np.ndarray:
        """Say which rows have a gap that is too wide."""
        rows = np.arange(len(self._codes))
        return self._is_wide(rows, self._codes, self._residuals)

    def _is_wide(
        self, rows: np.ndarray, codes: np.ndarray, residuals: np.ndarray
    ) -> np.ndarray:
        """Say which of some rows have a gap that is too wide."""
        gaps, objectives = self._gaps_of(rows, codes, residuals)
        rounding = _ROUNDING * np.finfo(codes.dtype).eps * self._squares[rows]
        return np.asarray(gaps > np.maximum((self._gap or 0.0) * objectives, rounding))

    def _gaps_of(
        self, rows: np.ndarray, codes: np.ndarray, residuals: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Duality gaps of some rows with other codes, and objectives."""
        sizes = residuals if self._positive else np.abs(residuals)
        # What makes the products with all atoms as small as their penalties.
        scale = 1 / np.maximum((sizes / self._unit.penalties).max(axis=1), 1)
        penalty = self._penalty(codes)
        slack = penalty - scale * np.einsum("ij,ij->i", codes, residuals)
        rest = self._rest(codes, self._products[rows] + residuals, self._squares[rows])
        return 0.5 * rest * (1 - scale) ** 2 + slack, 0.5 * rest + penalty

    def _is_open(
        self,
        rows: np.ndarray,
        codes: np.ndarray,
        residuals: np.ndarray,
        changes: np.ndarray,
        limits: np.ndarray,
    ) -> np.ndarray:
        """Say which of some rows need more steps: by their gaps, or largest changes."""
        if self._looks_at_changes:
            return changes > limits
        return self._is_wide(rows, codes, residuals)

    def _round(self) -> None:
        """Make zeros of what is nothing but rounding."""
        least = _ROUNDING * np.finfo(self._codes.dtype).eps * np.sqrt(self._squares)
        self._codes[np.abs(self._codes) <= least[:, None]] = 0
        if self._positive:
            np.maximum(self._codes, 0, out=self._codes)

    def _penalty(self, codes: np.ndarray) -> np.ndarray:
        """Sum of the penalties of each row's coefficients."""
        penalties = self._unit.penalties
        finite = np.where(np.isfinite(penalties), penalties, 0)
        penalty: np.ndarray = (np.abs(codes) * finite).sum(axis=1)
        return penalty

    @staticmethod
    def _rest(
        codes: np.ndarray, products: np.ndarray, squares: np.ndarray
    ) -> np.ndarray:
        """Squared length of what codes leave of rows."""
        rest = squares - np.einsum("ij,ij->i", codes, products)
        return np.maximum(rest, 0)
