"""Memory or disks for the tokens of a fit, chosen before any topic is drawn."""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from dask.utils import format_bytes
from scipy import sparse

from dask_ma.comm import Group, allgather
from dask_ma.data import (
    Foresight,
    Room,
    RoomSettings,
    Shard,
    Share,
    is_on_disk,
    memory_here,
    memory_taken,
)
from dask_ma.exceptions import InsufficientMemoryError
from dask_ma.schmp.topics._needs import Needs, others_needed
from dask_ma.schmp.topics._params import GibbsParams

logger = logging.getLogger("dask_ma.schmp")

_DOCUMENT = 16  # bytes: which it is, and where its tokens begin
_MOST = 0.75  # of the limit, of all that there is: Dask pauses a worker at 80 %


def rows_in_memory(shard: Shard) -> int:
    """Bytes of the rows of a rank that are not on a disk."""
    return sum(_nbytes(block.X) for block in shard.blocks if not is_on_disk(block.X))


def foresight(params: GibbsParams) -> Foresight:
    """What tells by the first blocks that not even disks are enough.

    Parameters
    ----------
    params : GibbsParams
        Of the fit.
    """
    return Foresight(count_tokens, partial(refuse_early, params))


def count_tokens(X: Any) -> int:
    """Tokens of the rows of a block, on its worker."""
    return int((X.data if sparse.issparse(X) else X).sum())


def refuse_early(
    params: GibbsParams, n_documents: int, n_tokens: int, shares: Sequence[Share]
) -> None:
    """Refuse rows that :func:`open_room` is going to refuse, once they are all there.

    Parameters
    ----------
    params : GibbsParams
        Of the fit.
    n_documents, n_tokens : int
        About those of all ranks.
    shares : sequence of Share
        What processes have, and are going to have.

    Raises
    ------
    InsufficientMemoryError
        If what has to be in memory is too much for some process.
    """
    n_ranks = sum(share.n_ranks for share in shares)
    of_rank = -(-n_documents // n_ranks), n_tokens // n_ranks
    others = others_needed(params, *of_rank, n_tokens, n_ranks)
    others += _DOCUMENT * of_rank[0]
    processes = [
        _Process(
            share.limit,
            share.taken + share.rows,
            Needs(0, 0, share.rows, share.n_ranks * others),
        )
        for share in shares
    ]
    _refuse(processes, (n_documents, n_tokens), params.sampler, on_disk=True)


def open_room(
    needs: Needs,
    settings: RoomSettings,
    group: Group,
    shape: tuple[int, int],
    sampler: str,
) -> Room:
    """Choose between memory and disks, alike on all ranks; a collective call.

    Parameters
    ----------
    needs : Needs
        Of this rank.
    settings : RoomSettings
        What is configured.
    group : Group
        This rank.
    shape : tuple of int
        Documents and tokens of all ranks, for messages.
    sampler : {"exact", "metropolis"}
        For messages, too.

    Returns
    -------
    room : Room

    Raises
    ------
    InsufficientMemoryError
        On all ranks, if what has to be in memory is too much for some process.
    """
    process = socket.gethostname(), os.getpid()
    own = process, memory_here(), memory_taken(), tuple(needs)
    found: list[Any] = allgather(group, own)
    sums: dict[Any, list[int]] = {name: [0] * len(needs) for name, *_ in found}
    for name, _, _, parts in found:
        sums[name] = [a + b for a, b in zip(sums[name], parts, strict=True)]
    known = {name: (limit, taken) for name, limit, taken, _ in found}
    processes = [_Process(*known[name], Needs(*sums[name])) for name in sums]
    on_disk = settings.persists is False or (
        settings.persists is None
        and any(each.is_too_full(settings.fraction) for each in processes)
    )
    _refuse(processes, shape, sampler, on_disk=on_disk)
    if group.rank == 0:
        most = (format_bytes(max(each.needs[i] for each in processes)) for i in (0, 1))
        others = max(each.needs.rows + each.needs.others for each in processes)
        logger.info(
            "SchMPLDA: a process has up to %s of tokens, %s of copies of their topics, "
            "and %s of rows and tables, of %s of memory: tokens %s "
            "(dask-ma.data.persist, dask-ma.data.memory-fraction)",
            *most,
            format_bytes(others),
            format_bytes(min(each.limit for each in processes)),
            "go to local disks" if on_disk else "stay in memory",
        )
    return Room(settings.folder, on_disk=on_disk)


class _Process(NamedTuple):
    """A process: its limit, what it has in memory, what its ranks are going to take."""

    limit: int
    taken: int
    needs: Needs

    @property
    def itself(self) -> int:
        """Bytes of modules and whatever else it has beside the rows."""
        return max(self.taken - self.needs.rows, 0)

    def least(self, *, on_disk: bool) -> int:
        """Bytes that it has to have in memory."""
        needs = self.needs
        tokens = 0 if on_disk else needs.tokens + needs.states
        return self.itself + needs.rows + needs.others + tokens

    def beyond(self, *, on_disk: bool) -> float:
        """Bytes of them that are more than it may take, if above 0."""
        return self.least(on_disk=on_disk) - _MOST * self.limit

    def is_too_full(self, fraction: float) -> bool:
        """Whether it has to leave the tokens to disks."""
        is_much = sum(self.needs) > fraction * self.limit
        return is_much or self.beyond(on_disk=False) > 0


def _refuse(
    processes: Sequence[_Process],
    shape: tuple[int, int],
    sampler: str,
    *,
    on_disk: bool,
) -> None:
    """Raise an error if one of them has too little memory, about the fullest."""
    fullest = max(processes, key=lambda each: each.beyond(on_disk=on_disk))
    if fullest.beyond(on_disk=on_disk) > 0:
        text = _too_much(fullest, shape, sampler, on_disk=on_disk)
        raise InsufficientMemoryError(text)


def _too_much(
    found: _Process, shape: tuple[int, int], sampler: str, *, on_disk: bool
) -> str:
    """Says what does not fit, and what would do."""
    n_documents, n_tokens = shape
    needs = found.needs
    text = (
        f"X has {n_documents} documents with {n_tokens} tokens. Beside the "
        f"{format_bytes(found.itself)} that it has now, a process would have "
        f"{format_bytes(needs.rows + needs.others)} of rows, tables of documents and "
        "words, and tokens that are worked on"
    )
    if not on_disk:
        text += f", and {format_bytes(needs.tokens + needs.states)} of tokens"
    enough = math.ceil(found.least(on_disk=on_disk) / _MOST)
    text += (
        f", but its memory is {format_bytes(found.limit)}, of which it may take "
        f"{_MOST:.0%}; take more or larger workers, with {format_bytes(enough)} each "
        "if they are as many"
    )
    if not on_disk:
        return text + ", or let tokens go to disks: dask-ma.data.persist 'auto'"
    if sampler == "metropolis":
        return text + ", or fewer topics"
    return (
        text + ", fewer topics, or sampler='metropolis', which has no table of the "
        "documents"
    )


def _nbytes(X: Any) -> int:
    """Bytes of an array or a sparse matrix."""
    if sparse.issparse(X):
        return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes)
    return int(X.nbytes)
