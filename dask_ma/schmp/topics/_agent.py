"""What a rank does in a fit of a topic model."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dask_ma.engine import Model, RankContext, Snapshot, State, fit_rounds
from dask_ma.schmp.runtime._rotation import RotationEngine
from dask_ma.schmp.runtime._run import Rounds, RunParams
from dask_ma.schmp.topics._params import GibbsParams
from dask_ma.schmp.topics._program import GibbsTopics


class GibbsResult(NamedTuple):
    """What rank 0 returns to the client.

    Attributes
    ----------
    fitted : dict
        `components` of shape (n_components, n_features); `doc_topic_prior`;
        `topic_word_prior`, a number if it is learned, else None; `n_documents`;
        `n_iter`, rotations; `tokens`, a TokenTopics, if asked for.
    history : list of dict
        One record per rotation.
    timeline : ndarray or None
        What all ranks have done when, on rank 0.
    """

    fitted: dict[str, Any]
    history: list[dict[str, Any]]
    timeline: np.ndarray | None = None


class TopicRounds(Rounds):
    """Rotations, of which also the topics of each rank's tokens are kept."""

    engine: RotationEngine

    def __init__(
        self, context: RankContext, arguments: Any, params: GibbsParams
    ) -> None:
        run = RunParams(
            program=b"",
            n_iterations=params.n_rotations,
            pipeline_depth="auto",
            n_schedulers=1,
            report_every=1,
            has_targets=False,
        )
        super().__init__(context, GibbsTopics(params), arguments, run)

    def model(self) -> Model:
        """The model as the estimator sees it, on rank 0; a collective call."""
        found = self.engine.collect()
        return {} if found is None else _to_model(found, self._program.params)

    def state_dict(self) -> Snapshot:
        """Blocks, and the tokens of this rank."""
        snapshot = super().state_dict()
        own = {**(snapshot.own or {}), **self.engine.local.state_dict()}
        return snapshot._replace(own=own)

    def load_state_dict(self, state: State) -> None:
        """Take both over; a collective call."""
        super().load_state_dict(state)
        self.engine.local.load(self.context.group, state)


def train(context: RankContext, arguments: Any, params: GibbsParams) -> GibbsResult:
    """Agent: as many rotations as were asked for.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Rows of counts, as the data layer lays them out.
    params : GibbsParams
        Parameters of the fit.

    Returns
    -------
    result : GibbsResult
        Only that of rank 0 has the model.
    """
    state = context.restore_state(whole=True)
    rounds = TopicRounds(context, arguments, params)
    fit_rounds(context, rounds, state)
    fitted = rounds.model()
    if params.keep_tokens:
        fitted["tokens"] = rounds.engine.local.documents.gather(context.group)
    return GibbsResult(fitted, context.history, context.timeline())


def _to_model(found: dict[str, Any], params: GibbsParams) -> Model:
    """The topics' parameters, counts plus prior, and what was learned besides."""
    scalar = float(found["topic_word_prior"])
    counts, n_samples = found["counts"], int(found["samples"])
    components = counts.astype(np.float32)
    if n_samples:
        components = (found["sums"] / n_samples).astype(np.float32)
    prior = params.word_prior(np.arange(params.n_features), scalar)
    components += params.as_table(prior)
    return {
        "components": np.ascontiguousarray(components.T),
        "doc_topic_prior": found["doc_topic_prior"],
        "topic_word_prior": scalar if params.learn_word_prior else None,
        "n_documents": int(found["n_documents"]),
        "n_iter": int(found["rotation"]) - 1,
    }
