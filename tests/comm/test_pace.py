"""Workers that may not send as fast as they could."""

import asyncio
from time import perf_counter

import numpy as np

from dask_ma import run_spmd
from dask_ma.comm._dask import Pace, pace_of


def test_messages_take_their_turns():
    """Two at a time take as long as one after the other."""

    async def send_two():
        pace = Pace(1e6)
        start = perf_counter()
        await asyncio.gather(pace.wait(50_000), pace.wait(100_000))
        first = perf_counter() - start
        await asyncio.sleep(0.1)  # time without messages cannot be saved up
        start = perf_counter()
        await pace.wait(50_000)
        return first, perf_counter() - start

    both, later = asyncio.run(send_two())
    assert both >= 0.149
    assert later >= 0.049


def exchange():
    """A program that measures how long a message to another process takes."""

    def program(group):
        payload = np.zeros(25_000)  # 200 kB
        group.send(payload, dest=1 - group.rank, tag="first")
        group.recv(1 - group.rank, tag="first")
        start = perf_counter()
        group.send(payload, dest=1 - group.rank, tag="second")
        group.recv(1 - group.rank, tag="second")
        return perf_counter() - start

    return program


def test_a_worker_sends_no_faster_than_it_may(processes, configured):
    with configured({"dask-ma.comm.max-bandwidth": "2 MB"}, processes):
        times = run_spmd(exchange(), n_ranks=2)
    assert min(times) >= 0.099


def test_the_ranks_of_a_worker_share_its_pace(configured):
    class Worker:
        """Stands in for a worker."""

    one, other = Worker(), Worker()
    with configured({"dask-ma.comm.max-bandwidth": 1000}):
        first = pace_of(one)
        assert pace_of(one) is first
        assert pace_of(other) is not first
    with configured({"dask-ma.comm.max-bandwidth": "2 kB"}):
        assert pace_of(one) is not first
    with configured({"dask-ma.comm.max-bandwidth": 0}):
        assert pace_of(one) is None
