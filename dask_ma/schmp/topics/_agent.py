"""The agent of a topic model by Gibbs sampling."""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.engine import (
    Model,
    RankContext,
    Record,
    Snapshot,
    State,
    Work,
    fit_rounds,
)
from dask_ma.schmp.runtime._block_states import ModelPart, join_parts
from dask_ma.schmp.runtime._rotation import RotationEngine
from dask_ma.schmp.runtime._run import Rounds, RunParams
from dask_ma.schmp.topics._documents import COUNT_DTYPES
from dask_ma.schmp.topics._params import GibbsParams
from dask_ma.schmp.topics._program import GibbsTopics

# States in memory are copies of all tokens' topics: they are made again when so many
# times as long has gone by as the last one took.
_PERIOD = 30.0
_TURNED = 128  # rows of a table that are turned together: four times as fast as all


class GibbsResult(NamedTuple):
    """What a rank returns to the client, and what the client makes of that.

    Attributes
    ----------
    fitted : dict
        Of a rank: `part`, what it has of the model, and on rank 0 `tokens`. Of all:
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
            row_dtypes=COUNT_DTYPES,
        )
        super().__init__(context, GibbsTopics(params), arguments, run)
        self._since, self._cost = perf_counter(), 0.0
        self._is_keeping, self._is_due = False, True

    def round(self) -> Work:
        """A rotation; the state after the last one has been kept by now."""
        if self._is_keeping:
            self._cost = perf_counter() - self._since
            self._is_keeping = False
        return super().round()

    def measure(self) -> list[np.ndarray]:
        """Besides, the seconds since the last state, and those that it took."""
        clock = np.array([perf_counter() - self._since, self._cost])
        return [*super().measure(), clock]

    def record(self, record: Record, sums: list[np.ndarray]) -> None:
        """Besides, what all ranks make of their clocks."""
        super().record(record, sums[:-1])
        passed, cost = sums[-1]
        self._is_due = bool(passed >= _PERIOD * cost)

    def model(self) -> Model:
        """The model as the estimator sees it, on rank 0; a collective call."""
        found = self.engine.collect()
        return {} if found is None else _to_model(found, self._program.params)

    def state_dict(self) -> Snapshot | None:
        """Blocks, and the tokens of this rank; None where they are not kept.

        That is until all tokens have topics, soon after the last state, and at the end,
        from which nothing goes on, unless somebody asks for states.
        """
        local, context = self.engine.local, self.context
        is_asked_for = context.is_checkpointed or context.is_followed
        is_due = is_asked_for or (self._is_due and not self.is_complete)
        if self.engine.iteration <= local.moves.n_stages or not is_due:
            return None
        self._since, self._is_keeping = perf_counter(), True
        if local.room.on_disk and not self.context.is_checkpointed:
            # Copies, and those of a neighbour, would need the memory that is short.
            return Snapshot(self.shared_state(), None, in_memory=False)
        snapshot = super().state_dict()
        if snapshot is None:
            return None
        own = {**(snapshot.own or {}), **local.moves.state_dict()}
        return snapshot._replace(own=own, in_memory=not local.room.on_disk)

    def _take_own(self, state: State) -> None:
        """Take over the topics of the tokens; a collective call."""
        self.engine.local.moves.load(self.context.group, state)

    def close(self) -> None:
        """Look no more after files of tokens."""
        if hasattr(self, "engine"):
            self.engine.local.room.close()


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
        What this rank has.
    """
    state = context.restore_state(whole=True)
    rounds = TopicRounds(context, arguments, params)
    try:
        fit_rounds(context, rounds, state)
        engine = rounds.engine
        fitted: dict[str, Any] = {"part": engine.part()}
        if params.keep_tokens:
            fitted["tokens"] = engine.local.gather(context.group, engine.parameters)
    finally:
        rounds.close()
    return GibbsResult(fitted, context.history, context.timeline())


def join_results(results: list[GibbsResult], params: GibbsParams) -> GibbsResult:
    """The result of the whole model, which no rank has.

    Parameters
    ----------
    results : list of GibbsResult
        Of all ranks.
    params : GibbsParams
        Parameters of the fit.
    """
    parts = [each.fitted.pop("part") for each in results]
    values = [one for part in parts for one in part.values]
    if all(sparse.issparse(one["counts"]) for one in values):
        found = parts[0].shared
        components = _of_sparse(parts, _n_samples(found), params)
        model = _with_priors(components, found, params)
    else:
        model = _to_model(join_parts(parts), params)
    return results[0]._replace(fitted={**results[0].fitted, **model})


def _to_model(found: dict[str, Any], params: GibbsParams) -> Model:
    """The topics' parameters, counts plus prior, and what was learned besides."""
    n_samples = _n_samples(found)
    components = found["counts"].astype(np.float32)
    if n_samples:
        components = (found["sums"] / n_samples).astype(np.float32)
    components += params.as_table(_prior(found, params))
    return _with_priors(_turned(components), found, params)


def _of_sparse(
    parts: list[ModelPart], n_samples: int, params: GibbsParams
) -> np.ndarray:
    """Counts, or means of samples, plus prior, of sparse blocks; these are lost."""
    n_topics, n_words = params.n_components, params.n_features
    prior = params.as_table(_prior(parts[0].shared, params))
    # The only array of this size that there ever is.
    components = np.empty((n_topics, n_words), dtype=np.float32)
    components[...] = prior.T
    flat = components.reshape(-1)
    for part in parts:
        for words in part.parameters:
            values: dict[str, Any] = part.values.pop(0)
            table = values["sums" if n_samples else "counts"]
            sizes = table.data / n_samples if n_samples else table.data
            places = np.repeat(words, np.diff(table.indptr))
            places += table.indices * np.int64(n_words)
            flat[places] += sizes.astype(np.float32)
    return components


def _with_priors(
    components: np.ndarray, found: dict[str, Any], params: GibbsParams
) -> Model:
    """The topics' parameters, and what was learned besides."""
    scalar = float(found["topic_word_prior"])
    return {
        "components": components,
        "doc_topic_prior": found["doc_topic_prior"],
        "topic_word_prior": scalar if params.learn_word_prior else None,
        "n_documents": int(found["n_documents"]),
        "n_iter": int(found["rotation"]) - 1,
    }


def _prior(found: dict[str, Any], params: GibbsParams) -> np.ndarray:
    """Prior of all words; a table of it is no copy."""
    if params.topic_word_prior.ndim == 2:
        return np.asarray(params.topic_word_prior, dtype=np.float32)
    scalar = float(found["topic_word_prior"])
    return params.word_prior(np.arange(params.n_features), scalar)


def _n_samples(found: dict[str, Any]) -> int:
    """Samples of which there is a sum."""
    return int(found["samples"])


def _turned(table: np.ndarray) -> np.ndarray:
    """A copy by columns, of which the cache has a part at a time."""
    turned = np.empty(table.shape[::-1], dtype=table.dtype)
    for first in range(0, len(table), _TURNED):
        part = slice(first, first + _TURNED)
        turned[:, part] = table[part].T
    return turned
