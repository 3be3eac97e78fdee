"""Pure maths on NumPy and SciPy arrays: no Dask, no scikit-learn, no state."""

from dask_ma.kernels._columns import (
    ColumnEntries,
    add_columns,
    column_entries,
    column_products,
    column_squares,
    column_store,
    column_sums,
    columns_dot,
    segment_sums,
    take_columns,
)
from dask_ma.kernels._digamma import digamma, exp_digamma
from dask_ma.kernels._dirichlet import (
    dirichlet_bound,
    fit_dirichlet,
    topics_bound,
    topics_bound_of_totals,
)
from dask_ma.kernels._documents import (
    Inference,
    InferenceSettings,
    WordWeights,
    document_bounds,
    infer_documents,
    word_statistics,
    word_weights,
)
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
    "ColumnEntries",
    "GradientSums",
    "Inference",
    "InferenceSettings",
    "LOSSES",
    "PENALTIES",
    "WordWeights",
    "add_columns",
    "batch_slopes",
    "chunked_predictions",
    "column_entries",
    "column_products",
    "column_squares",
    "column_store",
    "column_sums",
    "columns_dot",
    "descend",
    "digamma",
    "dirichlet_bound",
    "document_bounds",
    "exp_digamma",
    "feature_moments",
    "fit_dirichlet",
    "gradient_sums",
    "infer_documents",
    "jacobi_preconditioner",
    "loss_slopes",
    "loss_sums",
    "loss_values",
    "one_vs_rest_targets",
    "penalty_value",
    "project",
    "row_slice",
    "segment_sums",
    "shrink",
    "take_columns",
    "topics_bound",
    "topics_bound_of_totals",
    "word_statistics",
    "word_weights",
]
