"""Outputs shared out over the ranks: rows travel ahead, and small sums of outputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather
from dask_ma.kernels.prox import L1, L2, ElasticNet, NoPenalty
from dask_ma.sfb.model._model import Batch, FactorModel
from dask_ma.sfb.model._source import joined

_TAG = "sfb-rows"
#: Penalties that treat each element by itself, so that outputs can be shared out.
SEPARABLE = (NoPenalty, L1, L2, ElasticNet)


class OutputShares:
    """Which outputs a rank has, and how rows and outputs of all ranks come together.

    Parameters
    ----------
    group : Group
        This rank.
    n_outputs : int
        Those of all ranks.

    Attributes
    ----------
    outputs : slice
        Which outputs the rank has.
    n_outputs : int
    """

    def __init__(self, group: Group, n_outputs: int) -> None:
        self._group = group
        self.n_outputs = n_outputs
        self.outputs = share_of(group, n_outputs)

    def stream(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Batches of all ranks, joined in the order of ranks; a collective call.

        The rows of a batch are sent while the one before is worked on.

        Parameters
        ----------
        batches : iterator of Batch
            This rank's; others may have more, or fewer.

        Yields
        ------
        batch : Batch
            The same on all ranks.
        """
        group, own = self._group, deque[Batch | None]()
        open_ranks = list(range(group.size))
        while open_ranks:
            # At first two; none after the last.
            while len(own) < 2 and group.rank in open_ranks and None not in own:
                own.append(next(batches, None))
                self._send(own[-1])
            parts = {
                rank: own.popleft()
                if rank == group.rank
                else unpacked(group.recv(rank, _TAG))
                for rank in open_ranks
            }
            found = [part for part in parts.values() if part is not None]
            open_ranks = [rank for rank, part in parts.items() if part is not None]
            if found:
                yield joined([part for part in found if part.n_rows] or found[:1])

    def cut(self, array: Any) -> Any:
        """This rank's outputs of an array with a place for each output, the last axis.

        None, and what has been cut already, stay as they are.
        """
        if array is None or array.shape[-1] != self.n_outputs:
            return array
        return np.ascontiguousarray(array[..., self.outputs])

    def gather(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """Arrays of all outputs, from those of the ranks; a collective call."""
        names = [name for name, array in arrays.items() if array is not None]
        parts = allgather(self._group, [arrays[name] for name in names])
        found = zip(*parts, strict=True)
        whole = (np.concatenate(each, axis=-1) for each in found)
        return {**arrays, **dict(zip(names, whole, strict=True))}

    def collect(self, array: np.ndarray, tag: str) -> np.ndarray:
        """The whole array on rank 0, one part after the other; a collective call.

        Other ranks get back what they have given.
        """
        group = self._group
        if group.rank > 0:
            group.send(array, 0, (_TAG, tag))
            return array
        whole = np.empty((*array.shape[:-1], self.n_outputs), dtype=array.dtype)
        whole[..., self.outputs] = array
        start = array.shape[-1]
        for source in range(1, group.size):
            part = group.recv(source, (_TAG, tag))
            whole[..., start : start + part.shape[-1]] = part
            start += part.shape[-1]
        return whole

    def _send(self, batch: Batch | None) -> None:
        """Send rows to all others, which need not take them yet."""
        message = [np.zeros(0, np.int64)] if batch is None else packed(batch)
        for peer in range(self._group.size):
            if peer != self._group.rank:
                self._group.push(message, peer, _TAG, copy=False)


def share_of(group: Group, n_outputs: int) -> slice:
    """Outputs of a rank."""
    start, stop = (n_outputs * r // group.size for r in (group.rank, group.rank + 1))
    return slice(start, stop)


def can_share(group: Group, model: FactorModel, n_outputs: int) -> bool:
    """Whether each rank can have some outputs of its own."""
    is_separable = model.shares_outputs and isinstance(model.prox, SEPARABLE)
    return is_separable and n_outputs >= group.size and model.common_step is None


def check_shares(group: Group, model: FactorModel, n_outputs: int) -> None:
    """Refuse models whose outputs cannot be shared out."""
    if not can_share(group, model, n_outputs):
        raise ValueError(
            f"content='outputs' needs a model that shares outputs, at least one "
            f"for each rank, and a penalty of single elements, but "
            f"{type(model).__name__} has {n_outputs} outputs and "
            f"{model.prox!r}; use another content"
        )


def packed(batch: Batch) -> list[np.ndarray]:
    """A batch as a message: a header, rows, and what comes with them."""
    X, y, weight = batch.X, batch.y, batch.sample_weight
    flags = [sparse.issparse(X), y is not None, weight is not None, X.shape[1]]
    rows = [X.data, X.indices, X.indptr] if flags[0] else [np.ascontiguousarray(X)]
    others = [np.ascontiguousarray(a) for a in (y, weight) if a is not None]
    return [np.array(flags, dtype=np.int64), batch.rows, *rows, *others]


def unpacked(message: list[np.ndarray]) -> Batch | None:
    """The batch of a message; None for the end."""
    if not len(message[0]):
        return None
    is_sparse, has_y, has_weight, n_features = message[0].tolist()
    rows, arrays = message[1], iter(message[2:])
    X: Any = next(arrays)
    if is_sparse:
        parts = X, next(arrays), next(arrays)
        X = sparse.csr_array(parts, shape=(len(parts[2]) - 1, n_features))
    y = next(arrays) if has_y else None
    return Batch(X, y, next(arrays) if has_weight else None, rows)
