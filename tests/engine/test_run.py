"""What one run consists of, and its part on a rank."""

import asyncio
import pickle
import time
import uuid
from dataclasses import replace
from types import SimpleNamespace

import pytest
from distributed import Client, Event, Status, get_worker

from dask_ma import run_spmd
from dask_ma.comm import close_run, is_aborted
from dask_ma.comm._plugin import CommPlugin
from dask_ma.engine._launch import launch
from dask_ma.engine._run import Run, _is_wanted, run_rank
from dask_ma.engine.recovery._identity import FitInfo
from dask_ma.engine.recovery._memory import StateCopy, state_memory
from dask_ma.engine.recovery._states import RegroupError, StoppedError
from dask_ma.exceptions import GroupClosedError, StaleRunError

STATE = StateCopy(1, 1, None, {}, {}, [], 0, 0.0)


@pytest.fixture
def run():
    return Run(
        name="Model",
        run_id="abc",
        addresses=("tcp://a:1", "tcp://b:2"),
        agent=print,
        params={"p": 1},
        shares_params=False,
        shares_addresses=False,
        seed=0,
        blas_threads=1,
        listening=False,
        collect="root",
    )


def test_names_for_the_dashboard_and_for_errors(run):
    assert run.size == 2
    assert run.key(1) == "dask_ma-Model-abc-1"
    assert run.describe(1) == "rank 1 of 2 (worker tcp://b:2)"


def test_what_a_rank_is_sent(run):
    assert run.of_rank(0).params == run.of_rank(1).params == {"p": 1}
    shared = replace(run, shares_params=True)
    assert shared.of_rank(0) is shared
    assert shared.of_rank(1) == replace(shared, params=None)


def test_what_a_rank_is_sent_does_not_grow_with_the_ranks(run):
    """Client and scheduler would pass on the square of it."""
    sizes = []
    for n_ranks in (100, 1000):
        addresses = tuple(f"tcp://10.0.0.1:{30_000 + i}" for i in range(n_ranks))
        info = FitInfo("Model", "fit", known_workers=frozenset(addresses))
        large = replace(run, addresses=addresses, shares_addresses=True, fit_info=info)
        assert large.of_rank(0).addresses == addresses
        assert large.fit_info.known_workers  # the client goes on to know them
        sizes.append(len(pickle.dumps(large.of_rank(n_ranks - 1))))
    assert sizes[0] == sizes[1] < 2_000


def test_ranks_leave_the_thread_pool(inproc_client):
    def program(group):
        worker = get_worker()
        key, deadline = worker.get_current_task(), time.monotonic() + 10
        while time.monotonic() < deadline:  # the worker is told a moment later
            if key in {task.key for task in worker.state.long_running}:
                return True
            time.sleep(0.001)
        return False

    def where(_):
        return get_worker().address

    assert run_spmd(program, client=inproc_client) == [True] * 4
    # Each worker has its thread back.
    for address in inproc_client.nthreads():
        task = inproc_client.submit(where, 0, workers=[address], pure=False)
        assert task.result(timeout=30) == address


def test_a_rank_whose_group_is_closed_by_itself(inproc_client):
    def program(group):
        group.close()
        group.recv(0)

    with pytest.raises(GroupClosedError, match="has ended"):
        run_spmd(program, client=inproc_client)


def test_ranks_of_a_run_that_was_ended_return_nothing(inproc_client):
    def program(group):
        close_run(group.run_id, "the client wants it so")
        group.recv(0)

    assert run_spmd(program, client=inproc_client) == [None] * 4


@pytest.mark.parametrize("error", [GroupClosedError, RegroupError, StaleRunError])
def test_states_go_with_a_client_that_is_gone(run, inproc_client, error):
    """However a rank ends: it may hear of it from another rank first."""
    started = Event(client=inproc_client)

    def agent(context, shard, params):
        from dask_ma.engine.recovery._memory import state_memory

        state_memory.put("abandoned", 0, STATE)
        started.set()
        deadline = time.monotonic() + 10
        while not is_aborted(run.run_id):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        raise error("another rank said so")

    run = replace(run, agent=agent, fit_info=FitInfo("A", "abandoned", keeps=True))
    [address, *_] = inproc_client.nthreads()
    with Client(inproc_client.scheduler.address, set_as_default=False) as client:
        client.register_plugin(CommPlugin())
        run = replace(run, run_id=uuid.uuid4().hex, addresses=(address,))
        task = client.submit(
            run_rank, run, 0, None, key=run.key(0), workers=[address], pure=False
        )
        assert started.wait(10)
        assert task.status == "pending"
    deadline = time.monotonic() + 10
    while state_memory.fits() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not state_memory.fits()


def test_states_of_a_later_launch_stay(run, inproc_client):
    """A rank that its client has cancelled may end when the fit has gone on."""
    started = Event(client=inproc_client)

    def agent(context, shard, params):
        from dask_ma.engine.recovery._memory import state_memory

        state_memory.put("gone-on", 0, STATE)
        state_memory.put("gone-on", 1, STATE._replace(attempt=1))
        started.set()
        deadline = time.monotonic() + 10
        while not is_aborted(run.run_id):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        raise GroupClosedError("its client has cancelled it")

    run = replace(run, agent=agent, fit_info=FitInfo("A", "gone-on", keeps=True))
    [address, *_] = inproc_client.nthreads()
    run = replace(run, run_id=uuid.uuid4().hex, addresses=(address,))
    inproc_client.register_plugin(CommPlugin())
    task = inproc_client.submit(
        run_rank, run, 0, None, key=run.key(0), workers=[address], pure=False
    )
    assert started.wait(10)
    task.cancel(force=True)
    try:
        deadline = time.monotonic() + 10
        while state_memory.get("gone-on", 0) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert state_memory.get("gone-on", 0) is None
        assert state_memory.get("gone-on", 1) is not None
    finally:
        state_memory.forget("gone-on")


@pytest.mark.parametrize("error", [KeyError, RuntimeError, asyncio.CancelledError])
def test_a_question_that_fails_does_not_hide_the_error(run, inproc_client, error):
    async def fail(**kwargs):
        raise error("no answer")

    def agent(context, shard, params):
        get_worker().scheduler = SimpleNamespace(get_task_status=fail)
        raise ZeroDivisionError

    def task(run):
        worker = get_worker()
        scheduler = worker.scheduler
        try:
            run_rank(run, 0, None)
        finally:
            worker.scheduler = scheduler

    [address, *_] = inproc_client.nthreads()
    inproc_client.register_plugin(CommPlugin())
    run = replace(run, agent=agent, fit_info=FitInfo("A", "failing", keeps=True))
    run = replace(run, run_id=uuid.uuid4().hex, addresses=(address,))
    asked = inproc_client.submit(task, run, workers=[address], pure=False)
    with pytest.raises(ZeroDivisionError):
        asked.result(timeout=30)


def test_a_loop_that_is_closed_does_not_hide_the_error():
    loop = asyncio.new_event_loop()
    loop.close()
    worker = SimpleNamespace(
        status=Status.running,
        get_current_task=lambda: "key",
        loop=SimpleNamespace(asyncio_loop=loop),
    )
    assert _is_wanted(worker)


@pytest.mark.parametrize("error", [RegroupError, StoppedError])
def test_what_a_rank_has_sent_arrives_when_all_end_in_order(process_client, error):
    """Also a short message, whose sender does not wait for it."""

    def agent(context, shard, params):
        group = context.group
        if group.rank == 0:
            group.recv(1, timeout=10)
            raise error("all end")

        async def late(nbytes):
            await asyncio.sleep(0.3)

        group._pace = SimpleNamespace(wait=late)
        group.push("end", 0)
        group.take_back()
        raise error("all end")

    addresses = sorted(process_client.nthreads())[:2]
    with pytest.raises(error):
        launch(agent, [None] * 2, name="A", client=process_client, addresses=addresses)
