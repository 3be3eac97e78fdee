"""Distances do not see what all rows have in common, nor do fits."""

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits

from dask_ma import SFBMetricLearner
from dask_ma.sfb.metric import _start
from dask_ma.sfb.metric._cost import Steps
from dask_ma.sfb.metric._fit import MetricFit

digits = load_digits(n_class=5)
X, y = digits.data[:600] / 16, digits.target[:600]
WAYS = [
    {},
    {"n_ranks": 3},
    {"n_ranks": 3, "communication": "factors"},
    {"n_ranks": 3, "communication": "outputs"},
    {"n_ranks": 2, "communication": "full_matrix", "loss": "hinge"},
    {"early_stopping": True, "n_ranks": 2, "communication": "factors"},
    {"alpha": 1e-3, "n_ranks": 3, "communication": "factors"},
    {"alpha": 1e-3, "init": "lda"},
    {"optimizer": "sgd", "loss": "logistic", "n_ranks": 2},
]


def fit(rows, **params):
    """With steps enough for rounding to add up."""
    params = {"max_iter": 5, "batch_size": 100, "random_state": 0, **params}
    return SFBMetricLearner(**{"n_components": 4, **params}).fit(rows, y)


@pytest.mark.parametrize("params", WAYS, ids=str)
def test_a_shift_of_all_rows(params):
    """Rows so far away that single precision just holds them."""
    near, far = fit(X, **params), fit(X + 2.0**15, **params)
    size = np.abs(near.components_).max()
    np.testing.assert_allclose(far.components_, near.components_, atol=1e-4 * size)


@pytest.mark.parametrize("params", WAYS[::2], ids=str)
def test_features_that_are_constant_weigh_nothing(params):
    rows = np.hstack([X, np.full((len(X), 3), [0, 1.0, 100.3])])
    components = np.abs(fit(rows, **params).components_)
    assert not components[:, -3:].any()


def test_partial_fits():
    rows = np.hstack([X, np.full((len(X), 1), 100.3)])
    learner = SFBMetricLearner(6, random_state=0)
    for part in np.array_split(np.arange(len(X)), 3):
        learner.partial_fit(rows[part], y[part])
    assert not learner.components_[:, -1].any()


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_resumed_fit(tmp_path, interrupted, n_ranks):
    params = {"n_ranks": n_ranks, "communication": "factors"}
    rows = X + 1000.0
    whole = fit(rows, **params)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with interrupted(3):
            fit(rows, **params)
        resumed = fit(rows, **params)
    np.testing.assert_array_equal(resumed.components_, whole.components_)


def test_all_ranks_keep_the_centre(monkeypatch):
    """Also where rank 0 has all rows: a fit may go on without it."""
    kept = []
    original = MetricFit.state_dict

    def state_dict(self):
        snapshot = original(self)
        kept.append(snapshot.shared["centre"])
        return snapshot

    monkeypatch.setattr(MetricFit, "state_dict", state_dict)
    monkeypatch.setattr(Steps, "are_quicker_alone", lambda *_: True)
    learner = fit(X + 3, n_ranks=3, max_iter=1)
    assert learner.communication_ == "alone"
    assert len(kept) == 3
    centre = (X + 3).mean(axis=0)
    for each in kept:
        np.testing.assert_allclose(each, centre, atol=1e-5)


def test_sparse_rows_stay_sparse(monkeypatch):
    dense = fit(X)
    monkeypatch.setattr(sparse.csr_array, "toarray", None)
    found = fit(sparse.csr_array(X))
    np.testing.assert_allclose(found.components_, dense.components_, atol=1e-4)


@pytest.mark.parametrize(
    "params", [*WAYS[1::2], {"metric_form": "diagonal", "n_components": None}], ids=str
)
def test_sparse_rows_learn_what_dense_ones_do(params):
    """Of features that all of them have; with a shift they learnt from rounding."""
    rows = X + 2.0**15
    rows[:, ::3] = np.where(X[:, ::3] > 0, X[:, ::3], 0)  # some are mostly zero
    dense, thin = fit(rows, **params), fit(sparse.csr_array(rows), **params)
    size = np.abs(dense.components_).max()
    np.testing.assert_allclose(thin.components_, dense.components_, atol=1e-3 * size)


# In the sample of every other row; or not, with a row that is hard on single precision.
@pytest.mark.parametrize(("row", "part"), [(100, 1e-3), (101, 0.02)])
def test_a_feature_that_one_sparse_row_lacks_is_not_shifted(monkeypatch, row, part):
    """Its zero would lie somewhere else then, and other distances be learnt."""
    monkeypatch.setattr(_start, "_MOST_SAMPLED", 300)
    rows = X + 5.0
    rows[row, 7] = 0.0
    dense, thin = fit(rows), fit(sparse.csr_array(rows))
    size = np.abs(dense.components_).max()
    np.testing.assert_allclose(thin.components_, dense.components_, atol=part * size)


def test_sparse_rows_and_a_rank_without_any():
    rows = sparse.csr_array(X + 2.0**15)[:4]
    params = {"max_iter": 2, "random_state": 0, "communication": "factors"}
    few = SFBMetricLearner(2, n_ranks=6, **params)
    few.fit(rows, np.array([0, 0, 1, 1]))
    assert np.isfinite(few.components_).all()
