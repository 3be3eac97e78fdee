"""Systems of equations on the atoms that codes use, for many rows at a time.

Where atoms are much alike, coordinate descent needs thousands of steps to share out a
coefficient among them. With signs as they are, the best code on the same atoms solves a
small linear system.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dask_ma.sfb.dictionary._block import UnitAtoms

_ELEMENTS = 2**17  # of the systems that are solved together
_MOST_SOLVED = 4  # systems of a row, each with fewer atoms than the one before
_STEP = 8  # systems are made larger, up to a multiple of it
_RIDGE = 1e-10  # lets systems of equal atoms have a solution


def solve_supports(
    codes: np.ndarray, rows: np.ndarray, products: np.ndarray, unit: UnitAtoms
) -> None:
    """Let codes be the best ones on the atoms they use, with the signs they have.

    A coefficient that would change its sign ends the step there, and becomes zero; what
    is left is solved again. The objective never rises.

    Parameters
    ----------
    codes : ndarray of shape (n_rows, n_atoms)
        Changed in place.
    rows : ndarray of int
        Which of them.
    products : ndarray of shape (n_rows, n_atoms)
        Those of rows and atoms.
    unit : UnitAtoms
    """
    for _ in range(_MOST_SOLVED):
        sizes = np.count_nonzero(codes[rows], axis=1)
        # More atoms than features have no system with one solution.
        is_possible = (sizes > 0) & (sizes <= unit.n_features)
        rows, sizes = rows[is_possible], sizes[is_possible]
        # What a row gets must not depend on the sizes of others.
        widths = -(-sizes // _STEP) * _STEP
        left = []
        for width in np.unique(widths).tolist():
            alike = rows[widths == width]
            size = max(1, _ELEMENTS // width**2)
            for start in range(0, len(alike), size):
                part = alike[start : start + size]
                left.append(part[_solve(codes, part, products, unit, width)])
        rows = np.concatenate([rows[:0], *left])
        if not len(rows):
            return


def _solve(
    codes: np.ndarray,
    rows: np.ndarray,
    products: np.ndarray,
    unit: UnitAtoms,
    width: int,
) -> np.ndarray:
    """Solve the systems of some rows; say which of them lost an atom."""
    picked = codes[rows]
    found, atoms = np.nonzero(picked)
    firsts = np.searchsorted(found, np.arange(len(rows)))
    places = np.arange(len(found)) - firsts[found]
    support = np.zeros((len(rows), width), dtype=np.int64)
    support[found, places] = atoms
    is_used = np.zeros(support.shape, dtype=bool)
    is_used[found, places] = True
    old = np.where(is_used, np.take_along_axis(picked, support, axis=1), 0.0)
    gram = unit.gram[support[:, :, None], support[:, None, :]].astype(np.float64)
    gram *= is_used[:, :, None] & is_used[:, None, :]
    diagonal = np.arange(width)
    gram[:, diagonal, diagonal] = 1.0
    wanted = np.take_along_axis(products[rows], support, axis=1).astype(np.float64)
    wanted -= np.broadcast_to(unit.penalties, len(unit.gram))[support] * np.sign(old)
    slopes = np.where(is_used, wanted, 0.0) - (gram @ old[:, :, None])[:, :, 0]
    gram[:, diagonal, diagonal] += _RIDGE
    changes = np.linalg.solve(gram, slopes[:, :, None])[:, :, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        # How far each coefficient may go until its sign would change.
        crossings = np.where(old * (old + changes) < 0, -old / changes, np.inf)
    ends = crossings.min(axis=1)
    share = np.minimum(ends, 1.0)
    new = old + share[:, None] * changes
    new[crossings <= share[:, None]] = 0
    # Rounding may spoil systems of atoms that are much alike.
    gains = np.einsum("ij,ij->i", slopes, changes)
    is_better = np.isfinite(new).all(axis=1) & (gains > 0)
    keep = is_used & is_better[:, None]
    at, place = np.nonzero(keep)
    codes[rows[at], support[at, place]] = new[at, place]
    return is_better & (ends < 1)
