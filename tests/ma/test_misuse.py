"""After a failed fit, at predict, and on clusters that cannot be used."""

import asyncio

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster

from dask_ma import MASGDClassifier
from dask_ma.exceptions import NoWorkersError

PARAMS = {"max_iter": 2, "tol": None, "random_state": 0}
N = 40


def good():
    """40 rows, two classes."""
    X = np.random.default_rng(0).normal(size=(N, 3))
    return X, (X[:, 0] > 0).astype(int)


def blocks(values):
    return da.from_array(values, chunks=(10, *values.shape[1:]))


# -- What is left after a failure ----------------------------------------------------


@pytest.mark.parametrize("where", ["here", "cluster"])
def test_failed_refit_keeps_the_earlier_fit(where, inproc_client):
    X, y = good()
    frame = pd.DataFrame(X, columns=list("abc"))
    model = MASGDClassifier(**PARAMS).fit(frame, y)
    before = {name: value for name, value in vars(model).items()}
    bad = np.column_stack([X, X])
    bad[7, 5] = np.nan
    with inproc_client.as_current() if where == "cluster" else np.errstate():
        for attempt in (
            lambda: model.fit(bad, y),
            lambda: model.fit(blocks(bad), y),
            lambda: model.fit(blocks(bad[:, :5]), np.ones(N)),
            lambda: model.partial_fit(frame, np.full(N, 9)),
            lambda: model.fit(X, y, coef_init=np.ones(7)),
        ):
            with pytest.raises(ValueError, match="."):
                attempt()
            assert vars(model).keys() == before.keys()
            assert all(vars(model)[name] is before[name] for name in before)
    assert model.n_features_in_ == 3
    assert model.feature_names_in_.tolist() == list("abc")
    model.predict(frame)


def test_failed_refit_keeps_the_model_of_a_warm_start(cluster):
    X, y = good()
    model = MASGDClassifier(warm_start=True, **PARAMS).fit(X, y)
    before = model.coef_.copy()
    X[3, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        model.fit(blocks(X), y)
    np.testing.assert_array_equal(model.coef_, before)


# -- At predict ----------------------------------------------------------------------


@pytest.mark.parametrize("lazy", [False, True])
def test_other_number_of_features_at_predict(lazy):
    X, y = good()
    model = MASGDClassifier(**PARAMS).fit(X, y)
    wide = np.ones((5, 4))
    with pytest.raises(
        ValueError, match="X has 4 features, but MASGDClassifier is exp"
    ):
        model.predict(blocks(wide) if lazy else wide)


@pytest.mark.parametrize("lazy", [False, True])
def test_other_names_of_features_at_predict(lazy):
    X, y = good()
    frame = pd.DataFrame(X, columns=list("abc"))
    model = MASGDClassifier(**PARAMS).fit(frame, y)
    other = frame.rename(columns={"b": "z"})
    other = dd.from_pandas(other, npartitions=2) if lazy else other
    for method in (model.predict, model.decision_function):
        with pytest.raises(ValueError, match="feature names should match"):
            method(other)
    with pytest.raises(ValueError, match="feature names should match"):
        model.partial_fit(other, y)


@pytest.mark.parametrize("lazy", [False, True])
def test_names_that_are_missing_at_predict(lazy):
    X, y = good()
    model = MASGDClassifier(**PARAMS).fit(pd.DataFrame(X, columns=list("abc")), y)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        model.predict(blocks(X) if lazy else X)


def test_numbers_that_are_missing_at_predict():
    X, y = good()
    model = MASGDClassifier(**PARAMS).fit(X, y)
    X[25, 1] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN"):
        model.predict(X)


# -- Clusters that cannot be used ----------------------------------------------------


def test_cluster_without_workers():
    options = {"processes": False, "dashboard_address": ":0"}
    with (
        LocalCluster(n_workers=0, **options) as cluster,
        Client(cluster),
        dask.config.set({"distributed.adaptive.interval": "10 ms"}),
    ):
        model = MASGDClassifier(**PARAMS)
        with pytest.raises(NoWorkersError, match="0 workers, none of them running"):
            model.fit(*good())
        with pytest.raises(NoWorkersError, match="wait_for_workers"):
            model.fit(*map(blocks, good()))
        assert not hasattr(model, "n_features_in_")


def test_client_that_was_closed(inproc_client):
    client = Client(inproc_client.scheduler.address, set_as_default=False)
    lazy = blocks(good()[0])
    with client.as_current():
        model = MASGDClassifier(**PARAMS).fit(lazy, good()[1])
        client.close()
        for X in (good()[0], lazy):
            with pytest.raises(NoWorkersError, match="client is closed"):
                model.fit(X, good()[1])
    assert model.n_features_in_ == 3
    # Without it a fit runs here.
    model.fit(lazy, good()[1])


def test_asynchronous_client(inproc_client):
    async def fit():
        address = inproc_client.scheduler.address
        async with Client(address, asynchronous=True, set_as_default=False) as client:
            with client.as_current():
                MASGDClassifier(**PARAMS).fit(*good())

    with pytest.raises(TypeError, match="client is asynchronous"):
        asyncio.run(fit())
