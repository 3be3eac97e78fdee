"""The documents of a rank as tokens, each with its topic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather, allreduce, gather
from dask_ma.data import Block, Shard, hand_back
from dask_ma.engine import State

_COUNTS = 2**15  # elements of documents x topics at a time
_MOST_TOKENS = np.iinfo(np.int32).max  # of a rank
_KEYS, _STARTS, _TOPICS = "tokens/keys", "tokens/starts", "tokens/topics"


class TokenTopics(NamedTuple):
    """Tokens of all documents, by document and word.

    Attributes
    ----------
    documents, words, topics : ndarray of int32 of shape (n_tokens,)
        Row, column and topic of each; a count of 2 is two tokens.
    """

    documents: np.ndarray
    words: np.ndarray
    topics: np.ndarray


@dataclass
class Documents:
    """Documents of a rank.

    Attributes
    ----------
    keys : ndarray of int64 of shape (n_documents,)
        Which rows of the input they are: increasing in the order of the input.
    starts : ndarray of int64 of shape (n_documents + 1,)
        Where the tokens of each begin.
    words : ndarray of int32 of shape (n_tokens,)
        Word of each token, in increasing order within a document.
    topics : ndarray of int32 of shape (n_tokens,)
        Topic of each; what it is before it has one does not matter.
    n_total, n_all_tokens : int
        Documents, and tokens, of all ranks.
    """

    keys: np.ndarray
    starts: np.ndarray
    words: np.ndarray
    topics: np.ndarray
    n_total: int = 0
    n_all_tokens: int = 0

    @classmethod
    def of_shard(cls, shard: Shard, group: Group, *, fractions: str) -> Documents:
        """Read the rows of a rank; a collective call.

        Parameters
        ----------
        shard : Shard
            Rows of counts.
        group : Group
            This rank.
        fractions : {"raise", "round"}
            What becomes of counts that are no whole numbers.

        Returns
        -------
        documents : Documents

        Raises
        ------
        ValueError
            On all ranks, if counts of some rank are negative, or not whole and not to
            be rounded, or too many, or if there is no word at all.
        """
        found, error = None, None
        try:
            found = _read(shard, fractions)
        except ValueError as raised:
            error = raised.with_traceback(None)  # which would keep the shard alive
        n_own = 0 if found is None else len(found.words)
        known: list[Any] = allgather(group, (error, shard.n_rows, n_own))
        for other, _, _ in known:
            if other is not None:
                raise other
        n_total = sum(n_rows for _, n_rows, _ in known)
        if not n_total:
            raise ValueError("X has no documents: at least one row is needed")
        n_all_tokens = sum(n_tokens for _, _, n_tokens in known)
        if not n_all_tokens or found is None:
            raise ValueError(
                "X has no words: all counts are 0; one document needs a word"
            )
        found.n_total, found.n_all_tokens = n_total, n_all_tokens
        return found

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each document."""
        return np.diff(self.starts)

    def owners(self) -> np.ndarray:
        """Document of each token, int32 of shape (n_tokens,)."""
        return np.repeat(np.arange(len(self), dtype=np.int32), self.lengths)

    def counts(self, n_topics: int) -> Iterator[np.ndarray]:
        """Tokens of each topic, some documents at a time.

        Yields
        ------
        counts : ndarray of int64 of shape (n, n_topics)
        """
        step = max(1, _COUNTS // n_topics)
        for first in range(0, len(self), step):
            last = min(first + step, len(self))
            part = slice(self.starts[first], self.starts[last])
            rows = np.repeat(np.arange(last - first), self.lengths[first:last])
            cells = rows * n_topics + self.topics[part]
            counts = np.bincount(cells, minlength=(last - first) * n_topics)
            yield counts.reshape(-1, n_topics)

    def state_dict(self, others: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What is to be kept of the topics, and of others: copies of what changes."""
        changing = {_TOPICS: self.topics, **others}
        copies = {name: array.copy() for name, array in changing.items()}
        return {_KEYS: self.keys, _STARTS: self.starts, **copies}

    def load(self, group: Group, state: State, others: dict[str, np.ndarray]) -> None:
        """Take the topics over from what ranks have kept; a collective call.

        Parameters
        ----------
        group : Group
            This rank.
        state : State
            Of ranks that had the same documents, perhaps shared out otherwise.
        others : dict of str to ndarray of shape (..., n_tokens)
            Other arrays that were kept under these names; changed in place.

        Raises
        ------
        ValueError
            If documents are missing.
        """
        into = {_TOPICS: self.topics, **others}
        left = np.ones(len(self), dtype=bool)
        for piece in self._pieces(group, state):
            own, had = np.intersect1d(self.keys, piece[_KEYS], return_indices=True)[1:]
            starts = np.asarray(piece[_STARTS])
            lengths = self.lengths[own]
            if not np.array_equal(lengths, np.diff(starts)[had]):
                raise ValueError(
                    "the state that was saved is that of documents of other lengths"
                )
            left[own] = False
            here, there = (
                _ranges(begin, lengths) for begin in (self.starts[own], starts[had])
            )
            for name, array in into.items():
                array[..., here] = piece[name][..., there]
        if left.any():
            raise ValueError(
                f"the state that was saved lacks {left.sum()} of {len(self)} documents"
            )

    def gather(self, group: Group) -> TokenTopics | None:
        """Topics of all tokens, on rank 0; a collective call."""
        own = self.keys, self.lengths, self.words, self.topics
        parts = gather(group, own)
        if parts is None:
            return None
        keys, lengths, words, topics = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        order = np.argsort(keys, kind="stable")
        starts = np.cumsum(lengths) - lengths
        places = _ranges(starts[order], lengths[order])
        rows = np.repeat(np.arange(len(keys), dtype=np.int32), lengths[order])
        return TokenTopics(rows, words[places], topics[places])

    def _pieces(self, group: Group, state: State) -> Any:
        """What this rank had, if that is enough for every rank, else what all had."""
        own = state.own
        enough = own is not None and np.isin(self.keys, own[_KEYS]).all()
        if allreduce(group, np.array(enough, dtype=np.int8), "min"):
            return [own]
        return state.pieces(group)


def _read(shard: Shard, fractions: str) -> Documents:
    """Rows of counts as tokens."""
    keys, lengths, words = [], [], []
    for block in shard.blocks:
        X = _counts(block, fractions)
        n_rows = X.shape[0]
        # Where the first row is unknown, blocks are whole, and have their numbers.
        first = block.index << 32 if block.start is None else block.start
        keys.append(first + np.arange(n_rows, dtype=np.int64))
        counts = X.data.astype(np.int64)
        totals = np.concatenate([[0], np.cumsum(counts)])[X.indptr]
        lengths.append(np.diff(totals))
        words.append(np.repeat(X.indices.astype(np.int32), counts))
        hand_back(block.X)
    sizes = np.concatenate([np.empty(0, np.int64), *lengths])
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    found = np.concatenate([np.empty(0, np.int32), *words])
    places = np.concatenate([np.empty(0, np.int64), *keys])
    order = np.argsort(places, kind="stable")
    if not np.array_equal(order, np.arange(len(order))):
        found = found[_ranges(starts[:-1][order], sizes[order])]
        places, sizes = places[order], sizes[order]
        starts = np.concatenate([[0], np.cumsum(sizes)])
    return Documents(places, starts, found, np.zeros(len(found), dtype=np.int32))


def _counts(block: Block, fractions: str) -> Any:
    """Rows as CSR of whole numbers above 0, the words of each in increasing order."""
    X = sparse.csr_array(block.X, copy=fractions == "round")
    place = _first(X.data < 0)
    if place is not None:
        raise ValueError(
            "Negative values in data passed to SchMPLDA: counts must be 0 or more, but "
            + _where(X, place, block)
        )
    if fractions == "round":
        X.data = np.rint(X.data)
    place = _first(X.data % 1 != 0)
    if place is not None:
        raise ValueError(
            f"fractions='raise' is set, but {_where(X, place, block)}; each token has "
            "a topic of its own: give whole numbers, or set fractions='round'"
        )
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    total = X.data.sum(dtype=np.float64)
    if total > _MOST_TOKENS:
        raise ValueError(
            f"the counts in X add up to {total:.3g} tokens in block {block.index}, "
            f"each of which has a topic; a rank can have {_MOST_TOKENS} at most"
        )
    return X


def _first(wrong: np.ndarray) -> int | None:
    """Place of the first element that is wrong."""
    return int(np.argmax(wrong)) if wrong.any() else None


def _where(X: Any, place: int, block: Block) -> str:
    """Says what an element is, and where."""
    row = int(np.searchsorted(X.indptr, place, side="right")) - 1
    return (
        f"row {row} of block {block.index} has {X.data[place]:g} in column "
        f"{X.indices[place]}"
    )


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Numbers from each start on, so many of each."""
    ends = np.cumsum(lengths)
    offsets = np.repeat(starts - (ends - lengths), lengths)
    return offsets + np.arange(len(offsets))
