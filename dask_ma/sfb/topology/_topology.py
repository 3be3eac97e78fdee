"""Topologies of partial broadcasting (equation 3 of the paper).

In partial broadcasting a rank sends its factors to Q other ranks only. What it has
found out reaches the other ranks later, over ranks in between: the fewer steps, the
better. With 12 ranks and 4 peers each, no rank is more than two steps away from another
one, and a third of the messages of a full broadcast is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from dask_ma.sfb.topology._graphs import lower_bound
from dask_ma.sfb.topology._search import best_links


@dataclass(frozen=True)
class Topology:
    """The ranks that each rank sends to.

    It is recommended to use :meth:`optimal`, :meth:`complete` or :meth:`from_matrix` to
    create one. A topology cannot be changed; two are equal if their peers are.

    Parameters
    ----------
    peers : sequence of sequence of int
        Entry p holds the ranks that rank p sends to: not itself, none of them twice,
        in any order. There must be a way from each rank to each other one.
    is_proven : bool, default=False
        Whether a search has shown that no topology with as many links out of each rank
        has a smaller sum of distances.

    Attributes
    ----------
    peers : tuple of tuple of int
        The ranks that each rank sends to, sorted.
    is_proven : bool
        As given.

    Raises
    ------
    ValueError
        If the peers are not as described, or some rank cannot be reached from another.

    Examples
    --------
    >>> from dask_ma.sfb.topology import Topology
    >>> topology = Topology.optimal(n_ranks=12, n_peers=4)
    >>> topology.diameter
    2
    >>> topology.is_optimal
    True
    """

    peers: Sequence[Sequence[int]]
    is_proven: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        peers = tuple(tuple(sorted(int(q) for q in row)) for row in self.peers)
        object.__setattr__(self, "peers", peers)
        _check_peers(peers)
        _check_connected(self.distances)

    def __getstate__(self) -> dict[str, Any]:
        # Distances and routes are found again where they are needed.
        return {"peers": self.peers, "is_proven": self.is_proven}

    @classmethod
    def complete(cls, n_ranks: int) -> Self:
        """Each rank sends to all others: a full broadcast.

        Parameters
        ----------
        n_ranks : int
            Number of ranks, at least 1.

        Returns
        -------
        topology : Topology

        Raises
        ------
        ValueError
            If `n_ranks` is below 1.
        """
        _check_n_ranks(n_ranks)
        return cls(
            tuple(tuple(q for q in range(n_ranks) if q != p) for p in range(n_ranks))
        )

    @classmethod
    def from_matrix(cls, adjacency: ArrayLike, *, n_ranks: int | None = None) -> Self:
        """A topology of your own.

        Parameters
        ----------
        adjacency : array-like of bool, shape (P, P)
            Entry (p, q) says whether rank p sends to rank q. Zeros and ones will do.
        n_ranks : int, default=None
            The number of ranks that P has to be; None takes any.

        Returns
        -------
        topology : Topology

        Raises
        ------
        ValueError
            If the matrix is not square, not of the size asked for, holds other values
            than zeros and ones, lets a rank send to itself, or leaves a rank that
            cannot be reached from another one.
        """
        matrix = np.asarray(adjacency)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(
                "the matrix of a topology must be square, one row and one column per "
                f"rank, got shape {matrix.shape}"
            )
        if n_ranks is not None and len(matrix) != n_ranks:
            raise ValueError(
                f"the matrix of a topology has {len(matrix)} rows and columns, but "
                f"there are {n_ranks} ranks"
            )
        if not np.isin(matrix, (0, 1)).all():
            raise ValueError("the matrix of a topology may hold only True and False")
        return cls(tuple(tuple(np.flatnonzero(row).tolist()) for row in matrix))

    @classmethod
    def optimal(cls, n_ranks: int, n_peers: int) -> Self:
        """Each rank sends to `n_peers` others that bring its word on most quickly.

        The sum of the distances between all pairs of ranks is made small. Where
        :attr:`is_optimal` is True nothing can be better: always with one peer (a ring),
        with up to 8 ranks, and with up to ``n_peers * (n_peers + 1)`` ranks.
        Otherwise :attr:`gap` says how far away it can be at most.

        Parameters
        ----------
        n_ranks : int
            Number of ranks, at least 1.
        n_peers : int
            Number Q of ranks that each rank sends to, at least 1, or 0 if there is one
            rank only. From ``n_ranks - 1`` on, each rank sends to all others.

        Returns
        -------
        topology : Topology
            The same one for the same numbers, in every process. About as many ranks
            send to each rank as it sends to.

        Raises
        ------
        ValueError
            If `n_ranks` or `n_peers` is too small.
        """
        _check_n_ranks(n_ranks)
        if n_peers < min(1, n_ranks - 1):
            raise ValueError(f"n_peers must be at least 1, got {n_peers}")
        if n_peers >= n_ranks - 1:
            return cls.complete(n_ranks)
        if n_peers == 1:
            return cls(tuple(((rank + 1) % n_ranks,) for rank in range(n_ranks)))
        return cls(*_best(n_ranks, n_peers))

    @property
    def n_ranks(self) -> int:
        """Number P of ranks."""
        return len(self.peers)

    def sources(self, rank: int) -> tuple[int, ...]:
        """Ranks that send to a rank.

        Parameters
        ----------
        rank : int
            From 0 to ``n_ranks - 1``.

        Returns
        -------
        sources : tuple of int
            Sorted.
        """
        return self._sources[rank]

    @cached_property
    def distances(self) -> NDArray[np.int64]:
        """Number of links on the shortest way from p to q, shape (P, P).

        A rank is at distance 0 from itself. The array cannot be written to.
        """
        counts = [len(row) for row in self.peers]
        indices = np.array([q for row in self.peers for q in row], dtype=np.int32)
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        shape = (self.n_ranks, self.n_ranks)
        graph = csr_array((np.ones(len(indices)), indices, indptr), shape=shape)
        lengths = shortest_path(graph, method="D", unweighted=True)
        distances = np.where(np.isfinite(lengths), lengths, -1).astype(np.int64)
        distances.flags.writeable = False
        return distances

    @property
    def total_distance(self) -> int:
        """Sum of the distances between all pairs of ranks, as in equation 3."""
        return int(self.distances.sum())

    @property
    def diameter(self) -> int:
        """Largest distance between two ranks."""
        return int(self.distances.max())

    @property
    def lower_bound(self) -> int:
        """Least that the sum of distances could be with these numbers of links.

        From a rank that sends to q others there are q ranks at distance 1, and at most
        ``q * Q`` at distance 2, ``q * Q^2`` at distance 3 and so on, where Q is the
        most links that any rank has. No topology need reach it.
        """
        counts = [len(row) for row in self.peers]
        return sum(lower_bound(self.n_ranks, max(counts), count) for count in counts)

    @property
    def gap(self) -> float:
        """``total_distance / lower_bound - 1``; 0.0 if nothing can be better."""
        if self.n_ranks == 1:
            return 0.0
        return self.total_distance / self.lower_bound - 1

    @property
    def is_optimal(self) -> bool:
        """Whether the sum of distances is known to be the least there can be.

        That is so if it reaches the lower bound, or if a search has shown it. A
        topology for which this is False may be the best one all the same.
        """
        return self.is_proven or self.total_distance == self.lower_bound

    def routes(self, rank: int) -> tuple[tuple[int, ...], ...]:
        """Where a rank sends on what it has got from others.

        If all ranks do so, a packet of any rank comes to every other one, exactly once
        and on a shortest way. Where there are several such ways, the one over ranks
        that have had less to send on is taken.

        Parameters
        ----------
        rank : int
            From 0 to ``n_ranks - 1``.

        Returns
        -------
        routes : tuple of tuple of int
            Entry o holds the peers of `rank` to which it sends the packets of rank o,
            sorted. Its own packets go to all of its peers.
        """
        before = self._senders
        return tuple(
            tuple(peer for peer in self.peers[rank] if before[origin, peer] == rank)
            for origin in range(self.n_ranks)
        )

    @cached_property
    def _sources(self) -> tuple[tuple[int, ...], ...]:
        sources: list[list[int]] = [[] for _ in self.peers]
        for rank, peers in enumerate(self.peers):
            for peer in peers:
                sources[peer].append(rank)
        return tuple(tuple(ranks) for ranks in sources)

    @cached_property
    def _senders(self) -> NDArray[np.int64]:
        """From whom rank q gets the packets of rank o, shape (o, q); -1 if o is q."""
        n_ranks = self.n_ranks
        senders = np.full((n_ranks, n_ranks), -1, dtype=np.int64)
        loads = [0] * (n_ranks + 1)  # the last one counts for nobody, that is -1
        # Twice, as the choices for the first ranks know nothing yet of the others.
        for _ in range(2):
            for origin, rank, nearer in self._choices():
                loads[senders[origin, rank]] -= 1
                sender = min(nearer, key=loads.__getitem__)
                senders[origin, rank] = sender
                loads[sender] += 1
        return senders

    def _choices(self) -> Iterator[tuple[int, int, list[int]]]:
        """For each two ranks, who can bring the packets of the one to the other."""
        for origin, lengths in enumerate(self.distances.tolist()):
            for rank, length in enumerate(lengths):
                if rank != origin:
                    sources = self._sources[rank]
                    nearer = [q for q in sources if lengths[q] == length - 1]
                    yield origin, rank, nearer


@lru_cache
def _best(n_ranks: int, n_peers: int) -> tuple[tuple[tuple[int, ...], ...], bool]:
    """Links with a small sum of distances, and whether it is proven to be least."""
    links, is_proven = best_links(n_ranks, n_peers)
    return tuple(tuple(row) for row in links.tolist()), is_proven


def _check_n_ranks(n_ranks: int) -> None:
    if n_ranks < 1:
        raise ValueError(f"n_ranks must be at least 1, got {n_ranks}")


def _check_peers(links: tuple[tuple[int, ...], ...]) -> None:
    """Refuse links to oneself, to ranks that are not there, and twice to one rank."""
    _check_n_ranks(len(links))
    for rank, peers in enumerate(links):
        if rank in peers:
            raise ValueError(f"rank {rank} sends to itself; leave that out")
        if len(set(peers)) < len(peers):
            raise ValueError(f"rank {rank} sends twice to one rank: {peers}")
        if peers and not 0 <= peers[0] <= peers[-1] < len(links):
            raise ValueError(
                f"rank {rank} sends to {peers}, but the ranks are 0 to {len(links) - 1}"
            )


def _check_connected(distances: NDArray[Any]) -> None:
    lost = np.argwhere(distances < 0)
    if len(lost):
        source, dest = lost[0].tolist()
        raise ValueError(
            f"rank {dest} cannot be reached from rank {source}: each rank must have a "
            "way to each other one, over the ranks in between"
        )
