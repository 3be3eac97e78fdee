"""To the optimum of a linear model's objective, from where SGD has left it."""

from dask_ma.linear.refine._run import Outcome, choose_method, refine

__all__ = ["Outcome", "choose_method", "refine"]
