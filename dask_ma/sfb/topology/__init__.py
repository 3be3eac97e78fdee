"""Networks of partial broadcasting: the ranks that each rank sends its factors to."""

from dask_ma.sfb.topology._topology import Topology

__all__ = ["Topology"]
