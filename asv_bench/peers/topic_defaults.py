"""What topics come of the defaults: MALDA, scikit-learn and gensim on one corpus.

To be run in the folder asv_bench:

    python -m peers.topic_defaults --corpus imdb --documents 6000 --topics 20 50

``--data`` or ``$DASK_MA_DATA`` names the folder with the corpora of ``peers.gibbs``;
with ``--no-stop-words`` the English ones are left out. Every system is told the number
of topics and the seed, and nothing else. A line has the seconds of the processor, the
perplexity of held-out documents by completion, the topics that own a thousandth of the
tokens or more, and the coherence (npmi) of ten words of each topic in the documents of
the fit, all by the same functions. gensim is left out if it is not installed.
"""

from __future__ import annotations

import argparse
import gzip
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from threadpoolctl import threadpool_limits

from dask_ma import MALDA
from dask_ma.kernels import InferenceSettings
from dask_ma.topics._model import TopicModel, completion_columns, topic_parameters

from ._topic_systems import as_pairs
from .gibbs import coherence, corpus_parser, load

_COUNTED = 4000  # documents that tell how many tokens a topic owns
_OWNS = 1e-3  # of the tokens

Fit = tuple[np.ndarray, np.ndarray]  # parameters of topics, prior of documents


def fit_ours(X: Any, n_components: int, seed: int, n_ranks: int) -> Fit:
    """MALDA on ranks that are threads of this process."""
    model = MALDA(n_components, n_ranks=n_ranks, random_state=seed).fit(X)
    return model.components_, np.full(n_components, model.doc_topic_prior_)


def fit_sklearn(X: Any, n_components: int, seed: int, method: str) -> Fit:
    """scikit-learn's estimator, whose default method is "batch"."""
    model = LatentDirichletAllocation(
        n_components, learning_method=method, random_state=seed
    ).fit(X)
    return model.components_, np.full(n_components, model.doc_topic_prior_)


def fit_gensim(X: Any, n_components: int, seed: int) -> Fit:
    """gensim's model, which makes one pass by default."""
    from gensim.models import LdaModel

    logging.getLogger("gensim").setLevel(logging.ERROR)
    names = {i: str(i) for i in range(X.shape[1])}
    model = LdaModel(
        as_pairs(X), num_topics=n_components, id2word=names, random_state=seed
    )
    return model.state.get_lambda(), np.asarray(model.alpha)


SYSTEMS: dict[str, Callable[[Any, int, int], Fit]] = {
    "MALDA, one rank": lambda X, K, seed: fit_ours(X, K, seed, 1),
    "MALDA, two ranks": lambda X, K, seed: fit_ours(X, K, seed, 2),
    "scikit-learn, batch": lambda X, K, seed: fit_sklearn(X, K, seed, "batch"),
    "scikit-learn, online": lambda X, K, seed: fit_sklearn(X, K, seed, "online"),
    "gensim": fit_gensim,
}


def judge(fit: Fit, X: Any, test: Any) -> tuple[float, int, float]:
    """Held-out perplexity, topics in use, and mean coherence."""
    components, prior = fit
    parameters = components.astype(np.float32)
    known = TopicModel(parameters, prior, InferenceSettings(), is_known=True)
    value, n_words = completion_columns(known, test).sum(axis=0)
    variational = known._replace(is_known=False)
    owned = (topic_parameters(variational, X[:_COUNTED]) - prior).sum(axis=0)
    n_used = int((owned >= _OWNS * owned.sum()).sum())
    return float(np.exp(-value / n_words)), n_used, coherence(components, X)


def without_stop_words(parts: list[Any], options: argparse.Namespace) -> list[Any]:
    """The same documents without the columns of English stop words."""
    path = options.data / options.corpus / "vocab.txt.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        words = file.read().split()
    kept = np.flatnonzero([word not in ENGLISH_STOP_WORDS for word in words])
    return [sparse.csr_matrix(X[:, kept]) for X in parts]


def main() -> None:
    """Fit, and print a line for each."""
    parser = corpus_parser(__doc__)
    add = parser.add_argument
    add("--topics", type=int, nargs="+", default=[20, 50, 100])
    add("--no-stop-words", action="store_true")
    add("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    add("--seed", type=int, default=0)
    options = parser.parse_args()
    parts = list(load(options))
    if options.no_stop_words:
        parts = without_stop_words(parts, options)
    parts[1] = parts[1][: options.held_out]
    X, test = (
        sparse.csr_matrix(part[np.diff(part.indptr) > 0].astype(np.float32))
        for part in parts
    )
    print(f"{options.corpus}: {X.shape[0]} documents, {X.shape[1]} words")
    for n_components in options.topics:
        for name in options.systems:
            start = time.process_time()
            try:
                fit = SYSTEMS[name](X, n_components, options.seed)
            except ModuleNotFoundError:
                print("gensim is not installed, and left out")
                continue
            spent = time.process_time() - start
            value, n_used, together = judge(fit, X, test)
            print(
                f"{n_components:4d} topics  {name:22s}{spent:8.1f} s  perplexity "
                f"{value:8.1f}  in use {n_used:4d}  npmi {together:6.3f}",
                flush=True,
            )


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
