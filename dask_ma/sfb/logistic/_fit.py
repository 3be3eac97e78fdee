"""Passes of a logistic regression's fit, and steps on the whole objective."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.comm import allreduce, barrier, broadcast
from dask_ma.data import Shard
from dask_ma.engine import Method, Model, RankContext, Record, Snapshot, State, Work
from dask_ma.linear import LinearModel, describe, score_sums
from dask_ma.sfb._best import Best
from dask_ma.sfb._divergence import DivergenceCheck
from dask_ma.sfb._engine import BroadcastEngine
from dask_ma.sfb._start import Start, arrays_of
from dask_ma.sfb.logistic._begin import first_start, start_again
from dask_ma.sfb.logistic._dual_model import DualModel, ElasticDualModel
from dask_ma.sfb.logistic._fitted_model import linear_model
from dask_ma.sfb.logistic._models import has_blocks
from dask_ma.sfb.logistic._objective import Objective
from dask_ma.sfb.logistic._opening import opens_with_steps
from dask_ma.sfb.logistic._outlook import Outlook
from dask_ma.sfb.logistic._params import SFBParams
from dask_ma.sfb.logistic._penalty import Penalty
from dask_ma.sfb.logistic._refine import MOST_VARIABLES, Refinement
from dask_ma.sfb.logistic._room import Room, find_room
from dask_ma.sfb.logistic._separation import separates
from dask_ma.sfb.logistic._softmax_model import (
    GradientModel,
    LogisticModel,
    StepsModel,
)
from dask_ma.sfb.logistic._span import Span
from dask_ma.sfb.logistic._totals import add_up
from dask_ma.supervised import Problem, StopRule, gathered, score

_ADVICE = "lower eta0, or scale the features"
# Passes that are worth waiting for, before steps on the whole objective take over.
_FEW_PASSES, _SOME_PASSES = 10, 40
# The same for dual ascent with an elastic net and more coefficients than have second
# derivatives: its gaps shrink where those of steps on a few gradients hardly do.
_MANY_PASSES = 100
_GROWTH = 1.2  # of coefficients that are not zero, in a pass, once they are known


class Fit(Method):
    """The fit of a rank: passes by an engine, and what comes after them.

    With a span, the problem is that of rows in its coordinates.
    """

    engine: BroadcastEngine

    def __init__(
        self,
        context: RankContext,
        problem: Problem,
        validation: Shard | None,
        params: SFBParams,
        span: Span | None = None,
    ) -> None:
        super().__init__(context)
        self._problem = problem
        self._span = span
        self._validation = validation
        self._params = params
        self._penalty = Penalty.of(params.penalty, params.alpha, params.l1_ratio)
        by_score = validation is not None
        self._rule = StopRule(
            # Without a tolerance, passes that bring nothing still shorten the steps.
            0.0 if params.tol is None else params.tol,
            params.n_iter_no_change,
            maximize=by_score,
            is_relative=not by_score,
        )
        self._watch = DivergenceCheck(_ADVICE)
        self._best = Best()
        self._bound = -np.inf
        self._stage = np.inf  # best objective when the steps were last shortened
        self._n_there = 0.0  # coefficients that are not zero, after a pass
        self._refinement: Refinement | None = None
        self._is_refining = self._is_done = False
        self._is_endless = False  # whether the objective has no minimum
        self._kept: dict[str, Any] = {}  # arrays to go on from

    @property
    def is_complete(self) -> bool:
        return self.n_rounds >= self._params.max_iter

    def begin(self) -> None:
        self._prepare(None)

    def load_state_dict(self, state: State) -> None:
        self._prepare(state)
        shared = state.shared
        is_whole = shared["n_rows"] == self._problem.total_rows  # none have been lost
        self._best.load_state_dict(shared, self.engine.cut_all(self._kept))
        self._kept = {}
        self._bound, self._stage, share, self._n_there = map(float, shared["progress"])
        if isinstance(self._model, GradientModel):
            self._model.share = share
        self._outlook.least = [float(gap) for gap in shared["outlook"]]
        self._is_refining = bool(shared["has_turned"])
        if shared["is_refining"]:
            self._go_back()
            self._unite()
            kept = (state.own or {}) if is_whole else None
            self._refinement = self._make_refinement(kept)
        if is_whole:
            self._rule.load_state_dict(shared["rule"])
        else:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """Forget what was found of rows some of which are lost; a collective call."""
        self._stage, self._outlook.least = np.inf, []
        objective, self._bound = self._evaluate()
        self._best = Best()
        self._best.update(np.inf, objective, self.engine.freeze)

    def state_dict(self) -> Snapshot:
        model = self._model
        share = model.share if isinstance(model, GradientModel) else 1.0
        shared = {
            **self._best.state_dict(),
            "centre": self._totals.centre,
            "rule": np.array(self._rule.state_dict()),
            # JSON has no infinity.
            "progress": np.array([self._bound, self._stage, share, self._n_there]),
            "outlook": np.array(self._outlook.least),
            # The round after the turn makes a plain matrix of what passes have kept.
            "has_turned": self._is_refining,
            "is_refining": self._refinement is not None,
            "n_passes": self.engine.n_passes,
            "n_rows": self._problem.total_rows,
            # Workers may have less memory, or more, where the fit goes on.
            "room": list(self._room),
            "classes": self._problem.classes,
            **({} if self._span is None else self._span.state_dict()),
        }
        own = None
        if self._refinement is not None:
            own = self._refinement.state_dict()
        elif isinstance(model, DualModel) and self.context.keeps_states:
            own = {"dual": model.dual.copy()}  # the next pass changes it in place
        return self.engine.snapshot(shared, self._best.arrays, own)

    # Weights that overflow are found, and refused, by the evaluation.
    @np.errstate(over="ignore", invalid="ignore")
    def round(self) -> Work:
        if self._is_refining:
            self._refine()
        else:
            self._run_stochastic()
        self._found = self._evaluate()
        return Work(self._problem.shard.n_rows)

    @np.errstate(over="ignore", invalid="ignore")
    def measure(self) -> list[np.ndarray]:
        if self._validation is None:
            return []
        return [score_sums(self._validation, self.everywhere(), is_classifier=True)]

    def record(self, record: Record, sums: list[np.ndarray]) -> None:
        objective, bound = self._found
        record["objective"] = objective
        self._bound = max(self._bound, bound)
        if np.isfinite(self._bound):
            record["dual_gap"] = objective - self._bound
        value = objective
        if self._validation is not None:
            record["validation_score"] = score(sums[0], is_classifier=True)
            value = -record["validation_score"]
        self._watch.check(np.inf if np.isnan(objective) else objective, self.n_rounds)
        self._best.update(value, objective, self.engine.freeze)
        # The model that those who follow the fit see is the one it goes on from.
        self._is_done = self._decide(record)

    def is_done(self, record: Record) -> bool:
        """Whether the fit has converged, or cannot go on."""
        return self._is_done

    def model(self, *, whole: bool = True, is_last: bool = False) -> Model:
        fitted = describe(
            self._linear(by_parts=not whole, is_last=is_last),
            self._problem,
            float(1 + self.engine.iteration),
            self.n_rounds,
        )
        if isinstance(self._model, GradientModel):
            fitted["eta0"] = self._model.eta0
        if np.isfinite(self._bound):
            fitted["dual_gap"] = self._best.objective - self._bound
        fitted["objective"] = self._best.objective
        fitted["is_endless"] = self._is_endless
        fitted["has_room"] = self._room.steps
        if self._wants_steps or (self._wants_bound and not self._room.bound):
            fitted["lacks"] = self._room.lacks
        return fitted

    def everywhere(self) -> LinearModel:
        """The model, on all ranks; a collective call."""
        model = self._linear(everywhere=True)
        if self._params.settings.exchange._goes_apart:
            # Others have other matrices, and the model is that of rank 0.
            model = LinearModel(*broadcast(self.context.group, tuple(model)))
        return model

    def finish(self, converged: bool) -> None:
        """Take the best model, and find its bound; a collective call.

        Parameters
        ----------
        converged : bool
            Whether the fit has ended by its own rules.
        """
        if self._params.max_iter == 1 and self._params.tol is None:
            return  # one pass is its own best, as in partial fits
        self._go_back(is_last=True)
        if converged and self._wants_bound and self._room.bound:
            found = self._objective.evaluate(self.engine.whole())
            self._bound = found.bound

    def _prepare(self, state: State | None) -> None:
        """Sums over the rows, and where the fit begins; a collective call."""
        problem, params, context = self._problem, self._params, self.context
        shared = {} if state is None else state.shared
        self._is_refining = self._opens_with_steps(shared)
        with self.log.computing():
            self._add_up(shared)
            self._room = self._find_room(shared.get("room"))
            if self._is_refining and not self._room.steps:
                self._is_refining = False
                self._add_up(shared)
            self._has_opened = self._is_refining and not shared.get("n_passes", 0)
            self._model = self._make_model()
            start = self._start(state)
        shard = problem.shard
        if params.settings.is_alone and not self._has_opened:
            shard = gathered(shard, context.group)
        self.engine = BroadcastEngine(
            context, self._model, shard, params.settings, self.log, start
        )
        self._objective = Objective(
            problem,
            self._penalty,
            fit_intercept=params.fit_intercept,
            totals=self._totals,
            group=context.group,
        )
        n_variables = problem.shard.n_features * problem.n_problems
        is_small = n_variables <= MOST_VARIABLES or self._penalty.l1 > 0
        self._outlook = Outlook(_FEW_PASSES if is_small else _SOME_PASSES)

    def _opens_with_steps(self, shared: dict[str, Any]) -> bool:
        """Whether there are no passes from here on; a collective call."""
        if shared:
            return bool(shared["is_refining"])
        place = self.context.group, self._problem, self._params
        return self._wants_steps and opens_with_steps(*place)

    def _add_up(self, shared: dict[str, Any]) -> None:
        """Find sums over the rows; a collective call."""
        self._totals = add_up(
            self._problem,
            self.context.group,
            is_centred=self._params.centre,
            centre=shared.get("centre"),
            with_class_sums=self._params.solver == "sdca" and not self._is_refining,
        )

    def _find_room(self, kept: Any) -> Room:
        """What there is memory for, or was for steps before; a collective call."""
        problem, params = self._problem, self._params
        if kept is not None and kept[0]:
            return Room(*kept)
        shape = problem.n_problems, problem.shard.n_features
        has = has_blocks(self._penalty, self._totals, shape)
        return find_room(
            self.context.group,
            shape,
            problem.dtype.itemsize,
            shape[0] * shape[1] ** 2 if has else 0,
            is_wanted=self._wants_steps,
            is_required=params.must_refine,
        )

    def _make_model(self) -> LogisticModel:
        """The model of the solver."""
        problem, params, totals = self._problem, self._params, self._totals
        if self._is_refining and (params.solver == "sdca" or self._has_opened):
            return StepsModel(problem, params, totals)
        if params.solver != "sdca":
            return GradientModel(problem, params, totals)
        kind = ElasticDualModel if self._penalty.l1 else DualModel
        return kind(problem, params, totals, self.context.group)

    def _start(self, state: State | None) -> Start | None:
        """Where the fit begins; a collective call."""
        place = self._problem, self._params, self._totals, self._model
        if state is None:
            return first_start(*place, self.context.group)
        self._kept = arrays_of(state, self.context.group)
        return start_again(state, self._kept, self._problem, self._model)

    def _go_back(self, *, is_last: bool = False) -> None:
        """Let the matrix be the best one so far; a collective call."""
        # Ranks of a process have it together: none may look at it before all have put
        # the values there, nor put them there while another still looks at others.
        barrier(self.context.group)
        self._best.give(self.engine.matrix)
        if is_last:
            self._best.forget()  # before any rank makes a model of the matrix
        barrier(self.context.group)

    def _unite(self) -> None:
        """Let all ranks have the whole matrix from here on; a collective call."""
        self.engine.unite()
        self._best.take(self.engine.freeze)

    @property
    def _has_bounds(self) -> bool:
        """Whether each pass finds a lower bound of the objective."""
        if self._validation is not None and self._params.solver != "sdca":
            return False
        is_dual = self._params.solver == "sdca"
        if self._params.settings.exchange._goes_apart and not is_dual:
            return False  # there is no point at which all ranks are
        wanted = self._refines or self._penalty.trace > 0
        wanted = wanted and self._params.tol is not None
        return self._params.solver == "sdca" or (wanted and self._penalty.has_bound)

    @property
    def _refines(self) -> bool:
        """Whether steps on the whole objective are wanted, and fit into memory."""
        return self._params.refine and self._room.steps

    @property
    def _wants_steps(self) -> bool:
        """Whether steps on the whole objective may take over, if there is memory."""
        params = self._params
        is_possible = params.tol is not None and self._validation is None
        is_possible = is_possible and not params.settings.exchange._goes_apart
        return params.refine and is_possible and not self._penalty.trace

    @property
    def _wants_bound(self) -> bool:
        """Whether a fit that has ended has to find a lower bound."""
        is_known = not self._penalty.has_bound or np.isfinite(self._bound)
        is_apart = self._params.settings.exchange._goes_apart
        return not is_known and not is_apart and self._validation is None

    @property
    def _can_refine(self) -> bool:
        """Whether steps on the whole objective may take over."""
        return self._wants_steps and self._room.steps

    def _run_stochastic(self) -> None:
        """Go over the rows with factors."""
        try:
            self.engine.run_pass()
        except (OverflowError, np.linalg.LinAlgError):
            self._watch.check(np.inf, self.n_rounds)  # says what to do about it

    def _make_refinement(self, own: dict[str, Any] | None = None) -> Refinement:
        """Steps from where the matrix is; a collective call."""
        return Refinement(
            self.context,
            self._objective,
            self.engine.matrix,
            self._penalty,
            self._totals,
            self.log,
            self._room,
            own,
        )

    def _refine(self) -> None:
        """Make a step on the whole objective."""
        if self._refinement is None:
            self._go_back()
            self._unite()
            self._refinement = self._make_refinement()
        self._refinement.run_round()

    def _evaluate(self) -> tuple[float, float]:
        """Objective and lower bound of the matrix; a collective call."""
        engine, model, group = self.engine, self._model, self.context.group
        if self._refinement is not None:
            now = self._refinement.now
            return now.objective, now.bound
        if self._has_bounds and not isinstance(model, DualModel):
            with self.log.computing("evaluate"):
                now = self._objective.evaluate(engine.whole())
            return now.objective, now.bound
        bound = -np.inf
        loss = float(allreduce(group, np.array(engine.measure())))
        if isinstance(model, DualModel):
            with self.log.computing("evaluate"):
                bound = model.dual_objective(engine.matrix)
        # Penalties of the ranks differ by rounding.
        found = broadcast(group, (engine.objective(loss), bound))
        return float(found[0]), float(found[1])

    def _decide(self, record: Record) -> bool:
        """Whether the fit is done with the pass of a record; the same on all ranks."""
        tol, objective = self._params.tol, record["objective"]
        if self._validation is not None:
            is_idle = self._rule.update(record["validation_score"])
            return is_idle and tol is not None
        if self._falls_for_ever(objective):
            self._is_endless = True
            return True
        target = 0.0 if tol is None else tol * self._best.objective
        if self._refinement is not None:
            return self._is_refined(target)
        if self._has_bounds:
            gap = self._best.objective - self._bound
            if tol is not None and gap <= target:
                return True
            self._turn(gap, target)
        elif self._can_refine:  # without a bound
            self._turn(np.inf, target)
        if isinstance(self._model, DualModel):
            return False
        settled = self._has_settled(objective)
        # With a bound that is too far away, nothing has converged.
        return settled and tol is not None and not self._has_bounds

    def _falls_for_ever(self, objective: float) -> bool:
        """Whether an objective without a minimum is next to nothing; collective."""
        tol, engine = self._params.tol, self.engine
        if any(self._penalty) or tol is None or not objective <= tol * self._null:
            return False
        # Where outputs stay shared out, nothing is to be put together.
        if self._params.settings.exchange._goes_apart or (
            engine.is_shared and not self._can_refine
        ):
            return False
        return separates(
            self._problem, self._totals, self.context.group, engine.whole()
        )

    def _is_refined(self, target: float) -> bool:
        """Whether the steps on the whole objective are at an end."""
        refinement = self._refinement
        assert refinement is not None
        if refinement.is_stuck:
            return True
        if self._penalty.has_bound:
            return self._best.objective - self._bound <= target
        return refinement.decrease <= target

    def _turn(self, gap: float, target: float) -> None:
        """Leave the rest to steps on the whole objective, if passes are too slow."""
        if not self._can_refine:
            return
        if isinstance(self._model, ElasticDualModel):
            # Ranks that have taken a mean may differ by rounding.
            group, own = self.context.group, 0
            if group.rank == 0:
                own = sum(map(np.count_nonzero, self.engine.matrix.chunks()))
            n_before, self._n_there = self._n_there, broadcast(group, own)
            # At first there are few, and more with each pass.
            has_settled = self._n_there <= _GROWTH * n_before
            is_small = has_settled and self._n_there <= MOST_VARIABLES
            self._outlook.most = _FEW_PASSES if is_small else _MANY_PASSES
        if self._outlook.is_long(gap, target):
            self._is_refining = True

    @property
    def _null(self) -> float:
        """Objective of equal probabilities for all classes, the model of zeros."""
        return float(np.log(max(2, self._problem.n_problems)))

    def _has_settled(self, objective: float) -> bool:
        """Whether the steps, however short, bring no more."""
        model, null = self._model, self._null
        if not self._rule.update(objective):
            return False
        # Worse than the model of zeros, a fit is not done but makes too long steps.
        best = self._best.objective
        if self._params.learning_rate != "adaptive":
            return objective <= null
        gain, self._stage = self._stage - best, best
        self._rule.restart()
        assert isinstance(model, GradientModel)
        model.shorten()
        self._go_back()
        return gain <= (self._params.tol or 0.0) * best and best <= null

    def _linear(self, **wanted: bool) -> LinearModel:
        """The model as all linear estimators have it; a collective call."""
        is_first = self.context.group.rank == 0
        return linear_model(
            self.engine, self._totals, self._span, is_first=is_first, **wanted
        )
