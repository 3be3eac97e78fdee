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
from dask_ma.kernels._descent import (
    DescentSums,
    Standardization,
    descent_sums,
    moment_sums,
)
from dask_ma.kernels._digamma import digamma, exp_digamma
from dask_ma.kernels._dirichlet import (
    dirichlet_bound,
    fit_dirichlet,
    fit_symmetric_dirichlet,
    sum_of_expected_logs,
    sums_of_prior,
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
from dask_ma.kernels._dual import dual_steps, row_products
from dask_ma.kernels._feasible import (
    FeasibleMix,
    class_sums,
    feasible_mix,
    mixed_entropy_sum,
    mixed_values,
    shrunk_entropy_sum,
)
from dask_ma.kernels._gradients import GradientSums, gradient_sums, loss_slopes
from dask_ma.kernels._hessian import softmax_hessian
from dask_ma.kernels._losses import LOSSES, loss_values
from dask_ma.kernels._minibatch import (
    PRECONDITIONERS,
    batch_slopes,
    descend,
    feature_moments,
    preconditioner_diagonal,
    project,
    shrink,
)
from dask_ma.kernels._mlp import (
    MLPLayout,
    MLPWorkspace,
    mlp_initial_values,
    mlp_loss_and_gradient,
    mlp_outputs,
    mlp_unpack,
)
from dask_ma.kernels._objective import (
    loss_sums,
    one_vs_rest_targets,
    positive_factors,
)
from dask_ma.kernels._optimizers import (
    SGD,
    Adam,
    Optimizer,
    add_distance,
    shift_towards,
)
from dask_ma.kernels._outer import product_square, subtract_product, used_columns
from dask_ma.kernels._penalties import PENALTIES, penalty_value
from dask_ma.kernels._predictions import chunked_predictions
from dask_ma.kernels._rows import row_slice
from dask_ma.kernels._second_order import (
    CompactMemory,
    model_point,
    newton_point,
    penalty_of,
)
from dask_ma.kernels._smoothing import (
    ROUNDED_LOSSES,
    SMOOTHED_LOSSES,
    SmoothLoss,
    smooth_loss,
)
from dask_ma.kernels._softmax import (
    entropy_sum,
    log_loss_sum,
    residuals,
    softmax,
    softmax_slopes,
)

__all__ = [
    "Adam",
    "ColumnEntries",
    "CompactMemory",
    "DescentSums",
    "FeasibleMix",
    "GradientSums",
    "Inference",
    "InferenceSettings",
    "LOSSES",
    "MLPLayout",
    "MLPWorkspace",
    "Optimizer",
    "PENALTIES",
    "PRECONDITIONERS",
    "ROUNDED_LOSSES",
    "SGD",
    "SMOOTHED_LOSSES",
    "SmoothLoss",
    "Standardization",
    "WordWeights",
    "add_columns",
    "add_distance",
    "batch_slopes",
    "chunked_predictions",
    "class_sums",
    "column_entries",
    "column_products",
    "column_squares",
    "column_store",
    "column_sums",
    "columns_dot",
    "descend",
    "descent_sums",
    "digamma",
    "dirichlet_bound",
    "document_bounds",
    "dual_steps",
    "entropy_sum",
    "exp_digamma",
    "feasible_mix",
    "feature_moments",
    "fit_dirichlet",
    "fit_symmetric_dirichlet",
    "gradient_sums",
    "infer_documents",
    "log_loss_sum",
    "loss_slopes",
    "loss_sums",
    "loss_values",
    "mixed_entropy_sum",
    "mixed_values",
    "mlp_initial_values",
    "mlp_loss_and_gradient",
    "mlp_outputs",
    "mlp_unpack",
    "model_point",
    "moment_sums",
    "newton_point",
    "one_vs_rest_targets",
    "penalty_of",
    "positive_factors",
    "penalty_value",
    "preconditioner_diagonal",
    "product_square",
    "project",
    "residuals",
    "row_products",
    "row_slice",
    "segment_sums",
    "shift_towards",
    "shrink",
    "shrunk_entropy_sum",
    "smooth_loss",
    "softmax",
    "softmax_hessian",
    "softmax_slopes",
    "subtract_product",
    "sum_of_expected_logs",
    "sums_of_prior",
    "take_columns",
    "topics_bound",
    "topics_bound_of_totals",
    "used_columns",
    "word_statistics",
    "word_weights",
]
