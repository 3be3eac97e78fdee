"""Refinement of a fit: whether, and from where."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dask_ma.engine import RankContext
from dask_ma.linear import Evaluator, LinearModel, initial_model
from dask_ma.linear.refine import Outcome, refine
from dask_ma.ma._aggregation import aggregate
from dask_ma.ma._paradigm import is_gradient
from dask_ma.ma.sgd._params import FitParams
from dask_ma.ma.sgd._progress import Progress
from dask_ma.supervised import Problem


def is_refined(params: FitParams) -> bool:
    """Whether the rounds are followed by a refinement."""
    return not unrefined_by(params)


def unrefined_by(params: Any) -> tuple[str, ...]:
    """Parameters because of which no refinement follows the rounds; none if one does.

    "auto" leaves alone what does not aim at the optimum of the training objective: a
    number of rounds that is asked for, early stopping, passive-aggressive steps, and
    the perceptron, whose optimum is zero. It leaves alone the baseline, too.

    Parameters
    ----------
    params : FitParams or estimator
        They have the same names.

    Returns
    -------
    names : tuple of str
    """
    if params.refine != "auto":
        return ("refine",) if params.refine is None else ()
    leaves_alone = {
        "tol": params.tol is None,
        "early_stopping": params.early_stopping,
        "paradigm": is_gradient(params.paradigm),
        "learning_rate": params.learning_rate in ("pa1", "pa2"),
        "loss": params.loss == "perceptron",
    }
    reasons = [name for name, holds in leaves_alone.items() if holds]
    return ("refine", *reasons) if reasons else ()


def is_in_vain(params: FitParams, evaluator: Evaluator) -> bool:
    """Whether SGD only makes the model worse, and something else comes after it."""
    return is_refined(params) and evaluator.n_worse >= params.n_iter_no_change


def finish(
    context: RankContext,
    problem: Problem,
    params: FitParams,
    now: Progress,
    model: LinearModel,
    t: float,
) -> Outcome:
    """Go on from where the rounds have ended; a collective call.

    A refinement that was interrupted goes on from its best model. If SGD has only made
    the model worse, it begins at that from which the fit started.

    Parameters
    ----------
    context : RankContext
        This rank.
    problem : Problem
        What is to be trained.
    params : FitParams
        Parameters of the fit.
    now : Progress
        Where the fit stands.
    model : LinearModel
        What the rounds have ended with.
    t : float
        Place in the schedule of the learning rate.

    Returns
    -------
    outcome : Outcome
    """
    n_before = now.n_refined
    most_rounds = params.refine_max_iter - n_before
    if now.converged or most_rounds <= 0:
        # A fit that has been done is asked for once more.
        return Outcome(now.model, now.n_iter, now.converged)

    def keep(best: LinearModel, number: int, done: bool, converged: bool) -> None:
        now.model, now.n_refined, now.converged = best, n_before + number, converged
        now.n_iter += 1
        now.keep(context, problem, done=done)

    if n_before:
        model = now.model
    elif now.evaluator.n_worse:
        model = initial_model(problem, params)
    return refine(
        context,
        problem,
        params,
        now.evaluator,
        model,
        now.n_iter,
        t,
        add_up=partial(_add_up, context, params.paradigm.aggregation),
        keep=keep,
        most_rounds=most_rounds,
    )


def _add_up(
    context: RankContext, aggregation: str, arrays: list[np.ndarray]
) -> list[np.ndarray]:
    return aggregate(context.group, arrays, aggregation)
