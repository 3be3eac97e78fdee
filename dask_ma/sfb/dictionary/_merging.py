"""Batches that ranks go over by themselves, and what they then agree on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dask_ma.comm import Group, allreduce

# Exchanges of a pass, at least, and most batches from one to the next.
_LEAST_EXCHANGES, _MOST_BATCHES = 4, 16


def batches_apart(
    wanted: int | str, *, n_rows: int, batch_size: int, n_ranks: int
) -> int:
    """Batches of each rank between exchanges.

    Parameters
    ----------
    wanted : int or "auto"
    n_rows : int
        Rows of all ranks.
    batch_size, n_ranks : int

    Returns
    -------
    n_batches : int
        1 where ranks share each batch.
    """
    if n_ranks == 1:
        return 1
    most = n_rows // (n_ranks * batch_size)  # of a pass
    if not isinstance(wanted, str):
        return max(1, min(wanted, most))
    return max(1, min(most // _LEAST_EXCHANGES, _MOST_BATCHES))


class Merged(NamedTuple):
    """Means over ranks, by the rows that they have gone over.

    Attributes
    ----------
    atoms, codes, rows : ndarray
        Atoms and statistics.
    totals : ndarray of shape (n_batches, 2)
        Of the first batch of each rank, the second and so on: rows, and the sum of
        their objectives.
    """

    atoms: np.ndarray
    codes: np.ndarray
    rows: np.ndarray
    totals: np.ndarray


def merge(
    group: Group,
    atoms: np.ndarray,
    statistics: tuple[np.ndarray, np.ndarray],
    totals: np.ndarray,
) -> Merged:
    """What all ranks go on from, the same bits on each; a collective call.

    Statistics are linear in what batches add to them, with weights that do not depend
    on the rank: their mean is that of batches which hold the rows of all ranks.

    Parameters
    ----------
    group : Group
        This rank.
    atoms : ndarray of shape (n_components, n_features)
    statistics : tuple of ndarray
        Of a solver.
    totals : ndarray of shape (n_batches, 2)
        Of the batches since the last exchange: rows of this rank, and the sum of their
        objectives.

    Returns
    -------
    merged : Merged
        Zeros, if there are no rows.
    """
    weight = atoms.dtype.type(totals[:, 0].sum())
    own = [each * weight for each in (atoms, *statistics)]
    *sums, of_all = allreduce(group, [*own, totals])
    share = atoms.dtype.type(1 / max(float(of_all[:, 0].sum()), 1.0))
    means = [each * share for each in sums]
    return Merged(means[0], means[1], means[2], of_all)
