"""All the fits to be looked at: sets, layouts of the rows, numbers of ranks."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np
from scipy import sparse

from .sets import SETS, Rows

LAYOUTS = ("one block", "20 blocks", "sorted", "sorted blocks", "weighted")
RANKS = (1, 2, 4, 8)
_N_BLOCKS = 20


@dataclass(frozen=True)
class Cell:
    """One fit of a contestant.

    Attributes
    ----------
    rows : str
        Name of the set.
    layout : str
        One of `LAYOUTS`: "sorted" is by the target, and "weighted" is like "20 blocks".
    n_ranks : int
    """

    rows: str
    layout: str
    n_ranks: int

    def __str__(self) -> str:
        return f"{self.rows}, {self.layout}, {self.n_ranks} ranks"


def every_cell(task: str) -> list[Cell]:
    """All cells of a task."""
    return [
        Cell(rows, layout, n_ranks)
        for rows in SETS[task]
        for layout in LAYOUTS
        for n_ranks in RANKS
    ]


def spread(cells: Sequence[Cell], size: int, key: str) -> list[Cell]:
    """Draw cells so that each set, layout and number of ranks comes equally often.

    Parameters
    ----------
    cells : sequence of Cell
        All combinations of some sets, layouts and numbers of ranks.
    size : int
    key : str
        What the draw depends on.
    """
    rng = random.Random(zlib.crc32(key.encode()))
    choices = (
        sorted({cell.rows for cell in cells}),
        sorted({cell.layout for cell in cells}),
        sorted({cell.n_ranks for cell in cells}),
    )
    columns = [_dealt(values, size, rng) for values in choices]
    return [Cell(*values) for values in zip(*columns, strict=True)]


def _dealt(values: Sequence[Any], size: int, rng: random.Random) -> list[Any]:
    """Values in a random order, again and again."""
    dealt: list[Any] = []
    while len(dealt) < size:
        dealt += rng.sample(list(values), len(values))
    return dealt[:size]


def arrange(rows: Rows, layout: str) -> tuple[Any, Any, np.ndarray | None]:
    """X, y and sample weights as an estimator gets them."""
    X, y = rows
    weight = rows.sample_weight if layout == "weighted" else None
    if layout.startswith("sorted"):
        order = np.argsort(y, kind="stable")
        X, y = X[order], y[order]
    if layout in ("one block", "sorted"):
        return X, y, weight
    cuts = np.linspace(0, len(y), min(_N_BLOCKS, len(y)) + 1).astype(int)
    pieces = list(zip(cuts, cuts[1:], strict=False))
    meta = sparse.csr_matrix((0, 0)) if sparse.issparse(X) else np.empty((0, 0))
    blocks = [
        da.from_delayed(
            dask.delayed(X[start:stop], pure=True),
            (stop - start, X.shape[1]),
            meta=meta,
        )
        for start, stop in pieces
    ]
    chunks = (tuple(int(stop - start) for start, stop in pieces),)
    there = None if weight is None else da.from_array(weight, chunks=chunks)
    return da.concatenate(blocks), da.from_array(y, chunks=chunks), there
