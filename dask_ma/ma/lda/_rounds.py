"""Rounds of a topic model's fit (Algorithms 5 and 6 of the paper)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from math import prod

import numpy as np

from dask_ma.comm import ButterflyAverage, Group, allreduce
from dask_ma.kernels import (
    digamma,
    fit_dirichlet,
    fit_symmetric_dirichlet,
    infer_documents,
    word_statistics,
)
from dask_ma.ma._paradigm import aggregate
from dask_ma.ma.lda._params import TopicParams
from dask_ma.ma.lda._sizes import count_updates, gradient_size, round_size
from dask_ma.ma.lda._topics import Topics
from dask_ma.topics._corpus import Batch, Corpus

Timer = Callable[[], AbstractContextManager[None]]

_MOST_WORDS = 0.75  # part of the vocabulary from which on all words are averaged


def own_words(group: Group, n_words: int) -> tuple[int, int]:
    """First word, and end, of the part of the vocabulary that this rank looks at."""
    first, last = (n_words * r // group.size for r in (group.rank, group.rank + 1))
    return first, last


class Rounds(ABC):
    """The rounds of a fit, which take all ranks from one model to the next.

    Parameters
    ----------
    group : Group
        This rank.
    corpus : Corpus
        The documents.
    topics : Topics
        The topics of this rank.
    params : TopicParams
        Parameters of the fit.

    Attributes
    ----------
    topics : Topics
        The topics of this rank; the same on all ranks after the last round of a pass.
    prior : ndarray of float64, shape (n_components,)
        Prior of the documents' topics.
    topic_prior : float or None
        Prior of the topics' words if it is learned.
    n_updates : int
        Updates of the topics so far.
    n_rounds : int
        Rounds of a pass.
    is_kept : bool
        Whether somebody keeps the topics that a round ends with as they are.
    """

    n_rounds: int
    _n_local = 1  # updates of a rank in a round

    def __init__(
        self, group: Group, corpus: Corpus, topics: Topics, params: TopicParams
    ) -> None:
        self.topics = topics
        self.prior = params.doc_topic_prior
        self.topic_prior: float | None = None
        if params.learn_topic_prior:
            self.topic_prior = float(params.topic_word_prior[0, 0])
        self.n_updates = params.n_updates
        self.is_kept = True
        self._group = group
        self._corpus = corpus
        self._params = params
        self._forget_documents()

    @abstractmethod
    def run(self, documents: np.ndarray, n_round: int, computing: Timer) -> None:
        """Make a round; a collective call.

        Parameters
        ----------
        documents : ndarray of int
            Numbers of this rank's documents of the round.
        n_round : int
            Number of the round in its pass, from 0.
        computing : callable
            Context in which the work that is not communication is done.
        """

    def share_out(self, order: np.ndarray, n_round: int) -> np.ndarray:
        """This rank's documents of a round of a pass in the given order."""
        # One part of what np.array_split gives; all of them would take as long as there
        # are rounds, in each round.
        size, n_larger = divmod(len(order), self.n_rounds)
        start = n_round * size + min(n_round, n_larger)
        return order[start : start + size + (n_round < n_larger)]

    def remains(self, n_passes: int) -> float:
        """Part of the present topics that so many passes leave of them.

        Averages change nothing of it where all ranks have the same topics now: each
        makes the same number of updates.

        Parameters
        ----------
        n_passes : int
            Whole passes to come.

        Returns
        -------
        part : float
            From 0 to 1.
        """
        n_updates = n_passes * self.n_rounds * self._n_local
        first = self.n_updates + 1
        rates = map(self._rate, range(first, first + n_updates))
        return prod(1 - rate for rate in rates)

    def _rate(self, n: int) -> float:
        """How far the n-th update moves, n from 1; in the literature, this is `rho`."""
        return float((self._params.learning_offset + n) ** -self._params.learning_decay)

    def _expect(self, batch: Batch) -> np.ndarray:
        """Expected number of times that each word was drawn from each topic."""
        settings = self._params.inference
        if self._params.word_weights == "mean":
            weights = self.topics.mean_weights(batch.words).weights
        else:
            weights = self.topics.weights(batch.words, settings.threshold).weights
        found = infer_documents(batch.X, weights, self.prior, settings)
        if self._params.learn_prior:
            self._note_documents(found.gamma)
        return word_statistics(batch.X, found, weights)

    # The priors ----------------------------------------------------------------------

    def set_topic_prior(self, prior: float) -> None:
        """Take over another prior of the topics' words, one for all of them."""
        self.topic_prior = prior
        self.topics.set_prior(np.full((1, 1), prior))

    def learn_topic_prior(self, computing: Timer) -> None:
        """Set the prior of words to what fits the topics of a pass; a collective call.

        Each rank looks at a part of the vocabulary.
        """
        n_words = self._corpus.n_features
        with computing():
            first, last = own_words(self._group, n_words)
            own = self.topics.expected_logs(first, last)
        (total,) = allreduce(self._group, np.array([own]))
        mean_log = float(total) / (n_words * self._params.n_components)
        start = float(self.topic_prior or 1.0)
        self.set_topic_prior(fit_symmetric_dirichlet(mean_log, n_words, start))

    def _note_documents(self, gamma: np.ndarray) -> None:
        """Add up the expectations of the logarithms of the documents' proportions."""
        threshold = self._params.inference.threshold
        logs = digamma(gamma, threshold).sum(axis=0, dtype=np.float64)
        totals = gamma.sum(axis=1, dtype=np.float64)
        self._log_sums[:-1] += logs - digamma(totals, threshold).sum()
        self._log_sums[-1] += len(gamma)

    def _forget_documents(self) -> None:
        """Begin to add up anew."""
        self._log_sums = np.zeros(self._params.n_components + 1)

    def _learn_prior(self, log_sums: np.ndarray, rate: float) -> None:
        """Move towards the prior that fits the documents of all ranks best."""
        best = fit_dirichlet(log_sums[:-1] / log_sums[-1], self.prior)
        self.prior = (1 - rate) * self.prior + rate * best
        self._forget_documents()


class SendModel(Rounds):
    """Each rank updates topics of its own, which are averaged then (Algorithm 6).

    The average is weighted by the documents of the round. Words that no rank has
    updated differ by the scales of the ranks alone, so only the others travel. With
    butterfly mixing a rank takes the plain average with one partner in each round but
    the last of a pass.
    """

    def __init__(
        self, group: Group, corpus: Corpus, topics: Topics, params: TopicParams
    ) -> None:
        super().__init__(group, corpus, topics, params)
        total, most = corpus.total_documents, corpus.most_documents
        auto = round_size(total, group.size, params.n_components)
        size = params.batch_size or auto
        self.n_rounds = min(-(-total // size), most)
        most_in_round = -(-most // self.n_rounds)
        if params.local_batch_size is None:
            self._n_local = count_updates(most_in_round, total / self.n_rounds, total)
        else:
            self._n_local = -(-most_in_round // params.local_batch_size)
        self._is_updated = np.zeros(corpus.n_features, dtype=bool)  # in this round

    def run(self, documents: np.ndarray, n_round: int, computing: Timer) -> None:
        """Update the topics by each batch, then average them if there are others."""
        is_last = n_round == self.n_rounds - 1
        mixes = self._params.mixing == "butterfly" and not is_last
        with computing():
            if self.is_kept or not self.topics.excess.flags.writeable:
                self.topics.detach()
            alike = self._begin_alike()
            for part in np.array_split(documents, self._n_local):
                self.n_updates += 1
                if len(part):
                    self._update(self._corpus.batch(part))
        if self._group.size > 1 and mixes:
            self._mix(computing)
        elif self._group.size > 1:
            words = self._updated_words() if alike else None
            self._average(words, len(documents), n_round, computing)
        elif self._params.learn_prior and not mixes:
            self._learn_prior(self._log_sums, self._rate_of_updates())

    def _begin_alike(self) -> bool:
        """Whether the average will only need the words that some rank updates."""
        if self._group.size == 1 or self._params.mixing == "butterfly":
            return False
        self._is_updated[:] = False
        first = self.n_updates + 1
        rates = [self._rate(first + number) for number in range(self._n_local)]
        return self.topics.begin_alike(rates)

    def _update(self, batch: Batch) -> None:
        """Move this rank's topics towards what a batch shows."""
        statistics = self._expect(batch)
        total = self._params.total_samples or self._corpus.total_documents
        factor = total / batch.X.shape[0]
        self.topics.update(batch.words, statistics, self._rate(self.n_updates), factor)
        self._is_updated[batch.words] = True

    def _updated_words(self) -> np.ndarray | None:
        """Words of the round on all ranks; None for most of them; a collective call."""
        found = allreduce(self._group, self._is_updated.view(np.uint8), "max")
        words = np.flatnonzero(found)
        return words if len(words) <= _MOST_WORDS * len(found) else None

    def _average(
        self,
        words: np.ndarray | None,
        n_documents: int,
        n_round: int,
        computing: Timer,
    ) -> None:
        """Average over all ranks: some words, beside which nothing differs, or all."""
        share = n_documents / self._corpus.documents_of_round(n_round, self.n_rounds)
        with computing():
            if words is None:
                arrays = [self.topics.settle(share)]
            else:
                arrays = list(self.topics.share(words, share))
        if self._params.learn_prior:
            arrays.append(self._log_sums)
        means = aggregate(self._group, arrays, self._params.paradigm.aggregation)
        with computing():
            if words is None:
                self.topics.reset(means[0])
            else:
                self.topics.merge(words, *means[:2])
                if n_round == self.n_rounds - 1:
                    self.topics.add_up()  # leaves nothing behind of how it was kept up
            if self._params.learn_prior:
                self._learn_prior(means[-1], self._rate_of_updates())

    def _rate_of_updates(self) -> float:
        """How far the updates move since the prior was learned, one after the other."""
        is_mixed = self._params.mixing == "butterfly"
        n_updates = self._n_local * (self.n_rounds if is_mixed else 1)
        numbers = range(self.n_updates - n_updates + 1, self.n_updates + 1)
        return 1 - prod(1 - self._rate(number) for number in numbers)

    def _mix(self, computing: Timer) -> None:
        """Average with the partner of this round."""
        step = self.n_updates // self._n_local - 1
        with computing():
            excess = self.topics.settle()
        mixed = ButterflyAverage(self._group, excess, step).finish()
        with computing():
            self.topics.reset(mixed)


class SendGradient(Rounds):
    """One update of the topics by the documents of all ranks (Algorithm 5).

    With ``learning_method="batch"`` it is made from all documents, and goes all the
    way: variational Bayes.
    """

    def __init__(
        self, group: Group, corpus: Corpus, topics: Topics, params: TopicParams
    ) -> None:
        super().__init__(group, corpus, topics, params)
        self._is_batch = params.learning_method == "batch"
        size = params.batch_size or gradient_size(corpus.total_documents)
        n_rounds = -(-corpus.total_documents // size)
        self.n_rounds = 1 if self._is_batch else min(n_rounds, corpus.most_documents)

    def run(self, documents: np.ndarray, n_round: int, computing: Timer) -> None:
        """Sum the statistics of all ranks, then update the topics."""
        self.n_updates += 1
        with computing():
            arrays = [self._statistics(documents)]
            if self._params.learn_prior:
                arrays.append(self._log_sums)
        total, *log_sums = aggregate(
            self._group, arrays, self._params.paradigm.aggregation
        )
        del arrays  # as large as the topics
        n_documents = self._corpus.documents_of_round(n_round, self.n_rounds)
        n_corpus = self._params.total_samples or self._corpus.total_documents
        rate = 1.0 if self._is_batch else self._rate(self.n_updates)
        with computing():
            self._move(
                np.require(total, requirements="W"), rate, n_corpus / n_documents
            )
            if log_sums:
                self._learn_prior(log_sums[0], rate)

    def _move(self, statistics: np.ndarray, rate: float, factor: float) -> None:
        """Update the topics; what the last round ended with is kept, and stays."""
        statistics *= statistics.dtype.type(rate * factor)
        if rate < 1:
            statistics += self.topics.excess * statistics.dtype.type(1 - rate)
        self.topics.reset(statistics)

    def _statistics(self, documents: np.ndarray) -> np.ndarray:
        """Statistics of all words from some documents of this rank."""
        statistics = np.zeros_like(self.topics.excess)
        size = self._corpus.documents_at_once(
            self._params.bytes_per_document, self._params.inference.block_bytes
        )
        for start in range(0, len(documents), size):
            part = documents[start : start + size]
            batch = self._corpus.batch(part)
            statistics[batch.words] += self._expect(batch)
        return statistics
