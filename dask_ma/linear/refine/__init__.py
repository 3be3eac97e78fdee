"""To the optimum of a linear model's objective, from where SGD has left it."""

from dask_ma.linear.refine._run import Refinable, choose_method, refine, unrefined_by

__all__ = ["Refinable", "choose_method", "refine", "unrefined_by"]
