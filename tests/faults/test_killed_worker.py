"""Worker processes that die in the middle of a run."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from distributed import Client, LocalCluster

from dask_ma import run_spmd
from dask_ma.comm import allreduce, barrier
from dask_ma.engine import launch, place_ranks
from dask_ma.exceptions import PeerLostError

pytestmark = pytest.mark.slow

N_WORKERS = 3


@pytest.fixture
def client(nannied_client, assert_usable):
    """The client with all workers there, after the test as before it."""
    yield nannied_client
    assert_usable(nannied_client, N_WORKERS)


def dies():
    """A function that kills its process at once, as the system does without memory."""

    def die(flag):
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    return die


@pytest.mark.parametrize("doomed", [[2], [0, 1]], ids=str)
def test_while_the_others_compute(client, loses, doomed):
    die = dies()

    def program(group, flag):
        barrier(group)
        if group.rank in doomed:
            die(flag)
        while True:
            time.sleep(0.001)
            group.raise_if_closed()

    with loses(client, doomed, N_WORKERS) as flag:
        run_spmd(program, flag, client=client)


@pytest.mark.parametrize("n_numbers", [1, 10**6], ids=["small", "large"])
def test_while_the_others_wait_in_a_collective(client, loses, n_numbers):
    die = dies()

    def program(group, flag):
        array = np.ones(n_numbers)
        for number in range(10):
            if group.rank == 1 and number == 5:
                die(flag)
            allreduce(group, array)

    with loses(client, [1], N_WORKERS) as flag:
        run_spmd(program, flag, client=client)


def test_while_others_have_finished(client, loses):
    die = dies()

    def program(group, flag):
        if group.rank == 2:
            group.send("the last message", 0)
            die(flag)
        return group.recv(2) if group.rank == 0 else None

    with loses(client, [2], N_WORKERS) as flag:
        run_spmd(program, flag, client=client)


def test_while_it_takes_a_message(client, loses):
    die = dies()

    def program(group, flag):
        barrier(group)
        if group.rank == 1:
            die(flag)
        array = np.ones(10**6)
        while True:
            group.send(array, 1, "more")

    with loses(client, [1], N_WORKERS) as flag:
        run_spmd(program, flag, client=client)


def follow(agent, flag, client, listener):
    """Run an agent whose records a listener hears."""
    launch(
        agent,
        [flag] * N_WORKERS,
        name="Followed",
        client=client,
        addresses=place_ranks(client, None),
        listener=listener,
    )


def test_while_somebody_listens(client, loses):
    die = dies()

    def agent(context, flag, params):
        number = 0
        while True:
            number += 1
            if context.group.rank == 1 and number == 4:
                die(flag)
            context.record({"round": number}, {})

    heard = []
    with loses(client, [1], N_WORKERS) as flag:
        follow(agent, flag, client, lambda r, fetch: heard.append(r["round"]))
    assert heard[:3] == [1, 2, 3]


@pytest.mark.parametrize("fetches", [False, True], ids=["answer", "model"])
def test_before_the_listener_has_answered(client, loses, fetches):
    def agent(context, shard, params):
        for number in range(1, 10):
            context.record({"round": number, "pid": os.getpid()}, {})

    def listener(record, fetch):
        if record["round"] == 3:
            flag.touch()
            os.kill(record["pid"], signal.SIGKILL)
            if fetches:
                fetch()

    with loses(client, [0], N_WORKERS) as flag:
        follow(agent, flag, client, listener)


def test_two_runs_lose_the_same_worker(client, tmp_path):
    die = dies()

    def program(group, flag, kills):
        barrier(group)
        (flag / str(kills)).touch()
        if group.rank == 1 and kills:
            while not (flag / "False").exists():  # until the other run goes too
                time.sleep(0.001)
            die(flag)
        group.recv(1, "never")

    def call(kills):
        with pytest.raises(PeerLostError, match=r"rank 1 of 3 \(worker tcp://"):
            run_spmd(program, tmp_path, kills, client=client)
        return True

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(call, [False, True]))


@pytest.fixture
def bare_client(bare_workers):
    """Client of two worker processes that nobody starts again."""
    with (
        LocalCluster(n_workers=0, processes=True, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
        bare_workers(client, 2),
    ):
        yield client


def test_without_a_nanny(bare_client, loses, assert_usable):
    die = dies()

    def program(group, flag):
        if group.rank == 1:
            die(flag)
        group.recv(1)

    with loses(bare_client, [1], 2) as flag:
        run_spmd(program, flag, client=bare_client)
    assert_usable(bare_client, 1)
