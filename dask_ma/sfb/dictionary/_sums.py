"""Sums of a batch over all ranks, for the atoms, and the ways they travel."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce
from dask_ma.sfb.exchange._exchange import FactorExchange
from dask_ma.sfb.exchange._packets import Packet
from dask_ma.sfb.exchange._staleness import Staleness
from dask_ma.sfb.model._factors import Factors
from dask_ma.sfb.topology import Topology


class BatchSums(NamedTuple):
    """Sums over the rows of a batch, of all ranks.

    Attributes
    ----------
    codes : ndarray of shape (n_components, n_components)
        Sum of ``c^T c``.
    rows : ndarray of shape (n_components, n_features)
        Sum of ``c^T x``.
    n_rows : int
    objective : float
        Sum of the objectives.
    """

    codes: np.ndarray
    rows: np.ndarray
    n_rows: int
    objective: float


class Sender(Protocol):
    """A way to let all ranks know the sums."""

    @property
    def n_under_way(self) -> int:
        """Batches whose sums have not been asked for."""

    def add_up(self, X: Any, codes: np.ndarray, objective: float) -> BatchSums | None:
        """Sums over all ranks, the same bits on each; a collective call.

        Parameters
        ----------
        X : ndarray or CSR of shape (n_rows, n_features)
            Rows of this rank; there may be none.
        codes : ndarray of shape (n_rows, n_components)
            Their codes.
        objective : float
            Sum of their objectives.

        Returns
        -------
        sums : BatchSums or None
            None where they come later.
        """

    def take_next(self) -> BatchSums:
        """Sums of the oldest batch that is under way; a collective call."""


class StatisticsSender:
    """Adds up sums of the ranks: messages depend on the dictionary alone."""

    n_under_way = 0

    def __init__(self, group: Group) -> None:
        self._group = group

    def take_next(self) -> BatchSums:
        """See :class:`Sender`."""
        raise RuntimeError("no batch is under way")

    def add_up(self, X: Any, codes: np.ndarray, objective: float) -> BatchSums:
        """See :class:`Sender`."""
        own = [*_products(X, codes), np.array([len(codes), objective])]
        squares, rows, counts = allreduce(self._group, own)
        return BatchSums(squares, rows, int(counts[0]), float(counts[1]))


class FactorsSender:
    """Broadcasts rows with their codes, of which all ranks find the sums.

    The codes, or the rows where those are sparse, travel as CSR.

    Parameters
    ----------
    group : Group
        This rank.
    is_sparse : bool
        Whether rows are.
    staleness : int, default=0
        How many batches the sums are behind.
    """

    def __init__(self, group: Group, *, is_sparse: bool, staleness: int = 0) -> None:
        self._is_sparse = is_sparse
        self._exchange = FactorExchange(
            group,
            Topology.complete(group.size),
            Staleness(0),
            relays=False,
            wire_dtype=None,
            tolerance=None,
        )
        self._n_batches = 0
        self._staleness = staleness
        self._posted: deque[Packet] = deque()

    @property
    def n_under_way(self) -> int:
        """Batches whose sums have not been asked for."""
        return len(self._posted)

    def add_up(self, X: Any, codes: np.ndarray, objective: float) -> BatchSums | None:
        """Sums of this batch, or an earlier one; None as long as there is none.

        Parameters
        ----------
        X, codes, objective
            As in :class:`Sender`.

        Returns
        -------
        sums : BatchSums or None
        """
        # In the paper's matrix atoms are columns: an update is `x` times `c`.
        own = Factors(codes, X) if self._is_sparse else Factors(X, _csr(codes))
        self._posted.append(self._exchange.post(own, self._n_batches, objective))
        self._n_batches += 1
        return self.take_next() if len(self._posted) > self._staleness else None

    def take_next(self) -> BatchSums:
        """Sums of the oldest batch that is under way; a collective call."""
        packets = self._exchange.take_next(self._posted.popleft())
        n_rows, parts = 0, []
        for packet in packets:
            u, v = packet.opened()
            parts.append(_products(v, u) if self._is_sparse else _products(u, _full(v)))
            n_rows += len(u)
        squares, rows = (sum(each[1:], each[0]) for each in zip(*parts, strict=True))
        return BatchSums(squares, rows, n_rows, sum(packet.gain for packet in packets))


def own_sums(X: Any, codes: np.ndarray, objective: float) -> BatchSums:
    """Sums over rows of this rank alone."""
    return BatchSums(*_products(X, codes), len(codes), objective)


def _products(X: Any, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``c^T c`` and ``c^T x``, dense."""
    return codes.T @ codes, codes.T @ X


def _csr(codes: np.ndarray) -> Any:
    """Codes without their zeros."""
    return sparse.csr_array(codes)


def _full(codes: Any) -> np.ndarray:
    """Codes with their zeros."""
    full: np.ndarray = codes.toarray()
    return full
