"""Ranks of a dictionary's fit that may use all threads."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from dask_ma import SFBDictionaryLearning
from dask_ma.data import InputSize
from dask_ma.engine import quickest_of
from dask_ma.sfb.dictionary._cost import seconds_shared

LOOPBACK, GIGABIT = 640e6, 125e6  # bytes a second


def quickest(shape, n_atoms=128, most=2, bandwidth=LOOPBACK, held=None, **params):
    n_rows, n_features = shape
    n_stored = n_rows * n_features
    size = InputSize(n_rows, n_features, n_stored, 4 * n_stored, held or {})
    given = {"max_iter": 20, "communication": "statistics"}
    given["batch_of"] = lambda n_rows: 256
    given |= {"n_components": n_atoms, "merge_every": "auto", **params}
    found = SimpleNamespace(**given)
    return quickest_of(most, lambda n: seconds_shared(found, size, n, bandwidth))


def test_few_rows_are_for_one_rank():
    assert [quickest((2560, 64), most=most) for most in (1, 2, 3, 64)] == [1] * 4
    assert [quickest((60_000, 784), most=most) for most in (1, 2, 3, 4)] == [1, 2, 3, 4]
    assert quickest((20_000, 192), 256) == 2
    assert quickest((2000, 50), 20, most=8) == 1


def test_what_is_sent_counts():
    wide = (3000, 20_000)
    assert quickest(wide, 512) == 2
    assert quickest(wide, 512, bandwidth=GIGABIT) == 1
    # Rows and codes of a batch are smaller than statistics of as many columns.
    assert quickest(wide, 512, bandwidth=GIGABIT, communication="factors") == 2
    # An exchange after each batch is not worth while where batches are quick.
    assert quickest((20_000, 64), 32) == 2
    assert quickest((20_000, 64), 32, merge_every=1) == 1


def test_rows_stay_where_moving_them_takes_longer():
    held = {"a": 4 * 5000 * 300, "b": 4 * 5000 * 300}
    assert quickest((10_000, 300), 8, bandwidth=GIGABIT) == 1
    assert quickest((10_000, 300), 8, bandwidth=GIGABIT, held=held) == 2


@pytest.mark.parametrize(
    ("parameters", "n_ranks"),
    [
        ({}, 1),
        ({"communication": "factors"}, 1),
        ({"communication": "outputs", "solver": "sgd"}, 4),
        ({"n_ranks": 3}, 3),
    ],
)
def test_a_small_fit(parameters, n_ranks, inproc_client, configured):
    X = np.random.default_rng(0).normal(size=(60, 8))
    limit = {"dask-ma.data.moved-rows": "1 MiB"}
    with inproc_client.as_current(), configured(limit):
        model = SFBDictionaryLearning(5, alpha=0.1, max_iter=2, **parameters).fit(X)
    assert set(model.timeline_["rank"].tolist()) == {*range(n_ranks)}
