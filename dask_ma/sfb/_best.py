"""The best model of a fit so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dask_ma.sfb.model._matrix import ParameterMatrix

Freeze = Callable[[], tuple[np.ndarray, np.ndarray | None]]


class Best:
    """Keeps the best model.

    Attributes
    ----------
    value : float
        The least value so far; infinite at first.
    objective : float
        Objective of that model.
    """

    def __init__(self) -> None:
        self.value = self.objective = float("inf")
        self._is_newest = False
        self._model: tuple[np.ndarray, np.ndarray | None] | None = None

    def update(self, value: float, objective: float, freeze: Freeze) -> None:
        """Take the model of a pass, if it is the best one; a collective call.

        Parameters
        ----------
        value : float
            What is to be small; the same on all ranks.
        objective : float
        freeze : callable
            Gives values and intercepts, which stay as they are.
        """
        self._is_newest = value < self.value or self._model is None
        if self._is_newest:
            self.value, self.objective = value, objective
            self._model = None  # not two at a time
            self._model = freeze()

    def give(self, matrix: ParameterMatrix) -> None:
        """Let a matrix be the best model.

        Parameters
        ----------
        matrix : ParameterMatrix
            Changed.
        """
        if self._model is not None:
            matrix.replace(*self._model)

    def forget(self) -> None:
        """Let go of the model, but for its value and objective."""
        self._model = None

    def take(self, freeze: Freeze) -> None:
        """Let the best model be another one of the same value; a collective call.

        Parameters
        ----------
        freeze : callable
            Gives values and intercepts, which stay as they are.
        """
        if self._model is not None:
            self._model = None
            self.update(self.value, self.objective, freeze)

    @property
    def arrays(self) -> dict[str, Any]:
        """The model, with a place for each output on the last axes.

        One that was the newest when it was last updated stands for that, too, so that
        there is no second copy of it.
        """
        values, intercept = (None, None) if self._model is None else self._model
        prefix = "" if self._is_newest else "best_"
        none = dict.fromkeys(("best_values", "best_intercept"))
        return {**none, f"{prefix}values": values, f"{prefix}intercept": intercept}

    def state_dict(self) -> dict[str, Any]:
        """What another one needs to go on from here, besides :attr:`arrays`."""
        return {
            "best": np.array([self.value, self.objective]),
            "best_is_newest": self._is_newest,
        }

    def load_state_dict(self, shared: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Take over the state of another one, with its arrays and those of the fit.

        None of these may be changed afterwards.
        """
        self.value, self.objective = (float(x) for x in shared["best"])
        self._is_newest = bool(shared["best_is_newest"])
        prefix = "" if self._is_newest else "best_"
        if arrays[f"{prefix}values"] is not None:
            self._model = arrays[f"{prefix}values"], arrays[f"{prefix}intercept"]
