"""Paths of least squares where columns are few: all models from their products.

A model depends on the rows by the products of the columns alone. Where there are fewer
columns than rows, these are added up once, and rank 0 works out all models of the path
from them: no model takes a pass over the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dask_ma import _config
from dask_ma.comm import broadcast
from dask_ma.layouts._column_design import ColumnDesign
from dask_ma.layouts._design import at_once
from dask_ma.schmp.l1._gram import ScaledGram, WholeGram
from dask_ma.schmp.l1._problem import Objective, Penalty
from dask_ma.schmp.l1._quadratic import Quadratic, certify, descend_path, minimize

# For each model of a path: it would take some passes over the rows otherwise, and a
# product of all columns takes as many passes as there are columns, but quick ones.
_MOST_COLUMNS_EACH = 20
_MOST_BYTES = 32 * 2**20  # of all columns together, where each rank is to get them
# Newton steps find the rest of a model sooner than more of them: paths of 50 to 1,000
# columns take a third to none less than with ten times as many.
_MOST_SWEEPS = 100


class PathModels(NamedTuple):
    """The models of a path.

    Attributes
    ----------
    coef : ndarray of float64 of shape (n_alphas, n_features)
    gaps : ndarray of float64 of shape (n_alphas,)
        Duality gaps.
    asked : ndarray of float64 of shape (n_alphas,)
        The gaps that were asked for.
    """

    coef: np.ndarray
    gaps: np.ndarray
    asked: np.ndarray


def are_few_columns(objective: Objective, penalties: Sequence[Penalty]) -> bool:
    """Whether a path is best made from products, the same on all ranks."""
    n_features, n_models = objective.design.n_features, len(penalties)
    most = min(
        _MOST_COLUMNS_EACH * n_models, _config.get_count("schmp.max-working-set")
    )
    is_small = n_models > 1 and 0 < n_features < objective.n_rows
    if not is_small or n_features > most or objective.null <= 0:
        return False
    # Columns lie with ranks so that none has to hold all of them.
    if isinstance(objective.design, ColumnDesign):
        if 8 * n_features * objective.n_rows > _MOST_BYTES:
            return False
    penalty = penalties[0]
    # Others than the working sets know neither free coefficients nor uneven ridges.
    is_even = bool((penalty.l2 == penalty.l2[0]).all())
    return is_even and bool((penalty.l1 > 0).all())


def fit_path(
    objective: Objective, linear: np.ndarray, penalties: Sequence[Penalty], tol: float
) -> PathModels:
    """Models for falling penalties; a collective call.

    Parameters
    ----------
    objective : Objective
        Loss and data, at the model without coefficients.
    linear : ndarray of float64 of shape (n_features,)
        Negative gradient there.
    penalties : sequence of Penalty
        Multiples of one, the largest first.
    tol : float
        Of the estimator.

    Returns
    -------
    models : PathModels
        The same on every rank.
    """
    design = objective.design
    features = np.arange(design.n_features)
    design.fetch(features)
    objective.learn_means()
    means = objective.means if objective.centers else None
    found = design.cross_on_root(features, features, objective.loss.weight, means)
    models = None
    if found is not None:
        gram = found[0]
        gram = (gram + gram.T) / 2
        models = _solve_path(objective, gram, linear, penalties, tol)
    return PathModels(*broadcast(design.group, models))


def _solve_path(
    objective: Objective,
    gram: np.ndarray,
    linear: np.ndarray,
    penalties: Sequence[Penalty],
    tol: float,
) -> PathModels:
    """The models of a path from the products of all columns."""
    norm, positive = 2 * objective.null, penalties[0].positive
    problems = [
        Quadratic(
            ScaledGram(WholeGram(gram), penalty.l2), linear, penalty.l1, norm, positive
        )
        for penalty in penalties
    ]
    ridges = np.array([penalty.l2[0] for penalty in penalties])
    # scikit-learn means the gap as a part of the squared targets.
    coef = descend_path(gram, problems, ridges, tol / 2, _MOST_SWEEPS)
    gaps, asked = np.zeros((2, len(problems)))
    for number, problem in enumerate(problems):
        value, gap = certify(problem, coef[number])
        target = objective.gap_asked(tol, objective.null + value)
        if gap > target:
            coef[number] = minimize(problem, coef[number], target)
            value, gap = certify(problem, coef[number])
            target = objective.gap_asked(tol, objective.null + value)
        gaps[number], asked[number] = max(gap, 0.0), target
    return PathModels(coef, gaps, asked)


def squared_errors(
    objective: Objective, coef: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    """Sums of squared errors of some rows; a collective call after :func:`fit_path`.

    Parameters
    ----------
    objective : Objective
        Loss and data.
    coef : ndarray of float64 of shape (n_models, n_features)
        Models.
    weight : ndarray of float64 of shape (n_rows,)
        Weights of this rank's rows.

    Returns
    -------
    errors : ndarray of float64 of shape (n_models,)
    """
    design = objective.design
    used = np.flatnonzero(coef.any(axis=0))
    design.fetch(used)
    values = coef[:, used].T
    targets, means = objective.loss.y[:, np.newaxis], objective.means[used] @ values
    errors = np.zeros(len(coef))
    step = at_once(design.n_rows)
    for start in range(0, len(coef), step):
        part = slice(start, start + step)
        residuals = design.dot(used, values[:, part])
        residuals -= means[part] + targets
        errors[part] = weight @ residuals**2
    return design.sum(errors)
