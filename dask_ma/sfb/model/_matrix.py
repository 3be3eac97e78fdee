"""A rank's copy of the parameter matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.kernels import (
    Optimizer,
    subtract_product,
    subtract_scaled,
    used_columns,
)
from dask_ma.kernels.prox import L2, ColumnwiseProx, NoPenalty, Prox
from dask_ma.sfb.model._factors import Factors

_LEAST_SCALE = 1e-3  # below it, the scale is multiplied in


class ParameterMatrix:
    """The parameter matrix of a rank, penalised where it is looked at.

    A penalty that treats columns one by one is applied to a column when it is next
    used, for all iterations that it has missed. An iteration so costs the elements of
    its factors times the number of outputs, however many features there are.

    Parameters
    ----------
    matrix : ndarray of shape (n_outputs, n_features)
        Where to start from; copied.
    intercept : ndarray of shape (n_outputs,) or None
        Intercepts, which are not penalised; None for none.
    prox : Prox
        Prox operator of the penalty.

    Attributes
    ----------
    values : ndarray of shape (n_features, n_outputs), C-contiguous
        The matrix, transposed; columns that were not used lately are behind, and a
        penalty that divides all columns alike is not in it. See :meth:`whole`.
    intercept : ndarray of shape (n_outputs,) or None
    prox : Prox
    """

    def __init__(
        self, matrix: np.ndarray, intercept: np.ndarray | None, prox: Prox
    ) -> None:
        self.values = np.array(matrix.T, order="C")
        self.intercept = None if intercept is None else intercept.copy()
        self.prox = prox
        self._clock = 0.0
        self._seen = np.zeros(len(self.values))
        self._scale = 1.0  # of all columns
        # A penalty that does not add up over time acts on what was changed since it was
        # last applied; None stands for all columns.
        self._changed: np.ndarray | None = None
        self._is_penalised = False

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and features."""
        n_features, n_outputs = self.values.shape
        return n_outputs, n_features

    @property
    def dtype(self) -> np.dtype:
        """Type of the elements."""
        return self.values.dtype

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The whole matrix, of shape (n_outputs, n_features)."""
        array = self.whole().T
        return np.array(array, dtype=dtype, copy=copy)

    def whole(self) -> np.ndarray:
        """The transposed matrix with all columns brought up to date.

        Returns
        -------
        values : ndarray of shape (n_features, n_outputs)
            Not a copy.
        """
        self._refresh(None)
        self._multiply_in()
        return self.values

    def product(self, X: Any) -> np.ndarray:
        """Values of the linear functions on some rows: ``X @ matrix.T + intercept``.

        Parameters
        ----------
        X : ndarray or CSR of shape (n_rows, n_features)

        Returns
        -------
        values : ndarray of shape (n_rows, n_outputs)
        """
        if self._is_late:
            self._refresh(used_columns(X) if sparse.issparse(X) else None)
        if self.values.shape[1] == 1:
            # SciPy and BLAS are faster with a vector than with one column.
            product = (X @ self.values[:, 0])[:, np.newaxis]
        else:
            product = X @ self.values
        if self._scale != 1:
            product *= self.dtype.type(self._scale)
        if self.intercept is not None:
            product += self.intercept
        return np.asarray(product)

    def subtract(
        self, factors: Factors, scale: float, intercept_scale: float = 1.0
    ) -> None:
        """Take ``scale * u.T @ v`` off the matrix.

        Parameters
        ----------
        factors : Factors
        scale : float
        intercept_scale : float, default=1.0
            The intercepts move by this times `scale` times the sum of `u`.
        """
        if self.intercept is not None:
            total = factors.u.sum(axis=0) * (scale * intercept_scale)
            self.intercept -= total.astype(self.dtype, copy=False)
        columns = None
        if factors.is_sparse and (self._is_late or self._is_penalised):
            columns = used_columns(factors.v)
        if self._is_late:
            self._refresh(columns)
        subtract_product(self.values, factors.u, factors.v, scale / self._scale)
        self._note_change(columns)

    def subtract_matrix(
        self, total: np.ndarray, scale: float, intercept_scale: float = 1.0
    ) -> None:
        """Take a dense update off the matrix.

        Parameters
        ----------
        total : ndarray of shape (n_features + 1, n_outputs)
            The update; the last row is for the intercepts.
        scale, intercept_scale : float
            As in :meth:`subtract`.
        """
        if self.intercept is not None:
            self.intercept -= total[-1] * self.dtype.type(scale * intercept_scale)
        if self._is_late:
            self._refresh(None)
        subtract_scaled(self.values, total[:-1], scale / self._scale)
        self._note_change(None)

    def descend(self, optimizer: Optimizer, gradient: np.ndarray, step: float) -> None:
        """Let an optimiser make a step.

        Parameters
        ----------
        optimizer : Optimizer
            Made for as many values as the matrix has.
        gradient : ndarray of shape (n_features, n_outputs), C-contiguous
        step : float
            Length of the step, above 0.
        """
        values = self.whole()
        optimizer.step(values.reshape(-1), gradient.reshape(-1), step)
        self._note_change(None)

    def penalise(self, step: float) -> None:
        """Apply the prox operator, if need be when a column is next looked at.

        Parameters
        ----------
        step : float
            Length of the step, not negative.
        """
        prox = self.prox
        if not isinstance(prox, ColumnwiseProx):
            self.values = np.ascontiguousarray(prox(self.values.T, step).T)
            return
        amount = prox.amount(step)
        if isinstance(prox, L2):
            self._scale *= float(np.exp(-amount))
            if self._scale < _LEAST_SCALE:
                self._multiply_in()
            return
        self._clock += amount
        if amount == 0 and not isinstance(prox, NoPenalty):
            self._shrink(self._changed, 0.0)
            self._is_penalised = True

    def replace(self, values: np.ndarray, intercept: np.ndarray | None) -> None:
        """Take other values, all of them up to date.

        Parameters
        ----------
        values : ndarray of shape (n_features, n_outputs)
            Copied.
        intercept : ndarray of shape (n_outputs,) or None
            Copied.
        """
        self.values[...] = values
        self._scale = 1.0
        if self.intercept is not None and intercept is not None:
            self.intercept[...] = intercept
        self._restart_clock()
        self._note_change(None)

    def penalty(self) -> float:
        """Value of the penalty."""
        return float(self.prox.value(self.whole().T))

    @property
    def _is_late(self) -> bool:
        """Whether columns can be behind."""
        return self._clock > 0

    def _note_change(self, columns: np.ndarray | None) -> None:
        """Remember what the penalty has to act on; all, after two changes."""
        self._changed = columns if self._is_penalised else None
        self._is_penalised = False

    def _refresh(self, columns: np.ndarray | None) -> None:
        """Apply to some columns, or all, what they have missed."""
        if not self._is_late:
            return
        if columns is None:
            missed = self._clock - self._seen
            if missed.any():
                self._shrink(None, missed)
            self._restart_clock()
            return
        missed = self._clock - self._seen[columns]
        late = missed > 0
        if late.all():
            self._shrink(columns, missed)
        elif late.any():
            self._shrink(columns[late], missed[late])
        self._seen[columns] = self._clock

    def _multiply_in(self) -> None:
        """Give all columns the factor that they have in common."""
        if self._scale != 1:
            self.values *= self.dtype.type(self._scale)
            self._scale = 1.0

    def _restart_clock(self) -> None:
        """All columns are up to date; from here on, a copy would go on as this one."""
        self._clock = 0.0
        self._seen[:] = 0.0

    def _shrink(self, columns: np.ndarray | None, amounts: Any) -> None:
        """Apply the prox operator to some columns, or all."""
        assert isinstance(self.prox, ColumnwiseProx)
        if columns is None:
            self.prox.shrink(self.values, amounts)
            return
        picked = self.values[columns]
        self.prox.shrink(picked, amounts)
        self.values[columns] = picked
