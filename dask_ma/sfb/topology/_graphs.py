"""Networks with short ways, and how long the ways in a network are.

A network is an array of shape (P, Q): row p holds the ranks that rank p sends to, its
links.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Links = NDArray[np.int64]

_BITS = 64


def lower_bound(n_ranks: int, n_peers: int, first: int | None = None) -> int:
    """Least sum of the distances from one rank to all others.

    Parameters
    ----------
    n_ranks : int
        Number of ranks, at least 1.
    n_peers : int
        Most ranks that a rank sends to, at least 1 unless there is one rank only.
    first : int, default=None
        Number of ranks that this one rank sends to; None means `n_peers`.

    Returns
    -------
    bound : int
        Its value if `first` ranks are at distance 1, ``first * n_peers`` at distance
        2, and so on until there are no more.
    """
    left, distance, total = n_ranks - 1, 1, 0
    width = n_peers if first is None else first
    while left > 0:
        width = min(width, left)
        total += width * distance
        left -= width
        width *= n_peers
        distance += 1
    return total


def imase_itoh(n_ranks: int, n_peers: int) -> Links:
    """Graph of Imase and Itoh: rank i sends to ``-(Q i + j) mod P`` for j = 1, ..., Q.

    As many ranks send to each rank as it sends to. Its links from a rank to itself are
    turned into links between those ranks.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, above `n_peers`.
    n_peers : int
        Number of ranks Q that each one sends to, at least 2.

    Returns
    -------
    links : ndarray of shape (P, Q)
        For some numbers of ranks not simple, see :func:`is_simple`.
    """
    ranks = np.arange(n_ranks)[:, None]
    links = -(n_peers * ranks + np.arange(1, n_peers + 1)) % n_ranks
    loops, columns = np.nonzero(links == ranks)
    for shift in range(1, len(loops)):
        new = links.copy()
        new[loops, columns] = np.roll(loops, shift)
        if is_simple(new):
            return new
    return links


def partial_line(n_ranks: int, n_peers: int) -> Links:
    """Partial line graph of a smaller network of the same kind (Fiol and Llado).

    Each rank stands for a link (u, v) of the smaller network, and sends to one link
    into each rank w that v sends to: to (v, w) if that link is among them. So its
    longest way is at most one step longer. It starts from a complete network; with up
    to ``Q * (Q + 1)`` ranks no rank is more than two steps from another.

    Parameters
    ----------
    n_ranks, n_peers : int
        As in :func:`imase_itoh`.

    Returns
    -------
    links : ndarray of shape (P, Q)
        Simple. About as many ranks send to each rank as it sends to.
    """
    if n_ranks == n_peers + 1:
        others = np.arange(n_ranks)[:, None] + np.arange(1, n_ranks)
        return others % n_ranks
    small = partial_line(max(n_peers + 1, -(-n_ranks // n_peers)), n_peers)
    chosen = _links_into_each(small, n_ranks)
    number = {link: rank for rank, link in enumerate(chosen)}
    into: list[list[int]] = [[] for _ in small]
    for rank, (_, head) in enumerate(chosen):
        into[head].append(rank)
    wanted = [[(head, int(w)) for w in small[head]] for _, head in chosen]
    n_sources = [0] * n_ranks
    for link in (link for row in wanted for link in row if link in number):
        n_sources[number[link]] += 1
    links = np.empty((n_ranks, n_peers), dtype=np.int64)
    for rank, row in enumerate(wanted):
        for column, link in enumerate(row):
            dest = number.get(link)
            if dest is None:
                dest = min(into[link[1]], key=n_sources.__getitem__)
                n_sources[dest] += 1
            links[rank, column] = dest
    return links


def _links_into_each(links: Links, n_links: int) -> list[tuple[int, int]]:
    """Some links (from, to) of a network, about as many into each rank."""
    # One into each rank comes first, so there are some into every one of them.
    rounds: list[list[tuple[int, int]]] = []
    n_sources = [0] * len(links)
    for head, tail in sorted((int(q), p) for p, row in enumerate(links) for q in row):
        if n_sources[head] == len(rounds):
            rounds.append([])
        rounds[n_sources[head]].append((tail, head))
        n_sources[head] += 1
    return [link for links_of_round in rounds for link in links_of_round][:n_links]


def is_simple(links: Links) -> bool:
    """Whether no rank sends to itself, nor twice to another one.

    Parameters
    ----------
    links : ndarray of shape (P, Q)

    Returns
    -------
    simple : bool
    """
    row = np.sort(links, axis=1)
    own = np.arange(len(links))[:, None]
    return bool((row[:, 1:] != row[:, :-1]).all() and (row != own).all())


def sum_of_distances(networks: Links) -> NDArray[np.int64]:
    """Sum of the distances between all ranks, for several networks at once.

    Parameters
    ----------
    networks : ndarray of shape (B, P, Q)

    Returns
    -------
    totals : ndarray of shape (B,)
        A pair of ranks without a way between them counts as if it were P^2 apart.
    """
    n_networks, n_ranks, _ = networks.shape
    own = np.zeros((n_ranks, n_words(n_ranks)), dtype=np.uint64)
    ranks = np.arange(n_ranks)
    own[ranks, ranks // _BITS] = np.uint64(1) << (ranks % _BITS).astype(np.uint64)
    # Bit q of reached[b, p]: whether p's word has come to q after so many steps.
    reached = np.broadcast_to(own, (n_networks, *own.shape))
    which = np.arange(n_networks)[:, None, None]
    totals = np.zeros(n_networks, dtype=np.int64)
    missing = np.full(n_networks, n_ranks * (n_ranks - 1))
    while True:
        totals += missing
        reached = np.bitwise_or.reduce(reached[which, networks], axis=2) | own
        before = missing
        counts = np.bitwise_count(reached).sum(axis=(1, 2), dtype=np.int64)
        missing = n_ranks**2 - counts
        if not missing.any() or (missing == before).all():
            return totals + missing * n_ranks**2


def n_words(n_ranks: int) -> int:
    """Number of 64-bit words with one bit for each rank.

    Parameters
    ----------
    n_ranks : int

    Returns
    -------
    count : int
    """
    return -(-n_ranks // _BITS)
