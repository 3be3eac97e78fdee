"""Pairs and triplets of rows, which may lie on several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather, allreduce, alltoall
from dask_ma.data import Shard, describe, hand_back, is_dask_collection, is_on_disk
from dask_ma.engine import RankContext
from dask_ma.sfb.model._model import Batch
from dask_ma.sfb.model._source import Source
from dask_ma.supervised import pass_generator

_CHUNK = 2**20  # elements of rows at a time, where all pairs are gone over
_LOOKED_UP = 2**16  # rows whose places are found at a time
_TOGETHER = 2**24  # bytes of rows that are picked before they are needed
_FEW_BLOCKS = 2  # one of its own, and what a rank got from others


class Tuples(NamedTuple):
    """Pairs, or triplets, of rows.

    Attributes
    ----------
    rows : ndarray of int64 of shape (n_pairs, 2) or (n_pairs, 3)
        Numbers of rows in the whole input.
    labels, weights : ndarray of shape (n_pairs,), or None
    """

    rows: np.ndarray
    labels: np.ndarray | None
    weights: np.ndarray | None = None

    def pick(self, chosen: np.ndarray) -> Tuples:
        """Some of them."""
        labels, weights = (
            None if part is None else part[chosen]
            for part in (self.labels, self.weights)
        )
        return Tuples(self.rows[chosen], labels, weights)


def check_tuples(
    pairs: Any, labels: Any, n_rows: int | None, *, allow_same: bool = False
) -> Tuples:
    """Refuse what is no pairs or triplets of rows.

    Parameters
    ----------
    pairs : array-like of int of shape (n_pairs, 2) or (n_pairs, 3)
    labels : array-like of shape (n_pairs,), or None
    n_rows : int or None
        Rows of the input; None if nobody knows yet.
    allow_same : bool, default=False
        Whether a row may be paired with itself.

    Returns
    -------
    tuples : Tuples

    Raises
    ------
    ValueError, TypeError
        For another shape, no integers, rows that do not exist, a row with itself, and
        labels of another length.
    """
    rows = np.asarray(pairs)
    if rows.ndim != 2 or rows.shape[1] not in (2, 3) or not len(rows):
        raise ValueError(
            f"pairs has the shape {rows.shape}, expected (n_pairs, 2), or (n_pairs, 3) "
            "for triplets, with at least one"
        )
    if rows.dtype.kind not in "iu":
        raise TypeError(f"pairs has elements of {rows.dtype}, expected row numbers")
    rows = rows.astype(np.int64)
    _check_range(rows, n_rows)
    same = np.flatnonzero((rows[:, :1] == rows[:, 1:]).any(axis=1))
    if len(same) and not allow_same:
        raise ValueError(
            f"{len(same)} pairs are of a row with itself, as pair {same[0]}: "
            f"{rows[same[0]].tolist()}; leave them out"
        )
    if labels is None:
        return Tuples(rows, None)
    labels = np.asarray(labels)
    if labels.shape != (len(rows),):
        raise ValueError(
            f"pair_labels has the shape {labels.shape}, expected ({len(rows)},), one "
            "label for each pair"
        )
    return Tuples(rows, labels)


def known_length(X: Any) -> int | None:
    """Rows of an input, if they are known without a computation."""
    if is_dask_collection(X):
        return describe(X).n_rows
    shape = np.shape(X)
    return int(shape[0]) if shape else None  # what has none is refused later


def _check_range(rows: np.ndarray, n_rows: int | None) -> None:
    """Refuse numbers of rows that do not exist."""
    wrong = rows < 0
    if n_rows is not None:
        wrong |= rows >= n_rows
    found = np.flatnonzero(wrong.any(axis=1))
    if len(found):
        there = "" if n_rows is None else f"; X has the rows 0 to {n_rows - 1}"
        raise ValueError(
            f"{len(found)} pairs are out of range, as pair {found[0]}: "
            f"{rows[found[0]].tolist()}{there}"
        )


def index_type(n: int) -> Any:
    """Type of numbers below `n`, and of -1."""
    return np.int32 if n <= np.iinfo(np.int32).max else np.int64


class RowTable:
    """Rows that can be picked one by one: those of a shard, and some of others.

    Parameters
    ----------
    shard : Shard
        The rank's rows.

    Attributes
    ----------
    numbers : ndarray of int64 of shape (n_rows,)
        Numbers of the rows in the whole input.
    n_own : int
        How many of them are rows of the shard; they come first.
    n_features : int
    rows_together : int
        How many may be picked at a time, for the sake of memory.
    """

    def __init__(self, shard: Shard) -> None:
        self.n_features = shard.n_features
        self.n_own = shard.n_rows
        self._dtype = shard.dtype
        self._blocks = [block.X for block in shard.blocks]
        numbers = [np.zeros(0, dtype=np.int64)]
        for block in shard.blocks:
            first = 0 if block.start is None else block.start
            numbers.append(first + np.arange(block.X.shape[0], dtype=np.int64))
        self.numbers = np.concatenate(numbers)
        self._index()

    def _index(self) -> None:
        """Where blocks begin, and the order of the numbers."""
        self._firsts = np.cumsum([0, *(X.shape[0] for X in self._blocks)])
        numbers = self.numbers
        nbytes = sum(_nbytes(X) for X in self._blocks)
        self.rows_together = _TOGETHER * len(numbers) // max(1, nbytes)
        if (numbers[1:] >= numbers[:-1]).all():
            self._order = np.arange(len(numbers), dtype=index_type(len(numbers)))
            self._sorted = numbers
            return
        order = np.argsort(numbers, kind="stable")
        self._order = order.astype(index_type(len(numbers)))
        self._sorted = numbers[order]

    @property
    def is_at_hand(self) -> bool:
        """Whether rows are there at once, and many looks at them cost no more."""
        blocks = self._blocks
        is_dense = not any(map(sparse.issparse, blocks))
        return (
            len(blocks) <= _FEW_BLOCKS and is_dense and not any(map(is_on_disk, blocks))
        )

    def find(self, numbers: np.ndarray) -> np.ndarray:
        """Places of rows, -1 for those that are not there."""
        places = np.full(numbers.shape, -1, dtype=self._order.dtype)
        if not len(self._sorted):
            return places
        for start in range(0, len(numbers), _LOOKED_UP):
            part = slice(start, start + _LOOKED_UP)
            at = np.searchsorted(self._sorted, numbers[part])
            at = at.clip(max=len(self._sorted) - 1)
            found = self._sorted[at] == numbers[part]
            places[part] = np.where(found, self._order[at], -1)
        return places

    def take(self, places: np.ndarray) -> Any:
        """Rows at some places, as one ndarray or CSR of shape (n, n_features)."""
        if not self._blocks:
            return np.zeros((len(places), self.n_features), dtype=self._dtype)
        if len(self._blocks) == 1:
            return self._picked(0, places)
        # In the order in which they lie, which is the quickest from a disk.
        order = np.argsort(places, kind="stable")
        which = np.searchsorted(self._firsts, places[order], side="right") - 1
        used, starts = np.unique(which, return_index=True)
        if not len(used):
            return self._blocks[0][:0]
        places_of = dict(zip(used.tolist(), np.split(order, starts[1:]), strict=True))
        if sparse.issparse(self._blocks[0]):
            parts = [self._picked(block, places[at]) for block, at in places_of.items()]
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            return sparse.vstack(parts, format="csr")[back]
        return self._put_together(places, places_of)

    def _put_together(
        self, places: np.ndarray, places_of: dict[int, np.ndarray]
    ) -> np.ndarray:
        """Dense rows of several blocks, and which of them are of each."""
        most = max(places_of, key=lambda block: len(places_of[block]))
        is_most = 2 * len(places_of[most]) >= len(places)
        if is_most and self._blocks[most].dtype == self._dtype:
            # Copied once, with some of the block in the place of rows of others.
            first, end = self._firsts[most : most + 2]
            found = self._picked(most, places.clip(first, end - 1))
            del places_of[most]
        else:
            found = np.empty((len(places), self.n_features), dtype=self._dtype)
        for block, at in places_of.items():
            found[at] = self._picked(block, places[at])
        return np.asarray(found)

    def _picked(self, block: int, places: np.ndarray) -> Any:
        """Rows of a block, whose pages go back to the system if it is on a disk."""
        rows = self._blocks[block][places - self._firsts[block]]
        hand_back(self._blocks[block])
        return rows

    def fetch(self, group: Group, wanted: np.ndarray) -> None:
        """Get rows that other ranks have, each once; a collective call.

        Parameters
        ----------
        group : Group
            This rank.
        wanted : ndarray of int64
            Numbers of rows; those that no rank has are passed over.
        """
        missing = np.unique(wanted[self.find(wanted) < 0])
        requests = allgather(group, missing)
        replies = []
        for request in requests:
            places = self.find(request)
            there = places >= 0
            replies.append(_packed(request[there], self.take(places[there])))
        for source, reply in enumerate(alltoall(group, replies)):
            if source != group.rank and len(reply[0]):
                self.numbers = np.concatenate([self.numbers, reply[0]])
                self._blocks.append(_unpacked(reply[1:], self.n_features))
        self._index()


def _nbytes(X: Any) -> int:
    """Bytes of rows."""
    parts = [X.data, X.indices, X.indptr] if sparse.issparse(X) else [X]
    return sum(int(part.nbytes) for part in parts)


def _packed(numbers: np.ndarray, X: Any) -> list[np.ndarray]:
    """Rows as a message."""
    if sparse.issparse(X):
        return [numbers, X.data, X.indices, X.indptr]
    return [numbers, X]


def _unpacked(parts: list[np.ndarray], n_features: int) -> Any:
    """Rows of a message."""
    if len(parts) == 1:
        return parts[0]
    return sparse.csr_array(tuple(parts), shape=(len(parts[2]) - 1, n_features))


class PairSource(Source):
    """The pairs whose first row a rank has; making one is a collective call.

    Parameters
    ----------
    context : RankContext
        This rank.
    shard : Shard
        The rank's rows.
    tuples : Tuples
        Pairs or triplets of all ranks.
    shuffle : bool
        Whether each pass goes over them in a new order.

    Attributes
    ----------
    numbers : ndarray of int64 of shape (n_units,)
        Which of all pairs the rank has. Those of rows that are lost nobody has.
    table : RowTable
        Rows of this rank, and second and third rows of its pairs.
    """

    def __init__(
        self, context: RankContext, shard: Shard, tuples: Tuples, *, shuffle: bool
    ) -> None:
        self._context = context
        self._shuffle = shuffle
        self._tuples, self._n_tuples = tuples, len(tuples.rows)
        self.table = RowTable(shard)
        numbers = np.flatnonzero(self.table.find(tuples.rows[:, 0]) >= 0)
        self._have(context.group, numbers)

    def _have(self, group: Group, numbers: np.ndarray) -> None:
        """Get the rows of some pairs, which are this rank's; a collective call."""
        own = self._tuples.pick(numbers)
        self.table.fetch(group, own.rows.ravel())
        places = self.table.find(own.rows)
        there = np.flatnonzero((places >= 0).all(axis=1))
        self.numbers, self._places = numbers[there], places[there]
        _, self._labels, self._weights = own.pick(there)
        self.n_units = len(self._places)

    def check_all(self, group: Group) -> None:
        """Refuse rows that no rank has; a collective call."""
        n_all = int(allreduce(group, np.array(len(self._places))))
        if n_all < self._n_tuples:
            raise ValueError(
                f"{self._n_tuples - n_all} of {self._n_tuples} pairs are out of range: "
                "X does not have so many rows"
            )

    def take(self, units: np.ndarray) -> Batch:
        """A batch of some pairs."""
        X, *others = (self.table.take(places) for places in self._places[units].T)
        labels, weights = (
            None if part is None else part[units]
            for part in (self._labels, self._weights)
        )
        return Batch(X, labels, weights, units, tuple(others))

    def batches(self, n_steps: int, n_passes: int) -> Iterator[Batch]:
        order = np.arange(self.n_units)
        if self._shuffle:
            order = pass_generator(self._context, n_passes).permutation(self.n_units)
        for step in range(n_steps):
            start, stop = (self.n_units * s // n_steps for s in (step, step + 1))
            yield self.take(order[start:stop])

    def read(self, n_outputs: int) -> Iterator[Batch]:
        size = max(64, _CHUNK // max(1, n_outputs))
        for start in range(0, self.n_units, size):
            yield self.take(np.arange(start, min(start + size, self.n_units)))
