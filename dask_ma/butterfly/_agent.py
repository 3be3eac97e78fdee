"""Butterfly mixing as each rank carries it out (Algorithm 2 of the paper)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dask_ma.butterfly._control import StepControl
from dask_ma.butterfly._lazy_steps import run
from dask_ma.butterfly._params import ButterflyParams, is_refined
from dask_ma.butterfly._plan import Plan, prepare, replica_of, resume
from dask_ma.butterfly._rows import EarlyBatches
from dask_ma.butterfly._state import RankState, stack, unstack
from dask_ma.butterfly._used import moments_of, restored, use_columns
from dask_ma.comm import Group, weighted_mean
from dask_ma.data import Shard, is_on_disk
from dask_ma.engine import (
    Model,
    RankContext,
    Record,
    RoundLog,
    Snapshot,
    State,
    Work,
    fit_rounds,
)
from dask_ma.linear import (
    Evaluator,
    LinearModel,
    UsedColumns,
    at_mean,
    describe,
    gain_to_go_on,
    initial_model,
    may_start_at_mean,
    note_on_scales,
    with_targets,
)
from dask_ma.linear.refine import Refinable, is_quick, refine
from dask_ma.supervised import (
    FitResult,
    Piece,
    Problem,
    StopRule,
    agree_on_problem,
    hold_out,
    pass_batches,
    pass_generator,
    restore_state,
)

# Times the objective of the start: near an optimum of almost zero the noise of steps is
# many times that, and steps that diverge multiply it again and again.
_FAR_WORSE = 100.0
# Newton's method may begin after two or three passes, with steps as long as helps far
# from the optimum: calls of partial_fit that go on with them would leave it. In trials
# on five sets, scaled or not, they stayed near it with the number of the step after so
# many passes, and so much of the length, which failed passes have shortened by then.
_SETTLED, _SETTLED_PART = 20, 0.25


def train(context: RankContext, arguments: Any, params: ButterflyParams) -> FitResult:
    """Train a linear model on the rows of all ranks.

    In each step every rank updates its weights by the gradient of a batch of its own
    rows; after some, it averages them with those of a partner. The model is the mean
    over ranks.
    A pass that has made it worse is taken back, and the next one makes shorter steps.
    What the passes end with is refined if that is asked for, or needed.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.
    params : ButterflyParams
        Parameters of the fit.

    Returns
    -------
    result : FitResult
        The same on every rank, but for the history, which rank 0 keeps.
    """
    state, params = restore_state(context, params, replica_of)
    counts_targets = may_start_at_mean(params)
    problem = agree_on_problem(
        context.group,
        arguments,
        params,
        one_vs_rest=True,
        measure=with_targets(None) if counts_targets else None,
    )
    problem = at_mean(problem, params) if counts_targets else problem
    problem, params, columns = use_columns(context.group, problem, params, state)
    problem, validation = hold_out(context, problem, params)
    passes = Passes(context, problem, validation, params, columns)
    refines = is_refined(params)
    ended = fit_rounds(context, passes, state, goes_on=refines)
    converged = ended.stop
    if refines and not ended.wanted:
        converged = refine(passes, state, float(passes.state.t))
    numbers, model = columns.numbers, passes.current
    if note := note_on_scales(context.group, problem, model, params, numbers=numbers):
        context.note(note)
    fitted = passes.model()
    return FitResult(
        fitted, converged, context.history, context.timeline(), passes.notes()
    )


class Passes(Refinable):
    """Passes over the rows of all ranks; making one object is a collective call.

    Attributes
    ----------
    state : RankState
        Where this rank stands.
    """

    params: ButterflyParams
    state: RankState
    _plan: Plan

    def __init__(
        self,
        context: RankContext,
        problem: Problem,
        validation: Shard | None,
        params: ButterflyParams,
        columns: UsedColumns,
    ) -> None:
        super().__init__(context, problem, params, initial_model(problem, params))
        self._columns = columns
        self._evaluator = Evaluator(
            context, problem, validation, params, self.current, self.log
        )
        by_score = params.early_stopping
        hands_over = params.hands_over and is_quick(params, problem)
        self._hands_over = hands_over
        self._rule = StopRule(
            gain_to_go_on(params.tol) if hands_over else params.tol,
            1 if hands_over else params.n_iter_no_change,
            maximize=by_score,
            is_relative=not by_score,
        )
        self._control = StepControl(
            is_adaptive=params.learning_rate == "adaptive",
            takes_back=params.mixing != "none",
        )
        # Of rows on a disk none is read for a pass that may not come.
        is_here = not any(is_on_disk(block.X) for block in problem.shard.blocks)
        waits = context.group.size > 1 and params.mixing != "none"
        self._early = EarlyBatches(params.max_iter, is_early=waits and is_here)
        self._is_worse = False
        self._ends = 0.0, 0.0  # objectives of the start and of the last pass

    @property
    def is_complete(self) -> bool:
        return self.n_refined > 0 or self.state.n_passes >= self.params.max_iter

    @property
    def is_worse(self) -> bool:
        return self._is_worse

    def whole(self, model: LinearModel) -> LinearModel:
        return self._columns.model(model)

    def begin(self) -> None:
        self.state, self._plan = prepare(
            self.context, self.problem, self.params, self.current, self._columns
        )

    def load_state_dict(self, state: State) -> None:
        state = restored(self._columns, state)
        self.state, self._plan = resume(self.context, self.problem, self.params, state)
        shared = state.shared
        self.current = unstack(shared["weights"])
        self._control.load_state_dict(shared["control"])
        # What more rows were worth, before some were lost, says nothing of the others.
        if shared["n_rows"] == self.problem.all_rows:
            self._rule.load_state_dict(shared["rule"])
            self._evaluator.n_worse = shared["n_worse"]
        if shared["n_trained"] != self.problem.total_rows:
            self._control.forget()
        self._is_worse, self.n_refined = shared["is_worse"], shared["n_refined"]
        self.has_converged = shared["converged"]

    def state_dict(self) -> Snapshot:
        state, moments = self.state, self._plan.moments
        described = self._plan.described
        # The last pass has not made what the refinement has found since.
        is_of_pass = state.base is not None and not self.n_refined
        shared = {
            "weights": state.base if is_of_pass else stack(self.current),
            "t": state.t,
            "eta": state.eta,
            "n_passes": state.n_passes,
            "n_averaged": state.n_averaged,
            "n_exchanges": state.n_exchanges,
            "batch_size": state.batch_size,
            "moments": None if moments is None else moments.sums,
            "moments_total": 0.0 if moments is None else moments.total,
            "described": list(described),
            "values": np.array(list(described.values()), dtype=np.float64),
            **self._columns.described(),
            "classes": self.problem.classes,
            "rule": np.array(self._rule.state_dict()),
            "control": np.array(self._control.state_dict()),
            "is_worse": self._is_worse,
            "n_worse": self._evaluator.n_worse,
            "n_rows": self.problem.all_rows,
            "n_trained": self.problem.total_rows,
            "n_refined": self.n_refined,
            "converged": self.has_converged,
            "n_ranks": self.context.group.size,
        }
        # The next steps change the weights in place.
        is_whole = state.is_base or self.n_refined
        own = shared["weights"] if is_whole else state.weights.copy()
        return Snapshot(shared, {"weights": own})

    # Weights that overflow are found by the evaluation, and refused or taken back.
    @np.errstate(over="ignore", invalid="ignore")
    def round(self) -> Work:
        context, problem, params = self.context, self.problem, self.params
        state = make_steps(
            context, problem, params, self.state, self._plan, self.log, self._early
        )
        self._candidate, self.state = merge(context.group, problem, params, state)
        values = self._evaluator.unknown(1.0)
        del values["local_epochs"]  # a pass is always one
        return Work(problem.shard.n_rows, values)

    @np.errstate(over="ignore", invalid="ignore")
    def measure(self) -> list[np.ndarray]:
        self._evaluator.is_due(self.state.n_passes, 1.0)  # after each pass it is
        return self._evaluator.measure(self._candidate)

    @np.errstate(over="ignore", invalid="ignore")
    def record(self, record: Record, sums: list[np.ndarray]) -> None:
        """Complete a record, and keep the model of the pass or not."""
        control, state = self._control, self.state
        may_diverge = control.takes_back
        self._evaluator.complete(record, sums, self._candidate, may_diverge=may_diverge)
        record.update(self._plan.described, eta=state.eta)
        start = self._evaluator.start_objective
        if settle(record, start, control):
            self.current = self._candidate
        else:
            state = state.at(self.current)
        self.state = state._replace(eta=self.params.eta0 * control.factor)
        self._is_worse = record["objective"] > start
        self._ends = start, record["objective"]

    def is_done(self, record: Record) -> bool:
        control, evaluator = self._control, self._evaluator
        if control.may_stop and evaluator.is_done(record, self._rule):
            return True
        # Steps that only make the model worse are in vain if something comes after.
        if control.takes_back or not is_refined(self.params):
            return False
        return evaluator.n_worse >= self.params.n_iter_no_change

    def notes(self) -> tuple[str, ...]:
        """That steps too long have led away from what the call began with."""
        start, end = self._ends
        # No weights at all have at most 1 with any loss of labels.
        least = _FAR_WORSE * start
        least = max(least, 1.0) if self.params.is_classifier else least
        if self.n_refined or end <= least:
            return ()
        return (
            f"the objective has risen from {start:.3g} to {end:.3g}: the steps are too "
            "long for these features; scale them, for example with StandardScaler, "
            f"lower eta0={self.params.eta0:g}, or begin with fit and "
            "learning_rate='adaptive', which finds a length that partial_fit goes on "
            "with",
        )

    def model(self) -> Model:
        t, eta = float(self.state.t), self.state.eta
        settled = 1.0 + _SETTLED * self._plan.n_steps
        if self._hands_over and self.n_refined and t < settled:
            t, eta = settled, eta * _SETTLED_PART
        fitted = describe(self.whole(self.current), self.problem, t, self.n_rounds)
        moments = moments_of(self._columns, self._plan.moments)
        return {**fitted, "eta": eta, "moments": moments}


def make_steps(
    context: RankContext,
    problem: Problem,
    params: ButterflyParams,
    state: RankState,
    plan: Plan,
    log: RoundLog,
    early: EarlyBatches,
) -> RankState:
    """Go over the rows of this rank once; a collective call."""
    n_problems = None if problem.classes is None else problem.n_problems

    def of_pass(n_passes: int) -> Iterator[list[Piece]]:
        return pass_batches(
            problem.shard,
            plan.n_steps,
            pass_generator(context, n_passes) if params.shuffle else None,
            n_problems=n_problems,
            period=plan.rule.period if context.group.size > 1 else None,
        )

    batches = early.of_pass(state.n_passes, of_pass)
    state = run(context.group, state, batches, plan.rule, params.mixing, log.computing)
    return state._replace(n_passes=state.n_passes + 1)


def merge(
    group: Group, problem: Problem, params: ButterflyParams, state: RankState
) -> tuple[LinearModel, RankState]:
    """The model after a pass, and the state of a rank that knows it; collective.

    Mixing keeps the plain mean over ranks, in which each rank's rows already count by
    their number. Where nothing is mixed, the ranks count by the weights of their rows.
    A mean over steps is linear in the weights: its mean over ranks is the same whether
    each rank goes on with its own or all go on with that of all.
    """
    if params.mixing == "none":
        weight, total = problem.weight, problem.total_weight
    else:
        weight, total = 1.0, float(group.size)
    agree = state.mean is None and state.merged is state.weights
    if state.mean is not None:
        values = weighted_mean(group, state.mean, weight, total=total)
        state = state._replace(mean=values)
    elif state.merged is None:
        values = weighted_mean(group, state.weights, weight, total=total)
    else:
        group.raise_if_closed()
        values = state.merged.copy() if agree else state.merged
    base = values if state.mean is None else None
    state = state._replace(merged=None, base=base, is_base=agree)
    # Nothing changes these values in place, which may share memory with the model.
    coef = np.ascontiguousarray(values[:-1].T)
    return LinearModel(coef, values[-1].copy()), state


def settle(record: Record, start: float, control: StepControl) -> bool:
    """Whether the model of a pass is kept; its record tells of the model that is."""
    score = record.get("validation_score", np.nan)
    is_kept = control.update(record["objective"], start, score)
    if not is_kept:
        record["objective"], score = control.kept
        if "validation_score" in record:
            record["validation_score"] = score
    return is_kept
