"""A network as each rank trains it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dask_ma._settings import Settings
from dask_ma.comm import Group, barrier
from dask_ma.data import Shard
from dask_ma.engine import RankContext, Record, Snapshot, State
from dask_ma.exceptions import CheckpointError
from dask_ma.mpca.networks._evaluation import mean_state, score_sums
from dask_ma.mpca.networks._network import Network
from dask_ma.mpca.strategies._base import Strategy, Trainee
from dask_ma.mpca.strategies._making import make_strategy
from dask_ma.mpca.strategies._parameters import (
    MPCA,
    ElasticAveraging,
    Gradients,
    ParameterServer,
)
from dask_ma.mpca.strategies._progress import Decision, FitProgress, RankCounters
from dask_ma.mpca.strategies._schedules import LearningRate
from dask_ma.mpca.training._batches import Sampler, rows_of_batch
from dask_ma.mpca.training._choice import choose_strategy, uneven_note
from dask_ma.mpca.training._columns import filling_rows, find_columns
from dask_ma.mpca.training._features import find_scaling, unscaled_tol
from dask_ma.mpca.training._mixing import mix_rows
from dask_ma.mpca.training._notes import notes_on_start, tell_of_divergence
from dask_ma.mpca.training._params import Baseline, MPCAParams, MPCAResult
from dask_ma.mpca.training._placing import restore_and_place
from dask_ma.mpca.training._prefetch import Prefetcher
from dask_ma.mpca.training._start import build_network, outlook_of
from dask_ma.mpca.training._state import knows_end, part_of, prefixed
from dask_ma.mpca.training._targets import Targets, agree_on_targets, find_baseline
from dask_ma.mpca.training._validation import make_scorer, score_of_rank, shard_of
from dask_ma.supervised import (
    Problem,
    Spread,
    StopRule,
    agree_on_problem,
    hold_out,
    spread_of,
)

_SERVED = (ElasticAveraging, ParameterServer)


def train(context: RankContext, arguments: Any, params: MPCAParams) -> MPCAResult:
    """Train a network on the rows of all ranks.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.
    params : MPCAParams
        Parameters of the fit.

    Returns
    -------
    result : MPCAResult
        The same on every rank, but for the history, which rank 0 keeps.
    """
    kept, params = restore_and_place(context, params)
    problem = agree_on_problem(
        context.group,
        arguments,
        params,
        dtypes=params.spec.dtypes,
        small_targets=params.spec.small_targets,
    )
    if params.validation is None:
        problem, validation = hold_out(context, problem, params)
    else:
        classes = problem.classes if params.has_classes else None
        validation = shard_of(context.group, params.validation, classes, problem.shard)
    problem = mix_rows(context.group, problem, params)
    # What overflows, here or on the way, is found by the check of the loss.
    with np.errstate(over="ignore", invalid="ignore"):
        trainer = Trainer(context, problem, validation, params, kept)
        try:
            while not trainer.is_done:
                trainer.run_step()
            return trainer.finish()
        finally:
            trainer.close()


class Trainer:
    """The fit of a rank; making one is a collective call.

    Parameters
    ----------
    context : RankContext
        This rank.
    problem : Problem
        The rows to train on.
    validation : Shard or None
        Rows to score the model on.
    params : MPCAParams
        Parameters of the fit.
    kept : State or None
        State to go on from.

    Attributes
    ----------
    is_done : bool
        Whether the fit has ended.
    """

    def __init__(
        self,
        context: RankContext,
        problem: Problem,
        validation: Shard | None,
        params: MPCAParams,
        kept: State | None,
    ) -> None:
        self.is_done = False
        self._context = context
        self._problem = problem
        self._validation = validation
        self._params = params
        self._scorer = make_scorer(params.early_stopping)
        group = context.group
        self._targets = self._find_targets()
        variance = None if params.is_classifier else self._targets.variance
        self._scaling, has_values = find_scaling(
            context, problem.shard, params, variance, kept
        )
        self._columns = find_columns(group, problem, params, kept, has_values)
        random_state = np.random.RandomState()
        random_state.set_state(params.random_state.get_state())
        self._filling = filling_rows(problem, params, self._columns)
        self._network = self._build(random_state)
        uneven = problem.uneven or self._targets.uneven
        self._chosen: Settings = Gradients()  # as which steps are counted
        self._chosen = choose_strategy(
            params.strategy, group.size, self._steps_of_epoch(), self._network, uneven
        )
        self._notes = uneven_note(self._chosen, uneven)
        second = group.for_thread() if isinstance(self._chosen, _SERVED) else None
        self._counters = RankCounters(group, second)
        self._sampler = self._make_sampler(random_state)
        self._rate = LearningRate(
            params.learning_rate, params.learning_rate_init, params.power_t
        )
        self._progress = self._make_progress()
        self._spread = self._find_spread()
        self._state = self._progress.state_dict()
        if kept is not None:
            self.load_state_dict(kept)
        self._begin_network()
        self._learning_rate = self._rate.value
        # The models to fall back on, and the one whose score is not known yet.
        joint = self._network.read(0, self._network.n_values)
        self._good = self._best = self._scored = joint
        if kept is not None and np.isfinite(self._progress.best_score):
            self._best = kept.shared["best"]
        self._strategy = self._make_strategy(second, kept)

    def run_step(self) -> None:
        """Make a step, and share what there is to share."""
        counters, sampler = self._counters, self._sampler
        idle = sampler is None or counters.has_diverged
        ends_pass = False
        if sampler is not None and not counters.has_diverged:
            with counters.computing():
                batch = sampler.next()
                loss = self._strategy.step(batch, self._learning_rate)
            counters.note_step(len(batch.y), loss)
            ends_pass = batch.ends_pass
        with counters.exchanging():
            updates = self._strategy.exchange(ends_pass=ends_pass, idle=idle)
        for update in updates:
            self._act_on(update)

    def finish(self) -> MPCAResult:
        """Bring together what the ranks have; a collective call."""
        context, params = self._context, self._params
        joint = self._strategy.collect()
        baseline = find_baseline(params, self._problem, self._targets, self._network)
        if self._end.diverged:
            joint, baseline = self._good, Baseline()  # once is enough to be told
            mine = self._counters.n_steps if self._counters.has_diverged else -1
            tell_of_divergence(context, mine, self._end.epoch)
        elif params.early_stopping:
            joint = self._best
        state = None
        if params.keep_optimizer:
            steps = float(self._counters.n_steps)
            state = mean_state(context.group, self._network.optimizer_state(), steps)
        timeline, curve = context.timeline(), self._state["loss_curve"]
        context.group.flush()
        # Nobody leaves while parts of models are still on their way to it.
        barrier(context.group)
        return MPCAResult(
            self._describe(joint),
            state,
            self._end.converged,
            context.history,
            timeline,
            (*self._notes, *notes_on_start(baseline, curve, is_warm=params.is_warm)),
            baseline,
            self._scaling,
        )

    def close(self) -> None:
        """End what the rank has going on beside its steps."""
        if isinstance(self._sampler, Prefetcher):
            self._sampler.close()
        self._network.end()

    # What updates bring ---------------------------------------------------------------

    def _act_on(self, update: Decision) -> None:
        """Take note of what has become known; may be a collective call."""
        if self.is_done:
            return
        self._learning_rate = update.learning_rate
        if update.state is not None:
            self._tell_of_epochs(update.state)
            self._state = update.state
        if update.scored and update.is_best:
            self._best = self._scored
        if update.is_good:
            self._good = self._strategy.joint().copy()
        if update.stop:
            self.is_done, self._end = True, update
        if update.record is not None:
            # The history adds to it while another thread may still be sending it.
            self._record(update, dict(update.record))
        if self._is_to_keep(update):
            self._keep(update.epoch)
        if update.to_score:
            self._score()

    def _tell_of_epochs(self, state: dict[str, Any]) -> None:
        """Tell the network of the epochs that have ended since the last state."""
        for loss in state["loss_curve"][len(self._state["loss_curve"]) :]:
            self._network.end_epoch(float(loss))

    def _record(self, update: Decision, record: Record) -> None:
        """Note a record; callbacks are asked at the end of an epoch."""
        if not update.epoch_ended:
            self._context.add_record(record)
        elif self._context.record(record, self._describe(self._strategy.joint())):
            self.is_done, self._end = True, update

    def _score(self) -> None:
        """Score the joint model on this rank's validation rows."""
        self._scored = self._strategy.joint().copy()
        if self._validation is None:
            return
        with self._counters.computing("evaluate"):
            sums = self._score_sums(self._validation)
        self._counters.note_score(sums)
        for update in self._strategy.share_score():
            self._act_on(update)

    def _score_sums(self, rows: Shard) -> np.ndarray:
        """Sums from which the score over all ranks follows."""
        params = self._params
        if self._scorer is not None:
            network = self._network
            vector, classes = network.unscaled(self._scored), self._classes()
            columns = self._columns
            return score_of_rank(params, vector, columns, classes, rows, self._scorer)
        return score_sums(
            self._network,
            self._scored,
            rows,
            is_classifier=params.is_classifier,
            spread=self._spread,
            no_code=None if params.n_codes is None else params.no_code,
        )

    def _is_to_keep(self, update: Decision) -> bool:
        """Whether an epoch has ended, with early stopping one whose score is known."""
        if update.diverged:
            return False
        if self._params.early_stopping and not (self.is_done and update.epoch_ended):
            return update.scored and not update.to_score
        return update.epoch_ended

    def _keep(self, epoch: int) -> None:
        """Keep the state after an epoch."""
        state, leave = self.state_dict(), self._strategy.leave
        self._context.save_state(
            epoch, state.shared, state.own, done=self.is_done, leave=leave
        )

    def state_dict(self) -> Snapshot:
        """State after an epoch; at the end a collective call."""
        # At the end it is what the fit returns.
        joint = self._strategy.collect() if self.is_done else self._strategy.joint()
        shared = {
            **self._state,
            "joint": joint.copy(),
            "classes": self._problem.classes,
            "cycles": self._strategy.cycles(),
            "converged": self.is_done and self._end.converged,
            "columns": self._columns.numbers,
            "n_rows": self._problem.all_rows,
        }
        if self._scaling is not None:
            shared |= self._scaling._asdict()
        trajectory = self._strategy.trajectory()
        if trajectory is not None:
            shared["trajectory"] = trajectory.copy()
        if self._params.early_stopping:
            shared["best"] = self._best
        own = prefixed("optimizer", self._network.optimizer_state())
        if self._sampler is not None:
            own |= prefixed("sampler", self._sampler.state_dict())
        return Snapshot(shared, own)

    # How it begins --------------------------------------------------------------------

    def _build(self, random_state: np.random.RandomState) -> Network:
        """The network with its first values."""
        problem, params = self._problem, self._params
        classes = self._classes()
        n_classes = None if classes is None else len(classes)
        if params.vector is not None:
            # As in scikit-learn, no first values are drawn before the shuffles then.
            random_state = deepcopy(random_state)
        return build_network(
            params,
            problem,
            n_classes,
            self._targets.mean,
            self._scaling,
            self._columns,
            random_state,
        )

    def _begin_network(self) -> None:
        """Tell the network how long the fit may be, and what has been before."""
        n_steps = self._steps_of_epoch()
        outlook = outlook_of(self._context, self._params, self._problem, n_steps)
        self._network.begin(outlook, self._state["loss_curve"].tolist())

    def _make_sampler(
        self, random_state: np.random.RandomState
    ) -> Sampler | Prefetcher | None:
        """Batches of this rank; those of rank 0 are scikit-learn's."""
        params, context = self._params, self._context
        if self._problem.shard.n_rows == 0:
            return None
        if context.group.rank != 0:
            random_state = np.random.RandomState(np.random.MT19937(context.seed))
        sampler = Sampler(
            self._problem.shard,
            self._batch_size(),
            random_state if params.shuffle else None,
            self._network.least_rows,
            self._n_batches() if isinstance(self._chosen, Gradients) else None,
        )
        if not params.spec.prefetch:
            return sampler
        return Prefetcher(sampler, self._network.prepare, params.spec.prefetch)

    def _make_progress(self) -> FitProgress:
        """What the rank adds the counts of all ranks to."""
        params = self._params
        by_score = bool(params.early_stopping)
        # scikit-learn ends after one epoch more than the parameter says.
        tol = params.tol if by_score else unscaled_tol(params.tol, self._scaling)
        rule = StopRule(tol, params.n_iter_no_change + 1, maximize=by_score)
        is_free = isinstance(self._chosen, (MPCA, *_SERVED))
        is_known = is_free and params.spec.has_scaling  # a network of ours
        return FitProgress(
            self._problem.total_rows,
            self._context.group.size,
            rule,
            self._rate,
            max_iter=params.max_iter,
            by_score=by_score,
            is_mean=params.is_classifier or self._scorer is not None,
            n_smoothed=params.n_iter_no_change if is_free else 1,
            untrained=self._targets.untrained if is_known else np.inf,
        )

    def load_state_dict(self, state: State) -> None:
        """Take over what :meth:`state_dict` has given, but for what a strategy needs.

        Parameters
        ----------
        state : State
            Its `own` is None where the rank has lost it.

        Raises
        ------
        CheckpointError
            If the state is that of another network.
        """
        shared, own, network = state.shared, state.own, self._network
        joint = shared["joint"]
        if joint.shape != (network.n_values,):
            raise CheckpointError(
                f"the model to go on from has {len(joint)} values, expected "
                f"{network.n_values} for these data"
            )
        network.write(0, joint)
        is_whole = knows_end(state, self._params, self._problem.all_rows)
        self._progress.load_state_dict(shared, is_whole=is_whole)
        self._state = self._progress.state_dict()
        if own is not None:
            network.set_optimizer_state(part_of("optimizer", own))
            if self._sampler is not None and "sampler.orders" in own:
                self._sampler.load_state_dict(part_of("sampler", own))
        if shared["converged"] or self._progress.epoch >= self._params.max_iter:
            self.is_done = True
            self._end = self._progress.last(converged=bool(shared["converged"]))

    def _make_strategy(self, second: Group | None, kept: State | None) -> Strategy:
        """How this rank works with the others."""
        context = self._context
        parts = self._network, self._counters, self._progress
        return make_strategy(
            Trainee(context.group, *parts, context.elapsed),
            self._chosen,
            self._steps_of_epoch(),
            {} if kept is None else kept.shared,
            second,
            context.note,
            self._n_batches() if self._problem.weight > 0 else 0,
            None if kept is None else kept.own is not None,
            # A pull goes through more weights than the rows of a step have use for.
            pulls_at_once=self._batch_size() < self._filling,
            is_sparse=all(issparse(block.X) for block in self._problem.shard.blocks),
        )

    def _steps_of_epoch(self) -> int:
        """Steps of a rank in an epoch, where all are alike."""
        rows = self._batch_size() * self._context.group.size
        return -(-self._problem.total_rows // rows)

    def _n_batches(self) -> int:
        """Batches of this rank's rows where all ranks make their steps together."""
        n_rows = self._problem.shard.n_rows // self._network.least_rows
        return min(self._steps_of_epoch(), max(1, n_rows))

    def _batch_size(self) -> int:
        """Rows of a batch on each rank."""
        n_ranks = self._context.group.size
        together = isinstance(self._chosen, Gradients)
        return rows_of_batch(
            self._params.batch_size,
            n_ranks,
            together=together,
            filling=0.0 if self._params.spec.skips_inputs else self._filling,
            n_rows=self._problem.total_rows,
        )

    def _find_spread(self) -> Spread | None:
        """How far several targets vary that are scored; a collective call then."""
        n_targets = self._params.n_targets
        has_scorer = self._params.is_classifier or self._scorer is not None
        if self._validation is None or has_scorer or n_targets is None:
            return None
        return spread_of(self._context.group, self._validation, n_targets)

    def _find_targets(self) -> Targets:
        """Targets of all ranks, where there are no classes; a collective call then."""
        problem, params = self._problem, self._params
        if params.has_classes or params.n_codes is not None:
            return Targets(np.zeros(0), np.zeros(0), None)
        group, tell = self._context.group, self._context.note
        tell_of = tell if params.is_suited else None
        return agree_on_targets(group, problem.shard, params.n_targets, tell_of)

    def _classes(self) -> np.ndarray | None:
        """Sorted labels; the numbers of its columns where y has several labels."""
        params = self._params
        if params.is_classifier and params.n_targets is not None:
            return np.arange(params.n_codes or params.n_targets)
        return self._problem.classes

    def _describe(self, vector: np.ndarray) -> dict[str, Any]:
        """A model, with what else a fitted estimator has."""
        return {
            "vector": self._network.unscaled(vector),
            "classes": self._classes(),
            "columns": self._columns,
            "n_iter": self._state["epoch"],
            "loss_curve": self._state["loss_curve"],
            "scores": self._state["scores"],
            "best_score": float(self._state["best_score"]),
            "strategy": self._chosen,
        }
