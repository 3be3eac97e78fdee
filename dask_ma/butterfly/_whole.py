"""Mixing of whole weights, where the ranks have changed a large part of them.

To follow many changes one by one takes longer than to average all weights. Those that
travel between two processes are still the ones that differ from what both ranks had
before, if these are fewer bytes: the other rank puts the rest in, so that the result is
the same to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.butterfly._mixing import Pending, start_mixing
from dask_ma.butterfly._state import RankState
from dask_ma.comm import ButterflyExchange, Group


class WholeMixer:
    """Mixes all weights of the ranks in every exchange.

    Parameters
    ----------
    group : Group
        This rank, of two or more.
    state : RankState
        State of this rank; the number of its next exchange is that of the first one.
    mixing : {"butterfly", "allreduce", "periodic"}
        How the ranks mix; see :func:`start_mixing`.
    """

    def __init__(self, group: Group, state: RankState, mixing: str) -> None:
        self._group, self._mixing = group, mixing
        self._step = state.n_exchanges
        self._pending: Pending | None = None
        # Two ranks have the same weights after each exchange.
        are_apart = group.size == 2 and len(group.local_ranks) == 1
        self._is_known = mixing == "butterfly" and are_apart
        self._known: np.ndarray | None = None  # to both, before the steps since
        if self._is_known and state.is_base and state.base is not None:
            self._known = state.base

    def begin(self, weights: np.ndarray) -> None:
        """Send what the others need; the weights must not change any more."""
        if self._known is None:
            self._pending = start_mixing(self._group, weights, self._step, self._mixing)
        else:
            self._pending = _start_known(self._group, weights, self._known, self._step)
        self._step += 1

    def finish(self) -> np.ndarray:
        """Wait for the others; weights that may be changed, as those sent may not."""
        if self._pending is None:
            raise RuntimeError("an exchange is to begin before it is finished")
        mixed = self._pending()
        self._pending = None
        if self._is_known:
            self._known = mixed.copy()
        return mixed


def _start_known(
    group: Group, weights: np.ndarray, known: np.ndarray, step: int
) -> Pending:
    """A step of butterfly mixing of weights that differ from known ones."""
    exchange = ButterflyExchange(group, differences(weights, known), step)

    def finish() -> np.ndarray:
        mixed = with_differences(known, exchange.finish())
        mixed += weights
        mixed *= 0.5
        return mixed

    return finish


def differences(weights: np.ndarray, known: np.ndarray) -> list[Any]:
    """What somebody who knows other weights needs to have these.

    Parameters
    ----------
    weights, known : ndarray of shape (n_rows, n_problems)
        Of the same type.

    Returns
    -------
    parts : list of ndarray
        A bit for each row, and the rows that differ by a bit or more; or the weights,
        if these are fewer bytes.
    """
    bits = f"i{weights.itemsize}"
    # Rows of one are compared in a fraction of the time that others take.
    is_other = weights.view(bits) != known.view(bits)
    is_row = is_other[:, 0] if is_other.shape[1] == 1 else is_other.any(axis=1)
    n_bytes = np.count_nonzero(is_row) * weights[:1].nbytes + len(weights) // 8
    if n_bytes >= weights.nbytes:
        return [weights]
    return [np.packbits(is_row), weights[is_row]]


def with_differences(known: np.ndarray, parts: list[Any]) -> np.ndarray:
    """The weights that :func:`differences` has told of, a new array."""
    if len(parts) == 1:
        return np.array(parts[0])
    bits, rows = parts
    weights = known.copy()
    weights[np.unpackbits(bits, count=len(known)).view(bool)] = rows
    return weights
