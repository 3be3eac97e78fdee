"""Parameters shared out over blocks, so that the work of each is the same."""

from __future__ import annotations

import heapq

import numpy as np

_ONE_BY_ONE = 20_000  # parameters that go to the lightest block, one after the other
_RUNS = 256  # in which the others are dealt out


def balanced_parts(work: np.ndarray, n_parts: int) -> list[np.ndarray]:
    """Share parameters out so that the work of each part is about the same.

    The heaviest go one after the other to the part that has least, the many light ones
    are dealt out in turns to the parts that have less than their share.

    Parameters
    ----------
    work : ndarray of float64 of shape (n_parameters,)
        Work of each parameter, not negative.
    n_parts : int
        Number of parts, at least 1.

    Returns
    -------
    parts : list of ndarray of int64
        Parameters of each part, in increasing order; together all, each once.
    """
    order = np.argsort(-work, kind="stable")
    heavy = order[:_ONE_BY_ONE]
    heavy = heavy[work[heavy] > 0]
    owner = np.empty(len(work), dtype=np.int64)
    loads = _deal_heaviest(work, heavy, owner, n_parts)
    _deal_in_turns(work, order[len(heavy) :], owner, loads)
    by_part = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=n_parts))
    return [part.astype(np.int64) for part in np.split(by_part, ends[:-1])]


def even_parts(n_parameters: int, n_parts: int) -> list[np.ndarray]:
    """Ranges of the same length, as far as possible.

    Parameters
    ----------
    n_parameters : int
        Number of parameters.
    n_parts : int
        Number of parts, at least 1.

    Returns
    -------
    parts : list of ndarray of int64
    """
    bounds = [n_parameters * part // n_parts for part in range(n_parts + 1)]
    return [
        np.arange(start, stop, dtype=np.int64)
        for start, stop in zip(bounds, bounds[1:], strict=False)
    ]


def _deal_heaviest(
    work: np.ndarray, heavy: np.ndarray, owner: np.ndarray, n_parts: int
) -> np.ndarray:
    """Give each to the lightest part; work of the parts after that."""
    lightest = [(0.0, 0, part) for part in range(n_parts)]
    for parameter, amount in zip(heavy.tolist(), work[heavy].tolist(), strict=True):
        load, count, part = lightest[0]
        owner[parameter] = part
        heapq.heapreplace(lightest, (load + amount, count + 1, part))
    loads = np.zeros(n_parts)
    for load, _, part in lightest:
        loads[part] = load
    return loads


def _deal_in_turns(
    work: np.ndarray, light: np.ndarray, owner: np.ndarray, loads: np.ndarray
) -> None:
    """Deal out what is left, in runs, to the parts that have less than their share."""
    share = work.sum() / len(loads)
    counts = np.zeros(len(loads))
    for run in np.array_split(light, min(_RUNS, max(1, len(light)))):
        eager = np.flatnonzero(loads <= share)
        if not len(eager):  # by rounding
            eager = np.arange(len(loads))
        eager = eager[np.lexsort((counts[eager], loads[eager]))]
        turns = np.resize(np.concatenate([eager, eager[::-1]]), len(run))
        owner[run] = turns
        loads += np.bincount(turns, weights=work[run], minlength=len(loads))
        counts += np.bincount(turns, minlength=len(loads))
