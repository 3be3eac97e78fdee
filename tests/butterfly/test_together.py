"""What ranks of a process share out where all have the same weights."""

import numpy as np
import pytest
from scipy import sparse

from dask_ma import ButterflySGDClassifier
from dask_ma.butterfly import _together
from dask_ma.butterfly._decay import Decay
from dask_ma.comm import LocalGroup

N_FEATURES = 1000


@pytest.fixture(scope="module")
def rows():
    """Rows with all features between them, of which a batch has few."""
    rng = np.random.default_rng(1)
    places = rng.integers(0, N_FEATURES, (600, 4)).ravel()
    values, ends = rng.normal(size=2400), np.arange(0, 2401, 4)
    X = sparse.csr_matrix((values, places, ends), shape=(600, N_FEATURES))
    X.sum_duplicates()
    return X, rng.integers(0, 3, 600)


@pytest.fixture
def shrunk(monkeypatch):
    """Numbers of rows that ranks have shrunk at the ends of passes."""
    numbers = []
    shrink = Decay.shrink

    def noted(self, weights, first=0, last=N_FEATURES):
        numbers.append(last - first)
        shrink(self, weights, first, last)

    monkeypatch.setattr(Decay, "shrink", noted)
    return numbers


def fit(rows, n_classes=2, **params):
    X, y = rows
    common = {"batch_size": 5, "max_iter": 2, "tol": None, "random_state": 0}
    model = ButterflySGDClassifier(**common, refine=None, alpha=0.01, **params)
    return model.fit(X, y % n_classes)


@pytest.mark.each
@pytest.mark.parametrize(
    "n_ranks, params",
    [
        (2, {}),
        (2, {"mixing_period": 1}),
        (3, {"mixing": "allreduce", "mixing_period": 20}),
        (4, {"mixing": "allreduce", "mixing_period": 20}),
        (2, {"learning_rate": "adaptive", "loss": "log_loss"}),
    ],
    ids=str,
)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_each_rank_shrinks_a_part(
    monkeypatch, rows, shrunk, n_ranks, params, n_classes
):
    alone = fit(rows, n_classes, n_ranks=n_ranks, **params)
    assert shrunk == [N_FEATURES] * 2 * n_ranks
    shrunk.clear()
    monkeypatch.setattr(_together, "_LEAST_SHARED", 1)
    model = fit(rows, n_classes, n_ranks=n_ranks, **params)
    assert len(shrunk) == 2 * n_ranks and sum(shrunk) == 2 * N_FEATURES
    assert max(shrunk) - min(shrunk) <= 1
    assert model.coef_.tobytes() == alone.coef_.tobytes()
    assert model.intercept_.tobytes() == alone.intercept_.tobytes()


def test_ranks_of_other_processes_have_all_to_do(monkeypatch, rows, shrunk):
    monkeypatch.setattr(_together, "_LEAST_SHARED", 1)
    together = fit(rows, n_ranks=2)
    shrunk.clear()
    create = LocalGroup.create
    monkeypatch.setattr(LocalGroup, "create", lambda n_ranks: create(n_ranks, 1))
    apart = fit(rows, n_ranks=2)
    assert shrunk == [N_FEATURES] * 4
    assert together.coef_.tobytes() == apart.coef_.tobytes()


@pytest.mark.parametrize(
    "params",
    [{"n_ranks": 4}, {"n_ranks": 2, "mixing": "none"}, {"n_ranks": 2, "average": 1}],
    ids=str,
)
def test_weights_that_differ_are_not_shared(monkeypatch, rows, shrunk, params):
    alone = fit(rows, **params)
    n_before = list(shrunk)
    monkeypatch.setattr(_together, "_LEAST_SHARED", 1)
    model = fit(rows, **params)
    assert shrunk == [*n_before, *n_before]
    assert model.coef_.tobytes() == alone.coef_.tobytes()
