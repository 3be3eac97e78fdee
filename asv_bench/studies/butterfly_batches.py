"""How many rows of a batch bring butterfly mixing to an objective first?

Logistic regression on sparse text and on digits, with the default parameters but for
`alpha`: for some numbers of ranks and batch sizes, passes until the objective is within
an excess of the optimum, the ranks' seconds of computing until then, the processor's
seconds of the whole fit, and where it ends. The optimum is that of a fit whose
refinement goes on to 1e-5. Ranks are threads of this process, which share its
interpreter: seconds of several are too many, and what counts there are the passes.

    python butterfly_batches.py --data FOLDER
    python butterfly_batches.py --data FOLDER --only imdb --sizes 64 256 --ranks 1

FOLDER (or ``$DASK_MA_DATA``) holds ``imdb``, ``newsgroups20``, ``clinc150``, ``a9a``.
All of it takes about half an hour; "newsgroups20" and "clinc150" are most of that.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfTransformer, TfidfVectorizer

from dask_ma import ButterflySGDClassifier
from dask_ma.datasets import make_sparse_classification

EXCESSES = (0.05, 0.01)
HEADS = (
    "ranks  batch  passes to 5 %, 1 %  seconds to 5 %, 1 %  whole  passes  rounds  end"
)


def words(folder: Path, name: str) -> tuple[Any, np.ndarray]:
    """Documents weighted by tf-idf, and their labels."""
    counts = sparse.load_npz(folder / name / "X_train.npz")
    X = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    return X.tocsr(), np.load(folder / name / "y_train.npy")


def queries(folder: Path) -> tuple[Any, np.ndarray]:
    """Words and pairs of words of short queries, and what is asked for."""
    with gzip.open(folder / "clinc150" / "data_full.json.gz") as file:
        texts, labels = zip(*json.load(file)["train"], strict=True)
    X = TfidfVectorizer(ngram_range=(1, 2)).fit_transform(texts)
    return X.tocsr(), np.unique(labels, return_inverse=True)[1]


def grown_ups(folder: Path) -> tuple[Any, np.ndarray]:
    """Few columns of zeros and ones."""
    X = sparse.load_npz(folder / "a9a" / "X_train.npz").tocsr()
    return X, np.load(folder / "a9a" / "y_train.npy")


def generated(folder: Path) -> tuple[Any, np.ndarray]:
    """Rows like text of as many columns as RCV1 has."""
    return make_sparse_classification(100_000, 47_236, n_nonzero=75, random_state=0)[:2]


def digits(folder: Path) -> tuple[Any, np.ndarray]:
    """Dense rows."""
    X, y = load_digits(return_X_y=True)
    return X / 16, y


def halves(data: tuple[Any, np.ndarray]) -> tuple[Any, np.ndarray]:
    """Two classes made of many."""
    X, y = data
    return X, np.where(y < y.max() / 2, -1, 1)


SETS: dict[str, tuple[float, Callable[[Path], tuple[Any, np.ndarray]]]] = {
    "imdb": (1e-5, lambda folder: words(folder, "imdb")),
    "newsgroups20, halves": (
        1e-5,
        lambda folder: halves(words(folder, "newsgroups20")),
    ),
    "clinc150, halves": (1e-5, lambda folder: halves(queries(folder))),
    "a9a": (1e-4, grown_ups),
    "generated": (1e-5, generated),
    "newsgroups20": (1e-4, lambda folder: words(folder, "newsgroups20")),
    "clinc150": (1e-4, queries),
    "digits": (1e-4, digits),
}


def fit(data: tuple[Any, np.ndarray], **params: Any) -> list[dict[str, Any]]:
    """History of a fit."""
    return ButterflySGDClassifier(random_state=0, **params).fit(*data).history_


def line(data: tuple[Any, np.ndarray], optimum: float, **params: Any) -> str:
    """A row of the table."""
    start = time.process_time()
    history = fit(data, **params)
    whole = time.process_time() - start
    passes = [record for record in history if not record.get("refined")]
    objectives = np.array([record["objective"] for record in passes])
    seconds = np.cumsum([record["seconds_computing"] for record in passes])
    numbers, times = [], []
    for excess in EXCESSES:
        there = np.flatnonzero(objectives <= (1 + excess) * optimum)
        numbers.append(f"{there[0] + 1}" if len(there) else "-")
        times.append(f"{seconds[there[0]]:.2f}" if len(there) else "-")
    end = history[-1]["objective"] / optimum - 1
    return (
        f"{params['n_ranks']:5d} {passes[0]['batch_size']:6d}"
        f"  {', '.join(numbers):>18}  {', '.join(times):>19} {whole:6.2f}"
        f" {len(passes):7d} {len(history) - len(passes):7d}  {100 * end:.3f} %"
    )


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"), help="folder")
    add("--only", nargs="+", default=list(SETS), choices=list(SETS), metavar="SET")
    add("--ranks", nargs="+", type=int, default=[1, 2, 8])
    add("--sizes", nargs="+", default=["auto", "64", "128", "256", "512"])
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    for name in args.only:
        alpha, load = SETS[name]
        data = load(args.data)
        exact = fit(data, alpha=alpha, refine_tol=1e-5, n_ranks=1)
        optimum = exact[-1]["objective"]
        print(f"-- {name}, alpha={alpha:g}, optimum {optimum:.5f}\n{HEADS}", flush=True)
        for n_ranks in args.ranks:
            for size in args.sizes:
                batch_size = "auto" if size == "auto" else int(size)
                params = {"alpha": alpha, "n_ranks": n_ranks, "batch_size": batch_size}
                print(line(data, optimum, **params), flush=True)


if __name__ == "__main__":
    main()
