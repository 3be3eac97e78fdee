"""Gibbs sampling of topics as a rotation program (section 4.2 of the paper).

Words are the parameters: the counts of a word travel with its block past the documents,
which stay with the topics of their tokens. No two ranks ever have the same word, so the
only counts that a rank does not know exactly are the totals of the topics: it knows its
own changes at once, those of others when the rotation ends, or a lap of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.data import Room, Shard, give_back_freed
from dask_ma.kernels import document_stages, polya_slopes, polya_sum
from dask_ma.schmp.runtime._ring import ParameterBlock
from dask_ma.schmp.runtime._rotation_program import RotationProgram, Turn
from dask_ma.schmp.runtime._rotation_schedule import Rotation
from dask_ma.schmp.topics._documents import Documents, TokenTopics, smallest
from dask_ma.schmp.topics._exact import ExactMoves
from dask_ma.schmp.topics._layout import by_document, chunks, tokens_of_blocks
from dask_ma.schmp.topics._metropolis import MetropolisMoves
from dask_ma.schmp.topics._moves import Moves, Priors, topic_dtype
from dask_ma.schmp.topics._needs import (
    MOST_BLOCKS,
    Needs,
    blocks_of_a_rank,
    bytes_per_token,
    kept_copies,
    others_needed,
)
from dask_ma.schmp.topics._params import GibbsParams
from dask_ma.schmp.topics._room import open_room, rows_in_memory
from dask_ma.schmp.topics._rows import filled, stacked

_LOWEST_PRIOR, _HIGHEST_PRIOR = 1e-5, 1e5


@dataclass
class LocalTopics:
    """What a rank keeps of its documents.

    Attributes
    ----------
    documents : Documents
        What is known of them.
    moves : Moves
        The sampler, with the tokens laid out for the blocks.
    room : Room
        Where these lie.
    totals : ndarray of int64 of shape (n_topics,)
        Tokens of each topic, with this rank's own changes.
    sizes : tuple of int
        Words of each block.
    known : ndarray
        The totals of all ranks that they were made from.
    rotation : int
        The rotation that has begun here.
    """

    documents: Documents
    moves: Moves
    room: Room
    totals: np.ndarray
    sizes: tuple[int, ...] = ()
    known: np.ndarray | None = None
    rotation: int = 0

    def tokens(self, blocks: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Words and topics of all tokens, in the order of the documents.

        Parameters
        ----------
        blocks : list of ndarray of int
            Words of each block.

        Returns
        -------
        words, topics : ndarray of int32 of shape (n_tokens,)
        """
        moves, n_tokens = self.moves, self.documents.n_tokens
        words = {
            number: blocks[number].astype(np.int32).take(moves.words(number))
            for number in moves.topics
        }
        columns = (words, moves.topics)
        of_words, topics = (
            by_document(moves.places, column, n_tokens, self.room) for column in columns
        )
        return of_words, topics.astype(np.int32)

    def gather(self, group: Group, blocks: list[np.ndarray]) -> TokenTopics | None:
        """Tokens of all ranks, on rank 0; a collective call."""
        return self.documents.gather(group, *self.tokens(blocks))


class GibbsTopics(RotationProgram):
    """Topics of the tokens of all documents, drawn in rotations.

    In rotation 0 tokens get their first topics, or in the first rotations, if
    documents come in by stages.

    Parameters
    ----------
    params : GibbsParams
        What is to be fitted.
    """

    def __init__(self, params: GibbsParams) -> None:
        self.params = params
        self.rotation = Rotation(MOST_BLOCKS, synchronize=params.synchronize)

    def prepare(self, shard: Shard, group: Group) -> LocalTopics:
        """Read the rows as tokens; a collective call."""
        p = self.params
        documents = Documents.of_shard(shard, group, fractions=p.fractions)
        shape = documents.n_total, documents.n_all_tokens
        needs = self._needs(documents, shard, group)
        room = open_room(needs, p.room, group, shape, p.sampler)
        try:
            n_stages = p.n_stages(*shape)
            documents.sort(document_stages(documents.keys, n_stages))
            documents.read(shard, room, fractions=p.fractions)
            moves = self._lay_out(documents, room, n_stages, group)
        except BaseException:
            room.close()
            raise
        totals = np.zeros(p.n_components, dtype=np.int64)
        return LocalTopics(documents, moves, room, totals)

    def _lay_out(
        self, documents: Documents, room: Room, n_stages: int, group: Group
    ) -> Moves:
        """The tokens as the sampler wants them."""
        p, begins = self.params, documents.first_rank(group, n_stages) == group.rank
        starts = n_stages, group.size, begins
        if p.sampler == "exact":
            n_blocks = blocks_of_a_rank(p, documents.n_all_tokens, group.size)
            n_blocks *= group.size
            return ExactMoves(documents, p.n_components, room, *starts, n_blocks)
        return MetropolisMoves(documents, p.n_components, room, p.n_proposals, *starts)

    def laps(self, local: LocalTopics, rotation: int) -> int:
        """Several with the first rotations, where documents come in by stages."""
        return local.moves.laps(rotation)

    def weights(self, local: LocalTopics) -> np.ndarray:
        """Tokens of each word."""
        n_features = self.params.n_features
        if local.documents.rows is not None:
            return local.documents.rows.count(n_features)
        weights = np.zeros(n_features, dtype=np.int64)
        # As each is made an int64.
        for _, words in chunks(local.documents.words, n_features):
            weights += np.bincount(words, minlength=n_features)
        return weights

    def blocks(self, work: np.ndarray, n_ranks: int) -> list[list[np.ndarray]]:
        """Blocks of about the same number of tokens; few where there are few tokens."""
        n_blocks = blocks_of_a_rank(self.params, int(work.sum()), n_ranks)
        return Rotation(n_blocks).blocks(work, n_ranks)

    def arrange(
        self, local: LocalTopics, blocks: list[np.ndarray], group: Group
    ) -> LocalTopics:
        """Sort the tokens by the blocks of their words."""
        n_features = self.params.n_features
        tokens = tokens_of_blocks(local.documents, blocks, n_features, local.room)
        for number, block in enumerate(tokens):
            local.moves.add_block(number, block)
            del block  # before there is the next
        local.sizes = tuple(map(len, blocks))
        local.documents.forget_words()  # the blocks have them
        give_back_freed()  # what tokens took while they were laid out
        return local

    def initial_block(
        self, parameters: np.ndarray, local: LocalTopics, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """No counts yet."""
        return {"counts": local.moves.empty_counts(len(parameters))}

    def initial_shared(self, local: LocalTopics, group: Group) -> dict[str, np.ndarray]:
        """No totals yet, the priors, and room for what priors are learned from."""
        p = self.params
        prior = p.topic_word_prior
        return {
            "totals": np.zeros(p.n_components, dtype=np.int64),
            "rotation": np.array(0),
            "changed": np.array(0),  # tokens in the last rotation, and in this one
            "so_far": np.array(0),
            "doc_topic_prior": p.doc_topic_prior,
            "topic_word_prior": np.array(0.0 if prior.ndim else float(prior)),
            "slopes": np.zeros(p.n_components + 2),
            "samples": np.array(0),
            "n_documents": np.array(local.documents.n_total),
        }

    def lose_rows(
        self,
        home: tuple[ParameterBlock, ...],
        local: LocalTopics,
        shared: dict[str, Any],
        group: Group,
    ) -> dict[str, Any]:
        """Count the tokens that are left, and take no samples of others; collective."""
        totals = np.zeros(self.params.n_components, dtype=np.int64)
        own = {block.number: block for block in home}
        for number, n_words in enumerate(local.sizes):
            parts = []
            for part in local.moves.counted(number, n_words):
                part = allreduce(group, part)
                totals += part.sum(axis=0)
                if number in own:
                    parts.append(local.moves.as_counts(part))
            if number in own:
                own[number].values.clear()
                own[number].values["counts"] = stacked(parts)
        known = {"totals": totals, "samples": np.array(0)}
        known["n_documents"] = np.array(local.documents.n_total)
        return {**shared, **known}

    def update(
        self,
        block: ParameterBlock,
        local: LocalTopics,
        shared: dict[str, Any],
        turn: Turn,
    ) -> dict[str, Any]:
        """Draw the topics of the tokens here that are words of a block."""
        # Counts that were saved, and are gone on from, come as a dense table.
        counts = local.moves.as_counts(block.values["counts"])
        block.values["counts"] = counts
        if turn.rotation == 0 and not local.moves.n_stages:
            weights = self._start_weights(block.parameters)
            return {
                "totals": local.moves.place(block.number, counts, weights, turn.rng)
            }
        priors = self._priors(block.parameters, shared)
        if local.known is not shared["totals"]:
            local.known = shared["totals"]
            local.totals = shared["totals"] + local.moves.unreported
        if local.rotation != turn.rotation:
            local.rotation = turn.rotation
            local.moves.begin_rotation(priors, local.totals, turn.rng)
        change, n_changed = local.moves.visit(
            block.number, counts, priors, local.totals, turn.rng
        )
        return {"totals": change, "so_far": n_changed}

    def end_rotation(
        self, local: LocalTopics, shared: dict[str, Any], turn: Turn
    ) -> dict[str, Any]:
        """Add to the samples; sums from which priors are learned."""
        p = self.params
        if p.samples(turn.rotation):
            for block in turn.home:
                counts = block.values["counts"].astype(np.int64)
                block.values["sums"] = block.values.get("sums", 0 * counts) + counts
        found: dict[str, Any] = {"rotation": 1}
        if p.learns(turn.rotation):
            found["slopes"] = self._slopes(local, shared, turn.home)
        return found

    def aggregate(
        self, change: dict[str, np.ndarray], shared: dict[str, Any]
    ) -> dict[str, Any]:
        """The totals of all ranks, and with the end of a rotation other priors."""
        p, rotation = self.params, int(shared["rotation"])
        totals = shared["totals"] + change["totals"]
        known = {
            **shared,
            "totals": totals,
            "so_far": shared["so_far"] + change["so_far"],
        }
        if change["rotation"]:
            known["changed"], known["so_far"] = known["so_far"], np.array(0)
            known["rotation"] = np.array(rotation + 1)
            known["samples"] = shared["samples"] + p.samples(rotation)
            if p.learns(rotation):
                known |= self._learn(change["slopes"], totals, shared)
        return known

    def measure(
        self,
        home: tuple[ParameterBlock, ...],
        local: LocalTopics,
        shared: dict[str, Any],
    ) -> np.ndarray:
        """This rank's part of the log likelihood, where that is due."""
        p = self.params
        if not p.is_evaluated(int(shared["rotation"]) - 1):
            return np.array([np.nan])
        alpha, value = shared["doc_topic_prior"], 0.0
        for counts in local.moves.document_counts():
            value += polya_sum(counts, alpha)
            value -= polya_sum(counts.sum(axis=1), alpha.sum())
        for block in home:
            prior = self._priors(block.parameters, shared).words
            value += polya_sum(*filled(block.values["counts"], prior))
        return np.array([value])

    def report(self, sums: np.ndarray, shared: dict[str, Any]) -> dict[str, float]:
        """Log likelihood and changes per token."""
        totals = shared["totals"]
        n_tokens = max(1, int(totals.sum()))  # of the documents that are there
        of_words = self.params.prior_sums(float(shared["topic_word_prior"]))
        value = (float(sums[0]) - polya_sum(totals, of_words)) / n_tokens
        return {
            "log_likelihood": value,
            "objective": -value,
            "changed": float(shared["changed"]) / n_tokens,
        }

    def _needs(self, documents: Documents, shard: Shard, group: Group) -> Needs:
        """What this rank is going to take."""
        p, n_tokens = self.params, documents.n_tokens
        dtypes = smallest(len(documents)), smallest(p.n_features)
        document, word = (dtype.itemsize for dtype in dtypes)
        sizes = document, word, documents.offset_dtype.itemsize
        topic_size = topic_dtype(p.n_components).itemsize
        laid_out, kept = bytes_per_token(p.sampler, topic_size, p.n_proposals, sizes)
        shape = len(documents), n_tokens
        others = others_needed(p, *shape, documents.n_all_tokens, group.size)
        states = n_tokens * kept * kept_copies(group)
        return Needs(n_tokens * laid_out, states, rows_in_memory(shard), others)

    def _start_weights(self, parameters: np.ndarray) -> np.ndarray | None:
        """Weights by which first topics are drawn."""
        p = self.params
        if p.start is not None:
            return p.start[parameters]
        if p.topic_word_prior.ndim == 2:
            return p.topic_word_prior[parameters]
        return None

    def _priors(self, parameters: np.ndarray, shared: dict[str, Any]) -> Priors:
        """Priors as a block sees them."""
        scalar = float(shared["topic_word_prior"])
        return Priors(
            shared["doc_topic_prior"],
            self.params.word_prior(parameters, scalar),
            self.params.prior_sums(scalar),
        )

    def _slopes(
        self,
        local: LocalTopics,
        shared: dict[str, Any],
        home: tuple[ParameterBlock, ...],
    ) -> np.ndarray:
        """Slopes of the likelihood: by topics, of the documents, and of the words."""
        p, alpha = self.params, shared["doc_topic_prior"]
        slopes = np.zeros(p.n_components + 2)
        if p.learn_doc_prior:
            for counts in local.moves.document_counts():
                slopes[:-2] += polya_slopes(counts, alpha)
                lengths = counts.sum(axis=1, keepdims=True)
                slopes[-2] += polya_slopes(lengths, alpha.sum())[0]
        if p.learn_word_prior:
            for block in home:
                prior = self._priors(block.parameters, shared).words
                counts, beta = filled(block.values["counts"], prior)
                slopes[-1] += polya_slopes(np.atleast_2d(counts), beta).sum()
        return slopes

    def _learn(
        self, slopes: np.ndarray, totals: np.ndarray, shared: dict[str, Any]
    ) -> dict[str, np.ndarray]:
        """A step of Minka's fixed-point iteration for each prior."""
        p, learned = self.params, {}
        if p.learn_doc_prior:
            ratio = slopes[:-2] / slopes[-2]
            learned["doc_topic_prior"] = np.clip(
                shared["doc_topic_prior"] * ratio, _LOWEST_PRIOR, _HIGHEST_PRIOR
            )
        if p.learn_word_prior:
            beta = shared["topic_word_prior"]
            total = beta * p.n_features
            below = p.n_features * polya_slopes(totals[:, np.newaxis], total)[0]
            learned["topic_word_prior"] = np.clip(
                np.asarray(beta * slopes[-1] / below), _LOWEST_PRIOR, _HIGHEST_PRIOR
            )
        return learned
