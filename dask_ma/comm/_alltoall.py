"""All-to-all: every rank has something else for each of the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dask_ma.comm._collectives import sendrecv
from dask_ma.comm._group import Group, aligned, frozen_view, map_arrays


def alltoall(group: Group, payloads: Sequence[Any]) -> list[Any]:
    """Send each rank a payload of its own, and get one from each.

    In step `k` rank `r` sends to rank ``r + k`` and receives from rank ``r - k``, both
    modulo `size`: one message to each rank in every step. A step ends when the message
    of this rank is delivered, so that one is under way besides `payloads` and the
    result. Ranks of one process exchange through memory.

    Parameters
    ----------
    group : Group
        This rank.
    payloads : sequence of object, one for each rank
        Element `r` goes to rank `r`: anything that :meth:`Group.send` takes. Shapes may
        differ. They may be changed as soon as the call returns.

    Returns
    -------
    received : list of object
        Element `s` comes from rank `s`; arrays in it are read-only. This rank's own is
        the very object that was given.

    Raises
    ------
    ValueError
        If there are not as many payloads as ranks.
    """
    received = [None] * group.size
    for source, payload in alltoall_steps(group, payloads):
        received[source] = payload
    return received


def alltoall_steps(group: Group, payloads: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Give out what :func:`alltoall` returns as it comes, so that it can be used up.

    Every rank must ask for all of it before it calls another collective.

    Parameters
    ----------
    group, payloads
        As in :func:`alltoall`. An element is looked at when its turn comes; it must not
        be changed before the next one is asked for.

    Yields
    ------
    source : int
        This rank first, then the others in falling order, modulo `size`.
    payload : object
        What that rank had for this one.

    Raises
    ------
    ValueError
        If there are not as many payloads as ranks.
    """
    group.raise_if_closed()
    size, rank = group.size, group.rank
    if len(payloads) != size:
        raise ValueError(
            f"payloads must have one element for each of the {size} ranks, got "
            f"{len(payloads)} on rank {rank}"
        )
    tag = ("alltoall", group._next_tag())
    yield rank, payloads[rank]
    for step in range(1, size):
        dest, source = (rank + step) % size, (rank - step) % size
        got = sendrecv(group, payloads[dest], dest, source, tag)
        yield source, map_arrays(map_arrays(got, aligned), frozen_view)
