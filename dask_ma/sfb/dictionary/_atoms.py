"""Atoms of a dictionary: their updates, and what has to hold of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_ma.sfb.dictionary._sums import BatchSums

#: Sums over ranks of numbers of atoms, each of which a rank has some columns of.
AddUp = Callable[[np.ndarray], np.ndarray]

# Atoms whose updates are worked out by one product of matrices.
_BLOCK = 32
# An atom whose squared codes are less than this part of the largest is not in use.
_UNUSED = 1e-6
# Mairal's weights keep for long what the first batches knew; with weights that grow
# about as the fourth power of the rows seen, four passes end 1 % lower.
_FORGETTING = 5.0
_USAGE_MEMORY = 0.05  # weight of the newest batch in the mean usage of atoms
_LEAST_USAGE = 0.01  # of the mean over atoms: a step is not divided by less


class Statistics:
    """The sums over batches from which atoms are updated, the latest weighing most.

    Parameters
    ----------
    codes : ndarray of shape (n_components, n_components)
        Weighted mean of ``c^T c``; in the literature, this is `A`.
    rows : ndarray of shape (n_components, n_features)
        That of ``c^T x``; in the literature, this is `B`.
    n_seen : int
        Rows that have been added.
    """

    def __init__(self, codes: np.ndarray, rows: np.ndarray, n_seen: int) -> None:
        self.codes, self.rows, self.n_seen = codes, rows, n_seen

    @classmethod
    def empty(cls, n_components: int, n_features: int, dtype: np.dtype) -> Statistics:
        """Those of no batch."""
        codes = np.zeros((n_components, n_components), dtype=dtype)
        return cls(codes, np.zeros((n_components, n_features), dtype=dtype), 0)

    def added(self, sums: BatchSums, n_counted: int | None = None) -> Statistics:
        """The statistics with one more batch, of any size.

        Parameters
        ----------
        sums : BatchSums
        n_counted : int, default=None
            Rows that it stands for; None is its own number of them.

        Returns
        -------
        statistics : Statistics
        """
        n_seen = self.n_seen + (sums.n_rows if n_counted is None else n_counted)
        kept = self.codes.dtype.type((self.n_seen / n_seen) ** _FORGETTING)
        share = self.codes.dtype.type((1 - kept) / sums.n_rows)
        return Statistics(
            self.codes * kept + sums.codes * share,
            self.rows * kept + sums.rows * share,
            n_seen,
        )

    @property
    def usage(self) -> np.ndarray:
        """Mean squared code of each atom."""
        return self.codes.diagonal()

    def without(self, atoms: np.ndarray) -> Statistics:
        """The statistics of new atoms in the place of some."""
        codes, rows = self.codes.copy(), self.rows.copy()
        codes[atoms] = 0
        codes[:, atoms] = 0
        rows[atoms] = 0
        return Statistics(codes, rows, self.n_seen)


def unused(usage: np.ndarray) -> np.ndarray:
    """Numbers of the atoms that hardly any row uses; none where there is no code.

    Parameters
    ----------
    usage : ndarray of shape (n_components,)
        Mean squared code of each atom.

    Returns
    -------
    atoms : ndarray of int
    """
    most = usage.max()
    if not most > 0:
        return np.zeros(0, dtype=np.intp)
    return np.flatnonzero(usage <= _UNUSED * most)


def within_ball(
    atoms: np.ndarray, *, positive: bool = False, add_up: AddUp | None = None
) -> np.ndarray:
    """The nearest atoms of a length of 1 at most.

    Parameters
    ----------
    atoms : ndarray of shape (n_components, n_features)
    positive : bool, default=False
        Whether their elements must not be negative.
    add_up : callable, default=None
        Adds up squared lengths where other ranks have the other columns.

    Returns
    -------
    atoms : ndarray of shape (n_components, n_features)
        Others than those given.
    """
    nearest = np.maximum(atoms, 0) if positive else atoms.copy()
    squares = np.einsum("ij,ij->i", nearest, nearest)
    lengths = np.sqrt(squares if add_up is None else add_up(squares))
    nearest /= np.maximum(lengths, 1)[:, None]
    return nearest


def descend_on_atoms(
    atoms: np.ndarray, statistics: Statistics, *, positive: bool = False
) -> np.ndarray:
    """Let each atom once take its best value, the others fixed (Mairal's algorithm 2).

    Parameters
    ----------
    atoms : ndarray of shape (n_components, n_features)
    statistics : Statistics
    positive : bool, default=False
        Whether elements of atoms must not be negative.

    Returns
    -------
    atoms : ndarray of shape (n_components, n_features)
        Of a length of 1 at most. Atoms that are not in use stay as they are.
    """
    A, B = statistics.codes, statistics.rows
    new = atoms.copy()
    is_used = np.ones(len(atoms), dtype=bool)
    is_used[unused(statistics.usage)] = False
    if not statistics.usage.any():
        return new
    for start in range(0, len(atoms), _BLOCK):
        block = slice(start, start + _BLOCK)
        # What is left to do for all atoms of the block, kept up to date below.
        slopes = B[block] - A[block] @ new
        curvatures = np.ascontiguousarray(A[block, block])
        for i in range(len(slopes)):
            if not is_used[start + i]:
                continue
            old = new[start + i]
            atom = slopes[i] / curvatures[i, i]
            atom += old
            if positive:
                np.maximum(atom, 0, out=atom)
            length = np.sqrt(atom @ atom)
            if length > 1:
                atom /= length
            slopes[i + 1 :] -= curvatures[i + 1 :, i, None] * (atom - old)
            new[start + i] = atom
    return new


def step_along_gradient(
    atoms: np.ndarray,
    sums: BatchSums,
    usage: np.ndarray,
    step_size: float,
    *,
    positive: bool = False,
    add_up: AddUp | None = None,
) -> np.ndarray:
    """A proximal gradient step, of a length of its own for each atom.

    Parameters
    ----------
    atoms : ndarray of shape (n_components, n_features)
    sums : BatchSums
        Of the batch that the gradient is of.
    usage : ndarray of shape (n_components,)
        Mean squared code of each atom, which the step is divided by.
    step_size : float
    positive : bool, default=False
        Whether elements of atoms must not be negative.
    add_up : callable, default=None
        As in :func:`within_ball`.

    Returns
    -------
    atoms : ndarray of shape (n_components, n_features)
        Of a length of 1 at most.
    """
    if not usage.any():
        return atoms.copy()
    slopes = sums.rows - sums.codes @ atoms
    rate = step_size / sums.n_rows
    slopes *= (rate / np.maximum(usage, _LEAST_USAGE * usage.mean()))[:, None]
    slopes += atoms
    return within_ball(slopes, positive=positive, add_up=add_up)


def mean_usage(
    usage: np.ndarray, sums: BatchSums, n_seen: int, n_counted: int
) -> np.ndarray:
    """Mean squared codes with those of one more batch.

    Parameters
    ----------
    usage : ndarray of shape (n_components,)
        Those of the batches before.
    sums : BatchSums
    n_seen : int
        Rows of those.
    n_counted : int
        Rows that the batch stands for.

    Returns
    -------
    usage : ndarray of shape (n_components,)
    """
    weight = max(n_counted / (n_seen + n_counted), _USAGE_MEMORY)
    newest = sums.codes.diagonal() / sums.n_rows
    mean: np.ndarray = usage + (newest - usage) * usage.dtype.type(weight)
    return mean
