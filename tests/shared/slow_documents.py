"""Slow inference for documents of a topic model, one document and word at a time."""

import numpy as np
from scipy import special

PLAIN = 10_000  # a cycle without an end


def infer_document(counts, weights, prior, tol=1e-3, max_iter=100, cycle=3):
    """Gamma, theta and norms of one document, and its number of iterations.

    Every third iteration goes on by what is left of a series of changes; with another
    `cycle`, each so many do.
    """
    gamma, theta = np.ones(len(prior)), np.ones(len(prior))
    change = np.zeros(len(prior))
    for n_iter in range(1, max_iter + 1):
        last, gamma = gamma, prior.astype(np.float64)
        for count, weight in zip(counts, weights, strict=True):
            shares = theta * weight
            gamma = gamma + count * shares / max(shares.sum(), 1e-300)
        before, change = change, gamma - last
        is_done = np.mean(np.abs(change)) < tol
        if not is_done and n_iter in range(4 + cycle, max_iter, cycle):
            multiple = before @ change / max(before @ before, 1e-300)
            factor = min(1 / (1 - multiple), 50) if multiple < 1 else 50
            least = prior + (gamma - prior) / 10
            gamma = np.maximum(last + max(factor, 1) * change, least)
        theta = np.exp(special.psi(gamma))
        if is_done:
            break
    return gamma, theta, np.maximum(weights @ theta, 1e-300), n_iter
