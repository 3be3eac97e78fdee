"""Outputs shared out over the ranks: rows travel ahead, and small sums of outputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather
from dask_ma.kernels import row_slice
from dask_ma.kernels.prox import L1, L2, ElasticNet, NoPenalty
from dask_ma.sfb.model._model import Batch, FactorModel, view_of
from dask_ma.sfb.model._source import joined

_TAG, _SUMS = "sfb-rows", "sfb-sums"
# A message costs about as much as a copy of so many bytes.
_MESSAGE_BYTES, _MOST_TOGETHER = 2**18, 16
# Of the whole matrix, so many bytes travel at a time.
_PART_BYTES = 2**24
# Passes between states of all outputs, at most; and by how much passes have to outweigh
# what a state sends.
_MOST_PASSES, _DEAR = 16, 4
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
        self.outputs = share_of(group.rank, group.size, n_outputs)

    def stream(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Batches of all ranks, joined in the order of ranks; a collective call.

        The rows of some batches are sent while those before are worked on.

        Parameters
        ----------
        batches : iterator of Batch
            This rank's; others may have more, or fewer.

        Yields
        ------
        batch : Batch
            The same on all ranks.
        """
        own = self._sent(batches)
        # Own rows first: others wait for them.
        ranks = sorted(range(self._group.size), key=lambda r: r != self._group.rank)
        waiting: dict[int, deque[Batch]] = {rank: deque() for rank in ranks}
        while waiting:
            for rank, parts in waiting.items():
                if not parts:
                    parts.extend(self._next_parts(rank, own))
            waiting = {rank: parts for rank, parts in waiting.items() if parts}
            found = [waiting[rank].popleft() for rank in sorted(waiting)]
            if found:
                yield joined([part for part in found if part.n_rows] or found[:1])

    def post(self, sums: np.ndarray) -> None:
        """Send sums of this rank's outputs to all others, and wait for nothing.

        Parameters
        ----------
        sums : ndarray of shape (n_rows, n_sums)
            A model may change it afterwards.
        """
        for peer in range(self._group.size):
            if peer != self._group.rank:
                self._group.push(sums, peer, _SUMS)

    def take(self, sums: np.ndarray) -> list[np.ndarray]:
        """Wait for the sums of all others that belong to some posted, in order.

        Parameters
        ----------
        sums : ndarray of shape (n_rows, n_sums)
            This rank's.

        Returns
        -------
        parts : list of ndarray
            Those of all ranks.
        """
        group = self._group
        return [
            sums if rank == group.rank else group.recv(rank, _SUMS)
            for rank in range(group.size)
        ]

    def cut(self, array: Any) -> Any:
        """This rank's outputs of an array with a place for each output, the last axis.

        None, and what has been cut already, stay as they are.
        """
        if array is None or array.shape[-1] != self.n_outputs:
            return array
        return np.ascontiguousarray(array[..., self.outputs])

    def cut_all(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """The same of several, and what is no array as it is."""
        return {
            name: self.cut(array) if isinstance(array, np.ndarray) else array
            for name, array in arrays.items()
        }

    def gather(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """Arrays of all outputs, from those of the ranks; a collective call."""
        names = [name for name, array in arrays.items() if array is not None]
        parts = allgather(self._group, [arrays[name] for name in names])
        found = zip(*parts, strict=True)
        whole = (np.concatenate(each, axis=-1) for each in found)
        return {**arrays, **dict(zip(names, whole, strict=True))}

    def collect(self, array: np.ndarray, tag: str) -> np.ndarray:
        """The whole array on rank 0, one part after the other; a collective call.

        Parameters
        ----------
        array : ndarray of shape (n_shared,) or (n_rows, n_shared)
            This rank's outputs.
        tag : str
            Tells one array from another.

        Returns
        -------
        whole : ndarray of shape (n_outputs,) or (n_rows, n_outputs), C-contiguous
            Other ranks get back what they have given.
        """
        group, name = self._group, (_TAG, tag)
        size = max(1, _PART_BYTES // max(1, array[:1].nbytes))
        if group.rank > 0:
            # Some rows at a time: rank 0 has few of them twice.
            for start in range(0, len(array), size):
                group.push(array[start : start + size], 0, name)
            group.flush()
            return array
        whole = np.empty((*array.shape[:-1], self.n_outputs), dtype=array.dtype)
        whole[..., self.outputs] = array
        for source in range(1, group.size):
            place = whole[..., share_of(source, group.size, self.n_outputs)]
            start = 0
            while start < len(place):
                part = group.recv(source, name)
                place[start : start + len(part)] = part
                start += len(part)
        return whole

    def _sent(self, batches: Iterator[Batch]) -> Iterator[list[Batch]]:
        """This rank's batches, some at a time, of which the next are under way."""
        ahead: deque[list[Batch]] = deque()
        for parts in together(batches):
            self._send(parts)
            ahead.append(parts)
            if len(ahead) > 1:
                yield ahead.popleft()
        self._send([])
        yield from ahead

    def _next_parts(self, rank: int, own: Iterator[list[Batch]]) -> list[Batch]:
        """The next batches of a rank; none at its end."""
        if rank == self._group.rank:
            return next(own, [])
        return unpacked(self._group.recv(rank, _TAG))

    def _send(self, batches: list[Batch]) -> None:
        """Send rows to all others, which need not take them yet; none for the end."""
        if self._group.size == 1:
            return
        message = packed(batches) if batches else [np.zeros(0, np.int64)]
        for peer in range(self._group.size):
            if peer != self._group.rank:
                self._group.push(message, peer, _TAG, copy=False)


def kept_every(n_features: int, n_rows: int) -> int:
    """Passes from one state that has all outputs to the next.

    To put it together sends the matrix, and what belongs to it, to all ranks: as much
    as sums of all outputs for as many rows as there are features.
    """
    return min(max(1, _DEAR * n_features // max(1, n_rows)), _MOST_PASSES)


def share_of(rank: int, n_ranks: int, n_outputs: int) -> slice:
    """Outputs of a rank."""
    start, stop = (n_outputs * r // n_ranks for r in (rank, rank + 1))
    return slice(start, stop)


def can_share(group: Group, model: FactorModel, n_outputs: int) -> bool:
    """Whether each rank can have some outputs of its own."""
    if model.common_step is not None or view_of(model) is not None:
        return False
    is_separable = model.shares_outputs and isinstance(model.prox, SEPARABLE)
    return is_separable and n_outputs >= group.size


def check_shares(group: Group, model: FactorModel, n_outputs: int) -> None:
    """Refuse models whose outputs cannot be shared out."""
    if can_share(group, model, n_outputs):
        return
    if model.shares_outputs and n_outputs < group.size:
        raise ValueError(
            f"content='outputs' shares out outputs, of which there are {n_outputs} "
            f"for {group.size} ranks; set n_ranks={n_outputs}, or use another content"
        )
    does = "shares" if model.shares_outputs else "cannot share"
    raise ValueError(
        "content='outputs' needs a model that shares outputs, and a penalty of single "
        f"elements, but {type(model).__name__} has {n_outputs} outputs, which it "
        f"{does}, and {model.prox!r}; use another content"
    )


def together(batches: Iterator[Batch]) -> Iterator[list[Batch]]:
    """Batches, as many at a time as make a message worth its costs."""
    parts: list[Batch] = []
    size = 0
    for batch in batches:
        parts.append(batch)
        size += nbytes_of(batch)
        if size >= _MESSAGE_BYTES or len(parts) == _MOST_TOGETHER:
            yield parts
            parts, size = [], 0
    if parts:
        yield parts


def nbytes_of(batch: Batch) -> int:
    """Bytes of the rows of a batch, but for their lengths."""
    X = batch.X
    return int(X.data.nbytes + X.indices.nbytes if sparse.issparse(X) else X.nbytes)


def halves(batch: Batch) -> list[Batch]:
    """Two batches of the rows of one."""
    n_rows = batch.n_rows
    y, weight = batch.y, batch.sample_weight
    return [
        Batch(
            row_slice(batch.X, start, stop),
            None if y is None else y[start:stop],
            None if weight is None else weight[start:stop],
            batch.rows[start:stop],
        )
        for start, stop in pairwise((0, n_rows // 2, n_rows))
    ]


def packed(batches: list[Batch]) -> list[np.ndarray]:
    """Batches as a message: a header, lengths, rows, and what comes with them."""
    batch = joined([each for each in batches if each.n_rows] or batches[:1])
    X, y, weight = batch.X, batch.y, batch.sample_weight
    flags = [sparse.issparse(X), y is not None, weight is not None, X.shape[1]]
    lengths = [(each.X.shape[0], each.n_rows) for each in batches]
    rows = [X.data, X.indices, X.indptr] if flags[0] else [np.ascontiguousarray(X)]
    others = [np.ascontiguousarray(a) for a in (y, weight) if a is not None]
    header = [np.array(part, dtype=np.int64) for part in (flags, lengths)]
    return [*header, batch.rows, *rows, *others]


def unpacked(message: list[np.ndarray]) -> list[Batch]:
    """The batches of a message; none for the end."""
    if not len(message[0]):
        return []
    is_sparse, has_y, has_weight, n_features = message[0].tolist()
    rows, arrays = message[2], iter(message[3:])
    X: Any = next(arrays)
    if is_sparse:
        parts = X, next(arrays), next(arrays)
        X = sparse.csr_array(parts, shape=(len(parts[2]) - 1, n_features))
    y = next(arrays) if has_y else None
    weight = next(arrays) if has_weight else None
    bounds = np.cumsum([(0, 0), *message[1].tolist()], axis=0).tolist()
    return [
        Batch(
            row_slice(X, start, stop),
            None if y is None else y[first:last],
            None if weight is None else weight[first:last],
            rows[first:last],
        )
        for (start, first), (stop, last) in pairwise(bounds)
    ]
