"""Newton's step for many coefficients, by few conjugate gradients."""

from __future__ import annotations

import numpy as np

from dask_ma.kernels import ConjugateGradients

# How many products are taken at most where features have been made uncorrelated; and
# where they have something in common, so that rough steps are worth more than exact
# ones, besides what is left of a gradient.
_MOST, _MOST_AT_FIRST = 300, 60
_LEFT_ROUGHLY, _MOST_ROUGHLY = 0.8, 50
# Units of features are half their spread: what the second derivative of a loss is
# multiplied by.
_SQUARE = 4.0


def truncated_newton(
    gradient: np.ndarray,
    l2: np.ndarray,
    curvature: float | None,
    *,
    left: float,
    is_first: bool = False,
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
    left : float
        What is left of a gradient where second derivatives are about alike.
    is_first : bool, default=False
        Whether it is a step from where passes have led, which may be no good place.

    Returns
    -------
    solver : ConjugateGradients
    """
    if curvature is None:
        most = _MOST_AT_FIRST if is_first else _MOST
        return ConjugateGradients(gradient, tol=left, most=most)
    diagonal = _SQUARE * curvature + l2
    diagonal[diagonal == 0] = 1.0
    return ConjugateGradients(
        gradient,
        tol=_LEFT_ROUGHLY,
        most=_MOST_ROUGHLY,
        precondition=lambda vector: vector / diagonal,
    )
