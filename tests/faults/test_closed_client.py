"""A client, or a whole cluster, that is closed while a fit is under way."""

import threading
import time
from types import SimpleNamespace

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster

from dask_ma import MASGDClassifier
from dask_ma.engine import _client
from dask_ma.engine._lost_workers import wait_for_workers
from dask_ma.exceptions import FitFailedError, NoWorkersError

SECONDS = 60  # until nobody trains any more


def open_ranks():
    from dask_ma.comm._plugin import registry

    return registry.open_ranks()


class Closing:
    """Closes something after the first round, as a callback."""

    def __init__(self, opened):
        self.opened = opened

    def setup(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context, **known):
        pass

    def on_fit_task_end(self, estimator, context):
        self.opened.close()
        return False

    def teardown(self, estimator, context):
        pass


@pytest.mark.parametrize("status", ["closed", "connecting"])
def test_nobody_waits_for_workers_of_a_scheduler_that_has_gone(status):
    with pytest.raises(NoWorkersError, match=f"during the fit of X .*is '{status}'"):
        wait_for_workers(SimpleNamespace(status=status), "X", 2, 60.0)


@pytest.mark.parametrize("what", ["client", "cluster"])
def test_it_is_named(what):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    model = MASGDClassifier(max_iter=10**6, tol=None, refine=None, n_ranks=2)
    with (
        LocalCluster(n_workers=2, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as other,
    ):
        client = Client(cluster)
        model.set_callbacks(Closing(client if what == "client" else cluster))
        with pytest.raises(
            (FitFailedError, NoWorkersError),
            match="client was closed, or lost its scheduler, during the fit of MASGD",
        ):
            model.fit(X, (X[:, 0] > 0).astype(int))
        client.close()
        start = time.monotonic()
        # Of a cluster nothing is left to look at.
        while what == "client" and any(other.run(open_ranks).values()):
            assert time.monotonic() < start + SECONDS
            time.sleep(0.05)


def test_a_client_that_is_closed_while_a_fit_waits_for_workers():
    X = np.random.default_rng(0).normal(size=(20, 3))
    with LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster:
        client = Client(cluster)
        seen = threading.Event()

        def close():
            seen.wait(SECONDS)
            client.close()

        closing = threading.Thread(target=close)
        closing.start()
        with (
            pytest.MonkeyPatch.context() as patch,
            pytest.raises(NoWorkersError, match="client is closed, which it was not"),
        ):
            patch.setattr(_client, "sleep", lambda _: (seen.set(), closing.join()))
            MASGDClassifier(n_ranks=2).fit(X, X[:, 0] > 0)
        closing.join()


def collections_of(client, kind, X, y):
    """The rows as collections, some of whose blocks are in the cluster's memory."""
    rows, labels = da.from_array(X, chunks=(50, 4)), da.from_array(y, chunks=50)
    if kind == "frame":
        frame = pd.DataFrame(X, columns=list("abcd")).assign(label=y)
        frame = dd.from_pandas(frame, npartitions=4).persist()
        return frame[list("abcd")], frame["label"]
    if kind == "labels":
        return rows, labels.persist()
    if kind == "scattered":
        blocks = client.scatter(list(X.reshape(4, 50, 4)))
        delayed = [da.from_delayed(b, (50, 4), dtype=X.dtype) for b in blocks]
        return da.concatenate(delayed), labels
    rows, labels = dask.persist(rows, labels)
    return (rows + 1 if kind == "derived" else rows), labels


@pytest.mark.parametrize("persist", ["auto", False])
@pytest.mark.parametrize("kind", ["array", "derived", "frame", "labels", "scattered"])
def test_rows_of_a_client_that_is_closed_are_named(kind, persist):
    """A block that nobody can compute here is more than a key that is missing."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    with Client(processes=False, n_workers=1, dashboard_address=":0") as client:
        rows, labels = collections_of(client, kind, X, (X[:, 0] > 0).astype(int))
        model = MASGDClassifier(random_state=0).fit(rows, labels)
    name = "y" if kind == "labels" else "X"
    with (
        dask.config.set({"dask-ma.data.persist": persist}),
        pytest.raises(NoWorkersError, match=f"^{name} has blocks that were persisted"),
    ):
        model.fit(rows, labels)


def test_errors_of_blocks_stay_as_they_are():
    """Also a KeyError, where no block is a cluster's."""
    rows = da.ones((20, 4), chunks=(5, 4)).map_blocks(lambda block: {}[0], dtype=float)
    with pytest.raises(KeyError, match="^0$"):
        MASGDClassifier().fit(rows, np.arange(20) % 2)
