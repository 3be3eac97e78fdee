"""Fits at the same time, and fits inside of tasks, on workers with one thread."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import dask.array as da
import joblib
import numpy as np
import pytest
from distributed import Client, LocalCluster
from sklearn.model_selection import GridSearchCV

from dask_ma import MASGDClassifier

# Rounds alone: neither trials of steps nor a search that goes on.
SHORT = {"max_iter": 2, "tol": None, "learning_rate": "optimal", "refine": None}
PARAMS = {**SHORT, "random_state": 0}
GRID = {"alpha": [1e-3, 1e-1, 1.0]}


def make_fit():
    """A function that fits; defined inside, so that workers can unpickle it."""

    def fit(seed, n_ranks, X, y, params=SHORT):
        from dask_ma import MASGDClassifier

        model = MASGDClassifier(**params, random_state=seed, n_ranks=n_ranks)
        return model.fit(X, y).coef_

    return fit


def expected(seed, X, y, n_ranks=4):
    return make_fit()(seed, n_ranks, X, y)


def in_blocks(X):
    """Rows on Dask stay where they are; those in memory are dealt out to the ranks."""
    return da.from_array(X, chunks=(30, -1))


def test_fits_in_threads(binary, cluster):
    X, y = binary
    # Threads do not inherit the current client.
    contexts = [copy_context() for _ in range(5)]
    with ThreadPoolExecutor(4) as pool:
        fits = [
            pool.submit(context.run, make_fit(), seed, None, X, y)
            for seed, context in enumerate(contexts)
        ]
        models = [fit.result(timeout=60) for fit in fits]
    for seed, coef in enumerate(models):
        np.testing.assert_array_equal(coef, expected(seed, X, y))


@pytest.mark.parametrize("n_ranks", [None, 2])
def test_fit_in_a_task(binary, inproc_client, n_ranks):
    X, y = binary
    task = inproc_client.submit(make_fit(), 0, n_ranks, X, y, pure=False)
    coef = task.result(timeout=60)
    np.testing.assert_array_equal(coef, expected(0, X, y, n_ranks or 4))


def test_fit_of_dask_data_in_a_task(binary, inproc_client):
    """The collection is built in the task, and rests on the same cluster."""
    X, y = binary
    fit = make_fit()

    def task(X, y):
        import dask.array as da

        return fit(0, None, da.from_array(X, chunks=(30, -1)), y)

    coef = inproc_client.submit(task, X, y, pure=False).result(timeout=60)
    np.testing.assert_array_equal(coef, expected(0, in_blocks(X), y))


def test_more_fits_in_tasks_than_workers(binary, any_client):
    X, y = binary
    tasks = any_client.map(make_fit(), range(5), n_ranks=2, X=X, y=y, pure=False)
    for seed, coef in enumerate(any_client.gather(tasks)):
        np.testing.assert_array_equal(coef, expected(seed, X, y, 2))


def test_one_worker_is_enough_for_nested_fits(binary):
    X, y = binary
    models = [expected(seed, X, y, 2) for seed in range(3)]
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with (
        LocalCluster(dashboard_address=":0", **options) as cluster,
        Client(cluster) as client,
    ):
        tasks = client.map(make_fit(), range(3), n_ranks=2, X=X, y=y, pure=False)
        np.testing.assert_array_equal(client.gather(tasks), models)


@pytest.mark.slow
def test_first_fits_on_a_worker_with_several_threads(binary):
    """All of them ask the worker for its client, which is not there yet."""
    X, y = binary
    options = {"n_workers": 1, "threads_per_worker": 8, "processes": True}
    with (
        LocalCluster(dashboard_address=":0", **options) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.run(lambda: __import__("dask_ma"))
        tasks = client.map(make_fit(), range(8), n_ranks=2, X=X, y=y, pure=False)
        for seed, coef in enumerate(client.gather(tasks)):
            np.testing.assert_array_equal(coef, expected(seed, X, y, 2))


def grid_search():
    return GridSearchCV(MASGDClassifier(n_ranks=2, **PARAMS), GRID, cv=2)


def test_grid_search_with_a_client(binary, inproc_client):
    X, y = binary
    here = grid_search().fit(X, y)
    with inproc_client.as_current():
        there = grid_search().fit(X, y)
    np.testing.assert_array_equal(
        there.cv_results_["mean_test_score"], here.cv_results_["mean_test_score"]
    )
    np.testing.assert_array_equal(
        there.best_estimator_.coef_, here.best_estimator_.coef_
    )


@pytest.fixture
def _without_filters(process_client):
    """The workers forget warning filters after the test.

    scikit-learn sets the client's filters within each task, and tasks that overlap put
    them back in the wrong order, so that a worker may keep those of the tests.
    """
    yield
    process_client.run(warnings.resetwarnings)


@pytest.mark.usefixtures("_without_filters")
def test_grid_search_on_the_dask_backend(binary, process_client):
    """joblib sends the fits to the workers; each of them is a fit inside a task."""
    X, y = binary
    here = grid_search().fit(X, y)
    with (
        process_client.as_current(),
        joblib.parallel_config(backend="dask", wait_for_workers_timeout=30),
    ):
        there = grid_search().fit(X, y)
    np.testing.assert_array_equal(
        there.cv_results_["mean_test_score"], here.cv_results_["mean_test_score"]
    )


def test_a_fit_waits_for_a_busy_worker(binary, cluster):
    """A rank starts as soon as the task before it has ended."""
    from time import sleep

    busy = cluster.map(lambda i: sleep(0.3), range(8), pure=False)
    X, y = binary
    coef = make_fit()(0, None, in_blocks(X), y)
    np.testing.assert_array_equal(coef, expected(0, in_blocks(X), y))
    del busy
