"""From dask.dataframe to arrays with the same partitions, rows side by side.

A DataFrame of Dask is an expression: what it reads, how often and in which partitions
is decided when it is lowered to a graph. X, y and weights are often expressions of one
DataFrame that choose other columns of it. They are lowered as one, so that files are
read once, a shuffle is made once, and row i of y belongs to row i of X; and without
the joining of partitions, so that block i is partition i.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from operator import getitem
from typing import Any

import numpy as np

from dask_ma._config import partitions_kept
from dask_ma.data._blocks import features_to_array, frame_to_array
from dask_ma.data._collections import (
    COLUMN,
    block_keys,
    dependencies_of,
    futures_of_blocks,
)
from dask_ma.data._inputs import (
    align_blocks,
    check_length,
    is_dask_collection,
    is_dask_frame,
)

__all__ = ["as_arrays", "row_blocks"]


def as_arrays(collections: Sequence[Any], *, keep_persisted: bool = False) -> list[Any]:
    """Turn the DataFrames and Series among some collections into dask.arrays.

    Parameters
    ----------
    collections : sequence of dask.array or dask.dataframe
        X, or predictions, and what goes with its rows.
    keep_persisted : bool, default=False
        Whether a DataFrame whose partitions are on a cluster is returned as it is.

    Returns
    -------
    list of Dask collections
        The blocks of the arrays are NumPy arrays of unknown length.

    Raises
    ------
    ValueError
        If partitions of a persisted DataFrame are missing.
    """
    result = list(collections)
    frames = [place for place, c in enumerate(result) if is_dask_frame(c)]
    if not frames:
        return result
    if keep_persisted:
        for place in frames:
            _check_complete(result[place])
        frames = [place for place in frames if not futures_of_blocks(result[place])]
    with partitions_kept():
        together = [place for place in frames if _keeps_partitions(result[place])]
        together = [
            place
            for place in together
            if result[place].npartitions == result[together[0]].npartitions
        ]
        groups = [together] if together else []
        groups += [[place] for place in frames if place not in together]
        for group in groups:
            arrays = _lower([result[place] for place in group], group[0] == 0)
            for place, array in zip(group, arrays, strict=True):
                result[place] = array
    return result


def row_blocks(X: Any, y: Any = None) -> tuple[list[Any], list[Any] | None]:
    """Delayed blocks of rows in the types that they have, those of y beside those of X.

    Parameters
    ----------
    X : dask.array or dask.dataframe
        Rows; blocks of an array have all of its columns.
    y : array-like, dask.array or dask.dataframe Series, or None
        A value for each row.

    Returns
    -------
    blocks : list of Delayed
        Of X, one for each of its partitions.
    columns : list of Delayed or None
        Parts of y that belong to them.

    Raises
    ------
    ValueError
        If X and y have other numbers of rows.
    """
    if is_dask_frame(X) and is_dask_frame(y) and _are_partitioned_alike(X, y):
        pairs = _side_by_side(X, y)
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    blocks = _delayed_blocks(X)
    if y is None:
        return blocks, None
    if not is_dask_collection(y):
        return blocks, _cut_like(y, X, blocks)
    if not is_dask_frame(X) and not is_dask_frame(y):
        y = align_blocks(y, "y", X)
        if y.npartitions == len(blocks):
            return blocks, _delayed_blocks(y)
    return blocks, _cut_blocks_like(y, blocks)


def _are_partitioned_alike(X: Any, y: Any) -> bool:
    """Whether two frames have the same partitions, as far as they say, also lowered."""
    with partitions_kept():
        keep = _keeps_partitions(X) and _keeps_partitions(y)
    known = X.known_divisions and y.known_divisions
    # Other labels of as many rows are alike, too: then the rows have to be counted.
    differ = known and X.divisions != y.divisions
    return keep and not differ and bool(X.npartitions == y.npartitions)


def _side_by_side(*frames: Any) -> list[Any]:
    """Delayed tuples of the partitions of frames that are lowered as one."""
    with partitions_kept():
        joined = _join_frames(_as_tuple, frames)
        return list(joined.to_delayed(optimize_graph=False))


def _as_tuple(*frames: Any) -> tuple[Any, ...]:
    """Partitions that belong together (runs on a worker)."""
    return frames


def _delayed_blocks(collection: Any) -> list[Any]:
    """Delayed blocks of rows of one collection."""
    if is_dask_frame(collection):
        with partitions_kept():
            return list(collection.to_delayed())
    if collection.ndim == 2 and collection.numblocks[1] > 1:
        collection = collection.rechunk({1: -1})
    return list(collection.to_delayed().ravel())


def _cut_like(y: Any, X: Any, blocks: Sequence[Any]) -> list[Any]:
    """Parts of a column of this process, as long as the blocks of X."""
    import dask

    y = np.asarray(y)
    lengths = [np.nan] if is_dask_frame(X) else X.chunks[0]
    if np.isnan(lengths).any():
        lengths = dask.compute(*(dask.delayed(len)(block) for block in blocks))
    check_length("y", len(y), sum(lengths))
    return [dask.delayed(part) for part in np.split(y, np.cumsum(lengths)[:-1])]


def _cut_blocks_like(y: Any, blocks: Sequence[Any]) -> list[Any]:
    """Parts of a lazy column as long as some blocks, whose rows are counted."""
    import dask
    import dask.array as da

    columns = _delayed_blocks(y)
    counted = dask.compute(*(dask.delayed(len)(part) for part in [*blocks, *columns]))
    lengths, own = counted[: len(blocks)], counted[len(blocks) :]
    check_length("y", sum(own), sum(lengths))
    if lengths == own:
        return columns
    meta = frame_to_array(y._meta) if is_dask_frame(y) else y._meta
    flat: Any = dask.delayed(_flat)
    whole = da.concatenate(
        [
            da.from_delayed(flat(part), (n,), dtype=meta.dtype)
            for part, n in zip(columns, own, strict=True)
        ]
    )
    return list(whole.rechunk((tuple(lengths),)).to_delayed())


def _flat(column: Any) -> np.ndarray:
    """A column, also one of shape (n, 1), as an array (runs on a worker)."""
    return np.asarray(column).reshape(-1)


def as_array(collection: Any) -> Any:
    """A dask.array for a DataFrame or Series."""
    return as_arrays([collection])[0]


def _keeps_partitions(frame: Any) -> bool:
    """Whether a frame has as many partitions when it is lowered."""
    # A filter on Parquet files can leave whole files out.
    return bool(frame.optimize(fuse=False).npartitions == frame.npartitions)


def _lower(frames: Sequence[Any], with_features: bool) -> list[Any]:
    """Arrays of frames with the same number of partitions; the first one may be X."""
    import dask.array as da  # whoever has a frame has loaded it
    from dask.highlevelgraph import HighLevelGraph

    with_features = with_features and frames[0].ndim == 2
    metas = [frame_to_array(frame._meta) for frame in frames]
    dtypes = [meta.dtype for meta in metas]
    joined = _join_frames(_to_numpy, frames, with_features=with_features, dtypes=dtypes)
    graph, keys = joined.__dask_graph__(), joined.__dask_keys__()
    source = f"dask_ma-partitions-{uuid.uuid4().hex}"
    arrays = []
    for number, meta in enumerate(metas):
        name = f"{COLUMN}-{uuid.uuid4().hex}"
        tail = (0,) * (meta.ndim - 1)
        layer = {(name, i, *tail): (getitem, key, number) for i, key in enumerate(keys)}
        layers = {source: graph, name: layer}
        dependencies: dict[str, set[str]] = {source: set(), name: {source}}
        chunks = ((np.nan,) * len(keys), *((n,) for n in meta.shape[1:]))
        arrays.append(
            da.Array(HighLevelGraph(layers, dependencies), name, chunks, meta=meta)
        )
    return arrays


def _join_frames(function: Any, frames: Sequence[Any], **options: Any) -> Any:
    """A function of the partitions of frames that belong together, lowered at once."""
    import dask.dataframe as dd

    joined = dd.map_partitions(
        function,
        *frames,
        **options,
        meta=frames[0]._meta,
        enforce_metadata=False,
        transform_divisions=False,
        clear_divisions=True,
        align_dataframes=False,
    ).optimize()
    _check_complete(joined)
    return joined


def _to_numpy(
    *frames: Any,
    with_features: bool,
    dtypes: Sequence[np.dtype],
    partition_info: dict[str, Any],
) -> tuple[np.ndarray, ...]:
    """Partitions that belong together, as arrays (runs on a worker)."""
    arrays = []
    if with_features:
        arrays.append(features_to_array(frames[0], partition_info["number"]))
    arrays += map(frame_to_array, frames[len(arrays) :])
    return tuple(map(_of_declared_type, arrays, dtypes))


def _of_declared_type(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array; if it has no rows, and so no type, in that of the metadata."""
    # Where pandas has read nothing, columns are objects, and so would all be that are
    # joined with them.
    is_typeless = array.dtype == object and not len(array)
    return np.empty(array.shape, dtype) if is_typeless else array


def _check_complete(frame: Any) -> None:
    """Refuse a frame that has lost partitions when it was persisted."""
    graph, keys = frame.__dask_graph__(), block_keys(frame)
    lost = [key for key in keys if key not in graph]
    lost += [
        source
        for key in graph
        for source in dependencies_of(graph, key)
        if source not in graph
    ]
    if lost:
        raise ValueError(
            f"A persisted dask.dataframe refers to partitions that are not there, such "
            f"as {lost[0]}: Dask joins small partitions of files while it persists "
            "them, and counts them as before, so that not even compute() works. "
            "Persist again after dask.config.set({'optimization.tune.active': False})."
        )
