"""The rows of a rank: checked, counted, handed out in batches, taken as atoms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allgather, allreduce, alltoall
from dask_ma.data import Block, Shard, build_shard
from dask_ma.engine import RankContext
from dask_ma.sfb.dictionary._block import row_squares
from dask_ma.supervised import Piece, pass_batches, pass_generator


class _Summary(NamedTuple):
    """What the other ranks need to know of the rows of one rank."""

    n_rows: int = 0
    dtype: Any = None
    is_sparse: bool = False
    weight: float = 0.0  # sum of the weights, or of so many ones
    error: Exception | None = None


class Rows:
    """Rows of a rank, and how many there are on all of them.

    Parameters
    ----------
    shard : Shard
        Rows of this rank.
    sizes : sequence of int
        Rows of each rank.
    dtype : dtype
        Type of the rows of all ranks.
    is_sparse : bool
        Whether rows are CSR, on all ranks.
    total_weight : float
        Sum of the weights of the rows of all ranks.

    Attributes
    ----------
    n_features, n_total : int
        Columns, and rows of all ranks.
    """

    def __init__(
        self,
        shard: Shard,
        sizes: Sequence[int],
        dtype: np.dtype,
        is_sparse: bool,
        total_weight: float,
    ) -> None:
        self.dtype, self.is_sparse = dtype, is_sparse
        self.n_features, self.n_total = shard.n_features, sum(sizes)
        self._shard, self._sizes = shard, sizes
        self._weight_scale = self.n_total / total_weight

    def batches(
        self, context: RankContext, n_steps: int, n_passes: int, *, shuffle: bool
    ) -> Iterator[tuple[Any, np.ndarray | None]]:
        """Batches of this rank in the pass after `n_passes` passes.

        Parameters
        ----------
        context : RankContext
            This rank.
        n_steps : int
            Number of batches, the same on all ranks.
        n_passes : int
            Passes made.
        shuffle : bool
            Whether the order depends on the number of the pass.

        Yields
        ------
        X : ndarray or CSR of shape (n_rows, n_features)
        weight : ndarray of shape (n_rows,), or None
            Weights of the rows, of mean 1 over all ranks, if there are any.
        """
        rng = pass_generator(context, n_passes) if shuffle else None
        for pieces in pass_batches(self._shard, n_steps, rng):
            yield self._joined(pieces), self._weights(pieces)

    def take(
        self, group: Group, numbers: np.ndarray, columns: list[slice] | None = None
    ) -> np.ndarray:
        """Rows by their numbers in the order of ranks; a collective call.

        Parameters
        ----------
        group : Group
            This rank.
        numbers : ndarray of int
            The same on all ranks.
        columns : list of slice, default=None
            Columns that each rank gets; None gives all to all.

        Returns
        -------
        rows : ndarray of shape (n_numbers, n_columns)
        """
        first = sum(self._sizes[: group.rank])
        stop = first + self._sizes[group.rank]
        is_own = (numbers >= first) & (numbers < stop)
        found = np.zeros((int(is_own.sum()), self.n_features), dtype=self.dtype)
        own = numbers[is_own] - first
        start = 0
        for block in self._shard.read():
            n_rows = block.X.shape[0]
            is_here = (own >= start) & (own < start + n_rows)
            found[is_here] = dense(block.X[own[is_here] - start])
            start += n_rows
        places = np.flatnonzero(is_own)
        if columns is None:
            parts = allgather(group, (places, found))
        else:
            pieces = [(places, np.ascontiguousarray(found[:, c])) for c in columns]
            parts = alltoall(group, pieces)
        rows = np.zeros((len(numbers), parts[0][1].shape[1]), dtype=self.dtype)
        for each, part in parts:
            rows[each] = part
        return rows

    def _weights(self, pieces: list[Piece]) -> np.ndarray | None:
        """Weights of the rows of a step."""
        parts = [p.sample_weight for p in pieces if p.sample_weight is not None]
        if not parts:
            return None
        return (np.concatenate(parts) * self._weight_scale).astype(self.dtype)

    def _joined(self, pieces: list[Piece]) -> Any:
        """One batch of the pieces of a step."""
        parts = [piece.X for piece in pieces]
        if not parts:
            shape = 0, self.n_features
            kind = sparse.csr_array if self.is_sparse else np.zeros
            return kind(shape, dtype=self.dtype)
        if len(parts) > 1:
            stack = sparse.vstack if self.is_sparse else np.concatenate
            parts = [stack(parts)]
        rows = parts[0].astype(self.dtype, copy=False)
        return sparse.csr_array(rows) if self.is_sparse else rows


def agree_on_rows(context: RankContext, arguments: Any) -> Rows:
    """Check this rank's rows and count those of all ranks; a collective call.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.

    Returns
    -------
    rows : Rows

    Raises
    ------
    ValueError
        On all ranks, if the rows of some rank are wrong, or if there are none.
    """
    shard, own = _inspect(arguments)
    summaries: list[_Summary] = allgather(context.group, own)
    for summary in summaries:
        if summary.error is not None:
            raise summary.error
    if shard is None:
        raise RuntimeError("a rank without an error has no shard")
    if not sum(s.n_rows for s in summaries):
        raise ValueError(
            "X has no rows, or sample_weight has the weight zero for all of them: at "
            "least one is needed"
        )
    filled = [s for s in summaries if s.n_rows]
    kinds = {s.is_sparse for s in filled}
    if len(kinds) > 1:
        raise TypeError(
            "X has sparse and dense blocks, expected one kind; convert them with "
            "map_blocks"
        )
    dtype = np.result_type(*(s.dtype for s in filled))
    total_weight = sum(s.weight for s in summaries)
    if not 0 < total_weight < np.inf:
        raise ValueError(
            "the sum of sample_weight over all rows is beyond the range of float64; "
            "divide the weights by their largest one"
        )
    sizes = [s.n_rows for s in summaries]
    return Rows(shard, sizes, dtype, kinds.pop(), total_weight)


def dense(X: Any) -> np.ndarray:
    """A few rows as an array.

    Parameters
    ----------
    X : ndarray or CSR

    Returns
    -------
    rows : ndarray
    """
    return X.toarray() if sparse.issparse(X) else np.asarray(X)


def first_atoms(
    context: RankContext, rows: Rows, n_components: int, *, positive: bool
) -> np.ndarray:
    """Rows at random, as atoms of length 1; a collective call.

    Parameters
    ----------
    context : RankContext
        This rank.
    rows : Rows
    n_components : int
    positive : bool
        Whether elements of atoms must not be negative.

    Returns
    -------
    atoms : ndarray of shape (n_components, n_features)
        The same on all ranks. Random directions where there are no more rows, or where
        a row has nothing but zeros.
    """
    rng = np.random.default_rng(np.random.SeedSequence(context.seed.entropy))
    n_taken = min(n_components, rows.n_total)
    numbers = rng.choice(rows.n_total, n_taken, replace=False)
    atoms = rng.standard_normal((n_components, rows.n_features)).astype(rows.dtype)
    taken = rows.take(context.group, numbers)
    if positive:
        np.abs(atoms, out=atoms)
        np.maximum(taken, 0, out=taken)
    is_filled = row_squares(taken) > 0
    atoms[:n_taken][is_filled] = taken[is_filled]
    return with_unit_length(atoms)


def with_unit_length(atoms: np.ndarray, group: Group | None = None) -> np.ndarray:
    """Atoms divided by their lengths; zeros stay.

    Parameters
    ----------
    atoms : ndarray of shape (n_components, n_features)
    group : Group, default=None
        The ranks that have the other columns; None if there are none. Then a collective
        call.

    Returns
    -------
    atoms : ndarray of shape (n_components, n_features)
    """
    # Squares of tiny numbers may vanish.
    largest = np.abs(atoms).max(axis=1, initial=0, keepdims=True)
    if group is not None:
        largest = allreduce(group, largest, "max")
    scaled = atoms / np.where(largest > 0, largest, 1)
    squares = np.einsum("ij,ij->i", scaled, scaled)
    if group is not None:
        squares = allreduce(group, squares)
    lengths = np.sqrt(squares)[:, None]
    unit: np.ndarray = scaled / np.where(lengths > 0, lengths, 1)
    return unit


def worst_rows(
    group: Group, X: Any, objectives: np.ndarray, n_wanted: int
) -> np.ndarray:
    """Rows of a batch of all ranks whose objectives are largest; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    X : ndarray or CSR of shape (n_rows, n_features)
        Rows of this rank.
    objectives : ndarray of shape (n_rows,)
    n_wanted : int

    Returns
    -------
    rows : ndarray of shape (n_found, n_features)
        The worst first, the same on all ranks; fewer where others are zeros.
    """
    order = np.argsort(-objectives, kind="stable")[:n_wanted]
    order = order[objectives[order] > 0]
    found = allgather(group, (objectives[order], dense(X[order])))
    values = np.concatenate([each[0] for each in found])
    candidates = np.concatenate([each[1] for each in found])
    return candidates[np.argsort(-values, kind="stable")[:n_wanted]]


def _inspect(arguments: Any) -> tuple[Shard | None, _Summary]:
    """Build the shard and describe it; an error goes into the description."""
    try:
        shard = build_shard(arguments, require_labels=False, needs_squares=True)
    except (ValueError, TypeError) as error:
        # The traceback would keep the shard alive on its way to the other ranks.
        return None, _Summary(error=error.with_traceback(None))
    with np.errstate(over="ignore"):
        weight = sum(_weight_of(block) for block in shard.blocks)
    return shard, _Summary(shard.n_rows, shard.dtype, shard.is_sparse, weight)


def _weight_of(block: Block) -> float:
    """Sum of the weights of a block's rows."""
    if block.sample_weight is None:
        return float(block.X.shape[0])
    return float(block.sample_weight.sum(dtype=np.float64))


def weighted(
    X: Any, codes: np.ndarray, weight: np.ndarray | None
) -> tuple[Any, np.ndarray]:
    """Rows and codes whose products are the weighted ones.

    Parameters
    ----------
    X : ndarray or CSR of shape (n_rows, n_features)
    codes : ndarray of shape (n_rows, n_components)
    weight : ndarray of shape (n_rows,), or None
        None is 1.

    Returns
    -------
    X, codes
        Times the roots of the weights.
    """
    if weight is None:
        return X, codes
    roots = np.sqrt(weight)
    codes = codes * roots[:, np.newaxis]
    if sparse.issparse(X):
        return sparse.csr_array(sparse.diags_array(roots) @ X), codes
    return X * roots[:, np.newaxis], codes
