"""Ranks of fits whose outputs are shared out: at most as many as there are outputs."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris

from dask_ma import SFBDictionaryLearning, SFBLogisticRegression, SFBMetricLearner
from dask_ma.sfb import FactorModel, run

X, y = load_iris(return_X_y=True)
X = X[:, :3]
CASES = {
    "components": SFBMetricLearner(2, communication="outputs", max_iter=1),
    "columns": SFBDictionaryLearning(
        2, alpha=0.1, solver="sgd", communication="outputs", max_iter=2
    ),
    "classes": SFBLogisticRegression(
        communication="outputs", solver="sgd", max_iter=1, tol=None
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_no_more_ranks_than_outputs(kind, inproc_client, configured):
    estimator = CASES[kind]
    n_outputs = 2 if kind == "components" else 3
    limit = {"dask-ma.data.moved-rows": "1 MiB"}
    with inproc_client.as_current(), configured(limit):
        estimator.set_params(n_ranks=None).fit(X, y)
        assert set(estimator.timeline_["rank"].tolist()) == {*range(n_outputs)}
        refused = f"{n_outputs} for 4 ranks; set n_ranks={n_outputs}, or"
        with pytest.raises(ValueError, match=refused):
            estimator.set_params(n_ranks=4).fit(X, y)


def test_classes_that_only_a_partial_fit_knows(inproc_client, configured):
    estimator = clone(CASES["classes"]).set_params(n_ranks=None)
    limit = {"dask-ma.data.moved-rows": "1 MiB"}
    with inproc_client.as_current(), configured(limit):
        estimator.partial_fit(X[:100], y[:100], classes=[0, 1, 2])  # rows of two
    assert set(estimator.timeline_["rank"].tolist()) == {0, 1, 2}


class Mean(FactorModel):
    """Whose outputs cannot be shared out."""

    def initial_matrix(self, n_features):
        return np.zeros((1, n_features))

    def factors(self, matrix, batch):
        return np.ones((batch.n_rows, 1)), np.asarray(matrix) - batch.X


def test_models_that_do_not_share():
    """More ranks than outputs are not the reason."""
    with pytest.raises(ValueError, match="which it cannot share, and NoPenalty"):
        run(Mean(), X, n_passes=1, n_ranks=2, communication="outputs")
