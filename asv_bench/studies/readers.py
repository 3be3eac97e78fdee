"""Would a library read triples in less time than the reader of bag-of-words files?

Two comparisons on one file, by processor time. Pieces: the lines of a piece, as
:mod:`dask_ma.datasets` takes them, become integers by NumPy with the form checked, by
pandas, or by pyarrow. Files: all of it becomes sparse rows, by `read_bag_of_words`,
or by a reader of pandas or pyarrow for all lines and SciPy, with the largest memory of
the process. The last table shows what each makes of lines that are wrong.

Run ``python readers.py --help``; the defaults take some minutes and need 2 GB.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import csv
from scipy import sparse

from dask_ma.datasets import read_bag_of_words
from dask_ma.datasets._lines import PIECE
from dask_ma.datasets._numbers import parse_table

N_DOCUMENTS, N_WORDS = 100_000, 100_000
COLUMNS = ["document", "word", "count"]
WRONG = {
    "text": b"1 a 1\n",
    "empty": b"1  1\n",
    "decimal": b"1 1.0 1\n",
    "quoted": b'1 "2" 1\n',
    "two columns": b"1 2 3\n1 2\n",
    "four columns": b"1 2 3\n1 2 3 4\n",
    "20 digits": b"1 99999999999999999999 1\n",
    "no line": b"1 2 3\n\n1 2 4\n",
    "tabs (right)": b"1\t2\t3\n",
}


def write(path: Path, n_lines: int) -> None:
    """A corpus of about so many lines, some words of which are much more frequent."""
    rng = np.random.default_rng(0)
    keys = rng.integers(N_DOCUMENTS, size=n_lines, dtype=np.int64) * N_WORDS
    keys += np.minimum(rng.pareto(1.0, n_lines) * 300, N_WORDS - 1).astype(np.int64)
    documents, words = np.divmod(np.unique(keys), N_WORDS)
    counts = rng.integers(1, 6, len(words))
    table = pd.DataFrame({"d": documents + 1, "w": words + 1, "c": counts})
    with path.open("w") as file:
        file.write(f"{N_DOCUMENTS}\n{N_WORDS}\n{len(words)}\n")
        table.to_csv(file, sep=" ", header=False, index=False)


def by_numpy(data: bytes) -> np.ndarray:
    """Integers of lines, with their form checked."""
    table = parse_table(data, 3)
    if table is None:
        raise ValueError("another form")
    return table


def by_pandas(source: Any, skip: int = 0) -> np.ndarray:
    """The same by pandas, which takes one blank between numbers."""
    frame = pd.read_csv(
        io.BytesIO(source) if isinstance(source, bytes) else source,
        sep=" ",
        header=None,
        names=COLUMNS,
        index_col=False,
        skiprows=skip,
        dtype=np.int64,
        na_filter=False,
    )
    return frame.to_numpy()


def by_pyarrow(source: Any, skip: int = 0) -> np.ndarray:
    """The same by pyarrow, in one thread."""
    table = csv.read_csv(
        pa.BufferReader(source) if isinstance(source, bytes) else source,
        csv.ReadOptions(column_names=COLUMNS, use_threads=False, skip_rows=skip),
        csv.ParseOptions(delimiter=" ", quote_char=False),
        csv.ConvertOptions(column_types=dict.fromkeys(COLUMNS, pa.int64())),
    )
    return np.column_stack([column.to_numpy() for column in table.columns])


PARSERS: dict[str, Callable[..., np.ndarray]] = {
    "numpy": by_numpy,
    "pandas": by_pandas,
    "pyarrow": by_pyarrow,
}


def pieces(data: bytes) -> Iterator[bytes]:
    """Whole lines of about the size that the reader takes."""
    begin = 0
    while begin < len(data):
        end = data.find(b"\n", min(begin + PIECE, len(data) - 1)) + 1
        yield data[begin:end]
        begin = end


def seconds_of_pieces(data: bytes, parse: Callable[[bytes], np.ndarray]) -> float:
    """Processor time of all pieces."""
    start = process_time()
    for piece in pieces(data):
        parse(piece)
    return process_time() - start


def peak_memory() -> float:
    """MiB that this process has had at most; what forked it does not count."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 2**10 if found else np.nan


def read_file(name: str, path: str, answer: Any) -> None:
    """Sparse rows of the file, in a process of its own: seconds and growth."""
    before = peak_memory()
    start = process_time()
    if name == "read_bag_of_words":
        with dask.config.set(scheduler="synchronous"):
            rows = read_bag_of_words(path).X.compute()
    else:
        documents, words, counts = PARSERS[name](path, 3).T
        shape = N_DOCUMENTS, N_WORDS
        parts = counts.astype(np.int32), (documents - 1, words - 1)
        rows = sparse.csr_matrix(parts, shape=shape)
    used = process_time() - start
    grown = peak_memory() - before
    answer.put((used, grown, int(rows.nnz), int(rows.sum())))


def in_process(name: str, path: str) -> tuple[float, float, int, int]:
    """The same, from a fresh process."""
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=read_file, args=(name, path, answer))
    process.start()
    found: tuple[float, float, int, int] = answer.get(timeout=600)
    process.join()
    return found


def verdict(parse: Callable[[bytes], np.ndarray], data: bytes) -> str:
    """What becomes of lines: an error, or the numbers read."""
    try:
        return str(parse(data).tolist())
    except (ValueError, OverflowError) as error:
        return type(error).__name__


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lines", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "docword.txt"
        write(path, options.lines)
        data = path.read_bytes().split(b"\n", 3)[3]
        n_lines = data.count(b"\n")
        print(f"{n_lines} lines, {len(data) / 2**20:.0f} MiB\n\npieces, ns a line")
        times: dict[str, list[float]] = {name: [] for name in PARSERS}
        for _ in range(options.repeats):
            for name, parse in PARSERS.items():
                times[name].append(seconds_of_pieces(data, parse))
        for name, found in times.items():
            print(f"{name:>18} {1e9 * median(found) / n_lines:6.0f}")
        del data
        print("\nfiles: ns a line, MiB of memory")
        for name in ("read_bag_of_words", "pandas", "pyarrow"):
            runs = [in_process(name, str(path)) for _ in range(options.repeats)]
            if {run[2] for run in runs} != {n_lines}:
                raise RuntimeError(f"{name} has read {runs[0][2]} of {n_lines} lines")
            used, grown = (median(run[place] for run in runs) for place in (0, 1))
            print(f"{name:>18} {1e9 * used / n_lines:6.0f} {grown:6.0f}")
    print("\nlines that are wrong, but the last")
    for what, lines in WRONG.items():
        found = "  ".join(f"{n}: {verdict(p, lines)}" for n, p in PARSERS.items())
        print(f"{what:>18} {found}")


if __name__ == "__main__":
    main()
