"""Scheduled model parallelism: programs that say which parameters to update next.

A program chooses some parameters (`schedule`), every rank works on them with its rows
(`update`), and the results of all ranks change the model (`aggregate`). The engine
carries the iterations out, several at a time.

Where the model fits on no rank, a `RotationProgram` cuts the parameters into blocks,
which travel from rank to rank while the data stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_ma._lazy import importer

if TYPE_CHECKING:
    from dask_ma.schmp import schedules
    from dask_ma.schmp.coordinate._column_descent import ColumnDescent
    from dask_ma.schmp.coordinate._coordinate import CoordinateDescent
    from dask_ma.schmp.factorization._estimator import SchMPMatrixFactorization
    from dask_ma.schmp.factorization._folding import Explanation
    from dask_ma.schmp.factorization._model import Recommendations
    from dask_ma.schmp.l1._classifier import SchMPLogisticRegression
    from dask_ma.schmp.l1._lasso import SchMPLasso
    from dask_ma.schmp.l1._lasso_cv import SchMPLassoCV
    from dask_ma.schmp.runtime._dynamic import Counts, DynamicEngine
    from dask_ma.schmp.runtime._program import (
        Change,
        Program,
        Request,
        Schedule,
        Schedulers,
    )
    from dask_ma.schmp.runtime._ring import ParameterBlock
    from dask_ma.schmp.runtime._rotation import RotationEngine
    from dask_ma.schmp.runtime._rotation_program import RotationProgram, Turn
    from dask_ma.schmp.runtime._run import ProgramResult, run
    from dask_ma.schmp.topics._documents import TokenTopics
    from dask_ma.schmp.topics._estimator import SchMPLDA

__all__ = [
    "Change",
    "ColumnDescent",
    "CoordinateDescent",
    "Counts",
    "DynamicEngine",
    "Explanation",
    "ParameterBlock",
    "Program",
    "ProgramResult",
    "Recommendations",
    "Request",
    "RotationEngine",
    "RotationProgram",
    "SchMPLDA",
    "SchMPLasso",
    "SchMPLassoCV",
    "SchMPLogisticRegression",
    "SchMPMatrixFactorization",
    "Schedule",
    "Schedulers",
    "TokenTopics",
    "Turn",
    "run",
    "schedules",
]

__getattr__, __dir__ = importer(
    __name__,
    {
        "Change": "runtime._program",
        "ColumnDescent": "coordinate._column_descent",
        "CoordinateDescent": "coordinate._coordinate",
        "Counts": "runtime._dynamic",
        "DynamicEngine": "runtime._dynamic",
        "Explanation": "factorization._folding",
        "ParameterBlock": "runtime._ring",
        "Program": "runtime._program",
        "ProgramResult": "runtime._run",
        "Recommendations": "factorization._model",
        "Request": "runtime._program",
        "RotationEngine": "runtime._rotation",
        "RotationProgram": "runtime._rotation_program",
        "SchMPLDA": "topics._estimator",
        "SchMPLasso": "l1._lasso",
        "SchMPLassoCV": "l1._lasso_cv",
        "SchMPLogisticRegression": "l1._classifier",
        "SchMPMatrixFactorization": "factorization._estimator",
        "Schedule": "runtime._program",
        "Schedulers": "runtime._program",
        "TokenTopics": "topics._documents",
        "Turn": "runtime._rotation_program",
        "run": "runtime._run",
        "schedules": "schedules",
    },
)
