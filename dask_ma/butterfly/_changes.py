"""Changes of a few rows of the weights, and what becomes of them when ranks mix."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dask_ma.butterfly._decay import rows_with_values
from dask_ma.butterfly._state import RankState
from dask_ma.comm import (
    ButterflyExchange,
    Group,
    allgather,
    broadcast,
    butterfly_depth,
)
from dask_ma.kernels import RowPlaces, wide


class Changes(NamedTuple):
    """Changes of some rows; those of all others are 0.

    Attributes
    ----------
    rows : ndarray of int32, shape (n,)
        Numbers of rows, in any order; none of them twice, but in changes that are new.
    values : ndarray of shape (n, n_problems)
        Not changed after it has been made, since another rank may read it.
    """

    rows: np.ndarray
    values: np.ndarray

    def times(self, factors: Callable[[np.ndarray], np.ndarray]) -> Changes:
        """Multiplied by factors of their rows."""
        return Changes(self.rows, self.values * factors(self.rows))


class Places(RowPlaces):
    """Finds rows of changes, and adds changes up."""

    def find(
        self, within: np.ndarray, rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Places of rows in a list of distinct ones, and which of them are there."""
        if not len(within):
            return np.zeros(len(rows), np.int32), np.zeros(len(rows), bool)
        self._places[wide(within)] = np.arange(len(within), dtype=np.int32)
        # A row that is not in the list has the place of an earlier one, or 0.
        places = np.minimum(self._places.take(rows), np.int32(len(within) - 1))
        return places, within[places] == rows

    def add(self, first: Changes, second: Changes) -> Changes:
        """Sum of two changes; the order of the two makes no difference to a bit."""
        places, is_known = self.find(first.rows, second.rows)
        is_new = ~is_known
        new, known = np.flatnonzero(is_new), np.flatnonzero(is_known)
        values = np.concatenate([first.values, second.values.take(new, axis=0)])
        values[places.take(known)] += second.values.take(known, axis=0)
        return Changes(np.concatenate([first.rows, second.rows.take(new)]), values)

    def add_up(self, parts: Sequence[Changes]) -> Changes:
        """Sum of one or more changes, in their order; rows may come again in each."""
        named = np.concatenate([part.rows for part in parts])
        rows, places = self.named(named)
        values = np.concatenate([part.values for part in parts])
        sums = np.zeros((len(rows), values.shape[1]), values.dtype)
        for number in range(values.shape[1]):
            np.add.at(sums[:, number], places, values[:, number])
        return Changes(rows, sums)


def scale_rows(array: np.ndarray, rows: np.ndarray, factors: np.ndarray) -> None:
    """Multiply some rows, none of them twice, in place."""
    # To pick rows by `take` is several times as fast as by an index.
    values = array.take(rows, axis=0)
    values *= factors
    put_rows(array, rows, values)


def put_rows(array: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
    """Set some rows."""
    if array.shape[1] == 1:  # elements take less time than rows of one
        array[:, 0][wide(rows)] = values[:, 0]
    else:
        array[wide(rows)] = values


def no_changes(weights: np.ndarray) -> Changes:
    """Changes of no row of some weights."""
    empty = np.zeros((0, weights.shape[1]), weights.dtype)
    return Changes(np.zeros(0, np.int32), empty)


def steps_to_agree(size: int, dtype: np.dtype) -> tuple[int, int]:
    """Exchanges of butterfly mixing after which all ranks have a change in equal parts.

    With a power of two ranks these are `log2` of it, and then all ranks have the same
    bits. Otherwise what is left of the difference to the mean is multiplied, in as many
    steps, by the largest of ``prod_i |cos(pi * k * 2^i / size)|`` for k = 1, 2, ...; it
    is followed until it is below the rounding of the type.

    Parameters
    ----------
    size : int
        Number of ranks, at least 2.
    dtype : numpy.dtype
        Type of the weights.

    Returns
    -------
    n_exchanges : int
    n_joined : int
        Steps whose changes are followed as one.
    """
    depth = butterfly_depth(size)
    if size & (size - 1) == 0:
        return depth, 1
    shifts = 2.0 ** np.arange(depth)[:, np.newaxis]
    kept = np.abs(np.cos(np.pi * np.arange(1, size) * shifts / size)).prod(axis=0)
    rounds = math.ceil(math.log(np.finfo(dtype).eps) / math.log(kept.max()))
    return depth * rounds, depth * rounds


def entries_sent(size: int, mixing: str, dtype: np.dtype) -> int:
    """How many times a rank exchanges the rows that a batch changes, at most."""
    if size == 1 or mixing == "none":
        return 0
    if mixing == "butterfly":
        n_exchanges, n_joined = steps_to_agree(size, dtype)
        return size - 1 if n_joined == 1 else 2 * n_exchanges * size
    return size * (butterfly_depth(size) if mixing == "periodic" else 1)


class Mixer:
    """Mixes changes of the weights where all ranks' weights differ in a few rows.

    The weights of a rank are those that all ranks have in common, and changes that have
    not reached all of them yet. Only these travel. Making one is a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    state : RankState
        State of this rank. Its weights follow what is mixed; the number of the next
        exchange is that of the first one.
    places : Places
        For as many rows.
    """

    def __init__(self, group: Group, state: RankState, places: Places) -> None:
        self.group = group
        self.weights = weights = state.weights
        self.places = places
        self.step = state.n_exchanges
        base = state.base
        self.common = np.array(broadcast(group, weights) if base is None else base)
        self.start = no_changes(weights)
        if not state.is_base:
            rows = rows_with_values(weights != self.common).astype(np.int32)
            values = weights.take(rows, axis=0) - self.common.take(rows, axis=0)
            self.start = Changes(rows, values)
        self._added: list[Changes] = []

    def add(self, changes: Changes) -> None:
        """Take a change that this rank has made to its weights; rows may come twice."""
        self._added.append(changes)

    def begin(self) -> None:
        """Send what the other ranks need after a step."""

    def finish(self) -> np.ndarray | None:
        """Wait for the others, and name the rows that were mixed, some of them twice.

        The weights are left as they were until :meth:`settle`.
        """
        raise NotImplementedError

    def settle(self, rows: np.ndarray) -> None:
        """Give the weights of the rows that were mixed their new values."""
        raise NotImplementedError

    def rescale(
        self, rows: np.ndarray | None, factors: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        """Multiply all by factors, which are 1 but for `rows`, if these are given."""
        if self._added:
            columns = zip(*self._added, strict=True)
            joined = Changes(*(np.concatenate(column) for column in columns))
            self._added = [joined.times(factors)]
        if rows is None:
            rows = rows_with_values(self.common)
        else:
            rows = rows[rows_with_values(self.common[rows])]
        scale_rows(self.common, rows, factors(rows))

    def mean(self) -> np.ndarray:
        """The mean of all ranks' weights, after the last exchange; a collective call.

        What the ranks have in common is lost.
        """
        self._settle_mean(self._remaining())
        return self.common

    def _join(self) -> None:
        """Put the changes added since the last time to those before."""
        raise NotImplementedError

    def _remaining(self) -> Changes:
        """What this rank has beside what all have in common."""
        raise NotImplementedError

    def _settle_mean(self, changes: Changes) -> np.ndarray:
        """Take the mean of all ranks' changes for common, and name its rows."""
        parts = [Changes(*part) for part in allgather(self.group, list(changes))]
        rows = self.places.distinct(np.concatenate([part.rows for part in parts]))
        sums = np.zeros((len(rows), self.weights.shape[1]), self.weights.dtype)
        for part in parts:
            found, _ = self.places.find(rows, part.rows)
            sums[found] += part.values
        self.common[rows] += sums / self.group.size
        return rows


class ButterflyMixer(Mixer):
    """Averages the changes of this rank with those of a partner, in every exchange.

    A change is exchanged as many times as it takes until all ranks have an equal
    part of it, and becomes part of what they have in common.
    """

    def __init__(self, group: Group, state: RankState, places: Places) -> None:
        super().__init__(group, state, places)
        dtype = state.weights.dtype
        self._n_exchanges, self._n_joined = steps_to_agree(group.size, dtype)
        if self._n_joined > 1:
            self._forget_rounding()
        # By the step after which they are common.
        self._layers = {self.step + self._n_exchanges - 1: self.start}
        self._exchange: ButterflyExchange | None = None
        self._common: np.ndarray | None = None  # of rows that are now alike everywhere

    def _forget_rounding(self) -> None:
        """Take differences that are no larger than rounding for none."""
        rows, values = self.start
        bound = 8 * np.finfo(values.dtype).eps * np.abs(self.common[rows])
        is_real = (np.abs(values) > bound).any(axis=1)
        self.weights[rows[~is_real]] = self.common[rows[~is_real]]
        self.start = Changes(rows[is_real], values[is_real])

    def begin(self) -> None:
        self._join()
        layers = self._layers.values()
        payload = [
            np.array([len(layer.rows) for layer in layers]),
            np.concatenate([layer.rows for layer in layers]),
            np.concatenate([layer.values for layer in layers]),
        ]
        self._exchange = ButterflyExchange(self.group, payload, self.step)

    def finish(self) -> np.ndarray:
        if self._exchange is None:
            raise RuntimeError("an exchange is to begin before it is finished")
        step = self.step
        counts, rows, values = self._exchange.finish()
        bounds = np.cumsum(counts)[:-1]
        received = zip(np.split(rows, bounds), np.split(values, bounds), strict=True)
        for key, other in zip(self._layers, received, strict=True):
            layer = self.places.add(self._layers[key], Changes(*other))
            layer.values[...] *= 0.5
            self._layers[key] = layer
        touched = np.concatenate([layer.rows for layer in self._layers.values()])
        self._common = None
        if step in self._layers:
            known = self._layers.pop(step)
            values = self.common.take(known.rows, axis=0)
            values += known.values
            put_rows(self.common, known.rows, values)
            self._common = values
        self.step += 1
        return touched

    def settle(self, rows: np.ndarray) -> None:
        # Anew from the common ones, so that ranks that know the same have equal bits.
        if not self._layers and self._common is not None:
            put_rows(self.weights, rows, self._common)  # all that was exchanged
            return
        put_rows(self.weights, rows, self.common.take(rows, axis=0))
        for layer in self._layers.values():
            self.weights[layer.rows] += layer.values

    def rescale(
        self, rows: np.ndarray | None, factors: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        super().rescale(rows, factors)
        for key, layer in self._layers.items():
            self._layers[key] = layer.times(factors)

    def _join(self) -> None:
        if not self._added:
            return
        first = self.step - self.step % self._n_joined
        last = first + self._n_joined + self._n_exchanges - 2
        before = [self._layers[last]] if last in self._layers else []
        self._layers[last] = self.places.add_up([*before, *self._added])
        self._added = []

    def _remaining(self) -> Changes:
        return self.places.add_up([no_changes(self.weights), *self._layers.values()])


class MeanMixer(Mixer):
    """Gives all ranks the mean of their changes, in every `period`-th exchange."""

    def __init__(
        self, group: Group, state: RankState, places: Places, period: int
    ) -> None:
        super().__init__(group, state, places)
        self._changes = self.start
        self._period = period

    def finish(self) -> np.ndarray | None:
        self.step += 1
        if self.step % self._period:
            return None
        self._join()
        rows = self._settle_mean(self._changes)
        self._changes = no_changes(self.weights)
        return rows

    def settle(self, rows: np.ndarray) -> None:
        put_rows(self.weights, rows, self.common.take(rows, axis=0))

    def rescale(
        self, rows: np.ndarray | None, factors: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        super().rescale(rows, factors)
        self._changes = self._changes.times(factors)

    def _join(self) -> None:
        self._changes = self.places.add_up([self._changes, *self._added])
        self._added = []

    def _remaining(self) -> Changes:
        self._join()
        return self._changes


def make_mixer(
    group: Group, state: RankState, places: Places, mixing: str
) -> Mixer | None:
    """What mixes the ranks' weights from a state on; a collective call.

    Parameters
    ----------
    group, state, places
        As :class:`Mixer` has them.
    mixing : {"butterfly", "allreduce", "periodic", "none"}
        As :func:`start_mixing` has it.

    Returns
    -------
    mixer : Mixer or None
        None where nothing is mixed.
    """
    if group.size == 1 or mixing == "none":
        return None
    if mixing == "butterfly":
        return ButterflyMixer(group, state, places)
    period = butterfly_depth(group.size) if mixing == "periodic" else 1
    return MeanMixer(group, state, places, period)
