"""scikit-learn's common tests, in this process and on a cluster."""

import pytest
from distributed import Client
from sklearn.utils.estimator_checks import parametrize_with_checks

from dask_ma import MASGDClassifier, MASGDRegressor

ESTIMATORS = [
    MASGDClassifier(max_iter=200),
    MASGDClassifier(max_iter=200, n_ranks=2),
    MASGDRegressor(max_iter=200),
    MASGDRegressor(max_iter=200, n_ranks=2),
]
_STOCHASTIC = (
    "a weight multiplies the gradient of one step, a repeated row makes two steps: "
    "equal in the limit only"
)


def expected_failed_checks(estimator):
    """Checks that SGD with batch size 1 cannot pass, as in scikit-learn itself."""
    return {
        "check_sample_weight_equivalence_on_dense_data": _STOCHASTIC,
        "check_sample_weight_equivalence_on_sparse_data": _STOCHASTIC,
    }


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expected_failed_checks)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_contract_without_client(estimator, check):
    check(estimator)
