"""Refinement of a fit: whether, and from where."""

from __future__ import annotations

from typing import Any

from dask_ma.butterfly._params import ButterflyParams
from dask_ma.butterfly._progress import Progress
from dask_ma.comm import allreduce
from dask_ma.engine import RankContext
from dask_ma.linear import LinearModel, initial_model
from dask_ma.linear.refine import Outcome, refine
from dask_ma.supervised import Problem


def is_refined(params: ButterflyParams) -> bool:
    """Whether the passes are followed by a refinement."""
    return not unrefined_by(params)


def unrefined_by(params: Any) -> tuple[str, ...]:
    """Parameters because of which no refinement follows the passes; none if one does.

    "auto" leaves alone what does not aim at the optimum of the training objective: a
    number of passes that is asked for, and early stopping. It leaves alone ranks that
    do not mix, too, which are there to compare with.

    Parameters
    ----------
    params : ButterflyParams or estimator
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
        "mixing": params.mixing == "none",
    }
    reasons = [name for name, holds in leaves_alone.items() if holds]
    return ("refine", *reasons) if reasons else ()


def is_in_vain(params: ButterflyParams, now: Progress) -> bool:
    """Whether steps only make the model worse, and something else comes after them."""
    if now.control.takes_back:
        return False
    return is_refined(params) and now.evaluator.n_worse >= params.n_iter_no_change


def finish(
    context: RankContext, problem: Problem, params: ButterflyParams, now: Progress
) -> Outcome:
    """Go on from where the passes have ended; a collective call.

    A refinement that was interrupted goes on from its best model. If the passes have
    only made the model worse, it begins at that from which the fit started.

    Parameters
    ----------
    context : RankContext
        This rank.
    problem : Problem
        What is to be trained.
    params : ButterflyParams
        Parameters of the fit.
    now : Progress
        Where the fit stands; its model becomes the one refined.

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
        now.keep(context, problem, done=done)

    model = now.model
    if now.is_worse and not n_before:
        model = initial_model(problem, params)
    return refine(
        context,
        problem,
        params,
        now.evaluator,
        model,
        now.n_iter,
        float(now.state.t),
        add_up=lambda arrays: allreduce(context.group, list(arrays)),
        keep=keep,
        most_rounds=most_rounds,
    )
