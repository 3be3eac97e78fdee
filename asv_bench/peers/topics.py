"""Speed and held-out perplexity of topic models: MALDA next to other libraries.

To be run in the folder asv_bench:

    python -m peers.topics --corpus newsgroups20 --data DIR --components 100 --passes 5

DIR (or ``$DASK_MA_DATA``) holds ``newsgroups20`` or ``imdb``, each with counts in
``X_train.npz`` and ``X_test.npz`` and words in ``vocab.txt.gz``. English stop words and
documents without words are left out. All systems get the same documents, priors and
schedule of the learning rate. Whatever a system calls perplexity, here the topics of
each are evaluated in one way: topics of each test document from half of its words,
likelihood of the other half (``MALDA.perplexity(X, method="completion")``).

Systems that are not installed are left out with a message.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from threadpoolctl import threadpool_limits

from dask_ma import MALDA

from ._solvers import PeerAbsentError
from ._topic_systems import (
    Result,
    Setting,
    run_dask_ma,
    run_gensim,
    run_sklearn,
    run_spark,
)

SYSTEMS = ("dask_ma", "sklearn", "gensim", "spark")


class Row(NamedTuple):
    """A line of the table."""

    name: str
    seconds: float
    processor: float
    documents_per_second: float
    perplexity: float


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--corpus", choices=["newsgroups20", "imdb"], default="newsgroups20")
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--documents", type=int, help="the first ones of each part only")
    add("--components", type=int, default=100)
    add("--passes", type=int, default=5)
    add("--batch-size", type=int, default=4096, help="of a round of MALDA")
    add("--local-batch-size", type=int, default=128, help="of an update of the others")
    add("--spark-batch-size", type=int, default=1024, help="of an update of MLlib")
    add("--dtype", choices=["float32", "float64"], default="float32")
    add("--workers", type=int, nargs="+", default=[1, 2], help="processes to try")
    add("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    add("--seed", type=int, default=0)
    add("--output", type=Path, default=Path(__file__).with_name("results"))
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data or DASK_MA_DATA must name the folder with the corpus")
    return options


def load(options: argparse.Namespace) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
    """Counts of the training and of the test documents."""
    folder = Path(options.data) / options.corpus
    with gzip.open(folder / "vocab.txt.gz", "rt", encoding="utf-8") as file:
        words = file.read().split()
    kept = np.flatnonzero([word not in ENGLISH_STOP_WORDS for word in words])
    parts = []
    for name in ("X_train.npz", "X_test.npz"):
        X = sparse.load_npz(folder / name)[: options.documents].tocsc()[:, kept].tocsr()
        parts.append(sparse.csr_matrix(X[np.diff(X.indptr) > 0]))
    return parts[0], parts[1]


def systems(
    chosen: Sequence[str], workers: Sequence[int], folder: Path
) -> Iterator[tuple[str, Callable[..., Result]]]:
    """What is to be run, and what it belongs to."""
    runs: list[tuple[str, Callable[..., Result]]] = [
        *(("dask_ma", partial(run_dask_ma, n_workers=n)) for n in workers),
        ("sklearn", run_sklearn),
        *(("gensim", partial(run_gensim, n_workers=n)) for n in workers),
        ("spark", partial(run_spark, folder=folder)),
    ]
    return ((name, run) for name, run in runs if name in chosen)


def held_out_perplexity(topics: np.ndarray, X: Any) -> float:
    """Completion perplexity of a model with these topics, whoever has found them."""
    model = MALDA(
        len(topics), components_init=topics, max_iter=0, dtype="float64", n_ranks=1
    )
    return model.fit(X[:1]).perplexity(X, method="completion")


def collect_rows(
    X: sparse.csr_matrix,
    X_test: sparse.csr_matrix,
    options: argparse.Namespace,
    folder: Path,
) -> list[Row]:
    """Run the chosen systems, one after the other."""
    setting = Setting(
        options.components,
        options.passes,
        options.batch_size,
        options.local_batch_size,
        options.spark_batch_size,
        options.dtype,
        options.seed,
    )
    rows = []
    for name, run in systems(options.systems, options.workers, folder):
        try:
            result = run(X, setting)
        except PeerAbsentError as absent:
            print(f"{name} left out: {absent}", flush=True)
            continue
        speed = options.passes * X.shape[0] / result.seconds
        perplexity = held_out_perplexity(result.topics, X_test)
        spent = result.seconds, result.processor
        rows.append(Row(result.name, *spent, speed, perplexity))
        print(f"{result.name}: done", flush=True)
    return rows


def format_rows(rows: list[Row]) -> str:
    """Table of all systems; the last columns compare with the first line."""
    width = max(len(row.name) for row in rows) + 2
    lines = [
        f"{'':<{width}}{'seconds':>10}{'processor':>11}{'documents/s':>14}"
        f"{'perplexity':>12}{'times the time':>16}{'the processor':>15}"
    ]
    for row in rows:
        lines.append(
            f"{row.name:<{width}}{row.seconds:>10.2f}{row.processor:>11.2f}"
            f"{row.documents_per_second:>14,.0f}{row.perplexity:>12.1f}"
            f"{row.seconds / rows[0].seconds:>16.2f}"
            f"{row.processor / rows[0].processor:>15.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what the command line asks for; print the table, write the figures."""
    options = parse_arguments()
    # For the processes that LdaMulticore starts; Dask's workers have their own limit.
    os.environ["OMP_NUM_THREADS"] = "1"
    X, X_test = load(options)
    print(
        f"{options.corpus}: {X.shape[0]:,} documents to train on, {X_test.shape[0]:,} "
        f"to test, {X.shape[1]:,} words, {X.sum():,} tokens; {options.components} "
        f"topics, {options.passes} passes",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        rows = collect_rows(X, X_test, options, Path(folder))
    if not rows:
        return
    print(f"\n{format_rows(rows)}")
    options.output.mkdir(parents=True, exist_ok=True)
    report = {
        "documents": X.shape[0],
        "words": X.shape[1],
        "options": {name: str(value) for name, value in vars(options).items()},
        "rows": [row._asdict() for row in rows],
    }
    path = options.output / f"topics_{options.corpus}.json"
    path.write_text(json.dumps(report, indent=1))
    print(f"\nWritten to {path}")


# Worker processes import this file again.
if __name__ == "__main__":
    main()
