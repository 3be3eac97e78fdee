"""Gibbs sampling of topics: sweeps of the samplers, and whole fits."""

from __future__ import annotations

import numpy as np

from dask_ma import SchMPLDA

from . import parameterized
from .topics import make_documents


@parameterized(sampler=["exact", "metropolis"], n_topics=[20, 100])
class Rotations:
    """Rotations over documents on one rank."""

    timeout = 300

    def setup(self, sampler: str, n_topics: int) -> None:
        self.X = make_documents(2_000)
        self.model = SchMPLDA(
            n_topics,
            doc_topic_prior=0.1,
            topic_word_prior=0.01,
            sampler=sampler,
            max_iter=5,
            n_ranks=1,
            random_state=0,
        )

    def time_fit(self, sampler: str, n_topics: int) -> None:
        self.model.fit(self.X)

    def peakmem_fit(self, sampler: str, n_topics: int) -> None:
        self.model.fit(self.X)

    def track_tokens_per_second(self, sampler: str, n_topics: int) -> float:
        """Of the rotations after the one that gives tokens their first topics."""
        history = self.model.fit(self.X).history_
        seconds = [record["seconds_computing"] for record in history[1:]]
        return float(self.X.sum() / np.median(seconds))


@parameterized(ranks=[1, 2, 4])
class Ranks:
    """The same number of rotations on some ranks, which are threads."""

    timeout = 300

    def setup(self, ranks: int) -> None:
        X = make_documents(2_500)
        self.X, self.X_test = X[:2_000], X[2_000:]
        self.model = SchMPLDA(
            20,
            doc_topic_prior=0.1,
            topic_word_prior=0.01,
            max_iter=20,
            n_ranks=ranks,
            random_state=0,
        )

    def time_fit(self, ranks: int) -> None:
        self.model.fit(self.X)

    def track_perplexity(self, ranks: int) -> float:
        """Of other documents of the same topics, half of each from the other half."""
        return self.model.fit(self.X).perplexity(self.X_test)
