"""Second derivatives within outputs, on rank 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy.linalg import lapack

_TOGETHER = 400  # coefficients, of outputs that are solved for in one call
# Of the largest second derivative, for columns that depend on others.
_JITTER, _LARGER_JITTER = 1e-9, 1e-4


class Blocks:
    """Those by the coefficients of each output, and its intercept.

    Parameters
    ----------
    squares, border, corner : ndarray
        As :meth:`Curvature.blocks` has them; the first is changed.
    outputs : ndarray of int of shape (m,)
        Outputs of the coefficients, in order.
    has_shift : bool
        Whether there are intercepts.
    is_reduced : bool, default=False
        Whether the best intercepts have been taken from the squares.

    Attributes
    ----------
    n_outputs : int
    has_shift : bool
    """

    def __init__(
        self,
        squares: np.ndarray,
        border: np.ndarray,
        corner: np.ndarray,
        outputs: np.ndarray,
        has_shift: bool,
        is_reduced: bool = False,
    ) -> None:
        self.n_outputs, self.has_shift = len(corner), has_shift
        self._squares, self._outputs = squares, outputs
        self._border = border if has_shift else np.zeros_like(border)
        least = _JITTER * (corner.max() or 1.0)
        self._corner = np.maximum(corner, least)
        sizes = np.bincount(outputs, minlength=len(corner))
        self._bounds = np.append(0, np.cumsum(sizes))
        self._firsts = np.append(0, np.cumsum(sizes**2))
        for output in range(0 if is_reduced else len(corner)):
            self._eliminate(output)

    def with_others(self, places: np.ndarray, diagonal: np.ndarray) -> Blocks:
        """Those of other coefficients of the one output, as far as they are known.

        Parameters
        ----------
        places : ndarray of int of shape (n,)
            Where each stands among the coefficients here; -1 where it does not.
        diagonal : ndarray of shape (n,)
            Second derivatives by single ones, which is all there is of these.
        """
        known = np.flatnonzero(places >= 0)
        old = places[known]
        square, border = np.diag(diagonal), np.zeros(len(places))
        square[np.ix_(known, known)] = self._block(0)[np.ix_(old, old)]
        border[known] = self._border[old]
        outputs = np.zeros(len(places), dtype=np.int64)
        return Blocks(
            square.ravel(), border, self._corner, outputs, self.has_shift, True
        )

    def parts(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Coefficients of some outputs, and their matrix, the intercepts eliminated.

        It is not to be changed.
        """
        bounds, first = self._bounds, 0
        while first < self.n_outputs:
            most = bounds[first] + _TOGETHER
            last = max(first + 1, int(np.searchsorted(bounds, most, side="right")) - 1)
            part = slice(int(bounds[first]), int(bounds[last]))
            if part.stop > part.start:
                yield part, self._matrix(first, last)
            first = last

    def _eliminate(self, output: int) -> None:
        """Take from the matrix of an output what its best intercept takes."""
        block = self._block(output)
        if self.has_shift:
            border = self._border[self._bounds[output] : self._bounds[output + 1]]
            block -= np.outer(border / self._corner[output], border)
        diagonal = np.diag_indices_from(block)
        block[diagonal] = np.maximum(block[diagonal], 0.0)

    def _block(self, output: int) -> np.ndarray:
        """The matrix of an output."""
        square = self._squares[self._firsts[output] : self._firsts[output + 1]]
        size = int(self._bounds[output + 1] - self._bounds[output])
        return square.reshape(size, size)

    def _matrix(self, first: int, last: int) -> np.ndarray:
        """That of the coefficients of some outputs."""
        if last == first + 1:
            return self._block(first)
        bounds = self._bounds[first : last + 1] - self._bounds[first]
        found = np.zeros((bounds[-1], bounds[-1]))
        for output, start, stop in zip(range(first, last), bounds, bounds[1:]):
            found[start:stop, start:stop] = self._block(output)
        return found

    def of_shifts(self, slopes: np.ndarray) -> np.ndarray:
        """What the best intercepts take from the slopes by the coefficients."""
        return self._border * (slopes / self._corner)[self._outputs]

    def best_shift(self, step: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        """The best change of the intercepts beside a step of the coefficients."""
        if not self.has_shift:
            return np.zeros(self.n_outputs)
        across = np.bincount(
            self._outputs, self._border * step, minlength=self.n_outputs
        )
        return np.asarray(-(slopes + across) / self._corner)

    def inverse(
        self, free: np.ndarray, l2: np.ndarray
    ) -> Callable[[np.ndarray], np.ndarray]:
        """Inverse for some coefficients and the intercepts, of whole vectors.

        Parameters
        ----------
        free : ndarray of int
            The coefficients, in order; all others become zero.
        l2 : ndarray of shape (m,)
            What is added to the second derivatives by one coefficient.
        """
        m, factors = len(l2), []
        for part, matrix in self.parts():
            own = free[slice(*np.searchsorted(free, [part.start, part.stop]))]
            if len(own):
                places = own - part.start
                system = matrix[np.ix_(places, places)]
                system[np.diag_indices_from(system)] += l2[own]
                factors.append((own, _factor_of(system)))

        def inverse(vector: np.ndarray) -> np.ndarray:
            found = np.zeros_like(vector)
            right = vector[:m] - self.of_shifts(vector[m:])
            for own, factor in factors:
                found[own] = lapack.dpotrs(factor, right[own], lower=1)[0]
            found[m:] = self.best_shift(found[:m], -vector[m:])
            return found

        return inverse


def _factor_of(system: np.ndarray) -> np.ndarray:
    """Lower factor of a system that may be singular."""
    largest = float(np.diag(system).max()) or 1.0
    for jitter in (_JITTER, _LARGER_JITTER):
        # It is symmetric, so that its transpose has the order of memory that is wanted.
        damped = system.copy().T
        damped[np.diag_indices_from(damped)] += jitter * largest
        factor, info = lapack.dpotrf(damped, lower=1, overwrite_a=1)
        if info == 0:
            return np.asarray(factor)
    return np.sqrt(largest) * np.eye(len(system))
