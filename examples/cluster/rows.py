"""Rows in files that every node can read, as Dask arrays.

The other examples of this folder read rows by it. To write a small set of rows::

    python rows.py /shared/rows
"""

from __future__ import annotations

import sys
from pathlib import Path

import dask
import dask.array as da
import numpy as np


def write(
    folder: str, n_files: int = 8, n_rows: int = 2000, n_features: int = 50
) -> None:
    """Write files of rows whose first column is the class, 0 or 1."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=n_features)
    for number in range(n_files):
        X = rng.normal(size=(n_rows, n_features))
        y = X @ weights + rng.normal(size=n_rows) > 0
        np.save(Path(folder) / f"part-{number:04d}.npy", np.column_stack([y, X]))


def read(path: Path) -> np.ndarray:
    """Read a file. This runs on a worker, which must be able to import this module."""
    return np.load(path)


def open_rows(folder: str) -> tuple[da.Array, da.Array]:
    """X and y over all files; of each file, only the header is read now."""
    blocks = []
    for path in sorted(Path(folder).glob("part-*.npy")):
        header = np.load(path, mmap_mode="r")
        block = dask.delayed(read, pure=True)(path)
        blocks.append(da.from_delayed(block, header.shape, header.dtype))
    if not blocks:
        raise FileNotFoundError(f"there is no part-*.npy in {folder}")
    rows = da.concatenate(blocks)
    return rows[:, 1:], rows[:, 0]


if __name__ == "__main__":
    write(sys.argv[1])
