"""The evidence lower bound of a topic model on the documents of all ranks."""

from __future__ import annotations

import numpy as np

from dask_ma.comm import allreduce
from dask_ma.engine import RankContext, Record, RoundLog
from dask_ma.kernels import document_bounds, infer_documents
from dask_ma.ma._lda_corpus import Corpus
from dask_ma.ma._lda_params import TopicParams
from dask_ma.ma._lda_rounds import Rounds, own_words


class TopicEvaluator:
    """Notes the rounds, and evaluates the topics where that is wanted.

    Parameters
    ----------
    context : RankContext
        This rank.
    corpus : Corpus
        The documents.
    params : TopicParams
        Parameters of the fit.

    Attributes
    ----------
    log : RoundLog
        The records of the rounds.
    perplexity : float or None
        Of the training documents, when they were evaluated last.
    is_settled : bool
        Whether the last two perplexities differ by less than `perp_tol`.
    """

    def __init__(
        self, context: RankContext, corpus: Corpus, params: TopicParams
    ) -> None:
        self.log = RoundLog(context)
        self.perplexity: float | None = None
        self.is_settled = False
        self._context = context
        self._corpus = corpus
        self._params = params

    def finish_round(self, rounds: Rounds, *, with_bound: bool) -> list[Record]:
        """Add up the counters of all ranks, and evaluate; a collective call.

        Parameters
        ----------
        rounds : Rounds
            Where the fit stands.
        with_bound : bool
            Whether the topics are evaluated.

        Returns
        -------
        records : list of dict
            Those of the rounds since the last call; the last one has `objective`,
            ``-bound / words``, and `perplexity`, its exponential.

        Raises
        ------
        ValueError
            If the bound is not finite.
        """
        bound = np.zeros(1)
        if with_bound:
            with self.log.computing("evaluate"):
                bound[0] = self._own_bound(rounds)
        sums = allreduce(
            self._context.group, np.concatenate([bound, *self.log.counters])
        )
        counters = np.split(sums[1:], len(self.log.counters))
        records = self.log.finish(counters)
        if with_bound:
            self._take_bound(float(sums[0]), records[-1])
        return records

    def _own_bound(self, rounds: Rounds) -> float:
        """This rank's part: its documents, and a part of the vocabulary."""
        settings, prior = self._params.inference, rounds.prior
        value = 0.0
        for batch in self._corpus.batches_in_order(self._params.documents_at_once):
            weights = rounds.topics.weights(batch.words, settings.threshold)
            found = infer_documents(batch.X, weights.weights, prior, settings)
            value += document_bounds(batch.X, found, weights, prior).sum()
        first, last = own_words(self._context.group, self._corpus.n_features)
        if last > first:
            value += rounds.topics.bound(first, last)
        return value

    def _take_bound(self, bound: float, record: Record) -> None:
        """Complete the last record, and compare with the perplexity before."""
        if not np.isfinite(bound):
            raise ValueError(
                f"the model is not finite after round {record['round']} (bound "
                f"{bound}); are the counts in X, or the priors, extremely large?"
            )
        objective = -bound / self._corpus.total_words
        with np.errstate(over="ignore"):  # topics as they begin may be that bad
            perplexity = float(np.exp(objective))
        record["objective"], record["perplexity"] = objective, perplexity
        if self.perplexity is not None:
            self.is_settled = abs(self.perplexity - perplexity) < self._params.perp_tol
        self.perplexity = perplexity
