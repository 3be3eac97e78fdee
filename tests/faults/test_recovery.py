"""Fits that go on after the loss of workers, moment by moment."""

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait
from distributed.nanny import WorkerProcess
from distributed.utils import get_mp_context

from dask_ma import ButterflySGDClassifier, MASGDClassifier, run_spmd
from dask_ma.data import scheduler_workers
from dask_ma.engine._client import place_ranks
from dask_ma.engine._launch import launch
from dask_ma.exceptions import FitFailedError, PeerLostError, RowsLostWarning

pytestmark = pytest.mark.slow

N_WORKERS = 3
N_ROUNDS = 6
PARAMS = {
    "loss": "log_loss",
    "alpha": 0.01,
    "max_iter": N_ROUNDS,
    "tol": None,
    "random_state": 0,
    "local_epochs": 1.0,
}


@pytest.fixture
def client(current_client):
    """The current client of worker processes that their nannies start again."""
    return current_client


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 10))
    return X, (X @ np.arange(10) + rng.normal(size=1500) > 0).astype(int)


@pytest.fixture(scope="module")
def undisturbed(rows):
    return MASGDClassifier(n_ranks=N_WORKERS, **PARAMS).fit(*rows)


@pytest.fixture
def strike(monkeypatch, tmp_path):
    """``strike(moment, ranks, sign)``: the processes of some ranks die, once.

    With `parents` their nannies die first.
    """
    armed = []

    def arm(moment, ranks, sign=signal.SIGKILL, at_round=3, parents=False):
        monkeypatch.setattr(
            "dask_ma.ma.sgd._linear.train",
            doomed_agent(moment, ranks, int(sign), at_round, tmp_path, parents),
        )
        armed.append(moment)

    yield arm
    assert not armed or list(tmp_path.glob("struck-*"))


def doomed_agent(moment, ranks, sign, at_round, directory, parents):
    """The agent of model averaging, with a fault at one moment of one round."""

    def agent(context, arguments, params):
        from dask_ma.ma.sgd import _agent
        from dask_ma.ma.sgd._solver import LocalSGD

        rank = context.group.rank
        mark = directory / f"struck-{rank}"
        if rank not in ranks or mark.exists():
            return _agent.train(context, arguments, params)
        now = {"round": 1}

        def die():
            mark.touch()
            if moment == "computing":
                await_marks(directory, ranks)
            if parents:
                os.kill(os.getppid(), sign)
            os.kill(os.getpid(), sign)

        def await_marks(directory, ranks, patience=20):
            # Where one went before the others, they might be ended before their turn.
            until = time.monotonic() + patience
            while time.monotonic() < until and not all(
                (directory / f"struck-{other}").exists() for other in ranks
            ):
                time.sleep(0.001)

        run, keep = LocalSGD.run, context.save_state
        deliver = context.group._deliver

        def striking_run(self, *args):
            result = run(self, *args)
            if moment == "computing" and now["round"] == at_round:
                die()
            return result

        def striking_deliver(*args):
            deliver(*args)
            if moment == "sending" and now["round"] == at_round:
                die()

        def striking_keep(n_rounds, *args, **kwargs):
            if moment == "before keeping" and n_rounds == at_round:
                die()
            keep(n_rounds, *args, **kwargs)
            if moment == "after keeping" and n_rounds == at_round:
                die()
            now["round"] = n_rounds + 1

        # This process dies of it, so nothing needs to be put back.
        LocalSGD.run, context.save_state = striking_run, striking_keep
        context.group._deliver = striking_deliver
        result = _agent.train(context, arguments, params)
        if moment == "returning":
            die()
        return result

    return agent


def assert_same_course(model, undisturbed):
    """The fit made all its rounds and got as far as one that nothing happened to."""
    rounds = [record["round"] for record in model.history_]
    assert rounds == list(range(1, N_ROUNDS + 1))
    wanted = undisturbed.history_[-1]["objective"]
    assert model.history_[-1]["objective"] == pytest.approx(wanted, rel=0.01)
    times = [record["time"] for record in model.history_]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("moment", "ranks"),
    [
        ("computing", [0]),
        ("sending", [2]),
        ("before keeping", [1]),
        ("computing", [0, 2]),
        ("after keeping", [1, 2]),
    ],
    ids=str,
)
def test_restart(client, rows, undisturbed, strike, moment, ranks):
    strike(moment, ranks)
    assert_same_course(MASGDClassifier(**PARAMS).fit(*rows), undisturbed)


@pytest.mark.each
@pytest.mark.parametrize("moment", ["computing", "after keeping", "returning"])
@pytest.mark.parametrize("rank", [0, 2])
def test_restart_in_the_last_round(client, rows, undisturbed, strike, moment, rank):
    strike(moment, [rank], at_round=N_ROUNDS)
    assert_same_course(MASGDClassifier(**PARAMS).fit(*rows), undisturbed)


def test_a_new_worker_that_takes_its_time(
    client, rows, undisturbed, strike, monkeypatch
):
    """The fit waits for it; the others keep their ranks meanwhile."""
    start = WorkerProcess.start

    async def start_late(self):
        await asyncio.sleep(1.5)
        return await start(self)

    strike("computing", [1])
    monkeypatch.setattr(WorkerProcess, "start", start_late)
    model = MASGDClassifier(**PARAMS).fit(*rows)
    # Two workers would have come to the end long before there were three again.
    assert len(client.nthreads()) == N_WORKERS
    assert_same_course(model, undisturbed)


def test_in_a_barrier(client, rows, undisturbed, monkeypatch, tmp_path):
    """One rank dies within it, while the others wait there."""
    mark = tmp_path / "struck"

    def agent(context, arguments, params):
        from dask_ma.comm import barrier
        from dask_ma.ma.sgd import _agent

        group, keep = context.group, context.save_state
        push = group.push

        def striking_push(payload, dest, tag, **kwargs):
            push(payload, dest, tag, **kwargs)
            if tag[0] == "barrier" and tag[2] == 2 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        def keep_and_wait(n_rounds, *args, **kwargs):
            keep(n_rounds, *args, **kwargs)
            if group.rank == 1 and n_rounds == 2:
                group.push = striking_push
            barrier(group)

        context.save_state = keep_and_wait
        return _agent.train(context, arguments, params)

    monkeypatch.setattr("dask_ma.ma.sgd._linear.train", agent)
    model = MASGDClassifier(**PARAMS).fit(*rows)
    assert mark.exists()
    assert_same_course(model, undisturbed)


@pytest.mark.pairs
@pytest.mark.parametrize("size", [250, 400])
@pytest.mark.parametrize("persist", [True, False])
@pytest.mark.parametrize("kind", ["lazy", "persisted"])
def test_blocks_are_computed_again(
    client, rows, undisturbed, strike, kind, persist, size
):
    """And written again, where they go to disks; blocks of 400 rows are cut."""
    X, y = (da.from_array(part, chunks=(size, *part.shape[1:])) for part in rows)
    if kind == "persisted":
        X, y = client.persist([X, y])
        wait([X, y])
    strike("computing", [1])
    with dask.config.set({"dask-ma.data.persist": persist}):
        model = MASGDClassifier(**PARAMS).fit(X, y)
    assert_same_course(model, undisturbed)
    assert model.history_[-1]["n_samples"] == 1500


def test_scattered_blocks_are_lost(client, rows, undisturbed, strike):
    X, y = rows
    parts = client.scatter([X[i : i + 250] for i in range(0, 1500, 250)])
    X = da.concatenate(
        [da.from_delayed(dask.delayed(p), (250, 10), dtype=float) for p in parts]
    )
    strike("computing", [1])
    with pytest.warns(RowsLostWarning, match=r"without \d+ of 1500 rows") as caught:
        model = MASGDClassifier(**PARAMS).fit(X, y)
    n_lost = int(str(caught[0].message).split("without ")[1].split(" of")[0])
    assert 0 < n_lost < 1500
    assert model.history_[-1]["n_samples"] == 1500 - n_lost
    assert len(model.history_) == N_ROUNDS


@pytest.mark.parametrize("ranks", [[1], [0, 2]], ids=str)
def test_continue(client, rows, undisturbed, strike, ranks):
    strike("computing", ranks)
    n_lost = 500 * len(ranks)
    with (
        dask.config.set({"dask-ma.on-worker-loss": "continue"}),
        pytest.warns(RowsLostWarning, match=r"without \d+ of \d+ rows") as caught,
    ):
        model = MASGDClassifier(**PARAMS).fit(*rows)
    # Two losses at a time may be noticed together, or one after the other.
    told = [int(str(w.message).split("without ")[1].split(" of")[0]) for w in caught]
    assert sum(told) == n_lost
    assert model.history_[-1]["n_samples"] == 1500 - n_lost
    assert len(model.history_) == N_ROUNDS
    assert model.score(*rows) > undisturbed.score(*rows) - 0.02


def test_raise(client, rows, strike):
    strike("computing", [1])
    with (
        dask.config.set({"dask-ma.on-worker-loss": "raise"}),
        pytest.raises(PeerLostError, match="rank 1 of 3"),
    ):
        MASGDClassifier(**PARAMS).fit(*rows)


def test_an_unknown_policy(client, rows):
    with (
        dask.config.set({"dask-ma.on-worker-loss": "ignore"}),
        pytest.raises(ValueError, match="on-worker-loss is 'ignore', expected one of"),
    ):
        MASGDClassifier(**PARAMS).fit(*rows)


def test_giving_up(client, rows, strike):
    strike("computing", [1])
    with (
        dask.config.set({"dask-ma.recovery.max-restarts": 0}),
        pytest.raises(PeerLostError) as caught,
    ):
        MASGDClassifier(**PARAMS).fit(*rows)
    assert "gave up after 0 losses" in caught.value.__notes__[-1]


def test_a_followed_fit(client, rows, undisturbed, strike, capsys):
    strike("computing", [1])
    model = MASGDClassifier(verbose=2, **PARAMS).fit(*rows)
    assert_same_course(model, undisturbed)
    assert f"Round {N_ROUNDS}" in capsys.readouterr().out


def test_a_stopped_process(client, rows, undisturbed, strike):
    """The scheduler gives it up, and the others take its rows."""
    pids = client.run(os.getpid)
    strike("computing", [2], sign=signal.SIGSTOP)
    start = time.monotonic()
    try:
        with dask.config.set(
            {
                "dask-ma.launch.worker-timeout": "2 s",
                "dask-ma.launch.heartbeat-interval": "250 ms",
                "dask-ma.launch.abort-timeout": "1 s",
                "dask-ma.recovery.wait": "500 ms",
            }
        ):
            model = MASGDClassifier(**PARAMS).fit(*rows)
        assert time.monotonic() - start < 25
        assert_same_course(model, undisturbed)
    finally:
        # Out of its way: a stopped process cannot be asked to close.
        gone = set(pids) - set(client.nthreads())
        for address in gone:
            os.kill(pids[address], signal.SIGKILL)


def test_a_worker_that_its_nanny_ends(client, rows, undisturbed, strike):
    """As a nanny does with a worker that takes too much memory."""
    strike("computing", [2], sign=signal.SIGTERM)
    assert_same_course(MASGDClassifier(**PARAMS).fit(*rows), undisturbed)


def test_a_paused_worker_goes_on(client, rows, undisturbed, monkeypatch):
    """A worker whose memory is nearly full takes no new tasks, but keeps its rank."""

    def agent(context, arguments, params):
        from distributed import Status, get_worker

        from dask_ma.ma.sgd import _agent

        keep, worker = context.save_state, get_worker()

        def pausing_keep(n_rounds, *args, **kwargs):
            keep(n_rounds, *args, **kwargs)
            if context.group.rank == 1 and n_rounds in (2, 4):
                worker.status = Status.paused if n_rounds == 2 else Status.running

        context.save_state = pausing_keep
        return _agent.train(context, arguments, params)

    monkeypatch.setattr("dask_ma.ma.sgd._linear.train", agent)
    model = MASGDClassifier(**PARAMS).fit(*rows)
    np.testing.assert_array_equal(model.coef_, undisturbed.coef_)


def test_a_worker_that_is_killed_while_blocks_are_computed(client, rows, undisturbed):
    pids = sorted(client.run(os.getpid).items())

    def slow(block):
        time.sleep(0.2)
        return block

    X, y = (da.from_array(part, chunks=(250, *part.shape[1:])) for part in rows)
    X = X.map_blocks(slow, dtype=float, meta=np.empty((0, 0)))

    timer = threading.Timer(0.3, os.kill, (pids[1][1], signal.SIGKILL))
    timer.start()
    model = MASGDClassifier(**PARAMS).fit(X, y)
    timer.join()
    assert_same_course(model, undisturbed)


# Butterfly mixing --------------------------------------------------------------------

MIXING = {
    "alpha": 0.01,
    "max_iter": N_ROUNDS,
    "tol": None,
    "random_state": 0,
    "batch_size": 25,
}


@pytest.fixture(scope="module")
def undisturbed_mixing(rows):
    return ButterflySGDClassifier(n_ranks=N_WORKERS, **MIXING).fit(*rows)


@pytest.fixture
def strike_mixing(monkeypatch, tmp_path):
    """``strike_mixing(moment, ranks)``: processes die in the third pass, once."""

    def arm(moment, ranks):
        def agent(context, arguments, params):
            from dask_ma.butterfly import _agent

            rank = context.group.rank
            mark = tmp_path / f"struck-{rank}"
            if rank not in ranks or mark.exists():
                return _agent.train(context, arguments, params)
            now = {"pass": 1}
            keep, deliver = context.save_state, context.group._deliver

            def die():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

            def striking_keep(n_rounds, *args, **kwargs):
                keep(n_rounds, *args, **kwargs)
                now["pass"] = n_rounds + 1
                if moment == "after keeping" and n_rounds == 2:
                    die()

            def striking_deliver(*args):
                deliver(*args)
                if moment == "sending" and now["pass"] == 3:
                    die()

            context.save_state, context.group._deliver = striking_keep, striking_deliver
            return _agent.train(context, arguments, params)

        monkeypatch.setattr("dask_ma.butterfly._linear.train", agent)

    return arm


@pytest.mark.each
@pytest.mark.parametrize("moment", ["after keeping", "sending"])
@pytest.mark.parametrize("ranks", [[1], [0, 2]], ids=str)
def test_butterfly_mixing_restarts(
    client, rows, undisturbed_mixing, strike_mixing, moment, ranks
):
    strike_mixing(moment, ranks)
    model = ButterflySGDClassifier(**MIXING).fit(*rows)
    assert_same_course(model, undisturbed_mixing)
    assert model.history_[-1]["n_samples"] == 1500


def test_butterfly_mixing_continues(client, rows, undisturbed_mixing, strike_mixing):
    strike_mixing("sending", [2])
    with (
        dask.config.set({"dask-ma.on-worker-loss": "continue"}),
        pytest.warns(RowsLostWarning, match="without 500 of 1500 rows"),
    ):
        model = ButterflySGDClassifier(**MIXING).fit(*rows)
    assert model.history_[-1]["n_samples"] == 1000
    assert model.score(*rows) > undisturbed_mixing.score(*rows) - 0.02


# Other clusters ----------------------------------------------------------------------


@pytest.fixture
def scheduler_client():
    """A scheduler without workers, and a client of it."""
    with (
        LocalCluster(n_workers=0, processes=True, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        client.as_current(),
    ):
        yield cluster, client


@pytest.fixture
def job(scheduler_client, monkeypatch, tmp_path):
    """A worker of that scheduler whose nanny is a process of its own."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    from chaos.cluster import Job

    _, client = scheduler_client
    job = Job(client.scheduler.address, "job", str(tmp_path))
    job.start()
    yield job
    job.end()
    job.join()


def test_a_worker_that_nobody_starts_again(
    scheduler_client, job, rows, undisturbed, strike, bare_workers, assert_clean
):
    """Its nanny has gone, too: the others take over its rows."""
    _, client = scheduler_client
    client.wait_for_workers(1, timeout=60)
    with bare_workers(client, 2):
        [nannied] = [
            rank
            for rank, (_, info) in enumerate(sorted(scheduler_workers(client).items()))
            if info["nanny"]
        ]
        strike("computing", [nannied], parents=True)
        with dask.config.set({"dask-ma.recovery.wait": "500 ms"}):
            model = MASGDClassifier(**PARAMS).fit(*rows)
        assert_same_course(model, undisturbed)
        assert len(client.nthreads()) == 2
        assert_clean(client)


def test_a_worker_that_joins(scheduler_client, rows, monkeypatch, tmp_path):
    cluster, client = scheduler_client
    cluster.scale(2)
    client.wait_for_workers(2, timeout=60)
    reached, go = tmp_path / "reached", tmp_path / "go"

    def agent(context, arguments, params):
        from dask_ma.engine.recovery import _states
        from dask_ma.ma.sgd import _agent

        keep = context.save_state

        def slow_keep(n_rounds, *args, **kwargs):
            if n_rounds == 3 and context.group.rank == 0:
                reached.touch()
                deadline = time.monotonic() + 30
                while not (go.exists() and _states._regroup_wanted):
                    assert time.monotonic() < deadline, "nobody asks to start again"
                    time.sleep(0.01)
            keep(n_rounds, *args, **kwargs)

        context.save_state = slow_keep
        return _agent.train(context, arguments, params)

    def add_workers():
        while not reached.exists():
            time.sleep(0.01)
        cluster.scale(3)
        client.wait_for_workers(3, timeout=60)
        go.touch()

    monkeypatch.setattr("dask_ma.ma.sgd._linear.train", agent)
    thread = threading.Thread(target=add_workers)
    thread.start()
    with dask.config.set(
        {"dask-ma.elastic": True, "dask-ma.launch.heartbeat-interval": "200 ms"}
    ):
        model = MASGDClassifier(**PARAMS).fit(*rows)
    thread.join()
    assert [r["round"] for r in model.history_] == list(range(1, N_ROUNDS + 1))
    # More ranks send more messages.
    messages = [record["messages_sent"] for record in model.history_]
    assert messages[2] < messages[-1]
    objectives = [record["objective"] for record in model.history_]
    assert objectives[-1] < objectives[2]


def test_a_scheduler_that_goes_away(rows, bare_workers, monkeypatch, tmp_path):
    """The client gets an error as soon as it gives up, and the workers end."""
    port_file, reached = tmp_path / "scheduler.json", tmp_path / "reached"
    options = ["--no-dashboard", "--port", "0", "--scheduler-file", str(port_file)]
    code = f"from distributed.cli.dask_scheduler import main; main({options})"
    scheduler = get_mp_context().Process(target=exec, args=(code, {}))
    scheduler.start()

    def agent(context, arguments, params):
        reached.touch()
        while True:
            time.sleep(0.01)
            context.group.raise_if_closed()

    def kill_scheduler():
        while not reached.exists():
            time.sleep(0.01)
        scheduler.kill()

    monkeypatch.setattr("dask_ma.ma.sgd._linear.train", agent)
    thread = threading.Thread(target=kill_scheduler)
    try:
        with (
            # How long the client tries to reach the scheduler again.
            dask.config.set({"distributed.comm.timeouts.connect": "2 s"}),
            Client(scheduler_file=str(port_file), set_as_default=False) as client,
            client.as_current(),
            bare_workers(client, 2) as workers,
        ):
            thread.start()
            with pytest.raises(FitFailedError, match="scheduler"):
                MASGDClassifier(n_ranks=2, **PARAMS).fit(*rows)
            thread.join()
            assert time.time() - reached.stat().st_mtime < 15
            for worker in workers:
                worker.join(10)
                assert worker.exitcode == 0
    finally:
        scheduler.kill()
        scheduler.join(30)


@pytest.fixture
def paused_worker(client):
    """The first worker takes no tasks; it goes on after the test."""

    def set_status(name):
        def change(dask_worker):
            from distributed import Status

            # The memory monitor would put it back.
            dask_worker.periodic_callbacks["memory_monitor"].stop()
            dask_worker.status = Status[name]

        client.run(change, workers=[address])
        deadline = time.monotonic() + 30
        while scheduler_workers(client)[address]["status"] != name:
            assert time.monotonic() < deadline, f"the worker is not {name}"
            time.sleep(0.01)

    address = sorted(client.nthreads())[0]
    yield lambda: set_status("paused")
    set_status("running")


@pytest.mark.parametrize("placement", ["keep", "contiguous"])
def test_a_paused_worker_that_holds_blocks(
    client, rows, undisturbed, paused_worker, placement
):
    """It carries no rank; its blocks go to the others."""
    X, y = (da.from_array(part, chunks=(250, *part.shape[1:])) for part in rows)
    X, y = client.persist([X, y])
    wait([X, y])
    paused_worker()
    with dask.config.set({"dask-ma.data.placement": placement}):
        model = MASGDClassifier(**PARAMS).fit(X, y)
    assert_same_course(model, undisturbed)
    assert model.history_[-1]["n_samples"] == 1500


IMPATIENT = {
    "dask-ma.recovery.wait": 0,
    "dask-ma.launch.heartbeat-interval": "200 ms",
    "dask-ma.launch.poll-interval": "100 ms",
}


@pytest.mark.parametrize(
    ("moment", "policy"), [("place_ranks", "restart"), ("launch", "raise")]
)
def test_a_worker_that_is_paused_before_its_rank_starts(
    client, rows, undisturbed, paused_worker, monkeypatch, moment, policy
):
    """Neither its rows nor its rank are waited for; the others take them over."""
    paused = []

    def pause():
        if not paused:
            paused.append(paused_worker())

    def place_and_pause(*args):
        addresses = place_ranks(*args)
        pause()
        return addresses

    def pause_and_launch(*args, **kwargs):
        pause()
        return launch(*args, **kwargs)

    at = {"place_ranks": place_and_pause, "launch": pause_and_launch}
    monkeypatch.setattr(f"dask_ma.engine._fit.{moment}", at[moment])
    with (
        Client(client.scheduler.address, timeout=1, set_as_default=False) as impatient,
        impatient.as_current(),
        dask.config.set({**IMPATIENT, "dask-ma.on-worker-loss": policy}),
    ):
        model = MASGDClassifier(**PARAMS).fit(*rows)
    assert paused
    assert_same_course(model, undisturbed)
    assert set(model.timeline_["rank"]) == set(range(N_WORKERS - 1))


def test_ranks_that_never_start_are_given_up(client, rows, paused_worker, monkeypatch):
    """Workers that are paused again and again are not waited for without end."""
    X, y = (da.from_array(part, chunks=(250, *part.shape[1:])) for part in rows)
    X, y = client.persist([X, y])
    wait([X, y])
    addresses = sorted(client.nthreads())
    reached = []

    def place_on_all(*args):
        if not reached:
            paused_worker()
        reached.append(True)
        return addresses

    monkeypatch.setattr("dask_ma.engine._fit.place_ranks", place_on_all)
    with (
        dask.config.set({**IMPATIENT, "dask-ma.recovery.max-restarts": 1}),
        pytest.raises(FitFailedError, match="paused") as raised,
    ):
        MASGDClassifier(**PARAMS).fit(X, y)
    assert "gave up after 1 losses" in "".join(raised.value.__notes__)
    assert len(reached) == 2


def test_a_function_waits_for_a_worker_that_is_paused(
    client, paused_worker, monkeypatch
):
    """Its ranks cannot go elsewhere."""
    go_on = threading.Timer(1.0, lambda: client.run(set_running, workers=[address]))
    address = sorted(client.nthreads())[0]

    def set_running(dask_worker):
        from distributed import Status

        dask_worker.status = Status.running

    def pause_and_launch(*args, **kwargs):
        paused_worker()
        go_on.start()
        return launch(*args, **kwargs)

    monkeypatch.setattr("dask_ma.engine._spmd.launch", pause_and_launch)
    start = time.monotonic()
    with dask.config.set(IMPATIENT):
        found = run_spmd(lambda group: group.rank, client=client, n_ranks=N_WORKERS)
    go_on.join()
    assert found == list(range(N_WORKERS))
    assert time.monotonic() - start > 1


def test_a_worker_paused_in_a_fit_that_loses_another(
    client, rows, undisturbed, monkeypatch, tmp_path
):
    """It starts no rank again, so the others take over its rows, too."""
    reached = tmp_path / "reached"

    def agent(context, arguments, params):
        from distributed import Status, get_worker

        from dask_ma.ma.sgd import _agent

        keep, worker = context.save_state, get_worker()

        def keep_and_strike(n_rounds, *args, **kwargs):
            keep(n_rounds, *args, **kwargs)
            if reached.exists():
                return
            if context.group.rank == 1 and n_rounds == 2:
                worker.periodic_callbacks["memory_monitor"].stop()
                worker.status = Status.paused
            if context.group.rank == 2 and n_rounds == 4:
                reached.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        context.save_state = keep_and_strike
        return _agent.train(context, arguments, params)

    def go_on(dask_worker):
        from distributed import Status

        dask_worker.status = Status.running

    monkeypatch.setattr("dask_ma.ma.sgd._linear.train", agent)
    try:
        with dask.config.set({"dask-ma.recovery.wait": "2 s"}):
            model = MASGDClassifier(**PARAMS).fit(*rows)
    finally:
        client.run(go_on)
    assert reached.exists()
    assert_same_course(model, undisturbed)
