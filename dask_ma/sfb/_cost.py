"""What an iteration costs: bytes, and the time that follows from them.

After section 4.1 of the paper. With `P` ranks, `K` pairs of factors of each, and a
matrix of shape `J` x `D`, all ranks together send per iteration

===========================  =========================
factors, to all              ``P (P - 1) K (J + D)``
factors, to `Q` peers each   ``P Q K (J + D)``
factors, relayed             ``P (P - 1) K (J + D)``
whole matrix                 ``2 (P - 1) J D``
===========================  =========================

numbers. Where `v` is sparse, its elements and their columns take the place of `D`.
"""

from __future__ import annotations

from math import inf
from time import perf_counter
from typing import Literal, NamedTuple

import numpy as np

from dask_ma.comm import Group, allreduce, barrier, sendrecv

Choice = Literal["factors", "full_matrix"]

_PROBE_BYTES = 4 * 2**20
_N_PROBES = 3  # after a first one, which opens connections
_SHORTEST = 1e-9  # seconds; a clock may stand still for longer


class Update(NamedTuple):
    """Size of the update that one rank finds in one iteration.

    Parameters
    ----------
    n_pairs : int
        Pairs of factors; in the paper, `K`.
    n_outputs : int
        Rows of the matrix; in the paper, `J`.
    n_features : int
        Columns of the matrix; in the paper, `D`.
    entries_per_row : float
        Mean number of elements of a row of `v`; `n_features` where it is dense.
    is_sparse : bool
        Whether `v` is CSR.
    itemsize : int
        Bytes of a number.
    index_size : int
        Bytes of an index of CSR.
    """

    n_pairs: int
    n_outputs: int
    n_features: int
    entries_per_row: float
    is_sparse: bool = False
    itemsize: int = 8
    index_size: int = 4

    @property
    def message_bytes(self) -> int:
        """Bytes of the factors, as :func:`factor_bytes` gives them."""
        return factor_bytes(
            self.n_pairs,
            self.n_outputs,
            self.entries_per_row,
            self.itemsize,
            self.index_size,
            self.is_sparse,
        )


class Costs(NamedTuple):
    """Predicted seconds per iteration.

    Attributes
    ----------
    factors : float
        If factors are exchanged.
    full_matrix : float
        If the matrices of all ranks are added up.
    """

    factors: float
    full_matrix: float


def factor_bytes(
    n_pairs: int,
    n_outputs: int,
    entries_per_row: float,
    itemsize: int = 8,
    index_size: int = 4,
    is_sparse: bool = False,
) -> int:
    """Bytes of the arrays of one rank's factors, without a header.

    Parameters
    ----------
    n_pairs : int
        Pairs of factors; in the paper, `K`.
    n_outputs : int
        Rows of the matrix; in the paper, `J`.
    entries_per_row : float
        Mean number of elements of a row of `v`: the columns of the matrix, `D`, where
        `v` is dense.
    itemsize : int, default=8
        Bytes of a number.
    index_size : int, default=4
        Bytes of an index of CSR. A dense `v` has none.
    is_sparse : bool, default=False
        Whether `v` is CSR.

    Returns
    -------
    n_bytes : int
        Rounded.
    """
    n_entries = n_pairs * entries_per_row
    n_bytes = (n_pairs * n_outputs + n_entries) * itemsize
    if is_sparse:
        n_bytes += (n_entries + n_pairs + 1) * index_size
    return round(n_bytes)


def n_transmissions(
    n_ranks: int, n_peers: int | None = None, relayed: bool = False
) -> int:
    """How often the factors of a rank travel from one rank to another, for all ranks.

    Parameters
    ----------
    n_ranks : int
        Number of ranks; in the paper, `P`.
    n_peers : int, default=None
        To how many others each rank sends, in the paper `Q`; to all if None.
    relayed : bool, default=False
        Whether peers pass on what they get, along trees, until every rank has got it
        once. That takes as many transmissions as sending to all, but over the links
        between peers alone.

    Returns
    -------
    n : int
        Per iteration.

    Raises
    ------
    ValueError
        If there are not so many others.
    """
    others = n_ranks - 1
    if n_peers is None:
        return n_ranks * others
    if not 0 <= n_peers <= others:
        raise ValueError(
            f"n_peers must be from 0 to {others} with {n_ranks} ranks, got {n_peers}"
        )
    return n_ranks * (others if relayed else n_peers)


def iteration_bytes(
    message_bytes: int,
    n_ranks: int,
    n_peers: int | None = None,
    relayed: bool = False,
) -> int:
    """Bytes that all ranks together send in an iteration with factors.

    Parameters
    ----------
    message_bytes : int
        Bytes of one rank's factors, as :func:`factor_bytes` gives them.
    n_ranks : int
        Number of ranks; in the paper, `P`.
    n_peers : int, default=None
        To how many others each rank sends, in the paper `Q`; to all if None.
    relayed : bool, default=False
        Whether peers pass on what they get until every rank has it.

    Returns
    -------
    n_bytes : int

    Raises
    ------
    ValueError
        If there are not so many others.
    """
    return message_bytes * n_transmissions(n_ranks, n_peers, relayed)


def full_matrix_bytes(
    n_ranks: int, n_outputs: int, n_features: int, itemsize: int = 8
) -> int:
    """Bytes that all ranks together send in an iteration that adds up whole matrices.

    By :func:`~dask_ma.comm.allreduce` above ``dask-ma.comm.direct-limit``, with a
    process for each rank. As much goes through a server that gets an update from each
    other rank and gives the matrix back.

    Parameters
    ----------
    n_ranks : int
        Number of ranks; in the paper, `P`.
    n_outputs, n_features : int
        Shape of the matrix; in the paper, `J` and `D`.
    itemsize : int, default=8
        Bytes of a number.

    Returns
    -------
    n_bytes : int
    """
    return 2 * (n_ranks - 1) * n_outputs * n_features * itemsize


def predict_costs(
    update: Update,
    n_ranks: int,
    bandwidth: float,
    rate: float,
    *,
    n_peers: int | None = None,
    relayed: bool = False,
) -> Costs:
    """Seconds per iteration with factors, and with whole matrices.

    With factors, each rank rebuilds the updates of all ranks whose factors it gets, and
    its own. With whole matrices, it rebuilds its own alone; then it has its share of
    adding up the matrices, and applies the sum. Finding the factors costs the same in
    both ways and is left out, as is the latency of messages.

    Parameters
    ----------
    update : Update
        Size of the update of a rank.
    n_ranks : int
        Number of ranks.
    bandwidth : float
        Bytes per second that each rank can send, above 0; it may be infinite.
    rate : float
        Multiply-adds per second of a rank that rebuilds an update, above 0.
    n_peers : int, default=None
        To how many others each rank sends its factors; to all if None.
    relayed : bool, default=False
        Whether peers pass on what they get until every rank has it.

    Returns
    -------
    costs : Costs

    Raises
    ------
    ValueError
        If `bandwidth` or `rate` is not above 0, or there are not so many others.
    """
    for name, number in (("bandwidth", bandwidth), ("rate", rate)):
        if not number > 0:
            raise ValueError(f"{name} must be above 0, got {number}")
    own = update.n_pairs * update.n_outputs * update.entries_per_row
    n_received = n_transmissions(n_ranks, n_peers, relayed) / n_ranks
    sent = n_received * update.message_bytes
    factors = sent / bandwidth + (1 + n_received) * own / rate
    shape = update.n_outputs, update.n_features
    sent = full_matrix_bytes(n_ranks, *shape, update.itemsize) / n_ranks
    added = (2 * (n_ranks - 1) / n_ranks + 1) * shape[0] * shape[1]
    return Costs(factors, sent / bandwidth + (own + added) / rate)


def choose(costs: Costs) -> Choice:
    """The cheaper way; factors if both cost the same.

    Parameters
    ----------
    costs : Costs
        What :func:`predict_costs` gives; the same on all ranks if its arguments are.

    Returns
    -------
    choice : {"factors", "full_matrix"}
    """
    return "full_matrix" if costs.full_matrix < costs.factors else "factors"


def measure_bandwidth(group: Group, n_bytes: int = _PROBE_BYTES) -> float:
    """Bytes per second that each rank can send while all do; a collective call.

    Each rank sends to the next one and receives from the one before, some times over;
    its fastest time counts. `group.counters` count these messages too.

    Parameters
    ----------
    group : Group
        This rank.
    n_bytes : int, default=4 MiB
        Bytes of a message, at least 1.

    Returns
    -------
    bandwidth : float
        That of the slowest rank, the same on all ranks; infinite for one rank.
    """
    if group.size == 1:
        group.raise_if_closed()
        return inf
    payload = np.zeros(n_bytes, dtype=np.uint8)
    following = (group.rank + 1) % group.size
    before = (group.rank - 1) % group.size
    fastest = inf
    for probe in range(1 + _N_PROBES):
        barrier(group)
        start = perf_counter()
        sendrecv(group, payload, following, before, ("sfb-bandwidth", probe))
        if probe:
            fastest = min(fastest, perf_counter() - start)
    bandwidth = np.array(n_bytes / max(fastest, _SHORTEST))
    return float(allreduce(group, bandwidth, op="min"))
