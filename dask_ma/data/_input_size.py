"""The size of rows, as far as it is known before they are computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dask_ma.data._blocks import is_sparse, n_bytes
from dask_ma.data._collections import futures_of_blocks, holders_of
from dask_ma.data._inputs import InputInfo, is_dask_collection

if TYPE_CHECKING:
    from distributed import Client, Future

__all__: list[str] = []

_MOST_LABELS = 100_000  # that are counted: with more rows, ranks have enough to do
_INDEX_BYTES = 4  # of an element of sparse rows, beside its value
# Bytes of rows that may move once they are computed, which any worker may do.
_LITTLE = 2**24
_DENSE = 0.95  # of the bytes that all elements take: fewer are those of sparse rows


class InputSize(NamedTuple):
    """How large X is, and where it lies.

    Attributes
    ----------
    n_rows, n_features : int
        Its shape.
    n_stored : int
        Stored elements: those that are not zero of sparse rows, all of dense ones.
    nbytes : int
        Bytes of the rows.
    held : dict of str to int
        Bytes of them on each worker that has any.
    n_classes : int, default=2
        Different labels; 2, too, for targets that are none, and where nobody knows.
    """

    n_rows: int
    n_features: int
    n_stored: int
    nbytes: int
    held: dict[str, int]
    n_classes: int = 2

    @property
    def is_sparse(self) -> bool:
        """Whether elements that are not stored are zero."""
        return self.n_stored < self.n_rows * self.n_features

    def moved(self, n_workers: int) -> int:
        """Bytes that have to move to so many workers, those that have most of them."""
        return sum(sorted(self.held.values(), reverse=True)[n_workers:])


# What chooses the worker of each rank, or None, once it is known how large rows are.
Narrow = Callable[[InputSize], list[str] | None]


def size_of_input(X: Any, info: InputInfo, client: Client) -> InputSize | None:
    """How large X is, if somebody knows before it is computed.

    Parameters
    ----------
    X : array-like, sparse, DataFrame, dask.array or dask.dataframe
        Of shape (n_rows, n_features).
    info : InputInfo
        What its metadata say.
    client : distributed.Client
        Of the workers that have it, if it is a Dask collection.

    Returns
    -------
    size : InputSize or None
        None for a Dask array of more than 16 MiB that is not in the memory of workers,
        or whose rows have not been counted, and for a Dask DataFrame.
    """
    if not info.n_rows or not info.n_features:
        return None
    if info.kind == "memory":
        n_stored = X.nnz if is_sparse(X) else info.n_rows * info.n_features
        return InputSize(info.n_rows, info.n_features, int(n_stored), n_bytes(X), {})
    return _size_on_workers(X, info, client) if info.kind == "array" else None


def count_classes(y: Any) -> int:
    """Different labels of few rows in this process; 2 where nobody knows.

    Parameters
    ----------
    y : array-like, Dask collection or None
        Labels of shape (n_rows,).

    Returns
    -------
    n_classes : int
        At least 2.
    """
    if y is None or is_dask_collection(y):
        return 2
    labels = np.asarray(y)
    if labels.ndim != 1 or len(labels) > _MOST_LABELS:
        return 2
    return max(2, len(set(labels.tolist())))


def _size_by_metadata(info: InputInfo) -> InputSize | None:
    """The size of a little Dask array; if its blocks are sparse, it is still less."""
    assert info.n_rows is not None and info.n_features is not None
    n_stored = info.n_rows * info.n_features
    nbytes = n_stored * info.dtype.itemsize
    if nbytes > _LITTLE:
        return None
    return InputSize(info.n_rows, info.n_features, n_stored, nbytes, {})


def _size_on_workers(X: Any, info: InputInfo, client: Client) -> InputSize | None:
    """The size of a persisted Dask array, from what its scheduler knows."""
    assert info.n_rows is not None and info.n_features is not None
    blocks = futures_of_blocks(X)
    if blocks is None:
        return _size_by_metadata(info)
    if any(block.status != "finished" for block in blocks):
        return None
    return size_of_blocks(client, blocks, info, info.n_rows)


def size_of_blocks(
    client: Client, blocks: Sequence[Future], info: InputInfo, n_rows: int
) -> InputSize | None:
    """The size of rows in the memory of workers, from what the scheduler knows.

    Parameters
    ----------
    client : distributed.Client
    blocks : sequence of Future
        Of X, finished.
    info : InputInfo
        What the metadata of X say.
    n_rows : int
        Of all blocks.

    Returns
    -------
    size : InputSize or None
        None where blocks have been forgotten meanwhile, or nobody knows the columns.
    """
    if not n_rows or not info.n_features:
        return None
    try:
        sizes = client.nbytes([block.key for block in blocks], summary=False)
    except KeyError:  # blocks that have been forgotten meanwhile
        return None
    held: Counter[str] = Counter()
    for block, places in zip(blocks, holders_of(client, blocks), strict=True):
        if not places or sizes.get(block.key, -1) < 0:
            return None
        held[places[0]] += sizes[block.key]
    nbytes, n_stored = held.total(), n_rows * info.n_features
    # The metadata of an array do not tell whether its blocks are sparse. Columns of a
    # frame may take less than their common type.
    is_less = nbytes < _DENSE * n_stored * info.dtype.itemsize
    if info.kind == "array" and is_less:
        n_stored = nbytes // (info.dtype.itemsize + _INDEX_BYTES)
    return InputSize(n_rows, info.n_features, n_stored, nbytes, dict(held))
