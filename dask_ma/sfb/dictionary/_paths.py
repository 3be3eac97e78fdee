"""Least angle regression for codes: scikit-learn's, one row after the other.

B. Efron, T. Hastie, I. Johnstone, R. Tibshirani. "Least angle regression." Annals of
Statistics 32(2), 2004.
"""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from dask_ma.sfb.dictionary._block import UnitAtoms

# Filters of warnings are those of the process, and ranks may be threads of it.
_FILTERS = threading.Lock()


def path_ends(
    products: np.ndarray, unit: UnitAtoms, *, n_steps: int, positive: bool
) -> np.ndarray:
    """Codes at the ends of paths that begin at codes of zeros.

    A path ends early after so many steps, or where atoms are nearly equal.

    Parameters
    ----------
    products : ndarray of shape (n_rows, n_atoms)
        Those of rows and unit atoms.
    unit : UnitAtoms
    n_steps : int
        Most steps of a row.
    positive : bool
        Whether codes must not be negative.

    Returns
    -------
    codes : ndarray of shape (n_rows, n_atoms)
        Of unit atoms.
    """
    # Other ways need no scikit-learn.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import lars_path_gram

    codes = np.zeros_like(products)
    lengths = unit.lengths.astype(np.float64)
    # All atoms of the dictionary itself have one penalty, in units of which its
    # numbers are neither small nor large.
    penalty = float(np.min(unit.penalties * lengths))
    gram = unit.gram * lengths * lengths[:, None]
    scaled = products * (lengths / penalty)
    sizes = scaled if positive else np.abs(scaled)
    with _FILTERS, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for row in np.flatnonzero(sizes.max(axis=1) > 1):
            *_, found = lars_path_gram(
                scaled[row],
                gram,
                n_samples=1,
                max_iter=max(1, n_steps),
                alpha_min=1.0,
                method="lasso",
                return_path=False,
                positive=positive,
            )
            codes[row] = found * (lengths * penalty)
    return codes
