"""Steps of a perceptron on sparse rows that have few of its inputs.

A step of Adam goes through all weights, also those of inputs that no row of the batch
has; with tens of thousands of inputs that takes longer than all else. Here it is made
for the inputs that the batch has, and the weights of the others wait until they are
read: see :mod:`dask_ma.kernels._idle_rows`. A step takes as long as its rows have
elements, however many inputs there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.kernels._idle_rows import IdleRows
from dask_ma.kernels._mlp import (
    MLPLayout,
    MLPWorkspace,
    add_penalty,
    loss_and_slopes,
    mlp_unpack,
    weight_of,
)
from dask_ma.kernels._mlp_inputs import standardized_rows
from dask_ma.kernels._optimizers import BLOCK, Adam
from dask_ma.kernels._outer import used_columns
from dask_ma.kernels._rows import row_slice

# A weight of an input that a batch has takes so many times as long as one of a step on
# all of them, as it lies apart and is read twice; and all else, as so many weights.
_APART, _BESIDES = 3, 2**16


class _Weights(NamedTuple):
    """Weights of some inputs, and their moments, of shape (n, n_units)."""

    weights: np.ndarray
    first: np.ndarray
    second: np.ndarray


class FewInputSteps:
    """Steps of Adam on batches that have few of a network's inputs.

    Parameters
    ----------
    layout : MLPLayout
        The network.
    vector : ndarray of float32 or float64, shape (n_values,), contiguous
        Its parameters, which are changed in place. Those of inputs are behind after a
        step, until :meth:`settle` is called.
    optimizer : Adam
        Of the whole vector; :func:`~dask_ma.kernels.may_wait` is true for it.
    workspace : MLPWorkspace
        Of the same layout and dtype.
    scale : ndarray of shape (n_inputs,) or None, default=None
        What rows are divided by. Weights count for the penalty divided by it.
    """

    def __init__(
        self,
        layout: MLPLayout,
        vector: np.ndarray,
        optimizer: Adam,
        workspace: MLPWorkspace,
        scale: np.ndarray | None = None,
    ) -> None:
        self._layout, self._vector = layout, vector
        self._optimizer, self._workspace = optimizer, workspace
        n_inputs, self._n_units = shape = layout.units[:2]
        self._n_first = n_inputs * self._n_units
        whole = (vector, *optimizer.moments)
        parts = (each[: self._n_first].reshape(shape) for each in whole)
        self._whole = _Weights(*parts)
        self._gradient = np.zeros_like(vector[self._n_first :])
        rest = layout._replace(units=(0, *layout.units[1:]))
        self._slots = mlp_unpack(rest, self._gradient)
        self._idle = IdleRows(optimizer, n_inputs)
        self._places = np.zeros(n_inputs, dtype=np.int32)
        self._size = max(1, BLOCK // self._n_units)  # inputs at a time
        self._scratch = np.empty((self._size, self._n_units), vector.dtype)
        self._room = np.empty((3, 0, self._n_units), vector.dtype)
        self._scale = scale
        self._shrinkage = None if scale is None else 1 / scale.astype(np.float64) ** 2
        # Of the inputs' weights as they lie there, unless others have changed them.
        self._square, self._is_counted = 0.0, False
        self._before = 0.0  # of those picked, as they lay there

    def inputs_of(self, X: Any) -> np.ndarray | None:
        """The inputs that a batch has; None where a step on all of them takes less.

        Parameters
        ----------
        X : ndarray or CSR of shape (n_rows, n_inputs)

        Returns
        -------
        columns : ndarray of int64 or None
        """
        if not sparse.issparse(X):
            return None
        columns = used_columns(X)
        return columns if self.is_worth_it(len(columns)) else None

    def step(
        self,
        X: Any,
        columns: np.ndarray,
        y: np.ndarray,
        sample_weight: np.ndarray | None,
        *,
        learning_rate: float,
        alpha: float,
    ) -> float:
        """Make a step on a batch.

        Parameters
        ----------
        X : CSR of shape (n_rows, n_inputs)
            Its rows.
        columns : ndarray of int64
            As :meth:`inputs_of` gives them.
        y, sample_weight, alpha
            As in :func:`~dask_ma.kernels.mlp_loss_and_gradient`.
        learning_rate : float
            Step size.

        Returns
        -------
        loss : float
            As there, but that weights which wait count for the penalty as they are.
        """
        total = weight_of(X, sample_weight)
        if total == 0:
            self._gradient[...] = 0
            self._optimizer.advance(learning_rate)
            self._end_step(columns[:0], 0.0)
            return 0.0
        loss, picked, transpose, slopes = self._look(
            X, columns, y, sample_weight, alpha
        )
        self._optimizer.advance(learning_rate)
        self._put(
            columns,
            picked,
            lambda part: row_slice(transpose, part.start, part.stop) @ slopes,
        )
        self._end_step(columns, alpha / total)
        return loss

    def gradient(
        self,
        X: Any,
        columns: np.ndarray,
        y: np.ndarray,
        sample_weight: np.ndarray | None,
        *,
        alpha: float,
    ) -> tuple[float, np.ndarray]:
        """Gradient of a batch by the inputs that it has, and by what lies behind.

        Parameters
        ----------
        X, columns, y, sample_weight, alpha
            As in :meth:`step`.

        Returns
        -------
        loss : float
        gradient : ndarray of shape (n_columns * n_units + n_others,)
            By the weights of these inputs, one after the other, without the penalty;
            then by what the vector holds after the weights of inputs, with it.
        """
        n_values = len(columns) * self._n_units
        gradient = np.zeros(n_values + len(self._gradient), self._vector.dtype)
        if weight_of(X, sample_weight) == 0:
            return 0.0, gradient
        loss, _, transpose, slopes = self._look(X, columns, y, sample_weight, alpha)
        gradient[:n_values] = (transpose @ slopes).ravel()
        gradient[n_values:] = self._gradient
        return loss, gradient

    def descend(
        self,
        columns: np.ndarray,
        gradient: np.ndarray,
        *,
        learning_rate: float,
        penalty: float,
    ) -> None:
        """Make a step with the gradient of some batches.

        Parameters
        ----------
        columns : ndarray of int64
            Sorted inputs that they have.
        gradient : ndarray of shape (n_columns * n_units + n_others,)
            A mean of what :meth:`gradient` gives.
        learning_rate : float
            Step size.
        penalty : float
            Weight of the penalty: `alpha` by the weight of the batches.
        """
        n_values = len(columns) * self._n_units
        of_inputs = gradient[:n_values].reshape(-1, self._n_units)
        self._gradient[...] = gradient[n_values:]
        picked = self._pick(columns)
        self._optimizer.advance(learning_rate)
        self._put(columns, picked, lambda part: of_inputs[part])
        self._end_step(columns, penalty)

    def is_worth_it(self, n_columns: int) -> bool:
        """Whether a step for so many inputs takes less than one for all of them.

        Parameters
        ----------
        n_columns : int

        Returns
        -------
        is_worth_it : bool
        """
        return _APART * n_columns * self._n_units + _BESIDES < self._n_first

    def read(self, start: int, stop: int) -> np.ndarray:
        """Copy of some of the vector, as it is after all steps made.

        Parameters
        ----------
        start, stop : int
            From where to where.

        Returns
        -------
        values : ndarray of shape (stop - start,)
        """
        values = self._vector[start:stop].copy()
        end = min(stop, self._n_first)
        if not self._idle.n_steps or start >= end:
            return values
        for rows in self._parts_of(start, end):
            weights, *moments = (each[rows] for each in self._whole)
            moved, scratch = weights.copy(), self._scratch[: len(weights)]
            self._idle.move(rows, moved, moments, scratch, self._shrinkage)
            first = rows.start * self._n_units
            low, high = max(start, first), min(end, first + moved.size)
            values[low - start : high - start] = moved.ravel()[
                low - first : high - first
            ]
        return values

    def settle(self) -> None:
        """Let no weight be behind the steps made."""
        self.note_change()
        if not self._idle.n_steps:
            return
        for rows in self._parts_of(0, self._n_first):
            self._catch_up(rows, *(each[rows] for each in self._whole))
        self._idle.restart()

    def note_change(self) -> None:
        """Take note that others have changed the vector."""
        self._is_counted = False

    def _look(
        self,
        X: Any,
        columns: np.ndarray,
        y: np.ndarray,
        sample_weight: np.ndarray | None,
        alpha: float,
    ) -> tuple[float, _Weights, Any, np.ndarray]:
        """Loss of a batch, weights of its inputs, the transpose, slopes by units."""
        if alpha > 0 and not self._is_counted:
            self._square = self._square_of(slice(None), self._whole.weights)
        self._is_counted = alpha > 0
        picked = self._pick(columns)
        X, _ = standardized_rows(X, None, self._scale)
        rows = self._narrowed(X, columns)
        coefs, intercepts = mlp_unpack(self._layout, self._vector)
        views = [picked.weights, *coefs[1:]], intercepts
        batch = rows, None, y, sample_weight
        loss, slopes = loss_and_slopes(
            self._layout, views, *batch, self._slots, self._workspace
        )
        if alpha > 0:
            weight = alpha / weight_of(X, sample_weight)
            loss += weight / 2 * self._square
            others = coefs[1:], self._slots[0][1:]
            loss += add_penalty(*others, weight, self._workspace.scratch)
        # The rows of the batch are the columns of its transpose.
        shape = rows.shape[1], rows.shape[0]
        parts = rows.data, rows.indices, rows.indptr
        transpose = sparse.csc_array(parts, shape=shape).tocsr()
        return loss, picked, transpose, slopes

    def _pick(self, columns: np.ndarray) -> _Weights:
        """Weights of the inputs that a batch has, and their moments, up to date."""
        if self._room.shape[1] < len(columns):
            # Not to make room again for each batch that has a few more.
            shape = 3, len(columns) * 5 // 4, self._n_units
            self._room = np.empty(shape, self._vector.dtype)
        picked, self._before = _Weights(*self._room[:, : len(columns)]), 0.0
        for part in self._parts(columns):
            here = _Weights(*(each[part] for each in picked))
            for whole, room in zip(self._whole, here, strict=True):
                # The mode that needs no copy of what is written to.
                np.take(whole, columns[part], axis=0, out=room, mode="clip")
            self._before += self._square_of(columns[part], here.weights)
            self._catch_up(columns[part], *here)
        return picked

    def _put(
        self,
        columns: np.ndarray,
        picked: _Weights,
        gradient: Callable[[slice], np.ndarray],
    ) -> None:
        """Make the step of the weights picked, and put them in their places."""
        self._square -= self._before
        for part in self._parts(columns):
            here = _Weights(*(each[part] for each in picked))
            scratch = self._scratch[np.newaxis, : len(here.weights)]
            moments = [here.first, here.second]
            self._optimizer.step_block(here.weights, gradient(part), moments, scratch)
            self._square += self._square_of(columns[part], here.weights)
            for whole, room in zip(self._whole, here, strict=True):
                whole[columns[part]] = room

    def _end_step(self, columns: np.ndarray, penalty: float) -> None:
        """Make the step of all but the inputs' weights; the others wait from here."""
        rest = self._vector[self._n_first :]
        self._optimizer.step_from(self._n_first, rest, self._gradient)
        self._idle.note_step(columns, penalty)

    def _catch_up(
        self,
        rows: np.ndarray | slice,
        weights: np.ndarray,
        first: np.ndarray,
        second: np.ndarray,
    ) -> None:
        """Make the steps that weights have waited with."""
        scratch = self._scratch[: len(weights)]
        moments = [first, second]
        self._idle.catch_up(rows, weights, moments, scratch, self._shrinkage)

    def _narrowed(self, X: Any, columns: np.ndarray) -> Any:
        """Rows of a batch without the inputs that it does not have."""
        self._places[columns] = np.arange(len(columns), dtype=np.int32)
        # The constructor of SciPy would look at all of it once more.
        rows = type(X)((X.shape[0], len(columns)), dtype=X.dtype)
        rows.data, rows.indptr = X.data, X.indptr
        rows.indices = self._places[X.indices]
        return rows

    def _parts(self, columns: np.ndarray) -> Iterator[slice]:
        """Some inputs at a time."""
        for start in range(0, len(columns), self._size):
            yield slice(start, min(start + self._size, len(columns)))

    def _parts_of(self, start: int, stop: int) -> Iterator[slice]:
        """Some inputs at a time, of those with values from `start` to `stop`."""
        n_inputs = -(-stop // self._n_units)
        for first in range(start // self._n_units, n_inputs, self._size):
            yield slice(first, min(first + self._size, n_inputs))

    def _square_of(self, rows: np.ndarray | slice, weights: np.ndarray) -> float:
        """Sum of squares of weights, as the penalty counts them."""
        if self._shrinkage is None:
            return float(np.vdot(weights, weights))
        squares = np.einsum("ij,ij->i", weights, weights, dtype=np.float64)
        return float(squares @ self._shrinkage[rows])
