"""The engine: ranks are started, followed, stopped and cleaned up."""

from dask_ma.engine._client import fit_client, place_ranks
from dask_ma.engine._context import Listener, Model, RankContext, Record
from dask_ma.engine._fit import run_fit
from dask_ma.engine._job import Job
from dask_ma.engine._launch import launch
from dask_ma.engine._loop import (
    Adder,
    Ended,
    Method,
    RoundLog,
    Snapshot,
    Work,
    fit_rounds,
)
from dask_ma.engine._programs import check_counts, describe_program, run_program_job
from dask_ma.engine._rank_count import quickest_of, worthwhile_ranks
from dask_ma.engine._spmd import run_spmd
from dask_ma.engine.recovery._identity import Identity
from dask_ma.engine.recovery._states import ReplicaOf, State
from dask_ma.engine.recovery._text import as_plain, as_text

__all__ = [
    "Adder",
    "Ended",
    "Identity",
    "Job",
    "Listener",
    "Method",
    "Model",
    "RankContext",
    "Record",
    "ReplicaOf",
    "RoundLog",
    "Snapshot",
    "State",
    "Work",
    "as_plain",
    "as_text",
    "check_counts",
    "describe_program",
    "fit_client",
    "fit_rounds",
    "launch",
    "place_ranks",
    "quickest_of",
    "run_fit",
    "run_program_job",
    "run_spmd",
    "worthwhile_ranks",
]
