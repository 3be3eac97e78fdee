"""How ranks are started, followed, stopped and cleaned up."""

from dask_ma.engine._client import fit_client, place_ranks
from dask_ma.engine._context import Listener, Model, RankContext, Record
from dask_ma.engine._fit import Job, run_fit
from dask_ma.engine._keeper import State
from dask_ma.engine._launch import launch
from dask_ma.engine._programs import check_counts, identity_of, run_program_job
from dask_ma.engine._rounds import RoundLog
from dask_ma.engine._spmd import run_spmd

__all__ = [
    "Job",
    "Listener",
    "Model",
    "RankContext",
    "Record",
    "RoundLog",
    "State",
    "check_counts",
    "fit_client",
    "identity_of",
    "launch",
    "place_ranks",
    "run_fit",
    "run_program_job",
    "run_spmd",
]
