"""Batches that are the same on any number of ranks, each rank taking what it has."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dask_ma.comm import Group, allgather
from dask_ma.data import Shard
from dask_ma.engine import RankContext
from dask_ma.sfb.exchange._outputs import packed, unpacked
from dask_ma.sfb.model._model import Batch
from dask_ma.sfb.model._pairs import PairSource, RowTable, Tuples
from dask_ma.sfb.model._source import Source, joined

_CHUNK = 4096  # rows at a time
_HOLD_OUT = 2**32  # tells that draw from those of passes, which are fewer


class Plan:
    """The order of all rows, or pairs, in each pass, and who has them.

    Batches hold all classes in the proportions of all rows, as far as that goes, so
    that rows sorted by class are no harder than others.

    Parameters
    ----------
    codes : ndarray of int of shape (n,)
        Classes of all of them, the same on all ranks.
    places : ndarray of int of shape (n,)
        Where this rank has them; -1 for those of others.
    entropy : int
        Seed of the orders, the same on all ranks.
    held_out : float
        Share that is kept for validation.

    Attributes
    ----------
    train, validation : ndarray of int64
        Which of them a pass goes over, and which are held out.
    train_codes, held_out_codes : ndarray of int
        Their classes.
    """

    def __init__(
        self, codes: np.ndarray, places: np.ndarray, entropy: int, held_out: float
    ) -> None:
        self._entropy = entropy
        self._places = places
        order = _spread(codes, self._generator(_HOLD_OUT))
        n_held_out = 0
        if held_out:
            n_held_out = min(max(1, int(held_out * len(codes))), len(codes) - 1)
        self.validation = np.sort(order[:n_held_out])
        self.train = np.sort(order[n_held_out:])
        self.train_codes = codes[self.train]
        self.held_out_codes = codes[self.validation]

    @property
    def n_own(self) -> int:
        """Rows or pairs of this rank that a pass goes over."""
        return int((self._places[self.train] >= 0).sum())

    def own(self, units: np.ndarray) -> np.ndarray:
        """Places of those that this rank has."""
        places = self._places[units]
        return places[places >= 0]

    def n_steps(self, batch_size: int) -> int:
        """Batches of a pass."""
        return max(1, -(-len(self.train) // batch_size))

    def parts(self, n_steps: int, n_passes: int) -> Iterator[np.ndarray]:
        """Places of this rank's part of each batch, in the pass after some passes."""
        order = self.train[_spread(self.train_codes, self._generator(n_passes))]
        for step in range(n_steps):
            start, stop = (len(order) * s // n_steps for s in (step, step + 1))
            yield self.own(order[start:stop])

    def _generator(self, key: int) -> np.random.Generator:
        """Random numbers for a purpose."""
        seed = np.random.SeedSequence(self._entropy, spawn_key=(key,))
        return np.random.default_rng(seed)


def _spread(codes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random order in which each class is spread evenly."""
    order = np.lexsort((rng.random(len(codes)), codes))
    counts = np.bincount(codes)
    firsts = np.cumsum(counts) - counts
    sorted_codes = codes[order]
    rank = np.arange(len(codes)) - firsts[sorted_codes]
    keys = np.empty(len(codes))
    keys[order] = (rank + rng.random(len(codes))) / counts[sorted_codes]
    return np.argsort(keys)


class LabelSource(Source):
    """Rows with classes; making one is a collective call.

    Parameters
    ----------
    context : RankContext
        This rank.
    shard : Shard
        The rank's rows; y holds codes of classes.
    held_out : float
        Share that is kept for validation.

    Attributes
    ----------
    table : RowTable
        Rows of this rank.
    plan : Plan
    """

    def __init__(self, context: RankContext, shard: Shard, held_out: float) -> None:
        self.table = RowTable(shard)
        labels = [np.zeros(0, dtype=np.int64), *(block.y for block in shard.blocks)]
        self._codes = np.concatenate(labels).astype(np.int64)
        found = (block.sample_weight for block in shard.blocks)
        weights = [each for each in found if each is not None]  # of all blocks, or none
        self._weights = np.concatenate(weights) if weights else None
        numbers, codes = gather_rows(context.group, self.table.numbers, self._codes)
        places = self.table.find(numbers)
        self.plan = Plan(codes, places, entropy_of(context), held_out)
        self.n_units = self.plan.n_own

    def count_steps(self, group: Group, batch_size: int) -> int:
        return self.plan.n_steps(batch_size)

    def take(self, places: np.ndarray) -> Batch:
        """A batch of some rows of this rank."""
        weights = None if self._weights is None else self._weights[places]
        return Batch(self.table.take(places), self._codes[places], weights, places)

    def codes_at(self, places: np.ndarray) -> np.ndarray:
        """Classes of some rows of this rank."""
        return self._codes[places]

    def batches(self, n_steps: int, n_passes: int) -> Iterator[Batch]:
        return map(self.take, self.plan.parts(n_steps, n_passes))

    def read(self, n_outputs: int) -> Iterator[Batch]:
        return map(self.take, chunks(self.plan.own(self.plan.train)))


class PlannedPairs(PairSource):
    """Pairs in batches that do not depend on the ranks; making one is collective.

    Parameters
    ----------
    context, shard, tuples
        As in :class:`PairSource`.
    held_out : float
        Share that is kept for validation.

    Attributes
    ----------
    plan : Plan
    n_distances : int
        1 of pairs, 2 of triplets.
    """

    def __init__(
        self, context: RankContext, shard: Shard, tuples: Tuples, held_out: float
    ) -> None:
        super().__init__(context, shard, tuples, shuffle=True)
        n_tuples = len(tuples.rows)
        self.n_distances = tuples.rows.shape[1] - 1
        places = np.full(n_tuples, -1)
        places[self.numbers] = np.arange(self.n_units)
        codes = np.zeros(n_tuples, dtype=np.int64)
        if tuples.labels is not None:
            codes[:] = tuples.labels > 0
        self.plan = Plan(codes, places, entropy_of(context), held_out)
        self.n_units = self.plan.n_own

    def count_steps(self, group: Group, batch_size: int) -> int:
        return self.plan.n_steps(batch_size)

    def batches(self, n_steps: int, n_passes: int) -> Iterator[Batch]:
        return map(self.take, self.plan.parts(n_steps, n_passes))

    def read(self, n_outputs: int) -> Iterator[Batch]:
        return map(self.take, chunks(self.plan.own(self.plan.train)))


def chunks(places: np.ndarray) -> Iterator[np.ndarray]:
    """Some of many at a time."""
    for start in range(0, len(places), _CHUNK):
        yield places[start : start + _CHUNK]


def entropy_of(context: RankContext) -> int:
    """Seed that all ranks share."""
    entropy = context.seed.entropy
    assert isinstance(entropy, int)
    return entropy


def gather_rows(
    group: Group, numbers: np.ndarray, codes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of all rows, sorted, and their codes; a collective call."""
    parts = allgather(group, [numbers, codes])
    all_numbers = np.concatenate([part[0] for part in parts])
    order = np.argsort(all_numbers, kind="stable")
    return all_numbers[order], np.concatenate([part[1] for part in parts])[order]


def gather_batch(group: Group, batch: Batch) -> tuple[Batch, int]:
    """Parts of a batch that all ranks have, and where one's own begins; collective."""
    if group.size == 1:
        return batch, 0
    parts = [unpacked(each)[0] for each in allgather(group, packed([batch]))]
    first = sum(part.n_rows for part in parts[: group.rank])
    return joined([part for part in parts if part.n_rows] or parts[:1]), first
