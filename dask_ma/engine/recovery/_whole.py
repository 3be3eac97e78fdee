"""States of which the parts of all ranks make up one model.

Each rank has a copy of its left neighbour's part. A model can be had again as long as
of each part the one or the other is in the memory of a process; ranks keep the last two
rounds, since they may be lost when only some of them have kept the newest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_ma.comm import allgather, broadcast
from dask_ma.engine.recovery._checkpoint import Store
from dask_ma.engine.recovery._memory import PartKey, StateCopy

if TYPE_CHECKING:
    from dask_ma.comm import Group


class WholeState(NamedTuple):
    """A model whose parts are there.

    Attributes
    ----------
    round : int
        Round after which it was kept.
    shared : dict
        What is the same on all ranks.
    history : list of dict
        The records until then.
    elapsed : float
        Seconds that the fit had taken.
    own : dict or None
        This rank's part; None if there were another number of ranks.
    pieces : callable
        ``pieces(group)`` goes through the parts of all ranks; a collective call.
    """

    round: int
    shared: dict[str, Any]
    history: list[dict[str, Any]]
    elapsed: float
    own: dict[str, Any] | None
    pieces: Any


def exchange_copies(group: Group, own: dict[str, Any], number: int) -> Any:
    """Give the right neighbour this rank's part, which must not change any more.

    Parameters
    ----------
    group : Group
        This rank.
    own : dict
        Its part.
    number : int
        Number of the round.

    Returns
    -------
    replica : dict or None
        Part of the left neighbour; None if there is none.
    """
    if group.size == 1:
        return None
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    group.push(own, right, ("replica", number), copy=False)
    return group.recv(left, ("replica", number))


#: Parts that are in the memory of a process, and the states that they belong to.
Parts = dict[PartKey, tuple[StateCopy, dict[str, Any]]]


def find_whole(group: Group, here: Parts) -> tuple[WholeState | None, bool]:
    """The newest model of which all parts are in memory; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    here : dict
        What this process has of the fit.

    Returns
    -------
    state : WholeState or None
        None if of no round all parts are there.
    any_left : bool
        Whether there were parts at all.
    """
    offers = [[PartKey(*key) for key in keys] for keys in allgather(group, _keys(here))]
    for sources in _complete(offers):
        keys = [key for key, _ in sources]
        own = _fetch_own(group, here, sources)
        given = None
        if group.rank == sources[0][1]:
            copy = here[keys[0]][0]
            given = copy.shared, copy.history[: copy.n_records], copy.elapsed
        shared, history, elapsed = broadcast(group, given, sources[0][1])
        pieces = partial(_from_memory, here, sources)
        return WholeState(keys[0].round, shared, history, elapsed, own, pieces), True
    return None, any(offers)


def pieces_in_files(
    store: Store, entries: Sequence[dict[str, Any]], group: Group
) -> Iterator[dict[str, Any]]:
    """Parts out of a checkpoint, one after the other on all ranks; a collective call.

    Parameters
    ----------
    store : Store
        Where it lies.
    entries : sequence of dict
        What the manifest says of the part of each rank.
    group : Group
        This rank.

    Yields
    ------
    part : dict
    """
    for number, entry in enumerate(entries):
        root = number % group.size
        part = store.load_part(entry) if group.rank == root else None
        yield broadcast(group, part, root)


def _keys(here: dict[PartKey, Any]) -> list[tuple[int, ...]]:
    """What this process can offer, as plain tuples in a fixed order."""
    return [tuple(key) for key in sorted(here)]


def _complete(offers: list[list[PartKey]]) -> Iterator[list[tuple[PartKey, int]]]:
    """Parts of each model that is whole, and ranks that have them; newest first."""
    sources: dict[PartKey, int] = {}
    for rank, keys in enumerate(offers):
        for key in keys:
            if key not in sources or rank == key.rank:
                sources[key] = rank
    versions = {(key.round, key.attempt, key.n_ranks) for key in sources}
    for version in sorted(versions, reverse=True):
        keys = [PartKey(*version, rank) for rank in range(version[2])]
        if keys and all(key in sources for key in keys):
            yield [(key, sources[key]) for key in keys]


def _fetch_own(
    group: Group,
    here: Parts,
    sources: list[tuple[PartKey, int]],
) -> dict[str, Any] | None:
    """This rank's part, from whoever has it; None for another number of ranks."""
    if len(sources) != group.size:
        return None
    own = None
    for key, source in sources:
        if source == group.rank == key.rank:
            own = here[key][1]
        elif source == group.rank:
            group.send(here[key][1], key.rank, ("part", key.rank))
    if own is None:
        own = group.recv(sources[group.rank][1], ("part", group.rank))
    return own


def _from_memory(
    here: Parts,
    sources: list[tuple[PartKey, int]],
    group: Group,
) -> Iterator[dict[str, Any]]:
    """Parts in memory, one after the other on all ranks."""
    for key, source in sources:
        part = here[key][1] if source == group.rank else None
        yield broadcast(group, part, source)
