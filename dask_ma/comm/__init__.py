"""Arrays from rank to rank: groups and collective operations.

See :func:`dask_ma.run_spmd` for the way to obtain a group on a Dask cluster.
"""

from dask_ma.comm._alltoall import alltoall, alltoall_steps
from dask_ma.comm._butterfly import (
    ButterflyAverage,
    ButterflyExchange,
    Partners,
    butterfly_allreduce,
    butterfly_depth,
    butterfly_partners,
    sibling,
)
from dask_ma.comm._collectives import (
    allgather,
    allreduce,
    barrier,
    broadcast,
    gather,
    gather_timeline,
    reduce_scatter,
    reduce_scatter_parts,
    sendrecv,
    weighted_mean,
)
from dask_ma.comm._dask import DaskGroup
from dask_ma.comm._group import Counters, Group, payload_nbytes
from dask_ma.comm._local import LocalGroup
from dask_ma.comm._plugin import (
    KEY_PREFIX,
    CommPlugin,
    close_run,
    ensure_plugin,
    has_heeded,
    is_aborted,
    open_ranks,
)
from dask_ma.comm._rooted import (
    broadcast_direct,
    reduce,
    reduce_and_gather,
    run_length,
)
from dask_ma.comm._topology import Layout
from dask_ma.comm._trace import KINDS, TIMELINE_DTYPE, Trace

__all__ = [
    "ButterflyAverage",
    "ButterflyExchange",
    "CommPlugin",
    "Counters",
    "DaskGroup",
    "Group",
    "KEY_PREFIX",
    "KINDS",
    "Layout",
    "LocalGroup",
    "Partners",
    "TIMELINE_DTYPE",
    "Trace",
    "allgather",
    "allreduce",
    "alltoall",
    "alltoall_steps",
    "barrier",
    "broadcast",
    "broadcast_direct",
    "butterfly_allreduce",
    "butterfly_depth",
    "butterfly_partners",
    "close_run",
    "ensure_plugin",
    "gather",
    "gather_timeline",
    "has_heeded",
    "is_aborted",
    "open_ranks",
    "payload_nbytes",
    "reduce",
    "reduce_and_gather",
    "reduce_scatter",
    "reduce_scatter_parts",
    "run_length",
    "sendrecv",
    "sibling",
    "weighted_mean",
]
