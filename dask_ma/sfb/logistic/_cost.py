"""The cost of batches and exchanges, and how ranks share a fit by it.

Nothing is timed, so that a seed gives one result, and short fits are not held up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.data import is_on_disk
from dask_ma.sfb.exchange._settings import Exchange, RunSettings
from dask_ma.sfb.logistic._params import SFBParams
from dask_ma.supervised import Problem

# Seconds of an exchange, besides its bytes: sending, an answer, threads that wait.
_EXCHANGE = 2.5e-3
_MEMORY = 5e9  # bytes a second, of large arrays that are gone over
_BATCH = 3e-4  # seconds of a batch, whatever its rows
_FLOPS = 5e10  # a second, of products of dense matrices
_ENTRY = 3.5e-9  # seconds for an element of a sparse row and an output
_OUTPUT = 2e-8  # seconds for an output of a row
# Exchanges of a pass of dual ascent, where ranks go apart between them, at least and at
# most, for each rank; with fewer, more passes are needed.
_LEAST_EXCHANGES, _MOST_EXCHANGES = 2, 8
_SHARE = 0.2  # of computing, that exchanges are to take
# Bytes of a matrix, of which there are some more where ranks go apart.
_MOST_BYTES = 2**26
# Of the factors from one exchange to the next. While they are joined, and while the
# matrix is made of them, they are there twice, also on workers that stream their rows.
# Not by the memory that there is: results are not to depend on it.
_MOST_FACTOR_BYTES = 2**23
_LEAST_NODES = 2  # processes, for one of them to make all steps
_N_PASSES = 10  # of a fit, over which the cost of moving rows is spread
_GAIN = 0.9  # of the seconds of one rank, that all must not take more than


class Passes(NamedTuple):
    """The passes of a fit.

    Attributes
    ----------
    n_rows : int
        Of all ranks.
    most_rows : int
        Of the rank that has most.
    nbytes : float
        Of all rows; infinite where some lie on disks, and stay there.
    n_entries : float
        Elements of a row that are not zero.
    is_sparse : bool
    shape : (int, int)
        Of the matrix.
    itemsize : int
        Bytes of a number.
    n_ranks : int
    batch_size : int
        Rows of a batch of a rank.
    """

    n_rows: int
    most_rows: int
    nbytes: float
    n_entries: float
    is_sparse: bool
    shape: tuple[int, int]
    itemsize: int
    n_ranks: int
    batch_size: int

    @property
    def n_steps(self) -> int:
        """Batches of a pass, of each rank."""
        return max(1, -(-self.most_rows // self.batch_size))

    @property
    def batch_seconds(self) -> float:
        """Of computing, for a batch of one rank."""
        n_rows = self.n_rows / (self.n_ranks * self.n_steps)
        n_values = self.n_entries * self.shape[0]
        each = _ENTRY * n_values if self.is_sparse else 4 * n_values / _FLOPS
        return _BATCH + n_rows * (each + _OUTPUT * self.shape[0])

    @property
    def exchange_seconds(self) -> float:
        """Of an exchange, besides its bytes."""
        return _EXCHANGE * (self.n_ranks - 1).bit_length()

    @property
    def matrix_bytes(self) -> float:
        """Bytes of the matrix."""
        return float(self.shape[0] * self.shape[1] * self.itemsize)

    def factor_bytes(self, n_apart: int) -> float:
        """Bytes of the factors of some batches, that a rank gets from all others."""
        words = 1.5 if self.is_sparse else 1.0  # with the columns
        n_rows = self.n_rows / (self.n_ranks * self.n_steps) * n_apart
        numbers = n_rows * (self.shape[0] + words * self.n_entries)
        return numbers * self.itemsize * (self.n_ranks - 1)

    def count_apart(self) -> int:
        """Batches from one exchange to the next that are best for dual ascent."""
        seconds = self.exchange_seconds + 5 * self.matrix_bytes / _MEMORY
        n_exchanges = _SHARE * self.n_steps * self.batch_seconds / seconds
        least, most = (n * self.n_ranks for n in (_LEAST_EXCHANGES, _MOST_EXCHANGES))
        n_exchanges = min(max(least, n_exchanges), most)
        n_kept = _MOST_FACTOR_BYTES / self.factor_bytes(1)
        n_apart = min(self.n_steps / n_exchanges, n_kept)
        return max(1, int(n_apart)) if self.matrix_bytes <= _MOST_BYTES else 1

    def smaller_content(self, n_apart: int) -> str:
        """What takes fewer bytes, "factors" or "full_matrix"."""
        # Of a sum each rank sends and gets as much, in two steps.
        whole = 2 * self.matrix_bytes * (self.n_ranks - 1) / self.n_ranks
        return "factors" if self.factor_bytes(n_apart) < whole else "full_matrix"

    def are_quicker_alone(self, link_bandwidth: float) -> bool:
        """Whether one rank that gets all rows makes gradient steps sooner than all.

        Parameters
        ----------
        link_bandwidth : float
            Bytes a second between two ranks.
        """
        nbytes = min(self.factor_bytes(1), 2 * self.matrix_bytes)
        together = self.batch_seconds + self.exchange_seconds
        together += nbytes / link_bandwidth
        moved = self.nbytes * (self.n_ranks - 1) / self.n_ranks / _N_PASSES
        moved += self.matrix_bytes * (self.n_ranks - 1).bit_length()
        alone = self.n_ranks * self.batch_seconds
        alone += moved / link_bandwidth / self.n_steps
        return _GAIN * alone < together


def choose_settings(group: Group, problem: Problem, params: SFBParams) -> RunSettings:
    """How the ranks train, where the user leaves it open; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    problem : Problem
        Rows and classes.
    params : SFBParams
        Parameters of the fit.

    Returns
    -------
    settings : RunSettings
        Those of the parameters, with the choice.
    """
    settings, exchange = params.settings, params.settings.exchange
    if group.size == 1 or exchange.content != "auto" or exchange._wants_factors:
        return settings
    is_dual = params.solver == "sdca"
    passes = passes_of(group, problem, settings.batch_size)
    if is_dual:
        n_apart = passes.count_apart()
        content = passes.smaller_content(n_apart)
        return replace(settings, exchange=Exchange(content), n_apart=n_apart)
    is_small = passes.nbytes <= params.most_moved and params.max_iter > 1
    if not is_small or params.penalty == "trace" or exchange.wire_dtype is not None:
        return settings
    if group.layout.n_nodes < _LEAST_NODES:
        return settings
    is_alone = passes.are_quicker_alone(params.link_bandwidth)
    return replace(settings, is_alone=is_alone)


def passes_of(group: Group, problem: Problem, batch_size: int) -> Passes:
    """Sizes of a fit; a collective call."""
    shard = problem.shard
    is_here = not any(is_on_disk(block.X) for block in shard.blocks)
    sums = np.array([shard.nbytes if is_here else np.inf, float(shard.is_sparse)])
    nbytes, is_sparse = allreduce(group, sums).tolist()
    return Passes(
        n_rows=problem.total_rows,
        most_rows=int(allreduce(group, np.array(shard.n_rows), "max")),
        nbytes=nbytes,
        n_entries=problem.total_stored / problem.total_rows,
        is_sparse=bool(is_sparse),
        shape=(problem.n_problems, shard.n_features),
        itemsize=problem.dtype.itemsize,
        n_ranks=group.size,
        batch_size=batch_size,
    )
