"""Choice between factors, matrices and outputs, by a model of machine and network.

Nothing is timed, so that a seed gives one result, and short fits are not held up. What
it takes to find the factors is the same in all ways, and left out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.data import Shard
from dask_ma.sfb.exchange._outputs import share_of
from dask_ma.sfb.model._factors import checked_sums
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._model import FactorModel

# Seconds of an exchange, besides its bytes, between processes and within one.
_EXCHANGE, _SHARED = 1e-3, 8e-5
_OF_OUTPUTS = 1.6  # exchanges: rows, and sums that are waited for
_MEMORY = 5e9  # bytes a second, of large arrays that are gone over
_FLOPS = 1e11  # a second, of products of dense matrices of float32
# Seconds for an element of a sparse row, and besides for each output of it.
_ENTRY, _VALUE = 4e-9, 6e-10
_TURNED = 1.2e-8  # for one whose rows are turned into columns
_WORDS = 1.5  # numbers for an element of a sparse row, with its column
# How often an array is gone over: a matrix that is added up and taken off, or a dense
# update alone, and rows that come from all ranks.
_OVER_MATRIX, _OVER_UPDATE, _OVER_ROWS = 5, 1, 5
_PART_BYTES, _MOST_PARTS = 2**18, 64  # in which matrices are added up


class Iteration(NamedTuple):
    """An iteration of all ranks, of which each way takes some seconds.

    Attributes
    ----------
    n_pairs : int
        Pairs of factors of a rank.
    n_entries : float
        Elements of a row of `v`.
    is_sparse : bool
        Whether rows have other elements, which are zero.
    shape : (int, int)
        Of the matrix.
    itemsize : int
        Bytes of a number.
    n_ranks, n_nodes : int
        Ranks there are, and the processes they are in.
    n_exchanges : int
        By which ranks find factors, unless outputs are shared out.
    link_bandwidth : float
        Bytes a second between two processes.
    """

    n_pairs: int
    n_entries: float
    is_sparse: bool
    shape: tuple[int, int]
    itemsize: int
    n_ranks: int
    n_nodes: int
    n_exchanges: int
    link_bandwidth: float

    def seconds_of_factors(self) -> float:
        """Where each rank rebuilds the updates of all."""
        n_outputs, n_pairs = self.shape[0], self.n_pairs * self.n_ranks
        nbytes = self._row_bytes + n_pairs * n_outputs * self.itemsize
        seconds = self._latency + self._travel(self._others * nbytes)
        seconds += self._found_together() + nbytes / _MEMORY
        return seconds + self._product(n_pairs, n_outputs) + self._over_update(1.0)

    def seconds_of_matrices(self) -> float:
        """Where ranks add up whole updates."""
        nbytes = self._matrix_bytes
        n_parts = min(_MOST_PARTS, max(1, nbytes // _PART_BYTES))
        seconds = (n_parts + 1) / 2 * self._latency + self._found_together()
        seconds += self._travel(2 * self._others * nbytes)
        seconds += self._product(self.n_pairs, self.shape[0])
        if self.is_sparse:
            seconds += _TURNED * self.n_pairs * self.n_entries
        return float(seconds + _OVER_MATRIX * nbytes / _MEMORY)

    def seconds_of_outputs(self, n_sums: int) -> float:
        """Where each rank has some outputs, and sends sums of them for each pair."""
        n_pairs = self.n_pairs * self.n_ranks
        sums = n_pairs * n_sums * self.itemsize * (self.n_ranks - 1)
        seconds = _OF_OUTPUTS * self._latency
        seconds += self._travel(self._others * self._row_bytes + sums)
        seconds += _OVER_ROWS * self._row_bytes / _MEMORY
        seconds += self._product(n_pairs, self.shape[0] / self.n_ranks)
        return seconds + self._over_update(1 / self.n_ranks)

    @property
    def _latency(self) -> float:
        """Of an exchange, besides its bytes."""
        each = _EXCHANGE if self.n_nodes > 1 else _SHARED
        return each * (self.n_ranks - 1).bit_length()

    @property
    def _others(self) -> float:
        """The share of all rows that a rank gets from others."""
        return (self.n_ranks - 1) / self.n_ranks

    @property
    def _row_bytes(self) -> float:
        """Bytes of the rows of all ranks."""
        words = self.n_entries * (_WORDS if self.is_sparse else 1.0)
        return self.n_pairs * self.n_ranks * words * self.itemsize

    @property
    def _matrix_bytes(self) -> int:
        """Bytes of the matrix."""
        return self.shape[0] * self.shape[1] * self.itemsize

    def _travel(self, nbytes: float) -> float:
        """Of bytes that a rank gets; ranks of a process look at each other's arrays."""
        return nbytes / self.link_bandwidth if self.n_nodes > 1 else 0.0

    def _found_together(self) -> float:
        """Of what ranks tell each other to find factors."""
        nbytes = self.n_pairs * self.n_ranks * self.shape[0] * self.itemsize
        return self.n_exchanges * (self._latency + self._travel(nbytes))

    def _product(self, n_pairs: float, n_outputs: float) -> float:
        """Of the update by some pairs, for some outputs."""
        if self.is_sparse:
            return n_pairs * self.n_entries * (_ENTRY + _VALUE * n_outputs)
        flops = 2 * n_pairs * n_outputs * self.shape[1]
        return self.itemsize / 4 * flops / _FLOPS

    def _over_update(self, share: float) -> float:
        """Of going over a dense update, or a share of one."""
        if self.is_sparse:
            return 0.0
        return _OVER_UPDATE * share * self._matrix_bytes / _MEMORY


def choose_communication(
    group: Group,
    shard: Shard,
    matrix: ParameterMatrix,
    n_pairs: int,
    model: FactorModel,
    link_bandwidth: float,
    *,
    can_share: bool,
) -> str:
    """What takes less time in an iteration, by the sizes; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    shard : Shard
        The rank's rows.
    matrix : ParameterMatrix
        The matrix.
    n_pairs : int
        Pairs of factors of a rank; all get all factors.
    model : FactorModel
        What is learnt.
    link_bandwidth : float
        Bytes a second between two processes.
    can_share : bool
        Whether outputs can be shared out.

    Returns
    -------
    communication : {"factors", "full_matrix", "outputs"}
        The same on all ranks.
    """
    n_entries, is_sparse = _row_size(group, shard, matrix)
    iteration = Iteration(
        n_pairs=n_pairs,
        n_entries=n_entries,
        is_sparse=is_sparse,
        shape=matrix.shape,
        itemsize=matrix.dtype.itemsize,
        n_ranks=group.size,
        n_nodes=group.layout.n_nodes,
        n_exchanges=model.n_exchanges,
        link_bandwidth=link_bandwidth,
    )
    seconds = {
        "factors": iteration.seconds_of_factors(),
        "full_matrix": iteration.seconds_of_matrices(),
    }
    if can_share:
        first = share_of(0, group.size, matrix.shape[0])
        # As many pairs as in a batch: a model may take some of them together.
        values = np.zeros((n_pairs, first.stop), matrix.dtype)
        where = f"{type(model).__name__}.share_sums"
        n_sums = checked_sums(model.share_sums(values), n_pairs, where).shape[1]
        seconds["outputs"] = iteration.seconds_of_outputs(n_sums)
    return min(seconds, key=seconds.__getitem__)


def _row_size(
    group: Group, shard: Shard, matrix: ParameterMatrix
) -> tuple[float, bool]:
    """Elements of a row of `v`, and whether there are others; a collective call."""
    # A matrix with columns of its own tells nothing of what `v` will be.
    if shard.n_features != matrix.shape[1]:
        return float(matrix.shape[1]), False
    blocks: list[Any] = [block.X for block in shard.blocks]
    n_entries = float(sum(X.size for X in blocks))
    own = np.array([n_entries, float(shard.n_rows)])
    n_entries, n_rows = allreduce(group, own).tolist()
    is_dense = bool(shard.n_rows) and not shard.is_sparse
    has_dense = allreduce(group, np.array(float(is_dense)), "max") > 0
    return n_entries / max(1.0, n_rows), not has_dense
