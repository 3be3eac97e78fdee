"""Parameters that are numbers of NumPy's, as searches draw them, on a cluster."""

import numpy as np
import pytest

import dask_ma

TOPICS = {"n_components": 3, "doc_topic_prior": 0.1, "max_iter": 3}
CASES = {
    "ButterflySGDClassifier": {"alpha": 1e-3, "eta0": 0.1, "batch_size": 16},
    "ButterflySGDRegressor": {"alpha": 1e-3, "eta0": 0.1, "loss": "huber"},
    "MALDA": TOPICS,
    "MASGDClassifier": {"alpha": 0.3, "tol": 1e-3, "refine_tol": 1e-3, "max_iter": 50},
    "MASGDRegressor": {"alpha": 0.3, "epsilon": 0.1, "loss": "huber"},
    "MPCAClassifier": {"alpha": 1e-3, "learning_rate_init": 0.01, "max_iter": 3},
    "SFBDictionaryLearning": {"n_components": 4, "alpha": 0.1, "max_iter": 3},
    "SFBLogisticRegression": {"alpha": 1e-3, "tol": 1e-3},
    "SFBMetricLearner": {"n_components": 2, "margin": 1.0, "max_iter": 3},
    "SchMPLDA": TOPICS,
    "SchMPLasso": {"alpha": 1e-3, "tol": 1e-4},
    "SchMPLogisticRegression": {"alpha": 1e-3, "tol": 1e-4},
}


def as_numpy(params):
    kinds = {float: np.float64, int: np.int64}
    return {k: kinds.get(type(v), type(v))(v) for k, v in params.items()}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 5))
    return X, (X[:, 0] > 0).astype(int)


def result_of(model):
    for name in ("coef_", "components_"):
        if hasattr(model, name):
            return getattr(model, name)
    return model.coefs_[0]


@pytest.mark.each
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_they_are_as_good_as_numbers_of_pythons(name, rows, inproc_client, n_ranks):
    X, y = rows
    cls = getattr(dask_ma, name)
    if name.endswith("LDA"):
        X, y = np.abs(np.round(3 * X)), None
    found = []
    for params in (CASES[name], as_numpy(CASES[name])):
        with inproc_client.as_current():
            model = (
                cls(**params, random_state=0)
                if "random_state" in cls().get_params()
                else cls(**params)
            )
            found.append(result_of(model.set_params(n_ranks=n_ranks).fit(X, y)))
    np.testing.assert_array_equal(*found)
