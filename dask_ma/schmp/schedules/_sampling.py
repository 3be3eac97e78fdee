"""Draws of parameters in proportion to the squares of their last changes.

Besides, a queue of parameters in the order in which they are due.

The parameters are taken in blocks, each with its sum: a draw first chooses a block and
then a parameter in it. Only the sums of blocks in which something has changed are made
anew, always from all their elements, so they depend on the last changes alone and not
on the way there.
"""

from __future__ import annotations

import numpy as np

_AT_ONCE = 1 << 20  # elements that are added up at once
_SMALLEST_BLOCK = 16


class PrioritySampler:
    """Draws from a run of parameters.

    A parameter that has never been updated counts like the one with the largest of all
    last changes.

    Parameters
    ----------
    size : int
        Number of parameters.
    n_draws : int, default=128
        Draws that are usually made at once. They make the best length of a block
        ``sqrt(size / n_draws)``: each draw goes over a block, all together over the
        sums of all blocks.
    """

    def __init__(self, size: int, n_draws: int = 128) -> None:
        self._size = size
        self._length = max(_SMALLEST_BLOCK, round((size / max(1, n_draws)) ** 0.5))
        n_blocks = -(-size // self._length)
        self._sums = np.zeros(n_blocks)
        self._largest = np.zeros(n_blocks)
        self._n_new = np.zeros(n_blocks, dtype=np.int64)

    def update(self, last_change: np.ndarray, changed: np.ndarray | None) -> None:
        """Take note of changes.

        Parameters
        ----------
        last_change : ndarray of float64 of shape (size,)
            Size of the last change of each parameter, infinity for none.
        changed : ndarray of int64 or None
            Parameters that may differ from the last time; None stands for all.
        """
        if changed is None:
            blocks = np.arange(len(self._sums))
        else:
            blocks = np.unique(changed // self._length)
        step = max(1, _AT_ONCE // self._length)
        for start in range(0, len(blocks), step):
            some = blocks[start : start + step]
            sizes = self._take(last_change, some)
            is_new = np.isinf(sizes)
            with np.errstate(over="ignore"):
                squares = np.where(is_new, 0.0, sizes) ** 2
            self._sums[some] = squares.sum(axis=1)
            self._largest[some] = squares.max(axis=1)
            self._n_new[some] = is_new.sum(axis=1)

    def draw(
        self, last_change: np.ndarray, n_draws: int, rng: np.random.Generator
    ) -> np.ndarray:
        """Draw parameters, each by itself, so that one may come several times.

        Parameters
        ----------
        last_change : ndarray of float64 of shape (size,)
            As given to :meth:`update` last.
        n_draws : int
            How many.
        rng : numpy.random.Generator
            Random numbers.

        Returns
        -------
        drawn : ndarray of int64
            Empty if nothing has moved in its last change.
        """
        new_square = self._square_of_new()
        bounds = np.cumsum(self._sums + new_square * self._n_new)
        first, second = rng.random((2, n_draws))
        if not (np.isfinite(bounds[-1]) and bounds[-1] > 0):
            return np.empty(0, dtype=np.int64)
        blocks = np.searchsorted(bounds, first * bounds[-1], side="right")
        blocks = np.minimum(blocks, len(bounds) - 1)
        sizes = self._take(last_change, blocks)
        squares = np.where(np.isinf(sizes), new_square, sizes**2)
        within = np.cumsum(squares, axis=1)
        places = (within <= (second * within[:, -1])[:, np.newaxis]).sum(axis=1)
        places = np.minimum(places, self._length - 1)
        # Rounding at the end of a block can lead to a parameter that weighs nothing.
        real = squares[np.arange(n_draws), places] > 0
        drawn: np.ndarray = (blocks * self._length + places)[real]
        return drawn

    def _square_of_new(self) -> float:
        """What a parameter without any change counts."""
        largest = float(self._largest.max())
        return largest if largest > 0 else 1.0

    def _take(self, last_change: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        """Last changes of blocks, as rows; zeros behind the last parameter."""
        places = blocks[:, np.newaxis] * self._length + np.arange(self._length)
        sizes = last_change[np.minimum(places, self._size - 1)]
        sizes[places >= self._size] = 0.0
        return np.asarray(sizes)


class DueQueue:
    """Finds the parameters that are due first, and those that are new.

    Parameters
    ----------
    size : int
        Number of parameters.
    n_wanted : int, default=64
        Parameters that are usually asked for at once.
    """

    def __init__(self, size: int, n_wanted: int = 64) -> None:
        self._size = size
        self._length = max(_SMALLEST_BLOCK, round((size / max(1, n_wanted)) ** 0.5))
        n_blocks = -(-size // self._length)
        self._keys = np.full(n_blocks * self._length, np.inf)
        self._earliest = np.full(n_blocks, np.inf)
        self._is_new = np.zeros(size)
        self._new = PrioritySampler(size, n_wanted)

    def update(
        self, due: np.ndarray, last_change: np.ndarray, changed: np.ndarray | None
    ) -> None:
        """Take note of changes.

        Parameters
        ----------
        due, last_change : ndarray of float64 of shape (size,)
            As in :class:`Request`. Of two parameters that are due at the same time the
            one that has moved more comes first: a square of its last change earlier.
        changed : ndarray of int64 or None
            Parameters that may differ from the last time; None stands for all.
        """
        index = np.arange(self._size) if changed is None else changed
        sizes = last_change[index]
        is_new = np.isinf(sizes)
        self._is_new[index] = is_new
        self._new.update(self._is_new, changed)
        squares = np.where(is_new, 0.0, sizes) ** 2
        self._keys[index] = np.where(is_new, np.inf, due[index] - squares)
        blocks = np.unique(index // self._length)
        self._earliest[blocks] = self._keys.reshape(-1, self._length)[blocks].min(
            axis=1
        )

    def first(self, n: int, until: float = np.inf) -> np.ndarray:
        """Parameters that are due first, in their order.

        Parameters
        ----------
        n : int
            How many at most.
        until : float, default=inf
            Those due later are left out.

        Returns
        -------
        found : ndarray of int64
            Never a new one.
        """
        blocks = np.argsort(self._earliest, kind="stable")[:n]
        places = blocks[:, np.newaxis] * self._length + np.arange(self._length)
        places = np.sort(places.ravel())
        keys = self._keys[places]
        order = np.argsort(keys, kind="stable")[:n]
        return places[order][(keys[order] < np.inf) & (keys[order] <= until)]

    def new(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Some of the new parameters, different ones in random order.

        Parameters
        ----------
        n : int
            How many at most.
        rng : numpy.random.Generator
            Random numbers.

        Returns
        -------
        found : ndarray of int64
        """
        drawn = self._new.draw(self._is_new, 2 * n, rng)
        return distinct(drawn, np.empty(0, dtype=np.int64), n)


def probabilities(last_change: np.ndarray, floor: float = 0.0) -> np.ndarray:
    """Probability of each parameter in a single draw, by the formula.

    Parameters
    ----------
    last_change : ndarray of float64 of shape (size,)
        Size of the last change of each parameter, infinity for none.
    floor : float, default=0.0
        Fraction of the draws that treat all parameters alike.

    Returns
    -------
    probabilities : ndarray of float64 of shape (size,)
    """
    is_new = np.isinf(last_change)
    squares = np.where(is_new, 0.0, last_change) ** 2
    squares[is_new] = squares.max() if squares.any() else 1.0
    if not squares.any():
        floor = 1.0
    shares = squares / squares.sum() if squares.any() else squares
    return np.asarray((1 - floor) * shares + floor / len(squares))


def distinct(drawn: np.ndarray, without: np.ndarray, n: int) -> np.ndarray:
    """The first `n` different elements that are not among others, in their order.

    Parameters
    ----------
    drawn : ndarray of int64
        What was drawn.
    without : ndarray of int64
        What is left out.
    n : int
        Most elements wanted.

    Returns
    -------
    found : ndarray of int64 of shape (at most n,)
    """
    if len(without):
        drawn = drawn[~np.isin(drawn, without)]
    _, first = np.unique(drawn, return_index=True)
    return drawn[np.sort(first)[:n]]
