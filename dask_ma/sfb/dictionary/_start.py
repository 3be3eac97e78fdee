"""First atoms of a fit: rows, or singular vectors where rows are a poor start."""

from __future__ import annotations

import numpy as np

from dask_ma.comm import broadcast
from dask_ma.engine import RankContext
from dask_ma.sfb.dictionary._codes import ROUGH, lasso_codes
from dask_ma.sfb.dictionary._params import DictionaryParams
from dask_ma.sfb.dictionary._rows import Rows, first_atoms

# Of so many, singular vectors are found within the time of a few batches.
_MOST_FEATURES = 256
_LEAST_SAMPLE = 256
# Rows have the shape of the data, and mostly lead lower than vectors that are as good.
_MUCH_LESS = 0.5


def start_of(context: RankContext, rows: Rows, params: DictionaryParams) -> np.ndarray:
    """Rows at random or singular vectors of a sample of them; a collective call.

    Weights of rows do not count here. With no more atoms than features and a small
    penalty, codes on atoms at right angles are far shorter than on rows that are alike.

    Parameters
    ----------
    context : RankContext
        This rank.
    rows : Rows
    params : DictionaryParams

    Returns
    -------
    atoms : ndarray of shape (n_components, n_features)
        Of length 1, the same on all ranks.
    """
    n_components, positive = params.n_components, params.positive_dict
    taken = first_atoms(context, rows, n_components, positive=positive)
    n_features = rows.n_features
    n_sample = max(_LEAST_SAMPLE, 2 * n_features)
    is_small = n_components <= n_features <= _MOST_FEATURES
    if positive or not is_small or rows.n_total < n_components:
        return taken
    seed = np.random.SeedSequence(context.seed.entropy, spawn_key=(1,))
    rng = np.random.default_rng(seed)
    n_sample = min(n_sample, rows.n_total)
    numbers = rng.choice(rows.n_total, n_sample, replace=False)
    sample = rows.take(context.group, numbers)
    # Rounding on one rank must not choose otherwise than on another.
    better = None
    if context.group.rank == 0:
        better = _better_of(sample, taken, params)
    chosen: np.ndarray = broadcast(context.group, better)
    return chosen.copy()  # ranks may be threads


def _better_of(
    sample: np.ndarray, taken: np.ndarray, params: DictionaryParams
) -> np.ndarray:
    """The rows that were taken, or singular vectors that are much better."""
    scale = np.abs(sample).max(initial=0)
    if not 0 < scale < np.inf:
        return taken
    vectors = np.linalg.svd(sample / scale, full_matrices=False)[2][: len(taken)]
    of_rows, of_vectors = (
        lasso_codes(
            sample, atoms, params.alpha, ROUGH, positive=params.positive_code
        ).objectives.mean(dtype=np.float64)
        for atoms in (taken, vectors)
    )
    return vectors if of_vectors < _MUCH_LESS * of_rows else taken
