"""Codes by least angle regression."""

from __future__ import annotations

import numpy as np

from dask_ma.sfb.dictionary._block import Accuracy
from dask_ma.sfb.dictionary._descent import GreedyDescent
from dask_ma.sfb.dictionary._paths import path_ends

_GAP = 1e-6  # that a path which was not cut short does not leave


class Lars(GreedyDescent):
    """The path of each row from a code of zeros to that of the penalty.

    A path ends early where atoms are nearly equal. What is left then is done by steps.
    """

    def _begin(self, accuracy: Accuracy) -> np.ndarray:
        n_steps = accuracy.max_sweeps * self._codes.shape[1]
        self._codes[:] = path_ends(
            self._products, self._unit, n_steps=n_steps, positive=self._positive
        )
        self._find_residuals()
        self._gap = _GAP if accuracy.gap is None else accuracy.gap
        return self._are_wide()
