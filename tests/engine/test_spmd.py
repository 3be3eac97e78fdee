"""A function of the user's own on every worker."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from distributed import Client, LocalCluster, get_client

from dask_ma import run_spmd
from dask_ma.comm import allreduce, barrier
from dask_ma.exceptions import CommTimeoutError, GroupClosedError


def test_results_come_in_rank_order(any_client):
    def program(group, factor):
        return group.rank * factor, group.size

    results = run_spmd(program, 10, client=any_client)
    assert results == [(0, 4), (10, 4), (20, 4), (30, 4)]


def test_ranks_are_on_different_workers(process_client):
    def program(group):
        from distributed import get_worker

        return get_worker().address

    addresses = run_spmd(program, client=process_client)
    assert addresses == sorted(process_client.nthreads())


def test_one_rank_per_worker_by_default(wide_client):
    assert run_spmd(lambda group: group.size, client=wide_client) == [2, 2]


@pytest.mark.parametrize("n_ranks", [1, 3, 9])
def test_more_or_fewer_ranks_than_workers(any_client, n_ranks):
    def program(group):
        return int(allreduce(group, np.array(group.rank)))

    results = run_spmd(program, client=any_client, n_ranks=n_ranks)
    assert results == [n_ranks * (n_ranks - 1) // 2] * n_ranks


def test_futures_are_replaced_by_their_results(any_client):
    a, b, c = any_client.map(lambda x: 2 * x, [1, 2, 3], pure=False)

    def program(group, single, several, named, plain):
        return single, several, named, plain

    results = run_spmd(program, a, [b, 5], {"c": [c]}, "text", client=any_client)
    assert results == [(2, [4, 5], {"c": [6]}, "text")] * 4


def test_a_future_that_failed(inproc_client):
    failed = inproc_client.submit(lambda: 1 / 0, pure=False)
    with pytest.raises(ZeroDivisionError):
        run_spmd(lambda group, x: x, failed, client=inproc_client)


def test_without_a_client():
    main = threading.current_thread()

    def program(group, factor):
        return factor * group.rank, threading.current_thread() is main

    assert run_spmd(program, 5) == [(0, True)]
    assert run_spmd(program, 5, n_ranks=3) == [(0, True), (5, False), (10, False)]


def test_the_current_client_is_used(inproc_client):
    with inproc_client.as_current():
        assert run_spmd(lambda group: group.size) == [4] * 4
    assert run_spmd(lambda group: group.size) == [1]


@pytest.mark.parametrize("n_ranks", [0, -2])
def test_numbers_of_ranks_that_cannot_be(n_ranks):
    with pytest.raises(ValueError, match=f"n_ranks must be at least 1.*got {n_ranks}"):
        run_spmd(lambda group: None, n_ranks=n_ranks)


def test_something_that_cannot_be_called():
    with pytest.raises(TypeError, match="function must be callable, got int"):
        run_spmd(3)


# Errors -----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, 2, 3])
def test_an_error_on_one_rank_ends_them_all(any_client, bad):
    def program(group):
        if group.rank == bad:
            raise KeyError("what happened")
        group.recv(bad, "never sent")

    with pytest.raises(KeyError, match="what happened") as caught:
        run_spmd(program, client=any_client)
    address = sorted(any_client.nthreads())[bad]
    assert f"raised by rank {bad} of 4 (worker {address})" in caught.value.__notes__[-1]


@pytest.mark.parametrize("bad", [0, 2])
def test_an_error_on_one_thread_ends_them_all(bad):
    ended = []

    def program(group):
        if group.rank == bad:
            raise KeyError("what happened")
        try:
            group.recv(bad, "never sent")
        except GroupClosedError as error:
            ended.append((group.rank, str(error)))
            raise

    with pytest.raises(KeyError, match="what happened"):
        run_spmd(program, n_ranks=4)
    assert sorted(rank for rank, _ in ended) == [
        rank for rank in range(4) if rank != bad
    ]
    assert all(f"rank {bad} of program failed" in text for _, text in ended)


def test_an_error_stops_ranks_that_compute(any_client):
    def program(group):
        if group.rank == 1:
            raise ValueError("stop")
        while True:
            time.sleep(0.001)
            group.raise_if_closed()

    with pytest.raises(ValueError, match="stop"):
        run_spmd(program, client=any_client)


def test_the_cause_is_raised_and_not_what_it_led_to(any_client):
    def program(group):
        barrier(group)  # a rank that starts too late never comes to raise the cause
        if group.rank == 0:
            group.flush()  # or the others may still be at the barrier
            group.close()  # a mistake, but not the one that matters
        try:
            group.recv(0, "never")
        except GroupClosedError as error:
            if group.rank == 1:
                raise ValueError("the cause") from error
            raise

    with pytest.raises(ValueError, match="the cause"):
        run_spmd(program, client=any_client)


def test_a_rank_that_has_to_be_cancelled_hides_no_cause(
    process_client, configured, tmp_path
):
    """A lower one that does not listen; the cause says how an own wait has ended."""
    started, over = tmp_path / "started", tmp_path / "over"

    def program(group, started, over):
        if group.rank == 0:
            started.touch()
            while not over.exists():  # as in a long call of a library
                time.sleep(0.01)
        elif group.rank == 1:
            while not started.exists():
                time.sleep(0.01)
            raise CommTimeoutError("the cause")

    with (
        configured({"dask-ma.launch.abort-timeout": "200 ms"}),
        pytest.raises(CommTimeoutError, match="the cause"),
    ):
        try:
            run_spmd(program, started, over, client=process_client)
        finally:
            over.touch()


def test_errors_on_all_ranks(any_client):
    def program(group):
        barrier(group)
        raise ValueError(f"rank {group.rank}")

    with pytest.raises(ValueError, match=r"rank \d"):
        run_spmd(program, client=any_client)
    with pytest.raises(ValueError, match=r"rank \d"):
        run_spmd(program, n_ranks=3)


def test_the_cluster_can_be_used_after_an_error(any_client):
    def program(group, fail):
        if fail and group.rank == 3:
            raise ValueError("once")
        return int(allreduce(group, np.array(1)))

    with pytest.raises(ValueError, match="once"):
        run_spmd(program, True, client=any_client)
    assert run_spmd(program, False, client=any_client) == [4] * 4


def test_a_result_that_cannot_be_sent(process_client):
    def program(group):
        barrier(group)
        return threading.Lock() if group.rank == 1 else None

    with pytest.raises(TypeError, match=r"pickle|serialize"):
        run_spmd(program, client=process_client)


# Several at once --------------------------------------------------------------------


def test_two_at_once_on_one_thread_workers(any_client):
    def program(group, number):
        for _ in range(10):
            barrier(group)
        return int(allreduce(group, np.array(number)))

    def call(number):
        return [run_spmd(program, number, client=any_client) for _ in range(4)]

    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(call, number) for number in (1, 100)]
        results = [future.result(timeout=60) for future in calls]
    assert results == [[[4] * 4] * 4, [[400] * 4] * 4]


def nested(n_levels):
    """A function that runs itself on all workers, `n_levels` deep."""
    from dask_ma import run_spmd
    from dask_ma.comm import barrier

    def program(group, level):
        barrier(group)
        found = group.size
        if level and group.rank == 0:
            found += sum(run_spmd(program, level - 1))
        barrier(group)
        return found

    def task(_):
        return sum(run_spmd(program, n_levels))

    return task


@pytest.fixture(params=["inproc", "process"])
def nesting_client(request, assert_clean):
    """Client of two one-thread workers, whose tasks make clients of their own."""
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=request.param == "process",
            dashboard_address=":0",
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client
        assert_clean(client)


def test_within_tasks_on_one_thread_workers(nesting_client):
    # Each task needs all workers, and there are more tasks than threads.
    tasks = nesting_client.map(nested(0), range(5), pure=False)
    assert nesting_client.gather(tasks) == [4] * 5
    task = nesting_client.submit(nested(2), 0, pure=False)
    assert task.result(timeout=60) == 12

    def with_client_of_the_task(_):
        from distributed import worker_client

        with worker_client() as client:
            return run_spmd(lambda group: group.rank, client=client)

    def with_get_client(_):
        return run_spmd(lambda group: group.rank, client=get_client())

    for function in (with_client_of_the_task, with_get_client):
        task = nesting_client.submit(function, 0, pure=False)
        assert task.result(timeout=60) == [0, 1]
    # The threads are back: one task per worker at a time, and all of them run.
    assert nesting_client.gather(nesting_client.map(abs, range(20))) == list(range(20))
