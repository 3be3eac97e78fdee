"""Steps of the built-in network for the inputs that a batch of sparse rows has."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dask_ma.kernels import FewInputSteps, weight_of


class FewGradient(NamedTuple):
    """Gradient of a batch by what its rows have.

    Attributes
    ----------
    loss : float
        Of the batch, with the network's penalty.
    columns : ndarray of int64, shape (n_columns,)
        Sorted inputs that the rows have.
    values : ndarray of shape (n_columns * n_units + n_others,)
        By the weights of these, and by what the vector holds after those of all inputs.
    weight : float
        Of the rows.
    """

    loss: float
    columns: np.ndarray
    values: np.ndarray
    weight: float


class FewInputs:
    """What a network does with batches that have few of its inputs.

    Parameters
    ----------
    steps : FewInputSteps
        Of the network's vector.
    rows : callable
        Gives the rows of a batch as the network takes them.
    targets : callable
        Gives the targets as the last layer does, and by how much losses are larger.
    alpha : float
        Weight of the penalty.
    units : tuple of int
        Inputs, units of each layer.

    Attributes
    ----------
    steps : FewInputSteps
    n_units, n_others : int
        Weights of an input, and what the vector holds after those of all inputs.
    """

    def __init__(
        self,
        steps: FewInputSteps,
        rows: Callable[[Any], Any],
        targets: Callable[[np.ndarray], tuple[np.ndarray, float]],
        alpha: float,
        units: tuple[int, ...],
    ) -> None:
        self.steps = steps
        self.n_units = units[1]
        self.n_others = units[1] + sum((a + 1) * b for a, b in pairwise(units[1:]))
        self._rows, self._targets, self._alpha = rows, targets, alpha

    def step(
        self, X: Any, y: np.ndarray, sample_weight: np.ndarray | None, rate: float
    ) -> float | None:
        """Make a step, if it takes less than one for all inputs.

        Parameters
        ----------
        X, y, sample_weight
            A batch, as in :meth:`Network.step`.
        rate : float
            Step size.

        Returns
        -------
        loss : float or None
            None if nothing has been done.
        """
        rows = self._rows(X)
        columns = self.steps.inputs_of(rows)
        if columns is None:
            return None
        y, square = self._targets(y)
        parts = {"learning_rate": rate, "alpha": self._alpha}
        return self.steps.step(rows, columns, y, sample_weight, **parts) * square

    def gradient(
        self, X: Any, y: np.ndarray, sample_weight: np.ndarray | None, n_ranks: float
    ) -> FewGradient | None:
        """Gradient of the rows of one rank, if there is any use in leaving inputs out.

        Parameters
        ----------
        X, y, sample_weight, n_ranks
            As in :meth:`Network.gradient_part`.

        Returns
        -------
        gradient : FewGradient or None
        """
        rows = self._rows(X)
        columns = self.steps.inputs_of(rows)
        if columns is None:
            return None
        y, square = self._targets(y)
        loss, values = self.steps.gradient(
            rows, columns, y, sample_weight, alpha=self._alpha / n_ranks
        )
        return FewGradient(loss * square, columns, values, weight_of(X, sample_weight))

    def descend(
        self, columns: np.ndarray, values: np.ndarray, weight: float, rate: float
    ) -> None:
        """Make a step with the gradient of the rows of all ranks.

        Parameters
        ----------
        columns, values, weight
            As in :class:`FewGradient`.
        rate : float
            Step size.
        """
        self.steps.descend(
            columns, values, learning_rate=rate, penalty=self._alpha / weight
        )
