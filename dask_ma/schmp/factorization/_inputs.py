"""Ratings in the forms that users have them in, as rows of user, item and rating."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.data import (
    Kept,
    current_client,
    describe,
    is_dask_collection,
    is_foreign_sparse,
    is_sparse,
    refuse_beyond_memory,
    row_blocks,
    to_csr,
)
from dask_ma.schmp.factorization._columns import columns_of, wrong_number
from dask_ma.schmp.factorization._ids import (
    as_column,
    find_ids,
    merged_ids,
    unique_ids,
)
from dask_ma.schmp.factorization._rated import Rated

#: Ratings that a fit keeps for each rating.
COPIES = Kept(
    3.0,
    "ratings as columns, by users and by items",
    "fit the ratings of a part of the users, and give those of the others to "
    "partial_fit, a part at a time",
)
_ROW_BYTES = 12  # of a rating in the table: user, item and value in single precision
NO_RATINGS = "there are no ratings in X, expected at least one"


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
    table : ndarray or dask.array of shape (n, 3)
        Number of the user and of the item among those that are rated, and rating; of
        float32 where that holds all of them exactly, else of float64.
    user_ids, item_ids : ndarray
        Sorted ids.
    n_ratings : int
    seen : csr_array of shape (n_users, n_items)
        Ratings; of a pair that is rated twice their mean, or their sum.
    rated : Rated
        Users and items with ratings, as all are but of a matrix.
    """

    table: Any
    user_ids: np.ndarray
    item_ids: np.ndarray
    n_ratings: int
    seen: sparse.csr_array
    rated: Rated


def encode(X: Any, y: Any, dtype: Any, *, adds_up: bool) -> Encoded:
    """Number the users and items of an input.

    Parameters
    ----------
    X : array-like or DataFrame of shape (n, 2), or sparse matrix, or Dask collection
        Pairs of user and item; or users x items.
    y : array-like of shape (n,) or None
        Ratings; None for a matrix, and where each pair is an interaction.
    dtype : dtype
        Of the ratings that are kept.
    adds_up : bool
        Whether ratings of the same pair are added up.

    Returns
    -------
    encoded : Encoded
    """
    if is_dask_collection(X):
        return _encode_dask(X, y, dtype, adds_up=adds_up)
    X = as_scipy(X)
    triples = triples_of(X, y)
    own = Rated.of(triples.users, triples.items)
    numbers, sizes = _numbered(triples, *own), (len(own.users), len(own.items))
    table = _table(numbers, _smallest_float(sizes, [_is_single(numbers)]))
    if sparse.issparse(X):
        users, items = Rated.all_of(X.shape)
    else:
        (users, items), triples, own = own, numbers, Rated.all_of(sizes)
    shape = len(users), len(items)
    seen = rated(_columns(triples, dtype), shape, adds_up=adds_up)
    return Encoded(table, users, items, len(table), seen, own)


def as_scipy(X: Any) -> Any:
    """A sparse array of any package as one of SciPy; other inputs as they are."""
    return to_csr(X) if is_foreign_sparse(X) else X


def are_pairs(X: Any) -> bool:
    """Whether an input is rows of user and item, and not a matrix."""
    if is_sparse(X):
        return False
    if hasattr(X, "chunks"):
        return not is_sparse(X._meta) and X.shape[1] == 2
    return True


def is_matrix(X: Any, y: Any) -> bool:
    """Whether an input is all ratings, users x items."""
    return y is None and not are_pairs(X)


def pairs_and_ratings(X: Any, y: Any) -> tuple[Any, Any]:
    """Pairs and ratings, which are the third column of a frame with three of them.

    Raises
    ------
    ValueError
        If it is a frame of other columns.
    """
    columns = columns_of(X)
    if columns is None or len(columns) == 2:
        return X, y
    if y is not None or len(columns) != 3:
        raise wrong_number(columns)
    return X[columns[:2]], X[columns[2]]


def triples_of(X: Any, y: Any) -> Triples:
    """Ratings of an input in memory.

    Raises
    ------
    ValueError
        If it is none of the forms, or has ratings that are no finite numbers.
    """
    X = as_scipy(X)
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


def parts_in_memory(X: Any, y: Any) -> list[Triples]:
    """Ratings of an input, those of each block of a Dask collection."""
    if not is_dask_collection(X):
        return [triples_of(X, y.compute() if is_dask_collection(y) else y)]
    import dask

    blocks = _matrix_blocks(X) if is_matrix(X, y) else _pair_blocks(X, y)
    return list(dask.compute(*blocks))


def pairs_of(X: Any) -> tuple[np.ndarray, np.ndarray]:
    """Users and items of rows with two columns.

    Raises
    ------
    ValueError
        If there are not two columns.
    """
    if sparse.issparse(as_scipy(X)):
        has_pairs = "X.nonzero()" if hasattr(X, "nonzero") else "X.tocoo().nonzero()"
        raise ValueError(
            "X is a sparse matrix of users x items, expected pairs of user and item; "
            f"np.column_stack({has_pairs}) has those of its ratings"
        )
    if hasattr(X, "iloc"):
        n_columns = X.shape[1] if X.ndim == 2 else 1
        if n_columns == 2:
            return X.iloc[:, 0].to_numpy(), X.iloc[:, 1].to_numpy()
        if X.ndim == 2:
            raise wrong_number(columns_of(X) or [])
    elif isinstance(X, list | tuple):
        lengths = {len(row) if isinstance(row, list | tuple) else 0 for row in X}
        n_columns = lengths.pop() if len(lengths) == 1 else 0
        if n_columns == 2:
            return as_column([row[0] for row in X]), as_column([row[1] for row in X])
    else:
        X = np.asarray(X)
        n_columns = X.shape[1] if X.ndim == 2 else 0
        if n_columns == 2:
            return X[:, 0], X[:, 1]
    cure = " pass X[:, :2], with the ratings as y;" if n_columns in (3, 4) else ""
    raise ValueError(
        f"X must have two columns, user and item, got {n_columns};{cure} a matrix "
        "of users x items must be sparse, so that its zeros can be told from missing "
        "ratings"
    )


def _checked(values: Any, n: int) -> np.ndarray:
    """Ratings as numbers."""
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError("y is a masked array; leave missing ratings out")
    values = np.asarray(values)
    if values.dtype.kind == "c":
        raise ValueError(f"y has the type {values.dtype}, expected real numbers")
    try:
        values = values.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise type(error)(f"y has ratings that are no numbers: {error}") from error
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
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


def _numbered(triples: Triples, users: np.ndarray, items: np.ndarray) -> Triples:
    """Ratings by the numbers of users and items."""
    sides = (users, triples.users, "users"), (items, triples.items, "items")
    numbers = [
        find_ids(known, ids, name).astype(np.int32 if len(known) < 2**31 else np.int64)
        for known, ids, name in sides
    ]
    return Triples(numbers[0], numbers[1], triples.values)


def _table(numbers: Triples, dtype: Any) -> np.ndarray:
    """Ratings as rows."""
    table = np.empty((len(numbers.values), 3), dtype=dtype)
    for place, column in enumerate(numbers):
        table[:, place] = column
    return table


def _is_single(numbers: Triples) -> bool:
    """Whether ratings are the same in single precision."""
    with np.errstate(over="ignore"):
        return bool((numbers.values.astype(np.float32) == numbers.values).all())


def _smallest_float(shape: tuple[int, int], is_single: Sequence[bool]) -> Any:
    """Type that holds numbers of users and items, and the ratings of all parts."""
    return np.float32 if max(shape) <= 2**24 and all(is_single) else np.float64


def rated(
    columns: Sequence[np.ndarray], shape: tuple[int, int], *, adds_up: bool
) -> sparse.csr_array:
    """Ratings as a matrix, with zeros among them.

    Parameters
    ----------
    columns : sequence of ndarray of shape (n,)
        Numbers of users, of items, and ratings.
    shape : tuple of int
    adds_up : bool
        Whether ratings of the same pair are added up; their mean is taken otherwise.

    Returns
    -------
    ratings : csr_array
    """
    users, items, values = columns
    matrix = sparse.csr_array((values, (users, items)), shape=shape)
    matrix.sum_duplicates()
    if not adds_up and matrix.nnz < len(values):
        ones = np.ones(len(values), values.dtype)
        counts = sparse.csr_array((ones, (users, items)), shape=shape)
        counts.sum_duplicates()
        matrix.data /= counts.data
    return matrix


def _columns(numbers: Triples, dtype: Any) -> tuple[np.ndarray, ...]:
    """Users, items and ratings, in little memory."""
    return numbers.users, numbers.items, numbers.values.astype(dtype)


def _sent(numbers: Triples, dtype: Any) -> tuple[Any, ...]:
    """What the client gets of a block."""
    return *_columns(numbers, dtype), _is_single(numbers)


# Dask -------------------------------------------------------------------------------


def _encode_dask(X: Any, y: Any, dtype: Any, *, adds_up: bool) -> Encoded:
    """Number the users and items where the blocks are; ids alone come here."""
    import dask
    import dask.array as da

    if not hasattr(X, "chunks") and not hasattr(X, "columns"):
        describe(X)  # says why it is neither pairs nor a matrix
    whole = is_matrix(X, y)
    n_rows = X.shape[0]
    if not whole and isinstance(n_rows, int | np.integer):  # else nobody knows
        refuse_beyond_memory(_ROW_BYTES * int(n_rows), COPIES)
    blocks = _matrix_blocks(X) if whole else _pair_blocks(X, y)
    if whole:
        users, items = np.arange(X.shape[0]), np.arange(X.shape[1])
    else:
        found = dask.compute(*(dask.delayed(_ids_of)(block) for block in blocks))
        users, items = (
            merged_ids([part[side] for part in found], name)
            for side, name in enumerate(("users", "items"))
        )
    shape = own_shape = len(users), len(items)
    own, ids = Rated.all_of(shape), _known_to_all([users, items])
    numbers = [dask.delayed(_numbered)(block, *ids) for block in blocks]
    parts = dask.compute(*(dask.delayed(_sent)(one, dtype) for one in numbers))
    sizes = [len(part[0]) for part in parts]
    if not any(sizes):
        raise ValueError(NO_RATINGS)
    columns = [np.concatenate(column) for column in list(zip(*parts, strict=True))[:3]]
    if whole:
        own = Rated.of(*columns[:2])
        own_shape = len(own.users), len(own.items)
        if own_shape != shape:
            ids = _known_to_all(list(own))
            numbers = [dask.delayed(_numbered)(block, *ids) for block in blocks]
    kind = _smallest_float(own_shape, [part[3] for part in parts])
    table = da.concatenate(
        [
            da.from_delayed(dask.delayed(_table)(one, kind), (n, 3), dtype=kind)
            for one, n in zip(numbers, sizes, strict=True)
            if n
        ]
    )
    del parts
    seen = rated(columns, shape, adds_up=adds_up)
    return Encoded(table, users, items, sum(sizes), seen, own)


def _known_to_all(objects: list[Any]) -> list[Any]:
    """Arguments of delayed calls that are sent to each worker, and not with a graph."""
    import dask

    client = current_client()
    if client is None:
        return [dask.delayed(each) for each in objects]
    # To all of them, so that a worker that is lost takes nothing along.
    return list(client.scatter(objects, broadcast=True, hash=False))


def _pair_blocks(X: Any, y: Any) -> list[Any]:
    """Delayed triples of the blocks of pairs."""
    import dask

    pieces = [blocks for blocks in row_blocks(X, y) if blocks is not None]
    make: Callable[..., Any] = dask.delayed(_triples_of_block)
    return [make(*parts) for parts in zip(*pieces, strict=True)]


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
    if not is_sparse(X):
        raise ValueError(
            "the blocks of a users x items array must be sparse, so that zeros can be "
            "told from missing ratings"
        )
    users, items, values = triples_of(X, None)
    return Triples(users + first_user, items + first_item, values)


def _ids_of(triples: Triples) -> tuple[np.ndarray, np.ndarray]:
    """Different users and items of a block."""
    return unique_ids(triples.users, "users"), unique_ids(triples.items, "items")
