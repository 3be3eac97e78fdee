"""Collective operations with a root, under the names of MPI.

All algorithms add up along the one binary tree over the ranks that
:func:`~dask_ma.comm.allreduce` follows, too. So the bits of a sum depend on the number
of ranks alone: neither on who shares a process nor on the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import numpy as np

from dask_ma import _config
from dask_ma.comm._allreduce import reduce_scatter_flat, scatters_by_halves
from dask_ma.comm._collectives import (
    Op,
    _pack,
    _ufunc,
    _unpack,
    adding_up,
    gather,
)
from dask_ma.comm._exchange import local_barrier, others
from dask_ma.comm._group import Group, aligned, map_arrays
from dask_ma.comm._reduction import concatenate_parts
from dask_ma.comm._topology import doubling_steps, tree_split

Algorithm = Literal["direct", "tree"]
_Flats = list[np.ndarray]


@overload
def reduce(
    group: Group,
    arrays: np.ndarray,
    op: Op = ...,
    root: int = ...,
    algorithm: Algorithm = ...,
) -> np.ndarray | None: ...


@overload
def reduce(
    group: Group,
    arrays: Sequence[np.ndarray],
    op: Op = ...,
    root: int = ...,
    algorithm: Algorithm = ...,
) -> list[np.ndarray] | None: ...


def reduce(
    group: Group,
    arrays: Any,
    op: Op = "sum",
    root: int = 0,
    algorithm: Algorithm = "direct",
) -> Any:
    """Combine the arrays of all ranks element by element; the root gets the result.

    Parameters
    ----------
    group : Group
        This rank.
    arrays : ndarray or sequence of ndarray
        Same shapes and dtypes on every rank.
    op : {"sum", "max", "min"}, default="sum"
        What to do with the elements.
    root : int, default=0
        Rank that gets the result.
    algorithm : {"direct", "tree"}, default="direct"
        Who combines. "direct": every rank sends its arrays to the root, which combines
        all. "tree": about ``sqrt(size)`` ranks combine those of a run of ranks each,
        and the root combines what these send: Spark's ``treeAggregate`` of depth 2.

    Returns
    -------
    result : ndarray or list of ndarray, or None
        On the root new arrays in the shapes given, with the same bits for both
        algorithms and for :func:`~dask_ma.comm.allreduce`; None on the other ranks.

    Raises
    ------
    ValueError
        If `op` or `algorithm` is not known, or `root` is no rank.
    """
    group._check_rank(root, "root")
    if algorithm not in _ALGORITHMS:
        raise ValueError(
            f"algorithm must be one of {sorted(_ALGORITHMS)}, got {algorithm!r}"
        )
    _ufunc(op)  # refuses an unknown one
    with adding_up(group):
        packed, single = _pack(arrays)
        flats = _ALGORITHMS[algorithm](group, packed.flats, op, root)
        if group.rank != root:
            return None
        return _unpack(packed._replace(flats=flats), single)


def reduce_and_gather(
    group: Group, arrays: Sequence[np.ndarray], payload: Any = None, root: int = 0
) -> tuple[list[np.ndarray], list[Any]] | None:
    """Give the root sums over all ranks, and a payload of each, in the same messages.

    Large arrays of several processes are added up in parts, each on another rank, which
    the root then puts together: it receives about twice their bytes, however many ranks
    there are. Smaller ones go to the root whole, in a message of each rank. Which of
    the two it is, is a question of ``dask-ma.comm.message-overhead``.

    Parameters
    ----------
    group : Group
        This rank.
    arrays : sequence of ndarray
        Same shapes and dtypes on every rank.
    payload : object, default=None
        Anything that :meth:`Group.send` takes; it may differ between ranks.
    root : int, default=0
        Rank that gets them.

    Returns
    -------
    result : (list of ndarray, list of object), or None
        On the root new arrays in the shapes given, with the bits of :func:`reduce`, and
        the payloads in rank order; None on the other ranks.

    See Also
    --------
    reduce : The sums alone.
    gather : The payloads alone.
    """
    group._check_rank(root, "root")
    with adding_up(group):
        packed, _ = _pack(list(arrays))
        in_parts = _pays_in_parts(group, sum(flat.nbytes for flat in packed.flats))
        shares = packed.flats
        if in_parts:
            tags = [group._next_tag() for _ in shares]
            shares = [
                reduce_scatter_flat(group, flat, np.add, tag)
                for flat, tag in zip(shares, tags, strict=True)
            ]
        messages = gather(group, (shares, payload), root)
        if in_parts:
            group.take_back()
            # Ranks of this process may still read the arrays, which may be changed.
            for tag in tags:
                local_barrier(group, tag)
        if messages is None:
            return None
        if in_parts:
            flats = [
                concatenate_parts([message[0][k] for message in messages], flat)
                for k, flat in enumerate(packed.flats)
            ]
        else:
            flats = _combine_tree(lambda rank: messages[rank][0], 0, group.size, np.add)
        sums = _unpack(packed._replace(flats=flats), single=False)
        return sums, [message[1] for message in messages]


def _pays_in_parts(group: Group, nbytes: int) -> bool:
    """Whether the root had better get arrays in parts that others have added up."""
    n_nodes = group.layout.n_nodes
    # What the root receives less, against the messages of the first step.
    spared = nbytes * (n_nodes - 1) * (n_nodes - 2) / n_nodes
    overhead, n_messages = _config.get_bytes("comm.message-overhead"), n_nodes - 1
    if scatters_by_halves(group.layout, nbytes, overhead):
        n_messages = len(doubling_steps(n_nodes))
    return spared > n_messages * overhead


def broadcast_direct(group: Group, payload: Any = None, root: int = 0) -> Any:
    """Give every rank the payload of the root, which sends it to one after the other.

    What a driver does that knows no broadcast: the root sends ``size - 1`` times, also
    to ranks that share a process.

    Parameters
    ----------
    group : Group
        This rank.
    payload : object
        What the root gives; the other ranks' argument is not looked at.
    root : int, default=0
        Rank that gives.

    Returns
    -------
    payload : object
        The root's payload, the same object on the root itself. Arrays in it may be
        read-only elsewhere.

    See Also
    --------
    broadcast : The same down a tree of processes.
    """
    group._check_rank(root, "root")
    tag = ("broadcast_direct", group._next_tag())
    if group.rank != root:
        return map_arrays(group.recv(root, tag), aligned)
    for rank in others(range(group.size), root):
        group.send(payload, rank, tag)
    return payload


def run_length(size: int) -> int:
    """Ranks that one aggregator of the algorithm "tree" combines.

    The power of two from ``sqrt(size)`` up: a run of so many ranks is a subtree of the
    tree that fixes the order of the sum.
    """
    length = 1
    while length * length < size:
        length *= 2
    return length


def _direct(group: Group, flats: _Flats, op: Op, root: int) -> _Flats:
    """The root combines the arrays of all ranks."""
    tag = ("reduce", group._next_tag())
    if group.rank != root:
        group.send(flats, root, tag)
        return []

    def take(rank: int) -> _Flats:
        return flats if rank == root else group.recv(rank, tag)

    return _combine_tree(take, 0, group.size, _ufunc(op))


def _tree(group: Group, flats: _Flats, op: Op, root: int) -> _Flats:
    """The first rank of each run combines the run, the root combines the runs."""
    number = group._next_tag()
    inner, outer = ("run", number), ("reduce", number)
    size, length = group.size, run_length(group.size)
    first = group.rank - group.rank % length
    if group.rank != first:
        group.send(flats, first, inner)
    else:

        def take(rank: int) -> _Flats:
            return flats if rank == first else group.recv(rank, inner)

        flats = _combine_tree(take, first, min(first + length, size), _ufunc(op))
        if group.rank != root:
            group.send(flats, root, outer)
    if group.rank != root:
        return []

    def take_run(run: int) -> _Flats:
        leader = run * length
        return flats if leader == root else group.recv(leader, outer)

    return _combine_tree(take_run, 0, -(-size // length), _ufunc(op))


_ALGORITHMS: dict[str, Callable[[Group, _Flats, Op, int], _Flats]] = {
    "direct": _direct,
    "tree": _tree,
}


def _combine_tree(
    take: Callable[[int], _Flats], low: int, high: int, combine: np.ufunc
) -> _Flats:
    """Combine what `take` gives for ``low..high-1`` into new arrays."""
    if high - low == 1:
        return [np.array(flat) for flat in take(low)]
    middle = tree_split(low, high)
    left = _combine_tree(take, low, middle, combine)
    # Taken when its turn comes: no more than ``log2(high - low)`` sums at a time.
    right = (
        take(middle)
        if high - middle == 1
        else _combine_tree(take, middle, high, combine)
    )
    for a, b in zip(left, right, strict=True):
        combine(a, b, out=a)
    return left
