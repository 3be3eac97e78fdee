"""Ratings in the forms that users have them in, as rows of user, item and rating."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.data import is_dask_collection
from dask_ma.schmp.factorization._ids import find_ids, merged_ids, unique_ids


class Triples(NamedTuple):
    """Ratings in memory, by ids.

    Attributes
    ----------
    users, items : ndarray of shape (n,)
    values : ndarray of float64 of shape (n,)
    """

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray


class Encoded(NamedTuple):
    """Ratings by numbers of users and items.

    Attributes
    ----------
    table : ndarray or dask.array of float64 of shape (n, 3)
        Number of the user, number of the item, rating.
    user_ids, item_ids : ndarray
        Sorted ids.
    n_ratings : int
    seen : csr_array of bool of shape (n_users, n_items)
        Which pairs are rated.
    """

    table: Any
    user_ids: np.ndarray
    item_ids: np.ndarray
    n_ratings: int
    seen: sparse.csr_array


def encode(X: Any, y: Any) -> Encoded:
    """Number the users and items of an input.

    Parameters
    ----------
    X : array-like or DataFrame of shape (n, 2), or sparse matrix, or Dask collection
        Pairs of user and item; or users x items.
    y : array-like of shape (n,) or None
        Ratings; None for a matrix, and where each pair is an interaction.

    Returns
    -------
    encoded : Encoded
    """
    if is_dask_collection(X):
        return _encode_dask(X, y)
    triples = triples_of(X, y)
    users, items = (
        (np.arange(X.shape[0]), np.arange(X.shape[1]))
        if sparse.issparse(X)
        else (unique_ids(triples.users, "users"), unique_ids(triples.items, "items"))
    )
    table = _table(triples, users, items)
    return Encoded(table, users, items, len(table), _seen([table], users, items))


def triples_of(X: Any, y: Any) -> Triples:
    """Ratings of an input in memory.

    Raises
    ------
    ValueError
        If it is none of the forms, or has ratings that are no finite numbers.
    """
    if sparse.issparse(X):
        if y is not None:
            raise ValueError(
                "y must be None where X is a users x items matrix, which has the "
                "ratings in it"
            )
        # Explicit zeros are ratings; what is stored twice is one element.
        table = sparse.csr_array(X, copy=True)
        table.sum_duplicates()
        table = table.tocoo()
        values = _checked(table.data, len(table.data))
        return Triples(table.coords[0], table.coords[1], values)
    users, items = pairs_of(X)
    if y is None:
        return Triples(users, items, np.ones(len(users)))
    return Triples(users, items, _checked(y, len(users)))


def pairs_of(X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Users and items of rows with two columns.

    Raises
    ------
    ValueError
        If there are not two columns.
    """
    if hasattr(X, "iloc"):
        n_columns = X.shape[1] if X.ndim == 2 else 1
        if n_columns == 2:
            return X.iloc[:, 0].to_numpy(), X.iloc[:, 1].to_numpy()
    elif isinstance(X, list | tuple):
        lengths = {len(row) if isinstance(row, list | tuple) else 0 for row in X}
        n_columns = lengths.pop() if len(lengths) == 1 else 0
        if n_columns == 2:
            return np.array([row[0] for row in X]), np.array([row[1] for row in X])
    else:
        X = np.asarray(X)
        n_columns = X.shape[1] if X.ndim == 2 else 0
        if n_columns == 2:
            return X[:, 0], X[:, 1]
    raise ValueError(
        f"X must have two columns, user and item, got {n_columns}; a matrix of users x "
        "items must be sparse, so that its zeros can be told from missing ratings"
    )


def _checked(values: Any, n: int) -> np.ndarray:
    """Ratings as numbers."""
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (n,):
        raise ValueError(
            f"y must have one rating for each of the {n} rows of X, got shape "
            f"{values.shape}"
        )
    bad = ~np.isfinite(values)
    if bad.any():
        raise ValueError(
            f"rating {int(np.argmax(bad))} is {values[bad][0]}, expected a finite "
            "number; leave missing ratings out"
        )
    return values


def _table(triples: Triples, users: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Numbers of users and items, and ratings."""
    return np.column_stack(
        [
            find_ids(users, triples.users, "users"),
            find_ids(items, triples.items, "items"),
            triples.values,
        ]
    ).astype(np.float64)


def _seen(
    tables: list[np.ndarray], users: np.ndarray, items: np.ndarray
) -> sparse.csr_array:
    """Which pairs are rated."""
    pairs = np.concatenate([np.empty((0, 2), np.int64), *(_int(t) for t in tables)])
    seen = sparse.csr_array(
        (np.ones(len(pairs), dtype=bool), (pairs[:, 0], pairs[:, 1])),
        shape=(len(users), len(items)),
    )
    seen.sum_duplicates()
    return seen


def _int(table: np.ndarray) -> np.ndarray:
    return table[:, :2].astype(np.int64)


# Dask -------------------------------------------------------------------------------


def _encode_dask(X: Any, y: Any) -> Encoded:
    """Number the users and items where the blocks are; ids alone come here."""
    import dask
    import dask.array as da

    is_matrix = y is None and _is_matrix(X)
    blocks = _matrix_blocks(X) if is_matrix else _pair_blocks(X, y)
    if is_matrix:
        users, items = np.arange(X.shape[0]), np.arange(X.shape[1])
    else:
        found = dask.compute(*(dask.delayed(_ids_of)(block) for block in blocks))
        users, items = (
            merged_ids([part[side] for part in found], name)
            for side, name in enumerate(("users", "items"))
        )
    tables = [dask.delayed(_table)(block, users, items) for block in blocks]
    pairs = dask.compute(*(dask.delayed(_int)(table) for table in tables))
    sizes = [len(part) for part in pairs]
    table = da.concatenate(
        [
            da.from_delayed(one, (n, 3), dtype=np.float64)
            for one, n in zip(tables, sizes, strict=True)
            if n
        ]
    )
    seen = _seen(list(pairs), users, items)
    return Encoded(table, users, items, sum(sizes), seen)


def _is_matrix(X: Any) -> bool:
    """Whether a Dask array is users x items, and not pairs."""
    return hasattr(X, "chunks") and (sparse.issparse(X._meta) or X.shape[1] != 2)


def _pair_blocks(X: Any, y: Any) -> list[Any]:
    """Delayed triples of the blocks of pairs."""
    import dask

    pieces = [_column_blocks(X)]
    if y is not None:
        pieces.append(_column_blocks(y))
        if len(pieces[1]) != len(pieces[0]):
            raise ValueError(
                f"y has {len(pieces[1])} blocks and X has {len(pieces[0])}; they must "
                "have the same chunks"
            )
    make: Callable[..., Any] = dask.delayed(_triples_of_block)
    return [make(*parts) for parts in zip(*pieces, strict=True)]


def _column_blocks(X: Any) -> list[Any]:
    """Delayed blocks of rows."""
    if not hasattr(X, "chunks"):  # a dask.dataframe
        return list(X.to_delayed())
    if X.ndim == 2 and X.numblocks[1] > 1:
        X = X.rechunk({1: -1})
    return list(X.to_delayed().ravel())


def _matrix_blocks(X: Any) -> list[Any]:
    """Delayed triples of the blocks of a users x items array."""
    import dask

    if np.isnan(X.shape).any():
        raise ValueError(
            f"X has the shape {X.shape}, expected a known number of users and items; "
            "call its compute_chunk_sizes()"
        )
    starts = [np.cumsum((0, *chunks)) for chunks in X.chunks]
    make: Callable[..., Any] = dask.delayed(_triples_of_matrix)
    return [
        make(block, int(starts[0][i]), int(starts[1][j]))
        for (i, j), block in np.ndenumerate(X.to_delayed())
    ]


def _triples_of_block(X: Any, y: Any = None) -> Triples:
    """Ratings of a block of pairs."""
    return triples_of(X, None if y is None else np.asarray(y).reshape(-1))


def _triples_of_matrix(X: Any, first_user: int, first_item: int) -> Triples:
    """Ratings of a block of a matrix."""
    if not sparse.issparse(X):
        raise ValueError(
            "the blocks of a users x items array must be sparse, so that zeros can be "
            "told from missing ratings"
        )
    users, items, values = triples_of(X, None)
    return Triples(users + first_user, items + first_item, values)


def _ids_of(triples: Triples) -> tuple[np.ndarray, np.ndarray]:
    """Different users and items of a block."""
    return unique_ids(triples.users, "users"), unique_ids(triples.items, "items")
