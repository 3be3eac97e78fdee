"""A logistic regression as each rank fits it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dask_ma.comm import allreduce, broadcast
from dask_ma.data import Shard
from dask_ma.engine import RankContext, Record, RoundLog, State
from dask_ma.exceptions import CheckpointError
from dask_ma.linear import (
    FitResult,
    LinearModel,
    Problem,
    StopRule,
    agree_on_problem,
    describe,
    hold_out,
    initial_model,
    score,
    score_sums,
)
from dask_ma.sfb._divergence import Watch
from dask_ma.sfb._dual_model import DualModel
from dask_ma.sfb._engine import BroadcastEngine, Start
from dask_ma.sfb._params import SFBParams
from dask_ma.sfb._softmax_model import GradientModel

_ADVICE = "lower eta0, or scale the features"
_ROUNDING = 1e-6


def train(context: RankContext, arguments: Any, params: SFBParams) -> FitResult:
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
    result : FitResult
        The same on every rank, but for the history, which rank 0 keeps.
    """
    kept = context.restore()
    if kept is not None:
        # Rows that were lost may have been the only ones of their class.
        params = replace(params, classes=kept.shared["classes"])
    problem = agree_on_problem(context.group, arguments, params)
    problem, validation = hold_out(context, problem, params)
    problem = with_mean_weight(problem)
    fit = _Fit(context, problem, validation, params, kept)
    n_iter, stop = 0, False
    if kept is not None:
        n_iter, stop = kept.round, bool(kept.shared["stop"])
    while n_iter < params.max_iter and not stop:
        n_iter += 1
        record, done = fit.run_pass(n_iter)
        wanted = context.record(record, fit.describe(n_iter))
        stop = done or wanted
        is_last = stop or n_iter == params.max_iter
        shared = {**fit.state(), "classes": problem.classes, "stop": stop}
        context.keep(n_iter, shared, fit.own_state(), done=is_last)
    fitted = fit.describe(n_iter)
    fitted["communication"] = fit.engine.communication
    return FitResult(fitted, stop, context.history, context.timeline())


def with_mean_weight(problem: Problem) -> Problem:
    """The same problem with weights whose mean is 1, where rows were held out."""
    factor = problem.total_rows / problem.total_weight
    if abs(factor - 1) < _ROUNDING:
        return problem
    blocks = [
        block._replace(sample_weight=block.sample_weight * block.X.dtype.type(factor))
        for block in problem.shard.blocks
    ]
    return replace(
        problem,
        shard=replace(problem.shard, blocks=blocks),
        weight=problem.weight * factor,
        total_weight=float(problem.total_rows),
    )


class _Fit:
    """The fit of a rank; making one is a collective call."""

    def __init__(
        self,
        context: RankContext,
        problem: Problem,
        validation: Shard | None,
        params: SFBParams,
        kept: State | None,
    ) -> None:
        self._context = context
        self._problem = problem
        self._validation = validation
        self._params = params
        self._log = RoundLog(context)
        with self._log.computing():
            self._model = self._make_model()
            start = self._start(kept)
        self.engine = BroadcastEngine(
            context, self._model, problem.shard, params.settings, self._log, start
        )
        by_score = validation is not None
        self._rule = StopRule(params.tol, params.n_iter_no_change, maximize=by_score)
        self._watch = Watch(_ADVICE)
        self._dual_gap = np.inf
        self._null = self._null_objective()
        if kept is not None:
            self._rule.go_on(kept.shared["rule"])
            self._dual_gap = float(kept.shared["dual_gap"])

    def run_pass(self, n_iter: int) -> tuple[Record, bool]:
        """Make a pass; return its record, and whether the fit has converged."""
        engine, model = self.engine, self._model
        # Weights that overflow are found, and refused, by the evaluation.
        if isinstance(model, DualModel):
            model.begin_pass(engine.matrix)
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                engine.run_pass()
            except (OverflowError, np.linalg.LinAlgError):
                self._watch.check(np.inf, n_iter)  # says what to do about it
            record = self._evaluate(n_iter)
        objective = record["objective"]
        self._watch.check(np.inf if np.isnan(objective) else objective, n_iter)
        done = self._is_done(record)
        return record, bool(broadcast(self._context.group, done))

    def describe(self, n_iter: int) -> dict[str, Any]:
        """The model, with what else a fitted estimator has."""
        fitted = describe(
            self._linear(), self._problem, float(1 + self.engine.iteration), n_iter
        )
        if isinstance(self._model, GradientModel):
            fitted["eta0"] = self._model.eta0
        else:
            fitted["dual_gap"] = self._dual_gap
            fitted["gap_asked"] = (self._params.tol or 0.0) * self._null
        return fitted

    def state(self) -> dict[str, Any]:
        """What is the same on all ranks after a pass."""
        return {
            **self.engine.state(),
            "rule": np.array(self._rule.state()),
            "dual_gap": np.array(self._dual_gap),  # JSON has no infinity
        }

    def own_state(self) -> dict[str, Any] | None:
        """What this rank alone has after a pass."""
        if not isinstance(self._model, DualModel):
            return None
        return {"dual": self._model.dual.copy()}  # the next pass changes it in place

    def _make_model(self) -> GradientModel | DualModel:
        """The model of the solver; a collective call."""
        if self._params.solver == "sdca":
            return DualModel(self._problem, self._params, self._context.group)
        return GradientModel(self._problem, self._params)

    def _start(self, kept: State | None) -> Start | None:
        """Where the fit begins; a collective call."""
        problem, params, model = self._problem, self._params, self._model
        own = None
        if kept is not None:
            shared = kept.shared
            values, intercept = shared["values"], shared["intercept"]
            shape = problem.shard.n_features, problem.n_problems
            if values.shape != shape:
                raise CheckpointError(
                    f"the model to go on from has a matrix of shape {values.shape}, "
                    f"expected {shape} for these data"
                )
            iteration, n_passes = shared["iteration"], kept.round
            own = kept.own
            self._check_rows(own)
        elif params.coef is not None or params.intercept is not None:
            first = initial_model(problem, params)
            values, intercept = first.coef.T, first.intercept
            if not params.fit_intercept:
                intercept = None
            iteration, n_passes = int(params.t) - 1, 0
        else:
            return None
        if isinstance(model, DualModel):
            dual = None if own is None else own["dual"]
            values = model.go_on(values, intercept, dual)
        return Start(values, intercept, iteration, n_passes)

    def _check_rows(self, own: dict[str, Any] | None) -> None:
        """Refuse dual variables of other rows."""
        model = self._model
        if own is None or not isinstance(model, DualModel):
            return
        found, expected = own["dual"].shape, model.dual.shape
        if found != expected:
            raise CheckpointError(
                f"the state to go on from has dual variables of shape {found}, "
                f"expected {expected} for the rows of rank "
                f"{self._context.group.rank}"
            )

    def _evaluate(self, n_iter: int) -> Record:
        """Record of a pass, from sums over all ranks; a collective call."""
        engine, model, problem = self.engine, self._model, self._problem
        loss = engine.measure()
        bound = None
        if isinstance(model, DualModel):
            with self._log.computing("evaluate"):
                bound = model.dual_objective(engine.matrix)
        self._log.note(n_iter, problem.shard.n_rows)
        [counters] = self._log.counters
        parts = [counters, np.array([loss])]
        if self._validation is not None:
            model_now = self._linear()
            parts.append(score_sums(self._validation, model_now, is_classifier=True))
        sums = allreduce(self._context.group, parts)
        [record] = self._log.finish([sums[0]])
        record["objective"] = objective = engine.objective(float(sums[1][0]))
        if bound is not None:
            record["dual_gap"] = self._dual_gap = objective - bound
        if self._validation is not None:
            record["validation_score"] = score(sums[2], is_classifier=True)
        return record

    def _is_done(self, record: Record) -> bool:
        """Whether the fit has converged with the pass of a record."""
        params = self._params
        if self._validation is not None:
            return self._rule.update(record["validation_score"])
        if params.solver == "sdca":
            return params.tol is not None and self._dual_gap <= params.tol * self._null
        # Worse than the model of zeros, a fit is not done but makes too long steps.
        settled = self._rule.update(record["objective"])
        return settled and record["objective"] <= self._null

    def _null_objective(self) -> float:
        """Objective of equal probabilities for all classes, the model of zeros."""
        return float(np.log(max(2, self._problem.n_problems)))

    def _linear(self) -> LinearModel:
        """The model as all linear estimators have it."""
        matrix = self.engine.matrix
        coef = np.array(matrix.whole().T, order="C")
        intercept = matrix.intercept
        if intercept is None:
            intercept = np.zeros(len(coef), dtype=coef.dtype)
        return LinearModel(coef, intercept.copy())
