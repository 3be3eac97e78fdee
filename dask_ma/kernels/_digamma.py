"""The digamma function to the precision that is asked for.

By default the expectations of topic models need five digits of it, and most of the time
goes into it: it is therefore computed by recurrence and series, with a bound on the
error to choose.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import ceil

import numpy as np
from scipy import special

_Fill = Callable[[np.ndarray, np.ndarray, np.ndarray], None]

# Elements worked on at once, so that the temporaries stay in the processor's cache.
_CHUNK = 2**16
# Pairs of terms of the recurrence that single precision can tell from more of them:
# beyond 6, the series is off by less than 1e-7.
_MOST_PAIRS_SINGLE = 3
# exp of less than this is left at this: small enough for every sum, and not yet a
# subnormal number, which the processor is slow with.
_LOWEST = {np.dtype(np.float32): -80.0, np.dtype(np.float64): -700.0}


def digamma(x: np.ndarray, threshold: float | None = 9.0) -> np.ndarray:
    """Logarithmic derivative of the gamma function.

    Parameters
    ----------
    x : ndarray of float32 or float64
        Positive.
    threshold : float or None, default=9.0
        The argument is raised above it by the recurrence
        ``digamma(x) = digamma(x + 1) - 1 / x``, then four terms of the asymptotic
        series are taken. The error of what is left out is below
        ``1 / (252 threshold^6)``: less than 1e-8 for 9, and 3e-13 for 49. In single
        precision the rounding errors are up to 1e-6 of the largest term, and no
        argument is raised by more than 6. None: SciPy's function, which is exact to the
        last digits.

    Returns
    -------
    values : ndarray
        Same shape and dtype as `x`.

    References
    ----------
    Section 4.2, "Low Precision Computation", of the paper on model averaging.
    """
    if threshold is None:
        return np.asarray(special.psi(x))

    def fill(raised: np.ndarray, loss: np.ndarray, out: np.ndarray) -> None:
        np.log(raised, out=out)
        out -= loss

    return _in_chunks(x, threshold, fill)


def exp_digamma(x: np.ndarray, threshold: float | None = 9.0) -> np.ndarray:
    """``exp(digamma(x))``, which takes no logarithm, but not less than about 1e-34.

    Parameters
    ----------
    x : ndarray of float32 or float64
        Positive.
    threshold : float or None, default=9.0
        As in :func:`digamma`.

    Returns
    -------
    values : ndarray
        Same shape and dtype as `x`; positive. The lowest value is about 1e-34 in single
        and 1e-303 in double precision.
    """
    lowest = _LOWEST[x.dtype]
    if threshold is None:
        values = np.asarray(special.psi(x))
        np.maximum(values, lowest, out=values)
        return np.asarray(np.exp(values, out=values))

    def fill(raised: np.ndarray, loss: np.ndarray, out: np.ndarray) -> None:
        np.minimum(loss, -lowest, out=loss)
        np.exp(np.negative(loss, out=loss), out=out)
        out *= raised

    return _in_chunks(x, threshold, fill)


def exp_above(x: np.ndarray) -> np.ndarray:
    """``exp(x)`` in place for values up to 0, with the lowest of :func:`exp_digamma`.

    Parameters
    ----------
    x : ndarray of float32 or float64
        Overwritten with the result.

    Returns
    -------
    values : ndarray
        `x` itself.
    """
    np.maximum(x, _LOWEST[x.dtype], out=x)
    return np.asarray(np.exp(x, out=x))


def _in_chunks(x: np.ndarray, threshold: float, fill: _Fill) -> np.ndarray:
    """Fill an array from ``(raised, log(raised) - digamma(x))`` of its elements."""
    n_pairs = max(1, ceil(threshold / 2))
    if x.dtype == np.float32:
        n_pairs = min(n_pairs, _MOST_PAIRS_SINGLE)
    values = np.empty(x.shape, dtype=x.dtype)
    flat, out = np.ascontiguousarray(x).reshape(-1), values.reshape(-1)
    size = max(1, _CHUNK // n_pairs)
    for start in range(0, flat.size, size):
        part = flat[start : start + size]
        fill(*_raise(part, n_pairs), out[start : start + size])
    return values


def _raise(x: np.ndarray, n_pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Raise arguments by an even number; return them and log - digamma."""
    # The reciprocals of the recurrence are added in pairs from both ends,
    # 1 / (x + i) + 1 / (x + m - i) = (2 x + m) / (x (x + m) + i (m - i)), which takes
    # half the divisions.
    last = 2 * n_pairs - 1
    term = x + last
    term *= x
    pairs = term + _offsets(n_pairs, x.dtype)
    loss = np.add.reduce(np.reciprocal(pairs, out=pairs), axis=0)
    raised = x + (last + 1)
    loss *= np.subtract(x + raised, 1, out=term)
    # In the literature this is 1 / (2x) + 1 / (12 x^2) - 1 / (120 x^4).
    inverse = np.reciprocal(raised)
    np.multiply(inverse, inverse, out=term)
    term *= -1 / 120
    term += 1 / 12
    term *= inverse
    term += 0.5
    term *= inverse
    loss += term
    return raised, loss


@lru_cache
def _offsets(n_pairs: int, dtype: np.dtype) -> np.ndarray:
    """What the pairs add to the product of the first one, as a column."""
    first = np.arange(n_pairs, dtype=dtype)
    return (first * (2 * n_pairs - 1 - first))[:, np.newaxis]
