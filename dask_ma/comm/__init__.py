"""Arrays from rank to rank: groups and collective operations.

See :func:`dask_ma.run_spmd` for the way to obtain a group on a Dask cluster.
"""

from dask_ma.comm._collectives import (
    allgather,
    allreduce,
    barrier,
    broadcast,
    gather,
    reduce_scatter,
    sendrecv,
    weighted_mean,
)
from dask_ma.comm._dask import DaskGroup
from dask_ma.comm._group import Counters, Group
from dask_ma.comm._local import LocalGroup
from dask_ma.comm._plugin import (
    KEY_PREFIX,
    CommPlugin,
    close_run,
    ensure_plugin,
    is_aborted,
    open_ranks,
)
from dask_ma.comm._topology import Layout

__all__ = [
    "KEY_PREFIX",
    "CommPlugin",
    "Counters",
    "DaskGroup",
    "Group",
    "Layout",
    "LocalGroup",
    "allgather",
    "allreduce",
    "barrier",
    "broadcast",
    "close_run",
    "ensure_plugin",
    "gather",
    "is_aborted",
    "open_ranks",
    "reduce_scatter",
    "sendrecv",
    "weighted_mean",
]
