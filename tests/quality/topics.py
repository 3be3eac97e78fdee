"""Topics by MALDA next to scikit-learn's, by the perplexity of held-out documents."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import CountVectorizer

from dask_ma import MALDA
from dask_ma.datasets import load_clinc150

from .cells import RANKS, Cell, arrange
from .rule import Result, classify
from .sets import Rows

_LAYOUTS = ("one block", "20 blocks", "sorted", "sorted blocks")
_SEEDS = range(3)  # of the peer: the bar is the worst of its models


@dataclass(frozen=True)
class Topics:
    """MALDA, with its defaults."""

    name: str = "MALDA"
    penalty: str = "-"

    def __str__(self) -> str:
        return self.name


def every_topic_cell() -> list[Cell]:
    """All cells of MALDA; documents have no weights."""
    return [
        Cell(name, layout, n_ranks)
        for name in CORPORA
        for layout in _LAYOUTS
        for n_ranks in RANKS
    ]


def judge_topics(topics: Topics, cell: Cell) -> Result:
    """Fit a cell; its perplexity is computed by scikit-learn's class."""
    train, test = _halves(cell.rows)
    bar = _bar(cell.rows)
    X, _, _ = arrange(train, cell.layout)
    model = MALDA(n_ranks=cell.n_ranks, random_state=0)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X)
    seconds = time.perf_counter() - start
    excess = model.to_sklearn().perplexity(test) / bar - 1
    said = [
        str(one.message)
        for one in caught
        if issubclass(one.category, ConvergenceWarning)
    ]
    verdict = classify(excess, 0.0, said, model.get_params())
    return Result(topics, cell, verdict, excess, 0.0, seconds, " ".join(said))


def _queries() -> tuple[Any, np.ndarray]:
    """Short questions to an assistant, on 150 matters."""
    texts, labels = load_clinc150("validation")
    words = CountVectorizer(min_df=5, stop_words="english").fit_transform(texts)
    return words.astype(float), np.unique(labels, return_inverse=True)[1]


def _planted() -> tuple[Any, np.ndarray]:
    """Long documents of ten topics."""
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(400, 0.05), 10)
    shares = rng.dirichlet(np.full(10, 0.1), 600)
    counts = np.stack(
        [rng.multinomial(n, p) for n, p in zip(rng.poisson(80, 600), shares @ topics)]
    )
    return sparse.csr_matrix(counts.astype(float)), shares.argmax(axis=1)


CORPORA: dict[str, Callable[[], tuple[Any, np.ndarray]]] = {
    "queries": _queries,
    "planted topics": _planted,
}


@cache
def _halves(name: str) -> tuple[Rows, Any]:
    """Three quarters of the documents that have words, and the others."""
    X, y = CORPORA[name]()
    order = np.random.default_rng(0).permutation(len(y))
    order = order[np.asarray(X[order].sum(axis=1)).ravel() > 0]
    cut = 3 * len(order) // 4
    return Rows(X[order[:cut]], y[order[:cut]]), X[order[cut:]]


@cache
def _bar(name: str) -> float:
    """The worst perplexity of the peer's models."""
    train, test = _halves(name)
    return max(
        LatentDirichletAllocation(random_state=seed).fit(train.X).perplexity(test)
        for seed in _SEEDS
    )
