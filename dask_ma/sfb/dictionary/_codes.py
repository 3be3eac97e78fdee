"""Codes of rows: the lasso on a dictionary, solved for many rows at a time.

The code ``c`` of a row ``x`` minimises ``0.5 |x - c D|^2 + alpha |c|_1``, with an atom
in each row of ``D``. There are several algorithms, with one measure of what is good
enough.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dask_ma.kernels import row_slice
from dask_ma.sfb.dictionary._block import Accuracy, CodeBlock, UnitAtoms
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


#: While a dictionary is learned: its own errors are larger.
ROUGH = Accuracy(step=1e-2, gap=None, max_sweeps=None)


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
    unit = UnitAtoms.of(atoms, alpha, X.dtype)
    n_rows, n_atoms = X.shape[0], len(atoms)
    values = np.zeros((n_rows, n_atoms), dtype=X.dtype)
    objectives = np.zeros(n_rows, dtype=X.dtype)
    size = max(_LEAST_ROWS, _BLOCK_BYTES // (n_atoms * X.dtype.itemsize))
    n_unsettled = 0
    for start in range(0, n_rows, size):
        stop = min(start + size, n_rows)
        rows, codes = row_slice(X, start, stop), values[start:stop]
        solver = ALGORITHMS[algorithm](rows, unit, positive, codes)
        n_unsettled += solver.solve(accuracy)
        objectives[start:stop] = solver.objectives()
    values /= unit.lengths
    return Codes(values, objectives, n_unsettled)
