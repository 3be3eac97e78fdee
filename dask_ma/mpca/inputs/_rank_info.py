"""The rank that a stream of items is for, for data sets that share themselves out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

_current = threading.local()


class RankInfo(NamedTuple):
    """A rank among the others.

    Attributes
    ----------
    rank : int
        From 0.
    n_ranks : int
    """

    rank: int
    n_ranks: int


def get_rank_info() -> RankInfo | None:
    """Which rank the items are for that a data set is being asked for.

    An ``IterableDataset`` that calls it before it gives its first item shares itself
    out: the rank takes all items that come. Otherwise it takes every P-th of them.

    Returns
    -------
    info : RankInfo or None
        None outside of a fit.

    Examples
    --------
    >>> from dask_ma.mpca import get_rank_info
    >>> get_rank_info() is None
    True
    """
    _current.asked = True
    info: RankInfo | None = getattr(_current, "info", None)
    return info


@contextmanager
def asked_for_rank(info: Any) -> Iterator[Callable[[], bool]]:
    """Have :func:`get_rank_info` tell a rank in this thread; whether it was asked."""
    before = getattr(_current, "info", None)
    _current.info, _current.asked = info, False
    found: list[bool] = []
    try:
        yield lambda: bool(found and found[0])
    finally:
        found.append(_current.asked)
        _current.info = before
