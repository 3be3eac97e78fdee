"""Outputs shared out over the ranks: rows travel ahead, and small sums of outputs."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather
from dask_ma.kernels.prox import L1, L2, ElasticNet, NoPenalty, Prox
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._model import Batch
from dask_ma.sfb.model._source import joined

_TAG = "sfb-rows"
#: Penalties that treat each element by itself, so that outputs can be shared out.
SEPARABLE = (NoPenalty, L1, L2, ElasticNet)


class OutputShares:
    """A rank's share of the outputs, and the rows of all ranks, during a pass.

    Parameters
    ----------
    group : Group
        This rank.
    matrix : ParameterMatrix
        The whole matrix, the same on all ranks.
    prox : Prox
        Prox operator of the penalty, one of `SEPARABLE`.

    Attributes
    ----------
    outputs : slice
        Which outputs the rank has.
    part : ParameterMatrix
        Their rows of the matrix.
    """

    def __init__(self, group: Group, matrix: ParameterMatrix, prox: Prox) -> None:
        self._group = group
        n_outputs, rank = matrix.shape[0], group.rank
        start, stop = (n_outputs * r // group.size for r in (rank, rank + 1))
        self.outputs = slice(start, stop)
        intercept = matrix.intercept
        self.part = ParameterMatrix(
            matrix.whole().T[self.outputs],
            None if intercept is None else intercept[self.outputs],
            prox,
        )
        self._own: deque[Batch] = deque()

    def send(self, batch: Batch) -> None:
        """Send the rows of a batch to all others, which need not take them yet."""
        self._own.append(batch)
        message = packed(batch)
        for peer in range(self._group.size):
            if peer != self._group.rank:
                self._group.push(message, peer, _TAG, copy=False)

    def take(self) -> Batch:
        """The rows that all ranks have sent for an iteration, in the order of ranks."""
        group = self._group
        batches = [
            self._own.popleft()
            if rank == group.rank
            else unpacked(group.recv(rank, _TAG))
            for rank in range(group.size)
        ]
        return joined([batch for batch in batches if batch.n_rows] or batches[:1])

    def gather(self, matrix: ParameterMatrix) -> None:
        """Let the whole matrix be that of all shares; a collective call."""
        own = [self.part.whole()]
        if self.part.intercept is not None:
            own.append(self.part.intercept)
        parts = allgather(self._group, own)
        intercept = None
        if self.part.intercept is not None:
            intercept = np.concatenate([part[1] for part in parts])
        matrix.replace(np.concatenate([part[0] for part in parts], axis=1), intercept)


def packed(batch: Batch) -> list[np.ndarray]:
    """A batch as a message: a header, rows, and what comes with them."""
    X, y, weight = batch.X, batch.y, batch.sample_weight
    flags = [sparse.issparse(X), y is not None, weight is not None, X.shape[1]]
    rows = [X.data, X.indices, X.indptr] if flags[0] else [np.ascontiguousarray(X)]
    others = [np.ascontiguousarray(a) for a in (y, weight) if a is not None]
    return [np.array(flags, dtype=np.int64), batch.rows, *rows, *others]


def unpacked(message: list[np.ndarray]) -> Batch:
    """The batch of a message."""
    is_sparse, has_y, has_weight, n_features = message[0].tolist()
    rows, arrays = message[1], iter(message[2:])
    X: Any = next(arrays)
    if is_sparse:
        parts = X, next(arrays), next(arrays)
        X = sparse.csr_array(parts, shape=(len(rows), n_features))
    y = next(arrays) if has_y else None
    return Batch(X, y, next(arrays) if has_weight else None, rows)
