"""The evidence lower bound of a topic model on the documents of all ranks."""

from __future__ import annotations

import numpy as np

from dask_ma.comm import allreduce
from dask_ma.engine import RankContext, Record, RoundLog
from dask_ma.kernels import document_bounds, infer_documents
from dask_ma.ma.lda._params import TopicParams
from dask_ma.ma.lda._rounds import Rounds, own_words
from dask_ma.topics._corpus import Corpus
from dask_ma.topics._model import TopicModel, completion_columns


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
    held_out : float or None
        Of the held-out documents, by completion, when they were evaluated last.
    is_settled : bool
        Whether the last two perplexities of the training documents differ by less than
        `perp_tol`, or that of the held-out documents has not fallen by as much.
    """

    def __init__(
        self, context: RankContext, corpus: Corpus, params: TopicParams
    ) -> None:
        self.log = RoundLog(context)
        self.perplexity: float | None = None
        self.held_out: float | None = None
        self.is_settled = False
        self._context = context
        self._corpus = corpus
        self._params = params

    def note(self, n_round: int, n_rows: int, n_iter: int) -> None:
        """Keep what this rank has done in a round, which may be evaluated later."""
        nan = float("nan")
        values = {"objective": nan, "perplexity": nan}
        if self._params.validation_fraction is not None:
            values["validation_perplexity"] = nan
        self.log.note(n_round, n_rows, **values, n_iter=n_iter)

    def finish_round(
        self, rounds: Rounds, *, with_bound: bool, with_held_out: bool = False
    ) -> list[Record]:
        """Add up the counters of all ranks, and evaluate; a collective call.

        Parameters
        ----------
        rounds : Rounds
            Where the fit stands.
        with_bound : bool
            Whether the topics are evaluated on the training documents.
        with_held_out : bool, default=False
            Whether they are on the held-out documents.

        Returns
        -------
        records : list of dict
            Those of the rounds since the last call; the last one has `objective`,
            ``-bound / words``, and `perplexity`, its exponential; and
            `validation_perplexity` of the held-out documents.

        Raises
        ------
        ValueError
            If the bound is not finite.
        """
        own = np.zeros(3)
        if with_bound or with_held_out:
            with self.log.computing("evaluate"):
                if with_bound:
                    own[0] = self._own_bound(rounds)
                if with_held_out:
                    own[1:] = self._own_completion(rounds)
        sums = allreduce(self._context.group, np.concatenate([own, *self.log.counters]))
        counters = np.split(sums[len(own) :], len(self.log.counters))
        records = self.log.finish(counters)
        if with_bound:
            self._take_bound(float(sums[0]), records[-1])
        if with_held_out:
            self._take_completion(float(sums[1]), float(sums[2]), records[-1])
        return records

    def bound(self, rounds: Rounds) -> float:
        """Evidence lower bound of the topics as they are; a collective call.

        Parameters
        ----------
        rounds : Rounds
            Where the fit stands.

        Returns
        -------
        bound : float
            On all training documents, not divided by anything.
        """
        with self.log.computing("evaluate"):
            own = self._own_bound(rounds)
        return float(allreduce(self._context.group, np.array(own)))

    def _own_completion(self, rounds: Rounds) -> np.ndarray:
        """Sums over this rank's held-out documents, see `completion_columns`."""
        if not self._corpus.held_out:
            return np.zeros(2)
        components = rounds.topics.parameters(slice(None)).T
        model = TopicModel(components, rounds.prior, self._params.inference)
        parts = [
            completion_columns(model, X).sum(axis=0) for X in self._corpus.held_out
        ]
        return np.asarray(np.sum(parts, axis=0))

    def _take_completion(self, value: float, n_words: float, record: Record) -> None:
        """Complete the last record, and compare with the held-out perplexity before."""
        if not n_words:
            raise ValueError(
                f"validation_fraction={self._params.validation_fraction} holds out "
                "documents of a single word each, of which none is left to predict; "
                "give another fraction"
            )
        perplexity = float(np.exp(-value / n_words))
        record["validation_perplexity"] = perplexity
        if self.held_out is not None:
            self.is_settled = self.held_out - perplexity < self._params.perp_tol
        self.held_out = perplexity

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
        decides = self._params.validation_fraction is None
        if self.perplexity is not None and decides:
            self.is_settled = abs(self.perplexity - perplexity) < self._params.perp_tol
        self.perplexity = perplexity
