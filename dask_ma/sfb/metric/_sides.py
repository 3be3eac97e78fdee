"""Distances of pairs and triplets that a fitted metric is asked about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask
import numpy as np
from scipy import sparse

from dask_ma.data import is_dask_collection, refuse_masked
from dask_ma.kernels import square_lengths
from dask_ma.sfb.model._pairs import check_tuples, known_length


def distances_of(tuples: Any, X: Any, project: Callable[[Any], Any]) -> np.ndarray:
    """Learnt distances of first rows to second ones, and of triplets to third ones.

    Parameters
    ----------
    tuples : array-like of shape (n, 2, n_features) or (n, 3, n_features), or of int \
            of shape (n, 2) or (n, 3)
        The rows themselves, or numbers of rows of `X`.
    X : array-like, sparse, DataFrame, Dask collection or None
        Rows that the numbers name.
    project : callable
        Projects rows, lazily those of a Dask collection. Each row that numbers name is
        projected once.

    Returns
    -------
    distances : ndarray of shape (n, 1) or (n, 2)
    """
    refuse_masked(tuples, "pairs")
    first, *others = (
        _sides(tuples, project) if X is None else _named(tuples, X, project)
    )
    squares = [square_lengths(first - other) for other in others]
    return np.sqrt(np.stack(squares, axis=1))


def distance(components: np.ndarray, u: Any, v: Any, squared: bool = False) -> float:
    """Learnt distance of two rows.

    Parameters
    ----------
    components : ndarray of shape (n_components, n_features) or (n_features,)
    u, v : array-like of shape (n_features,)
    squared : bool, default=False
        Whether its square is wanted.
    """
    difference = np.subtract(u, v, dtype=np.float64)  # bytes would wrap around
    is_diagonal = components.ndim == 1
    moved = components * difference if is_diagonal else components @ difference
    square = float(moved @ moved)
    return square if squared else float(np.sqrt(square))


def _sides(tuples: Any, project: Callable[[Any], Any]) -> list[Any]:
    """First, second and third rows of an array of rows, projected."""
    tuples = np.asarray(tuples)
    if tuples.ndim != 3 or tuples.shape[1] not in (2, 3):
        raise ValueError(
            f"pairs has the shape {tuples.shape}, expected (n_pairs, 2, "
            "n_features), or (n_pairs, 3, n_features) for triplets; pass X with pairs "
            "of row numbers"
        )
    width = tuples.shape[1]
    found = project(tuples.reshape(-1, tuples.shape[2]))
    return [found[side::width] for side in range(width)]


def _named(tuples: Any, X: Any, project: Callable[[Any], Any]) -> list[Any]:
    """First, second and third rows that numbers name, projected."""
    is_lazy = is_dask_collection(X)
    if not (is_lazy or hasattr(X, "shape")):
        X = np.asarray(X)
    rows = check_tuples(tuples, None, known_length(X), allow_same=True).rows
    wanted, places = np.unique(rows, return_inverse=True)
    if is_lazy:
        found = _picked(project(X), wanted)
    else:
        found = _projected(X, wanted, project)
    return [found[side] for side in places.reshape(rows.shape).T]


def _projected(X: Any, numbers: np.ndarray, project: Callable[[Any], Any]) -> Any:
    """Some rows in memory, projected."""
    if sparse.issparse(X):
        return project(X.tocsr()[numbers])
    if hasattr(X, "iloc"):  # with the names of columns
        return project(X.iloc[numbers])
    if isinstance(X, np.ndarray) and X.ndim == 2:
        return project(X[numbers])
    return project(X)[numbers]


def _picked(lazy: Any, numbers: np.ndarray) -> Any:
    """Some rows of a lazy array, by rising numbers; they alone leave the workers."""
    blocks = lazy.to_delayed().ravel().tolist()
    counts = np.array(lazy.chunks[0])
    if np.isnan(counts).any():
        counts = np.array(dask.compute(*map(dask.delayed(_count), blocks)))
    ends = np.cumsum(counts.astype(np.int64))
    if numbers[-1] >= ends[-1]:
        raise ValueError(
            f"pairs are out of range, as row {numbers[-1]}; X has the rows 0 to "
            f"{ends[-1] - 1}"
        )
    own = np.split(numbers, np.searchsorted(numbers, ends[:-1]))
    pick = dask.delayed(_rows_of)
    parts = [
        pick(block, some - end + count)
        for block, some, end, count in zip(blocks, own, ends, counts, strict=True)
        if len(some)
    ]
    found = dask.compute(*parts)
    if sparse.issparse(found[0]):
        return sparse.vstack(found, format="csr")
    return np.concatenate(found)


def _count(block: Any) -> int:
    """Rows of a block."""
    return int(block.shape[0])


def _rows_of(block: Any, numbers: np.ndarray) -> Any:
    """Some rows of a block."""
    return block[numbers]
