"""Which batch size is best for topics, and how many rounds does each paradigm need?

MALDA with ``paradigm="model"`` (SendModel: MA-LDA) and ``paradigm="gradient"``
(SendGradient: MLlib-LDA) on the same documents, as in table 2 of the paper, over batch
sizes. A batch is what all ranks go over in a round; with "model" each rank updates its
topics by many small batches of its part, with "gradient" all of it makes one update.
Each setting makes the same number of passes; the documents of a round are dealt to the
ranks anew. The test documents are evaluated in two ways: by the bound, and by
completion, which predicts half of the words of each from the other half.

The second table has the rounds until the completion perplexity is within a factor of
the lowest one of all runs. Rounds are evaluated after 1, 2, 3, ... and then in steps of
a tenth.

Run ``python topic_batches.py --data FOLDER``; the folder (or ``$DASK_MA_DATA``) holds
``newsgroups20`` or ``imdb`` with ``X_train.npz``, ``X_test.npz`` and ``vocab.txt.gz``.
English stop words and documents without words are left out.
"""

from __future__ import annotations

import argparse
import gzip
import os
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

from dask_ma import MALDA

PARADIGMS = ("model", "gradient")
RATIOS = (1.5, 1.2, 1.1, 1.05, 1.02, 1.01)


class Run(NamedTuple):
    """The course of a fit."""

    paradigm: str
    batch_size: int
    rounds: np.ndarray  # those that were evaluated
    perplexities: np.ndarray  # by completion, after them
    bound: float  # perplexity by the bound, at the end
    seconds: float  # of training


def load(folder: Path, n_documents: int | None) -> list[Any]:
    """Counts of the training and of the test documents."""
    with gzip.open(folder / "vocab.txt.gz", "rt", encoding="utf-8") as file:
        words = file.read().split()
    kept = np.flatnonzero([word not in ENGLISH_STOP_WORDS for word in words])
    parts = []
    for name in ("X_train.npz", "X_test.npz"):
        X = sparse.load_npz(folder / name)[:n_documents].tocsc()[:, kept].tocsr()
        parts.append(X[np.diff(X.indptr) > 0])
    return parts


def rounds_of(
    n_documents: int, batch_size: int, n_passes: int, seed: int
) -> Iterator[np.ndarray]:
    """Documents of each round, in another order in each pass."""
    rng = np.random.default_rng(seed)
    n_rounds = -(-n_documents // batch_size)
    for _ in range(n_passes):
        yield from np.array_split(rng.permutation(n_documents), n_rounds)


def train(
    X: Any, X_test: Any, paradigm: str, batch_size: int, args: argparse.Namespace
) -> Run:
    """Fit round by round, and evaluate from time to time."""
    model = MALDA(
        args.components,
        paradigm=paradigm,
        batch_size=X.shape[0],  # so that a call of partial_fit is one round
        local_batch_size=args.local_batch_size if paradigm == "model" else "auto",
        learning_offset=args.learning_offset,
        learning_decay=args.learning_decay,
        total_samples=X.shape[0],
        n_ranks=args.ranks,
        random_state=np.random.RandomState(args.seed),
    )
    batches = list(rounds_of(X.shape[0], batch_size, args.passes, args.seed))
    rounds, perplexities, seconds, due = [], [], 0.0, 1
    for number, documents in enumerate(batches, start=1):
        start = perf_counter()
        model.partial_fit(X[documents])
        seconds += perf_counter() - start
        if number == due or number == len(batches):
            rounds.append(number)
            perplexities.append(model.perplexity(X_test, method="completion"))
            due = number + max(1, number // 10)
    return Run(
        paradigm,
        batch_size,
        np.array(rounds),
        np.array(perplexities),
        model.perplexity(X_test),
        seconds,
    )


def rounds_to(run: Run, target: float) -> float:
    """First round at or below the target; infinity if there is none."""
    below = np.flatnonzero(run.perplexities <= target)
    return float(run.rounds[below[0]]) if len(below) else np.inf


def print_run(run: Run) -> None:
    """How a run ended."""
    print(
        f"{run.batch_size:>8}  {run.paradigm:<10}{run.bound:>12.1f}"
        f"{run.perplexities[-1]:>12.1f}{run.perplexities.min():>10.1f}"
        f"{run.rounds[-1]:>8}{run.seconds:>9.0f}",
        flush=True,
    )


def print_rounds(runs: list[Run]) -> None:
    """Rounds to each multiple of the lowest perplexity, and the fewest of each kind."""
    best = min(run.perplexities.min() for run in runs)
    print(f"\nrounds until the completion perplexity is below ... times {best:.1f}")
    print(f"{'batch':>8}  {'':<10}" + "".join(f"{ratio:>8g}" for ratio in RATIOS))
    for run in runs:
        cells = "".join(f"{rounds_to(run, best * ratio):>8g}" for ratio in RATIOS)
        print(f"{run.batch_size:>8}  {run.paradigm:<10}{cells}")
    for paradigm in PARADIGMS:
        own = [run for run in runs if run.paradigm == paradigm]
        fewest = [min(rounds_to(run, best * ratio) for run in own) for ratio in RATIOS]
        cells = "".join(f"{rounds:>8g}" for rounds in fewest)
        print(f"{'fewest':>8}  {paradigm:<10}{cells}")


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--corpus", choices=["newsgroups20", "imdb"], default="newsgroups20")
    add("--documents", type=int, help="the first ones of each part only")
    add("--components", type=int, default=50)
    add("--batches", type=int, nargs="+", default=[256, 1024, 4096, 16384])
    add("--passes", type=int, default=10)
    add("--ranks", type=int, default=4)
    add("--local-batch-size", type=int, default=64)
    add("--learning-offset", type=float, default=10.0)
    add("--learning-decay", type=float, default=0.7)
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.data is None:
        parser.error("--data or DASK_MA_DATA must name the folder with the corpus")
    return args


def main() -> None:
    """Run the study."""
    args = parse()
    X, X_test = load(Path(args.data) / args.corpus, args.documents)
    print(
        f"{args.corpus}: {X.shape[0]:,} documents to train on, {X_test.shape[0]:,} to "
        f"test, {X.shape[1]:,} words; {args.components} topics, {args.ranks} ranks, "
        f"{args.passes} passes"
    )
    print(
        f"{'batch':>8}  {'paradigm':<10}{'bound':>12}{'completion':>12}{'lowest':>10}"
        f"{'rounds':>8}{'seconds':>9}"
    )
    runs = []
    for batch_size in sorted({min(size, X.shape[0]) for size in args.batches}):
        for paradigm in PARADIGMS:
            runs.append(train(X, X_test, paradigm, batch_size, args))
            print_run(runs[-1])
    print_rounds(runs)


if __name__ == "__main__":
    main()
