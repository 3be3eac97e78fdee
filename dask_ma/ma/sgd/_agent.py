"""Model averaging as each rank carries it out (Algorithms 2 to 4 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dask_ma.comm import Group, weighted_mean
from dask_ma.data import Shard, join_shard
from dask_ma.engine import (
    Model,
    RankContext,
    Record,
    Snapshot,
    State,
    Work,
    fit_rounds,
)
from dask_ma.exceptions import CheckpointError
from dask_ma.linear import (
    Evaluator,
    LinearModel,
    UsedColumns,
    at_mean,
    describe,
    initial_model,
    may_start_at_mean,
    note_on_scales,
    rounding_of,
    with_targets,
)
from dask_ma.linear.refine import NEAR, Refinable, is_one_round, refine, start_ratio
from dask_ma.ma._paradigm import Gradients, aggregate
from dask_ma.ma.sgd._columns import use_columns
from dask_ma.ma.sgd._paradigms import (
    Due,
    Paradigm,
    RunningMean,
    SendGradient,
    SendModel,
    Start,
)
from dask_ma.ma.sgd._params import FitParams, is_refined
from dask_ma.ma.sgd._solver import LocalSGD
from dask_ma.ma.sgd._steps import Sizes, Steps, balanced_steps, local_epochs, steps_of
from dask_ma.ma.sgd._trial import (
    PATIENCE,
    Shrinking,
    find_steps,
    measure_sample,
    tries_steps,
)
from dask_ma.supervised import (
    FitResult,
    Problem,
    StopRule,
    agree_on_problem,
    hold_out,
    restore_state,
)

_SMALLEST_STEP = 1e-6  # where scikit-learn's adaptive step size ends, too
_SHRINK = 5.0  # and how it gets there


def train(context: RankContext, arguments: Any, params: FitParams) -> FitResult:
    """Train a linear model on the rows of all ranks.

    A round takes all ranks from one common model to the next, as the paradigm has it.
    What the rounds end with is refined if that is asked for, or needed. Where a round
    of that finds the optimum of few rows from any model, or the model of the fit before
    serves these rows as well, there are no others.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.
    params : FitParams
        Parameters of the fit.

    Returns
    -------
    result : FitResult
        The same on every rank, but for the times in the history and the timeline, which
        rank 0 has.
    """
    state, params = restore_state(context, params)
    measure = measure_sample if state is None and tries_steps(params) else None
    # Other steps are those of scikit-learn, which starts from zero.
    has_own_steps = params.is_balanced and params.max_iter > 0
    counts_targets = has_own_steps and may_start_at_mean(params)
    problem = agree_on_problem(
        context.group,
        arguments,
        params,
        one_vs_rest=True,
        # Which rows are held out, the numbers of their blocks decide.
        join_limit=0 if params.early_stopping else params.join_limit,
        measure=with_targets(measure) if counts_targets else measure,
    )
    problem = at_mean(problem, params) if counts_targets else problem
    problem, params, state, columns = use_columns(context.group, problem, params, state)
    problem, validation = hold_out(context, problem, params)
    # What is done once per block costs a look at all coefficients.
    problem = replace(problem, shard=join_shard(problem.shard, params.join_limit))
    ratio = start_ratio(context.group, problem, params) if params.hands_over else NEAR
    if ratio >= 1:
        # Steps from none take less than those that leave such a model.
        intercept = None if params.fit_intercept else params.intercept  # one that stays
        params = replace(params, coef=None, intercept=intercept)
    is_near = ratio < NEAR
    rounds = Rounds(context, problem, validation, params, columns, is_near=is_near)
    refines = is_refined(params)
    ended = fit_rounds(context, rounds, state, goes_on=refines)
    converged, t = ended.stop, rounds.mean_of_t()
    if refines and not ended.wanted:
        add_up, way = None, params.paradigm.aggregation
        if way != "allreduce":
            add_up = partial(_add_up, context.group, way)
        converged = refine(rounds, state, t, add_up)
    numbers, model = columns.numbers, rounds.output
    if note := note_on_scales(context.group, problem, model, params, numbers=numbers):
        context.note(note)
    model = columns.model(model)
    fitted = {**describe(model, problem, t, rounds.n_rounds), **rounds.extra(t)}
    return FitResult(
        fitted, converged, context.history, context.timeline(), notes_on(problem)
    )


class Rounds(Refinable):
    """Rounds from one common model to the next; making one object is collective."""

    params: FitParams

    def __init__(
        self,
        context: RankContext,
        problem: Problem,
        validation: Shard | None,
        params: FitParams,
        columns: UsedColumns,
        *,
        is_near: bool = False,
    ) -> None:
        super().__init__(context, problem, params, initial_model(problem, params))
        self._columns = columns
        self.is_near = is_near
        is_left_out = is_near or is_one_round(params, problem)
        # Its steps would be in vain, and ranks need not load scikit-learn for them.
        self._is_left_out = params.hands_over and is_left_out
        self._mean = RunningMean(params.average, problem.total_rows)
        if params.mean is not None:
            coef, intercept, *counts = params.mean
            self._mean.load_state_dict(coef, intercept, np.array(counts))
        self._output = self._mean.current(self.current)
        self._paradigm = make_paradigm(context, problem, params)
        self._start = Start(0, params.t, context.group.size)
        every = params.paradigm.evaluate_every
        self._evaluator = Evaluator(
            context, problem, validation, params, self.current, self.log, every
        )
        self._patience = self._evaluator.times(params.n_iter_no_change)
        self._rule = StopRule(
            params.least_gain,
            1 if params.hands_over else self._patience,
            maximize=params.early_stopping,
            is_relative=not params.early_stopping,
            rounding=rounding_of(problem, params),
        )
        self._steps = steps_of(params)
        self._shrinking = Shrinking(self._evaluator.times(PATIENCE))
        self._mean_of_t: tuple[int, float] | None = None  # after which round

    @property
    def is_complete(self) -> bool:
        is_over = self._is_left_out or self.n_rounds >= self.params.max_iter
        return self.n_refined > 0 or is_over

    @property
    def output(self) -> LinearModel:
        """The mean of the common models, or the last one; once refined, the best."""
        return self.current if self.n_refined else self._output

    def whole(self, model: LinearModel) -> LinearModel:
        return self._columns.model(model)

    @property
    def is_worse(self) -> bool:
        return self._evaluator.n_worse > 0

    def begin(self) -> None:
        """Find steps by trial, if that is asked for."""
        params = self.params
        if self._is_left_out:
            return
        if tries_steps(params):
            self._set_steps(
                find_steps(self.context, self.problem, params, self.current)
            )
        elif params.is_balanced and params.eta is not None:
            self._set_steps(balanced_steps(params, params.eta, params.t))

    def load_state_dict(self, state: State) -> None:
        shared = state.shared
        if shared["coef"].shape != self.current.coef.shape:
            raise CheckpointError(
                f"the model to go on from has coefficients of shape "
                f"{shared['coef'].shape}, expected {self.current.coef.shape} for these "
                "data"
            )
        self.current = LinearModel(shared["coef"], shared["intercept"])
        self._mean.load_state_dict(
            shared["mean_coef"], shared["mean_intercept"], shared["mean"]
        )
        self._output = self._mean.current(self.current)
        self._evaluator.epochs = shared["epochs"]
        self._evaluator.pending = shared["pending"]
        # What more rows were worth, before some were lost, says nothing of the others.
        if shared["n_rows"] == self.problem.all_rows:
            self._rule.load_state_dict(shared["rule"])
            self._shrinking.load_state_dict(shared["shrinking"])
            self._evaluator.n_worse = shared["n_worse"]
        self.n_refined, self.has_converged = shared["n_refined"], shared["converged"]
        scale, shift, power = map(float, shared["steps"])
        steps = replace(self._steps, scale=scale, shift=shift, power=power)
        if steps != self._steps:
            self._set_steps(steps)
        self._paradigm.due = Due(*map(float, shared["due"]))
        n_runs, since = int(state.round - self.n_refined), shared["start"]
        if int(since[2]) == self._start.n_ranks:
            self._start = Start(int(since[0]), float(since[1]), int(since[2]))
        else:  # all go on from the place of one of those ranks
            self._start = Start(n_runs, shared["t"], self._start.n_ranks)
        # The state of a rank may have been lost, or it has other rows now.
        own = state.own or self._paradigm.state_after(n_runs, self._start)
        self._paradigm.load_state_dict(own)

    def state_dict(self) -> Snapshot:
        mean, steps = self._mean.state_dict(), self._steps
        shared = {
            "coef": self.current.coef,
            "intercept": self.current.intercept,
            "mean_coef": mean["coef"],
            "mean_intercept": mean["intercept"],
            "mean": mean["counts"],
            **self._columns.described(),
            "classes": self.problem.classes,
            "n_rows": self.problem.all_rows,
            "rule": np.array(self._rule.state_dict()),
            "epochs": self._evaluator.epochs,
            "pending": self._evaluator.pending,
            "n_worse": self._evaluator.n_worse,
            "steps": np.array([steps.scale, steps.shift, steps.power]),
            "shrinking": np.array(self._shrinking.state_dict()),
            "n_refined": self.n_refined,
            "converged": self.has_converged,
            "t": self._paradigm.t,
            "start": np.array(self._start),
            "due": np.array(self._paradigm.due),
        }
        # In between, rounds wait for their records.
        is_settled = self._evaluator.epochs == 0.0
        return Snapshot(shared, self._paradigm.state_dict(), is_settled)

    def round(self) -> Work:
        is_last, epochs = self.n_rounds == self.params.max_iter, self._paradigm.epochs
        self.current, n_rows = self._paradigm.round(
            self.current, self.log.computing, is_last=is_last
        )
        self._output = self._mean.update(self.current, epochs)
        return Work(n_rows, self._evaluator.unknown(epochs))

    def measure(self) -> list[np.ndarray] | None:
        if not self._evaluator.is_due(self.n_rounds, self._paradigm.epochs):
            return None
        # The last round is evaluated, and its place in the schedule asked for.
        share = self.problem.weight / self.problem.total_weight
        own = np.array([self._paradigm.t * share])
        return [*self._evaluator.measure(self._output), own]

    def record(self, record: Record, sums: list[np.ndarray]) -> None:
        *sums, mean_of_t = sums
        self._mean_of_t = self.n_rounds, float(mean_of_t[0])
        self._evaluator.complete(record, sums, self._output)

    def is_done(self, record: Record) -> bool:
        """Whether the rounds end; if not, steps may become smaller."""
        params, evaluator = self.params, self._evaluator
        # Where SGD only makes the model worse, something else comes after it.
        in_vain = evaluator.n_worse >= self._patience and is_refined(params)
        stop = evaluator.is_done(record, self._rule) or in_vain
        if params.is_balanced and evaluator.counts:
            value, start = record["objective"], evaluator.start_objective
            if self._shrinking.update(value, start):
                self._set_steps(self._steps.halved(self._place_in_schedule()))
        shrunk = self._steps.scale / _SHRINK
        if stop and params.learning_rate == "adaptive" and shrunk > _SMALLEST_STEP:
            self._set_steps(replace(self._steps, scale=shrunk))
            self._rule.restart()
            return False
        return stop

    def model(self) -> Model:
        model = self.whole(self.output)
        return describe(model, self.problem, self._paradigm.t, self.n_rounds)

    def mean_of_t(self) -> float:
        """Place in the schedule of the learning rate; a collective call."""
        if self._mean_of_t is not None and self._mean_of_t[0] == self.n_rounds:
            return self._mean_of_t[1]
        group, problem = self.context.group, self.problem
        own, total = np.array(self._paradigm.t), problem.total_weight
        return float(weighted_mean(group, own, problem.weight, total=total))

    def extra(self, t: float) -> dict[str, Any]:
        """What a fitted estimator has besides the model."""
        found: dict[str, Any] = {}
        if self.params.average:
            found["mean_of"] = (*self.whole(self.current), *self._mean.counts)
        has_steps = self.params.max_iter > 0 and not self._is_left_out
        if self.params.is_balanced and has_steps:
            found["eta"] = self._steps.at(t)
        return found

    def _set_steps(self, steps: Steps) -> None:
        """Make these steps from now on."""
        self._steps = steps
        self._paradigm.set_steps(steps)

    def _place_in_schedule(self) -> float:
        """Place of a rank with the mean number of rows."""
        epochs = self.n_rounds * self._paradigm.epochs
        n_ranks = self.context.group.size
        return self.params.t + epochs * self.problem.total_rows / n_ranks


def _add_up(
    group: Group, aggregation: str, arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    return aggregate(group, arrays, aggregation)


def notes_on(problem: Problem) -> tuple[str, ...]:
    """What the user is to know of the rows."""
    if problem.uneven is None:
        return ()
    advice = (
        "; models trained on them alone differ so much that their mean needs many more "
        "rounds. shuffle='ranks' deals the rows out, for which nearly all of them move "
        "to another worker once"
    )
    return (problem.uneven + advice,)


def make_paradigm(
    context: RankContext, problem: Problem, params: FitParams
) -> Paradigm:
    """What a round is to be."""
    if isinstance(params.paradigm, Gradients):
        return SendGradient(context, problem, params, params.paradigm)
    size = context.group.size
    solver = LocalSGD(
        problem.shard,
        problem.n_problems,
        params,
        context.seed,
        size,
        problem.positive_weight,
    )
    epochs = local_epochs(
        params.local_epochs, sizes_of(problem, size, params.link_bandwidth)
    )
    return SendModel(context, problem, params, solver, epochs)


def sizes_of(problem: Problem, n_ranks: int, link_bandwidth: float) -> Sizes:
    """Sizes that decide how often to merge."""
    return Sizes(
        n_ranks=n_ranks,
        n_rows=problem.total_rows,
        n_stored=problem.total_stored,
        n_problems=problem.n_problems,
        n_features=problem.shard.n_features,
        link_bandwidth=link_bandwidth,
    )
