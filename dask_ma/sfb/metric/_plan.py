"""Batches that are the same on any number of ranks, each rank taking what it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather
from dask_ma.data import Shard
from dask_ma.engine import RankContext
from dask_ma.sfb.exchange._outputs import packed, unpacked
from dask_ma.sfb.model._model import Batch
from dask_ma.sfb.model._pairs import PairSource, RowTable, Tuples, index_type
from dask_ma.sfb.model._source import Source, joined

#: Rows of a group, or pairs of a batch, where nobody says how many.
GROUP_SIZE = 256
#: Passes of a fit at least, and groups of all its batches, as far as passes go: after
#: which distances hardly become better, whatever the number of rows.
LEAST_PASSES, ENOUGH_GROUPS = 3, 120
# Steps that are enough, and rows that a group is drawn from at least.
_ENOUGH_STEPS, _LEAST_STOCK = 58, 2048
_CHUNK = 4096  # rows at a time
_HOLD_OUT = 2**32  # tells that draw from those of passes, which are fewer


def count_groups(n_rows: int) -> int:
    """Groups of a batch of so many rows: a power of two, which ranks mostly share out.

    As many as leave enough steps; each costs an exchange.
    """
    in_all = max(ENOUGH_GROUPS, LEAST_PASSES * n_rows / GROUP_SIZE)
    most = int(min(in_all / _ENOUGH_STEPS, n_rows / _LEAST_STOCK))
    return 1 << max(0, most.bit_length() - 1)


def count_steps(n_rows: int, batch_size: int, n_groups: int) -> int:
    """Batches of a pass over so many rows or pairs, of groups of a size."""
    return max(1, -(-n_rows // (batch_size * n_groups)))


def count_passes(max_iter: int | str, n_steps: int, n_groups: int) -> int:
    """Most passes, of so many batches."""
    if not isinstance(max_iter, str):
        return max_iter
    return max(LEAST_PASSES, -(-ENOUGH_GROUPS // (n_steps * n_groups)))


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
    is_grouped : bool, default=False
        Whether batches of many rows are made of groups: each class is cut into as many
        runs of consecutive rows, and a group has rows of one run of each.

    Attributes
    ----------
    places : ndarray of int of shape (n,)
        As above. Those of rows that a pass goes over may be given to other ranks.
    train, validation : ndarray of int64
        Which of them a pass goes over, and which are held out.
    train_codes, held_out_codes : ndarray of int
        Their classes.
    stocks : list of ndarray of int64
        Which of `train` each of the groups of a batch is drawn from; mostly one.
    """

    def __init__(
        self,
        codes: np.ndarray,
        places: np.ndarray,
        entropy: int,
        held_out: float,
        *,
        is_grouped: bool = False,
    ) -> None:
        # Of all rows of all ranks: small numbers, and as few copies as may be.
        self._entropy = entropy
        self.places = places
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
        n_groups = count_groups(len(self.train)) if is_grouped else 1
        self.stocks = _cut_stocks(self.train_codes, n_groups)

    @property
    def n_groups(self) -> int:
        """Groups of a batch, between the rows of which there are no pairs."""
        return len(self.stocks)

    @property
    def n_own(self) -> int:
        """Rows or pairs of this rank that a pass goes over."""
        return int((self.places[self.train] >= 0).sum())

    def own(self, units: np.ndarray) -> np.ndarray:
        """Places of those that this rank has."""
        places = self.places[units]
        return places[places >= 0]

    def n_steps(self, batch_size: int) -> int:
        """Batches of a pass, of groups of so many."""
        return count_steps(len(self.train), batch_size, self.n_groups)

    def parts(self, n_steps: int, n_passes: int) -> Iterator[np.ndarray]:
        """Places of this rank's part of each batch, in the pass after some passes."""
        orders = []
        for number, stock in enumerate(self.stocks):
            if self.n_groups > 1 and self.places[self.train[stock[0]]] < 0:
                continue  # all of another rank
            key = (n_passes, number) if number else (n_passes,)
            order = _spread(self.train_codes[stock], self._generator(*key))
            orders.append(self.train[stock[order]])
        for step in range(n_steps):
            parts = [np.zeros(0, dtype=np.int64)]
            for order in orders:
                start, stop = (len(order) * s // n_steps for s in (step, step + 1))
                parts.append(order[start:stop])
            yield self.own(np.concatenate(parts))

    def _generator(self, *key: int) -> np.random.Generator:
        """Random numbers for a purpose."""
        seed = np.random.SeedSequence(self._entropy, spawn_key=key)
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


def _cut_stocks(codes: np.ndarray, n_parts: int) -> list[np.ndarray]:
    """Parts of the same size, each with consecutive ones of every class."""
    if n_parts == 1:
        return [np.arange(len(codes), dtype=index_type(len(codes)))]
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    firsts = np.cumsum(counts) - counts
    rank = np.empty(len(codes))
    rank[order] = np.arange(len(codes)) - firsts[codes[order]] + 0.5
    by_share = np.argsort(rank / counts[codes], kind="stable")
    return [np.sort(part) for part in np.array_split(by_share, n_parts)]


class LabelSource(Source):
    """Rows with classes; making one is a collective call.

    Where batches are made of groups, either :meth:`deal` or :meth:`gather` comes next.

    Parameters
    ----------
    context : RankContext
        This rank.
    shard : Shard
        The rank's rows; y holds codes of classes.
    held_out : float
        Share that is kept for validation.
    is_grouped : bool, default=False
        As in :class:`Plan`.

    Attributes
    ----------
    table : RowTable
        Rows of this rank, and those that it got.
    plan : Plan
    is_gathered : bool
        Whether rank 0 has all rows, for it to make all steps.
    has_all_rows : bool
        Whether it then has all rows of X; yes.
    n_classes : int
        Batches have as `y` the class of a row plus this times the number of its group.
    centre : ndarray of float32 of shape (n_features,), or None
        What is taken off rows of batches: distances do not see it, but rounding does,
        and makes weights of features that are constant.
    """

    def __init__(
        self,
        context: RankContext,
        shard: Shard,
        held_out: float,
        *,
        is_grouped: bool = False,
    ) -> None:
        self.table = RowTable(shard)
        self.is_gathered = self.has_all_rows = False
        self.centre: np.ndarray | None = None
        labels = [np.zeros(0, dtype=np.uint8)]
        for block in shard.blocks:
            largest = int(block.y.max(initial=0))
            labels.append(block.y.astype(np.min_scalar_type(largest)))
        found = (block.sample_weight for block in shard.blocks)
        weights = [each for each in found if each is not None]  # of all blocks, or none
        mine: list[np.ndarray] = [self.table.numbers, np.concatenate(labels)]
        mine += [np.concatenate(weights)] if weights else []
        self._numbers, codes, *all_weights = gather_rows(context.group, mine)
        places = self.table.find(self._numbers)
        entropy = entropy_of(context)
        self.plan = Plan(codes, places, entropy, held_out, is_grouped=is_grouped)
        self.n_classes = int(codes.max(initial=0)) + 1
        largest = self.n_classes * self.plan.n_groups
        codes = codes.astype(np.min_scalar_type(largest))
        for number, stock in enumerate(self.plan.stocks[1:], start=1):
            codes[self.plan.train[stock]] += number * self.n_classes
        self._of_all = codes, (all_weights[0] if all_weights else None)
        self._look_up()

    def gather(self, group: Group) -> None:
        """Let rank 0 have all rows; a collective call."""
        self.is_gathered = self.has_all_rows = True
        is_first = group.rank == 0
        self.table.fetch(group, self._numbers[: is_first * len(self._numbers)])
        self._look_up()
        self.plan.places = np.full(len(self._numbers), -1)
        if is_first:
            self.plan.places = self.table.find(self._numbers)
        self.n_units = self.plan.n_own

    def deal(self, group: Group) -> None:
        """Let each rank have all rows of some groups; a collective call."""
        plan, stocks = self.plan, self.plan.stocks
        n_ranks = min(group.size, len(stocks))
        mine = [np.zeros(0, dtype=np.int64)]
        for number, stock in enumerate(stocks):
            if number * n_ranks // len(stocks) == group.rank:
                mine.append(plan.train[stock])
        units = np.concatenate(mine)
        self.table.fetch(group, self._numbers[units])
        plan.places[plan.train] = -1
        plan.places[units] = self.table.find(self._numbers[units])
        self._look_up()

    def stay(self) -> None:
        """Forget what is of use only while rows may move, for the sake of memory."""
        self._numbers = np.zeros(0, dtype=np.int64)
        self._of_all = np.zeros(0, dtype=np.uint8), None

    def _look_up(self) -> None:
        """Note what goes with each row of the table."""
        units = np.searchsorted(self._numbers, self.table.numbers)
        codes, weights = self._of_all
        self._codes = codes[units]
        self._weights = None if weights is None else weights[units]
        self.n_units = self.plan.n_own

    def count_steps(self, group: Group, batch_size: int) -> int:
        return self.plan.n_steps(batch_size)

    def take(self, places: np.ndarray) -> Batch:
        """A batch of some rows of this rank."""
        weights = None if self._weights is None else self._weights[places]
        y = self._codes[places].astype(np.int64)
        X = self.table.take(places)
        if self.centre is not None:
            X = shifted(X, self.centre)
        return Batch(X, y, weights, places)

    def codes_at(self, places: np.ndarray) -> np.ndarray:
        """Classes of some rows of this rank."""
        return self._codes[places].astype(np.int64) % self.n_classes

    def batches(self, n_steps: int, n_passes: int) -> Iterator[Batch]:
        parts = self.plan.parts(n_steps, n_passes)
        # Those of one batch stay in the cache, and are found while updates travel.
        n_together = 0 if self.table.is_at_hand else self.table.rows_together
        return taken_together(self.take, parts, n_together)

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
    is_gathered : bool
        Whether rank 0 has all pairs, for it to make all steps.
    has_all_rows : bool
        Whether it then has all rows of X; no, it lacks those of no pair.
    """

    is_gathered = has_all_rows = False

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

    def gather(self, group: Group) -> None:
        """Let rank 0 have all pairs; a collective call."""
        self.is_gathered = True
        self._have(group, np.arange(self._n_tuples * (group.rank == 0)))
        self.plan.places = np.full(self._n_tuples, -1)
        self.plan.places[self.numbers] = np.arange(self.n_units)
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
            yield from _pieces(take, group)
            group = []
        group.append(part)
    yield from _pieces(take, group)


def _pieces(
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


def shifted(X: Any, centre: np.ndarray) -> Any:
    """Rows less a centre; in place if dense, for they have been picked from others.

    Of sparse rows the elements that are stored: others belong to features whose centre
    is 0.
    """
    if sparse.issparse(X):
        parts = X.data - centre[X.indices], X.indices, X.indptr
        return sparse.csr_array(parts, shape=X.shape)
    return np.subtract(X, centre, out=X if X.flags.writeable else None)


def chunks(places: np.ndarray) -> Iterator[np.ndarray]:
    """Some of many at a time."""
    for start in range(0, len(places), _CHUNK):
        yield places[start : start + _CHUNK]


def entropy_of(context: RankContext) -> int:
    """Seed that all ranks share."""
    entropy = context.seed.entropy
    assert isinstance(entropy, int)
    return entropy


def gather_rows(group: Group, columns: list[np.ndarray]) -> list[np.ndarray]:
    """What goes with the rows of all ranks, sorted by the first; a collective call."""
    parts = [part for part in allgather(group, columns) if len(part[0])]
    of_all = [np.concatenate(each) for each in zip(*parts, strict=True)]
    del parts
    numbers = of_all[0]
    if (numbers[1:] >= numbers[:-1]).all():
        return of_all
    order = np.argsort(numbers, kind="stable")
    return [column[order] for column in of_all]


def gather_batch(group: Group, batch: Batch) -> tuple[Batch, int]:
    """Parts of a batch that all ranks have, and where one's own begins; collective."""
    if group.size == 1:
        return batch, 0
    parts = [unpacked(each)[0] for each in allgather(group, packed([batch]))]
    first = sum(part.n_rows for part in parts[: group.rank])
    return joined([part for part in parts if part.n_rows] or parts[:1]), first
