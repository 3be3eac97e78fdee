"""The agent of a matrix factorization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle
import numpy as np

from dask_ma.engine import RankContext
from dask_ma.schmp.factorization._conjugate import ConjugateGradientFactorization
from dask_ma.schmp.factorization._least_squares import LeastSquaresFactorization
from dask_ma.schmp.factorization._params import FactorizationParams
from dask_ma.schmp.factorization._program import Factorization
from dask_ma.schmp.factorization._sgd import SGDFactorization
from dask_ma.schmp.runtime._run import (
    ProgramResult,
    RunParams,
    join_results,
    run_program,
)

_SOLVERS: dict[str, Callable[[FactorizationParams], Factorization]] = {
    "cholesky": LeastSquaresFactorization,
    "cg": ConjugateGradientFactorization,
    "sgd": SGDFactorization,
}


class FactorizationResult(NamedTuple):
    """What the client makes of what the ranks return."""

    fitted: dict[str, np.ndarray]
    history: list[dict[str, Any]]
    converged: bool
    timeline: np.ndarray | None


def join(results: list[ProgramResult], params: Any = None) -> FactorizationResult:
    """Factors of all ranks; none of them has all."""
    return FactorizationResult(*join_results(results))


def train(
    context: RankContext, arguments: Any, params: FactorizationParams
) -> ProgramResult:
    """Agent: rotations until the objective stays where it is.

    Parameters
    ----------
    context : RankContext
        This rank.
    arguments : object
        Rows of user, item and rating, as the data layer lays them out.
    params : FactorizationParams
        Parameters of the fit.

    Returns
    -------
    result : ProgramResult
        Its model is what this rank has of the factors.
    """
    rotations = params.rotations_per_round
    program = _SOLVERS[params.method](params)
    return run_program(
        context,
        arguments,
        RunParams(
            program=cloudpickle.dumps(program),
            n_iterations=params.max_iter * rotations,
            pipeline_depth="auto",
            n_schedulers=1,
            report_every=rotations,
            has_targets=False,
        ),
    )
