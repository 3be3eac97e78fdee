"""What each parameter of each estimator does, and where it can do nothing."""

from parameter_table._acts import ACTS, Acts
from parameter_table._inactive import EXEMPT, INACTIVE, Case
from parameter_table._world import (
    ESTIMATORS,
    SIBLINGS,
    Seen,
    changed,
    observe,
    parameters_of,
    rows_of,
)

__all__ = [
    "ACTS",
    "Acts",
    "Case",
    "ESTIMATORS",
    "EXEMPT",
    "INACTIVE",
    "SIBLINGS",
    "Seen",
    "changed",
    "observe",
    "parameters_of",
    "rows_of",
]
