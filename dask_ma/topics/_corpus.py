"""The documents of one rank: checked, counted, and handed out in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import allgather
from dask_ma.data import (
    Block,
    Shard,
    ask_for,
    build_shard,
    hand_back,
    n_bytes,
    read_ahead,
)
from dask_ma.engine import RankContext
from dask_ma.kernels import row_slice

_STORED_BYTES = 12  # of a count of a CSR
_WORD_BYTES = 16  # that a batch takes for each count, with what is made of it
_CHUNK_BYTES = 2**22  # of rows that are made a CSR at a time
_SHUFFLED_BYTES = 2**26  # of blocks whose documents are shuffled together


class Batch(NamedTuple):
    """Some documents, with their own words as columns.

    Attributes
    ----------
    X : CSR of shape (n_documents, n_words)
        Counts.
    words : ndarray of int, shape (n_words,)
        Columns of the corpus that the columns of `X` are, sorted.
    """

    X: Any
    words: np.ndarray


class Summary(NamedTuple):
    """What the other ranks need to know of the documents of one rank."""

    n_documents: int = 0
    n_words: float = 0.0
    n_held_out: int = 0
    n_words_held_out: float = 0.0
    error: Exception | None = None


class Corpus:
    """Documents of a rank, and how many there are on all of them.

    Parameters
    ----------
    shard : Shard
        Documents of this rank, as CSR or dense blocks.
    summaries : sequence of Summary
        Those of all ranks.
    dtype : dtype
        Of the counts in the batches.
    held_out : sequence of CSR, default=()
        Documents of this rank that the fit does not see.

    Attributes
    ----------
    n_documents, total_documents, most_documents : int
        Of this rank, of all ranks, and of the rank that has most.
    all_documents : int
        Of all ranks, with those that are held out, of which other numbers of ranks
        have more or fewer.
    total_words : float
        Sum of the counts on all ranks.
    n_features : int
        Size of the vocabulary.
    held_out : sequence of CSR
        Documents of this rank that the fit does not see.
    """

    def __init__(
        self,
        shard: Shard,
        summaries: list[Summary],
        dtype: np.dtype,
        held_out: Sequence[Any] = (),
    ) -> None:
        self.held_out = held_out
        self.n_documents = shard.n_rows
        self.n_features = shard.n_features
        self.total_documents = sum(s.n_documents for s in summaries)
        n_held_out = sum(s.n_held_out for s in summaries)
        self.all_documents = self.total_documents + n_held_out
        self.most_documents = max(s.n_documents for s in summaries)
        self.total_words = sum(s.n_words for s in summaries)
        self._sizes = np.array([s.n_documents for s in summaries])
        self._blocks = [block.X for block in shard.blocks]
        self._starts = np.cumsum([0] + [X.shape[0] for X in self._blocks])
        self._n_elements = sum(map(_n_elements, self._blocks))
        self._dtype = dtype
        self._mapped: set[int] = set()  # blocks that the last batch was picked from
        self._column_of = np.zeros(shard.n_features, dtype=np.int32)

    def documents_of_round(self, n_round: int, n_rounds: int) -> int:
        """Documents of all ranks in one of the rounds that a pass is split into."""
        sizes = self._sizes // n_rounds + (n_round < self._sizes % n_rounds)
        return int(sizes.sum())

    def part_of(self, rank: int, n_documents: int) -> int:
        """How many of some documents come from a rank, in proportion to what it has."""
        before = int(self._sizes[:rank].sum())
        bounds = before, before + int(self._sizes[rank])
        first, last = (n_documents * n // self.total_documents for n in bounds)
        return last - first

    def documents_at_once(self, bytes_per_document: int, most: int) -> int:
        """Documents of a batch that takes about so many bytes, or 64.

        Parameters
        ----------
        bytes_per_document : int
            That work on a document takes, whatever its words are.
        most : int
            Bytes that a batch, and work on it, may take each.
        """
        of_words = _WORD_BYTES * self._n_elements / max(1, self.n_documents)
        return max(64, int(most / max(bytes_per_document, of_words)))

    def shuffled(self, context: RankContext, n_passes: int) -> np.ndarray:
        """Numbers of the documents in the order of a pass.

        It depends on the seed, the number of the shard and the number of the pass.
        Where blocks take much, the documents of some of them come after one another, so
        that each block is read once from a disk.
        """
        key = (*context.seed.spawn_key, n_passes)
        seed = np.random.SeedSequence(context.seed.entropy, spawn_key=key)
        rng = np.random.default_rng(seed)
        sizes = [n_bytes(X) for X in self._blocks]
        if sum(sizes) <= _SHUFFLED_BYTES or len(sizes) < 2:
            return rng.permutation(self.n_documents)
        groups = _groups(rng.permutation(len(sizes)), sizes)
        return np.concatenate([self._shuffled_blocks(group, rng) for group in groups])

    def _shuffled_blocks(
        self, blocks: list[int], rng: np.random.Generator
    ) -> np.ndarray:
        """Numbers of the documents of some blocks, in a random order."""
        return rng.permutation(
            np.concatenate(
                [np.arange(*self._starts[index : index + 2]) for index in blocks]
            )
        )

    def batch(self, documents: np.ndarray) -> Batch:
        """The documents with the given numbers."""
        parts = []
        documents = np.sort(documents)  # so that each block is looked at once
        bounds = np.searchsorted(documents, self._starts)
        chosen = np.flatnonzero(np.diff(bounds)).tolist()
        for i in set(chosen) - self._mapped:
            ask_for(self._blocks[i])
        for i in chosen:
            rows = documents[bounds[i] : bounds[i + 1]] - self._starts[i]
            parts.append(_sparse(self._blocks[i][rows]))
        for i in self._mapped.difference(chosen):
            hand_back(self._blocks[i])
        self._mapped = set(chosen)
        if not parts:
            parts.append(sparse.csr_array((0, self.n_features), dtype=self._dtype))
        return self._narrow(parts[0] if len(parts) == 1 else sparse.vstack(parts))

    def batches_in_order(self, size: int) -> Iterator[Batch]:
        """All documents in the order of the input, `size` at a time at most."""
        for X in read_ahead(self._blocks):
            for start in range(0, X.shape[0], size):
                yield self._narrow(row_slice(X, start, min(start + size, X.shape[0])))

    def _narrow(self, X: Any) -> Batch:
        """Leave out the words that do not occur."""
        X = _sparse(X)
        occurs = np.zeros(self.n_features, dtype=bool)
        occurs[X.indices] = True
        words = np.flatnonzero(occurs)
        self._column_of[words] = np.arange(len(words), dtype=np.int32)
        narrow = sparse.csr_array((X.shape[0], len(words)), dtype=self._dtype)
        narrow.data = X.data.astype(self._dtype, copy=False)
        narrow.indices, narrow.indptr = self._column_of[X.indices], X.indptr
        return Batch(narrow, words)


def agree_on_corpus(
    context: RankContext,
    arguments: Any,
    dtype: np.dtype,
    validation_fraction: float | None = None,
) -> Corpus:
    """Check this rank's documents and count those of all ranks; a collective call.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.
    dtype : dtype
        Of the counts in batches.
    validation_fraction : float or None, default=None
        Part of each rank's documents to hold out, at random.

    Returns
    -------
    corpus : Corpus

    Raises
    ------
    ValueError
        On all ranks, if the documents of some rank are wrong, or if there are none, or
        if none of them has a word; the same for those held out.
    """
    shard, held_out, own = _inspect(context, arguments, validation_fraction)
    summaries: list[Summary] = allgather(context.group, own)
    for summary in summaries:
        if summary.error is not None:
            raise summary.error
    if shard is None:
        raise RuntimeError("a rank without an error has no shard")
    if not sum(s.n_documents for s in summaries):
        raise ValueError("X has no documents: at least one row is needed")
    if not sum(s.n_words + s.n_words_held_out for s in summaries):
        raise ValueError("X has no words: all counts are 0; one document needs a word")
    _check_fraction(summaries, validation_fraction)
    return Corpus(shard, summaries, dtype, held_out)


def _check_fraction(summaries: list[Summary], fraction: float | None) -> None:
    """Refuse a part that leaves nothing to fit to, or nothing to evaluate."""
    if fraction is None:
        return
    if sum(s.n_words for s in summaries) and sum(s.n_words_held_out for s in summaries):
        return
    held_out = sum(s.n_held_out for s in summaries)
    total = held_out + sum(s.n_documents for s in summaries)
    raise ValueError(
        f"validation_fraction={fraction} holds out {held_out} of {total} documents, "
        "which leaves no words to evaluate or none to fit to; give more documents or "
        "another fraction"
    )


def _inspect(
    context: RankContext, arguments: Any, fraction: float | None
) -> tuple[Shard | None, list[Any], Summary]:
    """Build the shard and describe it; an error goes into the description."""
    try:
        shard = build_shard(arguments, require_labels=False)
        blocks = [_counts(block) for block in shard.blocks]
    except (ValueError, TypeError) as error:
        # The traceback would keep the shard alive on its way to the other ranks.
        return None, [], Summary(error=error.with_traceback(None))
    shard = replace(shard, blocks=blocks)
    held_out: list[Any] = []
    if fraction is not None:
        shard, held_out = _hold_out(context, shard, fraction)
    own = Summary(
        shard.n_rows,
        _n_words([block.X for block in shard.blocks]),
        sum(X.shape[0] for X in held_out),
        _n_words(held_out),
    )
    return shard, held_out, own


def _hold_out(
    context: RankContext, shard: Shard, fraction: float
) -> tuple[Shard, list[Any]]:
    """Take documents out of a shard; a rank with a single one keeps it."""
    n_held_out = min(max(1, int(fraction * shard.n_rows)), shard.n_rows - 1)
    # Orders of passes have the number of the pass in this place, and no other.
    key = (*context.seed.spawn_key, 0, 0)
    seed = np.random.SeedSequence(context.seed.entropy, spawn_key=key)
    chosen = np.zeros(shard.n_rows, dtype=bool)
    order = np.random.default_rng(seed).permutation(shard.n_rows)
    chosen[order[: max(0, n_held_out)]] = True
    kept, held_out, start = [], [], 0
    for block in shard.blocks:
        mask = chosen[start : start + block.X.shape[0]]
        start += len(mask)
        kept.append(block._replace(X=block.X[np.flatnonzero(~mask)]))
        held_out.append(_sparse(block.X[np.flatnonzero(mask)]))
    return replace(shard, blocks=kept), held_out


def _groups(order: np.ndarray, sizes: Sequence[int]) -> list[list[int]]:
    """Blocks in an order, as groups that take some bytes, or are one block."""
    groups: list[list[int]] = [[]]
    taken = 0
    for index in order.tolist():
        if groups[-1] and taken + sizes[index] > _SHUFFLED_BYTES:
            groups.append([])
            taken = 0
        groups[-1].append(index)
        taken += sizes[index]
    return groups


def _n_words(parts: list[Any]) -> float:
    """Sum of the counts."""
    return float(sum(_values(X).sum(dtype=np.float64) for X in parts))


def _sparse(X: Any) -> Any:
    """Some documents as CSR."""
    return X if sparse.issparse(X) else sparse.csr_array(X)


def _values(X: Any) -> np.ndarray:
    """Counts that are stored."""
    values: np.ndarray = X.data if sparse.issparse(X) else X
    return values


def _n_elements(X: Any) -> int:
    """Counts that are not 0."""
    return int(X.nnz if sparse.issparse(X) else np.count_nonzero(X))


def _counts(block: Block) -> Block:
    """A block without negative counts, as CSR if that takes less than half as much."""
    # A copy of counts that are mostly full would be larger than they are.
    X = block.X
    if _values(X).size and _values(X).min() < 0:
        row, column, value = _first_negative(X)
        raise ValueError(
            f"Negative values in data passed to MALDA: counts must be 0 or more, but "
            f"row {row} of block {block.index} has {value:g} in column {column}"
        )
    if sparse.issparse(X) or 2 * _STORED_BYTES * _n_elements(X) > X.nbytes:
        return block
    return block._replace(X=_as_csr(X))


def _as_csr(X: np.ndarray) -> Any:
    """A few counts as CSR, by some rows at a time."""
    indptr = np.zeros(len(X) + 1, dtype=np.int64)
    np.cumsum(np.count_nonzero(X, axis=1), out=indptr[1:])
    result = sparse.csr_array(X.shape, dtype=X.dtype)
    result.indptr = indptr
    result.data = np.empty(indptr[-1], dtype=X.dtype)
    result.indices = np.empty(indptr[-1], dtype=np.int32)
    step = max(1, _CHUNK_BYTES // max(1, X[:1].nbytes))
    for start in range(0, len(X), step):
        part = sparse.csr_array(X[start : start + step])
        own = slice(indptr[start], indptr[min(start + step, len(X))])
        result.data[own], result.indices[own] = part.data, part.indices
    return result


def _first_negative(X: Any) -> tuple[int, int, float]:
    """Row, column and value of the first negative count."""
    position = int(np.argmax(_values(X).ravel() < 0))
    value = float(_values(X).ravel()[position])
    if not sparse.issparse(X):
        row, column = divmod(position, X.shape[1])
        return row, column, value
    row = int(np.searchsorted(X.indptr, position, side="right")) - 1
    return row, int(X.indices[position]), value
