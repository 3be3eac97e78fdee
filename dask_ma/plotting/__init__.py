"""Pictures of what a fit has done; they need matplotlib (the extra `plot`)."""

from dask_ma.plotting._convergence import ConvergenceDisplay
from dask_ma.plotting._gantt import GanttDisplay
from dask_ma.plotting._network import NetworkDisplay
from dask_ma.plotting._topology import TopologyDisplay

__all__ = ["ConvergenceDisplay", "GanttDisplay", "NetworkDisplay", "TopologyDisplay"]
