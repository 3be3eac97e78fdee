"""Elements of a matrix, and what a penalty still has to do to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from copy import copy

import numpy as np

from dask_ma.kernels.prox import L2, ColumnwiseProx, NoPenalty, Prox

_LEAST_SCALE = 1e-3  # below it, the scale is multiplied in
_CHUNK = 2**16  # elements of the matrix at a time


class LateValues:
    """Values to which a penalty is applied where they are looked at.

    Several ranks may look at them, of which one makes all changes. Columns that are
    behind may be brought up to date by any of them, one at a time; those that others
    look at are not behind.

    Parameters
    ----------
    array : ndarray of shape (n_features, n_outputs), C-contiguous
        Changed in place.
    prox : Prox
        Prox operator of the penalty.

    Attributes
    ----------
    array : ndarray of shape (n_features, n_outputs)
        Columns of the matrix that were not used lately are behind.
    scale : float
        What all of the array is to be multiplied by.
    is_watched : bool
        Whether others may look at the array at any time.
    is_frozen : bool
        Whether the array is a state that somebody keeps; see :meth:`freeze`.
    """

    def __init__(self, array: np.ndarray, prox: Prox) -> None:
        self.array = array
        self.scale = 1.0
        self.is_watched = self.is_frozen = False
        self._prox = prox
        self._clock = 0.0
        self._seen = np.zeros(len(array))
        # A penalty that does not add up over time acts on what was changed since it was
        # last applied; None stands for all columns.
        self._changed: np.ndarray | None = None
        self._is_penalised = False
        self._lock = threading.Lock()

    @property
    def is_late(self) -> bool:
        """Whether columns can be behind."""
        return self._clock > 0

    @property
    def needs_columns(self) -> bool:
        """Whether it matters which columns a change is of."""
        return self.is_late or self._is_penalised

    def whole(self) -> np.ndarray:
        """The array with nothing left to do; a copy if others look at it meanwhile."""
        if not self.is_watched:
            self.settle()
            return self.array
        with self._lock:
            if self.scale == 1 and not self._clock:
                return self.array
            other = copy(self)
            other.array, other._seen = self.array.copy(), self._seen.copy()
            other.is_frozen = False
        other.settle()
        return other.array

    def freeze(self) -> np.ndarray:
        """The array with nothing left to do, read-only, which nobody will change.

        The next change is one of a copy, made then: until it there is no second array,
        and by then whoever keeps this one may have given up the one before.
        """
        array = self.whole()
        with self._lock:
            self.is_frozen = self.is_frozen or array is self.array
        view = array.view()
        view.flags.writeable = False
        return view

    def writable(self) -> np.ndarray:
        """The array to be changed; a copy of one that is frozen."""
        if self.is_frozen:
            self.array, self.is_frozen = self.array.copy(), False
        return self.array

    def settle(self) -> None:
        """Do what is left to do, while nobody looks at the array."""
        if self.is_late:
            self._shrink_late(self._clock - self._seen)
            self._restart_clock()
        if self.scale != 1:
            array = self.writable()
            array *= array.dtype.type(self.scale)
            self.scale = 1.0

    def refresh(self, columns: np.ndarray | None) -> None:
        """Apply to some columns, or all, what they have missed."""
        if not self.is_late:
            return
        with self._lock:
            if columns is None:
                self._shrink_late(self._clock - self._seen)
                self._restart_clock()
                return
            missed = self._clock - self._seen[columns]
            late = missed > 0
            if late.all():
                self._shrink(columns, missed)
            elif late.any():
                self._shrink(columns[late], missed[late])
            self._seen[columns] = self._clock

    def note_change(self, columns: np.ndarray | None) -> None:
        """Remember what the penalty has to act on; all, after two changes."""
        self._changed = columns if self._is_penalised else None
        self._is_penalised = False

    def penalise(self, step: float) -> None:
        """Apply the prox operator, if need be when a column is next looked at."""
        prox = self._prox
        if not isinstance(prox, ColumnwiseProx):
            self.array = np.ascontiguousarray(prox(self.array.T, step).T)
            self.is_frozen = False
            return
        amount = prox.amount(step)
        if isinstance(prox, L2):
            self.scale *= float(np.exp(-amount))
            if self.scale < _LEAST_SCALE:
                self.settle()
            return
        self._clock += amount
        if amount == 0 and not isinstance(prox, NoPenalty):
            if self._changed is None:
                prox.shrink(self.writable(), 0.0)
            else:
                self._shrink(self._changed, np.zeros(len(self._changed)))
            self._is_penalised = True

    def replace(self, values: np.ndarray) -> None:
        """Take other values, which are up to date."""
        with self._lock:
            # A state that was kept, and has not been changed since, is there already.
            if not _is_same(values, self.array):
                # Some of it, or all in another order, would be written over.
                if np.may_share_memory(values, self.array):
                    values = np.array(values)
                if self.is_frozen:  # no need for a copy of what is to be replaced
                    self.array, self.is_frozen = np.empty_like(self.array), False
                self.array[...] = values
        self.scale = 1.0
        self._restart_clock()
        self.note_change(None)

    def _restart_clock(self) -> None:
        """All columns are up to date; from here on, a copy would go on as this one."""
        self._clock = 0.0
        self._seen[:] = 0.0

    def _shrink_late(self, missed: np.ndarray) -> None:
        """Apply the prox operator to the columns that have missed it."""
        assert isinstance(self._prox, ColumnwiseProx)
        array = self.writable()
        for part in self._parts(len(missed)):
            late = np.flatnonzero(missed[part])
            if len(late) == len(missed[part]):
                self._prox.shrink(array[part], missed[part])
            elif len(late):  # others may be looking at the rest
                self._shrink(part.start + late, missed[part][late])

    def _shrink(self, columns: np.ndarray, amounts: np.ndarray) -> None:
        """Apply the prox operator to some columns."""
        assert isinstance(self._prox, ColumnwiseProx)
        array = self.writable()
        for part in self._parts(len(columns)):
            picked = array[columns[part]]
            self._prox.shrink(picked, amounts[part])
            array[columns[part]] = picked

    def _parts(self, n_columns: int) -> Iterator[slice]:
        """Some columns at a time: what is made of them must not be large."""
        size = max(1, _CHUNK // max(1, self.array.shape[1]))
        for start in range(0, n_columns, size):
            yield slice(start, min(start + size, n_columns))


def _is_same(values: np.ndarray, array: np.ndarray) -> bool:
    """Whether one is the other one, or a view of all of it as it is."""
    places = (
        (a.__array_interface__["data"][0], a.shape, a.strides, a.dtype)
        for a in (np.asarray(values), array)
    )
    return next(places) == next(places)
