"""Batches that are the same on any number of ranks, each rank taking what it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from dask_ma.comm import Group, allgather
from dask_ma.data import Shard
from dask_ma.engine import RankContext
from dask_ma.sfb.exchange._outputs import packed, unpacked
from dask_ma.sfb.model._model import Batch
from dask_ma.sfb.model._pairs import PairSource, RowTable, Tuples, index_type
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
        # Of all rows of all ranks: small numbers, and as few copies as may be.
        self._entropy = entropy
        self._places = places
        n_held_out = 0
        order = np.arange(len(codes), dtype=index_type(len(codes)))
        if held_out:
            order = _spread(codes, self._generator(_HOLD_OUT))
            n_held_out = min(max(1, int(held_out * len(codes))), len(codes) - 1)
            order[:n_held_out].sort()
            order[n_held_out:].sort()
        self.validation, self.train = order[:n_held_out], order[n_held_out:]
        self.train_codes = codes[self.train] if held_out else codes
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
    rank = np.arange(len(codes))
    rank -= firsts.take(sorted_codes)
    sorted_keys = rng.random(len(codes))
    sorted_keys += rank
    sorted_keys /= counts.take(sorted_codes)
    del rank
    keys = np.empty(len(codes))
    keys[order] = sorted_keys
    del order, sorted_keys
    return np.argsort(keys).astype(index_type(len(codes)))


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
        labels = [np.zeros(0, dtype=np.uint8)]
        for block in shard.blocks:
            largest = int(block.y.max(initial=0))
            labels.append(block.y.astype(np.min_scalar_type(largest)))
        self._codes = np.concatenate(labels)
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
        return Batch(self.table.take(places), self.codes_at(places), weights, places)

    def codes_at(self, places: np.ndarray) -> np.ndarray:
        """Classes of some rows of this rank."""
        return self._codes[places].astype(np.int64)

    def batches(self, n_steps: int, n_passes: int) -> Iterator[Batch]:
        parts = self.plan.parts(n_steps, n_passes)
        return taken_together(self.take, parts, self.table.rows_together)

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
        parts = self.plan.parts(n_steps, n_passes)
        n_together = self.table.rows_together // (1 + self.n_distances)
        return taken_together(self.take, parts, n_together)

    def read(self, n_outputs: int) -> Iterator[Batch]:
        return map(self.take, chunks(self.plan.own(self.plan.train)))


def taken_together(
    take: Callable[[np.ndarray], Batch], parts: Iterable[np.ndarray], most: int
) -> Iterator[Batch]:
    """Batches of some parts, several of which are taken at once, up to `most` units.

    Each look at the rows goes to all blocks, of which a disk may have thousands.
    """
    group: list[np.ndarray] = []
    for part in parts:
        if group and sum(map(len, group)) + len(part) > most:
            yield from _cut(take, group)
            group = []
        group.append(part)
    yield from _cut(take, group)


def _cut(
    take: Callable[[np.ndarray], Batch], group: list[np.ndarray]
) -> Iterator[Batch]:
    """Batches of some parts that are taken at once."""
    if len(group) < 2:
        yield from map(take, group)
        return
    whole = take(np.concatenate(group))
    ends = np.cumsum([0, *map(len, group)]).tolist()
    for own in map(slice, ends[:-1], ends[1:]):
        y, weights = (None if c is None else c[own] for c in whole[1:3])
        others = tuple(other[own] for other in whole.others)
        yield Batch(whole.X[own], y, weights, whole.rows[own], others)


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
    all_numbers, all_codes = map(np.concatenate, zip(*parts, strict=True))
    del parts
    if (all_numbers[1:] >= all_numbers[:-1]).all():
        return all_numbers, all_codes
    order = np.argsort(all_numbers, kind="stable")
    return all_numbers[order], all_codes[order]


def gather_batch(group: Group, batch: Batch) -> tuple[Batch, int]:
    """Parts of a batch that all ranks have, and where one's own begins; collective."""
    if group.size == 1:
        return batch, 0
    parts = [unpacked(each)[0] for each in allgather(group, packed([batch]))]
    first = sum(part.n_rows for part in parts[: group.rank])
    return joined([part for part in parts if part.n_rows] or parts[:1]), first
