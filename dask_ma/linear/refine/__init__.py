"""To the optimum of a linear model's objective, from where SGD has left it."""

from dask_ma.linear.refine._choice import is_one_round, is_quick, unrefined_by
from dask_ma.linear.refine._coordinates import Penalty
from dask_ma.linear.refine._near import NEAR, start_ratio
from dask_ma.linear.refine._refinement import Refinable
from dask_ma.linear.refine._run import refine

__all__ = [
    "NEAR",
    "Penalty",
    "Refinable",
    "is_one_round",
    "is_quick",
    "refine",
    "start_ratio",
    "unrefined_by",
]
