"""The documents of a rank as tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather, allreduce, gather
from dask_ma.data import Block, Room, Shard, hand_back
from dask_ma.engine import State
from dask_ma.kernels import document_stages
from dask_ma.schmp.topics._cells import CountRows, ranges, rows_in_order

_PART = 2**16  # tokens that are read together
_LARGEST = np.iinfo(np.uint16).max
_MOST_TOKENS = np.iinfo(np.int32).max  # of a rank
#: Types that rows of counts may have.
COUNT_DTYPES = np.float64, np.float32, np.uint8, np.uint16
#: Names of what is kept of all documents of a rank.
KEYS, STARTS = "tokens/keys", "tokens/starts"


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
        Which rows of the input they are: smaller for those that come before others.
    starts : ndarray of int64 of shape (n_documents + 1,)
        Where the tokens of each begin.
    words : ndarray of unsigned int of shape (n_tokens,) or (0,)
        Word of each token, in increasing order within a document; empty before they
        are read, where `rows` are read in their place, and once they are laid out for
        the blocks.
    n_cells : int or None
        Pairs of a document and a word that are in it; None where nobody has counted.
    rows : CountRows or None
        Rows in memory from which tokens are laid out; None where `words` has them.
    n_total, n_all_tokens : int
        Documents, and tokens, of all ranks.
    """

    keys: np.ndarray
    starts: np.ndarray
    words: np.ndarray
    n_total: int = 0
    n_all_tokens: int = 0
    n_cells: int | None = None
    rows: CountRows | None = None

    @classmethod
    def of_shard(cls, shard: Shard, group: Group, *, fractions: str) -> Documents:
        """Look at the rows of a rank, and count their tokens; a collective call.

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
            Without their words.

        Raises
        ------
        ValueError
            On all ranks, if counts of some rank are negative, or not whole and not to
            be rounded, or too many, or if there is no word at all.
        """
        found, error = None, None
        try:
            found = _measure(shard, fractions)
        except ValueError as raised:
            error = raised.with_traceback(None)  # which would keep the shard alive
        n_own = 0 if found is None else found.n_tokens
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
    def n_tokens(self) -> int:
        """Tokens of this rank."""
        return int(self.starts[-1])

    @cached_property
    def offset_dtype(self) -> np.dtype:
        """The smallest type for the place of a token in its document."""
        return smallest(int(self.lengths.max(initial=0)))

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each document."""
        return np.diff(self.starts)

    def owners(self, tokens: np.ndarray) -> np.ndarray:
        """Documents of some tokens.

        Parameters
        ----------
        tokens : ndarray of int of shape (n,)
            Their places.

        Returns
        -------
        documents : ndarray of int64 of shape (n,)
        """
        return np.searchsorted(self.starts, tokens, side="right") - 1

    def sort(self, stages: np.ndarray) -> None:
        """Sort the documents, before their words are read.

        Parameters
        ----------
        stages : ndarray of int of shape (n_documents,)
            Those with a lower number come first.
        """
        order = np.argsort(stages, kind="stable")
        self.keys, lengths = self.keys[order], self.lengths[order]
        self.starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    def first_rank(self, group: Group, n_stages: int) -> int:
        """The first rank that has tokens of stage 0; a collective call.

        Parameters
        ----------
        group : Group
            This rank.
        n_stages : int
            Rotations after which some documents, which are sorted, have yet to come in.

        Returns
        -------
        rank : int
            0 where all documents come in at once, or there are no such tokens.
        """
        if not n_stages:
            return 0
        stages = document_stages(self.keys, n_stages)
        n_tokens = self.starts[np.searchsorted(stages, 0, side="right")]
        return int(np.argmax(allgather(group, bool(n_tokens))))

    def read(self, shard: Shard, room: Room, *, fractions: str) -> None:
        """Fetch the words of the tokens, unless they can be read from the rows.

        Parameters
        ----------
        shard : Shard
            The same rows as before, which are not checked again.
        room : Room
            Where they are to lie.
        fractions : {"raise", "round"}
            What becomes of counts that are no whole numbers.
        """
        order = np.argsort(self.keys)
        blocks = None if room.on_disk else rows_in_order(shard)
        if blocks is not None:
            own = [_keys(block, block.X.shape[0]) for block in shard.blocks]
            # Where the key of each document is among those of the rows.
            places = np.argsort(np.concatenate(own))[np.argsort(order)]
            self.rows = CountRows(blocks, places, self.starts)
            return
        self.words = room.empty(self.n_tokens, smallest(shard.n_features))
        for block in shard.read():
            X = _counts(block, fractions)
            keys = _keys(block, X.shape[0])
            rows = order[np.searchsorted(self.keys, keys, sorter=order)]
            starts, lengths = self.starts[rows], self.lengths[rows]
            for part in _parts(lengths):
                cells = slice(X.indptr[part.start], X.indptr[part.stop])
                counts = X.data[cells].astype(np.int64)
                tokens = ranges(starts[part], lengths[part])
                self.words[tokens] = np.repeat(X.indices[cells], counts)
            hand_back(block.X)

    def forget_words(self) -> None:
        """Keep nothing from which tokens could be laid out once more."""
        self.words, self.rows = np.empty(0, dtype=np.uint8), None

    def load(self, group: Group, state: State, into: dict[str, np.ndarray]) -> None:
        """Take over what ranks have kept of their tokens; a collective call.

        Parameters
        ----------
        group : Group
            This rank.
        state : State
            Of ranks that had the same documents, perhaps shared out otherwise.
        into : dict of str to ndarray of shape (..., n_tokens)
            Arrays that were kept under these names, in the order of the documents;
            changed in place.

        Raises
        ------
        ValueError
            If documents are missing.
        """
        left = np.ones(len(self), dtype=bool)
        for piece in self._pieces(group, state):
            own, had = np.intersect1d(self.keys, piece[KEYS], return_indices=True)[1:]
            starts = np.asarray(piece[STARTS])
            lengths = self.lengths[own]
            if not np.array_equal(lengths, np.diff(starts)[had]):
                raise ValueError(
                    "the state that was saved is that of documents of other lengths"
                )
            left[own] = False
            here, there = (
                ranges(begin, lengths) for begin in (self.starts[own], starts[had])
            )
            for name, array in into.items():
                array[..., here] = piece[name][..., there]
        if left.any():
            raise ValueError(
                f"the state that was saved lacks {left.sum()} of {len(self)} documents"
            )

    def gather(
        self, group: Group, words: np.ndarray, topics: np.ndarray
    ) -> TokenTopics | None:
        """Tokens of all ranks, on rank 0; a collective call.

        Parameters
        ----------
        group : Group
            This rank.
        words, topics : ndarray of int32 of shape (n_tokens,)
            Of its tokens, in the order of the documents.

        Returns
        -------
        tokens : TokenTopics or None
        """
        parts = gather(group, (self.keys, self.lengths, words, topics))
        if parts is None:
            return None
        keys, lengths, words, topics = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        order = np.argsort(keys, kind="stable")
        starts = np.cumsum(lengths) - lengths
        places = ranges(starts[order], lengths[order])
        rows = np.repeat(np.arange(len(keys), dtype=np.int32), lengths[order])
        return TokenTopics(rows, words[places], topics[places])

    def _pieces(self, group: Group, state: State) -> Any:
        """What this rank had, if that is enough for every rank, else what all had."""
        own = state.own
        enough = own is not None and np.isin(self.keys, own[KEYS]).all()
        if allreduce(group, np.array(enough, dtype=np.int8), "min"):
            return [own]
        return state.pieces(group)


def _measure(shard: Shard, fractions: str) -> Documents:
    """Documents of rows of counts, without words."""
    keys, lengths, n_cells = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    for block in shard.read():
        X = _counts(block, fractions)
        _check(X, block, fractions)
        keys.append(_keys(block, X.shape[0]))
        n_cells += int(np.count_nonzero(X.data))
        lengths.append(np.asarray(X.sum(axis=1)).astype(np.int64))
        hand_back(block.X)
    places = np.concatenate(keys)
    order = np.argsort(places, kind="stable")
    sizes = np.concatenate(lengths)[order]
    n_tokens = int(sizes.sum())
    if n_tokens > _MOST_TOKENS:
        raise ValueError(
            f"the counts in X add up to {n_tokens:.3g} tokens on a rank, each of which "
            f"has a topic; a rank can have {_MOST_TOKENS} at most: take more ranks"
        )
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Documents(places[order], starts, np.empty(0, np.int32), n_cells=n_cells)


def _parts(lengths: np.ndarray) -> Iterator[slice]:
    """Documents one after the other, as many as have some tokens together."""
    ends = np.cumsum(lengths)
    wanted = np.arange(_PART, ends[-1] if len(ends) else 0, _PART)
    cuts = np.unique([0, *np.searchsorted(ends, wanted) + 1, len(lengths)])
    for first, last in zip(cuts[:-1], cuts[1:], strict=True):
        yield slice(first, last)


def _keys(block: Block, n_rows: int) -> np.ndarray:
    """Which rows of the input those of a block are."""
    # Where the first row is unknown, blocks are whole, and have their numbers.
    first = block.index << 32 if block.start is None else block.start
    return first + np.arange(n_rows, dtype=np.int64)


def _counts(block: Block, fractions: str) -> Any:
    """Rows as CSR of whole numbers, the words of each in increasing order."""
    is_rounded = fractions == "round" and block.X.dtype.kind == "f"
    X = sparse.csr_array(block.X, copy=is_rounded)
    if is_rounded:
        X.data = np.rint(X.data)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return X


def _check(X: Any, block: Block, fractions: str) -> None:
    """Refuse counts of which there are no tokens."""
    place = _first(X.data, lambda data: data < 0)
    if place is not None:
        raise ValueError(
            "Negative values in data passed to SchMPLDA: counts must be 0 or more, but "
            + _where(X, place, block)
        )
    place = None
    if X.data.dtype.kind == "f":
        place = _first(X.data, lambda data: data != np.rint(data))
    if place is not None:
        raise ValueError(
            f"fractions='raise' is set, but {_where(X, place, block)}; each token has "
            "a topic of its own: give whole numbers, or set fractions='round'"
        )
    total = X.data.sum(dtype=np.float64)
    if total > _MOST_TOKENS:
        raise ValueError(
            f"the counts in X add up to {total:.3g} tokens in block {block.index}, "
            f"each of which has a topic; a rank can have {_MOST_TOKENS} at most"
        )


def as_small_counts(X: Any) -> Any:
    """Counts as whole numbers of one or two bytes, if these hold all of them.

    Parameters
    ----------
    X : ndarray or CSR of shape (n, n_features), or any other kind of rows

    Returns
    -------
    counts : ndarray or CSR
        `X` itself where it has others, is of another kind, or names a word of a row
        twice, of which the sum may be larger. float32 stays what it is: checkpoints
        tell by the type of the rows whether they are the same.
    """
    is_rows = sparse.issparse(X) and X.format == "csr"
    if not is_rows and type(X) is not np.ndarray:
        return X
    data = X.data if is_rows else X
    if data.dtype.itemsize <= 1 or data.dtype == np.float32 or not data.size:
        return X
    largest = data.max()
    if data.dtype.kind not in "iuf" or not (data.min() >= 0 and largest <= _LARGEST):
        return X
    counts = data.astype(np.min_scalar_type(int(largest)))
    if not np.array_equal(counts, data):
        return X
    if not is_rows:
        return counts
    rows = type(X)((counts, X.indices, X.indptr), shape=X.shape)
    return rows if rows.has_canonical_format else X


def _first(
    data: np.ndarray, are_wrong: Callable[[np.ndarray], np.ndarray]
) -> int | None:
    """Place of the first element that is wrong, by a look at some at a time."""
    for start in range(0, len(data), _PART):
        wrong = are_wrong(data[start : start + _PART])
        if wrong.any():
            return start + int(np.argmax(wrong))
    return None


def _where(X: Any, place: int, block: Block) -> str:
    """Says what an element is, and where."""
    row = int(np.searchsorted(X.indptr, place, side="right")) - 1
    return (
        f"row {row} of block {block.index} has {X.data[place]:g} in column "
        f"{X.indices[place]}"
    )


def smallest(n: int) -> np.dtype:
    """The smallest type for numbers below `n`.

    Parameters
    ----------
    n : int
        How many numbers there are.

    Returns
    -------
    dtype : dtype
        Of unsigned integers.
    """
    return np.min_scalar_type(max(0, n - 1))
