"""Fingerprints of data, which tell one fit's from another's at little cost.

Each rank adds up numbers of its rows, modulo 2**64. A row's number depends on its
values and on its place in the whole input alone, so the sums over all ranks are the
same however the rows are shared out, and whatever container they came in.

Of y and of the weights every value counts. Of X a sample does: the first rows, and as
many from each octave of row numbers, so that nobody has to know how many there are.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from dask_ma.data._blocks import frame_to_array, is_frame, is_sparse
from dask_ma.data._runs import read_pieces

logger = logging.getLogger("dask_ma.data")

__all__ = ["ShardDigest", "combine_digests", "digest_shard"]

_BITS = 64
_MASK = 2**_BITS - 1
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SPAN = 2**14  # rows that are worked on at a time, in the processor's cache
_OF_COLUMNS = 2**62  # keys of columns are others than those of rows
_SAMPLED = 2**14  # values of X in each octave of rows, if a row has not more
_MOST_ROWS = 32  # of an octave
_MOST_CLASSES = 32  # that are named
_LOOKED_AT = 1000  # rows that tell labels from measurements
_WIDEST = 10_000  # range of integers that are counted
_EXACT = 2.0**53  # up to here floats hold every integer


class ShardDigest(NamedTuple):
    """What one rank knows of its rows.

    Attributes
    ----------
    n_rows, n_features : int
    is_single : bool
        Whether X has 32 bits.
    X : int
        Sum over the sampled rows of X.
    y, sample_weight : int or None
        Sums over all rows; None without any.
    classes : list of int or str, or None
        Values of y, if they are few and no measurements.
    """

    n_rows: int
    n_features: int
    is_single: bool
    X: int
    y: int | None
    sample_weight: int | None
    classes: list[Any] | None


def digest_shard(arguments: dict[str, Any]) -> ShardDigest | None:
    """Describe the rows of a rank.

    Parameters
    ----------
    arguments : dict
        ``ShardSpec.arguments`` with futures replaced by their data.

    Returns
    -------
    digest : ShardDigest or None
        None for rows that cannot be used, of which `build_shard` says why, or that
        cannot be described, which the log says.
    """
    try:
        return _digest(arguments)
    except (ValueError, TypeError, AttributeError) as error:
        logger.info("the rows of a rank cannot be described: %s", error)
        return None


def _digest(arguments: dict[str, Any]) -> ShardDigest:
    """Describe rows that can be read."""
    n_rows, X, singles = 0, 0, []
    sums: dict[str, int] = {}
    labels: list[list[Any] | None] = []
    for piece in read_pieces(arguments):
        if piece.start is None:
            raise ValueError("the rows have no numbers")
        rows = piece.raw
        n_rows += rows.X.shape[0]
        X += _sum_sample(rows.X, piece.start)
        singles.append(_is_single(rows.X))
        for name, column in (("y", rows.y), ("sample_weight", rows.sample_weight)):
            if column is None:
                continue
            bits = _bits_of_rows(column)
            sums[name] = sums.get(name, 0) + _sum_column(bits, piece.start)
            if name == "y":
                labels.append(_few_labels(column, bits))
    return ShardDigest(
        n_rows=n_rows,
        n_features=int(arguments["n_features"]),
        is_single=all(singles),
        X=X & _MASK,
        y=_masked(sums.get("y")),
        sample_weight=_masked(sums.get("sample_weight")),
        classes=_union(labels),
    )


def combine_digests(digests: Sequence[ShardDigest | None]) -> dict[str, Any] | None:
    """Describe the data of all ranks.

    Parameters
    ----------
    digests : sequence of ShardDigest or None
        One for each rank, in any order.

    Returns
    -------
    fingerprint : dict or None
        Of values that JSON knows: `rows`, `columns`, `dtype`, `classes`, and checksums
        `y`, `sample_weight` and `X`. None if the rows of a rank cannot be used.
    """
    known = [digest for digest in digests if digest is not None]
    filled = [digest for digest in known if digest.n_rows]
    if len(known) < len(digests) or not filled:
        return None
    labelled = [d.classes for d in filled if d.y is not None]
    return {
        "rows": sum(d.n_rows for d in filled),
        "columns": filled[0].n_features,
        "dtype": "float32" if all(d.is_single for d in filled) else "float64",
        "classes": _union(labelled) if labelled else None,
        "y": _text([d.y for d in filled]),
        "sample_weight": _text([d.sample_weight for d in filled]),
        "X": _text([d.X for d in filled]),
    }


def _text(sums: Sequence[int | None]) -> str | None:
    """The total of some sums, in the digits of a checksum; None where there is none."""
    there = [value for value in sums if value is not None]
    return f"{sum(there) & _MASK:016x}" if there else None


def _masked(total: int | None) -> int | None:
    return None if total is None else total & _MASK


# -- Columns -------------------------------------------------------------------------


def _sum_column(bits: np.ndarray, first: int) -> int:
    """Number of some rows of a column; `first` is the number of the first row."""
    total = position = 0
    while position < len(bits):
        span, offset = divmod(first + position, _SPAN)
        part = bits[position : position + _SPAN - offset]
        numbers = _spread(part)
        numbers *= _row_keys()[offset : offset + len(part)]
        total += int(numbers.sum(dtype=np.uint64)) * _key(span)
        position += len(part)
    return total & _MASK


def _bits_of_rows(column: np.ndarray) -> np.ndarray:
    """64 bits for each row of an array of one or two dimensions."""
    if column.ndim == 1:
        return _bits_of(column)
    bits = np.zeros(len(column), dtype=np.uint64)
    for place, part in enumerate(column.T):
        bits += _spread(_bits_of(part)) * np.uint64(_key(place))
    return bits


def _bits_of(column: np.ndarray) -> np.ndarray:
    """64 bits for each value, the same for equal values of whatever type."""
    if column.dtype == object:
        return _bits_of_objects(column.tolist())
    if column.dtype.kind in "US":
        return _bits_of_text(column)
    values = column.astype(np.float64)
    values += 0.0  # no negative zero
    bits = values.view(np.uint64)
    if column.dtype.kind in "iu" and column.dtype.itemsize == values.itemsize:
        large = np.abs(values) >= _EXACT
        if large.any():
            bits[large] = column[large].astype(np.uint64)
    return bits


def _bits_of_objects(values: list[Any]) -> np.ndarray:
    """Bits of strings, and of whatever else there is by its text."""
    distinct = list(set(values))
    bits = _bits_of_text(np.array([str(value) for value in distinct]))
    table = dict(zip(distinct, bits.tolist(), strict=True))
    found = (table[value] for value in values)
    return np.fromiter(found, dtype=np.uint64, count=len(values))


def _bits_of_text(column: np.ndarray) -> np.ndarray:
    """Bits of strings, whatever their longest is."""
    unit = np.dtype(np.uint32 if column.dtype.kind == "U" else np.uint8)
    width = column.dtype.itemsize // unit.itemsize
    rows = np.ascontiguousarray(column)
    points = rows.view(unit).reshape(len(column), width)
    bits = np.zeros(len(column), dtype=np.uint64)
    for place in range(width):
        bits += points[:, place].astype(np.uint64) * np.uint64(_key(place))
    return bits


def _few_labels(y: np.ndarray, bits: np.ndarray) -> list[Any] | None:
    """Distinct values in order, None if they are many or no labels."""
    if y.ndim > 1:
        return None
    first, places = np.unique(bits[:_LOOKED_AT], return_index=True)
    if len(first) > _MOST_CLASSES:
        return None
    if y.dtype.kind in "OUS":
        rest = np.flatnonzero(~np.isin(bits, first))
        places = np.append(places, rest[np.unique(bits[rest], return_index=True)[1]])
        found = [_label_text(label) for label in y[places].tolist()]
    else:
        numbers = _few_integers(y)
        if numbers is None:
            return None
        found = numbers
    return sorted(found) if len(found) <= _MOST_CLASSES else None


def _label_text(label: Any) -> str:
    """A label as text; bytes need not be any."""
    if isinstance(label, bytes):
        return label.decode("utf-8", "backslashreplace")
    return str(label)


def _few_integers(y: np.ndarray) -> list[Any] | None:
    """Distinct integers, None if there are other numbers or if their range is wide."""
    if y.dtype.kind == "u":
        numbers = y  # not all of them need be less than 2**63
    else:
        with np.errstate(invalid="ignore"):  # NaN is refused elsewhere
            numbers = y.astype(np.int64)
    if y.dtype.kind == "f" and not np.array_equal(numbers, y):
        return None
    low, high = int(numbers.min()), int(numbers.max())
    if high - low > _WIDEST:
        return None
    counts = np.bincount((numbers - numbers.min()).astype(np.intp))
    return [low + int(place) for place in np.flatnonzero(counts)]


def _union(lists: Sequence[list[Any] | None]) -> list[Any] | None:
    """Labels of all, None if they are many or of several types."""
    found: set[Any] = set()
    for labels in lists:
        if labels is None:
            return None
        found.update(labels)
    is_mixed = len({type(label) for label in found}) > 1
    return None if is_mixed or len(found) > _MOST_CLASSES else sorted(found)


# -- Rows of X -----------------------------------------------------------------------


def _sum_sample(X: Any, first: int) -> int:
    """Number of the sampled rows among some; `first` is the number of the first."""
    sample = _sampled_rows(X.shape[1])
    low, high = np.searchsorted(sample, [first, first + X.shape[0]])
    numbers = sample[low:high]
    if not len(numbers):
        return 0
    places = (numbers - first).astype(np.intp)
    rows, columns, values = _entries(X.iloc[places] if is_frame(X) else X[places])
    parts = _spread(_bits_of(values))
    parts *= (_mixed(numbers.astype(np.uint64)) | np.uint64(1))[rows]
    parts *= _mixed(columns.astype(np.uint64) + np.uint64(_OF_COLUMNS)) | np.uint64(1)
    return int(parts.sum(dtype=np.uint64))


def _entries(rows: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, columns and values of what is not zero."""
    if is_sparse(rows):
        rows = rows.copy()
        rows.sum_duplicates()
        entries = rows.tocoo()
        kept = entries.data != 0
        return entries.row[kept], entries.col[kept], entries.data[kept]
    array = frame_to_array(rows) if is_frame(rows) else rows
    where = np.nonzero(array)
    return where[0], where[1], array[where]


@cache
def _sampled_rows(n_features: int) -> np.ndarray:
    """Numbers of the rows that are sampled, however many rows there may be."""
    wanted = max(1, min(_MOST_ROWS, _SAMPLED // max(1, n_features)))
    first = wanted.bit_length() - 1  # of the octaves that have more rows
    count = 1 << first
    parts = [np.arange(count, dtype=np.int64)]
    for octave in range(first, _BITS - 2):
        step = 1 << (octave - first)
        parts.append((1 << octave) + step * np.arange(count, dtype=np.int64))
    return np.concatenate(parts)


def _is_single(X: Any) -> bool:
    """Whether rows have 32 bits."""
    dtypes = set(X.dtypes) if is_frame(X) else {X.dtype}
    return dtypes == {np.dtype(np.float32)}


# -- Numbers modulo 2**64 --------------------------------------------------------------


def _spread(bits: np.ndarray) -> np.ndarray:
    """Bits that all depend on each other; 0 stays 0."""
    numbers = bits * np.uint64(_FIRST)
    numbers ^= numbers >> np.uint64(32)
    numbers *= np.uint64(_SECOND)
    numbers ^= numbers >> np.uint64(29)
    return numbers


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Numbers that look like random ones (splitmix64)."""
    z = numbers + np.uint64(_GOLDEN)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
    return z ^ (z >> np.uint64(31))


def _key(number: int) -> int:
    """An odd factor that looks like a random one."""
    return int(_mixed(np.array([number], dtype=np.uint64))[0]) | 1


@cache
def _row_keys() -> np.ndarray:
    """Factors of the rows of a span."""
    return _mixed(np.arange(_SPAN, dtype=np.uint64)) | np.uint64(1)
