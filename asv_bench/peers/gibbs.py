"""Gibbs sampling of topics: SchMPLDA next to tomotopy, and fits of all systems.

To be run in the folder asv_bench:

    python -m peers.gibbs --corpus newsgroups20 --data DIR --components 100 --sweeps 50

DIR (or ``$DASK_MA_DATA``) holds ``newsgroups20``, ``imdb`` or ``ap``, with counts in
``X_train.npz`` and ``X_test.npz`` (``X.npz`` for ``ap``, whose every tenth document is
held out); the queries of ``clinc150``, five of a matter in a document, come with the
package. Sweeps of the samplers are interleaved in one process, on one thread each,
and timed by the processor's clock, since other work on the machine would distort the
ratio of sweeps that follow each other. Perplexity is that of every other word of a
held-out document, given the words between, for all systems by the same function.

Ours is the sampler of one rank, as in a fit on one. `--processes 1 2` makes fits on so
many worker processes and by tomotopy with one worker instead, each in turn: `--sweeps`
of tomotopy and `--rotations` of ours, by the first of `--samplers`,
which should be as many as lead to the same perplexity:

    python -m peers.gibbs --processes 1 2 --sweeps 36 --rotations 20
    python -m peers.gibbs --processes 1 2 --components 1000 --samplers metropolis \\
        --sweeps 20 --rotations 20 --held-out 800

`--inference` works the proportions of held-out documents out, by the same topics.
`--fits` adds whole fits of SchMPLDA, MALDA, scikit-learn and gensim, and the coherence
(npmi) of ten words of each topic in the documents of the fit. Systems that are not
installed are left out with a message.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.feature_extraction.text import CountVectorizer

from dask_ma import MALDA, SchMPLDA
from dask_ma.data import Room
from dask_ma.datasets import load_clinc150
from dask_ma.kernels import InferenceSettings
from dask_ma.schmp.topics._documents import Documents
from dask_ma.schmp.topics._exact import ExactMoves
from dask_ma.schmp.topics._layout import tokens_of_blocks
from dask_ma.schmp.topics._metropolis import MetropolisMoves
from dask_ma.schmp.topics._moves import Moves, Priors
from dask_ma.topics._coherence import occurrences, topic_coherence
from dask_ma.topics._model import (
    TopicModel,
    completion_columns,
    topic_proportions,
)

from ._solvers import local_cluster
from ._topic_systems import as_pairs

CORPORA = ("newsgroups20", "imdb", "ap", "clinc150")


class Chain(Protocol):
    """A sampler whose sweeps are timed."""

    name: str

    def sweep(self) -> None:
        """Draw every token once."""

    def counts(self) -> np.ndarray:
        """Tokens of each word and topic, (n_features, n_components)."""


class Ours:
    """The sampler of one rank, without the rotation around it."""

    def __init__(self, X: Any, options: argparse.Namespace, name: str) -> None:
        self.name = name
        K, n_words = options.components, X.shape[1]
        lengths = np.asarray(X.sum(axis=1)).ravel().astype(np.int64)
        words = np.repeat(X.indices, X.data).astype(np.int32)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        self._rng = np.random.default_rng(options.seed)
        keys = np.arange(X.shape[0])
        documents = Documents(keys, starts, words, X.shape[0], len(words))
        self._moves: Moves
        if name == "exact":
            self._moves = ExactMoves(documents, K, Room())
        else:
            self._moves = MetropolisMoves(documents, K, Room(), options.proposals)
        [block] = tokens_of_blocks(documents, [np.arange(n_words)], n_words)
        self._moves.add_block(0, block)
        self._counts = self._moves.empty_counts(n_words)
        self._totals = self._moves.place(0, self._counts, None, self._rng)
        beta = np.full(n_words, options.beta, dtype=np.float32)
        alpha = np.full(K, options.alpha)
        self._priors = Priors(alpha, beta, np.full(K, n_words * options.beta))

    def sweep(self) -> None:
        self._moves.begin_rotation(self._priors, self._totals, self._rng)
        self._moves.visit(0, self._counts, self._priors, self._totals, self._rng)

    def counts(self) -> np.ndarray:
        counts = self._counts
        return counts.toarray() if sparse.issparse(counts) else counts


class Tomotopy:
    """tomotopy's collapsed sampler with one worker."""

    name = "tomotopy"

    def __init__(self, X: Any, options: argparse.Namespace) -> None:
        import tomotopy

        model = tomotopy.LDAModel(
            k=options.components,
            alpha=options.alpha,
            eta=options.beta,
            seed=options.seed,
        )
        for begin, end in zip(X.indptr, X.indptr[1:]):
            part = slice(begin, end)
            words = np.repeat(X.indices[part], X.data[part])
            if len(words):
                model.add_doc([str(word) for word in words])
        model.optim_interval = 0  # the priors stay
        model.train(0)
        self._model, self._shape = model, (X.shape[1], options.components)
        self._words = np.array([int(word) for word in model.used_vocabs])

    def sweep(self, n_sweeps: int = 1) -> None:
        self._model.train(n_sweeps, workers=1)

    def infer(self, X: Any, n_iterations: int) -> np.ndarray:
        """Proportions of the topics in new documents."""
        model, prior = self._model, self._model.alpha
        proportions = np.tile(prior / prior.sum(), (X.shape[0], 1))
        filled, documents = np.flatnonzero(np.diff(X.indptr)), []
        for row in filled:
            part = slice(X.indptr[row], X.indptr[row + 1])
            words = np.repeat(X.indices[part], X.data[part].astype(int))
            documents.append(model.make_doc([str(word) for word in words]))
        found, _ = model.infer(documents, iterations=n_iterations, workers=1)
        proportions[filled] = found
        return proportions

    def counts(self) -> np.ndarray:
        counts = np.zeros(self._shape)
        n_topics = self._shape[1]
        totals = np.asarray(self._model.get_count_by_topics())
        for topic in range(n_topics):
            shares = self._model.get_topic_word_dist(topic, normalize=False)
            found = np.asarray(shares) - self._model.eta
            counts[self._words, topic] = found * (totals[topic] / max(1, found.sum()))
        return counts


def load(options: argparse.Namespace) -> tuple[Any, Any]:
    """Documents to fit to, and those that are held out."""
    if options.corpus == "clinc150":
        return load_queries()
    folder = Path(options.data) / options.corpus
    if options.corpus == "ap":
        X = sparse.csr_matrix(sparse.load_npz(folder / "X.npz"))
        held_out = np.arange(X.shape[0]) % 10 == 0
        parts = X[~held_out], X[held_out]
    else:
        parts = tuple(
            sparse.csr_matrix(sparse.load_npz(folder / f"X_{part}.npz"))
            for part in ("train", "test")
        )
    found = []
    for X, most in zip(parts, (options.documents, options.held_out), strict=True):
        X = X[:most].astype(np.int64)
        X.sort_indices()
        found.append(X)
    return found[0], found[1]


def load_queries() -> tuple[Any, Any]:
    """Words of five queries of a matter, and of as many others of those held out."""
    vectorizer, parts = CountVectorizer(min_df=2), []
    for name in ("train", "test"):
        texts, labels = load_clinc150(name)
        order = np.argsort(labels, kind="stable")
        joined = [
            " ".join(texts[i] for i in order[start : start + 5])
            for start in range(0, len(order), 5)
        ]
        make = vectorizer.transform if parts else vectorizer.fit_transform
        parts.append(sparse.csr_matrix(make(joined)).astype(np.int64))
        parts[-1].sort_indices()
    return parts[0], parts[1]


def coherence(components: np.ndarray, X: Any) -> float:
    """Mean coherence of the ten words that each topic has most of."""
    best = [np.argsort(-row, kind="stable")[:10] for row in components]
    words = np.unique(best)
    topics = [np.searchsorted(words, own) for own in best]
    found = topic_coherence(occurrences(words, X), topics, "npmi")
    return float(np.nanmean(found))


def perplexity(components: np.ndarray, X: Any, options: argparse.Namespace) -> float:
    """Perplexity by completion; `components` are parameters, a row for each topic."""
    prior = np.full(options.components, options.alpha)
    parameters = components.astype(np.float32)
    model = TopicModel(parameters, prior, InferenceSettings(), is_known=True)
    value, n_words = completion_columns(model, X.astype(np.float32)).sum(axis=0)
    return float(np.exp(-value / n_words))


def compare_chains(X: Any, test: Any, options: argparse.Namespace) -> None:
    """Interleave sweeps, and say what has been reached from time to time."""
    chains: list[Chain] = [Ours(X, options, name) for name in options.samplers]
    try:
        chains.append(Tomotopy(X, options))
    except ModuleNotFoundError:
        print("tomotopy is not installed, and left out")
    n_tokens = int(X.sum())
    seconds: dict[str, list[float]] = {chain.name: [] for chain in chains}
    for sweep in range(1, options.sweeps + 1):
        for chain in chains:
            start = time.process_time()
            chain.sweep()
            seconds[chain.name].append(time.process_time() - start)
        if sweep % options.every and sweep != options.sweeps:
            continue
        print(f"after {sweep} sweeps of {n_tokens} tokens")
        last = chains[-1].name
        for chain in chains:
            own = np.array(seconds[chain.name])
            ratio = np.median(np.array(seconds[last]) / own)
            value = perplexity(chain.counts().T + options.beta, test, options)
            print(
                f"  {chain.name:12s} {own.sum():8.2f} s  "
                f"{n_tokens / np.median(own) / 1e6:6.2f} M tokens/s  "
                f"{ratio:5.2f} x {last}  perplexity {value:8.1f}",
                flush=True,
            )


def compare_fits(X: Any, test: Any, options: argparse.Namespace) -> None:
    """Whole fits on one rank, with everything around them."""
    priors = {"doc_topic_prior": options.alpha, "topic_word_prior": options.beta}
    common = {**priors, "random_state": options.seed}
    K = options.components
    fits = {
        "SchMPLDA": SchMPLDA(K, max_iter=options.sweeps, n_ranks=1, **common),
        "MALDA": MALDA(K, max_iter=options.passes, n_ranks=1, **common),
        "scikit-learn": LatentDirichletAllocation(
            K,
            max_iter=options.passes,
            learning_method="online",
            batch_size=256,
            **common,
        ),
    }
    for name, model in fits.items():
        start = time.process_time()
        model.fit(X.astype(np.float32))
        spent = time.process_time() - start
        show(name, spent, model.components_, X, test, options)
    try:
        tomotopy = Tomotopy(X, options)
        start = time.process_time()
        for _ in range(options.sweeps):
            tomotopy.sweep()
        spent = time.process_time() - start
        show("tomotopy", spent, tomotopy.counts().T + options.beta, X, test, options)
    except ModuleNotFoundError:
        print("tomotopy is not installed, and left out")
    try:
        spent, topics = fit_gensim(X, options)
        show("gensim", spent, topics, X, test, options)
    except ModuleNotFoundError:
        print("gensim is not installed, and left out")


def fit_gensim(X: Any, options: argparse.Namespace) -> tuple[float, np.ndarray]:
    """Seconds of gensim's online variational inference, and its topics."""
    from gensim.models import LdaModel

    documents = as_pairs(X)
    start = time.process_time()
    model = LdaModel(
        documents,
        num_topics=options.components,
        id2word={i: str(i) for i in range(X.shape[1])},
        chunksize=256,
        passes=options.passes,
        alpha=np.full(options.components, options.alpha),
        eta=options.beta,
        eval_every=None,
        random_state=options.seed,
    )
    return time.process_time() - start, model.state.get_lambda()


def compare_processes(X: Any, test: Any, options: argparse.Namespace) -> None:
    """Fits on worker processes, and tomotopy's with one worker, in turn."""
    rows = sparse.csr_array(X.astype(np.float32))
    seconds: dict[str, list[tuple[float, float]]] = {}  # clock, busiest processor
    found: dict[str, np.ndarray] = {}
    for _ in range(options.repeats):
        tomotopy = Tomotopy(X, options)
        start, before = time.perf_counter(), time.process_time()
        tomotopy.sweep(options.sweeps)
        spent = time.perf_counter() - start, time.process_time() - before
        seconds.setdefault("tomotopy", []).append(spent)
        found["tomotopy"] = tomotopy.counts().T + options.beta
        for n in options.processes:
            name = f"SchMPLDA, {n} processes"
            spent, found[name] = fit_on_processes(n, rows, options)
            seconds.setdefault(name, []).append(spent)
    peer = np.array(seconds["tomotopy"])
    for name, components in found.items():
        own = np.array(seconds[name])
        clock, processor = np.median(own, axis=0)
        ratio, of_processor = np.median(own / peer, axis=0)
        print(
            f"  {name:22s} {clock:7.2f} s, {ratio:.2f} x tomotopy's; busiest processor "
            f"{processor:7.2f} s, {of_processor:.2f} x; perplexity "
            f"{perplexity(components, test, options):8.1f}",
            flush=True,
        )


def fit_on_processes(
    n_processes: int, X: Any, options: argparse.Namespace
) -> tuple[tuple[float, float], np.ndarray]:
    """Seconds of a fit by the clock and by the busiest processor, and its topics."""
    model = SchMPLDA(
        options.components,
        doc_topic_prior=options.alpha,
        topic_word_prior=options.beta,
        sampler=options.samplers[0],
        n_proposals=options.proposals,
        max_iter=options.rotations or options.sweeps,
        init=options.init,
        n_ranks=n_processes,
        random_state=options.seed,
    )
    with local_cluster(n_processes) as client:
        clone(model).set_params(max_iter=1).fit(X[:100])  # loads modules
        start, before = time.perf_counter(), client.run(time.process_time)
        model.fit(X)
        spent, after = time.perf_counter() - start, client.run(time.process_time)
    return (spent, max(after[k] - before[k] for k in after)), model.components_


def compare_inference(X: Any, test: Any, options: argparse.Namespace) -> None:
    """Proportions of new documents, by the same topics: those of tomotopy."""
    tomotopy = Tomotopy(X, options)
    tomotopy.sweep(options.sweeps)
    components = (tomotopy.counts().T + options.beta).astype(np.float32)
    phi = components / components.sum(axis=1, keepdims=True)
    first, second = halves_of(sparse.csr_array(test.astype(np.float32)))
    prior = np.full(options.components, options.alpha)
    known = TopicModel(components, prior, InferenceSettings(), is_known=True)
    ways: dict[str, Callable[[Any], np.ndarray]] = {
        "SchMPLDA": lambda rows: topic_proportions(known, rows),
        "tomotopy": lambda rows: tomotopy.infer(rows, options.iterations),
    }
    for name, infer in ways.items():
        start = time.process_time()
        theta = infer(first)
        spent = time.process_time() - start
        value = 0.0
        for row, begin, end in zip(theta, second.indptr, second.indptr[1:]):
            part = slice(begin, end)
            likely = row @ phi[:, second.indices[part]]
            value += second.data[part] @ np.log(likely)
        print(
            f"  {name:12s} {len(theta) / spent:8.0f} documents/s  "
            f"perplexity {np.exp(-value / second.sum()):8.1f}",
            flush=True,
        )


def halves_of(X: Any) -> tuple[Any, Any]:
    """Every other word of each document, and the words between."""
    ends = np.cumsum(X.data)
    later = np.floor(ends / 2) - np.floor((ends - X.data) / 2)
    parts = []
    for data in (X.data - later, later):
        half = sparse.csr_array((data, X.indices, X.indptr), shape=X.shape)
        half.eliminate_zeros()
        parts.append(half.copy())
    return parts[0], parts[1]


def show(
    name: str,
    seconds: float,
    components: np.ndarray,
    X: Any,
    test: Any,
    options: argparse.Namespace,
) -> None:
    """A line about a fit."""
    value, together = perplexity(components, test, options), coherence(components, X)
    print(
        f"  {name:12s} {seconds:8.2f} s  perplexity {value:8.1f}  npmi {together:6.3f}",
        flush=True,
    )


def corpus_parser(text: str) -> argparse.ArgumentParser:
    """Command line of what is described so: a corpus, and the model of its topics."""
    parser = argparse.ArgumentParser(
        description=text.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--corpus", choices=CORPORA, default="newsgroups20")
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--documents", type=int, help="the first ones only")
    add("--held-out", type=int, default=1500, help="documents of the perplexity")
    add("--components", type=int, default=100)
    add("--alpha", type=float, default=0.1)
    add("--beta", type=float, default=0.01)
    return parser


def main() -> None:
    """Parse the command line, and compare."""
    parser = corpus_parser(__doc__)
    add = parser.add_argument
    add("--sweeps", type=int, default=50)
    add("--every", type=int, default=25, help="sweeps between perplexities")
    add("--proposals", type=int, default=4)
    add("--samplers", nargs="+", default=["exact", "metropolis"])
    add("--processes", type=int, nargs="+", help="fits on so many, by the clock")
    add("--inference", action="store_true", help="of held-out documents instead")
    add("--iterations", type=int, default=100, help="of tomotopy's inference")
    add("--rotations", type=int, help="of these; by default as many as sweeps")
    add("--init", choices=("progressive", "random"), default="progressive")
    add("--repeats", type=int, default=3, help="of these")
    add("--fits", action="store_true", help="whole fits, too")
    add("--only-fits", action="store_true", help="and no interleaved sweeps")
    add("--passes", type=int, default=5, help="of the variational systems")
    add("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.data is None and options.corpus != "clinc150":
        parser.error("--data or DASK_MA_DATA must name the folder with the corpus")
    X, test = load(options)
    if options.inference:
        compare_inference(X, test, options)
        return
    if options.processes:
        compare_processes(X, test, options)
        return
    if not options.only_fits:
        compare_chains(X, test, options)
    if options.fits or options.only_fits:
        compare_fits(X, test, options)


if __name__ == "__main__":
    main()
