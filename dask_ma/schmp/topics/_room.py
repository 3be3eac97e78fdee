"""Memory or disks for the tokens of a fit, chosen before any topic is drawn."""

from __future__ import annotations

import logging
import math
import os
import socket
from typing import Any, NamedTuple

from dask.utils import format_bytes
from scipy import sparse

from dask_ma.comm import Group, allgather
from dask_ma.data import (
    Room,
    RoomSettings,
    Shard,
    is_on_disk,
    memory_here,
    memory_taken,
)
from dask_ma.exceptions import InsufficientMemoryError

logger = logging.getLogger("dask_ma.schmp")

_MOST = 0.75  # of the limit, of all that there is: Dask pauses a worker at 80 %
TABLES = 3  # of a rank's part of the words: its own, the next, and one as floats
LAYOUT = 32  # bytes for each token of the block that is being laid out
TILES = 1 / 4  # bytes for each token that tiles take as objects, however large they are
UNEVEN = 2  # words of the largest block, for those of the mean: Zipf's law leads to 1.9
MOST_COPIES = 4  # states that are kept: the last two of a rank, and its neighbour's


class Needs(NamedTuple):
    """Bytes that a rank is going to take.

    Attributes
    ----------
    tokens : int
        What disks can take over.
    states : int
        Copies of the topics of tokens, for the loss of a worker; none from disks.
    rows : int
        Rows that are not on disks; they are there already.
    others : int
        What else has to be in memory: tables of counts, and the tokens of a block.
    """

    tokens: int
    states: int
    rows: int
    others: int


def bytes_per_token(
    sampler: str,
    topic_size: int,
    n_proposals: int,
    sizes: tuple[int, int, int] = (4, 4, 2),
) -> tuple[int, int]:
    """Bytes for a token that is laid out, and those of a state that is kept of it.

    Parameters
    ----------
    sampler : {"exact", "metropolis"}
    topic_size : int
        Bytes of the number of a topic.
    n_proposals : int
    sizes : tuple of int, default=(4, 4, 2)
        Bytes of the number of a document, of a word, and of a place in a document.

    Returns
    -------
    laid_out, kept : int
        The former with the word that a token has until all are laid out.
    """
    if sampler == "exact":
        # Tokens of the same word and document take less than one of its own.
        return sum(sizes) + sizes[1] + topic_size, topic_size
    laid_out = 8 + sizes[1] + (n_proposals + 2) * topic_size
    return laid_out, (n_proposals + 1) * topic_size


def open_block_bytes(n_words: int, n_topics: int, width: int, n_filled: int) -> int:
    """Bytes for a block of sparse rows that "exact" draws while it is dense.

    Parameters
    ----------
    n_words, n_topics : int
        Its shape.
    width : int
        Numbers in a row of the sampler's weights.
    n_filled : int
        Elements that are not zero.

    Returns
    -------
    n_bytes : int
        For counts, weights, and what it takes to find the elements that are not zero.
    """
    # An int32 and a flag for each, and a float32; of those that are not zero the place,
    # the word, the topic and the count.
    return n_words * (5 * n_topics + 4 * width) + 20 * n_filled


def kept_copies(group: Group) -> int:
    """States that a rank has in memory: its last ones, and those of its neighbour."""
    return MOST_COPIES // 2 if group.size == 1 else MOST_COPIES


def rows_in_memory(shard: Shard) -> int:
    """Bytes of the rows of a rank that are not on a disk."""
    return sum(_nbytes(block.X) for block in shard.blocks if not is_on_disk(block.X))


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
    fullest = max(processes, key=lambda each: each.beyond(on_disk=on_disk))
    if fullest.beyond(on_disk=on_disk) > 0:
        text = _too_much(fullest, shape, sampler, on_disk=on_disk)
        raise InsufficientMemoryError(text)
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
