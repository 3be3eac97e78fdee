"""The mean of the merged models of the rounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.linear import LinearModel

_ROUNDING = 1e-6  # rows


class RunningMean:
    """Mean of the merged models with polynomially growing weights.

    The models of late rounds are better, so the weight of round `t` of the mean grows
    like ``t**3`` (polynomial-decay averaging, O. Shamir and T. Zhang, "Stochastic
    gradient descent for non-smooth optimization", ICML 2013, section 4).

    Parameters
    ----------
    average : bool or int
        False: no mean, the last model counts. Otherwise the mean begins with the round
        in which the ranks together have seen this many rows.
    total_rows : int
        Rows of all ranks.
    """

    _DEGREE = 3

    def __init__(self, average: bool | int, total_rows: int) -> None:
        self._start = float(average) if average else np.inf
        self._total_rows = total_rows
        self._rows = 0.0
        self._rounds = 0
        self._mean: LinearModel | None = None

    @property
    def counts(self) -> tuple[float, float]:
        """Rows that the ranks have seen, and rounds in the mean."""
        return self._rows, float(self._rounds)

    def state_dict(self) -> dict[str, Any]:
        """What another mean needs to go on from here."""
        mean = self._mean
        return {
            "coef": None if mean is None else mean.coef,
            "intercept": None if mean is None else mean.intercept,
            "counts": np.array(self.counts),
        }

    def load_state_dict(
        self, coef: np.ndarray | None, intercept: np.ndarray | None, counts: np.ndarray
    ) -> None:
        """Take over the state of another mean."""
        self._rows, self._rounds = float(counts[0]), int(counts[1])
        if self._rounds and coef is not None and intercept is not None:
            self._mean = LinearModel(coef, intercept)

    def current(self, model: LinearModel) -> LinearModel:
        """The mean so far, `model` before it begins."""
        return model if self._mean is None else self._mean

    def update(self, model: LinearModel, epochs: float) -> LinearModel:
        """Take the model of a round; return the mean so far, or the model itself."""
        self._rows += epochs * self._total_rows
        if self._rows < self._start - _ROUNDING:
            return model
        self._rounds += 1
        if self._mean is None:
            self._mean = model
        share = (self._DEGREE + 1) / (self._rounds + self._DEGREE)
        self._mean = LinearModel(
            *(a + (b - a) * share for a, b in zip(self._mean, model, strict=True))
        )
        return self._mean
