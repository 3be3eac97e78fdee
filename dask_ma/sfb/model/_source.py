"""Sources of a rank's batches: its rows, or pairs of rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce
from dask_ma.data import Shard
from dask_ma.engine import RankContext
from dask_ma.sfb.model._model import Batch
from dask_ma.sfb.model._rows import row_batches
from dask_ma.supervised import Piece, pass_batches, pass_generator

# Of rows that a rank picks at a time; there may be many ranks in a process.
_CHUNK_BYTES = 2**20


class OwnRows(Batch):
    """A batch whose rows are there for it alone, and may be changed in place."""


class Source(ABC):
    """What a rank goes over in a pass.

    Attributes
    ----------
    n_units : int
        Rows, or pairs, of this rank.
    reads_units : bool
        Whether :meth:`read` gives the rows that a pass goes over, no others, and none
        of them twice.
    """

    n_units: int
    reads_units = False

    def count_steps(self, group: Group, batch_size: int) -> int:
        """Iterations of a pass, the same on all ranks; a collective call."""
        most = int(allreduce(group, np.array(self.n_units), "max"))
        return -(-most // batch_size)

    @abstractmethod
    def batches(self, n_steps: int, n_passes: int) -> Iterator[Batch]:
        """As many batches, some perhaps empty, for the pass after so many passes."""

    @abstractmethod
    def read(self, n_outputs: int) -> Iterator[Batch]:
        """All that the rank has, in order, some at a time."""


class RowSource(Source):
    """The rows of a shard, in a new order in each pass.

    Parameters
    ----------
    context : RankContext
        This rank.
    shard : Shard
        The rank's rows.
    shuffle : bool
        Whether the order is new.
    """

    reads_units = True

    def __init__(self, context: RankContext, shard: Shard, *, shuffle: bool) -> None:
        self._context = context
        self._shard = shard
        self._shuffle = shuffle
        self.n_units = shard.n_rows

    def batches(self, n_steps: int, n_passes: int) -> Iterator[Batch]:
        rng = pass_generator(self._context, n_passes) if self._shuffle else None
        # Chunks end with batches, so these are not put together of two, in a copy.
        options = {"chunk_bytes": _CHUNK_BYTES, "period": 1}
        for pieces in pass_batches(self._shard, n_steps, rng, **options):
            # In a new order, they are picked for one batch each.
            yield _taken(pieces, self._shard, are_picked=rng is not None)

    def read(self, n_outputs: int) -> Iterator[Batch]:
        for _, batch in row_batches(self._shard, n_outputs):
            yield batch


class Ahead(Iterator[Batch]):
    """Batches, the next of which can be put together before it is asked for.

    Parameters
    ----------
    batches : iterator of Batch
    """

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._fetched: list[Batch] = []

    def fetch(self) -> None:
        """Put the next one together, if there is one, and it has not been yet."""
        if not self._fetched:
            self._fetched.extend(islice(self._batches, 1))

    def __next__(self) -> Batch:
        self.fetch()
        if not self._fetched:
            raise StopIteration
        return self._fetched.pop()


def _taken(pieces: list[Piece], shard: Shard, *, are_picked: bool) -> Batch:
    """The batch of some pieces, which nobody but the caller keeps."""
    is_own = are_picked or len(pieces) > 1  # else some rows of the shard itself
    batch = merged(pieces, shard)
    pieces.clear()
    return OwnRows(*batch) if is_own else batch


def merged(pieces: list[Piece], shard: Shard) -> Batch:
    """One batch of the pieces of a step."""
    if not pieces:
        empty = np.zeros(0, dtype=np.int64)
        return Batch(np.zeros((0, shard.n_features)), None, None, empty)
    return joined([Batch(*piece) for piece in pieces])


def joined(pieces: list[Batch]) -> Batch:
    """One batch of at least one."""
    if len(pieces) == 1:
        return pieces[0]
    X = [piece.X for piece in pieces]
    weights: list[Any] = [piece.sample_weight for piece in pieces]
    labels: list[Any] = [piece.y for piece in pieces]
    return Batch(
        sparse.vstack(X, format="csr") if sparse.issparse(X[0]) else np.vstack(X),
        None if labels[0] is None else np.concatenate(labels),
        None if weights[0] is None else np.concatenate(weights),
        np.concatenate([piece.rows for piece in pieces]),
    )
