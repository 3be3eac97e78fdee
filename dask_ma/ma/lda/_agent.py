"""Fitting a topic model as each rank carries it out (Algorithms 5 and 6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dask_ma.engine import RankContext, State
from dask_ma.exceptions import CheckpointError
from dask_ma.ma._paradigm import is_gradient
from dask_ma.ma.lda._evaluation import TopicEvaluator
from dask_ma.ma.lda._params import TopicParams, TopicResult
from dask_ma.ma.lda._rounds import Rounds, SendGradient, SendModel
from dask_ma.ma.lda._sizes import is_few
from dask_ma.ma.lda._topics import Topics
from dask_ma.topics._corpus import Corpus, agree_on_corpus

_N_ATTEMPTS, _TRIAL_PASSES = 4, 5  # to begin with where documents are few
_SHAPE = 100.0  # of the gamma distribution that first topics are drawn from, of mean 1


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
    fit = TopicFit(context, corpus, begin(context, corpus, params), params)
    if state is not None:
        fit.load_state_dict(state)
    elif tries and params.components is None and params.max_iter > 0:
        fit.choose_start()
    while fit.n_iter < params.max_iter and not fit.stop:
        fit.run_pass()
    if params.with_bound and not fit.is_evaluated:
        fit.evaluate()
    return TopicResult(fit.fitted(), context.history, context.timeline())


def begin(
    context: RankContext, corpus: Corpus, params: TopicParams, attempt: int = 0
) -> Rounds:
    """Where a fit stands before its first round."""
    excess = first_excess(context, corpus, params, attempt)
    topics = Topics(excess, params.topic_word_prior)
    sends_sums = is_gradient(params.paradigm) or params.learning_method == "batch"
    kind = SendGradient if sends_sums else SendModel
    return kind(context.group, corpus, topics, params)


def first_excess(
    context: RankContext, corpus: Corpus, params: TopicParams, attempt: int = 0
) -> np.ndarray:
    """Parameters of the topics to begin with, without the prior.

    Drawn ones are the same on every rank, which draws them for itself. They have the
    mean 1, plus what the topic's prior of the word is above the least of all topics: a
    topic that begins elsewhere is hardly led to the words of its prior any more.
    """
    prior = params.topic_word_prior.astype(params.dtype, copy=False)
    if params.components is not None:
        return np.asarray(params.components.T.astype(params.dtype) - prior, order="C")
    key = (attempt, 0, 0, 0) if attempt else ()  # no rank, pass or split has such a one
    seed = np.random.SeedSequence(context.seed.entropy, spawn_key=key)
    rng = np.random.default_rng(seed)
    shape = corpus.n_features, params.n_components
    excess = rng.standard_gamma(_SHAPE, shape, dtype=params.dtype)
    excess /= params.dtype.type(_SHAPE)
    excess -= prior.min(axis=1, keepdims=True)
    return np.asarray(excess)


class TopicFit:
    """Where a fit stands, and its way through a pass.

    Parameters
    ----------
    context : RankContext
        This rank.
    corpus : Corpus
        The documents.
    rounds : Rounds
        What a round does.
    params : TopicParams
        Parameters of the fit.

    Attributes
    ----------
    evaluator : TopicEvaluator
        What evaluates the rounds.
    n_iter : int
        Passes made.
    stop : bool
        Whether the fit has come to its end.
    is_evaluated : bool
        Whether the perplexity is that of the model as it is now.
    """

    def __init__(
        self,
        context: RankContext,
        corpus: Corpus,
        rounds: Rounds,
        params: TopicParams,
    ) -> None:
        self.evaluator = TopicEvaluator(context, corpus, params)
        self.n_iter = 0
        self.stop = False
        self.is_evaluated = False
        self._n_rounds = 0
        self._first = 0  # round of the pass to go on with
        self._context = context
        self._corpus = corpus
        self._rounds = rounds
        self._params = params

    def choose_start(self) -> None:
        """Begin with the best of some attempts; a collective call.

        Batches of all documents end in one of many optima, which one the first topics
        decide. After a few passes the bound tells good ones from bad ones.
        """
        computing = self.evaluator.log.computing
        documents = np.arange(self._corpus.n_documents)
        bounds, ends = [], []
        for attempt in range(_N_ATTEMPTS):
            rounds = begin(self._context, self._corpus, self._params, attempt)
            for _ in range(_TRIAL_PASSES):
                rounds.run(documents, 0, computing)
            bounds.append(self.evaluator.bound(rounds))
            rounds.n_updates = self._params.n_updates
            ends.append(rounds)
        self._rounds = ends[int(np.argmax(bounds))]

    def run_pass(self) -> None:
        """Make the rounds of a pass; a collective call."""
        order = self._corpus.shuffled(self._context, self.n_iter)
        for i in range(self._first, self._rounds.n_rounds):
            documents = self._rounds.share_out(order, i)
            self._rounds.run(documents, i, self.evaluator.log.computing)
            self._n_rounds += 1
            is_last = i == self._rounds.n_rounds - 1
            if is_last and self._params.learn_topic_prior:
                self._rounds.learn_topic_prior(self.evaluator.log.computing)
            self.n_iter += is_last
            self._finish_round(len(documents), is_last=is_last)
            self._first = 0 if is_last else i + 1
            # In between, butterfly mixing has no model that all ranks share.
            if is_last or self._params.mixing == "allreduce":
                self._keep()
                if self.stop:
                    break

    def _finish_round(self, n_rows: int, *, is_last: bool) -> None:
        """Note a round; evaluate its model, and tell of it, where that is due."""
        if not np.isfinite(self._rounds.topics.totals).all():
            raise ValueError(
                f"the model is not finite after round {self._n_rounds}; are the counts "
                "in X extremely large?"
            )
        self.evaluator.note(self._n_rounds, n_rows, self.n_iter)
        self.is_evaluated = False
        is_end = is_last and self.n_iter == self._params.max_iter
        every = self._params.evaluate_every
        is_due = is_last and every > 0 and self.n_iter % every == 0
        holds_out = self._params.validation_fraction is not None
        # Held-out documents are fewer, and tell when to stop; the others can wait.
        with_bound = (is_due and not holds_out) or (is_end and self._params.with_bound)
        records = self.evaluator.finish_round(
            self._rounds,
            with_bound=with_bound,
            with_held_out=holds_out and (is_due or is_end),
        )
        model = self.fitted() if self._context.is_followed else {}
        for record in records:
            self.stop |= self._context.record(record, model)
        self.is_evaluated = with_bound
        self.stop |= is_due and self.evaluator.is_settled

    def evaluate(self) -> None:
        """Evaluate a model that was not due at the end of a pass; a collective call."""
        self.evaluator.log.note(self._n_rounds, 0)
        self.evaluator.finish_round(self._rounds, with_bound=True)

    def fitted(self) -> dict[str, Any]:
        """The model as it is now."""
        parameters = self._rounds.topics.parameters(slice(None))
        return {
            "components": np.ascontiguousarray(parameters.T),
            "doc_topic_prior": self._rounds.prior,
            "topic_word_prior": self._rounds.topic_prior,
            "n_updates": self._rounds.n_updates,
            "n_iter": self.n_iter,
            "bound": self.evaluator.perplexity,
        }

    def _keep(self) -> None:
        """Keep all of it in case the fit has to go on; a collective call."""
        shared = {
            "excess": self._rounds.topics.excess,
            "doc_topic_prior": self._rounds.prior,
            "topic_word_prior": self._rounds.topic_prior,
            "n_updates": self._rounds.n_updates,
            "n_iter": self.n_iter,
            "first": self._first,
            "perplexity": self.evaluator.perplexity,
            "held_out": self.evaluator.held_out,
            "is_evaluated": self.is_evaluated,
            "stop": bool(self.stop),
        }
        self._context.save_state(
            self._n_rounds,
            shared,
            done=self.stop or self.n_iter == self._params.max_iter,
        )

    def load_state_dict(self, state: State) -> None:
        """Take over what was kept.

        Parameters
        ----------
        state : State
            What was kept.

        Raises
        ------
        CheckpointError
            If it belongs to another vocabulary.
        """
        shared, rounds = state.shared, self._rounds
        if shared["excess"].shape != rounds.topics.excess.shape:
            raise CheckpointError(
                f"the topics to go on from have the shape {shared['excess'].shape}, "
                f"expected {rounds.topics.excess.shape} for these data"
            )
        rounds.topics.reset(shared["excess"])
        rounds.prior = shared["doc_topic_prior"]
        if shared["topic_word_prior"] is not None:
            rounds.set_topic_prior(shared["topic_word_prior"])
        rounds.n_updates = shared["n_updates"]
        self.evaluator.perplexity = shared["perplexity"]
        self.evaluator.held_out = shared["held_out"]
        self.is_evaluated = shared["is_evaluated"]
        self._n_rounds, self.n_iter = state.round, shared["n_iter"]
        # Other ranks may have other rounds in a pass.
        self._first = min(shared["first"], rounds.n_rounds - 1)
        self.stop = shared["stop"]
