"""Memory of workers that rows take, and that which a fit keeps of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dask.utils import format_bytes

from dask_ma import _config
from dask_ma.data._usage import PART, Usage, by_process
from dask_ma.exceptions import InsufficientMemoryError

# Of the limits, what workers may have in memory: Dask pauses one at 80 %.
_MOST = 0.8


class Share(NamedTuple):
    """A process, and what it is going to have of the rows.

    Attributes
    ----------
    limit : int
        Bytes that it may take.
    taken : int
        Those that it has in memory beside rows.
    rows : int
        Those of its rows that are going to be in memory.
    n_ranks : int
        Its ranks.
    """

    limit: int
    taken: int
    rows: int
    n_ranks: int


class Foresight(NamedTuple):
    """What tells by the first blocks that a fit cannot be done, wherever rows are.

    Attributes
    ----------
    count : callable
        ``count(X)`` of a block, on its worker: a number that adds up over the rows.
    check : callable
        ``check(n_rows, counted, shares)`` with about the rows of all blocks and their
        count, and a :class:`Share` of each process. Raises InsufficientMemoryError.
    """

    count: Callable[[Any], int]
    check: Callable[[int, int, Sequence[Share]], None]


class Kept(NamedTuple):
    """What a fit keeps in memory, whatever becomes of its rows.

    Attributes
    ----------
    times : float
        Bytes for each byte of the rows, in the type that they have on the ranks.
    what : str
        What that is, for messages.
    remedy : str
        What takes less, for messages: how ``take larger workers, or ...`` goes on.
    spills : bool, default=False
        Whether the fit can have these on disks itself.
    foresight : Foresight, default=None
        What tells that this is not enough, either; None for nothing.
    """

    times: float = 0.0
    what: str = ""
    remedy: str = ""
    spills: bool = False
    foresight: Foresight | None = None

    @property
    def is_certain(self) -> bool:
        """Whether it is in memory, come what may."""
        return bool(self.times) and not self.spills


NOTHING_KEPT = Kept()


class Demand(NamedTuple):
    """What rows of a fit take in memory."""

    n_bytes: int  # of all rows
    block: int  # bytes of their largest block
    growth: float  # bytes that they take, for each of them
    copies: Kept

    @property
    def cast(self) -> float:
        """Bytes of all rows in the type that they have on the ranks."""
        # Those of another type are there twice, as they came and as they are used.
        return (self.growth - 1.0 or 1.0) * self.n_bytes

    def excess(
        self,
        known: Mapping[str, Usage],
        ranks: Mapping[str, int],
        unmade: Mapping[str, int],
    ) -> str:
        """For which workers they are too much, in words; empty if for none.

        `ranks` and `unmade` are the ranks, and the blocks to be made, of each worker.
        """
        whole = self.growth * self.n_bytes + self.copies.times * self.cast
        limits = sum(usage.limit for usage in known.values())
        fraction = _config.get_fraction("data.memory-fraction")
        if whole > fraction * limits:
            return (
                f"which take {format_bytes(int(whole))}, more than {fraction:.0%} of "
                f"the {format_bytes(limits)} of the workers"
            )
        found = [
            self._need(places, usage, whole, ranks, unmade)
            for places, usage in by_process(known).items()
        ]
        excess, words = max(found)
        return words if excess > 0 else ""

    def _need(
        self,
        places: Sequence[str],
        usage: Usage,
        whole: float,
        ranks: Mapping[str, int],
        unmade: Mapping[str, int],
    ) -> tuple[float, str]:
        """Part of its limit that a process lacks, and what it needs, in words."""
        share = whole * sum(ranks[a] for a in places) / sum(ranks.values())
        # Each is made of another one; the blocks themselves are among its share.
        n_made = min(sum(unmade.get(a, 0) for a in places), usage.n_threads)
        beside = max(_beside(usage), self.block * n_made)
        room = usage.quiet * usage.limit
        words = (
            f"{format_bytes(int(share))} of them on {', '.join(places)}, beside "
            f"{format_bytes(usage.taken)} that it takes itself and "
            f"{format_bytes(beside)} to work with, more than the "
            f"{format_bytes(int(room))} up to which Dask leaves it alone"
        )
        return (usage.taken + share + beside - room) / usage.limit, words


def shares_of(
    n_bytes: int, known: Mapping[str, Usage], ranks: Mapping[str, int]
) -> list[Share]:
    """What processes have, and are going to have of rows that are shared out.

    `n_bytes` are those of all rows that are going to be in memory, `ranks` the ranks of
    each worker.
    """
    n_ranks, shares = sum(ranks.values()), []
    for places, usage in by_process(known).items():
        own = sum(ranks[address] for address in places)
        rows = n_bytes * own // n_ranks
        shares.append(Share(usage.limit, usage.taken, rows, own))
    return shares


def _beside(usage: Usage) -> int:
    """Bytes that a worker has beside its rows while it works."""
    freed = _config.get_bytes("memory.keep-freed")
    joined = usage.n_threads * _config.get_bytes("data.join-limit")
    return sum(min(each, int(PART * usage.limit)) for each in (freed, joined))


def lacks(n_bytes: int, copies: Kept, known: Mapping[str, Usage]) -> bool:
    """Whether copies of rows are too much for some workers; never for none."""
    if not known:
        return False
    processes = by_process(known).values()
    limit = sum(usage.limit for usage in processes)
    whole = sum(usage.taken + _beside(usage) for usage in processes)
    return whole + int(copies.times * n_bytes) > _most(known) * limit


def _most(known: Mapping[str, Usage]) -> float:
    """Part of their limits that workers may have in memory."""
    return min([_MOST, *(usage.most for usage in known.values())])


def refuse_beyond(n_bytes: int, copies: Kept, known: Mapping[str, Usage]) -> None:
    """Refuse rows whose copies are too much for some workers."""
    if not lacks(n_bytes, copies, known):
        return
    processes = by_process(known).values()
    limit = sum(usage.limit for usage in processes)
    taken = sum(usage.taken for usage in processes)
    beside, most = sum(map(_beside, processes)), _most(known)
    needed = int(copies.times * n_bytes)
    # What they work with grows with their limits at most; what they take does not.
    enough = limit * (taken + needed) / max(most * limit - beside, 1)
    raise InsufficientMemoryError(
        f"X has about {format_bytes(n_bytes)} in the type of the fit, which keeps "
        f"{copies.times:g} times as much in memory ({copies.what}): "
        f"{format_bytes(needed)} beside the {format_bytes(taken)} that the workers "
        f"take themselves and {format_bytes(beside)} to work with, but the workers "
        f"have {format_bytes(limit)} together, of which all may take {most:.0%}; take "
        f"more or larger workers (these {len(known)} would need "
        f"{format_bytes(math.ceil(enough / len(known)))} each), or {copies.remedy}"
    )
