"""Running a user's model on data of any accepted kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from dask_ma.comm import allreduce, broadcast
from dask_ma.data import Shard, build_shard
from dask_ma.engine import (
    Identity,
    Method,
    Model,
    RankContext,
    Record,
    Snapshot,
    State,
    Work,
    check_counts,
    fit_rounds,
    run_program_job,
)
from dask_ma.sfb._arguments import (
    check_model,
    check_tol,
    describe_run,
    exchange_for,
    n_targets_of,
    tuples_of,
)
from dask_ma.sfb._divergence import DivergenceCheck, check_matrix
from dask_ma.sfb._engine import BroadcastEngine
from dask_ma.sfb._start import Start, arrays_of, matrix_type, rebuilt_sums
from dask_ma.sfb.exchange._settings import Exchange, RunSettings
from dask_ma.sfb.model._model import FactorModel, view_of
from dask_ma.sfb.model._pairs import PairSource, Tuples
from dask_ma.sfb.model._source import RowSource, Source
from dask_ma.supervised import StopRule

_ADVICE = "lower the step size of the model, or scale the features"


class ModelResult(NamedTuple):
    """What a run has found.

    Attributes
    ----------
    matrix : ndarray of shape (n_outputs, n_features)
        The parameter matrix.
    intercept : ndarray of shape (n_outputs,) or None
        Intercepts, if the model has any.
    history : list of dict
        One record for each pass: `round`; `time`, in seconds since the start;
        `iteration`, iterations so far; `objective`, NaN if the model has no loss;
        `dual_gap`, how far that is from the minimum at most, if the model has
        :meth:`FactorModel.dual_loss`; over all ranks the sums `n_samples`,
        `bytes_sent`, `messages_sent` and `bytes_shared`; and the means
        `seconds_computing` and `seconds_waiting`. `restarts` counts how often the
        ranks have had to start again until then.
    converged : bool
        Whether the run ended by `tol`.
    communication : str
        What was sent: "factors", "full_matrix", "server" or "outputs".
    timeline : ndarray or None
        What each rank has done when, see :func:`dask_ma.comm.gather_timeline`.
    """

    matrix: np.ndarray
    intercept: np.ndarray | None
    history: list[Record]
    converged: bool
    communication: str
    timeline: np.ndarray | None


@dataclass(frozen=True)
class RunParams:
    """Parameters of :func:`run` as the ranks get them.

    Parameters
    ----------
    model : bytes
        The model, pickled.
    settings : RunSettings
    n_passes : int
    tol : float or None
    n_targets : int or None
        Columns of the targets; None for a y of one dimension, 0 for none.
    tuples : Tuples or None
        Pairs or triplets of rows to go over, instead of rows.
    """

    model: bytes
    settings: RunSettings
    n_passes: int
    tol: float | None
    n_targets: int | None
    tuples: Tuples | None = None


def run(
    model: FactorModel,
    X: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    pairs: Any = None,
    pair_labels: Any = None,
    n_passes: int,
    batch_size: int = 100,
    communication: str | Exchange = "auto",
    tol: float | None = None,
    shuffle: bool = True,
    dtype: Any = "auto",
    random_state: Any = None,
    n_ranks: int | None = None,
) -> ModelResult:
    """Learn a model by sufficient factor broadcasting on the rows of all workers.

    Rows stay on the workers that hold them. The run uses the current Dask client, and
    threads of this process without one. It goes on after the loss of a worker and from
    checkpoints as fits do, from the end of the last pass; what a model has learnt
    besides the matrix comes back by :meth:`FactorModel.load_state_dict`.

    Parameters
    ----------
    model : FactorModel
        What to learn; pickled, so that the ranks do not share it with the caller.
    X : array-like, sparse, DataFrame, dask.array or dask.dataframe
        Rows, of shape (n_samples, n_features).
    y : array-like or Dask array of shape (n_samples,) or (n_samples, n_targets), \
            default=None
        Targets, as the model wants them; None if it wants none. A single column comes
        to batches as one dimension.
    sample_weight : array-like or Dask column, shape (n_samples,), default=None
        Weights of the rows, not negative, for the model to use; rows of weight 0 are
        left out.
    pairs : array-like of int of shape (n_pairs, 2) or (n_pairs, 3), default=None
        Numbers of rows, from 0, for models of pairs or triplets of rows. A pass then
        goes over them, and not over rows: a batch has the first rows as `X` and the
        others as `others`, the rank of a pair is that of its first row, and ranks fetch
        rows of others that they need once, before the first pass. Without `y` and
        `sample_weight`.
    pair_labels : array-like of shape (n_pairs,), default=None
        What the batches have as `y`.
    n_passes : int
        Most passes over the rows, at least 1.
    batch_size : int, default=100
        Rows, or pairs, of a batch on the rank that has most, at least 1. Ranks with
        fewer have smaller batches, so that all make as many iterations in a pass.
    communication : {"auto", "factors", "full_matrix", "server", "outputs"} or \
            Exchange, default="auto"
        What is sent; an :class:`Exchange` also says to whom, and how late it may come.
    tol : float or None, default=None
        The run ends when two passes in a row have not lowered the objective by more
        than this, from 0 on; the model must have a loss. With a duality gap it ends
        when that is at most this. None makes all passes.
    shuffle : bool, default=True
        Whether each rank goes over its rows in a new order in each pass.
    dtype : {"auto", "float32", "float64"} or None, default="auto"
        Type of the matrix, whatever ``model.initial_matrix`` returns; None takes the
        type of that, in native byte order and of 4 or 8 bytes. With float32 half as
        many bytes are sent, and kept. "auto" is float32, but float64 with a dual
        operator, as rounding hides small gaps.
    random_state : int, RandomState instance or None, default=None
        Seed of the shuffles.
    n_ranks : int, default=None
        Number of ranks. None means one per worker thread, and one without a client.

    Returns
    -------
    result : ModelResult

    Raises
    ------
    TypeError
        If `model` is no :class:`FactorModel`, or its factors are no matrices.
    ValueError
        For a parameter that cannot be, for data that cannot be used, for factors that
        do not fit the matrix, for a matrix or factors that are not finite in its type,
        and for an objective that grows without bound.
    FitFailedError
        If a worker is lost for good, or a wait takes longer than configured.

    Examples
    --------
    Regression with several targets, whose matrix is to have a low rank:

    >>> import numpy as np
    >>> from dask_ma.sfb import FactorModel, prox, run
    >>> class LowRank(FactorModel):
    ...     prox = prox.TraceNorm(0.01)
    ...     def initial_matrix(self, n_features):
    ...         return np.zeros((3, n_features))
    ...     def factors(self, matrix, batch):
    ...         return matrix.product(batch.X) - batch.y, batch.X
    >>> X = np.random.default_rng(0).normal(size=(50, 2))
    >>> y = X @ [[1, 2, 0], [0, 0, 0]]
    >>> result = run(LowRank(), X, y, n_passes=200, batch_size=10, random_state=0)
    >>> result.matrix.round(1) + 0.0
    array([[1., 0.],
           [2., 0.],
           [0., 0.]], dtype=float32)
    """
    check_model(model)
    check_counts(
        n_passes=n_passes,
        batch_size=batch_size,
        n_ranks=1 if n_ranks is None else n_ranks,
    )
    check_tol(tol)
    settings = RunSettings(
        exchange=exchange_for(model, communication),
        batch_size=batch_size,
        shuffle=shuffle,
        dtype=matrix_type(dtype, model),
        has_dtype=True,
    )
    tuples = tuples_of(pairs, pair_labels, X, y, sample_weight)
    targets = 0 if y is None else n_targets_of(y)
    params = RunParams(
        cloudpickle.dumps(model), settings, n_passes, tol, targets, tuples
    )
    result: ModelResult = run_program_job(
        run_model,
        params,
        (X, y, sample_weight),
        identity=Identity(
            type(model).__name__,
            describe_run(model, settings, tuples),
            {"n_passes": int(n_passes), "tol": None if tol is None else float(tol)},
            prolongs="n_passes",
        ),
        n_ranks=n_ranks,
        random_state=random_state,
        is_multi_output=True,
    )
    return result


def run_model(context: RankContext, arguments: Any, params: RunParams) -> ModelResult:
    """Agent: passes, each with its record.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.
    params : RunParams
        Parameters of the run.

    Returns
    -------
    result : ModelResult
        The same on every rank, but for the times in the history and the timeline, which
        rank 0 has.
    """
    keeps_parts = params.settings.exchange.content == "outputs"
    state = context.restore_state(whole=keeps_parts)
    n_targets = params.n_targets
    shard = build_shard(
        arguments, require_labels=n_targets != 0, n_targets=n_targets or None
    )
    shuffle = params.settings.shuffle
    source: Source = RowSource(context, shard, shuffle=shuffle)
    if params.tuples is not None:
        source = PairSource(context, shard, params.tuples, shuffle=shuffle)
        if state is None:  # else rows may have been lost
            source.check_all(context.group)
    passes = Passes(context, shard, params, source)
    ended = fit_rounds(context, passes, state)
    passes.check_matrix()
    values, intercept = passes.engine.collect()
    return ModelResult(
        values.T,  # nobody changes it any more
        intercept,
        context.history,
        ended.stop,
        passes.engine.communication,
        context.timeline(),
    )


class Passes(Method):
    """Passes of a user's model over the rows of all ranks."""

    engine: BroadcastEngine

    def __init__(
        self,
        context: RankContext,
        shard: Shard,
        params: RunParams,
        source: Source,
    ) -> None:
        super().__init__(context)
        self._shard = shard
        self._source = source
        self._params = params
        self._model = cloudpickle.loads(params.model)
        self._rule = StopRule(params.tol, 2, maximize=False)

    @property
    def is_complete(self) -> bool:
        return self.n_rounds >= self._params.n_passes

    def begin(self) -> None:
        self._make_engine(None)

    def load_state_dict(self, state: State) -> None:
        arrays = arrays_of(state, self.context.group)
        place = state.shared["iteration"], state.round, arrays.get("n_outputs")
        self._make_engine(Start(arrays["values"], arrays["intercept"], *place))
        own = (state.own or {}).get("model")
        self._model.load_state_dict(own)
        if view_of(self._model) is not None:
            self._rebuild(is_lost=own is None)
        # An objective of more rows, before some were lost, is none of the others.
        if state.shared["n_rows"] == self.engine.n_rows:
            self._rule.load_state_dict(state.shared["rule"])

    def state_dict(self) -> Snapshot:
        rule = np.array(self._rule.state_dict())
        own = self._model.state_dict()
        kept = None if own is None else {"model": own}
        shared = {"rule": rule, "n_rows": self.engine.n_rows}
        return self.engine.snapshot(shared, own=kept)

    # What overflows is found, and refused, by the checks.
    @np.errstate(over="ignore", invalid="ignore")
    def round(self) -> Work:
        self.engine.run_pass()
        self._loss = self.engine.measure()
        self._dual_loss = self._measure_dual()
        return Work(self.engine.n_units, {"iteration": self.engine.iteration})

    def measure(self) -> list[np.ndarray]:
        return [np.array([self._loss, self._dual_loss])]

    @np.errstate(over="ignore", invalid="ignore")
    def record(self, record: Record, sums: list[np.ndarray]) -> None:
        objective = self.engine.objective(float(sums[0][0]))
        record["objective"] = objective
        if not np.isnan(sums[0][1]):
            record["dual_gap"] = objective - self._dual_objective(float(sums[0][1]))
        if self._params.tol is not None and np.isnan(objective):
            self.check_matrix()
            raise ValueError(
                f"tol={self._params.tol} needs objectives, but "
                f"{type(self._model).__name__}.loss returned NaN; define it, or set "
                "tol=None"
            )
        self._watch.check(objective, self.n_rounds)

    def is_done(self, record: Record) -> bool:
        done = self._rule.update(record["objective"])
        if "dual_gap" in record and self._params.tol is not None:
            done = record["dual_gap"] <= self._params.tol
        # The objective is the same on all ranks but for rounding.
        return bool(broadcast(self.context.group, done))

    def check_matrix(self) -> None:
        """Refuse a matrix that is not finite; a collective call."""
        group, engine = self.context.group, self.engine
        check_matrix(group, engine.matrix, self.n_rounds, _ADVICE + engine.cure)

    def model(self) -> Model:
        return {"matrix": self.engine.collect()[0].T}

    def _measure_dual(self) -> float:
        """This rank's part of the dual objective; NaN if there is none."""
        model = self._model
        if type(model).dual_loss is FactorModel.dual_loss or view_of(model) is None:
            return float("nan")
        n_outputs = self.engine.matrix.shape[0]
        with self.log.computing("evaluate"):
            batches = self._source.read(n_outputs)
            return float(sum(model.dual_loss(batch) for batch in batches))

    def _dual_objective(self, dual_loss: float) -> float:
        """Lower bound of the objective."""
        matrix, n_rows = self.engine.matrix, self.engine.n_rows
        # The matrix is where the conjugate is attained.
        parts = matrix.stored(), matrix.whole()
        product = np.einsum("ij,ij->", *parts, dtype=np.float64)
        return dual_loss / n_rows - float(product) + self._model.penalty(matrix)

    def _rebuild(self, *, is_lost: bool) -> None:
        """Find dual sums again if a rank has lost its part of them; collective."""
        group, matrix = self.context.group, self.engine.matrix
        if not allreduce(group, np.array(int(is_lost))):
            return
        n_features = self._shard.n_features
        values = rebuilt_sums(
            self._model,
            matrix,
            self._source,
            group,
            n_features=n_features,
            is_lost=is_lost,
        )
        matrix.replace(values, None)

    def _make_engine(self, start: Start | None) -> None:
        """Let the model see the rows; a collective call."""
        self.engine = BroadcastEngine(
            self.context,
            self._model,
            self._shard,
            self._params.settings,
            self.log,
            start,
            self._source,
        )
        self._watch = DivergenceCheck(_ADVICE + self.engine.cure)
