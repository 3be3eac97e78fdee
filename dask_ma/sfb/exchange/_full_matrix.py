"""Exchange of whole update matrices, to compare with and where factors are larger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce, broadcast_direct, reduce
from dask_ma.kernels import product_of, row_slice, square_sum
from dask_ma.sfb.model._factors import Factors
from dask_ma.sfb.model._matrix import ParameterMatrix

# As many parts of a matrix, at most, each of so many bytes at least.
_MOST_PARTS, _LEAST_BYTES = 64, 2**18
_SMALL_BYTES = 2**26  # of an update
# Of one that takes about as long as what else there is to do meanwhile.
_SHORT_BYTES, _TAG = 2**20, "sfb-update"


class Piece(NamedTuple):
    """Some features of a sum of updates.

    Attributes
    ----------
    features : slice
    rows : ndarray of int or None
        Which of these features have values; None where all have.
    values : ndarray of shape (n_rows, n_outputs)
        Others are zero.
    """

    features: slice
    rows: np.ndarray | None
    values: np.ndarray


class Total(NamedTuple):
    """Sum of the updates of all ranks.

    Attributes
    ----------
    pieces : list of Piece
        That of the matrix, transposed, in the order of features; none for a rank that
        does not change it.
    slopes : ndarray of shape (n_outputs,)
        That of the intercepts.
    square : float
        Squared Frobenius norm of the values.
    """

    pieces: list[Piece]
    slopes: np.ndarray
    square: float

    @property
    def values(self) -> np.ndarray | None:
        """The sum for the matrix; None if there is none.

        No copy of a sum that is one piece, as of :meth:`MatrixExchange.total` with
        `is_whole`.
        """
        if not self.pieces:
            return None
        if len(self.pieces) == 1 and self.pieces[0].rows is None:
            return self.pieces[0].values
        last = self.pieces[-1]
        shape = last.features.stop, last.values.shape[1]
        found = np.zeros(shape, dtype=last.values.dtype)
        for features, rows, values in self.pieces:
            found[features][slice(None) if rows is None else rows] = values
        return found


def is_best_whole(parts: list[Factors], matrix: ParameterMatrix) -> bool:
    """Whether it is quicker to make the update of some factors than to go by elements.

    Parameters
    ----------
    parts : list of Factors
        Those of each rank.
    matrix : ParameterMatrix
        What they are an update of.

    Returns
    -------
    is_best : bool
        Also False where the update would take much memory.
    """
    if matrix.values.nbytes > _SMALL_BYTES:
        return False
    some = [part for part in parts if part.n_pairs]
    n_features = matrix.shape[1]
    if any(not part.is_sparse for part in some):
        return True  # a row has as many elements
    return sum(part.v.nnz for part in some) >= n_features


def whole_update(factors: Factors, matrix: ParameterMatrix) -> Total:
    """The update that some factors stand for.

    Parameters
    ----------
    factors : Factors
        Of all ranks.
    matrix : ParameterMatrix
        Says what shape and type the update has.

    Returns
    -------
    total : Total
    """
    values = MatrixExchange.product(factors, matrix)
    piece = Piece(slice(0, len(values)), None, values)
    return Total([piece], factors.u.sum(axis=0), square_sum(values))


class MatrixExchange:
    """Adds up the update matrices of all ranks.

    Parameters
    ----------
    group : Group
        This rank.
    by_server : bool
        Whether rank 0 adds up, and sends the sum to all; else each rank adds up a part,
        which takes as many bytes in all, but no rank more than another.
    wire_dtype : dtype or None
        Type that matrices are sent and added up in; None takes that of the matrix.
    """

    def __init__(
        self, group: Group, *, by_server: bool, wire_dtype: Any = None
    ) -> None:
        self._group = group
        self._by_server = by_server
        self._wire_dtype = wire_dtype

    def total(
        self,
        factors: Factors,
        matrix: ParameterMatrix,
        meanwhile: Callable[[], None] | None = None,
        *,
        is_whole: bool = False,
    ) -> Total:
        """Sum of the updates of all ranks; a collective call.

        Some features at a time are added up, so that the ranks of a process, which may
        have one matrix together, do not make one each. Of sparse rows only the features
        that they have are kept, where these are few.

        Parameters
        ----------
        factors : Factors
            This rank's.
        matrix : ParameterMatrix
            Says what shape and type the update has.
        meanwhile : callable, default=None
            Called while a small update is under way between two ranks.
        is_whole : bool, default=False
            Whether all values are wanted at one place.

        Returns
        -------
        total : Total
        """
        n_outputs, n_features = matrix.shape
        dtype = self._dtype_of(matrix)
        pieces: list[Piece] = []
        if matrix.is_owner and is_whole:
            values = np.empty((n_features, n_outputs), dtype=dtype)
            pieces.append(Piece(slice(0, n_features), None, values))
        square = 0.0
        slopes = np.zeros(n_outputs, dtype=dtype)
        for features, part in self._parts(factors, matrix):
            found = self._added_up(part.astype(dtype, copy=False), meanwhile)
            if features.stop == n_features:
                found, slopes = found[:-1], found[-1]
            square += float(np.vdot(found, found))
            if matrix.is_owner and is_whole:
                values[features] = found
            elif matrix.is_owner:
                pieces.append(_piece_of(features, found, factors))
        return Total(pieces, slopes, square)

    def subtract(
        self,
        factors: Factors,
        matrix: ParameterMatrix,
        scale: float,
        intercept_scale: float = 1.0,
    ) -> None:
        """Take the sum of the updates of all ranks off a matrix; a collective call.

        The sum is never there as a whole: parts are taken off as they come. By then all
        ranks have found their factors, so none looks at the matrix.

        Parameters
        ----------
        factors : Factors
            This rank's.
        matrix : ParameterMatrix
            Changed.
        scale : float
            What the sum is multiplied by.
        intercept_scale : float, default=1.0
            What besides for intercepts.
        """
        dtype = self._dtype_of(matrix)
        for features, part in self._parts(factors, matrix):
            found = self._added_up(part.astype(dtype, copy=False))
            if features.stop == matrix.shape[1]:
                found, slopes = found[:-1], found[-1]
                matrix.subtract_slopes(slopes, scale * intercept_scale)
            matrix.subtract_part(features, found, scale)

    @staticmethod
    def product(factors: Factors, matrix: ParameterMatrix) -> np.ndarray:
        """Update matrix of a rank, transposed."""
        return product_of(*factors, matrix.dtype)

    def _dtype_of(self, matrix: ParameterMatrix) -> Any:
        """Type that updates are added up in."""
        return matrix.dtype if self._wire_dtype is None else self._wire_dtype

    def _added_up(
        self, own: np.ndarray, meanwhile: Callable[[], None] | None = None
    ) -> np.ndarray:
        """Sum over all ranks."""
        group = self._group
        if group.size == 1:
            return own
        is_short = group.size == 2 and own.nbytes <= _SHORT_BYTES
        if is_short and meanwhile is not None and not self._by_server:
            # The same message and the same bits as by an allreduce.
            group.push(own, 1 - group.rank, _TAG)
            meanwhile()
            return np.asarray(own + group.recv(1 - group.rank, _TAG))
        if not self._by_server:
            return allreduce(group, own)
        result: np.ndarray = broadcast_direct(group, reduce(group, own))
        return result

    def _parts(
        self, factors: Factors, matrix: ParameterMatrix
    ) -> Iterator[tuple[slice, np.ndarray]]:
        """Rows of this rank's update, some at a time; at last that of intercepts."""
        n_outputs, n_features = matrix.shape
        nbytes = n_features * n_outputs * matrix.dtype.itemsize
        n_parts = min(_MOST_PARTS, max(1, nbytes // _LEAST_BYTES))
        size = max(1, -(-n_features // n_parts))
        rows = factors.v.T
        if sparse.issparse(rows):
            rows = rows.tocsr()
        for start in range(0, n_features, size):
            features = slice(start, min(start + size, n_features))
            if sparse.issparse(rows):
                part = np.asarray(row_slice(rows, start, features.stop) @ factors.u)
            else:
                part = product_of(factors.u, rows[features].T, matrix.dtype)
            if features.stop == n_features:
                part = np.vstack([part, factors.u.sum(axis=0)])
            yield features, part


def _piece_of(features: slice, found: np.ndarray, factors: Factors) -> Piece:
    """What is kept of a sum until it is known what it is multiplied by."""
    if factors.is_sparse:
        rows = np.flatnonzero(found.any(axis=1))
        if 2 * len(rows) < len(found):
            return Piece(features, rows, found[rows])
    return Piece(features, None, found)
