"""Blocks of rows as what messages may hold: arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.data._shard import Block

__all__ = ["pack_block", "unpack_block"]


def pack_block(block: Block) -> list[Any]:
    """A block as a message.

    Parameters
    ----------
    block : Block

    Returns
    -------
    message : list of ndarray or None
        The rows, or data, column indices and row pointer of sparse ones; y; weights.
    """
    X = block.X
    rows = [X.data, X.indices, X.indptr] if sparse.issparse(X) else [X]
    return [*rows, block.y, block.sample_weight]


def unpack_block(message: Sequence[Any], n_features: int) -> Block:
    """The block of a message, which has no number.

    Parameters
    ----------
    message : list of ndarray or None
        As :func:`pack_block` gives it.
    n_features : int

    Returns
    -------
    block : Block
    """
    *rows, y, weight = message
    X: Any = np.asarray(rows[0])
    if len(rows) > 1:
        X = sparse.csr_array(tuple(rows), shape=(len(y), n_features))
    return Block(X, y, weight, -1, None)
