"""Orthonormal bases of what a few long vectors span."""

from __future__ import annotations

import numpy as np
from scipy import linalg

# Of the squared lengths along the basis: with more, rounding would show in products of
# its vectors, and it is made anew from itself.
_SPREAD = 1e6
_MOST_PASSES = 4


def orthonormal_basis(vectors: np.ndarray) -> np.ndarray:
    """Orthonormal vectors that span what some others do, but for rounding.

    Products of all pairs, whose eigenvectors are the basis, take a fraction of the time
    of a QR decomposition. Rounding leaves little of directions in which the vectors are
    a millionth as long as in others; so these are made longer, and the products found
    again (T. Fukaya, R. Kannan, Y. Nakatsukasa, Y. Yamamoto, Y. Yanagisawa, "Shifted
    Cholesky QR for computing the QR factorization of ill-conditioned matrices", 2020).

    Parameters
    ----------
    vectors : ndarray of float64, shape (n_dimensions, n_vectors)
        In columns; finite.

    Returns
    -------
    basis : ndarray of float64, shape (n_dimensions, n_basis)
        At least one column, whose products with each other are exact to about 1e-9.
    """
    largest = np.abs(vectors).max(initial=0.0)
    if largest == 0:
        return np.eye(len(vectors), 1)
    basis = vectors / largest
    del vectors  # as large, and often nobody else has them
    for number in range(_MOST_PASSES):
        squares, turn = linalg.eigh(basis.T @ basis, check_finite=False)
        noise = len(squares) * np.finfo(np.float64).eps * squares[-1]
        if number:  # what is there by rounding alone
            squares, turn = squares[squares > noise], turn[:, squares > noise]
        is_even = squares[0] * _SPREAD >= squares[-1]
        added = 0.0 if is_even else noise
        basis = basis @ (turn / np.sqrt(np.maximum(squares, 0.0) + added))
        if is_even:
            break
    return basis
