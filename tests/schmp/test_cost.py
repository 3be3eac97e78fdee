"""Ranks of a fit by working sets that may use all threads."""

from __future__ import annotations

import numpy as np
import pytest

from dask_ma import SchMPLasso
from dask_ma.data import InputSize
from dask_ma.engine import quickest_of
from dask_ma.schmp.l1._cost import seconds_shared

LOOPBACK, GIGABIT = 640e6, 125e6  # bytes a second


def quickest(n_rows, n_features, per_row=0, most=2, bandwidth=LOOPBACK, held=None):
    n_stored = n_rows * (per_row or n_features)
    size = InputSize(n_rows, n_features, n_stored, 8 * n_stored, held or {})
    return quickest_of(most, lambda n: seconds_shared(size, n, bandwidth))


def test_small_problems_are_solved_by_one_rank():
    assert [quickest(181, 12_533, most=most) for most in (1, 2, 3, 64)] == [1] * 4
    assert [quickest(463, 500_000, most=most) for most in (1, 2, 3)] == [1, 2, 3]
    assert quickest(25_000, 37_000, 1_000) == 2
    assert quickest(25_000, 37_000, 40) == 1


def test_a_slow_network_is_for_larger_ones():
    assert quickest(463, 100_000) == 2
    assert quickest(463, 100_000, bandwidth=1e6) == 1
    # There they stay where they are if that takes longer than to share the work out.
    held = {"a": 185_200_000, "b": 185_200_000}
    assert quickest(463, 100_000, bandwidth=1e6, held=held) == 2


@pytest.mark.parametrize(
    ("parameters", "n_ranks"),
    [({}, 1), ({"schedule": "cyclic"}, 4), ({"n_ranks": 3}, 3)],
)
def test_a_small_fit(parameters, n_ranks, inproc_client, configured):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 8))
    y = X[:, 0] - X[:, 1]
    limit = {"dask-ma.data.moved-rows": "1 MiB"}
    with inproc_client.as_current(), configured(limit):
        model = SchMPLasso(0.1, **parameters).fit(X, y)
    assert set(model.timeline_["rank"].tolist()) == {*range(n_ranks)}
    assert np.flatnonzero(model.coef_).tolist() == [0, 1]
