"""Memory or disks for the tokens of a fit, chosen before any topic is drawn."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any, NamedTuple

import numpy as np
from dask.utils import format_bytes
from scipy import sparse

from dask_ma.comm import Group, allgather
from dask_ma.data import Room, RoomSettings, Shard, is_on_disk, memory_here
from dask_ma.exceptions import InsufficientMemoryError

logger = logging.getLogger("dask_ma.schmp")

_MOST = 0.7  # of the limit: Dask pauses a worker at 80 %
TABLES = 3  # of a rank's part of the words: its own, the next, and one as floats
LAYOUT = 60  # bytes for each token of the block that is being laid out
MOST_COPIES = 4  # states that are kept: the last two of a rank, and its neighbour's


class Needs(NamedTuple):
    """Bytes that a rank is going to take.

    Attributes
    ----------
    tokens : int
        What disks can take over.
    states : int
        Copies of the topics of tokens, for the loss of a worker; none from disks.
    others : int
        What has to be in memory: rows that are not on disks, tables of counts, and the
        tokens of a block.
    """

    tokens: int
    states: int
    others: int


def bytes_per_token(sampler: str, topic_size: int, n_proposals: int) -> tuple[int, int]:
    """Bytes for a token that is laid out, and those of a state that is kept of it.

    Parameters
    ----------
    sampler : {"exact", "metropolis"}
    topic_size : int
        Bytes of the number of a topic.
    n_proposals : int

    Returns
    -------
    laid_out, kept : int
    """
    if sampler == "exact":
        return 16 + topic_size, topic_size
    return 16 + (n_proposals + 2) * topic_size, (n_proposals + 1) * topic_size + 4


def kept_copies(group: Group) -> int:
    """States that a rank has in memory: its last ones, and those of its neighbour."""
    return MOST_COPIES // 2 if group.size == 1 else MOST_COPIES


def rows_in_memory(shard: Shard) -> int:
    """Bytes of the rows of a rank that are not on a disk."""
    return sum(_nbytes(block.X) for block in shard.blocks if not is_on_disk(block.X))


def open_room(
    needs: Needs, settings: RoomSettings, group: Group, shape: tuple[int, int]
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

    Returns
    -------
    room : Room

    Raises
    ------
    InsufficientMemoryError
        On all ranks, if what has to be in memory is too much for some process.
    """
    process = socket.gethostname(), os.getpid()
    found: list[Any] = allgather(group, (process, memory_here(), tuple(needs)))
    limits = {name: limit for name, limit, _ in found}
    sums = {name: np.zeros(len(needs), dtype=np.int64) for name in limits}
    for name, _, own in found:
        sums[name] += own
    parts = [int(sums[name].sum()) / limits[name] for name in limits]
    on_disk = settings.persists is False or (
        settings.persists is None and max(parts) > settings.fraction
    )
    for name, limit in limits.items():
        tokens, states, others = (int(value) for value in sums[name])
        least = others if on_disk else others + tokens + states
        if least > _MOST * limit:
            raise InsufficientMemoryError(
                _too_much(tokens + states, others, limit, shape, on_disk=on_disk)
            )
    if group.rank == 0:
        tokens, states, others = (
            format_bytes(max(int(own[i]) for own in sums.values())) for i in range(3)
        )
        logger.info(
            "SchMPLDA: a process has up to %s of tokens, %s of copies of their topics, "
            "and %s of rows and tables, of %s of memory: tokens %s "
            "(dask-ma.data.persist, dask-ma.data.memory-fraction)",
            tokens,
            states,
            others,
            format_bytes(min(limits.values())),
            "go to local disks" if on_disk else "stay in memory",
        )
    return Room(settings.folder, on_disk=on_disk)


def _too_much(
    tokens: int, others: int, limit: int, shape: tuple[int, int], *, on_disk: bool
) -> str:
    """Says what does not fit."""
    n_documents, n_tokens = shape
    text = (
        f"X has {n_documents} documents with {n_tokens} tokens. A process would have "
        f"{format_bytes(others)} of rows, tables of documents and words, and tokens "
        "that are worked on"
    )
    if not on_disk:
        text += f", and {format_bytes(tokens)} of tokens"
    text += f", but its memory is {format_bytes(limit)}; take more or larger workers"
    if on_disk:
        return (
            text + ", fewer topics, or sampler='metropolis', which has no table of the "
            "documents"
        )
    return text + ", or let tokens go to disks: dask-ma.data.persist 'auto'"


def _nbytes(X: Any) -> int:
    """Bytes of an array or a sparse matrix."""
    if sparse.issparse(X):
        return int(X.data.nbytes + X.indices.nbytes + X.indptr.nbytes)
    return int(X.nbytes)
