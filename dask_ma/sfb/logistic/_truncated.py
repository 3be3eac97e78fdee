"""Newton's step for many coefficients, by few conjugate gradients."""

from __future__ import annotations

import numpy as np

from dask_ma.kernels import ConjugateGradients

# What is left of a gradient, and how many products are taken at most: where features
# have been made uncorrelated, and where they have something in common, so that rough
# steps are worth more than exact ones.
_LEFT, _MOST = 0.1, 300
_LEFT_ROUGHLY, _MOST_ROUGHLY = 0.8, 50
# Units of features are half their spread: what the second derivative of a loss is
# multiplied by.
_SQUARE = 4.0


def truncated_newton(
    gradient: np.ndarray, l2: np.ndarray, curvature: float | None
) -> ConjugateGradients:
    """What finds about Newton's step (R. Dembo, T. Steihaug, 1983).

    Parameters
    ----------
    gradient : ndarray of shape (n_variables,)
        Of the objective, in units in which the features have the same spread.
    l2 : ndarray of shape (n_variables,)
        Weights of the L2 penalty, which differ by the units.
    curvature : float or None
        Mean second derivative of the losses, which all features share; None where
        second derivatives are about alike already.

    Returns
    -------
    solver : ConjugateGradients
    """
    if curvature is None:
        return ConjugateGradients(gradient, tol=_LEFT, most=_MOST)
    diagonal = _SQUARE * curvature + l2
    diagonal[diagonal == 0] = 1.0
    return ConjugateGradients(
        gradient,
        tol=_LEFT_ROUGHLY,
        most=_MOST_ROUGHLY,
        precondition=lambda vector: vector / diagonal,
    )
