"""Likelihood of counts whose probabilities are integrated out, and its slopes.

Counts of categories with a Dirichlet prior have the Polya distribution. Its part that
depends on the counts is ``sum_k lgamma(n_k + a_k) - lgamma(a_k)``, less the same of the
sums.
"""

from __future__ import annotations

import numpy as np
from scipy import special


def polya_sum(counts: np.ndarray, prior: np.ndarray) -> float:
    """Sum of ``lgamma(count + prior) - lgamma(prior)`` over all elements.

    Parameters
    ----------
    counts : ndarray of int of any shape
        Not negative.
    prior : ndarray, broadcast to the shape of `counts`
        Above 0.

    Returns
    -------
    total : float
    """
    counts = np.atleast_1d(counts)
    filled = np.nonzero(counts)
    before = np.broadcast_to(prior, counts.shape)[filled].astype(np.float64)
    after = before + counts[filled]
    return float((special.gammaln(after) - special.gammaln(before)).sum())


def polya_slopes(counts: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Sums over rows of ``digamma(count + prior) - digamma(prior)``.

    Parameters
    ----------
    counts : ndarray of int of shape (n, n_categories)
        Not negative.
    prior : ndarray, broadcast to the shape of `counts`
        Above 0.

    Returns
    -------
    slopes : ndarray of float64 of shape (n_categories,)
        The derivatives of :func:`polya_sum` with respect to the priors of the columns.
    """
    rows, columns = np.nonzero(counts)
    prior = np.broadcast_to(prior, counts.shape)[rows, columns].astype(np.float64)
    slopes = special.psi(prior + counts[rows, columns]) - special.psi(prior)
    return np.bincount(columns, slopes, counts.shape[1])
