"""By which method a refinement goes on, and whether there is one."""

from __future__ import annotations

import math
from typing import Any

from dask_ma.kernels import make_loss
from dask_ma.linear._model import RefineParams
from dask_ma.linear.refine._coordinates import Penalty
from dask_ma.linear.refine._few_rows import few_rows_round
from dask_ma.linear.refine._rules import most_weights
from dask_ma.supervised._problem import Problem

# Problems, one for each class, from which a pass of SGD takes more than a round of
# L-BFGS. With fewer classes than that and dense rows of as many columns as Newton's
# method cannot have, L-BFGS has been left with more than its rounds could do.
_MANY_PROBLEMS = 64
# Part of the elements that sparse rows have, at most; their steps of SGD move weights
# of all columns.
_SPARSE = 0.1
# Stored elements of all rows, which are sent to other ranks: 96 MiB.
_MOST_ELEMENTS = 2**23


def is_one_round(params: RefineParams, problem: Problem) -> bool:
    """Whether the first round of a refinement finds the optimum, wherever it begins."""
    return few_rows_round(params, problem) == 0


def is_quick(params: RefineParams, problem: Problem) -> bool:
    """Whether a refinement takes less than passes of SGD, wherever it begins."""
    if is_one_round(params, problem) or choose_method(params, problem) == "newton":
        return True
    # Rounds of L-BFGS are more, but each of them takes less than a pass, whose steps
    # change the weights of all problems, or of all columns.
    n_elements = problem.total_rows * problem.shard.n_features
    is_sparse = problem.total_stored <= _SPARSE * n_elements
    has_many = problem.n_problems >= _MANY_PROBLEMS
    if math.isfinite(make_loss(params.loss, params.epsilon).smoothness):
        return is_sparse or has_many
    # Each class has kinks of its own, and takes rounds of its own. Of many classes each
    # has few rows near its kinks.
    is_easy = has_many or problem.n_problems == 1 or may_have_near_rows(params, problem)
    return is_sparse and is_easy


def may_have_near_rows(params: RefineParams, problem: Problem) -> bool:
    """Whether rows of a fit may be looked at for those near their margins.

    Parameters
    ----------
    params : RefineParams
        Parameters of the fit.
    problem : Problem
        The rows to train on.

    Returns
    -------
    may : bool
    """
    is_known = params.refine == "auto" and params.loss == "hinge"
    penalty = Penalty.of(params.penalty, params.alpha, params.l1_ratio)
    if not is_known or penalty.l1 or not penalty.l2:
        return False
    is_small = problem.total_stored <= _MOST_ELEMENTS
    return is_small and few_rows_round(params, problem) != 0


def choose_method(params: RefineParams, problem: Problem) -> str:
    """Newton's method where its matrices are small, unless L-BFGS is asked for."""
    if params.refine in ("newton", "lbfgs"):
        return str(params.refine)
    if not make_loss(params.loss).has_curvature:
        return "lbfgs"
    n_features = problem.shard.n_features
    is_small = n_features < most_weights(problem.n_problems)
    # With L1 no more columns stay active than there are rows: L-BFGS finds out which,
    # and Newton's method goes on with them.
    is_wide = _has_l1(params) and problem.total_rows < n_features
    return "newton" if is_small and not is_wide else "lbfgs"


def _has_l1(params: RefineParams) -> bool:
    """Whether the penalty has a kink."""
    ratio = {"l1": 1.0, "elasticnet": params.l1_ratio}.get(params.penalty or "", 0.0)
    return ratio > 0 and params.alpha > 0


def unrefined_by(params: Any, **leaves_alone: bool) -> tuple[str, ...]:
    """Parameters because of which no refinement follows; none if one does.

    "auto" leaves alone what does not aim at the optimum of the training objective: a
    number of rounds that is asked for, and early stopping.

    Parameters
    ----------
    params : RefineParams or estimator
        They have the same names.
    **leaves_alone : bool
        Whether it leaves alone what other parameters are set to, by their names.

    Returns
    -------
    names : tuple of str
    """
    if params.refine != "auto":
        return ("refine",) if params.refine is None else ()
    leaves_alone = {
        "tol": params.tol is None,
        "early_stopping": params.early_stopping,
        **leaves_alone,
    }
    reasons = [name for name, holds in leaves_alone.items() if holds]
    return ("refine", *reasons) if reasons else ()
