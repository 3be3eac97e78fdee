"""Newton's step for many coefficients, by products of the Hessian with directions.

Rank 0 has the second derivatives within outputs, and asks for products of all of them.
Coordinate descent within outputs finds which coefficients are not zero, and conjugate
gradients among points of the same signs find their values, in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np

from dask_ma.schmp.l1._blocks import Blocks
from dask_ma.schmp.l1._quadratic import descend

Directions = Generator[np.ndarray, np.ndarray, float]
Products = Generator[np.ndarray, np.ndarray, np.ndarray]
Moves = Generator[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]

# What second derivatives within classes are multiplied by: classes that change against
# each other have up to twice as much, but most have less.
_COUPLING = 1.5
_SWEEPS = 10  # of coordinate descent
_MOST_TURNS = 20
# Of what all turns have gained, and of the null objective: a turn that gains less is
# the last. The next model will be another one anyway.
_LEFT, _LEAST = 0.05, 1e-10
# What conjugate gradients leave of the right side, and how many products they take:
# signs are found before the end is worth it.
_REST, _MOST_PRODUCTS = 0.1, 15
_MOST_PIVOTS = 4
# Of the second derivative within outputs: a direction with less is as good as straight.
_FLAT = 1e-6
_FAR = 1e3  # steps along such a direction
_LENGTHS = 0.5 ** np.arange(8)


class Model(NamedTuple):
    """A quadratic model of the loss about a point, and the penalty.

    Attributes
    ----------
    blocks : Blocks
        Second derivatives within outputs.
    slopes : ndarray of shape (m + n_outputs,)
        Gradient of the loss at the point, by coefficients and intercepts.
    coef, features : ndarray of shape (m,)
        The point, and which features its coefficients belong to.
    l1, l2 : ndarray of shape (m,)
        Weights of the penalty; those of the L1 part are above 0.
    positive : bool
        Whether coefficients must not be negative.
    null : float
        Objective of the best model without coefficients.
    """

    blocks: Blocks
    slopes: np.ndarray
    coef: np.ndarray
    features: np.ndarray
    l1: np.ndarray
    l2: np.ndarray
    positive: bool
    null: float


class Search:
    """Looks for the least point of a model.

    Parameters
    ----------
    model : Model

    Attributes
    ----------
    coef : ndarray of shape (m,)
        Where it is.
    shift : ndarray of shape (n_outputs,)
        How far the intercepts are from where they were.
    gain : float
        By how much the model has fallen.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._m = len(model.coef)
        self.coef, self.shift = model.coef, np.zeros(model.blocks.n_outputs)
        self._slopes = model.slopes.copy()
        self._slopes[: self._m] += model.l2 * model.coef
        if not model.blocks.has_shift:
            self._slopes[self._m :] = 0.0
        self.gain = 0.0
        self._full = self._full_features()

    def turns(self) -> Directions:
        """Ask for products with directions until it is done.

        Yields
        ------
        direction : ndarray of shape (m + n_outputs,)
            Its product with the second derivatives of the loss is to be sent back.
        """
        for _ in range(_MOST_TURNS):
            gain = yield from self._descend()
            gain += yield from self._go_among_signs()
            self.gain += gain
            if gain <= max(_LEFT * self.gain, _LEAST * self._model.null):
                break
        return self.gain

    def _descend(self) -> Directions:
        """Go towards the least point of a model that knows nothing across outputs."""
        model, m = self._model, self._m
        coupling = _COUPLING if model.blocks.n_outputs > 1 else 1.0
        slopes = self._slopes / coupling
        away = model.blocks.of_shifts(slopes[m:])
        end = np.empty(m)
        for part, gram in model.blocks.parts():
            if model.l2[part].any():
                gram = gram + np.diag(model.l2[part] / coupling)
            start = self.coef[part]
            linear = gram @ start - slopes[:m][part] + away[part]
            l1 = model.l1[part] / coupling
            end[part] = descend(gram, linear, l1, start, model.positive, _SWEEPS)
        for places in self._full:
            end[places] -= _surplus(end[places], model.positive)
        step = end - self.coef
        shift = model.blocks.best_shift(step, slopes[m:])
        direction = np.append(step, shift)
        product = yield from self._product(direction)
        along, bent = self._slopes @ direction, product @ direction
        rises = [model.l1 @ np.abs(self.coef + t * step) for t in _LENGTHS]
        rises -= model.l1 @ np.abs(self.coef)
        values = _LENGTHS * along + _LENGTHS**2 * bent / 2 + rises
        best = int(np.argmin(values))
        if not values[best] < 0:
            return 0.0
        t = _LENGTHS[best]
        self._move(t * direction, t * product)
        if t == 1:  # what is to be zero is not to be nearly that
            self.coef = end
        return -float(values[best])

    def _go_among_signs(self) -> Directions:
        """Go towards the least point of those with the same signs, or zeros."""
        m, signs = self._m, np.sign(self.coef)
        bounds = np.append(self._model.l1 * signs, np.zeros_like(self.shift))
        is_free = np.append(signs != 0, np.full(len(self.shift), True))
        is_free[m:] &= self._model.blocks.has_shift
        inverse = self._model.blocks.inverse(np.flatnonzero(signs), self._model.l2)
        step, product = np.zeros((2, len(bounds)))
        moves: list[tuple[np.ndarray, np.ndarray]] = []
        for _ in range(_MOST_PIVOTS):
            right = -np.where(is_free, self._slopes + product + bounds, 0.0)
            move, moved = yield from self._conjugate(right, is_free, inverse)
            moves.append((move, moved))
            step, product = step + move, product + moved
            turns = np.flatnonzero(signs * (self.coef + step[:m]) < 0)
            if not len(turns):
                break
            # These become zero, and the others go on without them.
            back = np.zeros_like(step)
            back[turns] = -self.coef[turns] - step[turns]
            moved = yield from self._product(back)
            step, product = step + back, product + moved
            is_free[turns] = False
        zeros = np.flatnonzero((signs != 0) & ~is_free[:m])
        gain = self._go_straight(step, product, bounds, zeros)
        return gain or self._go_through_zeros(*moves[0], bounds)

    def _go_straight(
        self,
        step: np.ndarray,
        product: np.ndarray,
        bounds: np.ndarray,
        zeros: np.ndarray,
    ) -> float:
        """Go to a point of the same signs, or towards it, while the model falls."""
        along = float((self._slopes + bounds) @ step)
        bent = float(product @ step)
        if not along < 0:
            return 0.0
        t = 1.0 if bent <= -along else -along / bent
        self._move(t * step, t * product)
        if t == 1:
            self.coef[zeros] = 0.0
        return -t * (along + t * bent / 2)

    def _go_through_zeros(
        self, step: np.ndarray, product: np.ndarray, bounds: np.ndarray
    ) -> float:
        """Go along a direction to where the model is least, though signs turn."""
        # The model is quadratic between the places where a coefficient passes zero, and
        # its slope jumps there.
        change = step[: self._m]
        crossing = np.flatnonzero((self.coef + change) * self.coef < 0)
        places = -self.coef[crossing] / change[crossing]
        order = np.argsort(places)
        crossing, places = crossing[order], places[order]
        jumps = 2 * self._model.l1[crossing] * np.abs(change[crossing])
        if self._model.positive:
            jumps[:] = np.inf
        slope = float((self._slopes + bounds) @ step)
        if not slope < 0:
            return 0.0
        bent = max(0.0, float(product @ step))
        place = gain = 0.0
        for end, jump in zip(np.append(places, 1.0), np.append(jumps, np.inf)):
            stop = end
            if slope + bent * (end - place) > 0:
                stop = place + max(0.0, -slope / bent)
            gain -= (stop - place) * (slope + bent * (stop - place) / 2)
            slope, place = slope + bent * (stop - place), stop
            if stop < end or slope + jump >= 0:
                break
            slope += jump
        if not gain > 0:
            return 0.0
        self._move(place * step, place * product)
        self.coef[crossing[places == place]] = 0.0
        return float(gain)

    def _conjugate(
        self,
        right: np.ndarray,
        is_free: np.ndarray,
        inverse: Callable[[np.ndarray], np.ndarray],
    ) -> Moves:
        """About the solution for what is free, by conjugate gradients."""
        rest, metric = right.copy(), right.copy()
        found, product = np.zeros((2, len(right)))
        direction = towards = np.where(is_free, inverse(rest), 0.0)
        square = float(rest @ towards)
        least = _REST**2 * square
        for n_taken in range(_MOST_PRODUCTS):
            if not square > least:
                break
            whole = yield from self._product(direction)
            bent = float(whole @ direction)
            if not bent > _FLAT * float(metric @ direction):
                if n_taken == 0:  # nothing but the penalty ends it
                    found, product = _FAR * direction, _FAR * whole
                break
            share = square / bent
            found += share * direction
            product += share * whole
            rest -= share * np.where(is_free, whole, 0.0)
            towards = np.where(is_free, inverse(rest), 0.0)
            before, square = square, float(rest @ towards)
            direction = towards + square / before * direction
            metric = rest + square / before * metric
        return found, product

    def _product(self, direction: np.ndarray) -> Products:
        """All second derivatives times a direction, the ridge penalty's with them."""
        product = yield direction
        product[: self._m] += self._model.l2 * direction[: self._m]
        if not self._model.blocks.has_shift:
            product[self._m :] = 0.0
        return product

    def _move(self, step: np.ndarray, product: np.ndarray) -> None:
        """Make a step, whose product is known."""
        self.coef = self.coef + step[: self._m]
        self.shift = self.shift + step[self._m :]
        self._slopes += product

    def _full_features(self) -> list[np.ndarray]:
        """Coefficients of features that all classes have, if a shift costs no ridge."""
        model, K = self._model, self._model.blocks.n_outputs
        order = np.argsort(model.features, kind="stable")
        found = np.unique(model.features[order], return_index=True, return_counts=True)
        starts = found[1][(found[2] == K) & (K > 1)]
        places = [order[start : start + K] for start in starts]
        return [own for own in places if not model.l2[own].any()]


def _surplus(values: np.ndarray, positive: bool) -> float:
    """What all classes have that softmax does without, and the penalty is less then."""
    if not values.all():
        return 0.0
    if positive:
        return float(values.min())
    low, high = np.sort(values)[[(len(values) - 1) // 2, len(values) // 2]]
    if low * high < 0:
        return 0.0
    return float(min(low, high, key=abs))
