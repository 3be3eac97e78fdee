"""The butterfly: whole vectors between one partner and another, step by step.

With 8 ranks, in three steps each rank hears of all the others::

    step 0    0-1  2-3  4-5  6-7
    step 1    0-2  1-3  4-6  5-7
    step 2    0-4  1-5  2-6  3-7

An allreduce makes all the steps at once. Butterfly mixing makes one step between two
updates of a model, so its cost does not grow with the number of ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple, overload

import numpy as np

from dask_ma.comm._collectives import Op, _pack, _ufunc, _unpack
from dask_ma.comm._group import Group
from dask_ma.comm._topology import doubling_partners


class Partners(NamedTuple):
    """Whom a rank exchanges with in one step.

    Attributes
    ----------
    dest : int
        Rank to send to.
    source : int
        Rank to receive from; the same as `dest` if the number of ranks is a power of
        two.
    """

    dest: int
    source: int


def butterfly_depth(size: int) -> int:
    """Steps after which every rank has heard of all others: log2(size), rounded up.

    Parameters
    ----------
    size : int
        Number of ranks, at least 1.

    Returns
    -------
    depth : int
        0 for one rank.
    """
    return (size - 1).bit_length()


def butterfly_partners(rank: int, step: int, size: int) -> Partners:
    """Partners of a rank in a step of butterfly mixing.

    With a power of two ranks, rank `k` and rank ``k XOR 2^i`` exchange in step `i` and
    hold the same average afterwards. With any other number rank `k` sends to rank
    ``k + 2^i`` and receives from rank ``k - 2^i``, modulo the number of ranks. In both
    cases each value goes, with weight one half, to two ranks: the matrix of the weights
    is doubly stochastic, and the mean over ranks stays what it was.

    Parameters
    ----------
    rank : int
        The rank.
    step : int
        Number of the step; `i` is its remainder by :func:`butterfly_depth`.
    size : int
        Number of ranks.

    Returns
    -------
    partners : Partners
        The rank itself, twice, if there is only one.
    """
    depth = butterfly_depth(size)
    if depth == 0:
        return Partners(rank, rank)
    return Partners(*doubling_partners(rank, 1 << (step % depth), size))


def sibling(rank: int, step: int, size: int) -> int | None:
    """Rank that holds the same average as `rank` after a step of butterfly mixing.

    If a rank is lost after the step, its sibling knows all that it knew (sections 1
    and 4.1 of the paper).

    Parameters
    ----------
    rank, step, size : int
        As in :func:`butterfly_partners`.

    Returns
    -------
    sibling : int or None
        None where no other rank holds it: with one rank, and with a number of ranks
        that is no power of two.
    """
    if size == 1 or not _is_power_of_two(size):
        return None
    return butterfly_partners(rank, step, size).dest


class ButterflyExchange:
    """A message to the partner of a step, which is under way from the start.

    A collective: all ranks start it, and finish it, in the same order.

    Parameters
    ----------
    group : Group
        This rank, of two or more.
    payload : object
        Anything that :meth:`Group.push` takes. Arrays in it must not change any more:
        the other rank may read them where they are.
    step : int
        Number of the step.
    """

    def __init__(self, group: Group, payload: Any, step: int) -> None:
        self._group = group
        dest, self._source = butterfly_partners(group.rank, step, group.size)
        self._tag = ("butterfly", group._next_tag())
        group.push(payload, dest, self._tag, copy=False)

    def finish(self) -> Any:
        """Wait for the partner's message and return it; arrays may be read-only."""
        return self._group.recv(self._source, self._tag)


class ButterflyAverage:
    """One step of butterfly mixing, whose message is under way from the start.

    A collective: all ranks start it, and finish it, in the same order.

    Parameters
    ----------
    group : Group
        This rank.
    array : ndarray of floating dtype
        Values of this rank; same shape and dtype on every rank. They must not change
        any more, not after :meth:`finish` either: the other rank may read them where
        they are.
    step : int
        Number of the step.
    """

    def __init__(self, group: Group, array: np.ndarray, step: int) -> None:
        self._group = group
        self._array = array
        self._exchange: ButterflyExchange | None = None
        if group.size > 1:
            self._exchange = ButterflyExchange(group, array, step)

    def finish(self) -> np.ndarray:
        """Wait for the partner's values and average.

        Returns
        -------
        average : ndarray
            A new array, with two ranks or more. Two partners get the same bits.
        """
        if self._exchange is None:
            self._group.raise_if_closed()
            return self._array
        average: np.ndarray = np.add(self._array, self._exchange.finish())
        average *= 0.5
        return average


@overload
def butterfly_allreduce(
    group: Group, arrays: np.ndarray, op: Op = ...
) -> np.ndarray: ...


@overload
def butterfly_allreduce(
    group: Group, arrays: list[np.ndarray], op: Op = ...
) -> list[np.ndarray]: ...


def butterfly_allreduce(group: Group, arrays: Any, op: Op = "sum") -> Any:
    """Combine the arrays of all ranks by exchanges of whole arrays between partners.

    Recursive doubling: ``log2(size)`` exchanges one after the other, in each of which
    every rank sends the whole array. It has the lowest latency of all the ways to an
    allreduce, and sends ``log2(size) / 2`` times what
    :func:`~dask_ma.comm.allreduce` sends, which is to be preferred for large arrays.
    With a number of ranks that is no power of two, the ranks beyond the largest one
    hand their arrays in first, and get the result last.

    Parameters
    ----------
    group : Group
        This rank.
    arrays : ndarray or sequence of ndarray
        Same shapes and dtypes on every rank. Arrays of one dtype travel in one message.
    op : {"sum", "max", "min"}, default="sum"
        What to do with the elements.

    Returns
    -------
    result : ndarray or list of ndarray
        New arrays in the shapes given, with the same bits on all ranks.

    Raises
    ------
    ValueError
        If `op` is not known.
    """
    combine = _ufunc(op)
    packed, single = _pack(arrays)
    flats = [_doubling(group, flat, combine) for flat in packed.flats]
    return _unpack(packed._replace(flats=flats), single)


def _doubling(group: Group, flat: np.ndarray, combine: np.ufunc) -> np.ndarray:
    """Recursive doubling among the first ranks, a power of two of them."""
    tag, rank = group._next_tag(), group.rank
    n_core = 1 << (group.size.bit_length() - 1)
    n_extra = group.size - n_core
    # Nothing that was sent is written to, so that no exchange needs a copy.
    total = flat.copy()
    if rank >= n_core:
        group.push(total, rank - n_core, ("in", tag), copy=False)
        total = np.array(group.recv(rank - n_core, ("out", tag)))
    else:
        if rank < n_extra:
            total = combine(total, group.recv(rank + n_core, ("in", tag)))
        distance = 1
        while distance < n_core:
            group.push(total, rank ^ distance, (distance, tag), copy=False)
            total = combine(total, group.recv(rank ^ distance, (distance, tag)))
            distance *= 2
        if rank < n_extra:
            group.push(total, rank + n_core, ("out", tag))
    group.take_back()
    return total


def _is_power_of_two(size: int) -> bool:
    return size & (size - 1) == 0
