"""The spans of all ranks on one."""

from __future__ import annotations

import numpy as np

from dask_ma.comm._collectives import gather
from dask_ma.comm._group import Group
from dask_ma.comm._trace import merge_packed


def gather_timeline(
    group: Group, *, origin: float = 0.0, root: int = 0
) -> np.ndarray | None:
    """Give the root what all ranks have done when; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    origin : float, default=0.0
        Time of day, in seconds since 1970, that the root's times count from.
    root : int, default=0
        Rank that gets them.

    Returns
    -------
    timeline : ndarray of shape (n_spans,), or None
        On the root, one element per span, sorted by start. Fields: `rank`; `kind`, one
        of "compute", "evaluate", "aggregate", "send" and "wait"; `start` and `stop` in
        seconds; `peer`, the rank at the other end or -1; `nbytes`, bytes of the arrays
        sent or waited for. None on the other ranks.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_ma import run_spmd
    >>> from dask_ma.comm import allreduce, gather_timeline
    >>> def program(group):
    ...     with group.trace.span("compute"):
    ...         own = np.ones(10).cumsum()
    ...     allreduce(group, own)
    ...     return gather_timeline(group)
    >>> timeline, nothing = run_spmd(program, n_ranks=2)
    >>> sorted(set(timeline["kind"].tolist()))
    ['aggregate', 'compute', 'send', 'wait']
    """
    packed = gather(group, group.trace.packed(), root)
    return None if packed is None else merge_packed(packed, origin)
