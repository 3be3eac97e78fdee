"""Steps that look at the second derivatives within each output, and not across them."""

from __future__ import annotations

import numpy as np
from scipy import linalg

# Sweeps over the features, between steps on those that are not zero, and how often.
_SWEEPS, _MOST_ROUNDS = 3, 8
_JITTER = 1e-6  # of the largest curvature, for what rounding makes of the others


def block_point(
    blocks: np.ndarray,
    gradient: np.ndarray,
    point: np.ndarray,
    l1: np.ndarray,
    l2: np.ndarray,
    *,
    has_shifts: bool = False,
    tol: float = 0.1,
) -> np.ndarray:
    """About the minimum of a model without second derivatives across outputs.

    The model is that of :func:`~dask_ma.kernels.newton_point`. Coordinate descent goes
    over the features, all outputs at a time, and now and then an output goes to the
    minimum among points with its signs, since features may be much alike.

    Parameters
    ----------
    blocks : ndarray of shape (n_features, n_outputs, n_features)
        Second derivatives: element ``(j, k, i)`` is that by features `j` and `i` of
        output `k`, symmetric in these.
    gradient, point : ndarray of shape (n_features, n_outputs)
        Of the function, and where it was found.
    l1, l2 : ndarray of shape (n_features,)
        Weights of the penalties, not negative.
    has_shifts : bool, default=False
        Whether the function stays the same where all outputs of a feature change by
        the same number, as softmax does. Such changes are free in the model.
    tol : float, default=0.1
        Length of the last sweep, relative to that of the first one.

    Returns
    -------
    x : ndarray of shape (n_features, n_outputs)
    """
    model = _Model(blocks, gradient, point, l1, l2)
    first = None
    for _ in range(_MOST_ROUNDS):
        square = sum(model.sweep() for _ in range(_SWEEPS))
        first = square if first is None else first
        if square <= tol**2 * first:
            break
        for output in range(blocks.shape[1]):
            model.solve(output)
        if has_shifts:
            model.shift()
    return model.x.astype(np.float64)


class _Model:
    """A point, and the slopes of the model there."""

    def __init__(
        self,
        blocks: np.ndarray,
        gradient: np.ndarray,
        point: np.ndarray,
        l1: np.ndarray,
        l2: np.ndarray,
    ) -> None:
        self._blocks, dtype = blocks, blocks.dtype
        curvatures = np.einsum("jkj->jk", blocks).copy()
        self._jitter = _JITTER * max(float(curvatures.max(initial=0.0)), 1.0)
        curvatures += self._jitter
        self._curvatures = curvatures
        self._l1, self._l2 = l1.astype(dtype), l2.astype(dtype)
        self.x = point.astype(dtype)
        # Of outputs, features; without the penalties.
        self._slopes = np.array(gradient.T, dtype=dtype, order="C")
        self._change = np.empty_like(self._slopes)

    def sweep(self) -> float:
        """Go over the features; return the square of the step, by the curvatures."""
        x, before, change = self.x, self.x.copy(), self._change
        divisors = self._curvatures + self._l2[:, np.newaxis]
        step = np.empty(x.shape[1], dtype=x.dtype)
        parts = self._curvatures, divisors, self._l1, self._blocks, self._slopes.T, x
        for curvature, divisor, limit, block, slope, value in zip(*parts, strict=True):
            np.multiply(curvature, value, out=step)
            step -= slope
            step -= np.minimum(np.maximum(step, -limit), limit)
            step /= divisor
            step -= value
            value += step
            self._slopes += np.multiply(block, step[:, np.newaxis], out=change)
        before -= x
        return float((self._curvatures * before**2).sum(dtype=np.float64))

    def shift(self) -> None:
        """Add to all outputs of a feature what makes the penalty least."""
        n_outputs = self.x.shape[1]
        features = np.flatnonzero((self._l1 > 0) & (self._l2 > 0))
        x, l1, l2 = self.x[features], self._l1[features], self._l2[features]
        # Between two of its kinks, the penalty is a parabola: the least of one of them,
        # or a kink, which is the median of all.
        signs = np.arange(-n_outputs, n_outputs + 1, 2, dtype=x.dtype)
        least = x.sum(axis=1, keepdims=True) + (l1 / l2)[:, np.newaxis] * signs
        places = np.hstack([-x, -least / n_outputs])
        self.x[features] = x + np.median(places, axis=1)[:, np.newaxis]
        # Without a parabola it is least between the middle kinks, or in the middle one.
        features = np.flatnonzero((self._l1 > 0) & (self._l2 == 0))
        self.x[features] -= _middle(self.x[features])

    def solve(self, output: int) -> None:
        """Go to the minimum among points with the same signs, or towards it."""
        block, slopes = self._blocks[:, output], self._slopes[output]
        x = self.x[:, output]
        support = np.flatnonzero((x != 0) | (self._l1 == 0))
        start, l1, l2 = x[support], self._l1[support], self._l2[support]
        damped = l2 + self._jitter
        system = block[np.ix_(support, support)]
        system[np.diag_indices_from(system)] += damped
        slope = slopes[support] + l1 * np.sign(start) + l2 * start
        try:
            # There is room for one such system, which is symmetric, and not for two.
            options = {"assume_a": "pos", "overwrite_a": True, "check_finite": False}
            step = -linalg.solve(system.T, slope, **options)
        except linalg.LinAlgError:  # rounding has made it indefinite
            return
        turns = (l1 > 0) & (start * (start + step) < 0)
        for end in (np.where(turns, 0, start + step), _until(start, step, turns)):
            move = end - start
            whole = np.zeros_like(slopes)
            whole[support] = move
            change = block @ whole
            gain = float(move @ (slope + (change[support] + damped * move) / 2))
            # Where a sign turns, the penalty is not what it would be beyond.
            if gain < 0:
                x[support] = end
                slopes += change
                return


def _middle(x: np.ndarray) -> np.ndarray:
    """An element in the middle of each row, that nearer zero where there are two."""
    n = x.shape[1]
    low, high = np.sort(x, axis=1)[:, [(n - 1) // 2, n // 2]].T
    return np.where(np.abs(low) < np.abs(high), low, high)[:, np.newaxis]


def _until(start: np.ndarray, step: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Where the first of some elements becomes zero."""
    if not turns.any():
        return start
    shares = -start[turns] / step[turns]
    end = start + shares.min() * step
    end[np.flatnonzero(turns)[shares.argmin()]] = 0
    return end
