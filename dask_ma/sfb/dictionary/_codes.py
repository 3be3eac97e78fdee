"""Codes of rows: the lasso on a dictionary, solved for many rows at a time.

The code ``c`` of a row ``x`` minimises ``0.5 |x - c D|^2 + alpha |c|_1``, with an atom
in each row of ``D``. There are several algorithms, with one measure of what is good
enough.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dask_ma.kernels import row_slice
from dask_ma.sfb.dictionary._block import (
    Accuracy,
    CodeBlock,
    UnitAtoms,
    row_squares,
)
from dask_ma.sfb.dictionary._descent import CyclicDescent, GreedyDescent
from dask_ma.sfb.dictionary._fista import Fista
from dask_ma.sfb.dictionary._lars import Lars

# An array of a block of rows; four of them are in use at once.
_BLOCK_BYTES = 2**18
_LEAST_ROWS = 32

#: By their names.
ALGORITHMS: dict[str, type[CodeBlock]] = {
    "greedy_cd": GreedyDescent,
    "fista": Fista,
    "cd": CyclicDescent,
    "lars": Lars,
}
#: What scikit-learn calls some of them where rows are transformed.
SYNONYMS = {"lasso_cd": "cd", "lasso_lars": "lars"}


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


#: While a dictionary is learned: its own errors are larger. What is left is far
#: less than the gap, and atoms of better codes are no better.
ROUGH = Accuracy(step=1e-2, gap=0.4, max_sweeps=300, refines_all=False)


def lasso_codes(
    X: Any,
    atoms: np.ndarray,
    alpha: float,
    accuracy: Accuracy,
    *,
    positive: bool = False,
    algorithm: str = "greedy_cd",
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
    algorithm : str, default="greedy_cd"
        One of :data:`ALGORITHMS`. All find the same codes, but for what `accuracy`
        leaves.

    Returns
    -------
    codes : Codes
        In the type of the rows. A row of zeros has a code of zeros.
    """
    atoms = np.ascontiguousarray(atoms, dtype=X.dtype)

    def products_of(part: slice) -> tuple[np.ndarray, np.ndarray]:
        rows = row_slice(X, part.start, part.stop)
        return np.asarray(rows @ atoms.T), row_squares(rows)

    unit = UnitAtoms.of(atoms @ atoms.T, alpha, atoms.shape[1])
    solver = partial(ALGORITHMS[algorithm], unit=unit, positive=positive)
    return _by_blocks(solver, unit, X.shape[0], products_of, accuracy)


def codes_from_products(
    products: np.ndarray,
    squares: np.ndarray,
    gram: np.ndarray,
    alpha: float,
    accuracy: Accuracy,
    *,
    n_features: int,
    positive: bool,
    algorithm: str,
) -> Codes:
    """Codes of rows of which no more is known than what the lasso needs.

    Parameters
    ----------
    products : ndarray of shape (n_rows, n_atoms)
        Of rows and atoms.
    squares : ndarray of shape (n_rows,)
        Squared lengths of the rows.
    gram : ndarray of shape (n_atoms, n_atoms)
        Products of the atoms.
    alpha, accuracy, positive, algorithm
        As in :func:`lasso_codes`.
    n_features : int

    Returns
    -------
    codes : Codes
    """
    unit = UnitAtoms.of(gram, alpha, n_features)
    solver = partial(ALGORITHMS[algorithm], unit=unit, positive=positive)

    def products_of(part: slice) -> tuple[np.ndarray, np.ndarray]:
        return products[part], squares[part]

    return _by_blocks(solver, unit, len(products), products_of, accuracy)


def _by_blocks(
    make_solver: Callable[..., CodeBlock],
    unit: UnitAtoms,
    n_rows: int,
    products_of: Callable[[slice], tuple[np.ndarray, np.ndarray]],
    accuracy: Accuracy,
) -> Codes:
    """Codes of rows, as many at a time as stay in the cache."""
    n_atoms, dtype = len(unit.gram), unit.gram.dtype
    size = max(_LEAST_ROWS, _BLOCK_BYTES // (n_atoms * dtype.itemsize))
    values = np.zeros((n_rows, n_atoms), dtype=dtype)
    objectives = np.zeros(n_rows, dtype=dtype)
    n_unsettled = 0
    for start in range(0, n_rows, size):
        part = slice(start, min(start + size, n_rows))
        solver = make_solver(*products_of(part), codes=values[part])
        n_unsettled += solver.solve(accuracy)
        objectives[part] = solver.objectives()
    values /= unit.lengths
    return Codes(values, objectives, n_unsettled)
