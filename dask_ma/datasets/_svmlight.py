"""Files in the format of svmlight and libsvm, by ranges of bytes.

A block is a range of bytes of a file, and has the lines that begin in it. (Ranges of
scikit-learn's reader have a line twice where one is longer than a range.) Of a
compressed file, which cannot be entered in the middle, a block is the whole file.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import dask
import fsspec
import numpy as np
from dask.base import tokenize
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from dask_ma.datasets._corpus import stack_blocks
from dask_ma.datasets._lines import LineReader, TextFile, parse_blocksize, text_file

_MOST_COLUMNS = np.iinfo(np.int32).max


class _Range(NamedTuple):
    """Bytes of a file; without a `stop` to its end."""

    file: TextFile
    start: int
    stop: int | None

    def __str__(self) -> str:
        if self.stop is None:
            return self.file.path
        return f"{self.file.path}, bytes {self.start} to {self.stop}"

    def read(self) -> io.BytesIO:
        """The lines that begin there."""
        with LineReader(self.file, self.start) as reader:
            return io.BytesIO(b"".join(data for _, data in reader.pieces(self.stop)))


def read_svmlight(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    n_features: int | None = None,
    *,
    zero_based: bool = False,
    blocksize: int | str | None = "64 MiB",
    compression: str | None = "infer",
    dtype: Any = np.float64,
    storage_options: dict[str, Any] | None = None,
) -> tuple[Any, Any]:
    """Read files in the format of svmlight and libsvm, block by block.

    The blocks are read by the workers when the result is computed: each line by one of
    them, with :func:`sklearn.datasets.load_svmlight_file`.

    Parameters
    ----------
    paths : str, path, or sequence of them
        On any file system that fsspec knows and the workers can reach. A text may have
        asterisks, whose files are taken in the order of their names.
    n_features : int, default=None
        Columns of the rows, at least 1. None reads all files once, at once, to find the
        largest column there is; rows that come later may have larger ones.
    zero_based : bool, default=False
        Whether the first column has the number 0 in the files, and not 1.
    blocksize : int, str or None, default="64 MiB"
        Bytes of a file per block, roughly. None makes one block of each file.
    compression : str or None, default="infer"
        As fsspec names it; "infer" goes by the ends of the paths.
    dtype : dtype, default=float64
        Of the values: float32 or float64.
    storage_options : dict, default=None
        For the file system.

    Returns
    -------
    X : dask.array of shape (nan, n_features)
        Its blocks are sparse matrices in CSR format.
    y : dask.array of float64 of shape (nan,)
        Targets. Compute or persist `X` and `y` together, or the files are read twice.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        When the result is computed: for lines that are not in the format, or columns
        that are out of range, with the path and the bytes of the block.

    See Also
    --------
    sklearn.datasets.dump_svmlight_file : Write such a file.

    Examples
    --------
    >>> import fsspec
    >>> from dask_ma.datasets import read_svmlight
    >>> with fsspec.open("memory://rows.svm", "w") as file:
    ...     _ = file.write("1 1:0.5 3:2\\n-1 2:1\\n")
    >>> X, y = read_svmlight("memory://rows.svm", n_features=3)
    >>> X.compute().toarray()
    array([[0.5, 0. , 2. ],
           [0. , 1. , 0. ]])
    >>> y.compute()
    array([ 1., -1.])
    """
    if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"dtype must be float32 or float64, got {np.dtype(dtype)}")
    if n_features is not None and not 1 <= n_features <= _MOST_COLUMNS:
        raise ValueError(
            f"n_features must be from 1 to {_MOST_COLUMNS}, got {n_features}"
        )
    size = parse_blocksize(blocksize)
    files = _files(paths, compression, storage_options)
    ranges = [part for file in files for part in _ranges(file, size)]
    versions = [file.info()[1] for file in files]
    read = partial(_read, zero_based=bool(zero_based), dtype=np.dtype(dtype))
    if n_features is None:
        n_features = _largest_column(ranges, read)
    token = tokenize(ranges, versions, zero_based, n_features, np.dtype(dtype))
    load = dask.delayed(read, nout=2)
    parts = [
        load(part, n_features, dask_key_name=f"svmlight-{token}-{number}")
        for number, part in enumerate(ranges)
    ]
    lengths = [np.nan] * len(parts)
    X = stack_blocks([X for X, _ in parts], lengths, n_features, dtype)
    return X, _joined_targets([y for _, y in parts])


def _files(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    compression: str | None,
    storage_options: dict[str, Any] | None,
) -> list[TextFile]:
    """All files, those of a pattern sorted by name."""
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    names: list[str] = []
    for each in paths:
        path = os.fspath(each)
        if "*" not in path:
            names.append(path)
            continue
        found = fsspec.open_files(path, **(storage_options or {}))
        if not found:
            raise FileNotFoundError(f"no file has a name like {path!r}")
        names += sorted(file.full_name for file in found)
    if not names:
        raise ValueError("paths must have at least one file, got none")
    return [text_file(name, compression, storage_options) for name in names]


def _ranges(file: TextFile, blocksize: int | None) -> list[_Range]:
    """Blocks of a file, of equal sizes."""
    size, _ = file.info()
    if size is None or blocksize is None or size <= blocksize:
        return [_Range(file, 0, None)]
    ends = np.linspace(0, size, -(-size // blocksize) + 1).astype(int).tolist()
    return [
        _Range(file, start, stop)
        for start, stop in zip(ends[:-1], ends[1:], strict=True)
    ]


def _read(
    part: _Range, n_features: int, *, zero_based: bool, dtype: np.dtype
) -> tuple[Any, np.ndarray]:
    """Rows and targets of a block."""
    try:
        X, y = load_svmlight_file(
            part.read(), n_features=n_features, dtype=dtype, zero_based=zero_based
        )
    except ValueError as error:
        raise ValueError(
            f"{part}: {error} (read with n_features={n_features} and "
            f"zero_based={zero_based})"
        ) from error
    return sparse.csr_matrix(X), y


def _largest_column(ranges: list[_Range], read: Any) -> int:
    """Columns that the rows need, after reading all of them."""
    count = dask.delayed(partial(_columns_of, read))
    counts = dask.compute(*(count(part) for part in ranges))
    if not max(counts):
        raise ValueError(f"{ranges[0].file.path}: no row has a value; set n_features")
    return max(counts)


def _columns_of(read: Any, part: _Range) -> int:
    """Columns that the rows of a block need."""
    X, _ = read(part, _MOST_COLUMNS)
    return int(X.indices.max()) + 1 if X.nnz else 0


def _joined_targets(blocks: list[Any]) -> Any:
    """Targets of all blocks as one dask.array."""
    import dask.array as da  # loads numba, which not every session needs

    parts = [da.from_delayed(block, (np.nan,), np.float64) for block in blocks]
    return da.concatenate(parts, allow_unknown_chunksizes=True)
