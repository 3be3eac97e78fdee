"""BLAS threads limited to what a rank may use."""

import threading

import pytest
from threadpoolctl import ThreadpoolController, threadpool_info

from dask_ma import run_spmd
from dask_ma.engine import launch, place_ranks
from dask_ma.engine._process import limited_blas


def blas_threads():
    """Number of threads of each BLAS library in this process."""
    return {
        pool["filepath"]: pool["num_threads"]
        for pool in threadpool_info()
        if pool["user_api"] == "blas"
    }


def in_a_thread(function):
    """Call a function in a thread that ends with it."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.fixture
def before():
    """BLAS libraries of this process, with three threads each during the test.

    A thread that is gone has set them: a limit can be changed only by the thread that
    set it, as long as there is one.
    """
    limits = []
    controller = ThreadpoolController()
    in_a_thread(lambda: limits.append(controller.limit(limits=3, user_api="blas")))
    libraries = blas_threads()
    assert set(libraries.values()) == {3}
    yield libraries
    in_a_thread(limits[0].restore_original_limits)


def test_limit_and_restore(before):
    with limited_blas(1):
        assert set(blas_threads().values()) == {1}
    assert blas_threads() == before


def test_restored_after_an_error(before):
    with pytest.raises(KeyError), limited_blas(2):
        assert set(blas_threads().values()) == {2}
        raise KeyError
    assert blas_threads() == before


def test_nested_use(before):
    with limited_blas(1):
        with limited_blas(1):
            assert set(blas_threads().values()) == {1}
        assert set(blas_threads().values()) == {1}
    assert blas_threads() == before


def test_overlapping_use_restores_once_the_last_has_ended(before):
    first, second = limited_blas(1), limited_blas(1)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert set(blas_threads().values()) == {1}
    second.__exit__(None, None, None)
    assert blas_threads() == before


def test_many_threads_at_once(before):
    start = threading.Barrier(8)
    wrong = []

    def use():
        start.wait()
        for _ in range(8):
            with limited_blas(1):
                wrong.append(set(blas_threads().values()) != {1})

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 64 and not any(wrong)
    assert blas_threads() == before


@pytest.mark.parametrize("where", ["here", "inproc"])
def test_ranks_run_under_the_limit(request, before, where):
    client = None if where == "here" else request.getfixturevalue("inproc_client")

    def agent(context, shard, params):
        from threadpoolctl import threadpool_info

        found = {
            pool["num_threads"]
            for pool in threadpool_info()
            if pool["user_api"] == "blas"
        }
        return sorted(found)

    for threads in (1, 2):
        results = launch(
            agent,
            [None] * 3,
            name="Blas",
            client=client,
            addresses=place_ranks(client, 3),
            blas_threads=threads,
            collect="all",
        )
        assert results == [[threads]] * 3
        assert blas_threads() == before


def test_restored_after_a_rank_has_failed(before):
    def fail(group):
        raise ValueError("rank")

    with pytest.raises(ValueError, match="rank"):
        run_spmd(fail, n_ranks=2)
    assert blas_threads() == before
