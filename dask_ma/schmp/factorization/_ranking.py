"""Quality of recommendations: the items that users have taken, found or not."""

from __future__ import annotations

import numpy as np
from scipy import sparse


def ranking_scores(
    recommended: np.ndarray, relevant: sparse.csr_array
) -> dict[str, float]:
    """Precision, recall and NDCG, averaged over users.

    Parameters
    ----------
    recommended : ndarray of int of shape (n_users, k)
        Numbers of items, the best first, -1 for none.
    relevant : csr_array of shape (n_users, n_items)
        What each user has taken; the values do not matter. Users without any are left
        out.

    Returns
    -------
    scores : dict
        "precision": part of the `k` places that hold a relevant item. "recall": part
        of the relevant items that have a place. "ndcg": hits, each worth
        ``1 / log2(1 + place)``, over the most that there could be. NaN without users.
    """
    counts = np.diff(relevant.indptr)
    if not counts.any():
        return dict.fromkeys(("precision", "recall", "ndcg"), np.nan)
    n_users, k = recommended.shape
    rows = np.repeat(np.arange(n_users), k)
    columns = recommended.ravel()
    taken = sparse.csr_array(
        (np.ones(len(relevant.indices)), relevant.indices, relevant.indptr),
        shape=relevant.shape,
    )
    hits = np.zeros(len(columns))
    known = columns >= 0
    hits[known] = np.asarray(taken[rows[known], columns[known]]).ravel() > 0
    hits = hits.reshape(n_users, k)[counts > 0]
    counts = counts[counts > 0]
    gains = 1 / np.log2(np.arange(2, k + 2))
    best = np.cumsum(gains)[np.minimum(counts, k) - 1]
    return {
        "precision": float(hits.mean()),
        "recall": float((hits.sum(axis=1) / counts).mean()),
        "ndcg": float((hits @ gains / best).mean()),
    }
