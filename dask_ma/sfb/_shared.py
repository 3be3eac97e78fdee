"""Iterations and losses where each rank has some of the outputs, and rows of all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dask_ma.comm import Group, allgather
from dask_ma.engine import RoundLog
from dask_ma.sfb.exchange._outputs import OutputShares
from dask_ma.sfb.model._factors import Factors, checked
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._model import Batch, FactorModel

# Values of a rank that are held until the sums of others have come.
_MOST_VALUES = 2**21


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
    """

    def __init__(
        self, group: Group, model: FactorModel, shares: OutputShares, log: RoundLog
    ) -> None:
        self._group = group
        self._model = model
        self._shares = shares
        self._log = log

    def factors(
        self, matrix: ParameterMatrix, batches: Iterator[Batch]
    ) -> Iterator[Factors]:
        """Factors of each batch for the outputs of this rank; a collective call.

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
        """
        model, outputs = self._model, self._shares.outputs
        where = f"{type(model).__name__}, on rank {self._group.rank}"
        for batch in self._shares.stream(map(self._as_shared, batches)):
            with self._log.computing():
                values, own = self._values(matrix, batch)
            sums = self._of_all(own)
            with self._log.computing():
                u = model.share_slopes(values, sums, batch, outputs)
                factors = checked((u, batch.X), batch.n_rows, matrix.shape, where)
            yield factors

    def loss(self, matrix: ParameterMatrix, batches: Iterator[Batch]) -> float:
        """This rank's part of the losses of some rows; a collective call.

        As the matrix stays as it is, the sums of several batches are exchanged at once.

        Parameters
        ----------
        matrix : ParameterMatrix
            The rank's outputs.
        batches : iterator of Batch
            This rank's.

        Returns
        -------
        loss : float
        """
        model, outputs, total = self._model, self._shares.outputs, 0.0
        for some in self._several(self._shares.stream(map(self._as_shared, batches))):
            with self._log.computing("evaluate"):
                found = [self._values(matrix, batch) for batch in some]
            sums = self._of_all(np.concatenate([own for _, own in found]))
            with self._log.computing("evaluate"):
                start = 0
                for batch, (values, own) in zip(some, found, strict=True):
                    rows = slice(start, start + len(own))
                    parts = [part[rows] for part in sums]
                    total += model.share_loss(values, parts, batch, outputs)
                    start = rows.stop
        return total

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

    def _as_shared(self, batch: Batch) -> Batch:
        """A batch of this rank as all ranks get it."""
        with self._log.computing():
            return batch._replace(X=self._model.share_rows(batch), others=())

    def _values(
        self, matrix: ParameterMatrix, batch: Batch
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values of this rank's outputs, and their sums."""
        values = matrix.product(batch.X)
        return values, self._model.share_sums(values)

    def _of_all(self, sums: np.ndarray) -> list[np.ndarray]:
        """Sums of all ranks, if there are any; a collective call."""
        return allgather(self._group, sums) if sums.shape[1] else [sums]
