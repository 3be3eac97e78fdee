"""The loop of a rank: batch, factors, exchange, update, penalty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from dask_ma.comm import allreduce, barrier
from dask_ma.data import Shard
from dask_ma.engine import RankContext, RoundLog, Snapshot
from dask_ma.kernels import Optimizer
from dask_ma.sfb._apart import StepsApart
from dask_ma.sfb._process import ProcessRanks
from dask_ma.sfb._shared import SharedOutputs
from dask_ma.sfb._start import Start, first_matrix
from dask_ma.sfb.exchange._choice import choose_communication
from dask_ma.sfb.exchange._exchange import factor_exchange, scaled
from dask_ma.sfb.exchange._full_matrix import (
    MatrixExchange,
    Total,
    is_best_whole,
    whole_update,
)
from dask_ma.sfb.exchange._outputs import (
    OutputShares,
    can_share,
    check_shares,
    kept_every,
    share_of,
)
from dask_ma.sfb.exchange._packets import Packet
from dask_ma.sfb.exchange._settings import RunSettings
from dask_ma.sfb.exchange._staleness import Staleness
from dask_ma.sfb.model._factors import Factors, stack
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._model import Batch, FactorModel, factors_of, follows, view_of
from dask_ma.sfb.model._source import Ahead, RowSource, Source


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
    make_optimizer : callable, default=None
        ``make_optimizer(n_values)`` gives what makes steps of the mean gradient; None
        takes it off the matrix, times the step size. It has to see the gradients of all
        ranks, so they must be in step, and treat each value by itself.

    Attributes
    ----------
    matrix : ParameterMatrix
        That of all ranks of the process where they are the same all the time, else this
        rank's; or where outputs are shared out its share of them. See :meth:`whole`.
    optimizer : Optimizer or None
        That of the matrix.
    cure : str
        What else may help where numbers are not finite.
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
        What is sent: "factors", "full_matrix", "server" or "outputs"; or "alone".
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
        make_optimizer: Callable[[int], Optimizer] | None = None,
    ) -> None:
        self._context = context
        self._model, self._shard = model, shard
        self._settings, self._log = settings, log
        group, exchange = context.group, settings.exchange
        topology = exchange._topology(group.size)
        self._is_dual = view_of(model) is not None
        self._staleness = Staleness.checked(exchange.staleness)
        model.prepare(shard, group)
        self._shares: OutputShares | None = None
        self._shared: SharedOutputs | None = None
        self._keeps_parts = exchange.content == "outputs"
        self._agrees = self._staleness.is_synchronous and topology.diameter <= 1
        self._process = ProcessRanks(group, is_same=self._has_same_matrix)
        self.matrix = self._process.shared(partial(self._first_matrix, start))
        self.cure = settings.cure(self.matrix.dtype)
        if self._agrees:
            self.matrix.watch()
        self.iteration = 0 if start is None else start.iteration
        self.n_passes = 0 if start is None else start.n_passes
        self._source = source or RowSource(context, shard, shuffle=settings.shuffle)
        self.n_units = self._source.n_units
        self.n_steps = self._source.count_steps(group, settings.batch_size)
        self.n_rows = int(allreduce(group, np.array(self.n_units)))
        self.communication = self._choose(settings)
        self._matrices: MatrixExchange | None = None
        if self.communication == "outputs":
            self._share_out()
        elif self.communication in ("full_matrix", "server"):
            self._matrices = MatrixExchange(
                group,
                by_server=self.communication == "server",
                wire_dtype=exchange.wire_dtype,
            )
        self._factors = factor_exchange(group, exchange, self._staleness)
        self.optimizer: Optimizer | None = None
        if make_optimizer is not None:
            make = partial(make_optimizer, self.matrix.values.size)
            self.optimizer = self._process.one_if_same(make)
        self._common = model.common_step if self._agrees else None
        self._apart = StepsApart(model, settings.n_apart)

    def run_pass(self) -> None:
        """Go over the rows of all ranks once; a collective call."""
        self._model.begin_pass(self.matrix)
        batches = Ahead(self._source.batches(self.n_steps, self.n_passes))
        if self._shares is not None or self.communication == "alone":
            run = self._run_alone if self._shares is None else self._run_shared
            run(batches)
            self.n_passes += 1
            return
        n_apart, last = self._settings.n_apart, self.iteration + self.n_steps
        n_exchanges = -(-self.n_steps // n_apart)
        for step in range(n_exchanges):
            with self._log.computing():
                scale = self._scale(self.iteration)
                parts = self.matrix, batches, scale, self._compute
                factors = self._apart.factors(*parts)
            if self._matrices is None:
                self._exchange_factors(factors)
            else:
                self._exchange_matrices(factors, batches)
            del factors  # before the next rows are picked
            is_last = step == n_exchanges - 1
            # Where ranks differ, the last penalty comes when they agree again.
            if self._agrees or not is_last:
                with self._log.computing():
                    self.matrix.penalise(self._model.step_size(self.iteration))
                    if is_last:
                        self.matrix.settle()
            self._process.wait_for_owner()
            self.iteration = min(self.iteration + n_apart, last)
        self._settle()
        self.n_passes += 1

    @property
    def is_shared(self) -> bool:
        """Whether this rank has some of the outputs only."""
        return self._shares is not None

    def whole(self) -> ParameterMatrix:
        """The matrix of all outputs; a collective call.

        Where outputs are shared out, it is put together, on each rank.
        """
        if self._shares is None:
            return self.matrix
        values, intercept = self.matrix.whole(), self.matrix.intercept
        found = self._shares.gather({"values": values, "intercept": intercept})
        return ParameterMatrix(found["values"].T, found["intercept"], self._model.prox)

    def unite(self) -> None:
        """Let each rank have all outputs for itself, at the end; a collective call."""
        matrix = self.whole()
        if self._process.is_same or self._is_dual:
            matrix = ParameterMatrix(matrix.whole().T, matrix.intercept, matrix.prox)
        self.matrix, self._shares, self._shared = matrix, None, None

    def freeze(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Values and intercepts as they are now, which no pass changes; collective.

        The next pass goes on with a copy of the values. Where matrices are the same,
        the ranks of a process have one array together.
        """
        intercept = self.matrix.intercept
        intercept = None if intercept is None else intercept.copy()
        if self._shares is not None or not self._agrees:
            return self.matrix.freeze(), intercept
        return self._process.one(self.matrix.freeze), intercept

    def optimizer_state(self) -> dict[str, Any]:
        """State of the optimiser for a snapshot; a collective call."""
        if self.optimizer is None or not self._context.keeps_states:
            return {}
        return dict(self._process.one_if_same(self.optimizer.state_dict))

    def collect(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Values and intercepts of all outputs on rank 0; a collective call.

        Returns
        -------
        values : ndarray of shape (n_features, n_outputs)
            Not always a copy. Ranks other than 0 may get their share only.
        intercept : ndarray of shape (n_outputs,) or None
        """
        values, intercept = self.matrix.whole(), self.matrix.intercept
        if intercept is not None:
            intercept = self.collect_part(intercept, "intercept")
        return self.collect_part(values, "values"), intercept

    def collect_part(self, array: np.ndarray, name: str) -> np.ndarray:
        """An array with a place for each output on rank 0; a collective call."""
        shares = self._shares
        return array if shares is None else shares.collect(array, name)

    def cut_all(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """What this rank's matrix has of arrays with a place for each output."""
        return arrays if self._shares is None else self._shares.cut_all(arrays)

    def _share_out(self) -> None:
        """Keep this rank's outputs only."""
        check_shares(self._context.group, self._model, self._n_outputs)
        group, matrix = self._context.group, self.matrix
        self._shares = OutputShares(group, self._n_outputs)
        place = self._shares, self._log, self._source, self.cure
        self._shared = SharedOutputs(group, self._model, *place)
        self._process = ProcessRanks(group, is_same=False)
        if matrix.shape[0] == self._n_outputs and group.size > 1:
            values, intercept = matrix.whole(), matrix.intercept
            self.matrix = ParameterMatrix(
                self._shares.cut(values).T, self._shares.cut(intercept), matrix.prox
            )

    def _run_shared(self, batches: Iterator[Batch]) -> None:
        """A pass in which each rank has some of the outputs, and rows of all."""
        model, matrix = self._model, self.matrix
        assert self._shared is not None
        for factors, is_last in self._shared.factors(matrix, batches):
            with self._log.computing():
                self._rebuild(factors, self._scale(self.iteration))
                if is_last:
                    matrix.penalise(model.step_size(self.iteration))
            self.iteration += is_last
        matrix.settle()

    def _run_alone(self, batches: Iterator[Batch]) -> None:
        """A pass that rank 0, which has all rows, makes for all ranks."""
        # Others may still look at the matrix that ranks of a process have together.
        barrier(self._context.group)
        last = self.iteration + self.n_steps
        while self._context.group.rank == 0 and self.iteration < last:
            with self._log.computing():
                factors = self._compute(self.matrix, next(batches))
                self._rebuild(factors, self._scale(self.iteration))
                self.matrix.penalise(self._model.step_size(self.iteration))
            self.iteration += 1
        if self._context.group.rank == 0:
            self.matrix.settle()
        self.iteration = last
        optimizer = self.optimizer if self._context.keeps_states else None
        self._process.take_from_first(self.matrix, optimizer)

    def _exchange_factors(self, factors: Factors) -> None:
        """Send the factors of an iteration, and apply those that there are."""
        gain = self._common.gain if self._common else 0.0
        packets = self._factors.exchange(factors, self.iteration, gain)
        with self._log.computing():
            self._apply(packets)

    def _exchange_matrices(self, factors: Factors, batches: Ahead) -> None:
        """Add up the updates of an iteration, and apply the sum."""
        assert self._matrices is not None
        if self._common is None and self.optimizer is None:
            scale, model = self._scale(self.iteration), self._model
            self._matrices.subtract(factors, self.matrix, scale, model.intercept_scale)
            model.updated(self.matrix, None, scale)
            return
        group, common = self._context.group, self._common
        with self._log.computing():
            is_whole, parts = self.optimizer is not None, (factors, self.matrix)
            total = self._matrices.total(*parts, batches.fetch, is_whole=is_whole)
        gains = allreduce(group, np.array(common.gain)) if common else 0.0
        with self._log.computing():
            if self.optimizer is None:
                self._take(total, float(gains))
            elif total.values is not None:
                self._descend(total.values)

    def _take(self, total: Total, gain: float) -> None:
        """Make the steps of all ranks of an iteration, of one length."""
        assert self._common is not None
        scale = self._scale(self.iteration)
        if self._context.group.size == 1:
            self._common.take_all()  # there is no need of a length
        else:
            scale *= self._common.agree(gain, total.square, total.slopes)
        self.matrix.subtract_slopes(total.slopes, scale * self._model.intercept_scale)
        for features, rows, values in total.pieces:
            self.matrix.subtract_part(features, values, scale, rows)
        self._model.updated(self.matrix, None, scale)

    def measure(self) -> float:
        """This rank's part of the sum of the losses of all rows; a collective call."""
        model, total = self._model, 0.0
        if type(model).loss is FactorModel.loss:
            return float("nan")
        has_shared_loss = type(model).share_loss is not FactorModel.share_loss
        if self._shared is not None and has_shared_loss:
            return self._shared.loss(self.matrix)
        matrix = self.whole()
        with self._log.computing("evaluate"):
            for batch in self._source.read(matrix.shape[0]):
                total += float(model.loss(matrix, batch))
        return total

    def objective(self, loss: float) -> float:
        """Objective, from the sum of the losses of all ranks; a collective call."""
        penalty = self._process.one_if_same(partial(self._model.penalty, self.matrix))
        if self._shares is not None:
            penalty = float(allreduce(self._context.group, np.array(penalty)))
        return loss / self.n_rows + penalty

    def snapshot(
        self,
        shared: dict[str, Any],
        arrays: dict[str, Any] | None = None,
        own: dict[str, Any] | None = None,
    ) -> Snapshot:
        """What a run needs to go on from here; a collective call.

        Parameters
        ----------
        shared : dict
            What all ranks have besides the matrix and the count of iterations.
        arrays : dict of ndarray or None, default=None
            What has a place for each output on its last axis, as the matrix of this
            rank has them; not changed afterwards. `values` and `intercept` are those of
            the matrix, copied already.
        own : dict, default=None
            What only this rank has.

        Returns
        -------
        snapshot : Snapshot
            From which :func:`~dask_ma.sfb._start.arrays_of` finds the arrays.
        """
        arrays = dict(arrays or {})
        if "values" not in arrays and not self._context.keeps_states:
            # Nobody will ask for it, but what is late is done now as with a copy.
            arrays["values"] = self.matrix.stored()
        elif "values" not in arrays:  # both go on changing in place
            arrays["values"], arrays["intercept"] = self.freeze()
        shared = {**shared, "iteration": self.iteration}
        if self._shares is None:
            return Snapshot({**shared, **arrays}, own, whole=self._keeps_parts)
        if self._keeps_parts:
            part = {**arrays, "n_outputs": self._n_outputs, **(own or {})}
            return Snapshot(shared, part, whole=True)
        gather = partial(self._shares.gather, arrays)
        every = kept_every(self.matrix.shape[1], self.n_rows)
        if self._context.is_checkpointed or self.n_passes % every == 0:
            return Snapshot({**shared, **gather()}, own)
        return Snapshot(shared, own, in_memory=False, rest=gather)

    def _first_matrix(
        self, start: Start | None, shown: ParameterMatrix | None = None
    ) -> ParameterMatrix:
        """The matrix to start from, or a share of its outputs, checked."""
        first = partial(first_matrix, self._model, self._shard.n_features, start, shown)
        matrix, self._n_outputs = first(self._outputs_of, self._settings.dtype)
        return matrix

    def _outputs_of(self, n_outputs: int) -> slice:
        """Which outputs the matrix of this rank has to start with."""
        group = self._context.group
        if self._keeps_parts and can_share(group, self._model, n_outputs):
            return share_of(group.rank, group.size, n_outputs)
        return slice(None)

    @property
    def _has_same_matrix(self) -> bool:
        """Whether all ranks have the same matrix all the time, and just that."""
        return self._agrees and not self._keeps_parts and not follows(self._model)

    def _choose(self, settings: RunSettings) -> str:
        """What is sent; collective."""
        exchange = settings.exchange
        if settings.is_alone or exchange.content != "auto":
            return "alone" if settings.is_alone else exchange.content
        if exchange._wants_factors or self._context.group.size == 1:
            return "factors"
        group = self._context.group
        n_rows = -(-self.n_rows // max(1, self.n_steps * group.size))
        n_pairs = self._model.n_pairs or max(1, n_rows)
        return choose_communication(
            group,
            self._shard,
            self.matrix,
            n_pairs,
            self._model,
            settings.link_bandwidth,
            can_share=can_share(group, self._model, self._n_outputs),
        )

    def _compute(self, matrix: ParameterMatrix, batch: Batch) -> Factors:
        """Factors of a batch, checked."""
        place = f"on rank {self._context.group.rank} in iteration {self.iteration}"
        return factors_of(self._model, matrix, batch, place, self.cure)

    def _apply(self, packets: list[Packet]) -> None:
        """Rebuild the updates of some packets and take them off the matrix."""
        if not packets:
            return
        # Those who wait for the owner have no use for the factors, but for these.
        if not (self._process.is_owner or self._common or self._model.fit_intercept):
            return
        if self.optimizer is not None:
            if self._process.is_owner:
                self._rebuild(stack([packet.opened() for packet in packets]), 1.0)
            return
        parts, scale = scaled(packets, self._scale)
        # Rows of all ranks may be as many numbers as the matrix.
        is_whole = bool(self._common) and is_best_whole(parts, self.matrix)
        wanted = {"with_rows": self._process.is_owner}
        factors = stack(parts, **wanted, at_once=is_whole or follows(self._model))
        if self._common and self._context.group.size == 1:
            self._common.take_all()
        elif self._common:
            gain = sum(packet.gain for packet in packets)
            if is_whole:
                make = partial(whole_update, factors, self.matrix)
                self._take(self._process.one_if_same(make), gain)
                return
            square = self._process.one_if_same(factors.square)
            scale *= self._common.agree(gain, square, factors.u.sum(axis=0))
        self._rebuild(factors, scale)

    def _rebuild(self, factors: Factors, scale: float) -> None:
        """Take the updates of some factors off the matrix, or make a step of them."""
        if self.optimizer is not None:
            if self._process.is_owner:
                self._descend(MatrixExchange.product(factors, self.matrix))
            return
        self.matrix.subtract(factors, scale, self._model.intercept_scale)
        self._model.updated(self.matrix, factors, scale)

    def _descend(self, total: np.ndarray) -> None:
        """Let the optimiser make a step of the sum of the updates of an iteration."""
        assert self.optimizer is not None
        total *= total.dtype.type(self.n_steps / self.n_rows)
        step = self._model.step_size(self.iteration)
        self.matrix.descend(self.optimizer, total, step)
        self._model.updated(self.matrix, None, step)

    def _scale(self, iteration: int) -> float:
        """What the products of factors are multiplied by."""
        gain, model = self._factors.gain, self._model
        if model.averages and self._is_dual:
            return gain / self.n_rows
        scale = model.step_size(iteration) * gain
        return scale * self.n_steps / self.n_rows if model.averages else scale

    def _settle(self) -> None:
        """Let all ranks have the same matrix; a collective call."""
        if self._agrees:
            return
        packets = self._factors.finish()
        with self._log.computing():
            self._apply(packets)
        # Those that got the same updates differ by rounding alone, but would go apart.
        group, matrix = self._context.group, self.matrix
        if self._settings.exchange.averaging:
            parts = [a for a in (matrix.stored(), matrix.intercept) if a is not None]
            means = [total / group.size for total in allreduce(group, parts)]
            matrix.replace(means[0], means[1] if len(means) > 1 else None)
            self._model.updated(matrix, None, 0.0)
        # With the penalty of the last iteration zeros, and constraints, come back.
        with self._log.computing():
            matrix.penalise(self._model.step_size(self.iteration - 1))
