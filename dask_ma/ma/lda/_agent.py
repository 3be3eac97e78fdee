"""Fitting a topic model as each rank carries it out (Algorithms 5 and 6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dask_ma.comm import allreduce
from dask_ma.engine import (
    Method,
    Model,
    RankContext,
    Record,
    Snapshot,
    State,
    Work,
    fit_rounds,
)
from dask_ma.exceptions import CheckpointError
from dask_ma.ma._paradigm import is_gradient
from dask_ma.ma.lda._evaluation import Due, TopicEvaluator
from dask_ma.ma.lda._params import TopicParams, TopicResult
from dask_ma.ma.lda._rounds import Rounds, SendGradient, SendModel
from dask_ma.ma.lda._sizes import is_few
from dask_ma.ma.lda._start import add_documents, random_excess
from dask_ma.ma.lda._topics import Topics
from dask_ma.topics._corpus import Corpus, agree_on_corpus

_N_ATTEMPTS, _TRIAL_PASSES = 4, 5  # to begin with where documents are few


def train(context: RankContext, arguments: Any, params: TopicParams) -> TopicResult:
    """Fit a topic model to the documents of all ranks.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.
    params : TopicParams
        Parameters of the fit.

    Returns
    -------
    result : TopicResult
        The same on every rank, but for the times in the history and the timeline, which
        rank 0 has.
    """
    state = context.restore_state()
    corpus = agree_on_corpus(
        context, arguments, params.dtype, params.validation_fraction
    )
    tries = False
    if params.learning_method == "auto":
        tries = is_few(corpus.total_documents)
        method = "batch" if tries else "online"
        params = replace(params, learning_method=method)
    if params.word_weights == "auto":
        is_batch = params.learning_method == "batch"
        weights = "variational" if is_batch else "mean"
        params = replace(params, word_weights=weights)
    fit = TopicFit(context, corpus, params, tries=tries, begins=state is None)
    fit_rounds(context, fit, state)
    if params.with_bound and not fit.is_evaluated:
        fit.evaluate()
    return TopicResult(fit.model(), context.history, context.timeline())


def make_rounds(
    context: RankContext,
    corpus: Corpus,
    params: TopicParams,
    attempt: int = 0,
    *,
    begins: bool = True,
) -> Rounds:
    """Where a fit stands before its first round, or before it goes on from another."""
    excess = random_excess(context, corpus, params, attempt)
    topics = Topics(excess, params.topic_word_prior)
    sends_sums = is_gradient(params.paradigm) or params.learning_method == "batch"
    kind = SendGradient if sends_sums else SendModel
    rounds = kind(context.group, corpus, topics, params)
    is_drawn = params.components is None and params.learning_method == "online"
    if begins and is_drawn:
        add_documents(excess, context, corpus, params, rounds.remains(params.max_iter))
        topics.reset(excess)
    rounds.is_kept = context.keeps_states  # in case the fit has to go on
    return rounds


class TopicFit(Method):
    """Rounds over the documents of all ranks, several of which make a pass.

    Parameters
    ----------
    context : RankContext
        This rank.
    corpus : Corpus
        The documents.
    params : TopicParams
        Parameters of the fit.
    tries : bool
        Whether the fit begins with the best of some attempts.
    begins : bool
        Whether it does not go on from a state.

    Attributes
    ----------
    n_iter : int
        Passes made.
    is_evaluated : bool
        Whether the perplexity is that of the model as it is now.
    """

    def __init__(
        self,
        context: RankContext,
        corpus: Corpus,
        params: TopicParams,
        *,
        tries: bool,
        begins: bool,
    ) -> None:
        super().__init__(context)
        self.n_iter = 0
        self.is_evaluated = False
        self._corpus = corpus
        self._params = params
        self._tries = tries
        self._rounds = make_rounds(context, corpus, params, begins=begins)
        self._evaluator = TopicEvaluator(context, corpus, params, self.log)
        self._next = 0  # round of the pass
        self._order: np.ndarray | None = None  # documents of the pass
        self._due = Due(bound=False, held_out=False)

    @property
    def is_complete(self) -> bool:
        return self.n_iter >= self._params.max_iter

    def begin(self) -> None:
        """Begin with the best of some attempts, where documents are few."""
        if not self._tries or self._params.components is not None or self.is_complete:
            return
        # Batches of all documents end in one of many optima, which one the first topics
        # decide. After a few passes the bound tells good ones from bad ones.
        documents = np.arange(self._corpus.n_documents)
        bounds, ends = [], []
        for attempt in range(_N_ATTEMPTS):
            rounds = make_rounds(self.context, self._corpus, self._params, attempt)
            for _ in range(_TRIAL_PASSES):
                rounds.run(documents, 0, self.log.computing)
            bounds.append(self._evaluator.bound(rounds))
            rounds.n_updates = self._params.n_updates
            ends.append(rounds)
        self._rounds = ends[int(np.argmax(bounds))]

    def load_state_dict(self, state: State) -> None:
        shared, rounds = state.shared, self._rounds
        if shared["excess"].shape != rounds.topics.excess.shape:
            raise CheckpointError(
                f"the topics to go on from have the shape {shared['excess'].shape}, "
                f"expected {rounds.topics.excess.shape} for these data"
            )
        rounds.topics.load_state_dict(shared)
        rounds.prior = shared["doc_topic_prior"]
        if shared["topic_word_prior"] is not None:
            rounds.set_topic_prior(shared["topic_word_prior"])
        rounds.n_updates = shared["n_updates"]
        # Those of more documents, before some were lost, say nothing of the others.
        if shared["n_documents"] == self._corpus.all_documents:
            self._evaluator.perplexity = shared["perplexity"]
            self._evaluator.held_out = shared["held_out"]
            self.is_evaluated = shared["is_evaluated"]
        self.n_iter = shared["n_iter"]
        # Other ranks may have other rounds in a pass, and have the documents in another
        # order: as many come as there are left, whichever these are.
        first, n_rounds = shared["first"], rounds.n_rounds
        before = shared.get("n_rounds", n_rounds)
        self._next = min(first * n_rounds // before, n_rounds - 1)

    def state_dict(self) -> Snapshot | None:
        rounds = self._rounds
        # Within a pass, butterfly mixing has no model that all ranks share.
        if self._next and self._params.mixing != "allreduce":
            return None
        shared = {
            **rounds.topics.state_dict(),
            "doc_topic_prior": rounds.prior,
            "topic_word_prior": rounds.topic_prior,
            "n_updates": rounds.n_updates,
            "n_iter": self.n_iter,
            "n_documents": self._corpus.all_documents,
            "first": self._next,
            "n_rounds": rounds.n_rounds,  # that this one is of
            "perplexity": self._evaluator.perplexity,
            "held_out": self._evaluator.held_out,
            "is_evaluated": self.is_evaluated,
        }
        return Snapshot(shared)

    def round(self) -> Work:
        rounds, number = self._rounds, self._next
        if self._order is None:
            self._order = self._corpus.shuffled(self.context, self.n_iter)
        documents = rounds.share_out(self._order, number)
        rounds.run(documents, number, self.log.computing)
        self._next = (number + 1) % rounds.n_rounds
        if not self._next:
            if self._params.learn_topic_prior:
                rounds.learn_topic_prior(self.log.computing)
            self.n_iter += 1
            self._order = None
        if not np.isfinite(rounds.topics.totals).all():
            raise ValueError(
                f"the model is not finite after round {self.n_rounds}; are the counts "
                "in X extremely large?"
            )
        return Work(len(documents), self._evaluator.unknown(self.n_iter))

    def measure(self) -> list[np.ndarray]:
        self._due = self._find_due()
        return [self._evaluator.measure(self._rounds, self._due)]

    def record(self, record: Record, sums: list[np.ndarray]) -> None:
        self._evaluator.complete(record, sums[0], self._due)
        self.is_evaluated = self._due.bound

    def is_done(self, record: Record) -> bool:
        return self._ends_interval and self._evaluator.is_settled

    def model(self) -> Model:
        rounds = self._rounds
        parameters = rounds.topics.parameters(slice(None))
        return {
            "components": np.ascontiguousarray(parameters.T),
            "doc_topic_prior": rounds.prior,
            "topic_word_prior": rounds.topic_prior,
            "n_updates": rounds.n_updates,
            "n_iter": self.n_iter,
            "bound": self._evaluator.perplexity,
        }

    def evaluate(self) -> None:
        """Evaluate a model that was not due at the end of a pass; a collective call."""
        due = Due(bound=True, held_out=False)
        sums = allreduce(self.context.group, self._evaluator.measure(self._rounds, due))
        self._evaluator.complete({"round": self.n_rounds}, sums, due)

    @property
    def _ends_interval(self) -> bool:
        """Whether the round ends so many passes that it is evaluated."""
        every = self._params.evaluate_every
        return not self._next and every > 0 and self.n_iter % every == 0

    def _find_due(self) -> Due:
        """What the round is evaluated on."""
        is_end, is_due = not self._next and self.is_complete, self._ends_interval
        holds_out = self._params.validation_fraction is not None
        # Held-out documents are fewer, and tell when to stop; the others can wait.
        with_bound = (is_due and not holds_out) or (is_end and self._params.with_bound)
        return Due(with_bound, holds_out and (is_due or is_end))
