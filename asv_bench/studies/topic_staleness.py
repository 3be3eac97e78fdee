"""Do stale counts of words cost Gibbs sampling sweeps, and what does rotation save?

Two ways of sharing a collapsed sampler out over ranks. *rotation*: no two ranks have a
word at a time, so counts of words are never out of date (SchMPLDA). *copies*: every
rank samples all words of its documents with a copy of the counts, to which the changes
of the others are added once in so many sweeps (AD-LDA; a parameter server whose copies
are that old). Both have the same sampler, the same documents on each rank and the same
number of sweeps; one rank is the same chain for both.

Ranks take turns in this process, so that nothing depends on the machine's load. A sweep
takes what the slowest rank has taken, of the processor's clock: in a rotation, the sum
over its parts. Exchange takes no time for either, which favours the copies: they send
the changes of the whole table, twice what a rank of a rotation sends.

Run ``python studies/topic_staleness.py --help`` in the folder asv_bench; the defaults
take some minutes of a processor. ``--write FILE`` keeps the courses, a part of which
``docs/figures/staleness.py`` draws.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # for what peers reads

from peers.gibbs import load, perplexity  # noqa: E402

from dask_ma import SchMPLDA  # noqa: E402
from dask_ma.data import Room  # noqa: E402
from dask_ma.kernels import polya_sum  # noqa: E402
from dask_ma.schmp.runtime._balance import balanced_parts  # noqa: E402
from dask_ma.schmp.topics._documents import Documents  # noqa: E402
from dask_ma.schmp.topics._exact import ExactMoves  # noqa: E402
from dask_ma.schmp.topics._layout import tokens_of_blocks  # noqa: E402
from dask_ma.schmp.topics._moves import Priors  # noqa: E402

CORPORA = ("ap", "newsgroups20", "imdb")
HEADER = (
    "corpus",
    "topics",
    "way",
    "ranks",
    "sweep",
    "seconds",
    "log_likelihood",
    "perplexity",
)


class Ranks(ABC):
    """Ranks with documents of their own, in one process.

    Parameters
    ----------
    X : csr_matrix of int of shape (n_documents, n_features)
        Counts; rank r has every n_ranks-th document.
    n_ranks : int
    blocks : list of ndarray of int
        Words that are sampled together.
    options : Namespace
        Of the command line.
    """

    def __init__(
        self, X: Any, n_ranks: int, blocks: list[np.ndarray], options: Any
    ) -> None:
        self.blocks, self.n_ranks = blocks, n_ranks
        n_words, K = X.shape[1], options.components
        self.table = np.zeros((n_words, K), dtype=np.int32)
        self.totals = np.zeros(K, dtype=np.int64)
        self.alpha, self.beta = options.alpha, options.beta
        self.priors = [
            Priors(
                np.full(K, options.alpha),
                np.full(len(block), options.beta, dtype=np.float32),
                np.full(K, n_words * options.beta),
            )
            for block in blocks
        ]
        self.rngs = [np.random.default_rng([options.seed, r]) for r in range(n_ranks)]
        self.documents, self.moves = [], []
        for rank, rng in enumerate(self.rngs):
            documents = as_tokens(X[rank::n_ranks], X.shape[0], int(X.sum()))
            self.documents.append(documents)
            self.moves.append(self._moves_of(documents, K, rng))

    def _moves_of(
        self, documents: Documents, K: int, rng: np.random.Generator
    ) -> ExactMoves:
        """The sampler of a rank, whose tokens have their first topics."""
        moves = ExactMoves(documents, K, Room())
        laid_out = tokens_of_blocks(documents, self.blocks, len(self.table))
        for number, (block, tokens) in enumerate(
            zip(self.blocks, laid_out, strict=True)
        ):
            moves.add_block(number, tokens)
            counts = np.zeros((len(block), K), dtype=np.int32)
            self.totals += moves.place(number, counts, None, rng)
            self.table[block] += counts
        return moves

    def visit(self, rank: int, number: int, counts: Any, totals: Any) -> float:
        """Sample a rank's tokens of a block; seconds of the processor."""
        start = time.process_time()
        rng = self.rngs[rank]
        if number == self.first(rank):
            self.moves[rank].begin_rotation(self.priors[number], totals, rng)
        self.moves[rank].visit(number, counts, self.priors[number], totals, rng)
        return time.process_time() - start

    @abstractmethod
    def first(self, rank: int) -> int:
        """Block that a rank begins a sweep with."""

    @abstractmethod
    def sweep(self) -> float:
        """Draw every token once; seconds of the slowest ranks."""

    def log_likelihood(self) -> float:
        """Of words and topics together, per token, by the counts as they are."""
        K = self.table.shape[1]
        value, n_tokens = 0.0, 0
        for documents, moves in zip(self.documents, self.moves, strict=True):
            n_tokens += int(documents.lengths.sum())
            value -= polya_sum(documents.lengths, K * self.alpha)
            for counts in moves.document_counts():
                value += polya_sum(counts, self.alpha)
        table = self.table_now()
        value += polya_sum(table, self.beta)
        value -= polya_sum(table.sum(axis=0), len(table) * self.beta)
        return value / n_tokens

    def table_now(self) -> np.ndarray:
        """Counts of words and topics, complete."""
        return self.table


class Rotation(Ranks):
    """Blocks of words go round; totals of topics are told when all have been."""

    def __init__(self, X: Any, n_ranks: int, options: Any) -> None:
        work = np.asarray(X.sum(axis=0), dtype=np.float64).ravel()
        blocks = [np.sort(block) for block in balanced_parts(work, n_ranks)]
        super().__init__(X, n_ranks, blocks, options)

    def first(self, rank: int) -> int:
        return rank

    def sweep(self) -> float:
        seconds, known = 0.0, [self.totals.copy() for _ in self.rngs]
        for turn in range(self.n_ranks):
            spent = []
            for rank in range(self.n_ranks):
                number = (rank + turn) % self.n_ranks
                counts = self.table[self.blocks[number]]
                spent.append(self.visit(rank, number, counts, known[rank]))
                self.table[self.blocks[number]] = counts
            seconds += max(spent)
        self.totals += sum(own - self.totals for own in known)
        return seconds


class Copies(Ranks):
    """Every rank has a copy of the counts; changes are added up every few sweeps."""

    def __init__(self, X: Any, n_ranks: int, every: int, options: Any) -> None:
        super().__init__(X, n_ranks, [np.arange(X.shape[1])], options)
        self.every, self.n_sweeps = every, 0
        self.own: list[np.ndarray] = [self.table.copy() for _ in self.rngs]

    def first(self, rank: int) -> int:
        return 0

    def sweep(self) -> float:
        spent = []
        for rank, own in enumerate(self.own):
            spent.append(self.visit(rank, 0, own, own.sum(axis=0, dtype=np.int64)))
        self.n_sweeps += 1
        if self.n_sweeps % self.every == 0:
            self.table = self.table_now()
            self.own = [self.table.copy() for _ in self.own]
        return max(spent)

    def table_now(self) -> np.ndarray:
        return self.table + sum(own - self.table for own in self.own)


def as_tokens(X: Any, n_total: int, n_all_tokens: int) -> Documents:
    """Documents of a rank."""
    lengths = np.asarray(X.sum(axis=1)).ravel().astype(np.int64)
    words = np.repeat(X.indices, X.data).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    keys = np.arange(X.shape[0])
    return Documents(keys, starts, words, n_total, n_all_tokens)


def course(ranks: Ranks, test: Any, options: Any) -> list[tuple[Any, ...]]:
    """Sweep, seconds so far, likelihood and perplexity where they are due."""
    seconds, found = 0.0, []
    for sweep in range(1, options.sweeps + 1):
        seconds += ranks.sweep()
        if sweep % options.every and sweep != options.sweeps:
            continue
        topics = ranks.table_now().T + options.beta
        value = perplexity(topics, test, options)
        found.append((sweep, round(seconds, 3), ranks.log_likelihood(), value))
    return found


def compare(corpus: str, options: Any) -> list[tuple[Any, ...]]:
    """Courses of all ways on one corpus."""
    options.corpus = corpus
    X, test = load(options)
    ends = np.cumsum(np.asarray(X.sum(axis=1)).ravel())
    X = X[: max(1, int(np.searchsorted(ends, options.tokens, side="right")))]
    X = X[np.random.default_rng(options.seed).permutation(X.shape[0])]
    print(f"{corpus}: {X.shape[0]} documents, {X.sum()} tokens, {X.shape[1]} words")
    rows = []
    for n_ranks in options.ranks:
        ways: dict[str, Any] = {"rotation": lambda n=n_ranks: Rotation(X, n, options)}
        if n_ranks > 1:
            for age in options.ages:
                ways[f"copies, {age}"] = lambda n=n_ranks, age=age: Copies(
                    X, n, age, options
                )
        for way, make in ways.items():
            found = course(make(), test, options)
            rows += [
                (corpus, options.components, way, n_ranks, *record) for record in found
            ]
            _, seconds, value, held_out = found[-1]
            print(
                f"  {n_ranks:3d} ranks  {way:10s}  {value:8.4f}  perplexity "
                f"{held_out:8.1f}  {seconds:7.2f} s",
                flush=True,
            )
    show_needed(rows)
    if options.fit:
        show_fit(X, test, options)
    return rows


def show_needed(rows: list[tuple[Any, ...]]) -> None:
    """Sweeps and seconds to where one rank is after three quarters of its sweeps."""
    courses: dict[tuple[str, int], list[tuple[Any, ...]]] = {}
    for row in rows:
        courses.setdefault((row[2], row[3]), []).append(row)
    alone = courses[("rotation", 1)]
    bar = alone[3 * len(alone) // 4][6]
    print(f"  to {bar:.4f}:")
    for (way, n_ranks), course_ in courses.items():
        reached = [row for row in course_ if row[6] >= bar]
        text = f"{reached[0][4]} sweeps, {reached[0][5]:.2f} s" if reached else "never"
        print(f"  {n_ranks:3d} ranks  {way:10s}  {text}")


def show_fit(X: Any, test: Any, options: Any) -> None:
    """What the estimator itself reaches, on the most ranks."""
    model = SchMPLDA(
        options.components,
        doc_topic_prior=options.alpha,
        topic_word_prior=options.beta,
        sampler="exact",
        max_iter=options.sweeps,
        n_ranks=max(options.ranks),
        random_state=options.seed,
    ).fit(X)
    value = perplexity(model.components_, test, options)
    print(
        f"  SchMPLDA on {max(options.ranks)} ranks: {model.log_likelihood_:.4f}, "
        f"perplexity {value:.1f}"
    )


def main() -> None:
    """Parse the command line, and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--corpora", nargs="+", choices=CORPORA, default=list(CORPORA))
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--ranks", type=int, nargs="+", default=[1, 4, 8, 16])
    add("--ages", type=int, nargs="+", default=[1, 4], help="sweeps between merges")
    add("--components", type=int, default=100)
    add("--alpha", type=float, default=0.1)
    add("--beta", type=float, default=0.01)
    add("--sweeps", type=int, default=30)
    add("--every", type=int, default=3, help="sweeps between looks")
    add("--tokens", type=int, default=400_000, help="of a corpus, at most")
    add("--held-out", type=int, default=200, help="documents of the perplexity")
    add("--seed", type=int, default=0)
    add("--fit", action="store_true", help="the estimator, too, on the most ranks")
    add("--write", type=Path, help="a CSV of all courses")
    options = parser.parse_args()
    if options.data is None:
        parser.error("--data or DASK_MA_DATA must name the folder with the corpora")
    options.documents = None
    rows = [row for corpus in options.corpora for row in compare(corpus, options)]
    if options.write is not None:
        with options.write.open("w", newline="") as file:
            csv.writer(file).writerows([HEADER, *rows])


if __name__ == "__main__":
    main()
