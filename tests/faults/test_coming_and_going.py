"""Clusters that lose all they have, shrink in order, grow slowly, lose rows twice."""

import logging
import os
import signal
import socket
import threading
import time
from contextlib import contextmanager

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, wait

import dask_ma.ma.sgd._linear
from dask_ma import MASGDClassifier
from dask_ma.data import _collections
from dask_ma.engine import _fit
from dask_ma.engine._monitor import RunMonitor
from dask_ma.exceptions import (
    FitFailedError,
    NoWorkersError,
    PeerLostError,
    RoundsLostWarning,
    RowsLostError,
    RowsLostWarning,
)

pytestmark = pytest.mark.slow

N_WORKERS = 3
N_ROUNDS = 6
STRUCK = 2  # the round after which most of them are
PARAMS = {
    "loss": "log_loss",
    "alpha": 0.01,
    "max_iter": N_ROUNDS,
    "tol": None,
    "random_state": 0,
    "local_epochs": 1.0,
}


# Workers that come back are waited for; what a restart has forgotten is given up soon.
_WAITS = {"dask-ma.recovery.wait": 20, "dask-ma.launch.abort-timeout": "1 s"}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 10))
    return X, (X @ np.arange(10) + rng.normal(size=1500) > 0).astype(int)


@pytest.fixture(scope="module")
def undisturbed(rows):
    return MASGDClassifier(n_ranks=N_WORKERS, **PARAMS).fit(*rows)


@pytest.fixture(scope="module")
def undisturbed_alone(rows):
    return MASGDClassifier(n_ranks=1, **PARAMS).fit(*rows)


@pytest.fixture
def unused_port():
    """A port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def undisturbed_blocks(rows):
    """The same rows in blocks, which are gone through one by one."""
    model = MASGDClassifier(n_ranks=N_WORKERS, **PARAMS)
    return model.fit(
        *(da.from_array(part, chunks=(250, *part.shape[1:])) for part in rows)
    )


@pytest.fixture(scope="module")
def nanny_cluster(nannied, assert_usable):
    """Three worker processes, which their nannies start again."""
    with nannied(N_WORKERS) as client:
        assert_usable(client, N_WORKERS)
        yield client


@pytest.fixture
def client(nanny_cluster, assert_usable):
    """The current client, with all workers there after the test as before it."""
    with nanny_cluster.as_current(), dask.config.set(_WAITS):
        yield nanny_cluster
    assert_usable(nanny_cluster, N_WORKERS)


@pytest.fixture
def at_round(monkeypatch, tmp_path):
    """``at_round(number, strike, rank=0)``: a rank calls `strike` after a round, once.

    With number 0 it does so before the first one, when all ranks have begun. `strike`
    is a function without arguments that is pickled by value; other ranks wait there for
    as long as it takes.
    """

    strikes = []

    def arm(number, strike, rank=0):
        strikes.append((number, strike, rank, tmp_path / f"struck-{len(strikes)}"))
        monkeypatch.setattr("dask_ma.ma.sgd._linear.train", _striking(strikes))
        return strikes[-1][-1]

    return arm


def _striking(strikes):
    """The agent of model averaging, with something happening after some rounds."""

    def agent(context, arguments, params):
        from dask_ma.comm import barrier
        from dask_ma.ma.sgd import _agent

        keep = context.save_state

        def strike_after(n_rounds):
            for number, strike, rank, mark in strikes:
                hit = n_rounds == number and context.group.rank == rank
                if hit and not mark.exists():
                    mark.touch()
                    strike()

        def striking_keep(n_rounds, *args, **kwargs):
            keep(n_rounds, *args, **kwargs)
            strike_after(n_rounds)

        context.save_state = striking_keep
        if any(number == 0 for number, *_ in strikes):
            barrier(context.group)
            strike_after(0)
        return _agent.train(context, arguments, params)

    return agent


def kill_self():
    """A function that ends the process that calls it."""

    def strike():
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)

    return strike


def kill_self_with_files():
    """A function that ends its process and removes its files, as nannies do."""
    kill = kill_self()

    def strike():
        import shutil

        from distributed import get_worker

        shutil.rmtree(get_worker().local_directory)
        kill()

    return strike


def wait_until(holds):
    """Wait a minute at most until something holds."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def pause(seconds):
    """A function that takes its time."""

    def strike():
        import time

        time.sleep(seconds)

    return strike


def assert_same_course(model, undisturbed):
    """All rounds, once each, and the bits of a fit that nothing happened to."""
    assert [r["round"] for r in model.history_] == list(range(1, N_ROUNDS + 1))
    assert model.history_[-1]["n_samples"] == 1500
    np.testing.assert_array_equal(model.coef_, undisturbed.coef_)


def as_input(kind, client, X, y):
    """The rows as a collection of a kind."""
    if kind == "numpy":
        return X, y
    lazy = [da.from_array(part, chunks=(250, *part.shape[1:])) for part in (X, y)]
    if kind == "lazy X":
        return lazy[0], y
    if kind == "persisted":
        lazy = client.persist(lazy)
        wait(lazy)
    return tuple(lazy)


# Rows that are lost twice -----------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("kind", ["numpy", "lazy", "lazy X"])
@pytest.mark.parametrize("moment", ["wait_for_workers", "recover_shards"])
def test_a_second_loss_while_the_first_is_mended(
    client, rows, undisturbed, undisturbed_blocks, at_round, monkeypatch, kind, moment
):
    """The rows that the client or the graph has are there in the end."""
    at_round(STRUCK, kill_self(), rank=1)
    mend, pids = getattr(_fit, moment), client.run(os.getpid)
    struck = []

    def strike():
        victim = sorted(set(pids) & set(client.nthreads()))[-1]
        struck.append(victim)
        os.kill(pids[victim], signal.SIGKILL)
        while victim in client.nthreads():
            time.sleep(0.01)

    def mend_and_strike(*args, **kwargs):
        if not struck and moment == "recover_shards":
            strike()
        result = mend(*args, **kwargs)
        if not struck:
            strike()
        return result

    monkeypatch.setattr(_fit, moment, mend_and_strike)
    model = MASGDClassifier(**PARAMS).fit(*as_input(kind, client, *rows))
    assert struck
    assert_same_course(model, undisturbed if kind == "numpy" else undisturbed_blocks)


@pytest.mark.parametrize("moment", ["wait_for_blocks", "holders_of"])
def test_a_loss_while_persisted_rows_are_placed(
    client, rows, undisturbed_blocks, monkeypatch, moment
):
    """Dask computes them again, for which the fit waits."""
    X, y = as_input("persisted", client, *rows)
    place, pids = getattr(_collections, moment), client.run(os.getpid)
    struck = []

    def strike_and_place(*args):
        if not struck:
            victim = sorted(pids)[0]
            struck.append(victim)
            os.kill(pids[victim], signal.SIGKILL)
            wait_until(lambda: victim not in client.nthreads())
        return place(*args)

    monkeypatch.setattr(_collections, moment, strike_and_place)
    model = MASGDClassifier(**PARAMS).fit(X, y)
    assert struck
    assert model.history_[-1]["n_samples"] == 1500
    wanted = undisturbed_blocks.history_[-1]["objective"]
    assert model.history_[-1]["objective"] == pytest.approx(wanted, rel=0.01)


def test_persisted_rows_that_are_being_computed_again(client, rows):
    """Their worker has gone before the fit begins."""

    def slow(block):
        import time

        time.sleep(0.7)
        return block

    X, y = as_input("lazy", client, *rows)
    X = client.persist(X.map_blocks(slow, dtype=float, meta=np.empty((0, 0))))
    wait(X)
    address, pid = sorted(client.run(os.getpid).items())[0]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: address not in client.nthreads())
    model = MASGDClassifier(**PARAMS).fit(X, y)
    assert model.history_[-1]["n_samples"] == 1500
    assert model.history_[-1]["restarts"] == 0


@pytest.fixture(scope="module")
def uneven(rows):
    """Rows of which rank 2 has one less than the others, and a fit to them."""
    rows = tuple(part[:1499] for part in rows)
    return rows, MASGDClassifier(n_ranks=N_WORKERS, **PARAMS).fit(*rows)


@pytest.mark.parametrize("rank", [0, 2])
def test_the_same_bits_whoever_takes_over(uneven, client, at_round, rank):
    """Though nobody starts in place of the lost worker, whose rank changes process.

    What a rank with a row more has done says nothing of the next step of another.
    """
    rows, undisturbed = uneven
    at_round(STRUCK, kill_self(), rank=rank)
    with dask.config.set({"dask-ma.recovery.wait": 0}):
        model = MASGDClassifier(**PARAMS).fit(*rows)
    np.testing.assert_array_equal(model.coef_, undisturbed.coef_)
    assert [r["round"] for r in model.history_] == list(range(1, N_ROUNDS + 1))
    assert [r["restarts"] for r in model.history_] == [0] * STRUCK + [1] * (
        N_ROUNDS - STRUCK
    )


@contextmanager
def restarted_after(mark, client):
    """Restart the cluster by another client once `mark` is there."""

    def restart():
        wait_until(mark.exists)
        with Client(client.scheduler.address, set_as_default=False) as other:
            other.restart(timeout=60)

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        yield
    finally:
        thread.join(60)


@pytest.mark.parametrize("kind", ["numpy", "lazy", "lazy X"])
def test_a_restart_of_the_cluster(
    client, rows, undisturbed, undisturbed_blocks, at_round, kind
):
    """By another client, which makes the scheduler forget all that it knows."""
    mark = at_round(STRUCK, pause(30))
    with (
        restarted_after(mark, client),
        # The client may have asked how far the fit has come by then.
        pytest.warns(RoundsLostWarning, match="begins anew.*, since there is no check"),
    ):
        model = MASGDClassifier(**PARAMS).fit(*as_input(kind, client, *rows))
    assert_same_course(model, undisturbed if kind == "numpy" else undisturbed_blocks)


def test_a_restart_that_takes_persisted_rows_along(client, rows, at_round):
    """Nobody has them any more, and the error says so."""
    X, y = as_input("persisted", client, *rows)
    mark = at_round(STRUCK, pause(30))
    with (
        restarted_after(mark, client),
        pytest.warns(RoundsLostWarning),
        pytest.raises(RowsLostError, match="released by a restart of the cluster"),
    ):
        MASGDClassifier(**PARAMS).fit(X, y)


# All workers at once ----------------------------------------------------------------


def kill_all(client):
    """End all worker processes of a cluster."""
    for pid in client.run(os.getpid).values():
        os.kill(pid, signal.SIGKILL)


@contextmanager
def all_killed_after(mark, client):
    """End all worker processes once `mark` is there."""

    def strike():
        wait_until(mark.exists)
        kill_all(client)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        yield
    finally:
        thread.join(60)


@pytest.mark.parametrize("kind", ["numpy", "lazy", "lazy X", "persisted"])
def test_all_workers_at_once(
    client, rows, undisturbed, undisturbed_blocks, at_round, kind
):
    X, y = as_input(kind, client, *rows)
    mark = at_round(STRUCK, pause(30))
    with (
        all_killed_after(mark, client),
        pytest.warns(RoundsLostWarning, match="no checkpoint"),
    ):
        model = MASGDClassifier(**PARAMS).fit(X, y)
    if kind == "persisted":  # whose blocks may have come to lie elsewhere
        assert model.history_[-1]["n_samples"] == 1500
    else:
        wanted = undisturbed if kind == "numpy" else undisturbed_blocks
        assert_same_course(model, wanted)
    assert {r["restarts"] for r in model.history_} == {1}


def test_all_workers_before_anybody_has_asked_for_the_round(client, rows, at_round):
    """The warning names no round where none is known."""
    mark = at_round(STRUCK, pause(30))
    with (
        all_killed_after(mark, client),
        dask.config.set({"dask-ma.launch.heartbeat-interval": "1 hour"}),
        pytest.warns(RoundsLostWarning, match="it begins anew, since there is no"),
    ):
        MASGDClassifier(**PARAMS).fit(*rows)


def test_all_workers_at_once_with_a_checkpoint(
    client, rows, undisturbed, at_round, tmp_path
):
    mark = at_round(STRUCK, pause(30))
    path = str(tmp_path / "saved")
    with (
        all_killed_after(mark, client),
        pytest.warns(RoundsLostWarning, match="goes on from the last checkpoint in"),
        dask.config.set({"dask-ma.checkpoint.path": path}),
    ):
        model = MASGDClassifier(**PARAMS).fit(*rows)
    assert_same_course(model, undisturbed)
    assert [r["restarts"] for r in model.history_] == [0] * STRUCK + [1] * (
        N_ROUNDS - STRUCK
    )
    times = [r["time"] for r in model.history_]
    assert times == sorted(times)


def test_nobody_is_left(rows, at_round, cluster_client, bare_workers, assert_clean):
    with cluster_client.as_current(), bare_workers(cluster_client, 2):
        mark = at_round(STRUCK, pause(30))
        with (
            all_killed_after(mark, cluster_client),
            dask.config.set(
                {
                    **_WAITS,
                    "dask-ma.recovery.wait": 0,
                    "dask-ma.recovery.wait-for-any": "500 ms",
                }
            ),
            pytest.raises(NoWorkersError) as caught,
        ):
            MASGDClassifier(**PARAMS).fit(*rows)
    text = str(caught.value)
    for part in ("was under way", "recovery.wait-for-any", "checkpoint.path"):
        assert part in text
    assert_clean(cluster_client)


def test_a_worker_that_comes_back_at_its_address(
    rows, undisturbed_alone, at_round, cluster_client, bare_workers, unused_port
):
    """As pods with fixed addresses do, or ``dask worker --worker-port``."""
    options = ["--worker-port", str(unused_port)]
    models = []
    with bare_workers(cluster_client, 1, *options) as processes:
        mark = at_round(STRUCK, pause(30))
        thread = threading.Thread(
            target=lambda: models.append(_fit_with(cluster_client, rows))
        )
        with pytest.warns(RoundsLostWarning):
            thread.start()
            wait_until(mark.exists)
            processes[0].kill()
            processes[0].join()
            with bare_workers(cluster_client, 1, *options):
                thread.join(60)
    assert_same_course(models[0], undisturbed_alone)


def test_what_is_learnt_without_rows_is_not_saved(
    client, rows, undisturbed, at_round, tmp_path
):
    """A later fit on all rows does not take it for its own."""
    at_round(STRUCK, kill_self(), rank=1)
    with dask.config.set(
        {
            "dask-ma.on-worker-loss": "continue",
            "dask-ma.checkpoint.path": str(tmp_path / "saved"),
        }
    ):
        with pytest.warns(RowsLostWarning, match="it is not saved any more"):
            less = MASGDClassifier(**PARAMS).fit(*rows)
        assert less.history_[-1]["n_samples"] == 1000
        client.wait_for_workers(3, timeout=60)  # else two ranks would go on
        model = MASGDClassifier(**PARAMS).fit(*rows)
    assert_same_course(model, undisturbed)


# Counting losses --------------------------------------------------------------------


def test_losses_count_since_the_last_round(client, rows, undisturbed, at_round):
    for number in (1, 3, 5):
        at_round(number, kill_self(), rank=1)
    with dask.config.set({"dask-ma.recovery.max-restarts": 1}):
        model = MASGDClassifier(**PARAMS).fit(*rows)
    assert_same_course(model, undisturbed)
    assert model.history_[-1]["restarts"] == 3


def test_losses_without_a_further_round(client, rows, at_round):
    at_round(1, kill_self(), rank=1)
    at_round(2, kill_self(), rank=1)
    with (
        dask.config.set({"dask-ma.recovery.max-restarts": 0}),
        pytest.raises(PeerLostError) as caught,
    ):
        MASGDClassifier(**PARAMS).fit(*rows)
    assert "gave up after 0 losses since" in caught.value.__notes__[-1]


# Waiting for workers ----------------------------------------------------------------


def test_a_fit_waits_for_workers(rows, cluster_client, bare_workers):
    X, y = rows
    models = []

    def fit():
        with cluster_client.as_current():
            models.append(MASGDClassifier(**PARAMS).fit(X, y))

    thread = threading.Thread(target=fit)
    with dask.config.set({"dask-ma.launch.min-workers": 2}):
        thread.start()
        with bare_workers(cluster_client, 2):
            thread.join(60)
    assert models
    messages = models[0].history_[-1]["messages_sent"]
    assert messages > 0  # there were two ranks


def test_a_fit_does_not_wait_for_ever(rows, cluster_client, bare_workers):
    with (
        cluster_client.as_current(),
        bare_workers(cluster_client, 1),
        dask.config.set(
            {
                "dask-ma.launch.min-workers": 2,
                "dask-ma.launch.min-workers-timeout": "300 ms",
            }
        ),
        pytest.raises(
            NoWorkersError, match=r"1 workers take tasks after 0.3 s .*ted 2"
        ),
    ):
        MASGDClassifier(**PARAMS).fit(*rows)


def test_a_worker_that_takes_its_time_to_join(
    rows, cluster_client, bare_workers, at_round, monkeypatch
):
    """It is listed long before it takes tasks, and it gets its rank."""
    from distributed import WorkerPlugin

    class SlowStart(WorkerPlugin):
        name = "slow-start"

        async def setup(self, worker):
            import asyncio

            await asyncio.sleep(0.7)

    def wait_for_others():
        import time

        from dask_ma.engine.recovery import _states

        deadline = time.monotonic() + 30
        while not _states._regroup_wanted:
            assert time.monotonic() < deadline, "nobody asks to start again"
            time.sleep(0.01)

    mark = at_round(STRUCK, wait_for_others)
    settings = {"dask-ma.elastic": True, "dask-ma.launch.heartbeat-interval": "100 ms"}
    with (
        cluster_client.as_current(),
        bare_workers(cluster_client, 1),
        dask.config.set(settings),
    ):
        cluster_client.register_plugin(SlowStart())
        models = []
        thread = threading.Thread(
            target=lambda: models.append(_fit_with(cluster_client, rows))
        )
        thread.start()
        wait_until(mark.exists)
        try:
            with bare_workers(cluster_client, 2):
                thread.join(60)
        finally:
            cluster_client.unregister_worker_plugin("slow-start")
    messages = [record["messages_sent"] for record in models[0].history_]
    assert messages[0] == 0 < messages[-1]


def _fit_with(client, rows):
    """A fit in a thread of its own."""
    with client.as_current():
        return MASGDClassifier(**PARAMS).fit(*rows)


# Workers that close in order --------------------------------------------------------


def leave_soon(then=None):
    """A function that has its worker close as at the end of its lifetime.

    It comes back, or calls another one, once the scheduler has let the worker go, which
    the client sees when it looks next: the other ranks may well have ended by then.
    """

    def strike():
        import time

        from distributed import Status, get_worker

        from dask_ma.comm._plugin import registry

        worker = get_worker()
        worker.loop.add_callback(worker.close_gracefully)
        deadline = time.monotonic() + 60
        # One without a lifetime does not wait for its rank.
        while not (
            registry.is_leaving(worker.address) or worker.status is Status.closed
        ):
            assert time.monotonic() < deadline, "the worker stays"
            time.sleep(0.01)
        if then is not None:
            then()

    return strike


MORTAL = "--lifetime", "1 hour"


@pytest.fixture
def mortal(crew, assert_clean):
    """The current client, of three workers that close by themselves some day."""
    client = crew(3, *MORTAL)
    with client.as_current(), dask.config.set({"dask-ma.recovery.wait": 0}):
        yield client
    assert_clean(client)


def assert_regrouped(model, caplog, n_before):
    """All rows and rounds, some with three ranks; nothing says that any were lost."""
    assert "lost" not in caplog.text
    assert "starts again on other workers" in caplog.text
    assert [r["round"] for r in model.history_] == list(range(1, N_ROUNDS + 1))
    assert model.history_[-1]["n_samples"] == 1500
    n_after = N_ROUNDS - n_before
    assert [r["restarts"] for r in model.history_] == [0] * n_before + [1] * n_after


@pytest.mark.each
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", ["numpy", "persisted"])
def test_a_worker_that_closes_gracefully(mortal, rows, at_round, caplog, kind, rank):
    """Its rank ends after the round, which nobody has to repeat."""
    at_round(STRUCK, leave_soon(), rank=rank)
    with caplog.at_level(logging.INFO, "dask_ma.engine"):
        model = MASGDClassifier(**PARAMS).fit(*as_input(kind, mortal, *rows))
    # The round in which the worker was asked to go is the last one of three ranks.
    assert_regrouped(model, caplog, STRUCK + 1)


def wait_for_the_end():
    """A function that comes back when its worker has closed."""

    def strike():
        import time

        from distributed import Status, get_worker

        deadline = time.monotonic() + 60
        while get_worker().status is not Status.closed:
            assert time.monotonic() < deadline, "the worker stays"
            time.sleep(0.01)

    return strike


@pytest.mark.parametrize(
    ("kind", "rank", "options"),
    [
        ("numpy", 0, ()),
        ("numpy", 1, MORTAL),
        ("persisted", 1, ()),
        ("lazy", 1, ()),
        ("on disks", 1, MORTAL),
    ],
)
def test_a_worker_that_closes_in_the_first_round(
    rows, crew, at_round, caplog, assert_clean, kind, rank, options
):
    """Nothing is lost, whatever cluster it is: all rows are shared out once more."""
    at_round(0, leave_soon(wait_for_the_end()), rank=rank)
    client = crew(3, *options)
    with (
        client.as_current(),
        dask.config.set(
            {
                "dask-ma.recovery.wait": 0,
                "dask-ma.on-worker-loss": "continue",
                "dask-ma.data.persist": kind != "on disks",
            }
        ),
        caplog.at_level(logging.INFO, "dask_ma.engine"),
    ):
        given = "lazy" if kind == "on disks" else kind
        model = MASGDClassifier(**PARAMS).fit(*as_input(given, client, *rows))
        assert_clean(client)
    assert_regrouped(model, caplog, 0)


def test_workers_that_close_again_and_again_in_the_first_round(mortal, rows, at_round):
    """A fit that never comes to a round is given up."""
    at_round(0, leave_soon(wait_for_the_end()), rank=1)
    with (
        dask.config.set({"dask-ma.recovery.max-restarts": 0}),
        pytest.raises(FitFailedError, match="left before a round had ended") as caught,
    ):
        MASGDClassifier(**PARAMS).fit(*rows)
    assert "gave up after 0 losses" in caught.value.__notes__[-1]


@pytest.mark.parametrize("is_in_order", [True, False])
def test_a_worker_that_goes_while_rows_are_shared_out(
    crew, rows, monkeypatch, caplog, assert_clean, is_in_order
):
    """Nothing is lost with it if it leaves in order."""
    partition, gone = _fit.partition, []

    def partition_late(*args, client, addresses, **kwargs):
        if not gone:
            gone.append(addresses[0])
            if is_in_order:
                client.retire_workers(gone)
            else:
                client.run(os._exit, 1, workers=gone, on_error="ignore")
            wait_until(lambda: gone[0] not in client.nthreads())
            raise PeerLostError("a worker has gone", gone)
        return partition(*args, client=client, addresses=addresses, **kwargs)

    monkeypatch.setattr(_fit, "partition", partition_late)
    ours = crew(3)
    with (
        ours.as_current(),
        dask.config.set({"dask-ma.recovery.wait": 0}),
        caplog.at_level(logging.INFO, "dask_ma.engine"),
    ):
        model = MASGDClassifier(**PARAMS).fit(*rows)
        assert_clean(ours)
    said = [r.getMessage() for r in caplog.records if r.name == "dask_ma.engine"]
    assert any(f"lost {gone[0]}" in text for text in said) is not is_in_order
    assert any("shares out its rows anew" in text for text in said) is is_in_order
    assert model.history_[-1]["n_samples"] == 1500


def test_a_worker_that_is_killed_in_the_first_round(mortal, rows, at_round, caplog):
    """It did not leave in order, and counts as lost."""
    at_round(0, kill_self(), rank=1)
    with (
        dask.config.set({"dask-ma.on-worker-loss": "continue"}),
        pytest.warns(RowsLostWarning, match="without 500 of 1500 rows"),
    ):
        model = MASGDClassifier(**PARAMS).fit(*rows)
    assert "MASGDClassifier: lost" in caplog.text
    assert model.history_[-1]["n_samples"] == 1000


def test_a_worker_that_is_missed_by_its_signs_of_life(
    mortal, rows, at_round, caplog, monkeypatch
):
    """Looks at them come in between those for workers that have gone."""
    monkeypatch.setattr(RunMonitor, "_check_workers", lambda *args, **kwargs: None)
    at_round(STRUCK, leave_soon(), rank=1)
    with (
        dask.config.set({"dask-ma.launch.heartbeat-interval": "10 ms"}),
        caplog.at_level(logging.INFO, "dask_ma.engine"),
    ):
        model = MASGDClassifier(**PARAMS).fit(*rows)
    assert_regrouped(model, caplog, STRUCK + 1)


def _ending_late(agent):
    """The agent of model averaging whose rank 0 ends when rank 1 has long gone."""

    def late_agent(context, arguments, params):
        if context.group.rank:
            return agent(context, arguments, params)
        import time

        from distributed.comm import parse_host_port

        from dask_ma.engine.recovery import _states

        group, flush, joint = context.group, context.group.flush, _states.barrier
        host, port = parse_host_port(group._addresses[1].removeprefix("tcp://"))

        def late_flush():
            import socket

            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                try:
                    socket.create_connection((host, port), 1).close()
                except OSError:
                    break
                time.sleep(0.01)
            flush()

        def barrier(group):
            joint(group)
            group.flush = late_flush

        _states.barrier = barrier
        try:
            return agent(context, arguments, params)
        finally:
            _states.barrier = joint

    return late_agent


def test_a_worker_that_has_gone_before_it_has_answered_all(
    mortal, rows, at_round, caplog, monkeypatch
):
    """All ranks have come to the end by then: nothing is missing."""
    at_round(STRUCK, leave_soon(), rank=1)
    monkeypatch.setattr(
        "dask_ma.ma.sgd._linear.train", _ending_late(dask_ma.ma.sgd._linear.train)
    )
    with caplog.at_level(logging.INFO, "dask_ma.engine"):
        model = MASGDClassifier(**PARAMS).fit(*rows)
    assert_regrouped(model, caplog, STRUCK + 1)


def test_a_worker_that_takes_the_result_along(mortal, rows, at_round, caplog):
    """It closes with the last round, whose model others have kept."""
    at_round(N_ROUNDS, leave_soon(), rank=0)
    with caplog.at_level(logging.INFO, "dask_ma.engine"):
        model = MASGDClassifier(**PARAMS).fit(*rows)
    assert_regrouped(model, caplog, N_ROUNDS)


def test_a_worker_that_is_killed_while_it_closes(mortal, rows, at_round, caplog):
    """It counts as lost; its rows come again, though Dask has moved their names."""
    at_round(STRUCK, leave_soon(kill_self_with_files()), rank=1)
    with (
        dask.config.set({"dask-ma.data.persist": False}),
        caplog.at_level(logging.INFO, "dask_ma.engine"),
    ):
        model = MASGDClassifier(**PARAMS).fit(*as_input("lazy", mortal, *rows))
    assert "lost" in caplog.text
    assert [r["restarts"] for r in model.history_] == [0] * STRUCK + [1] * (
        N_ROUNDS - STRUCK
    )
    assert model.history_[-1]["n_samples"] == 1500


@pytest.mark.parametrize("kind", ["numpy", "on disks"])
def test_a_worker_that_closes_without_notice(
    rows, crew, at_round, caplog, assert_clean, kind
):
    """Where no lifetime is set, ranks do not ask each round; it counts as a loss."""
    at_round(STRUCK, leave_soon(), rank=1)
    client = crew(3)
    with (
        client.as_current(),
        dask.config.set({"dask-ma.recovery.wait": 0, "dask-ma.data.persist": False}),
    ):
        given = as_input("numpy" if kind == "numpy" else "lazy", client, *rows)
        model = MASGDClassifier(**PARAMS).fit(*given)
        assert_clean(client)
    assert "MASGDClassifier: lost" in caplog.text
    assert [r["round"] for r in model.history_] == list(range(1, N_ROUNDS + 1))
    assert model.history_[-1]["n_samples"] == 1500
