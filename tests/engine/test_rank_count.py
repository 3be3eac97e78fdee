"""Fits that may use all threads have as many ranks as make them quicker."""

from __future__ import annotations

from threading import Timer
from types import SimpleNamespace

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import Event, get_client, wait
from scipy import sparse

from dask_ma import (
    MALDA,
    ButterflySGDClassifier,
    ButterflySGDRegressor,
    MASGDClassifier,
    MASGDRegressor,
    MPCAClassifier,
    SchMPLDA,
    SchMPMatrixFactorization,
    SFBLogisticRegression,
)
from dask_ma.data import InputSize, Kept, describe
from dask_ma.engine._client import known_workers
from dask_ma.engine._rank_count import choose_ranks, worthwhile_ranks
from dask_ma.mpca.networks._mlp import MLPSpec
from dask_ma.mpca.training._cost import ranks_for_network
from dask_ma.schmp.factorization._cost import ranks_for_factors
from dask_ma.schmp.factorization._rated import Rated
from dask_ma.schmp.topics._cost import ranks_for_topics

LIMIT = "dask-ma.data.moved-rows"
_QUICK = {"learning_rate_init": 0.1}


def job_of(X, wanted=None, worthwhile=1):
    return SimpleNamespace(
        data=(X, None, None),
        info=describe(X),
        n_ranks=wanted,
        is_labelled=True,
        copies=Kept(),
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


@pytest.mark.parametrize(
    ("limits", "times", "expected"),
    [
        ([3840] * 4, 0, 1),  # of which 960 are a quarter
        ([3839] * 4, 0, 2),
        ([3840] * 4, 0.1, 2),
        ([3840] * 4, 1.1, None),
        ([100] * 4, 0, None),
        ([0] * 4, 9, 1),  # without a limit
    ],
)
def test_rows_do_not_fill_few_workers(
    limits, times, expected, inproc_client, configured
):
    job = job_of(np.zeros((40, 3)))  # 960 bytes
    job.copies = Kept(times)
    workers = known_workers(inproc_client)
    for info, limit in zip(workers.values(), limits, strict=True):
        info["memory_limit"] = limit
    with configured({LIMIT: "1 MiB"}):
        n_ranks, left = choose_ranks(inproc_client, job, workers)
    assert (n_ranks, len(left)) == (expected, expected or 4)


@pytest.mark.parametrize(
    ("n_workers", "worthwhile", "expected"),
    [(1, 1, 1), (1, 4, 4), (3, 1, 4), (3, 8, 8)],
)
def test_ranks_beyond_the_workers_bring_no_memory(
    n_workers, worthwhile, expected, inproc_client, configured
):
    job = job_of(np.zeros((40, 3)), worthwhile=worthwhile)
    known = known_workers(inproc_client)
    workers = {address: known[address] for address in [*known][:n_workers]}
    for info in workers.values():
        info |= {"memory_limit": 100, "nthreads": 8}
    with configured({LIMIT: "1 MiB"}):
        n_ranks, left = choose_ranks(inproc_client, job, workers)
    assert (n_ranks, len(left)) == (expected, n_workers)


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


@pytest.mark.each
@pytest.mark.parametrize(
    ("estimator", "parameters", "limit", "n_ranks"),
    [
        (MASGDClassifier, {}, "1 MiB", 1),
        (MASGDClassifier, {}, 0, 4),
        (MASGDClassifier, {"n_ranks": 4}, "1 MiB", 4),
        (MASGDClassifier, {"paradigm": "gradient"}, "1 MiB", 4),
        (ButterflySGDClassifier, {}, "1 MiB", 1),
        (ButterflySGDClassifier, {"mixing": "allreduce"}, "1 MiB", 4),
        (SFBLogisticRegression, {}, "1 MiB", 1),
        (SFBLogisticRegression, {"communication": "factors"}, "1 MiB", 4),
        (MPCAClassifier, _QUICK, "1 MiB", 1),
        (MPCAClassifier, {"strategy": "gradients", **_QUICK}, "1 MiB", 4),
    ],
)
@pytest.mark.parametrize("kind", ["memory", "workers", "lazy"])
def test_few_rows_are_fitted_by_one_rank(
    estimator, parameters, limit, n_ranks, kind, inproc_client, configured
):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    y = (X[:, 0] > 0).astype(int)
    data = X, y
    with inproc_client.as_current(), configured({LIMIT: limit}):
        if kind != "memory":
            data = tuple(da.from_array(part, chunks=50) for part in data)
        if kind == "workers":
            data = tuple(part.persist() for part in data)
            wait(data)
        model = estimator(max_iter=3, tol=None, random_state=0, **parameters)
        model.fit(*data)
    assert set(model.timeline_["rank"].tolist()) == {*range(n_ranks)}
    assert model.score(X, y) > 0.7


def frame_of(X, y, kind):
    """Rows of a frame, whose bytes nobody knows beforehand."""
    names = [f"x{number}" for number in range(X.shape[1])]
    frame = dd.from_pandas(pd.DataFrame(X, columns=names).assign(y=y), npartitions=4)
    if kind == "workers":
        frame = frame.persist()
        wait(frame)
    return frame[names], frame["y"]


def counted_late(X, y):
    """Rows of an array, of which nobody knows how many there are."""
    X, y = da.from_array(X, chunks=50), da.from_array(y, chunks=50)
    chosen = da.ones(len(y), chunks=50) > 0
    return X[chosen], y[chosen]


@pytest.mark.parametrize(("limit", "n_ranks"), [("1 MiB", 1), ("100 B", 4), (0, 4)])
@pytest.mark.parametrize("kind", ["workers", "lazy", "uncounted"])
def test_rows_may_turn_out_to_be_few(limit, n_ranks, kind, inproc_client, configured):
    """As those of a frame, whose blocks have to be made first."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    y = (X[:, 0] > 0).astype(int)
    with inproc_client.as_current(), configured({LIMIT: limit}):
        late = kind == "uncounted"
        data = counted_late(X, y) if late else frame_of(X, y, kind)
        model = SFBLogisticRegression().fit(*data)
    assert set(model.timeline_["rank"].tolist()) == {*range(n_ranks)}
    expected = SFBLogisticRegression().fit(X, y)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-2)


def test_rows_on_disks_stay_with_all_ranks(inproc_client, configured):
    """As they are beyond memory, or nobody knows whether they are."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    settings = {LIMIT: "1 MiB", "dask-ma.data.persist": False}
    with inproc_client.as_current(), configured(settings):
        data = counted_late(X, (X[:, 0] > 0).astype(int))
        model = SFBLogisticRegression().fit(*data)
    assert set(model.timeline_["rank"].tolist()) == {*range(4)}


def test_rows_that_are_still_computed(inproc_client, configured):
    """The number of ranks is the same as if `fit` had been called later."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    go = Event("dask_ma-rows-come", client=inproc_client)

    def held_up(part):
        get_client().sync(go.wait, timeout=20)
        return part

    with inproc_client.as_current(), configured({LIMIT: "1 MiB"}):
        rows = da.from_array(X, chunks=(50, -1))
        rows = rows.map_blocks(held_up, dtype=X.dtype, meta=X[:0]).persist()
        labels = da.from_array((X[:, 0] > 0).astype(int), chunks=50)
        timer = Timer(0.3, go.set)
        timer.start()
        model = SFBLogisticRegression().fit(rows, labels)
        timer.join()
    assert set(model.timeline_["rank"].tolist()) == {0}


@pytest.mark.parametrize(
    ("model", "n_ranks"),
    [
        (MALDA(3, learning_method="online", batch_size=10), 1),
        (MALDA(3, max_iter=2, paradigm="gradient"), 4),
        (SchMPLDA(3, max_iter=3), 1),
        (SchMPMatrixFactorization(2, feedback="implicit", max_iter=2, tol=0), 1),
        (SchMPMatrixFactorization(2, solver="sgd", max_iter=2, tol=0), 4),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_few_counts_are_fitted_by_one_rank(model, n_ranks, inproc_client, configured):
    counts = np.random.default_rng(0).poisson(0.7, size=(80, 20))
    with inproc_client.as_current(), configured({LIMIT: "1 MiB"}):
        model.set_params(random_state=0).fit(sparse.csr_matrix(counts))
    assert set(model.timeline_["rank"].tolist()) == {*range(n_ranks)}


# What they reckon with --------------------------------------------------------------


def size_of(n_rows, n_features, per_row=None, held=None):
    n_stored = n_rows * (per_row or n_features)
    return InputSize(n_rows, n_features, n_stored, 8 * n_stored, held or {})


def test_what_is_shared_and_what_is_added(configured):
    """Two halves and an exchange; then four quarters and two exchanges, and so on."""
    size = size_of(10, 10)

    def choose(shared, exchanges=100, nbytes=0.0, held=None, most=64):
        rows = size._replace(held=held or {})
        return worthwhile_ranks(
            rows, most, shared=shared, exchanges=exchanges, nbytes=nbytes
        )

    assert [choose(shared) for shared in (0.29, 0.31, 0.61, 1.21)] == [1, 2, 4, 8]
    assert [choose(1.21, most=most) for most in (1, 3, 6)] == [1, 3, 6]
    with configured({"dask-ma.comm.link-bandwidth": "1 MB"}):
        assert [choose(1.0, nbytes=n) for n in (0, 1e5, 3e6)] == [4, 4, 1]
        # What lies on two workers stays there rather than to move for a second.
        assert choose(0.2, held={"a": 10**6, "b": 10**6}, most=2) == 2


def test_ranks_of_linear_models():
    few, some, many = size_of(1_797, 64), size_of(25_000, 37_000, 137), 10**6
    for estimator in (ButterflySGDClassifier, SFBLogisticRegression):
        model = estimator()
        params = model._make_params(describe(np.ones((2, 2))))
        found = [model._worthwhile_ranks(params, size, 8) for size in (few, some)]
        assert found[0] == 1 < found[1] < 8
        assert model._worthwhile_ranks(params, size_of(many, 100), 8) == 8


def test_classes_are_work():
    """Of many classes each row has more; the numbers of a target are no classes."""
    size = size_of(3_000, 100)
    for estimator, n_ranks in ((ButterflySGDClassifier, 8), (SFBLogisticRegression, 4)):
        model = estimator()
        params = model._make_params(describe(np.ones((2, 2))))
        found = [
            model._worthwhile_ranks(params, size._replace(n_classes=n), 8)
            for n in (2, 10, 300)
        ]
        assert found == [1, 1, n_ranks]
    model = ButterflySGDRegressor()
    params = model._make_params(describe(np.ones((2, 2))))
    assert model._worthwhile_ranks(params, size._replace(n_classes=300), 8) == 1


def test_classes_are_work_of_averaged_models():
    size = size_of(100_000, 2_000, 20)
    model = MASGDClassifier()
    params = model._make_params(describe(np.ones((2, 2))))
    found = [
        model._worthwhile_ranks(params, size._replace(n_classes=n), 4) for n in (2, 10)
    ]
    assert found == [2, 4]
    model = MASGDRegressor()
    params = model._make_params(describe(np.ones((2, 2))))
    assert model._worthwhile_ranks(params, size._replace(n_classes=10), 4) == 2


def test_classes_reach_the_choice(inproc_client, configured):
    seen = []
    X, y = np.zeros((40, 3)), np.arange(40) % 7
    job = job_of(X)
    job.worthwhile_ranks = lambda size, n_threads: seen.append(size.n_classes) or 1
    with configured({LIMIT: "1 MiB"}):
        for job.is_labelled, labels in ((True, y), (False, y), (True, None)):
            job.data = (X, labels, None)
            choose_ranks(inproc_client, job, known_workers(inproc_client))
    assert seen == [7, 2, 2]


def network(hidden, batch_size="auto"):
    spec = MLPSpec(hidden_layer_sizes=hidden)
    return SimpleNamespace(
        spec=spec, strategy="auto", batch_size=batch_size, n_targets=None
    )


def test_ranks_of_networks():
    """A step takes its time, however few rows it has: batches are to be worth it."""
    images = size_of(60_000, 784)
    assert ranks_for_network(network((256, 128)), images, 8) == 8
    assert ranks_for_network(network((256, 128)), size_of(500, 784), 8) == 1
    assert [ranks_for_network(network((10,)), images, n) for n in (2, 8, 64)] == [1] * 3
    # Batches that are not shared out make fewer steps.
    assert ranks_for_network(network((10,), batch_size=200), images, 8) == 4


def test_ranks_of_networks_on_words():
    """Steps go through weights of the words of a batch, of which half have fewer."""
    words = size_of(25_000, 37_000, 137)
    assert ranks_for_network(network((100,)), words, 4) == 4
    # As with dense rows, where steps are for all inputs; or next to none.
    plain = network((100,))
    plain.spec = MLPSpec(hidden_layer_sizes=(100,), solver="sgd")
    assert ranks_for_network(plain, words, 4) == 1
    assert ranks_for_network(network((100,)), size_of(500, 37_000, 20), 4) == 1
    # Gradients are added up where an epoch has few steps.
    assert ranks_for_network(network((100,)), size_of(3_000, 37_000, 137), 4) == 1


def topics(n_components, n_features, sampler="exact", n_rotations=100):
    return SimpleNamespace(
        n_components=n_components,
        n_features=n_features,
        n_proposals=4,
        sampler=sampler,
        n_rotations=n_rotations,
    )


def test_ranks_of_topics(configured):
    some, few = size_of(25_000, 37_000, 137), size_of(500, 37_000, 50)
    with configured({LIMIT: "512 MiB"}):
        assert ranks_for_topics(topics(100, 37_000), some, 8) == 8
        assert ranks_for_topics(topics(100, 37_000), few, 8) == 1
    with configured({LIMIT: "1 MiB"}):  # the counts of words are larger than that
        assert ranks_for_topics(topics(100, 37_000), few, 8) == 8
        # Unless they are sent as sparse rows, which have no more elements than tokens.
        assert ranks_for_topics(topics(100, 37_000, "metropolis"), few, 8) == 1
        assert ranks_for_topics(topics(1_000, 37_000), few, 8) < 8
        dense = size_of(500, 37_000)
        assert ranks_for_topics(topics(100, 37_000, "metropolis"), dense, 8) == 8
    with configured({LIMIT: "512 MiB"}):
        # Which pass sooner than the whole table, and have more work for each count.
        large = topics(1_000, 100_000), topics(999, 100_000)
        much = size_of(1_500, 100_000, 137)
        assert [ranks_for_topics(params, much, 8) for params in large] == [8, 1]
        small = topics(100, 100), topics(100, 100, "metropolis")
        little = size_of(5_000, 100, 20)
        ranks = [ranks_for_topics(params, little, 8) for params in small]
        assert ranks[0] < ranks[1]
        # Draws cost in proportion to the topics.
        ranks = [ranks_for_topics(topics(n, 100), little, 8) for n in (10, 300)]
        assert ranks[0] < ranks[1]
    model = MALDA(100)
    model.n_features_in_ = 37_000
    params = model._make_params(describe(np.ones((2, 37_000))))
    assert model._worthwhile_ranks(params, some, 8) == 8
    assert model._worthwhile_ranks(params, size_of(5_000, 37_000, 5), 8) == 1


def test_ranks_of_factors():
    def choose(n_users, n_items, n_ratings, n_components):
        model = SchMPMatrixFactorization(n_components)
        model._rated = Rated.all_of((n_users, n_items))
        rows = np.empty((n_ratings, 3), dtype=np.float32)
        params = model._make_params(describe(rows))
        return ranks_for_factors(params, size_of(n_ratings, 3), 8)

    assert choose(4_000, 1_000, 80_000, 8) == 1
    assert choose(25_000, 37_000, 3_400_000, 64) == 8


def test_few_lazy_rows_are_computed_by_all_workers(inproc_client, configured):
    """Nobody knows how long that takes: one rank gets them when they are there."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    X[:, 4] = np.arange(200) // 100

    def meet(block):
        number = int(block[0, 4])
        Event(f"block {number} is being computed").set()
        assert Event(f"block {1 - number} is being computed").wait(10)
        return block

    with inproc_client.as_current(), configured({LIMIT: "1 MiB"}):
        lazy = da.from_array(X, chunks=(100, -1)).map_blocks(
            meet, dtype=X.dtype, meta=X[:0]
        )
        model = MASGDClassifier(max_iter=3, tol=None).fit(lazy, X[:, 0] > 0)
    assert set(model.timeline_["rank"].tolist()) == {0}
    assert model.score(X, X[:, 0] > 0) > 0.7


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
