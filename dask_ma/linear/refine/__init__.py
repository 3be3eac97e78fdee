"""To the optimum of a linear model's objective, from where SGD has left it."""

from dask_ma.linear.refine._coordinates import Penalty
from dask_ma.linear.refine._run import Refinable, choose_method, refine, unrefined_by

__all__ = ["Penalty", "Refinable", "choose_method", "refine", "unrefined_by"]
