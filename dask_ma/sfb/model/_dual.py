"""The matrix that dual sums stand for, worked out where it is looked at."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.kernels import by_features, used_columns

_CHUNK = 2**19  # elements of the matrix at a time


class DualView:
    """A matrix as a function of dual sums.

    Where the function treats columns one by one, it is called for those that rows use.
    A whole matrix is kept until the sums change; ranks of a process that have the sums
    together have the matrix together, too.

    Parameters
    ----------
    function : callable
        ``function(sums)``, of shape (n_outputs, n_columns), gives as many columns of
        the matrix.
    name : str
        Names the function in errors.
    is_columnwise : bool
        Whether it treats columns one by one.
    """

    def __init__(
        self,
        function: Callable[[np.ndarray], np.ndarray],
        name: str,
        *,
        is_columnwise: bool,
    ) -> None:
        self._function = function
        self._name = name
        self._is_columnwise = is_columnwise
        self._found: np.ndarray | None = None
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Take note that the sums have changed, while nobody looks at the matrix."""
        with self._lock:
            self._found = None

    def whole(self, sums: np.ndarray) -> np.ndarray:
        """The matrix, transposed.

        Parameters
        ----------
        sums : ndarray of shape (n_features, n_outputs)
            Dual sums, transposed.

        Returns
        -------
        values : ndarray of shape (n_features, n_outputs), C-contiguous
            Not to be changed.
        """
        with self._lock:
            found = self._found
            if found is None and self._is_columnwise:
                found = np.empty_like(sums)
                for part in _parts(sums.shape):
                    found[part] = self._apply(sums[part])
            elif found is None:
                found = self._apply(sums)
            self._found = found
            return found

    def chunks(self, sums: np.ndarray) -> Iterator[np.ndarray]:
        """The matrix, transposed, some columns at a time where that can be.

        Parameters
        ----------
        sums : ndarray of shape (n_features, n_outputs)

        Yields
        ------
        values : ndarray of shape (n, n_outputs)
            Not to be changed.
        """
        if not self._is_columnwise:
            yield self.whole(sums)
            return
        for part in _parts(sums.shape):
            yield self._apply(sums[part])

    def product(self, X: Any, sums: np.ndarray) -> np.ndarray:
        """Rows times the matrix.

        Parameters
        ----------
        X : ndarray or CSR of shape (n_rows, n_features)
        sums : ndarray of shape (n_features, n_outputs)

        Returns
        -------
        product : ndarray of shape (n_rows, n_outputs)
        """
        if not self._is_columnwise:
            return times(X, self.whole(sums))
        columns: Any = slice(None)
        if sparse.issparse(X):
            columns = used_columns(X)
            places = np.zeros(X.shape[1], dtype=X.indices.dtype)
            places[columns] = np.arange(len(columns))
            parts = X.data, places[X.indices], X.indptr
            X = type(X)(parts, shape=(X.shape[0], len(columns)))
        total = np.zeros((X.shape[0], sums.shape[1]), np.result_type(X, sums))
        for part in _parts((X.shape[1], sums.shape[1])):
            picked = part if isinstance(columns, slice) else columns[part]
            own = X if part.stop - part.start == X.shape[1] else X[:, part]
            total += times(own, self._apply(sums[picked]))
        return total

    def _apply(self, sums: np.ndarray) -> np.ndarray:
        """Columns of the matrix, lying as rows, checked."""
        shown = sums.T.view()
        shown.flags.writeable = False
        found = np.asarray(self._function(shown))
        if found.shape != shown.shape:
            raise ValueError(
                f"{self._name} returned shape {found.shape} for dual sums of shape "
                f"{shown.shape}, expected the same shape"
            )
        if not np.issubdtype(found.dtype, np.floating):
            raise ValueError(
                f"{self._name} returned {found.dtype}, expected real numbers in "
                "floating point"
            )
        return np.ascontiguousarray(found.T, dtype=sums.dtype)


def times(X: Any, values: np.ndarray) -> np.ndarray:
    """Rows times a matrix of shape (n_features, n_outputs)."""
    if values.shape[1] == 1:
        # SciPy and BLAS are faster with a vector than with one column.
        return np.asarray(X @ values[:, 0])[:, np.newaxis]
    return np.asarray(by_features(X, values) @ values)


def _parts(shape: tuple[int, int]) -> Iterator[slice]:
    """Some columns at a time, of so many, and outputs."""
    n_columns, n_outputs = shape
    size = max(1, _CHUNK // max(1, n_outputs))
    for start in range(0, n_columns, size):
        yield slice(start, min(start + size, n_columns))
