"""Placement of rows on ranks: arithmetic only, driven by hand in the tests.

Three plans. *Contiguous*: rank r gets the r-th run of consecutive rows, so the result
does not depend on the cluster. *Dealt*: each rank gets many short runs from everywhere,
so no rank is left with the rows of one class if they come sorted. *In place*: every row
stays on the worker that holds it, except where a worker holds much more than its
share::

    40 blocks of 10 rows, 2 workers of one rank each, imbalance 0.1
    worker 0 holds blocks 0-29    keeps 220 rows, its share of 200 and a tenth
    worker 1 holds blocks 30-39   gets the last 80 rows of worker 0: 8 whole blocks
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

__all__: list[str] = []

_MOST_DEALS = 64  # runs of a rank; each is a block of its own to check and to join
_DEAL_SEED = 20210610


class Segment(NamedTuple):
    """Rows `start` to `stop` (excluded) of one block."""

    block: int
    start: int
    stop: int


Plan = list[list[Segment]]


def plan_contiguous(lengths: Sequence[int], n_ranks: int) -> Plan:
    """Give rank r the rows from r*n//P to (r+1)*n//P, in order.

    Parameters
    ----------
    lengths : sequence of int
        Rows of each block.
    n_ranks : int

    Returns
    -------
    list of list of Segment
        One list per rank.
    """
    whole = [Segment(block, 0, rows) for block, rows in enumerate(lengths) if rows]
    return split_evenly(whole, n_ranks)


def plan_dealt(lengths: Sequence[int], n_ranks: int) -> Plan:
    """Deal rows out in runs, like cards, so that each rank gets rows from everywhere.

    In each deal every rank gets one run of consecutive rows; which one it gets is drawn
    at random, for rows may repeat with the period of a deal. The draw is always the
    same. What does not make a whole deal is dealt out row by row.

    Parameters
    ----------
    lengths : sequence of int
        Rows of each block.
    n_ranks : int

    Returns
    -------
    list of list of Segment
        One list per rank, in the order of the rows; their counts differ by one at most.
    """
    n_rows = sum(lengths)
    if n_ranks == 1 or not n_rows:
        return plan_contiguous(lengths, n_ranks)
    n_deals = max(1, min(_MOST_DEALS, n_rows // n_ranks))
    run = n_rows // (n_ranks * n_deals)
    bounds = np.arange(1, n_ranks * n_deals + 1) * run
    bounds = np.concatenate([bounds, np.arange(bounds[-1] + 1, n_rows + 1)])
    bounds = bounds[bounds > 0]
    rng = np.random.default_rng(_DEAL_SEED)
    owners = np.concatenate(
        [rng.permutation(n_ranks) for _ in range(-(-len(bounds) // n_ranks))]
    )
    whole = [Segment(block, 0, rows) for block, rows in enumerate(lengths) if rows]
    plan: Plan = [[] for _ in range(n_ranks)]
    for owner, segments in zip(
        owners[: len(bounds)].tolist(), cut_at(whole, bounds.tolist()), strict=True
    ):
        plan[owner] += segments
    return plan


def split_evenly(segments: Sequence[Segment], n_parts: int) -> Plan:
    """Cut a sequence of segments into parts whose row counts differ by one at most."""
    n_rows = sum(segment.stop - segment.start for segment in segments)
    bounds = [part * n_rows // n_parts for part in range(1, n_parts + 1)]
    return cut_at(segments, bounds)


def cut_at(segments: Sequence[Segment], bounds: Sequence[int]) -> Plan:
    """Cut a sequence of segments at row counts from its beginning."""
    parts: Plan = [[] for _ in bounds]
    part = position = 0
    for block, start, stop in segments:
        while start < stop:
            while bounds[part] <= position:
                part += 1
            taken = min(stop - start, bounds[part] - position)
            parts[part].append(Segment(block, start, start + taken))
            start += taken
            position += taken
    return parts


def main_ranks(lengths: Sequence[int], n_ranks: int) -> list[int]:
    """Rank that owns most rows of each block in the contiguous plan."""
    most = [0] * len(lengths)
    owner = [0] * len(lengths)
    for rank, segments in enumerate(plan_contiguous(lengths, n_ranks)):
        for block, start, stop in segments:
            if stop - start > most[block]:
                most[block], owner[block] = stop - start, rank
    return owner


def plan_in_place(
    lengths: Sequence[int],
    holders: Sequence[Sequence[str]],
    addresses: Sequence[str],
    imbalance: float,
) -> Plan:
    """Leave rows on the workers that hold them, as far as balance allows.

    Parameters
    ----------
    lengths : sequence of int
        Rows of each block.
    holders : sequence of sequence of str
        Workers that hold each block.
    addresses : sequence of str
        Worker of each rank.
    imbalance : float
        A worker keeps at most (1 + imbalance) times its fair share.

    Returns
    -------
    list of list of Segment
        One list per rank, each in global row order.
    """
    workers = list(dict.fromkeys(addresses))
    n_ranks_of = Counter(addresses)
    ranks = [n_ranks_of[worker] for worker in workers]
    kept, loose = _at_home(lengths, holders, workers, ranks)
    n_rows = sum(lengths)
    for held, count in zip(kept, ranks, strict=True):
        loose += _trim(held, _capacity(n_rows, count, len(addresses), imbalance))
    loads = [_n_rows(held) for held in kept]
    received = fill_lowest(loads, ranks, _n_rows(loose))
    bounds = list(accumulate(received))
    for held, extra in zip(kept, cut_at(sorted(loose), bounds), strict=True):
        held[:] = sorted(held + extra)
    shares = [split_evenly(held, n) for held, n in zip(kept, ranks, strict=True)]
    queues = {
        worker: iter(share) for worker, share in zip(workers, shares, strict=True)
    }
    return [next(queues[address]) for address in addresses]


def _n_rows(segments: Sequence[Segment]) -> int:
    """Rows in some segments."""
    return sum(segment.stop - segment.start for segment in segments)


def _capacity(n_rows: int, ranks_here: int, n_ranks: int, imbalance: float) -> int:
    """Most rows that a worker may keep; never less than its fair share, rounded up."""
    fair = n_rows * ranks_here / n_ranks
    return max(int(fair * (1 + imbalance)), -(-n_rows * ranks_here // n_ranks))


def _at_home(
    lengths: Sequence[int],
    holders: Sequence[Sequence[str]],
    workers: list[str],
    ranks: list[int],
) -> tuple[Plan, list[Segment]]:
    """Segments on each worker that carries a rank, and those that must move."""
    kept: Plan = [[] for _ in workers]
    places = {worker: place for place, worker in enumerate(workers)}
    loads = [0] * len(workers)
    loose = []
    for block, rows in enumerate(lengths):
        if not rows:
            continue
        here = sorted({places[w] for w in holders[block] if w in places})
        if not here:
            loose.append(Segment(block, 0, rows))
            continue
        # A block with copies counts where there is least to do; the first on a tie.
        home = min(here, key=lambda w: loads[w] / ranks[w])
        kept[home].append(Segment(block, 0, rows))
        loads[home] += rows
    return kept, loose


def _trim(held: list[Segment], capacity: int) -> list[Segment]:
    """Take from the end of `held` what exceeds `capacity`, and return it."""
    taken = []
    excess = _n_rows(held) - capacity
    while excess > 0:
        block, start, stop = held.pop()
        cut = max(start, stop - excess)
        taken.append(Segment(block, cut, stop))
        excess -= stop - cut
        if cut > start:
            held.append(Segment(block, start, cut))
    return taken


def fill_lowest(loads: Sequence[int], weights: Sequence[int], amount: int) -> list[int]:
    """Share out `amount` rows so that the least loaded rise to one level.

    Parameters
    ----------
    loads : sequence of int
        Rows that each worker has.
    weights : sequence of int
        Ranks of each worker; loads are compared per rank.
    amount : int
        Rows to share out.

    Returns
    -------
    list of int
        Rows each worker receives; their sum is `amount`.
    """
    order = sorted(range(len(loads)), key=lambda w: loads[w] / weights[w])
    level = 0.0
    below: list[int] = []
    height, width = amount, 0
    for worker in order:
        if below and level <= loads[worker] / weights[worker]:
            break
        below.append(worker)
        height += loads[worker]
        width += weights[worker]
        level = height / width
    received = [0] * len(loads)
    given, wanted = 0, 0.0
    for worker in sorted(below):
        wanted += level * weights[worker] - loads[worker]
        received[worker] = max(round(wanted) - given, 0)
        given += received[worker]
    received[max(below)] += amount - given
    return received
