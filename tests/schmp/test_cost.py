"""Ranks of a fit by working sets that may use all threads."""

from __future__ import annotations

import numpy as np
import pytest

from dask_ma import SchMPLasso, SchMPLassoCV, SchMPLogisticRegression
from dask_ma.data import InputSize
from dask_ma.engine import worthwhile_ranks
from dask_ma.schmp.l1._cost import cost_of_lasso, cost_of_logistic, cost_of_paths

BANDWIDTH = "dask-ma.comm.link-bandwidth"


def quickest(n_rows, n_features, per_row=0, most=2, held=None, cost=cost_of_lasso):
    n_stored = n_rows * (per_row or n_features)
    size = InputSize(n_rows, n_features, n_stored, 8 * n_stored, held or {})
    return worthwhile_ranks(size, most, **cost(size)._asdict())


def test_small_problems_are_solved_by_one_rank():
    assert [quickest(181, 12_533, most=most) for most in (1, 2, 3, 64)] == [1] * 4
    assert [quickest(463, 500_000, most=most) for most in (1, 2, 3)] == [1, 2, 3]
    assert quickest(25_000, 37_000, 1_000) == 2
    assert quickest(25_000, 37_000, 40) == 1


def test_a_slow_network_is_for_larger_ones(configured):
    assert quickest(463, 100_000) == 2
    with configured({BANDWIDTH: "1 MB"}):
        assert quickest(463, 100_000) == 1
        # There they stay where they are if that takes longer than to share the work.
        held = {"a": 185_200_000, "b": 185_200_000}
        assert quickest(463, 100_000, held=held) == 2


def test_a_logistic_regression_has_more_to_do_and_more_to_say():
    sizes = [(1_797, 64), (20_000, 50), (200_000, 50)]
    found = [quickest(*size, cost=cost_of_logistic) for size in sizes]
    assert found == [1, 1, 2]
    assert quickest(25_000, 37_000, 137, cost=cost_of_logistic) == 2


def test_models_of_a_path_take_little_time_and_as_many_messages():
    def quickest_path(*size, n_models=500):
        return quickest(*size, cost=lambda rows: cost_of_paths(rows, n_models))

    sizes = [(442, 10), (50_000, 100), (500_000, 100)]
    assert [quickest_path(*size) for size in sizes] == [1, 1, 2]
    assert quickest_path(500_000, 100, n_models=20) == 2  # all of it is shorter


@pytest.mark.parametrize("cv", [3, [([0, 1, 2, 3], [4, 5]), ([2, 3, 4, 5], [0, 1])]])
@pytest.mark.parametrize("alphas", [4, [0.1, 0.2]])
def test_a_small_cross_validation(alphas, cv, inproc_client, configured):
    X = np.random.default_rng(0).normal(size=(60, 8))
    limit = {"dask-ma.data.moved-rows": "1 MiB"}
    with inproc_client.as_current(), configured(limit):
        model = SchMPLassoCV(alphas=alphas, cv=cv).fit(X, X[:, 0] - X[:, 1])
    assert set(model.timeline_["rank"].tolist()) == {0}


@pytest.mark.parametrize(
    ("parameters", "n_ranks"),
    [({}, 1), ({"schedule": "cyclic"}, 4), ({"n_ranks": 3}, 3)],
)
@pytest.mark.parametrize("estimator", [SchMPLasso, SchMPLogisticRegression])
def test_a_small_fit(estimator, parameters, n_ranks, inproc_client, configured):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 8))
    y = X[:, 0] - X[:, 1]
    if estimator is SchMPLogisticRegression:
        y = y > 0
    limit = {"dask-ma.data.moved-rows": "1 MiB"}
    with inproc_client.as_current(), configured(limit):
        model = estimator(0.1, **parameters).fit(X, y)
    assert set(model.timeline_["rank"].tolist()) == {*range(n_ranks)}
    assert np.flatnonzero(model.coef_).tolist() == [0, 1]
