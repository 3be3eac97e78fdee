"""Cost model: the bytes that an iteration sends.

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

from typing import NamedTuple


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

    By :func:`~dask_ma.comm.allreduce` in parts, as with large matrices, and a process
    for each rank. As much goes through a server that gets an update from each other
    rank and gives the matrix back.

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
