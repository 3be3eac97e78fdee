"""Search for networks in which every rank is near to every other (equation 3).

The start is a graph of those known to have nearly the least diameter; random changes of
its links make the distances shorter. For few ranks a branch and bound shows what is
best.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dask_ma.sfb.topology._graphs import (
    Links,
    imase_itoh,
    is_simple,
    lower_bound,
    n_words,
    partial_line,
    sum_of_distances,
)

_SEED = 0
# Limits in steps, not in seconds: every rank has to find the same network.
_ROUNDS = 1_000
_BATCH = 16  # networks of one round
_WORK = 20_000_000  # about the 64-bit words read for one more step in all of them
_EXACT_RANKS = 8


def best_links(n_ranks: int, n_peers: int) -> tuple[Links, bool]:
    """Network with a small sum of the distances between all ranks.

    Parameters
    ----------
    n_ranks : int
        Number of ranks P, above `n_peers` + 1.
    n_peers : int
        Number of ranks Q that each one sends to, at least 2.

    Returns
    -------
    links : ndarray of shape (P, Q)
        The ranks that each rank sends to.
    is_proven : bool
        Whether no other network with Q links out of each rank has a smaller sum.
    """
    goal = n_ranks * lower_bound(n_ranks, n_peers)
    links, total = improve(start_links(n_ranks, n_peers), goal)
    if total == goal or n_ranks > _EXACT_RANKS:
        return balance(links, total), total == goal
    better = ExactSearch(n_ranks, n_peers, total).run()
    return links if better is None else better, True


def start_links(n_ranks: int, n_peers: int) -> Links:
    """The better one of two known graphs.

    Parameters
    ----------
    n_ranks, n_peers : int
        As in :func:`best_links`.

    Returns
    -------
    links : ndarray of shape (P, Q)
    """
    graphs = [imase_itoh(n_ranks, n_peers), partial_line(n_ranks, n_peers)]
    simple = [links for links in graphs if is_simple(links)]
    return min(simple, key=lambda links: int(sum_of_distances(links[None])[0]))


def improve(links: Links, goal: int) -> tuple[Links, int]:
    """Change links to make distances shorter.

    Parameters
    ----------
    links : ndarray of shape (P, Q)
        Start.
    goal : int
        Sum of distances at which to stop.

    Returns
    -------
    links : ndarray of shape (P, Q)
        The best network met.
    total : int
        Sum of its distances.
    """
    rng = np.random.default_rng(_SEED)
    best = links
    least = total = int(sum_of_distances(links[None])[0])
    rounds = _n_rounds(links)
    for number in range(rounds):
        if least <= goal:
            break
        candidates = _neighbours(links, rng)
        totals = sum_of_distances(candidates)
        # Few changes make a network better, so in the first half one that makes it a
        # little worse is taken too. The slack is a whole number: with rounding, two
        # machines could go different ways.
        slack = int(rng.geometric(0.5)) - 1 if number < rounds // 2 else 0
        if len(totals) and totals.min() <= total + slack:
            links, total = candidates[totals.argmin()], int(totals.min())
        if total < least:
            best, least = links, total
    return best, least


def balance(links: Links, total: int) -> Links:
    """Turn links to ranks that few send to, where that makes no distance longer.

    Parameters
    ----------
    links : ndarray of shape (P, Q)
        Start.
    total : int
        Sum of its distances.

    Returns
    -------
    links : ndarray of shape (P, Q)
        Its sum of distances is at most `total`.
    """
    rng = np.random.default_rng(_SEED)
    for _ in range(_n_rounds(links)):
        n_sources = np.bincount(links.ravel(), minlength=len(links))
        rows, columns = np.nonzero(n_sources[links] > links.shape[1])
        if not len(rows):
            break
        chosen = rng.integers(len(rows), size=_BATCH)
        dests = rng.choice(np.flatnonzero(n_sources < links.shape[1]), size=_BATCH)
        candidates = _redirected(links, rows[chosen], columns[chosen], dests)
        good = np.flatnonzero(sum_of_distances(candidates) <= total)
        if len(good):
            links = candidates[good[0]]
    return links


def _n_rounds(links: Links) -> int:
    words = _BATCH * links.size * (n_words(len(links)) + 3)
    return min(_ROUNDS, _WORK // words)


def _neighbours(links: Links, rng: np.random.Generator) -> Links:
    """Networks of which one or two links have been changed, shape (n, P, Q)."""
    n_ranks, n_peers = links.shape
    rows, dests = rng.integers(n_ranks, size=(2, _BATCH // 2))
    columns = rng.integers(n_peers, size=_BATCH // 2)
    return np.concatenate(
        [_swapped(links, rng), _redirected(links, rows, columns, dests)]
    )


def _swapped(links: Links, rng: np.random.Generator) -> Links:
    """Networks in which two links have exchanged their ends: no rank gets more."""
    n_ranks, n_peers = links.shape
    first, second = rng.integers(n_ranks, size=(2, _BATCH // 2))
    i, j = rng.integers(n_peers, size=(2, _BATCH // 2))
    networks = np.repeat(links[None], len(first), axis=0)
    which = np.arange(len(first))
    networks[which, first, i] = links[second, j]
    networks[which, second, j] = links[first, i]
    return networks[_still_simple(networks, first) & _still_simple(networks, second)]


def _redirected(links: Links, rows: Links, columns: Links, dests: Links) -> Links:
    """Networks in which one link goes to another rank."""
    networks = np.repeat(links[None], len(rows), axis=0)
    networks[np.arange(len(rows)), rows, columns] = dests
    return networks[_still_simple(networks, rows)]


def _still_simple(networks: Links, ranks: Links) -> NDArray[np.bool_]:
    """Whether one rank of each network sends to different ranks, and not to itself."""
    peers = np.sort(networks[np.arange(len(networks)), ranks], axis=1)
    repeats = (peers[:, 1:] == peers[:, :-1]).any(axis=1)
    return ~repeats & (peers != ranks[:, None]).all(axis=1)


class ExactSearch:
    """Branch and bound over all networks with Q links out of each rank.

    Ranks are numbered as a search in breadth finds them, from a rank with the least sum
    of distances, and the links of one rank after the other are chosen in that order.
    So only few of the networks that differ by the names of their ranks are looked at.
    A rank without links yet may still send to any Q ranks: that bounds its distances.

    Parameters
    ----------
    n_ranks, n_peers : int
        As in :func:`best_links`.
    total : int
        Only networks with a smaller sum of distances are looked for.
    """

    def __init__(self, n_ranks: int, n_peers: int, total: int) -> None:
        self._n_ranks = n_ranks
        self._n_peers = n_peers
        self._best = total
        self._links: list[int] = []  # bit q of entry p: whether p sends to q
        self._n_new: list[int] = []  # ranks that were found over the links of each
        self._starts = [0]  # the first rank that was found over the links of each
        self._found: list[int] | None = None

    def run(self) -> Links | None:
        """The best network.

        Returns
        -------
        links : ndarray of shape (P, Q) or None
            None if no network has a smaller sum than the one given.
        """
        self._branch(1)
        if self._found is None:
            return None
        return np.array([_members(mask) for mask in self._found])

    def _branch(self, n_seen: int) -> None:
        """Choose the links of the next rank, and then those of all after it."""
        rank = len(self._links)
        if rank == self._n_ranks:
            self._found, self._best = self._links.copy(), self._bound()
        elif rank < n_seen:  # otherwise nobody sends to the ranks that are left
            for mask, n_new in self._choices(rank, n_seen):
                self._descend(mask, n_new, n_seen)

    def _descend(self, mask: int, n_new: int, n_seen: int) -> None:
        """Go on with these links of a rank, if they can still lead to a better sum."""
        self._links.append(mask)
        if self._bound() < self._best:
            self._n_new.append(n_new)
            self._starts.append(n_seen)
            self._branch(n_seen + n_new)
            self._starts.pop()
            self._n_new.pop()
        self._links.pop()

    def _choices(self, rank: int, n_seen: int) -> Iterator[tuple[int, int]]:
        """Links of a rank as bits, and how many of them go to ranks not yet found."""
        most = min(self._n_peers, self._n_ranks - n_seen)
        if rank not in self._starts:
            # The ranks found over the links of one rank may come in any order: first
            # the one that finds most others.
            most = min(most, self._n_new[-1])
        old = [1 << other for other in range(n_seen) if other != rank]
        for n_new in range(most, -1, -1):
            new = ((1 << n_new) - 1) << n_seen
            for chosen in combinations(old, self._n_peers - n_new):
                yield new | sum(chosen), n_new

    def _bound(self) -> int:
        """Least sum of distances with the links that are chosen."""
        own = [self._bound_from(rank) for rank in range(self._n_ranks)]
        return sum(max(bound, own[0]) for bound in own)

    def _bound_from(self, rank: int) -> int:
        """Least sum of distances from one rank."""
        n_chosen = len(self._links)
        reached = layer = 1 << rank
        # Most ranks that are found over links not yet chosen: at this distance, in all.
        latest = others = total = 0
        while (missing := self._n_ranks - reached.bit_count() - others) > 0:
            total += missing
            latest = (latest + (layer >> n_chosen).bit_count()) * self._n_peers
            others += latest
            layer = self._next_layer(layer & ((1 << n_chosen) - 1)) & ~reached
            reached |= layer
            if not layer and not latest:  # the ranks that are left are never reached
                return self._best
        return total

    def _next_layer(self, layer: int) -> int:
        following = 0
        while layer:
            lowest = layer & -layer
            following |= self._links[lowest.bit_length() - 1]
            layer ^= lowest
        return following


def _members(mask: int) -> list[int]:
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
