"""Standardised rows for a multi-layer perceptron, and the weights of its inputs.

The weights of thousands of inputs do not fit the processor's cache, and a batch of
sparse rows has few of the inputs: then all that concerns each weight of a step, and not
the rows, is what takes time. It is done part by part, in one pass through memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.kernels._outer import used_columns
from dask_ma.kernels._rows import row_slice

_CHUNK_BYTES = 2**20  # of a result that stays in the cache


def standardized_rows(
    X: Any, center: np.ndarray | None, scale: np.ndarray | None
) -> tuple[Any, np.ndarray | None]:
    """Rows minus the center, divided by the scale.

    Parameters
    ----------
    X : ndarray, csr_matrix or csr_array of shape (n_rows, n_features)
        Not changed.
    center, scale : ndarray of shape (n_features,) or None
        The scale is above 0.

    Returns
    -------
    rows : like X
        Sparse rows are divided alone.
    shift : ndarray of shape (n_features,) or None
        What is still to be taken from each row.
    """
    if not sparse.issparse(X):
        if center is None:
            return (X if scale is None else X / scale), None
        rows = X - center
        if scale is not None:
            rows /= scale
        return rows, None
    if scale is None:
        return X, center
    parts = X.data / scale[X.indices], X.indices, X.indptr
    rows = type(X)(parts, shape=X.shape)
    return rows, None if center is None else center / scale


class InputWeights(NamedTuple):
    """Weights of a network's inputs, and where their gradient goes.

    Attributes
    ----------
    coef : ndarray of shape (n_features, n_units), contiguous
        The weights.
    slot : ndarray of shape (n_features, n_units), contiguous
        Their gradient.
    pull : float or ndarray of shape (n_features, 1)
        Gradient of the penalty over the weights, not negative.
    scratch : ndarray of shape (n_scratch,)
        At least a value for each unit.
    """

    coef: np.ndarray
    slot: np.ndarray
    pull: float | np.ndarray
    scratch: np.ndarray

    def gradient(
        self,
        X: Any,
        slopes: np.ndarray,
        shift: np.ndarray | None,
        sums: np.ndarray,
    ) -> float:
        """Work out ``(X - shift)^T slopes`` and the gradient of the penalty.

        Parameters
        ----------
        X : ndarray, csr_matrix or csr_array of shape (n_rows, n_features)
            Rows of the batch.
        slopes : ndarray of shape (n_rows, n_units)
            Slopes of the loss by what is put into the units.
        shift : ndarray of shape (n_features,) or None
            Taken from each row, where rows are sparse.
        sums : ndarray of shape (n_units,)
            Of the slopes, over rows.

        Returns
        -------
        penalty : float
            Its value.
        """
        if not sparse.issparse(X):
            np.matmul(X.T, slopes, out=self.slot)
            return self._add_penalty() if np.any(self.pull) else 0.0
        penalty = self._of_all(shift, sums)
        self._add_products(X, slopes)
        return penalty

    def _parts(self) -> list[tuple[slice, np.ndarray]]:
        """Inputs, part by part, and a buffer for their weights."""
        n_features, n_units = self.coef.shape
        size = max(1, len(self.scratch) // n_units)
        parts = []
        for start in range(0, n_features, size):
            stop = min(start + size, n_features)
            buffer = self.scratch[: (stop - start) * n_units]
            parts.append((slice(start, stop), buffer.reshape(-1, n_units)))
        return parts

    def _pulled(self, part: slice, out: np.ndarray) -> float:
        """Gradient of the penalty on a part; the value."""
        pull = self.pull[part] if isinstance(self.pull, np.ndarray) else self.pull
        np.multiply(self.coef[part], pull, out=out)
        return float(np.dot(out.ravel(), self.coef[part].ravel())) / 2

    def _add_penalty(self) -> float:
        """Add the gradient of the penalty; its value."""
        penalty = 0.0
        for part, change in self._parts():
            penalty += self._pulled(part, change)
            self.slot[part] += change
        return penalty

    def _of_all(self, shift: np.ndarray | None, sums: np.ndarray) -> float:
        """What of the gradient does not depend on sparse rows; the penalty's value."""
        penalty = 0.0
        has_penalty = np.any(self.pull)
        if shift is None and not has_penalty:
            self.slot[...] = 0
            return 0.0
        for part, change in self._parts():
            slot = self.slot[part]
            if shift is None:
                penalty += self._pulled(part, slot)
                continue
            np.multiply(shift[part, np.newaxis], -sums, out=slot)
            if has_penalty:
                penalty += self._pulled(part, change)
                slot += change
        return penalty

    def _add_products(self, X: Any, slopes: np.ndarray) -> None:
        """Add ``X^T slopes`` of sparse rows; only features that they have change."""
        columns = used_columns(X)
        places = np.searchsorted(columns, X.indices)
        # The rows of the batch are the columns of its transpose.
        shape = (len(columns), X.shape[0])
        transpose = sparse.csc_array((X.data, places, X.indptr), shape=shape).tocsr()
        size = max(1, _CHUNK_BYTES // max(1, self.slot.strides[0]))
        for start in range(0, len(columns), size):
            stop = min(start + size, len(columns))
            products = row_slice(transpose, start, stop) @ slopes
            self.slot[columns[start:stop]] += products
