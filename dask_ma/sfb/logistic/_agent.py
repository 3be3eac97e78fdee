"""A logistic regression as each rank fits it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dask_ma.engine import RankContext, fit_rounds
from dask_ma.linear import initial_model, note_on_scales
from dask_ma.sfb.logistic._cost import choose_settings
from dask_ma.sfb.logistic._fit import Fit
from dask_ma.sfb.logistic._params import SFBParams
from dask_ma.sfb.logistic._span import find_span
from dask_ma.supervised import (
    FitResult,
    Problem,
    agree_on_problem,
    hold_out,
    restore_state,
)

_ROUNDING = 1e-6


def train(context: RankContext, arguments: Any, params: SFBParams) -> FitResult | None:
    """Fit a logistic regression to the rows of all ranks.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.
    params : SFBParams
        Parameters of the fit.

    Returns
    -------
    result : FitResult or None
        The same on every rank, but for the history, which rank 0 keeps. Where outputs
        are shared out as asked for, each rank has its own, for :func:`join`; None on
        all but rank 0 if they have been put together for the last steps.
    """
    keeps_parts = params.settings.exchange.content == "outputs"
    state, params = restore_state(context, params, whole=keeps_parts)
    problem = agree_on_problem(context.group, arguments, params)
    problem, validation = hold_out(context, problem, params)
    problem = with_mean_weight(problem)
    span = find_span(context.group, problem, params, state)
    if span is not None:
        if params.coef is not None:
            coef = span.rows_of(initial_model(problem, params).coef)
            params = replace(params, coef=coef)
        problem = span.problem_of(problem)
    params = replace(params, settings=choose_settings(context.group, problem, params))
    fit = Fit(context, problem, validation, params, span)
    ended = fit_rounds(context, fit, state)
    fit.finish(ended.stop)
    has_part = keeps_parts and fit.engine.is_shared
    if validation is not None and span is None:
        model = fit.everywhere()
        note = note_on_scales(context.group, problem, model, params, is_softmax=True)
        if note is not None:
            context.note(note)
    own = fit.model(whole=not has_part, is_last=True)
    told = {"communication": fit.engine.communication, "is_wanted": ended.wanted}
    fitted = {**own, **told}
    result = FitResult(fitted, ended.stop, context.history, context.timeline())
    return result if has_part or not keeps_parts or context.group.rank == 0 else None


def join(results: list[FitResult | None], params: SFBParams) -> FitResult:
    """One result of those of all ranks, from each of which its outputs come straight.

    Parameters
    ----------
    results : list of FitResult or None
        In the order of ranks; emptied of coefficients.
    params : SFBParams
        Parameters of the fit.

    Returns
    -------
    result : FitResult
    """
    first, *others = (result for result in results if result is not None)
    if not others:
        return first
    models = [first.fitted, *(result.fitted for result in others)]
    intercept = np.concatenate([model["intercept"] for model in models])
    n_features, dtype = first.fitted["coef"].shape[1], first.fitted["coef"].dtype
    columns, start = np.empty((n_features, len(intercept)), dtype), 0
    for model in models:
        part = model.pop("coef")  # no part is there longer than need be
        columns[:, start : start + len(part)] = part.T
        start += len(part)
    coef = columns.T
    fitted = {**first.fitted, "coef": coef, "intercept": intercept}
    return first._replace(fitted=fitted)


def with_mean_weight(problem: Problem) -> Problem:
    """The same problem with weights whose mean is 1, where rows were held out."""
    factor = problem.total_rows / problem.total_weight
    if abs(factor - 1) < _ROUNDING:
        return problem
    blocks = [
        block._replace(sample_weight=block.sample_weight * block.X.dtype.type(factor))
        for block in problem.shard.read()
    ]
    return replace(
        problem,
        shard=replace(problem.shard, blocks=blocks),
        weight=problem.weight * factor,
        total_weight=float(problem.total_rows),
    )
