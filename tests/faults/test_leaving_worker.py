"""Workers that leave in good order in the middle of a run."""

import threading
import time

import pytest
from distributed import Client, LocalCluster

from dask_ma import run_spmd


@pytest.fixture
def client():
    """Client of three one-thread workers in this process."""
    with (
        LocalCluster(
            n_workers=3, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.parametrize("leaving", [0, 1])
def test_a_worker_that_is_retired(client, loses, assert_usable, leaving):
    address = sorted(client.nthreads())[leaving]

    def program(group, flag):
        if group.rank == leaving:
            flag.touch()
        group.recv(group.rank, "never")

    def retire():
        while not flag.exists():
            time.sleep(0.01)
        client.retire_workers([address], close_workers=True)

    thread = threading.Thread(target=retire)
    with loses(client, [leaving], 3) as flag:
        thread.start()
        run_spmd(program, flag, client=client)
    thread.join()
    assert_usable(client, 2)
