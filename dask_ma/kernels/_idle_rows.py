"""Rows of weights without a gradient, whose steps of Adam are made all at once.

Without a gradient the moments of `k` steps are ``beta_1^k m`` and ``beta_2^k v``, and
the weights have gone on by ``m / (sqrt(v) + epsilon)`` times the sum of ``a_i r^i``,
where `a_i` is the rate of the `i`-th of them, and ``r = beta_1 / sqrt(beta_2)``. That
leaves `epsilon` as it is beside a root that shrinks: it counts only where the moments
have been next to nothing. So a row can wait until it is read, and then be where each
step would have taken it.

A penalty draws rows to 0 all the while. It has a part in no moment then, but is divided
by the root as a gradient is: rows come to rest where that of the penalised loss is 0.
Where it is most of the gradient, as of rows that have had none, Adam's steps have the
size of the learning rate; so have these, as they are divided by no less.
"""

from __future__ import annotations

from typing import TypeGuard

import numpy as np

from dask_ma.kernels._optimizers import Adam

# Steps after which a row stands still, but for the penalty, at most: r^i is then below
# the rounding of float32. For larger `r` rows do not wait.
_LONGEST, _LARGEST = 400, 0.96
_FEWEST = 64  # steps that there is room for


def may_wait(optimizer: object) -> TypeGuard[Adam]:
    """Whether steps without a gradient can be made all at once.

    Parameters
    ----------
    optimizer : Optimizer

    Returns
    -------
    may : bool
        Only for an Adam whose first moment is gone long before the second.
    """
    return isinstance(optimizer, Adam) and (
        optimizer.beta_1**2 < _LARGEST**2 * optimizer.beta_2
    )


class IdleRows:
    """How far each row of a matrix is behind the steps of an optimiser.

    Parameters
    ----------
    optimizer : Adam
        One that :func:`may_wait` is true for.
    n_rows : int
        Of the matrix.

    Attributes
    ----------
    n_steps : int
        Steps since all rows have last been where they belong.
    """

    def __init__(self, optimizer: Adam, n_rows: int) -> None:
        self._optimizer = optimizer
        self._last = np.zeros(n_rows, dtype=np.int64)  # step that each row has made
        self._paid = np.zeros(n_rows)  # how far the penalty has drawn it
        ratio = optimizer.beta_1 / np.sqrt(optimizer.beta_2)
        self._powers = ratio ** np.arange(_LONGEST, 0, -1)
        self.restart()

    def restart(self) -> None:
        """Take note that all rows are where they belong."""
        self.n_steps = 0
        self._last[...] = 0
        self._paid[...] = 0
        self._drawn = 0.0  # how far the penalty draws all of them
        self._least = 0.0  # times a weight, what that is divided by at least
        # Of each step so far, how far a row has gone on that has waited since.
        self._ahead = np.zeros(_FEWEST)

    def note_step(self, rows: np.ndarray, penalty: float) -> None:
        """Take note of a step of the optimiser.

        Parameters
        ----------
        rows : ndarray of int
            Those that have made it.
        penalty : float
            Weight of the penalty, which draws all rows.
        """
        rate = self._optimizer.rate
        self.n_steps = now = self.n_steps + 1
        if now == len(self._ahead):
            self._ahead = np.concatenate([self._ahead, np.zeros(now)])
        first = max(0, now - _LONGEST)
        self._ahead[first:now] += rate * self._powers[first - now :]
        self._last[rows] = now
        # They are drawn in this step, too.
        self._paid[rows] = self._drawn
        self._drawn += rate * penalty
        self._least = self._optimizer.unbiased * penalty

    def catch_up(
        self,
        rows: np.ndarray | slice,
        values: np.ndarray,
        moments: list[np.ndarray],
        scratch: np.ndarray,
        shrinkage: np.ndarray | None = None,
    ) -> None:
        """Make the steps that rows have waited with, in place.

        They are to be named by :meth:`note_step`, or all by :meth:`restart`, next.

        Parameters
        ----------
        rows, values, moments, scratch, shrinkage
            As in :meth:`move`; the moments are changed, too.
        """
        self.move(rows, values, moments, scratch, shrinkage)
        optimizer, (first, second) = self._optimizer, moments
        n_missed = self.n_steps - self._last[rows]
        first *= _column(optimizer.beta_1**n_missed, values)
        second *= _column(optimizer.beta_2**n_missed, values)

    def move(
        self,
        rows: np.ndarray | slice,
        values: np.ndarray,
        moments: list[np.ndarray],
        scratch: np.ndarray,
        shrinkage: np.ndarray | None = None,
    ) -> None:
        """Move weights to where the steps that they wait with would take them.

        Parameters
        ----------
        rows : ndarray of int or slice
            Which.
        values : ndarray of shape (n, n_units)
            Their weights, changed in place.
        moments : list of two ndarray of shape (n, n_units)
            Theirs.
        scratch : ndarray of shape (n, n_units)
        shrinkage : ndarray of float64, shape (n_rows,), default=None
            By how much the penalty of a row counts for more than its weight.
        """
        first, second = moments
        np.sqrt(second, out=scratch)
        scratch += values.dtype.type(self._optimizer.epsilon)
        drawn = self._drawn - self._paid[rows]
        if drawn.any():
            counts = 1.0 if shrinkage is None else shrinkage[rows]
            least = np.full(len(values), self._least) * counts
            size = np.abs(values)
            size *= _column(least, values)
            np.maximum(scratch, size, out=scratch)
            values *= scratch
            scratch += _column(drawn * counts, values)
            values /= scratch
        np.divide(first, scratch, out=scratch)
        scratch *= _column(self._ahead[self._last[rows]], values)
        values -= scratch


def _column(factors: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A factor for each row, of the type of the values."""
    return factors.astype(values.dtype)[:, np.newaxis]
