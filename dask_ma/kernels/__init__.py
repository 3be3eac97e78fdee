"""Pure maths on NumPy and SciPy arrays: no Dask, no scikit-learn, no state."""

from dask_ma.kernels._gradients import GradientSums, gradient_sums, loss_slopes
from dask_ma.kernels._losses import LOSSES, loss_values
from dask_ma.kernels._minibatch import (
    batch_slopes,
    descend,
    feature_moments,
    jacobi_preconditioner,
    project,
    shrink,
)
from dask_ma.kernels._objective import loss_sums, one_vs_rest_targets
from dask_ma.kernels._penalties import PENALTIES, penalty_value
from dask_ma.kernels._predictions import chunked_predictions
from dask_ma.kernels._rows import row_slice

__all__ = [
    "GradientSums",
    "LOSSES",
    "PENALTIES",
    "batch_slopes",
    "chunked_predictions",
    "descend",
    "feature_moments",
    "gradient_sums",
    "jacobi_preconditioner",
    "loss_slopes",
    "loss_sums",
    "loss_values",
    "one_vs_rest_targets",
    "penalty_value",
    "project",
    "row_slice",
    "shrink",
]
