"""Kinds of input that a fit may be given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, wait
from scipy import sparse

_N_BLOCKS = 8

Given = tuple[Any, ...]


def _numpy(client: Client, parts: list[np.ndarray]) -> Given:
    return tuple(parts)


def _csr(client: Client, parts: list[np.ndarray]) -> Given:
    return (sparse.csr_array(parts[0]), *parts[1:])


def _lazy(client: Client, parts: list[np.ndarray]) -> Given:
    size = -(-len(parts[0]) // _N_BLOCKS)
    return tuple(da.from_array(p, chunks=(size, *p.shape[1:])) for p in parts)


def _frame(client: Client, parts: list[np.ndarray]) -> Given:
    import dask.dataframe as dd
    import pandas as pd

    names = [f"x{number}" for number in range(parts[0].shape[1])]
    frame = pd.DataFrame(parts[0], columns=names)
    if len(parts) > 1:
        frame["y"] = parts[1]
    lazy = dd.from_pandas(frame, npartitions=_N_BLOCKS)
    return (lazy[names], lazy["y"]) if len(parts) > 1 else (lazy,)


def _persisted(client: Client, parts: list[np.ndarray]) -> Given:
    collections = client.persist(list(_lazy(client, parts)))
    wait(collections)
    return tuple(collections)


def _scattered(client: Client, parts: list[np.ndarray]) -> Given:
    size = -(-len(parts[0]) // _N_BLOCKS)
    collections = []
    for part in parts:
        blocks = [part[i : i + size] for i in range(0, len(part), size)]
        # With the names of their contents, blocks could be taken for those of the fit
        # before, which the scheduler may be about to forget.
        futures = client.scatter(blocks, hash=False)
        collections.append(
            da.concatenate(
                [
                    da.from_delayed(dask.delayed(future), block.shape, block.dtype)
                    for future, block in zip(futures, blocks, strict=True)
                ]
            )
        )
    return tuple(collections)


KINDS: dict[str, Callable[[Client, list[np.ndarray]], Given]] = {
    "numpy": _numpy,
    "csr": _csr,
    "lazy": _lazy,
    "frame": _frame,
    "persisted": _persisted,
    "scattered": _scattered,
}


def make_input(kind: str, client: Client, X: np.ndarray, y: Any) -> Given:
    """Arguments of ``fit``: X, and y if there is one.

    Parameters
    ----------
    kind : str
        A key of `KINDS`.
    client : Client
        Where persisted and scattered blocks go.
    X, y : ndarray
        All rows; `y` may be None.
    """
    with client.as_current():
        return KINDS[kind](client, [X] if y is None else [X, y])
