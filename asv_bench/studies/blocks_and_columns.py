"""What does a pass cost by the blocks and the columns of sparse rows?

Processor time of a pass over 20,000 rows with 20 non-zeros each, the difference of fits
of several passes and of one, in one process: MASGDClassifier in 100 blocks beside one,
and ButterflySGDClassifier with 2,000,000 columns beside 1,000, one rank and two. Run
``python blocks_and_columns.py --help``; it takes half a minute.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import dask
import dask.array as da
import numpy as np
from scipy import sparse

from dask_ma import ButterflySGDClassifier, MASGDClassifier

Case = tuple[Callable[[int], Any], Any, Any]


def make_rows(n_rows: int, n_columns: int, per_row: int = 20) -> Any:
    """Rows with random columns, sorted and distinct."""
    rng = np.random.default_rng(0)
    step = n_columns // per_row
    places = rng.integers(0, step, (n_rows, per_row)) + np.arange(per_row) * step
    indptr = np.arange(0, n_rows * per_row + 1, per_row, dtype=np.int32)
    parts = rng.random(n_rows * per_row), places.astype(np.int32).ravel(), indptr
    return sparse.csr_matrix(parts, shape=(n_rows, n_columns))


def cut(X: Any, n_blocks: int) -> Any:
    """The rows as a dask.array of some blocks."""
    size = X.shape[0] // n_blocks
    blocks = [
        da.from_delayed(
            dask.delayed(X[start : start + size]), (size, X.shape[1]), meta=X[:0]
        )
        for start in range(0, X.shape[0], size)
    ]
    return da.concatenate(blocks)


def seconds_of_pass(case: Case, n_passes: int) -> float:
    """Processor time of a pass: of one more pass, in the mean over some."""
    make, X, y = case
    spent = []
    for n in (1, 1 + n_passes):
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            make(n).fit(X, y)
        spent.append(time.process_time() - start)
    return (spent[1] - spent[0]) / n_passes


def compare(title: str, large: Case, small: Case, options: argparse.Namespace) -> None:
    """Print milliseconds of both, and the ratios of pairs."""
    seconds_of_pass(small, 1), seconds_of_pass(large, 1)
    pairs = [
        (seconds_of_pass(large, options.passes), seconds_of_pass(small, options.passes))
        for _ in range(options.repeats)
    ]
    ratios = sorted(a / b for a, b in pairs)
    times = [1e3 * median(column) for column in zip(*pairs, strict=True)]
    print(
        f"{title:<40}{times[0]:8.1f}{times[1]:8.1f}{median(ratios):8.2f}"
        f"   {ratios[0]:.2f} to {ratios[-1]:.2f}",
        flush=True,
    )


def main() -> None:
    """Measure both estimators."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=2_000_000)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    y = np.random.default_rng(1).integers(0, 2, options.rows)
    wide, narrow = (make_rows(options.rows, d) for d in (options.columns, 1000))

    def masgd(n: int) -> Any:
        return MASGDClassifier(max_iter=n, local_epochs=1, tol=None, random_state=0)

    def butterfly(n: int, **others: Any) -> Any:
        return ButterflySGDClassifier(max_iter=n, tol=None, random_state=0, **others)

    print(f"{'milliseconds of a pass':<40}{'large':>8}{'small':>8}{'ratio':>8}")
    blocks, labels = cut(wide, 100), da.from_array(y, options.rows // 100)
    compare(
        "MASGD, 100 blocks and 1", (masgd, blocks, labels), (masgd, wide, y), options
    )
    for n_ranks in (1, 2):
        for batch_size in ("auto", 64):

            def make(n: int, more: Any = (n_ranks, batch_size)) -> Any:
                return butterfly(n, n_ranks=more[0], batch_size=more[1])

            title = f"Butterfly, {n_ranks} ranks, batch_size={batch_size!r}"
            compare(title, (make, wide, y), (make, narrow, y), options)


if __name__ == "__main__":
    main()
