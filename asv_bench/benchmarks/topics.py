"""Topic models: the inference of documents, and whole fits."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dask_ma import MALDA
from dask_ma.kernels import infer_documents, word_statistics, word_weights

from . import parameterized


def make_documents(
    n_documents: int,
    n_words: int = 5_000,
    n_topics: int = 20,
    length: int = 100,
    seed: int = 0,
) -> sparse.csr_matrix:
    """Documents that follow the model, with few topics each.

    Frequent words are frequent in all topics, as in text.
    """
    rng = np.random.default_rng(seed)
    frequencies = 1 / np.arange(1, n_words + 1)
    topics = rng.gamma(0.1, size=(n_topics, n_words)) * frequencies
    topics /= topics.sum(axis=1, keepdims=True)
    shares = rng.dirichlet(np.full(n_topics, 0.1), size=n_documents)
    lengths = 1 + rng.poisson(length - 1, size=n_documents)
    rows = [
        sparse.csr_matrix(rng.multinomial(n, share @ topics))
        for n, share in zip(lengths, shares)
    ]
    return sparse.vstack(rows, format="csr")


@parameterized(n_topics=[20, 100])
class Inference:
    """Topics of a batch of documents in single precision, and its statistics."""

    def setup(self, n_topics: int) -> None:
        X = make_documents(512).astype(np.float32)
        words = np.flatnonzero(np.bincount(X.indices, minlength=X.shape[1]))
        self.X = sparse.csr_array(X[:, words])
        # Topics after some learning: with those of the start, none of them dies out.
        model = MALDA(n_topics, max_iter=2, n_ranks=1, random_state=0).fit(X)
        self.parameters = np.ascontiguousarray(model.components_[:, words].T)
        self.totals = model.components_.sum(axis=1, dtype=np.float64)
        self.weights = word_weights(self.parameters, self.totals).weights
        self.prior = np.full(n_topics, 1 / n_topics)
        self.found = infer_documents(self.X, self.weights, self.prior)

    def time_weights(self, n_topics: int) -> None:
        word_weights(self.parameters, self.totals)

    def time_documents(self, n_topics: int) -> None:
        infer_documents(self.X, self.weights, self.prior)

    def peakmem_documents(self, n_topics: int) -> None:
        infer_documents(self.X, self.weights, self.prior)

    def time_statistics(self, n_topics: int) -> None:
        word_statistics(self.X, self.found, self.weights)


@parameterized(ranks=[1, 2])
class Fit:
    """Passes over documents, with the ranks as threads of this process."""

    timeout = 300

    def setup(self, ranks: int) -> None:
        X = make_documents(5_000)
        self.X, self.X_test = X[:4_000], X[4_000:]
        self.model = MALDA(
            20,
            max_iter=2,
            batch_size=1_000,
            local_batch_size=100,
            n_ranks=ranks,
            random_state=0,
        )

    def time_fit(self, ranks: int) -> None:
        self.model.fit(self.X)

    def peakmem_fit(self, ranks: int) -> None:
        self.model.fit(self.X)

    def track_perplexity(self, ranks: int) -> float:
        """Of the documents that it was trained on, by the bound."""
        return self.model.fit(self.X).bound_

    def track_completion_perplexity(self, ranks: int) -> float:
        """Of other documents of the same topics, half of each from the other half."""
        return self.model.fit(self.X).perplexity(self.X_test, method="completion")
