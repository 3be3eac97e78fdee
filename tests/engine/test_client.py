"""Which cluster a fit runs on, and where its ranks go."""

import asyncio

import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.utils import get_mp_context

from dask_ma import MASGDClassifier, run_spmd
from dask_ma.data import scheduler_workers
from dask_ma.engine import _client, _fit, fit_client, place_ranks
from dask_ma.engine._client import one_per_worker, spread_ranks
from dask_ma.exceptions import NoWorkersError


@pytest.mark.parametrize(
    ("threads", "n_ranks", "expected"),
    [
        ({"a": 1, "b": 1, "c": 1}, 3, "abc"),
        ({"a": 1, "b": 1, "c": 1}, 2, "ab"),
        ({"a": 1, "b": 1}, 5, "aaabb"),
        ({"a": 4, "b": 4}, 8, "aaaabbbb"),
        ({"a": 4, "b": 4}, 2, "ab"),
        ({"a": 4, "b": 4}, 3, "aab"),
        ({"a": 1, "b": 3}, 4, "abbb"),
        ({"a": 2, "b": 6}, 16, "aaaabbbbbbbbbbbb"),
    ],
)
def test_ranks_are_spread_by_threads(threads, n_ranks, expected):
    assert "".join(spread_ranks(threads, n_ranks)) == expected


def test_without_client_there_are_no_addresses():
    assert place_ranks(None, 4) is None


@pytest.mark.parametrize(
    ("n_ranks", "n_rows", "counts"),
    [
        (None, None, [1, 1, 1, 1]),
        (2, None, [1, 1]),
        (6, None, [2, 2, 1, 1]),
        (None, 3, [1, 1, 1]),
        (8, 5, [2, 1, 1, 1]),
        (4, 0, [1]),
    ],
)
def test_placing_ranks_on_workers(inproc_client, n_ranks, n_rows, counts):
    addresses = place_ranks(inproc_client, n_ranks, n_rows)
    workers = sorted(inproc_client.nthreads())[: len(counts)]
    expected = [w for w, n in zip(workers, counts, strict=True) for _ in range(n)]
    assert addresses == expected


def test_a_fit_asks_the_scheduler_once_where_its_ranks_may_go(
    inproc_client, monkeypatch
):
    """Each question takes as long as a round of a small fit."""
    asked = []

    def count(client):
        asked.append(client)
        return scheduler_workers(client)

    for module in (_client, _fit):
        monkeypatch.setattr(module, "scheduler_workers", count)
    X = np.random.default_rng(0).normal(size=(40, 3))
    with inproc_client.as_current():
        MASGDClassifier(max_iter=2, tol=None).fit(X, X[:, 0] > 0)
    assert asked == [inproc_client]


@pytest.mark.parametrize(("n_ranks", "counts"), [(None, [4, 4]), (2, [1, 1])])
def test_every_thread_of_a_worker_carries_a_rank(wide_client, n_ranks, counts):
    addresses = place_ranks(wide_client, n_ranks)
    assert [addresses.count(w) for w in sorted(wide_client.nthreads())] == counts


def test_one_rank_per_worker(wide_client):
    assert one_per_worker(wide_client) == sorted(wide_client.nthreads())


def test_no_client_at_all():
    with fit_client() as client:
        assert client is None


def test_the_client_given_wins_over_the_current_one(inproc_client):
    with (
        LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as cluster,
        Client(cluster) as current,
    ):
        with fit_client() as client:
            assert client is current
        with fit_client(inproc_client) as client:
            assert client is inproc_client


def test_the_current_client_can_be_set_for_a_block(inproc_client):
    with inproc_client.as_current(), fit_client() as client:
        assert client is inproc_client


def test_a_cluster_without_workers(configured):
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        configured({"distributed.adaptive.interval": "10 ms"}),
    ):
        with pytest.raises(NoWorkersError, match=r"has 0 workers.*wait_for_workers"):
            place_ranks(client, None)
        with pytest.raises(NoWorkersError, match=client.scheduler.address):
            run_spmd(lambda group: None, client=client)


@pytest.mark.parametrize("min_workers", [0, 1])
def test_a_cluster_that_adapts_starts_a_worker(configured, min_workers):
    """There is none while nothing is to do, and no task before there is one."""
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        configured({"dask-ma.launch.min-workers": min_workers}),
    ):
        cluster.adapt(minimum=0, maximum=1, interval="50 ms", wait_count=1000)
        assert run_spmd(lambda group: group.size, client=client) == [1]


def test_workers_that_the_cluster_is_starting_are_waited_for():
    with (
        LocalCluster(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        cluster.scale(1)
        assert run_spmd(lambda group: group.size, client=client) == [1]


def test_a_cluster_that_says_nothing_of_its_plans(configured):
    """As the base class of Dask's clusters, whose `plan` needs what it has not."""

    class Silent(LocalCluster):
        @property
        def plan(self):
            raise AttributeError("workers")

    with (
        Silent(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        configured({"distributed.adaptive.interval": "1 ms"}),
        pytest.raises(NoWorkersError, match=r"has 0 workers"),
    ):
        run_spmd(lambda group: None, client=client)


def test_workers_that_the_cluster_only_plans(configured):
    class Planned(LocalCluster):
        plan = frozenset({0})

    with (
        Planned(n_workers=0, processes=False, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        configured(
            {
                "dask-ma.launch.min-workers-timeout": "50 ms",
                "distributed.adaptive.interval": "1 ms",
            }
        ),
        pytest.raises(NoWorkersError, match="cluster has begun to start"),
    ):
        run_spmd(lambda group: None, client=client)


def test_a_closed_client(_inproc_cluster):
    client = Client(_inproc_cluster.scheduler.address, set_as_default=False)
    client.close()
    with pytest.raises(NoWorkersError, match="client is closed; make a new one"):
        run_spmd(lambda group: None, client=client)


def test_an_asynchronous_client():
    async def call():
        async with (
            LocalCluster(
                n_workers=1, processes=False, dashboard_address=":0", asynchronous=True
            ) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            with pytest.raises(TypeError, match="asynchronous=False"):
                run_spmd(lambda group: None)
            with pytest.raises(TypeError, match="asynchronous=False"):
                run_spmd(lambda group: None, client=client)

    asyncio.run(call())


def test_processes_are_forked_from_one_that_has_settled(process_client):
    """Else each looks through all that has been imported, and copies it."""

    def settled():
        import sys

        return "settled" in sys.modules

    assert all(process_client.run(settled).values())


def test_processes_of_workers_without_a_nanny_are_calm(tmp_path):
    """A nanny tells its worker how the tests are configured; these are told nothing."""
    path = tmp_path / "found"
    code = (
        "import dask, pathlib; "
        'found = dask.config.get("distributed.worker.profile.enabled"); '
        f"pathlib.Path({str(path)!r}).write_text(str(found))"
    )
    process = get_mp_context().Process(target=exec, args=(code, {}))
    process.start()
    process.join(60)
    assert path.read_text() == "False"
