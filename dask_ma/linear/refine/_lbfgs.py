"""Directions from the last few gradients, also for L1."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from scipy.linalg import blas

from dask_ma.linear.refine._coordinates import Found
from dask_ma.linear.refine._share import Share, Slice

_MEMORY = 10  # pairs of steps and changes of the gradient
_SMALLEST = 1e-12  # cosine between the two of a pair that says something
_WINDOW = 5  # fewest steps whose gain says something
_LONG = 20  # steps after which a function is one that takes many
# So many steps have slowed that gain less than a part of what there is elsewhere.
_SLOW_STEPS, _SLOW_GAIN = 10, 0.05


class LBFGS:
    """Limited-memory BFGS, for L1 that of Andrew and Gao (OWL-QN, 2007).

    With L1 a step stays in the orthant that it begins in: it goes along the subgradient
    of least norm, and components that would change their sign become 0.

    Parameters
    ----------
    l1 : ndarray of shape (n_weights,)
        Weights of the L1 norm.
    share : Share
        Of which weights these are those of.
    """

    def __init__(self, l1: np.ndarray, share: Share) -> None:
        self._l1 = l1
        self._share = share
        self._pairs: deque[tuple[np.ndarray, np.ndarray, float]] = deque(maxlen=_MEMORY)
        self._last: tuple[np.ndarray, np.ndarray] | None = None
        self._values: list[float] = []
        self._lowest: list[float] = []  # objectives so far, of smoother losses as well
        self._orthant = np.zeros(0)

    knows_curvature = False
    caution = 0.0  # no second derivatives are asked for

    def restart(self) -> None:
        """Forget what was learnt, since it does not lead on, or not from here."""
        self._pairs.clear()
        self.sharpen()

    def sharpen(self) -> None:
        """Go on with a function that is less smooth, and alike over long steps."""
        # What pairs know of it tells more than nothing: far weights of tf-idf are found
        # in half of the steps. A pair with a gradient of each would tell of neither.
        self._last = None
        self._values.clear()

    @property
    def has_memory(self) -> bool:
        """Whether there is something to forget."""
        return bool(self._pairs)

    @property
    def is_long(self) -> bool:
        """Whether the function has taken many steps."""
        return len(self._values) > _LONG

    def has_slowed(self, elsewhere: float) -> bool:
        """Whether the last steps have gained little beside what another function may.

        Parameters
        ----------
        elsewhere : float
            What may be gained with it.

        Returns
        -------
        bool
        """
        if len(self._values) <= _SLOW_STEPS:
            return False
        gain = self._values[-1 - _SLOW_STEPS] - self._values[-1]
        return gain <= _SLOW_GAIN * elsewhere

    def direction(self, point: np.ndarray, found: Found, slopes: np.ndarray) -> float:
        """Find the direction from an accepted point; return its slope.

        Parameters
        ----------
        point : ndarray of shape (n_weights,)
            The point.
        found : Found
            What was found there.
        slopes : ndarray of shape (n_weights,)
            Subgradient of least norm.

        Returns
        -------
        along : float
            Slope along the direction, of this rank's weights.
        """
        pair = None
        if self._last is not None:
            pair = point - self._last[0], found.gradient - self._last[1]
        self._last = point, found.gradient
        self._values.append(found.value)
        best = min(self._lowest[-1:], default=np.inf)
        self._lowest.append(min(best, found.objective))
        self.step = -self._apply(slopes, pair)
        if self._l1.any():
            self.step[self.step * slopes >= 0] = 0.0
            side = np.where(point != 0, np.sign(point), -np.sign(slopes))
            self._orthant = np.where(self._l1 > 0, side, 0.0)
        return float(slopes @ self.step)

    def left(self, along: float) -> float:
        """What may be gained yet, by the slope along the direction of all weights."""
        return max(-0.5 * along, self._gain_left(), self._gain_of_all_left())

    def move(self, point: np.ndarray, length: float) -> np.ndarray:
        """Point some way along the direction."""
        moved = point + length * self.step
        if self._l1.any():
            moved[(self._orthant * moved <= 0) & (self._l1 > 0)] = 0.0
        return moved

    def refuse(self, n_refused: int) -> None:
        """Take note that a trial was no better."""

    def _apply(
        self, slopes: np.ndarray, pair: tuple[np.ndarray, np.ndarray] | None
    ) -> np.ndarray:
        """The inverse of the second derivatives, as the pairs have it, times slopes."""
        if pair is not None:
            step, change = pair
            product = float(step @ change)
            if says_something(product, float(step @ step), float(change @ change)):
                self._pairs.append((step, change, product))
        result, factors = slopes.copy(), []
        for step, change, product in reversed(self._pairs):
            factor = float(step @ result) / product
            # In place where it is float64, and reads each once.
            result = blas.daxpy(change, result, a=-factor)
            factors.append(factor)
        if self._pairs:
            _, change, product = self._pairs[-1]
            result *= product / float(change @ change)
        for (step, change, product), factor in zip(
            self._pairs, reversed(factors), strict=True
        ):
            share = factor - float(change @ result) / product
            result = blas.daxpy(step, result, a=share)
        return result

    def _gain_left(self) -> float:
        """What is left to gain, from what the last third of the steps has gained."""
        window = max(_WINDOW, len(self._values) // 3)
        if len(self._values) <= window:
            return np.inf
        # All of it where the excess falls like the inverse of the number of steps, as
        # for badly scaled columns; too much where it falls faster.
        return 2 * max(0.0, self._values[-1 - window] - self._values[-1])

    def _gain_of_all_left(self) -> float:
        """What is left to gain, from what all steps have gained."""
        # A loss that has just become less smooth gains little at first, whatever is
        # left. The last two quarters of the steps tell: a gain that falls by a factor
        # from one to the next goes on to do so, and where the excess falls like the
        # inverse of the number of steps, that factor is a half and three times the last
        # gain is left.
        window = len(self._lowest) // 4
        if window < _WINDOW:
            return 0.0
        first, middle, last = (self._lowest[-1 - k * window] for k in (2, 1, 0))
        before, gain = first - middle, middle - last
        if gain <= 0:
            return 0.0
        return 3 * gain * gain / (before - gain) if gain < before else np.inf


class SharedLBFGS(LBFGS):
    """L-BFGS whose vectors are shared out over ranks; its methods are collective.

    The directions of the pairs, of which each rank holds slices, and the slopes span
    what the next one can be. Their products are all that has to be known of them: one
    small sum over ranks (W. Chen, Z. Wang, J. Zhou, "Large-scale L-BFGS using
    MapReduce", 2014).

    Parameters
    ----------
    l1 : ndarray of shape (n_own,)
        Weights of the L1 norm, for this rank's weights.
    share : Slice
        Which these are.

    Attributes
    ----------
    n_stored : int
        Numbers that this rank holds of the pairs, ``2 * 10`` for each of its weights.
    """

    _share: Slice

    def __init__(self, l1: np.ndarray, share: Slice) -> None:
        super().__init__(l1, share)
        # Rows of both halves are steps, and changes of the gradient.
        self._vectors = np.empty((2, _MEMORY, len(l1)))
        self._order: list[int] = []  # places of pairs, the oldest first
        self._gram = np.zeros((2 * _MEMORY, 2 * _MEMORY))

    @property
    def n_stored(self) -> int:
        """Numbers that this rank holds of the pairs."""
        return self._vectors.size

    @property
    def has_memory(self) -> bool:
        """Whether there is something to forget."""
        return bool(self._order)

    def restart(self) -> None:
        """Forget what was learnt, since it does not lead on, or not from here."""
        super().restart()
        self._order.clear()

    def _apply(
        self, slopes: np.ndarray, pair: tuple[np.ndarray, np.ndarray] | None
    ) -> np.ndarray:
        """The inverse of the second derivatives, as the pairs have it, times slopes."""
        if pair is None and not self._order:
            return slopes.copy()
        along = self._learn(slopes, pair)
        factors, own = combine_pairs(self._gram, along, self._order)
        n_used = len(self._order)
        result = own * slopes
        for vectors, some in zip(self._vectors, factors, strict=True):
            result += some[:n_used] @ vectors[:n_used]
        return result

    def _learn(
        self, slopes: np.ndarray, pair: tuple[np.ndarray, np.ndarray] | None
    ) -> np.ndarray:
        """Store a pair that says something; return products of slopes with all."""
        new = [slopes, *(pair or ())]
        n_used, width = len(self._order), 2 * _MEMORY
        table = np.zeros((len(new), width + 2))
        for row, vector in zip(table, new, strict=True):
            row[:n_used] = self._vectors[0, :n_used] @ vector
            row[_MEMORY : _MEMORY + n_used] = self._vectors[1, :n_used] @ vector
            row[width:] = [vector @ one for one in pair] if pair else 0.0
        table = self._share.add_up(table)
        along = table[0, :width]
        if pair is None:
            return along
        (square, product), (_, change_square) = table[1:, width:]
        if not says_something(float(product), float(square), float(change_square)):
            return along
        is_full = n_used == _MEMORY
        place = self._order.pop(0) if is_full else n_used
        self._order.append(place)
        self._vectors[:, place] = pair
        both = [place, _MEMORY + place]
        self._gram[both] = table[1:, :width]
        self._gram[:, both] = table[1:, :width].T
        self._gram[np.ix_(both, both)] = table[1:, width:]
        along[both] = table[0, width:]
        return along


def combine_pairs(
    gram: np.ndarray, along: np.ndarray, order: Sequence[int]
) -> tuple[np.ndarray, float]:
    """Factors of pairs and slopes in the inverse of L-BFGS times the slopes.

    They are worked out by additions that are rounded once, so that all processors find
    the same.

    Parameters
    ----------
    gram : ndarray of shape (2 * n_places, 2 * n_places)
        Products of steps, and behind them of changes of the gradient.
    along : ndarray of shape (2 * n_places,)
        Their products with the slopes.
    order : sequence of int
        Places of the pairs to use, the oldest first; at least one.

    Returns
    -------
    factors : ndarray of shape (2, n_places)
        Of the steps and of the changes, by their places.
    own : float
        That of the slopes.
    """
    n_places = len(along) // 2
    products, first = gram.tolist(), along.tolist()
    factors = [0.0] * (2 * n_places)
    backwards = {}
    own = 1.0

    def along_result(row: int) -> float:
        """Product of a vector with the result so far."""
        rest = map(math.prod, zip(products[row], factors, strict=True))
        return math.fsum([own * first[row], *rest])

    for place in reversed(order):
        scale = products[place][n_places + place]
        backwards[place] = along_result(place) / scale
        factors[n_places + place] -= backwards[place]
    change = n_places + order[-1]
    ratio = products[order[-1]][change] / products[change][change]
    factors, own = [ratio * factor for factor in factors], ratio
    for place in order:
        change = n_places + place
        scale = products[place][change]
        factors[place] += backwards[place] - along_result(change) / scale
    return np.array(factors).reshape(2, n_places), own


def says_something(product: float, square: float, change_square: float) -> bool:
    """Whether a step and its change of the gradient show a curvature above 0."""
    return product > _SMALLEST * math.sqrt(square * change_square)
