"""Passes of a metric learner, and what is kept of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dask_ma.comm import allreduce, barrier, broadcast
from dask_ma.data import Shard
from dask_ma.engine import Method, Model, RankContext, Record, Snapshot, State, Work
from dask_ma.exceptions import CheckpointError, InsufficientMemoryError
from dask_ma.kernels import Adam, pair_losses
from dask_ma.sfb._best import Best
from dask_ma.sfb._divergence import DivergenceCheck
from dask_ma.sfb._engine import BroadcastEngine
from dask_ma.sfb._start import Start, arrays_of
from dask_ma.sfb.exchange._settings import Exchange
from dask_ma.sfb.metric._cost import Steps, n_entries, row_bytes, steps_of
from dask_ma.sfb.metric._diagonal import DiagonalLabelModel, DiagonalPairModel
from dask_ma.sfb.metric._models import LabelModel, MetricModel, PairModel
from dask_ma.sfb.metric._params import MetricParams
from dask_ma.sfb.metric._plan import (
    LabelSource,
    PlannedPairs,
    count_passes,
    entropy_of,
)
from dask_ma.sfb.metric._start import Sample, first_components, first_step
from dask_ma.sfb.metric._validation import (
    check_validation,
    find_threshold,
    label_score,
    pair_score,
)
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.supervised import StopRule

_ADVICE = "lower {}, or scale the features"
_VANISHED = 1e-2  # of the components at the start
_MOMENTS = ("first_moment", "second_moment")


class PenalisedAdam(Adam):
    """Adam, with the gradient of the penalty "l2" beside that of the losses.

    Its proximal operator would weigh less, or more, than steps in other units.

    Parameters
    ----------
    n_values : int
        Elements of the components.
    alpha : float
        Weight of the penalty.
    """

    def __init__(self, n_values: int, alpha: float) -> None:
        super().__init__(n_values, np.float32)
        self._alpha = alpha

    def step(
        self, values: np.ndarray, gradient: np.ndarray, learning_rate: float
    ) -> None:
        if self._alpha:
            gradient = gradient + gradient.dtype.type(self._alpha) * values
        super().step(values, gradient, learning_rate)


class MetricFit(Method):
    """The fit of a rank.

    Parameters
    ----------
    context : RankContext
        This rank.
    shard : Shard
        Its rows.
    source : LabelSource or PlannedPairs
        Where batches come from.
    params : MetricParams
        Parameters of the fit.
    classes : ndarray or None
        Sorted labels.
    """

    engine: BroadcastEngine

    def __init__(
        self,
        context: RankContext,
        shard: Shard,
        source: LabelSource | PlannedPairs,
        params: MetricParams,
        classes: np.ndarray | None,
    ) -> None:
        super().__init__(context)
        self._shard = shard
        self._source = source
        self._params = params
        self._classes = classes
        is_scored = params.early_stopping
        if is_scored:
            check_validation(source)
        self._rule = StopRule(
            params.tol,
            params.n_iter_no_change,
            maximize=is_scored,
            is_relative=not is_scored,
        )
        names = "alpha or eta0" if params.alpha else "eta0"
        self._watch = DivergenceCheck(_ADVICE.format(names))
        self._best = Best()
        self._objective = np.nan
        self._first_record = 0  # of the rows that there are now

    @property
    def is_complete(self) -> bool:
        return self.n_rounds >= self._max_iter

    def begin(self) -> None:
        params, group = self._params, self.context.group
        self._move_rows()
        found = None
        if group.rank == 0 or not self._source.has_all_rows:
            found = self._first()
        if self._source.has_all_rows:
            found = broadcast(group, found)
        assert found is not None
        components, eta0, centre = found
        if isinstance(self._source, LabelSource):
            self._source.centre = centre
        self._first_size = float(np.linalg.norm(components))
        start = None
        if params.iteration:
            start = Start(components.T, None, params.iteration, params.n_passes)
        self._prepare(components, eta0, start)
        if params.steps is not None and self.engine.optimizer is not None:
            moments = {name: params.steps[name].T for name in _MOMENTS}
            self._set_moments(self.engine.cut_all(moments), params.steps["n_steps"])

    def _move_rows(self) -> None:
        """Let ranks have the rows of their groups, or rank 0 all; a collective call."""
        self._choose_way()
        source = self._source
        if isinstance(source, LabelSource):
            if source.plan.n_groups > 1 and not source.is_gathered:
                source.deal(self.context.group)
            source.stay()

    def _choose_way(self) -> None:
        """Let rank 0 have all rows, if it is quicker by itself; a collective call."""
        params, group = self._params, self.context.group
        exchange = params.settings.exchange
        self._settings = params.settings
        if group.size == 1 or exchange.content != "auto" or exchange._wants_factors:
            return
        sizes = np.array([row_bytes(self._shard), n_entries(self._shard)])
        nbytes, entries = allreduce(group, sizes).tolist()
        steps = self._steps_of(entries)
        n_ranks, n_nodes = group.size, group.layout.n_nodes
        are_quicker_alone = steps.are_quicker_alone(n_ranks, n_nodes, nbytes)
        if nbytes <= params.most_moved and are_quicker_alone:
            self._source.gather(group)
            self._settings = replace(params.settings, is_alone=True)
        elif steps.n_groups > 1 and steps.is_matrix_small:
            content = steps.smaller_content(n_ranks)
            exchange = Exchange(content, wire_dtype=exchange.wire_dtype)
            self._settings = replace(params.settings, exchange=exchange)

    def _steps_of(self, n_entries: float) -> Steps:
        """What is to be done, with rows of so many elements in all."""
        plan = self._source.plan
        per_row = n_entries / max(1, len(plan.places))
        n_features = self._shard.n_features
        return steps_of(
            self._params, len(plan.train), plan.n_groups, per_row, n_features
        )

    def _first(self) -> tuple[np.ndarray, float, np.ndarray | None]:
        """Components and length of steps to start with, and the centre of rows."""
        params, source = self._params, self._source
        with self.log.computing():
            sample = Sample(self.context.group, source, params.n_components)
            n_classes = 0 if self._classes is None else len(self._classes)
            components = self._first_components(sample, n_classes)
            n_groups = source.plan.n_groups
            eta0 = first_step(params, components, sample, n_groups)
            return components, eta0, sample.centre

    def _first_components(self, sample: Sample, n_classes: int) -> np.ndarray:
        """Components to start with, if there is memory for them; a collective call."""
        params, seed = self._params, entropy_of(self.context)
        try:
            return first_components(sample, params, seed, n_classes)
        except MemoryError as error:
            n, d = params.n_components, sample.n_features
            raise InsufficientMemoryError(
                f"there is no memory for n_components={n} outputs of {d} features, "
                f"{8 * n * d / 2**30:.3g} GiB; set n_components to less, or "
                "metric_form='diagonal'"
            ) from error

    def load_state_dict(self, state: State) -> None:
        self._move_rows()
        shared, arrays = state.shared, arrays_of(state, self.context.group)
        if isinstance(self._source, LabelSource):
            self._source.centre = shared.get("centre")
        values, n_outputs = arrays["values"], arrays.get("n_outputs")
        found = n_outputs or values.shape[1], len(values)
        expected = self._params.n_components, self._shard.n_features
        if found != expected:
            raise CheckpointError(
                f"the model to go on from has components of shape {found}, expected "
                f"{expected} for these data"
            )
        eta0, self._first_size, self._objective = (float(x) for x in shared["numbers"])
        start = Start(values, None, shared["iteration"], state.round, n_outputs)
        self._prepare(values.T, eta0, start)
        engine = self.engine
        arrays = engine.cut_all(arrays)
        if engine.optimizer is not None:
            self._set_moments(arrays, shared["n_steps"])
        # What others were worth, before rows were lost, says nothing of those left.
        self._first_record = shared["first_record"]
        if shared["n_places"] == self._n_places:
            self._rule.load_state_dict(shared["rule"])
            self._best.load_state_dict(shared, arrays)
        else:
            self._first_record = len(self.context.history)

    def _set_moments(self, arrays: dict[str, Any], n_steps: Any) -> None:
        """Let the optimiser go on from where another one was."""
        # That of another rank may be making steps by now.
        if not self.engine.matrix.is_owner:
            return
        assert self.engine.optimizer is not None
        moments = {name: np.array(arrays[name]).reshape(-1) for name in _MOMENTS}
        self.engine.optimizer.load_state_dict({**moments, "n_steps": n_steps})

    def state_dict(self) -> Snapshot:
        engine = self.engine
        steps = engine.optimizer_state()
        shape = engine.matrix.values.shape
        moments = {name: steps.pop(name).reshape(shape) for name in _MOMENTS if steps}
        numbers = np.array([self._eta0, self._first_size, self._objective])
        shared = {
            **steps,
            **self._best.state_dict(),
            "numbers": numbers,
            "rule": np.array(self._rule.state_dict()),
            "n_places": self._n_places,
            "first_record": self._first_record,
            "classes": self._classes,
            "centre": getattr(self._source, "centre", None),
        }
        return engine.snapshot(shared, {**moments, **self._best.arrays})

    # What overflows is found, and refused, by the checks.
    @np.errstate(over="ignore", invalid="ignore")
    def round(self) -> Work:
        self.engine.run_pass()
        return Work(self.engine.n_units)

    def measure(self) -> list[np.ndarray]:
        matrix, group = self.engine.matrix, self.context.group
        square = float(np.vdot(matrix.whole(), matrix.whole()))
        mine = np.array([self._model.penalty(matrix), square])
        # All have the whole matrix, or each has a part of it.
        if not self.engine.is_shared:
            mine /= group.size
        return [np.append(self._model.take_seen(), mine)]

    @np.errstate(over="ignore", invalid="ignore")
    def record(self, record: Record, sums: list[np.ndarray]) -> None:
        value = 0.0
        loss, n_units, penalty, square = sums[0].tolist()
        self._size = float(np.sqrt(square))
        self._objective = record["objective"] = loss / n_units + penalty
        if self._params.early_stopping:
            record["validation_score"] = self._score()
            value = -record["validation_score"]
            self._best.update(value, record["objective"], self.engine.freeze)
        is_finite = np.isfinite(self._size)
        self._watch.check(record["objective"] if is_finite else np.inf, self.n_rounds)
        if self._params.alpha and self._size <= _VANISHED * self._first_size:
            raise self._vanished()

    def is_done(self, record: Record) -> bool:
        # Both are the same on all ranks: from sums, and of the same matrix.
        by_score = self._params.early_stopping
        value = record["validation_score" if by_score else "objective"]
        done = np.array(self._rule.update(value) and self._params.tol is not None)
        return bool(allreduce(self.context.group, done.astype(np.int64), "max"))

    def model(self) -> Model:
        components = self.engine.collect()[0].T
        if self._params.is_diagonal:
            components = np.abs(components[0])
        elif self.context.group.rank == 0:  # whose model it is
            components = np.array(components, order="C")
        return {
            "components": components,
            "n_iter": self._params.n_passes + self.n_rounds,
            "n_steps": self.engine.iteration,
            "objective": self._objective,
            "first_record": self._first_record,
            "eta0": self._eta0,
            "communication": self.engine.communication,
            "classes": self._classes,
        }

    def finish(self) -> dict[str, Any]:
        """The model to return, with a threshold if there is one; a collective call."""
        if self._params.early_stopping:
            self._give_best()
        fitted = dict(self.model())
        if self._params.is_partial:
            fitted["steps"] = self._steps()
        if self._params.alpha and not self._objective < self._null_objective():
            raise self._vanished()
        source = self._source
        if isinstance(source, PlannedPairs) and source.n_distances == 1:
            group, project = self.context.group, self._projection(of_model=True)
            fitted["threshold"] = find_threshold(group, source, project)
        return fitted

    def _give_best(self) -> None:
        """Let the matrix be the best one so far; a collective call."""
        # Ranks of a process have it together: none may look at it before all have put
        # the values there, nor put them there while another still looks at others.
        barrier(self.context.group)
        self._best.give(self.engine.matrix)
        barrier(self.context.group)

    def _steps(self) -> dict[str, Any] | None:
        """What steps of another partial fit go on from; a collective call."""
        optimizer = self.engine.optimizer
        if optimizer is None:
            return None
        steps, shape = optimizer.state_dict(), self.engine.matrix.values.shape
        for name in _MOMENTS:
            steps[name] = self.engine.collect_part(steps[name].reshape(shape), name).T
        if self._params.is_diagonal:  # the model has no signs
            signs = np.sign(self.engine.matrix.whole().T)
            steps["first_moment"] = steps["first_moment"] * signs
        return steps

    def _prepare(
        self, components: np.ndarray, eta0: float, start: Start | None
    ) -> None:
        """Make model and engine; a collective call."""
        params, context = self._params, self.context
        self._eta0 = eta0
        self._model = self._make_model(components, eta0)
        make_optimizer = None
        if params.optimizer == "adam":
            make_optimizer = partial(PenalisedAdam, alpha=params.alpha)
        self.engine = BroadcastEngine(
            context,
            self._model,
            self._shard,
            self._settings,
            self.log,
            start,
            self._source,
            make_optimizer=make_optimizer,
        )

    @property
    def _n_places(self) -> int:
        """Rows, or pairs, of all ranks."""
        plan = self._source.plan
        return len(plan.train) + len(plan.validation)

    @property
    def _max_iter(self) -> int:
        """Most passes."""
        params, plan = self._params, self._source.plan
        n_steps = plan.n_steps(params.settings.batch_size)
        return count_passes(params.max_iter, n_steps, plan.n_groups)

    def _make_model(self, components: np.ndarray, eta0: float) -> MetricModel:
        """The model of labels or of pairs."""
        params = self._params
        n_steps = self._source.plan.n_steps(params.settings.batch_size)
        arguments = params, components, eta0, self._max_iter * n_steps
        if params.tuples is not None:
            of_pairs = DiagonalPairModel if params.is_diagonal else PairModel
            return of_pairs(*arguments)
        exchange, source = params.settings.exchange, self._source
        assert isinstance(source, LabelSource)
        # A rank that is ahead of others cannot ask them for their rows.
        is_collective = exchange._is_in_step and source.plan.n_groups == 1
        is_collective = is_collective and not source.is_gathered
        of_labels = DiagonalLabelModel if params.is_diagonal else LabelModel
        return of_labels(*arguments, source.n_classes, is_collective=is_collective)

    def _score(self) -> float:
        """Score of the held-out rows or pairs; a collective call."""
        group, project = self.context.group, self._projection(of_model=True)
        with self.log.computing("evaluate"):
            if isinstance(self._source, LabelSource):
                return label_score(group, self._source, project)
            return pair_score(group, self._source, project)

    def _projection(self, *, of_model: bool = False) -> Callable[[Any], Any]:
        """What makes the learnt distances Euclidean ones; a collective call."""
        matrix = self.engine.whole()
        if of_model and self._settings.exchange._goes_apart:
            # The model is that of rank 0, and others have other matrices.
            values = broadcast(self.context.group, matrix.whole())
            matrix = ParameterMatrix(values.T, None, self._model.prox)
        return partial(self._model.project, matrix)

    def _vanished(self) -> ValueError:
        """The error of a penalty that leaves nothing."""
        return ValueError(
            "the components have shrunk to zero, or are worth no more than zeros, with "
            f"which all distances are equal; lower alpha={self._params.alpha}"
        )

    def _null_objective(self) -> float:
        """Objective of components that are zero."""
        loss, codes = self._params.metric_loss, self._source.plan.train_codes
        shares = np.bincount(codes) / len(codes)
        if loss.name == "nca":
            shares = shares[shares > 0]
            return float(-(shares * np.log(shares)).sum())
        if loss.name == "triplet":
            return loss.margin
        of_other, of_similar = (
            float(pair_losses(np.zeros(1), similar, loss)[0][0])
            for similar in (False, True)
        )
        if isinstance(self._source, LabelSource):
            return of_other + of_similar
        return float(shares @ (of_other, of_similar))
