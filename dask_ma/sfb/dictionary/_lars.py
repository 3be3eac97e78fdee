"""Least angle regression for codes: scikit-learn's, one row after the other.

B. Efron, T. Hastie, I. Johnstone, R. Tibshirani. "Least angle regression." Annals of
Statistics 32(2), 2004.
"""

from __future__ import annotations

import threading
import warnings

import numpy as np

from dask_ma.sfb.dictionary._block import Accuracy
from dask_ma.sfb.dictionary._descent import GreedyDescent

_GAP = 1e-6  # that a path which was not cut short does not leave
# Filters of warnings are those of the process, and ranks may be threads of it.
_FILTERS = threading.Lock()


class Lars(GreedyDescent):
    """The path of each row from a code of zeros to that of the penalty.

    A path ends early where atoms are nearly equal. What is left then is done by steps.
    """

    def _begin(self, accuracy: Accuracy) -> np.ndarray:
        # Other ways need no scikit-learn.
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import lars_path_gram

        unit, codes = self._unit, self._codes
        lengths = unit.lengths.astype(np.float64)
        # All atoms of the dictionary itself have one penalty, in units of which its
        # numbers are neither small nor large.
        penalty = float(np.min(unit.penalties * lengths))
        gram = unit.gram * lengths * lengths[:, None]
        products = self._products * (lengths / penalty)
        sizes = products if self._positive else np.abs(products)
        n_steps = max(1, self._most_steps(accuracy))
        with _FILTERS, warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            for row in np.flatnonzero(sizes.max(axis=1) > 1):
                *_, found = lars_path_gram(
                    products[row],
                    gram,
                    n_samples=1,
                    max_iter=n_steps,
                    alpha_min=1.0,
                    method="lasso",
                    return_path=False,
                    positive=self._positive,
                )
                codes[row] = found * (lengths * penalty)
        self._find_residuals()
        gap = _GAP if accuracy.gap is None else accuracy.gap
        is_open: np.ndarray = self.gaps() > gap * self._squares
        return is_open
