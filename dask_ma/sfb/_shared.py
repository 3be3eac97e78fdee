"""Iterations and losses where each rank has some of the outputs, and rows of all."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather
from dask_ma.engine import RoundLog
from dask_ma.kernels import by_features, is_worth_sorting
from dask_ma.sfb.exchange._outputs import OutputShares, halves, nbytes_of
from dask_ma.sfb.model._factors import Factors, checked, checked_sums, narrowed
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._model import Batch, FactorModel, follows
from dask_ma.sfb.model._rows import rows_at_a_time
from dask_ma.sfb.model._source import Source, joined

# Values of a rank that are held until the sums of others have come.
_MOST_VALUES = 2**21
# Products of elements with outputs of a rank from which on half a batch takes longer
# than its sums are under way; and ranks, each of which sends its sums to all others.
_MUCH, _FEW_RANKS = 4e6, 4
_LONGER = 4  # times as many values are found at a time as where a rank has all outputs
# Of a rank's outputs: what rows of all ranks may take that stay there for the losses.
_MOST_KEPT = 0.5


class SharedOutputs:
    """What the ranks do with batches of all of them, each for its outputs.

    Parameters
    ----------
    group : Group
        This rank.
    model : FactorModel
        One that shares outputs.
    shares : OutputShares
        Which outputs the rank has.
    log : RoundLog
        Where computing is timed.
    source : Source
        Where this rank's batches come from.
    cure : str, default=""
        What else may help where factors are not finite.
    """

    def __init__(
        self,
        group: Group,
        model: FactorModel,
        shares: OutputShares,
        log: RoundLog,
        source: Source,
        cure: str = "",
    ) -> None:
        self._group = group
        self._model = model
        self._shares = shares
        self._log = log
        self._source = source
        self._cure = cure
        # The rows of the last pass, for its losses, unless nobody wants these.
        self._kept: list[Batch] = []
        self._are_wanted = True

    def factors(
        self, matrix: ParameterMatrix, batches: Iterator[Batch]
    ) -> Iterator[tuple[Factors, bool]]:
        """Factors of each batch for the outputs of this rank; a collective call.

        While its sums are under way, the rows of the next batch are put together. Those
        of a large batch come in two halves: the sums of one half are under way while
        the other is worked on.

        Parameters
        ----------
        matrix : ParameterMatrix
            The rank's outputs; changed between batches.
        batches : iterator of Batch
            This rank's.

        Yields
        ------
        factors : Factors
            Of the rows of all ranks.
        is_last : bool
            Whether they are the last of their batch.
        """
        stream = self._keep(self._stream(matrix, batches), matrix)
        batch = next(stream, None)
        while batch is not None:
            if self._takes_halves(batch, matrix):
                yield from self._in_halves(matrix, batch)
                batch = next(stream, None)
                continue
            with self._log.computing():
                rows = self._sorted(matrix, batch)
                values, own = self._values(matrix, rows)
            if self._goes_ahead(own):
                self._shares.post(own)
                following = next(stream, None)
                sums = self._shares.take(own)
            else:
                sums = self._of_all(own)
                following = next(stream, None)
            with self._log.computing():
                factors = self._slopes(matrix, batch, values, sums)
            is_sorted = rows is not batch.X
            yield factors._replace(v=rows) if is_sorted else factors, True
            batch = following

    def _takes_halves(self, batch: Batch, matrix: ParameterMatrix) -> bool:
        """Whether a batch is worth it; the same on all ranks."""
        size, n_outputs = self._group.size, self._shares.n_outputs
        if not self._model.shares_ahead or not 1 < size <= _FEW_RANKS:
            return False
        if not sparse.issparse(batch.X):
            return bool(batch.X.size * n_outputs >= _MUCH * size)
        # Each half would read about as much of the matrix as the whole.
        place = matrix.shape[1], n_outputs // size, matrix.dtype.itemsize
        is_much = batch.X.nnz * n_outputs >= _MUCH * size
        return bool(is_much and not is_worth_sorting(batch.X.nnz, *place))

    def _in_halves(
        self, matrix: ParameterMatrix, batch: Batch
    ) -> Iterator[tuple[Factors, bool]]:
        """Factors of the halves of a batch; both are found at the same place."""
        parts = halves(batch)
        found = []
        for part in parts:
            with self._log.computing():
                found.append(self._values(matrix, part.X))
            self._shares.post(found[-1][1])
        for part, (values, own) in zip(parts, found, strict=True):
            sums = self._shares.take(own)
            with self._log.computing():
                factors = self._slopes(matrix, part, values, sums)
            yield factors, part is parts[-1]

    def _slopes(
        self,
        matrix: ParameterMatrix,
        batch: Batch,
        values: np.ndarray,
        sums: list[np.ndarray],
    ) -> Factors:
        """Factors from the sums of all ranks, checked."""
        model = self._model
        u = model.share_slopes(values, sums, batch, self._shares.outputs)
        where = f"{type(model).__name__}, on rank {self._group.rank}"
        place, dtype = (batch.n_rows, matrix.shape, where), matrix.dtype
        return checked((u, batch.X), *place, dtype=dtype, cure=self._cure)

    def loss(self, matrix: ParameterMatrix) -> float:
        """This rank's part of the losses of all rows; a collective call.

        As the matrix stays as it is, the sums of several batches are exchanged at once,
        and are under way while those of the next ones are found. Few rows, against the
        matrix, are still there from the pass before; others are sent once more.

        Parameters
        ----------
        matrix : ParameterMatrix
            The rank's outputs.

        Returns
        -------
        loss : float
        """
        total, before = 0.0, None
        self._are_wanted = True
        for some in self._several(self._all_rows(matrix)):
            with self._log.computing("evaluate"):
                found = [self._values(matrix, batch.X) for batch in some]
                sums = np.concatenate([own for _, own in found])
            if not self._goes_ahead(sums):
                total += self._losses(some, found, self._of_all(sums))
                continue
            self._shares.post(sums)
            if before is not None:
                total += self._losses(*before[:2], self._shares.take(before[2]))
            before = some, found, sums
        if before is not None:
            total += self._losses(*before[:2], self._shares.take(before[2]))
        return total

    def _all_rows(self, matrix: ParameterMatrix) -> Iterator[Batch]:
        """Batches of the rows of all ranks, for their losses."""
        # A large matrix is read less often than where a rank has all outputs. There are
        # as many values of the rows of all ranks, with a part of the outputs each,
        # however many ranks there are.
        n_read = max(1, self._shares.n_outputs // _LONGER)
        kept, self._kept = self._kept, []
        if not kept:
            yield from self._stream(matrix, self._source.read(n_read))
            return
        most, some = rows_at_a_time(n_read) * self._group.size, kept[:0]
        for batch in kept:
            if some and sum(each.n_rows for each in (*some, batch)) > most:
                yield joined(some)
                some = []
            some.append(batch)
        yield joined(some)

    def _keep(
        self, stream: Iterator[Batch], matrix: ParameterMatrix
    ) -> Iterator[Batch]:
        """The batches of a pass, which are kept for its losses if they are few."""
        # The same on all ranks, some of which have an output more than others.
        n_own = self._shares.n_outputs // self._group.size
        left = _MOST_KEPT * n_own * matrix.shape[1] * matrix.dtype.itemsize
        kept, is_wanted = self._kept, self._are_wanted and self._source.reads_units
        kept.clear()
        self._are_wanted = False
        for batch in stream:
            left -= nbytes_of(batch)
            if left < 0 or not is_wanted:
                kept.clear()
            elif batch.n_rows:
                kept.append(batch)
            yield batch

    def _losses(
        self,
        some: list[Batch],
        found: list[tuple[np.ndarray, np.ndarray]],
        sums: list[np.ndarray],
    ) -> float:
        """This rank's part of the losses of batches, from the sums of all ranks."""
        total, start = 0.0, 0
        with self._log.computing("evaluate"):
            for batch, (values, own) in zip(some, found, strict=True):
                parts = [part[start : start + len(own)] for part in sums]
                outputs = self._shares.outputs
                total += self._model.share_loss(values, parts, batch, outputs)
                start += len(own)
        return total

    def _goes_ahead(self, sums: np.ndarray) -> bool:
        """Whether sums are sent before there is time to wait; the same on all ranks."""
        return bool(1 < self._group.size <= _FEW_RANKS and sums.shape[1])

    def _several(self, batches: Iterator[Batch]) -> Iterator[list[Batch]]:
        """As many batches at a time as may be held, the same on all ranks."""
        most = _MOST_VALUES * self._group.size // self._shares.n_outputs
        some: list[Batch] = []
        for batch in batches:
            some.append(batch)
            if sum(each.X.shape[0] for each in some) >= most:
                yield some
                some = []
        if some:
            yield some

    def _stream(
        self, matrix: ParameterMatrix, batches: Iterator[Batch]
    ) -> Iterator[Batch]:
        """Batches of the rows of all ranks, from those of this rank."""
        return self._shares.stream(map(partial(self._as_shared, matrix), batches))

    def _as_shared(self, matrix: ParameterMatrix, batch: Batch) -> Batch:
        """A batch of this rank as all ranks get it."""
        with self._log.computing():
            v = narrowed(self._model.share_rows(batch), matrix.dtype)
            return batch._replace(X=v, others=())

    def _sorted(self, matrix: ParameterMatrix, batch: Batch) -> Any:
        """Rows of a batch, sorted once for their values and for the update."""
        # Whoever follows the updates is to see rows.
        is_seen = follows(self._model)
        return batch.X if is_seen else by_features(batch.X, matrix.values)

    def _values(
        self, matrix: ParameterMatrix, rows: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values of this rank's outputs on some rows, and their sums."""
        values = matrix.product(rows)
        where = f"{type(self._model).__name__}.share_sums"
        sums = self._model.share_sums(values)
        return values, checked_sums(sums, len(values), where)

    def _of_all(self, sums: np.ndarray) -> list[np.ndarray]:
        """Sums of all ranks, if there are any; a collective call."""
        return allgather(self._group, sums) if sums.shape[1] else [sums]
