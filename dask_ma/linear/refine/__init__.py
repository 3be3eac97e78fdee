"""To the optimum of a linear model's objective, from where SGD has left it."""

from dask_ma.linear.refine._choice import is_one_round, is_quick, unrefined_by
from dask_ma.linear.refine._coordinates import Penalty
from dask_ma.linear.refine._refinement import Refinable
from dask_ma.linear.refine._run import refine
from dask_ma.linear.refine._warm_start import NEAR, start_ratio

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
