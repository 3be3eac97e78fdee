"""The evidence lower bound of a topic model on the documents of all ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import allreduce
from dask_ma.engine import RankContext, Record, RoundLog
from dask_ma.kernels import document_bounds, infer_documents
from dask_ma.ma.lda._params import TopicParams
from dask_ma.ma.lda._rounds import Rounds, own_words
from dask_ma.topics._corpus import Corpus
from dask_ma.topics._model import TopicModel, completion_columns


class Due(NamedTuple):
    """What the topics are evaluated on after a round.

    Attributes
    ----------
    bound : bool
        Whether on the training documents.
    held_out : bool
        Whether on the held-out documents.
    """

    bound: bool
    held_out: bool


class TopicEvaluator:
    """Evaluates the topics where that is wanted.

    Parameters
    ----------
    context : RankContext
        This rank.
    corpus : Corpus
        The documents.
    params : TopicParams
        Parameters of the fit.
    log : RoundLog
        Where computing is timed.

    Attributes
    ----------
    perplexity : float or None
        Of the training documents, when they were evaluated last.
    held_out : float or None
        Of the held-out documents, by completion, when they were evaluated last.
    is_settled : bool
        Whether the last two perplexities of the training documents differ by less than
        `perp_tol`, or that of the held-out documents has not fallen by as much.
    """

    def __init__(
        self, context: RankContext, corpus: Corpus, params: TopicParams, log: RoundLog
    ) -> None:
        self._log = log
        self.perplexity: float | None = None
        self.held_out: float | None = None
        self.is_settled = False
        self._context = context
        self._corpus = corpus
        self._params = params

    def unknown(self, n_iter: int) -> dict[str, Any]:
        """What the record of a round has that is not evaluated."""
        names = ["objective", "perplexity"]
        if self._params.validation_fraction is not None:
            names.append("validation_perplexity")
        return {**dict.fromkeys(names, float("nan")), "n_iter": n_iter}

    def measure(self, rounds: Rounds, due: Due) -> np.ndarray:
        """This rank's parts of what is due.

        Parameters
        ----------
        rounds : Rounds
            Where the fit stands.
        due : Due
            What is evaluated.

        Returns
        -------
        parts : ndarray of shape (3,)
            To be summed over ranks; 0 for what is not due.
        """
        own = np.zeros(3)
        if any(due):
            with self._log.computing("evaluate"):
                if due.bound:
                    own[0] = self._own_bound(rounds)
                if due.held_out:
                    own[1:] = self._own_completion(rounds)
        return own

    def complete(self, record: Record, sums: np.ndarray, due: Due) -> None:
        """Take what was due.

        Parameters
        ----------
        record : dict
            Record of the round. It gets `objective`, ``-bound / words``, and
            `perplexity`, its exponential; and `validation_perplexity` of the held-out
            documents.
        sums : ndarray of shape (3,)
            Sums over ranks of what :meth:`measure` gives.
        due : Due
            What has been evaluated.

        Raises
        ------
        ValueError
            If the bound is not finite.
        """
        if due.bound:
            self._take_bound(float(sums[0]), record)
        if due.held_out:
            self._take_completion(float(sums[1]), float(sums[2]), record)

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
        with self._log.computing("evaluate"):
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
        size = self._corpus.documents_at_once(
            self._params.bytes_per_document, settings.block_bytes
        )
        for batch in self._corpus.batches_in_order(size):
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
