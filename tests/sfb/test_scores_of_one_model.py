"""Validation scores of ranks that are at no point together: those of the model."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dask_ma import SFBLogisticRegression, SFBMetricLearner
from dask_ma.sfb import Exchange
from dask_ma.sfb.logistic import _fit
from dask_ma.sfb.metric import _fit as metric_fit
from dask_ma.sfb.metric import _validation

digits = load_digits(n_class=4)
X, y = digits.data[:400] / 16, digits.target[:400]
APART = Exchange("factors", broadcast=1, relay=False, averaging=False)
PARAMS = {
    "communication": APART,
    "early_stopping": True,
    "max_iter": 2,
    "n_ranks": 3,
    "random_state": 0,
    "tol": None,
}


def test_logistic_regression(monkeypatch):
    seen, original = [], _fit.score_sums

    def score_sums(shard, model, **options):
        seen.append(model.coef.tobytes())
        return original(shard, model, **options)

    monkeypatch.setattr(_fit, "score_sums", score_sums)
    model = SFBLogisticRegression(solver="sgd", batch_size=16, **PARAMS)
    model.fit(X, y)
    assert len(seen) == 3 * len(model.history_)
    assert len(set(seen)) == len(model.history_)


@pytest.mark.filterwarnings("ignore:the objective has not fallen")
@pytest.mark.parametrize("of_pairs", [False, True])
def test_metric_learner(monkeypatch, of_pairs):
    seen = []
    probe = np.eye(X.shape[1], dtype=np.float32)

    def noted(original):
        def score(group, source, project):
            seen.append(np.asarray(project(probe)).tobytes())
            return original(group, source, project)

        return score

    name = "pair_score" if of_pairs else "label_score"
    monkeypatch.setattr(metric_fit, name, noted(getattr(_validation, name)))
    model = SFBMetricLearner(
        3, loss="logistic", optimizer="sgd", batch_size=16, **PARAMS
    )
    if of_pairs:
        pairs = np.random.default_rng(1).integers(0, 400, size=(200, 2))
        pairs = pairs[pairs[:, 0] != pairs[:, 1]]
        labels = np.where(y[pairs[:, 0]] == y[pairs[:, 1]], 1, -1)
        model.fit(X, pairs=pairs, pair_labels=labels)
    else:
        model.fit(X, y)
    assert len(seen) == 3 * len(model.history_)
    assert len(set(seen)) == len(model.history_)
