"""The best model of a fit so far."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.sfb.model._matrix import ParameterMatrix


class Best:
    """Keeps a copy of the best model.

    Attributes
    ----------
    value : float
        The least value so far; infinite at first.
    objective : float
        Objective of that model.
    """

    def __init__(self) -> None:
        self.value = self.objective = float("inf")
        self._model: tuple[np.ndarray, np.ndarray | None] | None = None

    def update(self, value: float, objective: float, matrix: ParameterMatrix) -> None:
        """Take the model of a pass, if it is the best one.

        Parameters
        ----------
        value : float
            What is to be small.
        objective : float
        matrix : ParameterMatrix
            Copied.
        """
        if value < self.value or self._model is None:
            self.value, self.objective = value, objective
            intercept = matrix.intercept
            self._model = (
                matrix.whole().copy(),
                None if intercept is None else intercept.copy(),
            )

    def give(self, matrix: ParameterMatrix) -> None:
        """Let a matrix be the best model.

        Parameters
        ----------
        matrix : ParameterMatrix
            Changed.
        """
        if self._model is not None:
            matrix.replace(*self._model)

    def state_dict(self) -> dict[str, Any]:
        """What another one needs to go on from here; nothing in it changes later."""
        values, intercept = (None, None) if self._model is None else self._model
        return {
            "best": np.array([self.value, self.objective]),
            "best_values": values,
            "best_intercept": intercept,
        }

    def load_state_dict(self, shared: dict[str, Any]) -> None:
        """Take over the state of another one."""
        self.value, self.objective = (float(x) for x in shared["best"])
        if shared["best_values"] is not None:
            self._model = shared["best_values"], shared["best_intercept"]
