"""The cost of steps on one rank and on several, by a model of machine and network.

Nothing is timed, so that a seed gives one result, and short fits are not held up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from scipy import sparse

from dask_ma.data import InputSize, Shard
from dask_ma.sfb.metric._params import MetricParams
from dask_ma.sfb.metric._plan import count_groups, count_passes, count_steps

_FLOPS = 5e10  # a second, of products of matrices in float32
_PAIR = 6e-9  # seconds for all else that is done for a pair of rows
# Seconds of an exchange, besides its bytes: sending, an answer, threads that wait.
_EXCHANGE = 2.5e-3
_GAIN = 0.9  # of the seconds of one rank, that all must not take more than
_SHARED = 0.2  # of that, within a process
_SMALL = 8 * 2**20  # bytes of components that are no reason to share them out
_KEPT_BYTES = 12  # of a component and of the means of its gradients
_IN_STEP = 3  # exchanges of a step in which all ranks have rows of each group


class Steps(NamedTuple):
    """The steps of a fit.

    Attributes
    ----------
    n_steps : int
        Of the whole fit.
    n_rows : int
        Of a batch of all ranks, or pairs.
    n_groups : int
        Groups of a batch.
    n_entries : float
        Elements of a row that are not zero.
    shape : (int, int)
        Of the components.
    has_labels : bool
        Whether all pairs within a group count; else each row is a pair.
    link_bandwidth : float
        Bytes a second between two ranks.
    n_passes : int, default=0
        After which a rank that makes all steps sends components, and means of their
        gradients, to the others.
    """

    n_steps: int
    n_rows: int
    n_groups: int
    n_entries: float
    shape: tuple[int, int]
    has_labels: bool
    link_bandwidth: float
    n_passes: int = 0

    @property
    def seconds(self) -> float:
        """Of computing, for a step, on one rank."""
        n_components = self.shape[0]
        flops = 4.0 * self.n_rows * self.n_entries * n_components
        if not self.has_labels:
            return flops / _FLOPS
        n_pairs = self.n_rows * self.n_rows / self.n_groups
        return (flops + 6.0 * n_pairs * n_components) / _FLOPS + n_pairs * _PAIR

    def exchange_seconds(self, n_ranks: int, n_nodes: int) -> float:
        """Of the exchanges of a step, by ranks in so many processes."""
        n_exchanges = 1 if not self.has_labels or self.n_groups > 1 else _IN_STEP
        seconds = _EXCHANGE * n_exchanges * (n_ranks - 1).bit_length()
        if n_nodes == 1:
            return _SHARED * seconds
        nbytes = min(self.factor_bytes(n_ranks), self.matrix_bytes(n_ranks))
        return seconds + nbytes / self.link_bandwidth

    def factor_bytes(self, n_ranks: int) -> float:
        """Bytes that a rank gets in a step, of factors."""
        others = self.n_rows * (n_ranks - 1) / n_ranks
        return 4 * others * (self.shape[0] + self.n_entries)

    def matrix_bytes(self, n_ranks: int) -> float:
        """The same, of sums of whole updates."""
        return 8.0 * self.shape[0] * self.shape[1] * (n_ranks - 1) / n_ranks

    @property
    def is_matrix_small(self) -> bool:
        """Whether it matters little that each rank adds up, and makes, whole steps."""
        return 4 * self.shape[0] * self.shape[1] < _SMALL

    def smaller_content(self, n_ranks: int) -> str:
        """What takes fewer bytes, "factors" or "full_matrix"."""
        if self.factor_bytes(n_ranks) < self.matrix_bytes(n_ranks):
            return "factors"
        return "full_matrix"

    def are_quicker_alone(self, n_ranks: int, n_nodes: int, row_bytes: float) -> bool:
        """Whether one rank that gets all rows is done sooner than all of them.

        Parameters
        ----------
        n_ranks, n_nodes : int
            Ranks there are, and the processes they are in.
        row_bytes : float
            Bytes of all rows.
        """
        share = 1 / n_ranks
        if self.has_labels and self.n_groups > 1:  # groups are not cut
            share = -(-self.n_groups // n_ranks) / self.n_groups
        together = self.seconds * share + self.exchange_seconds(n_ranks, n_nodes)
        moved = row_bytes * (n_ranks - 1) / n_ranks
        moved += self.n_passes * _KEPT_BYTES * self.shape[0] * self.shape[1]
        if n_nodes == 1:
            moved = 0
        alone = self.seconds + moved / self.link_bandwidth / self.n_steps
        return _GAIN * alone < together


def steps_of(
    params: MetricParams,
    n_units: int,
    n_groups: int,
    n_entries: float,
    n_features: int,
) -> Steps:
    """The steps of a fit to so many rows or pairs, with elements of a row."""
    n_steps = count_steps(n_units, params.settings.batch_size, n_groups)
    n_passes = count_passes(params.max_iter, n_steps, n_groups)
    return Steps(
        n_steps=n_passes * n_steps,
        n_rows=-(-n_units // n_steps),
        n_groups=n_groups,
        n_entries=n_entries,
        shape=(params.n_components, n_features),
        has_labels=params.tuples is None,
        link_bandwidth=params.link_bandwidth,
        n_passes=n_passes,
    )


def worthwhile_ranks(params: MetricParams, size: InputSize, n_threads: int) -> int:
    """One rank where it is done sooner than one for each thread, else all.

    The result is the same but for rounding, unless the user has asked for what ranks
    send and when.
    """
    exchange = params.settings.exchange
    if exchange.content == "outputs":  # of which each rank has to have one
        return min(n_threads, params.n_components)
    if exchange.content != "auto" or exchange._wants_factors:
        return n_threads
    n_units, n_groups = size.n_rows, 1
    if params.tuples is not None:
        n_units = len(params.tuples.rows)
    elif params.is_grouped and size.nbytes <= params.most_moved:
        n_groups = count_groups(n_units)
    per_row = size.n_stored / size.n_rows
    steps = steps_of(params, n_units, n_groups, per_row, size.n_features)
    # Where threads lie is not known yet: mostly in processes of their own.
    steps = steps._replace(n_passes=0)  # there are no others
    are_quicker = steps.are_quicker_alone(n_threads, n_threads, size.moved(1))
    return 1 if are_quicker else n_threads


def row_bytes(shard: Shard) -> float:
    """Bytes of the rows of a rank."""
    parts: list[Any] = []
    for block in shard.blocks:
        X = block.X
        parts += [X.data, X.indices, X.indptr] if sparse.issparse(X) else [X]
    return float(sum(part.nbytes for part in parts))


def n_entries(shard: Shard) -> float:
    """Elements of the rows of a rank, of sparse ones those that are not zero."""
    return float(sum(block.X.size for block in shard.blocks))
