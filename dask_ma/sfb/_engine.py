"""The loop of a rank: batch, factors, exchange, update, penalty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import allgather, allreduce
from dask_ma.data import Shard
from dask_ma.engine import RankContext, RoundLog
from dask_ma.kernels import Optimizer, product_square
from dask_ma.sfb.exchange._choice import choose_communication
from dask_ma.sfb.exchange._exchange import FactorExchange, scaled
from dask_ma.sfb.exchange._full_matrix import MatrixExchange
from dask_ma.sfb.exchange._outputs import SEPARABLE, OutputShares
from dask_ma.sfb.exchange._packets import Packet
from dask_ma.sfb.exchange._settings import RunSettings
from dask_ma.sfb.exchange._staleness import Staleness
from dask_ma.sfb.model._factors import Factors, checked, stack
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._model import Batch, FactorModel
from dask_ma.sfb.model._source import RowSource, Source


class Start(NamedTuple):
    """Where a run begins.

    Attributes
    ----------
    values : ndarray of shape (n_features, n_outputs)
        The matrix, transposed.
    intercept : ndarray of shape (n_outputs,) or None
    iteration : int
        Iterations made.
    n_passes : int
        Passes made.
    """

    values: np.ndarray
    intercept: np.ndarray | None
    iteration: int
    n_passes: int


class BroadcastEngine:
    """Runs a model on the rows of all ranks; making one is a collective call.

    Parameters
    ----------
    context : RankContext
        This rank.
    model : FactorModel
        What is trained.
    shard : Shard
        The rank's rows.
    settings : RunSettings
        How the ranks train and exchange.
    log : RoundLog
        Where computing is timed.
    start : Start, default=None
        What to go on from; None asks the model.
    source : Source, default=None
        Where batches come from; None takes the rows of the shard.
    optimizer : Optimizer, default=None
        What makes a step of the mean gradient; None takes it off the matrix, times the
        step size. It has to see the gradients of all ranks, so they must be in step.

    Attributes
    ----------
    matrix : ParameterMatrix
        This rank's copy.
    iteration : int
        Iterations made.
    n_passes : int
        Passes made.
    n_steps : int
        Iterations of a pass, the same on all ranks.
    n_units : int
        Rows of this rank that a pass goes over; pairs, where the source has such.
    n_rows : int
        Those of all ranks.
    communication : str
        What is sent: "factors", "full_matrix", "server" or "outputs".
    """

    def __init__(
        self,
        context: RankContext,
        model: FactorModel,
        shard: Shard,
        settings: RunSettings,
        log: RoundLog,
        start: Start | None = None,
        source: Source | None = None,
        *,
        optimizer: Optimizer | None = None,
    ) -> None:
        self._context = context
        self._model = model
        self._shard = shard
        self._settings = settings
        self._log = log
        self._optimizer = optimizer
        group = context.group
        exchange = settings.exchange
        topology = exchange._topology(group.size)
        self._staleness = Staleness.checked(exchange.staleness)
        model.prepare(shard, group)
        self.matrix = self._first_matrix(start)
        self.iteration = 0 if start is None else start.iteration
        self.n_passes = 0 if start is None else start.n_passes
        if source is None:
            source = RowSource(context, shard, shuffle=settings.shuffle)
        self._source = source
        self.n_units = source.n_units
        self.n_steps = source.count_steps(group, settings.batch_size)
        self.n_rows = int(allreduce(group, np.array(source.n_units)))
        self.communication = self._choose(settings)
        self._matrices: MatrixExchange | None = None
        if self.communication == "outputs":
            self._check_shares()
        elif self.communication != "factors":
            self._matrices = MatrixExchange(
                group,
                by_server=self.communication == "server",
                wire_dtype=exchange.wire_dtype,
            )
        self._factors = FactorExchange(
            group,
            topology,
            self._staleness,
            relays=exchange.relay,
            wire_dtype=exchange.wire_dtype,
            tolerance=exchange.compression,
        )
        is_complete = topology.diameter <= 1
        self._agrees = self._staleness.is_synchronous and is_complete
        self._common = model.common_step if self._agrees else None

    def run_pass(self) -> None:
        """Go over the rows of all ranks once; a collective call."""
        self._model.begin_pass(self.matrix)
        batches = self._source.batches(self.n_steps, self.n_passes)
        if self.communication == "outputs":
            self._run_shared(batches)
            self.n_passes += 1
            return
        for step in range(self.n_steps):
            with self._log.computing():
                factors = self._compute(next(batches))
            if self._matrices is None:
                self._exchange_factors(factors)
            else:
                self._exchange_matrices(factors)
            # Where ranks differ, the last penalty comes when they agree again.
            if self._agrees or step < self.n_steps - 1:
                with self._log.computing():
                    self.matrix.penalise(self._model.step_size(self.iteration))
            self.iteration += 1
        self._settle()
        self.n_passes += 1

    def _run_shared(self, batches: Iterator[Batch]) -> None:
        """A pass in which each rank has some of the outputs, and rows of all."""
        model, group = self._model, self._context.group
        shares = OutputShares(group, self.matrix, model.prox)
        part = shares.part
        if self.n_steps:
            shares.send(next(batches))
        for step in range(self.n_steps):
            batch = shares.take()
            if step < self.n_steps - 1:
                shares.send(next(batches))
            with self._log.computing():
                v = model.share_rows(batch)
                values = part.product(v)
                sums = model.share_sums(values)
            everybody = allgather(group, sums) if sums.shape[1] else [sums]
            with self._log.computing():
                u = model.share_slopes(values, everybody, batch, shares.outputs)
                where = f"{type(model).__name__}, on rank {group.rank}"
                factors = checked((u, v), batch.n_rows, part.shape, where)
                scale = self._scale(self.iteration)
                part.subtract(factors, scale, model.intercept_scale)
                part.penalise(model.step_size(self.iteration))
            self.iteration += 1
        shares.gather(self.matrix)
        model.updated(self.matrix, None, 0.0)

    def _check_shares(self) -> None:
        """Refuse models whose outputs cannot be shared out."""
        model = self._model
        if not self._can_share:
            raise ValueError(
                f"content='outputs' needs a model that shares outputs, at least one "
                f"for each rank, and a penalty of single elements, but "
                f"{type(model).__name__} has {self.matrix.shape[0]} outputs and "
                f"{model.prox!r}; use another content"
            )

    @property
    def _can_share(self) -> bool:
        """Whether each rank can have some outputs of its own."""
        model, n_outputs = self._model, self.matrix.shape[0]
        is_separable = model.shares_outputs and isinstance(model.prox, SEPARABLE)
        has_own_steps = self._optimizer is not None or model.common_step is not None
        is_enough = n_outputs >= self._context.group.size
        return is_separable and is_enough and not has_own_steps

    def _exchange_factors(self, factors: Factors) -> None:
        """Send the factors of an iteration, and apply those that there are."""
        gain = self._common.gain if self._common else 0.0
        packets = self._factors.exchange(factors, self.iteration, gain)
        with self._log.computing():
            self._apply(packets)

    def _exchange_matrices(self, factors: Factors) -> None:
        """Add up the updates of an iteration, and apply the sum."""
        assert self._matrices is not None
        group, common = self._context.group, self._common
        total = self._matrices.total(factors, self.matrix)
        gains = allreduce(group, np.array(common.gain)) if common else 0.0
        with self._log.computing():
            if self._optimizer is not None:
                self._descend(total)
                return
            scale = self._scale(self.iteration)
            if common:
                square = float(np.vdot(total[:-1], total[:-1]))
                scale *= common.agree(float(gains), square, total[-1])
            self.matrix.subtract_matrix(total, scale, self._model.intercept_scale)
            self._model.updated(self.matrix, None, scale)

    def measure(self) -> float:
        """Sum of the losses of this rank's rows."""
        matrix, model = self.matrix, self._model
        total = 0.0
        with self._log.computing("evaluate"):
            for batch in self._source.read(matrix.shape[0]):
                total += float(model.loss(matrix, batch))
        return total

    def objective(self, loss: float) -> float:
        """Objective, from the sum of the losses of all ranks."""
        return loss / self.n_rows + self._model.penalty(self.matrix)

    def state_dict(self) -> dict[str, Any]:
        """What a run needs to go on from here; the same on all ranks."""
        intercept = self.matrix.intercept
        return {
            "values": self.matrix.whole().copy(),
            # Both go on changing in place.
            "intercept": None if intercept is None else intercept.copy(),
            "iteration": self.iteration,
        }

    def _first_matrix(self, start: Start | None) -> ParameterMatrix:
        """The matrix to start from, checked."""
        model = self._model
        if start is not None:
            return ParameterMatrix(start.values.T, start.intercept, model.prox)
        matrix = np.asarray(model.initial_matrix(self._shard.n_features))
        name = type(model).__name__
        if matrix.ndim != 2 or not matrix.size:
            raise ValueError(
                f"{name}.initial_matrix returned shape {matrix.shape}, expected two "
                "dimensions, of which none is 0"
            )
        if not np.issubdtype(matrix.dtype, np.floating):
            matrix = matrix.astype(np.float64)
        if not np.isfinite(matrix).all():
            raise ValueError(f"{name}.initial_matrix returned elements not finite")
        intercept = None
        if model.fit_intercept:
            intercept = np.zeros(len(matrix), dtype=matrix.dtype)
        return ParameterMatrix(matrix, intercept, model.prox)

    def _choose(self, settings: RunSettings) -> str:
        """What is sent; a collective call."""
        exchange = settings.exchange
        if exchange.content != "auto":
            return exchange.content
        if exchange._wants_factors or self._context.group.size == 1:
            return "factors"
        return choose_communication(
            self._context.group,
            self._shard,
            self.matrix,
            settings,
            self._model.prox if self._can_share else None,
        )

    def _compute(self, batch: Batch) -> Factors:
        """Factors of a batch, checked."""
        n_outputs, n_features = self.matrix.shape
        if not (batch.n_rows or self._model.is_collective):
            empty = np.zeros((0, n_outputs), dtype=self.matrix.dtype)
            return Factors(empty, np.zeros((0, n_features), dtype=self.matrix.dtype))
        model, rank = self._model, self._context.group.rank
        factors = model.factors(self.matrix, batch)
        where = f"{type(model).__name__}.factors, on rank {rank} in iteration "
        where += str(self.iteration)
        return checked(factors, batch.n_rows, self.matrix.shape, where)

    def _apply(self, packets: list[Packet]) -> None:
        """Rebuild the updates of some packets and take them off the matrix."""
        if not packets:
            return
        if self._optimizer is not None:
            factors = stack([packet.opened() for packet in packets])
            self._descend(MatrixExchange.product(factors, self.matrix))
            return
        parts, scale = scaled(packets, self._scale)
        factors = stack(parts)
        if self._common:
            gain = sum(packet.gain for packet in packets)
            square = product_square(*factors)
            scale *= self._common.agree(gain, square, factors.u.sum(axis=0))
        self.matrix.subtract(factors, scale, self._model.intercept_scale)
        self._model.updated(self.matrix, factors, scale)

    def _descend(self, total: np.ndarray) -> None:
        """Let the optimiser make a step of the sum of the updates of an iteration."""
        assert self._optimizer is not None
        mean, total = total.dtype.type(self.n_steps / self.n_rows), total[:-1]
        # What others have sent may be theirs.
        out = total if total.flags.writeable else None
        total = np.multiply(total, mean, out=out)
        step = self._model.step_size(self.iteration)
        self.matrix.descend(self._optimizer, total, step)
        self._model.updated(self.matrix, None, step)

    def _scale(self, iteration: int) -> float:
        """What the products of factors are multiplied by."""
        scale = self._model.step_size(iteration) * self._factors.gain
        return scale * self.n_steps / self.n_rows if self._model.averages else scale

    def _settle(self) -> None:
        """Let all ranks have the same matrix; a collective call."""
        if self._agrees:
            return
        packets = self._factors.finish()
        with self._log.computing():
            self._apply(packets)
        # Those that got the same updates differ by rounding alone, but would go apart.
        group, matrix = self._context.group, self.matrix
        parts = [matrix.whole()]
        if matrix.intercept is not None:
            parts.append(matrix.intercept)
        means = [total / group.size for total in allreduce(group, parts)]
        matrix.replace(means[0], means[1] if len(means) > 1 else None)
        self._model.updated(matrix, None, 0.0)
        # With the penalty of the last iteration zeros, and constraints, come back.
        with self._log.computing():
            matrix.penalise(self._model.step_size(self.iteration - 1))
