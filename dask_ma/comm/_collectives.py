"""Collective operations, under the names of MPI.

Every rank of a group calls the same collectives in the same order. Ranks of one process
exchange through memory; between processes each array travels once per process, not once
per rank (two levels). Sums are taken in an order that depends on the number of ranks
alone, so the placement of the ranks does not change a bit of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, overload

import numpy as np

from dask_ma.comm._allreduce import allreduce_flat, reduce_scatter_flat
from dask_ma.comm._exchange import (
    Packed,
    gather_by_doubling,
    local_barrier,
    others,
    pack,
    push_to_local_peers,
    unpack,
)
from dask_ma.comm._group import Group, aligned, frozen_view, map_arrays
from dask_ma.comm._reduction import LocalReducer
from dask_ma.comm._topology import doubling_steps
from dask_ma.comm._trace import merge_packed

Op = Literal["sum", "max", "min"]
_UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


@overload
def allreduce(group: Group, arrays: np.ndarray, op: Op = ...) -> np.ndarray: ...


@overload
def allreduce(
    group: Group, arrays: Sequence[np.ndarray], op: Op = ...
) -> list[np.ndarray]: ...


def allreduce(group: Group, arrays: Any, op: Op = "sum") -> Any:
    """Combine the arrays of all ranks element by element; everybody gets the result.

    There are three ways, with the same bits. Small arrays, and all arrays between two
    ranks, go whole, in ``log2(processes)`` steps of one message each, rounded up. Large
    arrays go in parts, a reduce-scatter followed by an all-gather: one message to each
    other process in both, and ``2 * (size - 1) / size`` times the array in all when
    every rank has a process of its own. Between many processes they go by halves of the
    array and of halves, in ``2 * log2(processes)`` messages; with a number of processes
    that is no power of two there are about ``log2(processes)`` more, and some ranks
    send the array once more. What is quickest is chosen by the number of messages,
    each of which costs as much as ``dask-ma.comm.message-overhead`` bytes.

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
        New arrays in the shapes given.
    """
    combine = _ufunc(op)
    with adding_up(group):
        packed, single = _pack(arrays)
        flats = [allreduce_flat(group, flat, combine) for flat in packed.flats]
        return _unpack(packed._replace(flats=flats), single)


def weighted_mean(
    group: Group, arrays: Any, weight: float, *, total: float | None = None
) -> Any:
    """Mean over ranks, each weighted; everybody gets the result.

    Parameters
    ----------
    group : Group
        This rank.
    arrays : ndarray or sequence of ndarray, of floating dtype
        Same shapes and dtypes on every rank.
    weight : float
        Weight of this rank, not negative; the weights must not all be 0.
    total : float, default=None
        Sum of the weights of all ranks where it is known; otherwise one more small
        message finds it.

    Returns
    -------
    mean : ndarray or list of ndarray
        New arrays in the shapes given. With one rank they are equal to the input.
    """
    if not (np.isfinite(weight) and weight >= 0):
        raise ValueError(f"weight must be finite and not negative, got {weight}")
    if total is None:
        total = float(allreduce(group, np.array(weight, dtype=np.float64)))
    if not total > 0:
        raise ValueError(
            f"the weights of all ranks must sum to more than 0, got {total}"
        )
    share = weight / total
    with adding_up(group):
        packed, single = _pack(arrays)
        # np.multiply keeps float32, since a Python float is a weak scalar.
        scaled = packed._replace(flats=[flat * share for flat in packed.flats])
        flats = scaled.flats
        if group.size > 1:
            flats = [allreduce_flat(group, flat, np.add) for flat in flats]
        group.raise_if_closed()
        return _unpack(packed._replace(flats=flats), single)


def reduce_scatter(group: Group, array: np.ndarray, op: Op = "sum") -> np.ndarray:
    """Combine the arrays of all ranks; rank `r` gets part `r` of the result.

    Parameters
    ----------
    group : Group
        This rank.
    array : ndarray
        Same shape and dtype on every rank; it is seen as a vector and cut into `size`
        parts of nearly equal length.
    op : {"sum", "max", "min"}, default="sum"
        What to do with the elements.

    Returns
    -------
    part : ndarray of shape (n,)
        Elements ``size * rank // size`` to ``size * (rank + 1) // size - 1``.
    """
    tag = group._next_tag()
    with adding_up(group):
        part = reduce_scatter_flat(group, np.ravel(array), _ufunc(op), tag)
    group.take_back()
    # Ranks of this process may still read `array`, which the caller may change.
    local_barrier(group, tag)
    return np.array(part)


def reduce_scatter_parts(
    group: Group, part_of: Callable[[int], np.ndarray], op: Op = "sum"
) -> np.ndarray:
    """Combine parts that each rank works out one after the other.

    A part is under way to its rank while the next one is worked out. Ranks that share
    a process combine what they have before it travels, when all parts are there.

    Parameters
    ----------
    group : Group
        This rank.
    part_of : callable
        ``part_of(r)`` is this rank's vector for rank `r`, new in each call; all of them
        have the same length and dtype on every rank. It is called once for each rank,
        and must not use the group.
    op : {"sum", "max", "min"}, default="sum"
        What to do with the elements.

    Returns
    -------
    part : ndarray of shape (n,)
        The combined vector for this rank, with the bits of :func:`reduce_scatter`.
    """
    layout = group.layout
    if layout.n_nodes < group.size or group.size == 1:
        parts = [part_of(rank) for rank in range(group.size)]
        return reduce_scatter(group, np.concatenate(parts), op)
    tag = ("part", group._next_tag())
    for rank in others(range(group.size), group.rank):
        group.push([part_of(rank)], rank, tag, copy=False)
    own = part_of(group.rank)
    with adding_up(group):
        ranks = [ranks[0] for ranks in layout.members]
        partial = [[own] if r == group.rank else group.recv(r, tag) for r in ranks]
        reducer = LocalReducer(layout, _ufunc(op), {group.rank: own})
        total = reducer.total(partial)
    group.take_back()
    return total


def allgather(group: Group, payload: Any) -> list[Any]:
    """Give every rank the payloads of all ranks, in rank order.

    Parameters
    ----------
    group : Group
        This rank.
    payload : object
        Anything that :meth:`Group.send` takes; shapes may differ between ranks.

    Returns
    -------
    payloads : list of object
        Element `r` comes from rank `r`; arrays in it are read-only.
    """
    # Ranks of this process see the same memory: nobody may write to it.
    payload = map_arrays(payload, np.copy)
    payloads = gather_by_doubling(group, payload, group._next_tag())
    group.take_back()
    return [
        map_arrays(map_arrays(payload, aligned), frozen_view) for payload in payloads
    ]


def gather(group: Group, payload: Any, root: int = 0) -> list[Any] | None:
    """Give the root the payloads of all ranks, in rank order.

    Parameters
    ----------
    group : Group
        This rank.
    payload : object
        Anything that :meth:`Group.send` takes; shapes may differ between ranks.
    root : int, default=0
        Rank that gets them.

    Returns
    -------
    payloads : list of object, or None
        On the root, element `r` comes from rank `r`; None on the other ranks.
    """
    group._check_rank(root, "root")
    tag = ("gather", group._next_tag())
    if group.rank != root:
        group.push(payload, root, tag, copy=root in group.local_ranks)
        group.take_back()
        return None
    return [
        payload if source == root else group.recv(source, tag)
        for source in range(group.size)
    ]


def broadcast(
    group: Group, payload: Any = None, root: int = 0, *, copy: bool = True
) -> Any:
    """Give every rank the payload of the root.

    Between processes the payload goes down a binomial tree, so the root sends it
    ``log2(processes)`` times.

    Parameters
    ----------
    group : Group
        This rank.
    payload : object
        What the root gives; the other ranks' argument is not looked at.
    root : int, default=0
        Rank that gives.
    copy : bool, default=True
        Whether each rank gets arrays of its own. With False, those of a process have
        the same ones, read-only but on the rank that gives or passes them on; nobody
        may change them.

    Returns
    -------
    payload : object
        The root's payload, the same object on the root itself.
    """
    group._check_rank(root, "root")
    tag = ("broadcast", group._next_tag())
    layout = group.layout
    home, node = layout.node_of(root), layout.node_of(group.rank)
    if group.rank == layout.delegate(root, node):
        n_nodes = layout.n_nodes
        position = (node - home) % n_nodes
        if position:
            parent = position - (1 << (position.bit_length() - 1))
            payload = group.recv(layout.delegate(root, (parent + home) % n_nodes), tag)
            if not copy:  # else each rank of this process would make one
                payload = map_arrays(payload, aligned)
        step = 1 << position.bit_length()
        while position + step < n_nodes:
            child = layout.delegate(root, (position + step + home) % n_nodes)
            group.push(payload, child, tag, copy=False)
            step <<= 1
        push_to_local_peers(group, payload, tag, copy=copy)
        group.take_back()
    else:
        payload = group.recv(layout.delegate(root, node), tag)
    return payload if group.rank == root else map_arrays(payload, aligned)


def sendrecv(
    group: Group, payload: Any, dest: int, source: int, tag: Hashable = 0
) -> Any:
    """Send to one rank and receive from one, at the same time.

    Parameters
    ----------
    group : Group
        This rank.
    payload : object
        What to send.
    dest, source : int
        Rank to send to and rank to receive from.
    tag : hashable, default=0
        Label of both messages.

    Returns
    -------
    received : object
        What `source` sent.
    """
    group.push(payload, dest, tag, copy=dest in group.local_ranks)
    received = group.recv(source, tag)
    group.take_back()
    return received


def barrier(group: Group) -> None:
    """Return once every rank has called it.

    A dissemination barrier: ``log2(processes)`` steps, rounded up, in each of which the
    first rank of a process sends one empty message; the other ranks of the process tell
    it that they are there, and are told when all are.

    Parameters
    ----------
    group : Group
        This rank.
    """
    tag, layout = group._next_tag(), group.layout
    leader, *followers = group.local_ranks
    if group.rank != leader:
        group.push(None, leader, ("there", tag), copy=False)
        group.recv(leader, ("all", tag))
        return
    for rank in followers:
        group.recv(rank, ("there", tag))
    node, n_nodes = layout.node_of(leader), layout.n_nodes
    for distance in doubling_steps(n_nodes):
        peer, source = (node + distance) % n_nodes, (node - distance) % n_nodes
        ranks = layout.ranks_of(peer)[0], layout.ranks_of(source)[0]
        sendrecv(group, None, *ranks, ("barrier", tag, distance))
    for rank in followers:
        group.push(None, rank, ("all", tag), copy=False)


def adding_up(group: Group) -> AbstractContextManager[None]:
    """Note the body as aggregation; what one rank does alone is none."""
    return group.trace.span("aggregate") if group.size > 1 else nullcontext()


def _ufunc(op: str) -> np.ufunc:
    """The NumPy function of an operation."""
    if op not in _UFUNCS:
        raise ValueError(f"op must be one of {sorted(_UFUNCS)}, got {op!r}")
    return _UFUNCS[op]


def _pack(arrays: Any) -> tuple[Packed, bool]:
    """Pack one array or several; say whether it was one."""
    single = not isinstance(arrays, list | tuple)
    return pack([np.asarray(a) for a in ([arrays] if single else arrays)]), single


def _unpack(packed: Packed, single: bool) -> Any:
    """Undo :func:`_pack`."""
    results = unpack(packed)
    return results[0] if single else results


def gather_timeline(
    group: Group, *, origin: float = 0.0, root: int = 0
) -> np.ndarray | None:
    """Give the root what all ranks have done when; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    origin : float, default=0.0
        Time of day, in seconds since 1970, that the root's times count from.
    root : int, default=0
        Rank that gets them.

    Returns
    -------
    timeline : ndarray of shape (n_spans,), or None
        On the root, one element per span, sorted by start. Fields: `rank`; `kind`, one
        of "compute", "evaluate", "aggregate", "send" and "wait"; `start` and `stop` in
        seconds; `peer`, the rank at the other end or -1; `nbytes`, bytes of the arrays
        sent or waited for. None on the other ranks.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_ma import run_spmd
    >>> from dask_ma.comm import allreduce, gather_timeline
    >>> def program(group):
    ...     with group.trace.span("compute"):
    ...         own = np.ones(10).cumsum()
    ...     allreduce(group, own)
    ...     return gather_timeline(group)
    >>> timeline, nothing = run_spmd(program, n_ranks=2)
    >>> sorted(set(timeline["kind"].tolist()))
    ['aggregate', 'compute', 'send', 'wait']
    """
    packed = gather(group, group.trace.packed(), root)
    return None if packed is None else merge_packed(packed, origin)
