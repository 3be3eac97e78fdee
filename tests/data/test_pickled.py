"""Persisted collections that have been pickled, as those given to tasks are."""

from __future__ import annotations

import pickle

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.core import flatten
from waiting import until

from dask_ma import MASGDClassifier, SchMPMatrixFactorization
from dask_ma.exceptions import PeerLostError

# The optimum is the same wherever a block is computed, and so on whichever rank.
PARAMS = {"loss": "log_loss", "alpha": 0.01, "refine_tol": 1e-9, "random_state": 0}


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    return X, (X[:, 0] > 0).astype(int)


@pytest.fixture(params=["array", "frame", "part"])
def persisted(request, rows, any_client):
    X, y = rows
    if request.param == "frame":
        frame = dd.from_pandas(pd.DataFrame(X, columns=list("abc")), npartitions=3)
        return any_client.persist([frame, frame["a"] > 0])
    X, y = da.from_array(X, chunks=(20, -1)), da.from_array(y, chunks=20)
    if request.param == "part":  # nothing but X is on the cluster
        return any_client.persist(X), y
    return any_client.persist([X, y])


def fit(X, y, n_ranks):
    return MASGDClassifier(n_ranks=n_ranks, **PARAMS).fit(X, y).coef_


@pytest.mark.pairs
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_in_a_task(rows, persisted, any_client, n_ranks):
    X, y = persisted
    future = any_client.submit(fit, X, y, n_ranks, pure=False)
    with any_client.as_current():
        expected = fit(X, y, n_ranks)
    np.testing.assert_allclose(future.result(timeout=60), expected, rtol=1e-3)
    # They are still the user's.
    np.testing.assert_array_equal(any_client.compute(X).result(), rows[0])


@pytest.mark.each
def test_here(persisted, any_client):
    X, y = persisted
    with any_client.as_current():
        expected = fit(X, y, 2)
        found = fit(pickle.loads(pickle.dumps(X)), pickle.loads(pickle.dumps(y)), 2)
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_pairs(any_client):
    pairs = np.random.default_rng(0).integers(0, 9, size=(200, 2))
    ratings = (pairs.sum(axis=1) % 5).astype(float)
    X = any_client.persist(da.from_array(pairs, chunks=(50, -1)))
    with any_client.as_current():
        model = SchMPMatrixFactorization(3, tol=0.1, n_ranks=2, random_state=0)
        expected = model.fit(X, ratings).predict(pairs)
        found = model.fit(pickle.loads(pickle.dumps(X)), ratings).predict(pairs)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_that_the_owner_has_given_up(rows, inproc_client):
    X = inproc_client.persist(da.from_array(rows[0], chunks=(20, -1)))
    text = pickle.dumps(X)
    keys = {str(key) for key in flatten(X.__dask_keys__())}
    del X
    tasks = inproc_client.cluster.scheduler.tasks
    assert until(lambda: keys.isdisjoint(map(str, list(tasks))))
    # Whether the scheduler finds that out, or a rank, is a matter of time.
    gone = "data were released|in no worker's memory"
    with inproc_client.as_current(), pytest.raises(PeerLostError, match=gone):
        fit(pickle.loads(text), rows[1], 2)
