"""The parameter matrix of a rank, or of all ranks of a process."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.kernels import (
    Optimizer,
    subtract_product,
    subtract_scaled,
    transposed_copy,
    used_columns,
)
from dask_ma.kernels.prox import NoPenalty, Prox
from dask_ma.sfb.model._dual import DualView, times
from dask_ma.sfb.model._factors import Factors, as_rows
from dask_ma.sfb.model._values import LateValues


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
    dual : DualView, default=None
        What the matrix is made of: `matrix` are dual sums then, updates are those of
        the sums, and the penalty is in the view, not in steps.

    Attributes
    ----------
    intercept : ndarray of shape (n_outputs,) or None
    prox : Prox
    is_owner : bool
        Whether this rank makes the changes of the values; see :meth:`share`.
    """

    def __init__(
        self,
        matrix: np.ndarray,
        intercept: np.ndarray | None,
        prox: Prox,
        dual: DualView | None = None,
    ) -> None:
        stepwise = prox if dual is None else NoPenalty()
        # As it mostly lies, or some outputs of one that lies as it does here.
        is_fine = matrix.strides[0] == matrix.itemsize
        values = np.array(matrix.T, order="C") if is_fine else transposed_copy(matrix)
        self._late = LateValues(values, stepwise)
        self._dual = dual
        self.is_owner = True
        self.intercept = None if intercept is None else intercept.copy()
        self.prox = prox

    def share(self, intercept: np.ndarray | None) -> ParameterMatrix:
        """The same values for another rank of the process, with its own intercepts.

        What that does to the values is left out, but for :meth:`replace`: it is done by
        the owner, to which the other rank gives way.

        Parameters
        ----------
        intercept : ndarray of shape (n_outputs,) or None
            Copied.

        Returns
        -------
        matrix : ParameterMatrix
        """
        other = copy(self)
        other.is_owner = False
        other.intercept = None if intercept is None else intercept.copy()
        return other

    def watch(self) -> None:
        """From here on, change the values only where ranks agree that they may."""
        self._late.is_watched = True

    @property
    def values(self) -> np.ndarray:
        """The matrix, transposed, of shape (n_features, n_outputs), C-contiguous.

        Columns that were not used lately are behind, and a penalty that divides all
        columns alike is not in it. See :meth:`whole`. With a dual operator these are
        the dual sums.
        """
        return self._late.array

    @property
    def is_worked_out(self) -> bool:
        """Whether the matrix is what a dual operator makes of the values."""
        return self._dual is not None

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
            A copy where other ranks may look at columns that are behind, else none;
            not to be changed where a dual operator has made it.
        """
        values = self._late.whole()
        return values if self._dual is None else self._dual.whole(values)

    def chunks(self) -> Iterator[np.ndarray]:
        """What :meth:`whole` gives, some columns at a time where they are worked out.

        Yields
        ------
        values : ndarray of shape (n, n_outputs)
            Not to be changed.
        """
        values = self._late.whole()
        if self._dual is None:
            yield values
        else:
            yield from self._dual.chunks(values)

    def copy_of_whole(self) -> np.ndarray:
        """The matrix as it is shown, made of :meth:`chunks`: there is no second one.

        Returns
        -------
        values : ndarray of shape (n_features, n_outputs), C-contiguous
        """
        found, start = np.empty(self.shape[::-1], dtype=self.dtype), 0
        for part in self.chunks():
            stop = start + len(part)
            found[start:stop] = part
            start = stop
        return found

    def stored(self) -> np.ndarray:
        """What :meth:`replace` takes: :meth:`whole`, or the dual sums there are.

        Returns
        -------
        values : ndarray of shape (n_features, n_outputs)
        """
        return self._late.whole()

    def freeze(self) -> np.ndarray:
        """What :meth:`stored` gives, to be kept: later changes are those of a copy.

        Returns
        -------
        values : ndarray of shape (n_features, n_outputs)
            Read-only. Ranks that have the values get the same array.
        """
        return self._late.freeze()

    def settle(self) -> None:
        """Bring all columns up to date, while no other rank looks at them."""
        if self.is_owner:
            self._late.settle()

    def product(self, X: Any) -> np.ndarray:
        """Values of the linear functions on some rows: ``X @ matrix.T + intercept``.

        Parameters
        ----------
        X : array-like or sparse, shape (n_rows, n_features)

        Returns
        -------
        values : ndarray of shape (n_rows, n_outputs)
        """
        late = self._late
        X = as_rows(X, self.dtype)
        if late.is_late:
            late.refresh(used_columns(X) if sparse.issparse(X) else None)
        if self._dual is None:
            product = times(X, self.values)
        else:
            product = self._dual.product(X, self.values)
        if late.scale != 1:
            product *= self.dtype.type(late.scale)
        if self.intercept is not None:
            product += self.intercept
        return product

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
        if not self.is_owner:
            return
        columns, late = None, self._late
        if factors.is_sparse and late.needs_columns:
            columns = used_columns(factors.v)
        late.refresh(columns)
        array = late.writable()
        for features, v in factors.pieces():
            subtract_product(array[features], factors.u, v, scale / late.scale)
        late.note_change(columns)
        self._has_changed()

    def subtract_part(
        self,
        part: slice,
        total: np.ndarray,
        scale: float,
        rows: np.ndarray | None = None,
    ) -> None:
        """Take a dense update off some columns, while no other rank looks at any.

        Parameters
        ----------
        part : slice
            Which columns; those of an update come in order, from the first to the last.
        total : ndarray of shape (n_part, n_outputs)
            The update of these.
        scale : float
            What it is multiplied by.
        rows : ndarray of int, default=None
            Which of the part have an update, if not all.
        """
        if not self.is_owner:
            return
        late = self._late
        if part.start == 0:
            late.refresh(None)
        array, scale = late.writable()[part], scale / late.scale
        if rows is None:
            subtract_scaled(array, total, scale)
        else:
            array[rows] -= total * array.dtype.type(scale)
        if part.stop == self.shape[1]:
            late.note_change(None)
            self._has_changed()

    def subtract_slopes(self, slopes: np.ndarray, scale: float) -> None:
        """Take an update off the intercepts, if there are any.

        Parameters
        ----------
        slopes : ndarray of shape (n_outputs,)
        scale : float
            What it is multiplied by.
        """
        if self.intercept is not None:
            self.intercept -= slopes * self.dtype.type(scale)

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
        if not self.is_owner:
            return
        self._late.settle()
        values = self._late.writable()
        optimizer.step(values.reshape(-1), gradient.reshape(-1), step)
        self._late.note_change(None)
        self._has_changed()

    def penalise(self, step: float) -> None:
        """Apply the prox operator, if need be when a column is next looked at.

        Parameters
        ----------
        step : float
            Length of the step, not negative.
        """
        if self.is_owner:
            self._late.penalise(step)

    def replace(self, values: np.ndarray, intercept: np.ndarray | None) -> None:
        """Take other values, all of them up to date.

        All ranks that have the values take the same ones, while none looks at those
        there were.

        Parameters
        ----------
        values : ndarray of shape (n_features, n_outputs)
            As :meth:`stored` gives them; copied.
        intercept : ndarray of shape (n_outputs,) or None
            Copied.
        """
        self._late.replace(values)
        self._has_changed()
        if self.intercept is not None and intercept is not None:
            self.intercept[...] = intercept

    def penalty(self) -> float:
        """Value of the penalty."""
        return float(self.prox.value(self.whole().T))

    def _has_changed(self) -> None:
        """What was worked out from the values is that no more."""
        if self._dual is not None:
            self._dual.forget()
