"""Fits that may use all threads have as many ranks as make them quicker."""

from __future__ import annotations

from types import SimpleNamespace

import dask.array as da
import numpy as np
import pytest
from distributed import get_client, wait

from dask_ma import ButterflySGDClassifier, MASGDClassifier
from dask_ma.data import describe
from dask_ma.engine._client import known_workers
from dask_ma.engine._rank_count import choose_ranks

LIMIT = "dask-ma.data.moved-rows"


def job_of(X, wanted=None, worthwhile=1):
    return SimpleNamespace(
        data=(X, None, None),
        info=describe(X),
        n_ranks=wanted,
        worthwhile_ranks=None if worthwhile is None else lambda *_: worthwhile,
    )


@pytest.mark.parametrize(
    ("limit", "wanted", "worthwhile", "expected"),
    [
        ("1 MiB", None, 2, (2, 2)),
        ("1 MiB", None, 4, (None, 4)),
        ("1 MiB", None, 9, (None, 4)),
        ("1 MiB", None, None, (None, 4)),  # nobody knows what ranks bring
        ("1 MiB", 3, 1, (3, 4)),
        (0, None, 1, (None, 4)),
        ("100 B", None, 1, (None, 4)),
    ],
)
def test_how_many(limit, wanted, worthwhile, expected, inproc_client, configured):
    job = job_of(np.zeros((40, 3)), wanted, worthwhile)
    with configured({LIMIT: limit}):
        workers = known_workers(inproc_client)
        n_ranks, left = choose_ranks(inproc_client, job, workers)
    assert (n_ranks, len(left)) == expected


def test_rows_stay_with_the_worker_that_has_most(inproc_client, configured):
    workers = sorted(inproc_client.nthreads())
    lengths = {workers[1]: 10, workers[3]: 30}
    parts = [
        da.from_delayed(
            inproc_client.scatter(np.zeros((n, 3)), workers=[address], hash=False),
            (n, 3),
            dtype=np.float64,
        )
        for address, n in lengths.items()
    ]
    with inproc_client.as_current():
        X = da.concatenate(parts).persist()
        wait(X)
    with configured({LIMIT: "1 MiB"}):
        found = choose_ranks(inproc_client, job_of(X), known_workers(inproc_client))
    assert (found[0], [*found[1]]) == (1, [workers[3]])


@pytest.mark.parametrize(
    ("estimator", "parameters", "limit", "n_ranks"),
    [
        (MASGDClassifier, {}, "1 MiB", 1),
        (MASGDClassifier, {}, 0, 4),
        (MASGDClassifier, {"n_ranks": 4}, "1 MiB", 4),
        (MASGDClassifier, {"paradigm": "gradient"}, "1 MiB", 4),
        (ButterflySGDClassifier, {}, "1 MiB", 4),
    ],
)
@pytest.mark.parametrize("kind", ["memory", "workers"])
def test_few_rows_are_fitted_by_one_rank(
    estimator, parameters, limit, n_ranks, kind, inproc_client, configured
):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    y = (X[:, 0] > 0).astype(int)
    data = X, y
    with inproc_client.as_current(), configured({LIMIT: limit}):
        if kind == "workers":
            data = tuple(da.from_array(part, chunks=50).persist() for part in data)
            wait(data)
        model = estimator(max_iter=3, tol=None, random_state=0, **parameters)
        model.fit(*data)
    assert set(model.timeline_["rank"].tolist()) == {*range(n_ranks)}
    assert model.score(X, y) > 0.8


def test_ranks_of_a_fit_that_takes_workers_in_are_on_all(inproc_client, configured):
    X = np.random.default_rng(0).normal(size=(200, 5))
    settings = {LIMIT: "1 MiB", "dask-ma.elastic": True}
    with inproc_client.as_current(), configured(settings):
        model = MASGDClassifier(max_iter=3, tol=None).fit(X, X[:, 0] > 0)
    assert set(model.timeline_["rank"].tolist()) == {0, 1, 2, 3}


def test_fits_of_a_search_are_on_different_workers(inproc_client, configured):
    """Where rows lie with no worker, one after the other; in a task, on its own."""

    def choose():
        client = get_client()
        found = choose_ranks(client, job_of(np.zeros((40, 3))), known_workers(client))
        return list(found[1])

    with configured({LIMIT: "1 MiB"}), inproc_client.as_current():
        workers = sorted(inproc_client.nthreads())
        assert sorted(sum((choose() for _ in workers), [])) == workers
        for address in workers:
            task = inproc_client.submit(choose, workers=[address], pure=False)
            assert task.result() == [address]
