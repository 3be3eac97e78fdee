"""Groups on the workers of a cluster."""

import threading

import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster
from distributed.security import Security

from dask_ma import run_spmd
from dask_ma.comm import _lines, allreduce, barrier
from dask_ma.comm._dask import node_of
from dask_ma.comm._lines import HANDLER
from dask_ma.comm._plugin import CommPlugin
from dask_ma.exceptions import CommTimeoutError, StaleRunError

IN_PARTS = {"dask-ma.comm.message-overhead": 0}


def everything():
    """A program that goes through all collectives and returns what it got."""
    from dask_ma import comm

    def program(group):
        rng = np.random.default_rng(group.rank)
        arrays = [
            rng.normal(size=(97, 3)) * 10.0 ** rng.integers(-6, 6, (97, 3)),
            np.asarray(rng.normal(size=5), dtype=np.float32),
            np.array(group.rank),
            np.empty((0, 2)),
        ]
        results = comm.allreduce(group, arrays)
        results += comm.allreduce(group, [rng.normal(size=4000)])
        results += comm.weighted_mean(group, arrays[:2], 1 + group.rank)
        results.append(comm.allreduce(group, arrays[0], "max"))
        results.append(comm.reduce_scatter(group, arrays[0]))
        results += comm.allgather(group, np.full(group.rank, 1.5))
        results += comm.gather(group, arrays[1], root=1 % group.size) or []
        for root in range(group.size):
            results.append(comm.broadcast(group, np.array([group.rank]), root))
        after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
        results.append(comm.sendrecv(group, arrays[0], after, before))
        comm.barrier(group)
        return results

    return program


def assert_same_bits(got, expected):
    """The results of two runs agree in every bit."""
    for one, other in zip(got, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert a.tobytes() == b.tobytes()


@pytest.mark.each
@pytest.mark.parametrize(
    ("cluster", "size"),
    [
        ("inproc", 1),
        ("inproc", 4),
        ("inproc", 7),
        ("process", 4),
        ("process", 6),
        ("wide", 2),
        ("wide", 7),
        ("wide", 8),
    ],
)
@pytest.mark.parametrize("values", [{}, IN_PARTS], ids=["direct", "in parts"])
def test_same_bits_as_on_threads(request, run_ranks, configured, cluster, size, values):
    client = request.getfixturevalue(f"{cluster}_client")
    with configured(values, client):
        got = run_spmd(everything(), client=client, n_ranks=size)
        expected = run_ranks(everything(), size)
    assert_same_bits(got, expected)


def test_ranks_of_a_process_share_a_node():
    assert node_of("inproc://10.0.0.1/77/3") == node_of("inproc://10.0.0.1/77/12")
    assert node_of("inproc://10.0.0.1/77/3") != node_of("inproc://10.0.0.1/7/3")
    assert node_of("tcp://10.0.0.1:400") != node_of("tcp://10.0.0.1:401")


def test_a_duplicate_serves_in_a_second_thread(any_client):
    """Its messages are its own, and it can be closed with the rank."""

    def program(group):
        import threading

        duplicate, ranks = group.for_thread(), range(group.size)
        n_left = [group.size]

        def serve():
            while n_left[0]:
                duplicate.wait_any([(rank, "question") for rank in ranks])
                for rank in ranks:
                    arrived, question = duplicate.poll(rank, "question")
                    if arrived and question is None:
                        n_left[0] -= 1
                    elif arrived:
                        duplicate.push(question + group.rank, rank, "answer")
            duplicate.flush()

        thread = threading.Thread(target=serve)
        thread.start()
        got = []
        for number in range(5):
            for rank in ranks:
                group.push(np.full(100, number), rank, "question")
            got.append([group.recv(rank, "answer")[0].item() for rank in ranks])
        for rank in ranks:
            group.push(None, rank, "question")
        thread.join(60)
        group.flush()
        barrier(group)
        own, other = group.counters, duplicate.counters
        sent = [c.bytes_sent + c.bytes_shared for c in (own, other)]
        return got, thread.is_alive(), sent, other.messages_received

    with any_client.as_current():
        results = run_spmd(program, n_ranks=3)
    for got, is_alive, sent, n_received in results:
        assert got == [[number, number + 1, number + 2] for number in range(5)]
        assert not is_alive
        assert sent[0] >= sent[1] == 15 * 800
        assert n_received in (0, 2 * 6)  # of other processes


def test_threads_of_a_worker_add_no_traffic(wide_client):
    def program(group):
        allreduce(group, np.ones(24_000))
        return group.counters.bytes_sent, list(group.local_ranks)

    alone = run_spmd(program, client=wide_client, n_ranks=2)
    shared = run_spmd(program, client=wide_client, n_ranks=8)
    assert [local for _, local in shared] == [[0, 1, 2, 3]] * 4 + [[4, 5, 6, 7]] * 4
    assert [sent for sent, _ in alone] == [24_000 * 8] * 2
    assert sum(sent for sent, _ in shared) == sum(sent for sent, _ in alone)


@pytest.mark.parametrize(("config", "parts"), [({}, 8), (IN_PARTS, 6)])
def test_bytes_of_an_allreduce_between_processes(
    process_client, configured, config, parts
):
    """Whole in two steps, or three quarters of it there and back."""

    def program(group):
        allreduce(group, np.ones(24_000))
        return group.counters.bytes_sent, group.counters.bytes_received

    expected = parts * 24_000 * 8 // 4
    with configured(config, process_client):
        assert run_spmd(program, client=process_client) == [(expected, expected)] * 4


def test_ranks_in_one_process_send_nothing(inproc_client):
    def program(group):
        allreduce(group, np.ones(24_000))
        return group.counters.bytes_sent, group.counters.bytes_shared > 0

    assert run_spmd(program, client=inproc_client) == [(0, True)] * 4


# Messages ---------------------------------------------------------------------------


@pytest.mark.parametrize("nbytes", [0, 8, 20 * 2**20])
def test_messages_of_all_sizes(any_client, nbytes):
    def program(group):
        if group.rank == 0:
            array = np.arange(nbytes // 8, dtype=np.int64)
            group.send({"array": array, "scalar": np.array(2.5)}, 1)
            array[:] = -1
            return group.recv(1, "sum")
        if group.rank == 1:
            got = group.recv(0)
            group.send([int(got["array"].sum()), float(got["scalar"])], 0, "sum")

    n = nbytes // 8
    total, scalar = run_spmd(program, client=any_client, n_ranks=2)[0]
    assert (total, scalar) == (n * (n - 1) // 2, 2.5)


def test_pushed_arrays_are_copied(any_client):
    def program(group):
        peer = 1 - group.rank
        array = np.empty(10_000)
        for number in range(20):
            array[:] = number
            group.push(array, peer)
        array[:] = -1
        group.flush()
        return [set(group.recv(peer)) for _ in range(20)]

    expected = [{float(number)} for number in range(20)]
    assert run_spmd(program, client=any_client, n_ranks=2) == [expected] * 2


def test_small_messages_do_not_overtake_large_ones(any_client):
    def program(group):
        peer = 1 - group.rank
        for number in range(8):
            size = 1 if number % 2 else 500_000
            group.push(np.full(size, number), peer)
        group.flush()
        return [int(group.recv(peer)[0]) for _ in range(8)]

    results = run_spmd(program, client=any_client, n_ranks=2)
    assert results == [list(range(8))] * 2


def test_many_tags_are_kept_apart(any_client):
    tags = [n if n % 3 else ("part", n, "x") for n in range(200)]

    def program(group):
        peer = 1 - group.rank
        for number, tag in enumerate(tags):
            group.push(np.array([number, group.rank]), peer, tag)
        group.flush()
        return [list(group.recv(peer, tag)) for tag in reversed(tags)]

    first, second = run_spmd(program, client=any_client, n_ranks=2)
    assert first == [[number, 1] for number in reversed(range(200))]
    assert second == [[number, 0] for number in reversed(range(200))]


def test_poll_finds_what_was_sent(any_client):
    def program(group):
        if group.rank == 1:
            group.send(np.arange(3), 0, "t")
            return group.recv(0, "done")
        arrived, payload = group.poll(1, "t")
        while not arrived:
            group.raise_if_closed()
            arrived, payload = group.poll(1, "t")
        group.send("done", 1, "done")
        return payload.tolist(), group.poll(1, "t")

    results = run_spmd(program, client=any_client, n_ranks=2)
    assert results == [([0, 1, 2], (False, None)), "done"]


def test_what_a_collective_gives_is_aligned(process_client):
    # On other arrays NumPy computes without BLAS, and rounds in another way.
    def program(group):
        from dask_ma.comm import allgather, broadcast, broadcast_direct

        found = []
        for size in range(1, 12):
            array = np.arange(float(size))
            found.append(broadcast(group, (array, "x" * size))[0])
            found.append(broadcast_direct(group, [array, "x" * size])[0])
            found += [part for part, _ in allgather(group, (array, "x" * size))]
        return all(array.flags.aligned for array in found)

    assert run_spmd(program, client=process_client) == [True] * 4


def test_large_messages_are_aligned_without_a_copy(process_client):
    """Whatever the length of what goes ahead of their arrays."""

    def program(group):
        array = np.arange(1 << 17, dtype=np.float64)
        found = []
        for length in range(8):
            tag = "x" * length
            if group.rank == 0:
                group.send(array, 1, tag)
                group.send([array, array[1:]], 1, tag)
            else:
                one, two = group.recv(0, tag), group.recv(0, tag)
                found += [one, *two]
                np.testing.assert_array_equal(one, array)
                np.testing.assert_array_equal(two[1], array[1:])
        return all(received.flags.aligned for received in found)

    assert run_spmd(program, client=process_client, n_ranks=2) == [True, True]


def test_pushing_waits_while_too_much_is_under_way(process_client, configured):
    def program(group):
        if group.rank == 1:
            barrier(group)
            return [int(group.recv(0)[0]) for _ in range(50)]
        most = 0
        for number in range(50):
            group.push(np.full(100, number), 1)
            most = max(most, group._bytes_under_way)
        group.flush()
        left = group._bytes_under_way
        barrier(group)
        return most, left

    with configured({"dask-ma.comm.push-buffer": "2 kB"}, process_client):
        (most, left), received = run_spmd(program, client=process_client, n_ranks=2)
    assert received == list(range(50))
    assert 800 <= most <= 2000
    assert left == 0


def test_a_message_larger_than_the_buffer_gets_through(process_client, configured):
    def program(group):
        peer = 1 - group.rank
        for number in range(5):
            group.push(np.full(100, number), peer)
        return [int(group.recv(peer)[0]) for _ in range(5)]

    with configured({"dask-ma.comm.push-buffer": 0}, process_client):
        results = run_spmd(program, client=process_client, n_ranks=2)
    assert results == [list(range(5))] * 2


# Errors -----------------------------------------------------------------------------


def test_time_out_when_nobody_sends(any_client, configured):
    def program(group):
        if group.rank == 2:
            group.recv(0, "never")

    with configured({"dask-ma.comm.timeout": "100 ms"}, any_client):
        with pytest.raises(CommTimeoutError) as caught:
            run_spmd(program, client=any_client, n_ranks=3)
    for part in ("rank 2", "rank 0", "'never'", "0.1 s", "dask-ma.comm.timeout"):
        assert part in str(caught.value)


def test_a_message_to_a_rank_that_has_ended(any_client):
    def program(group):
        while group.rank == 0:  # until rank 1 is no longer there
            group.send("x", 1)

    with pytest.raises(StaleRunError, match=r"rank 1 of run (\w{32}) came after"):
        run_spmd(program, client=any_client, n_ranks=2)


@pytest.mark.parametrize("bad", [-1, 2])
def test_ranks_that_do_not_exist(any_client, bad):
    def program(group):
        group.send("x", bad)

    with pytest.raises(ValueError, match=rf"dest must be .* 0 to 1, got {bad}"):
        run_spmd(program, client=any_client, n_ranks=2)


def test_a_payload_that_cannot_be_sent(process_client):
    def program(group):
        if group.rank == 0:
            group.send(threading.Lock(), 1)
        else:
            group.recv(0)

    with pytest.raises(TypeError, match="serialize"):
        run_spmd(program, client=process_client, n_ranks=2)


class Poison:
    """Can be sent, and not be read."""

    def __reduce__(self):
        return int, ("poison",)


@pytest.mark.parametrize("is_short", [True, False])
def test_a_payload_that_cannot_be_read(process_client, is_short):
    def program(group):
        if group.rank == 0:
            group.send("good", 1)
            group.send([Poison()] if is_short else [np.zeros(10**5), Poison()], 1)
        else:
            assert group.recv(0) == "good"
            group.recv(0)

    with pytest.raises(ValueError, match="poison"):
        run_spmd(program, client=process_client, n_ranks=2)
    assert run_spmd(lambda group: group.rank, client=process_client) == [0, 1, 2, 3]


# Ports and encryption ---------------------------------------------------------------


def port_lister():
    """A function that lists the ports on which its process listens."""

    def listening():
        return sorted(
            connection.laddr.port
            for connection in psutil.Process().net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN
        )

    return listening


@pytest.fixture(scope="module")
def tls_client():
    """Client of two worker processes with encrypted connections."""
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=":0",
            protocol="tls://",
            security=Security.temporary(),
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.slow
def test_encrypted_and_without_ports_of_its_own(tls_client, assert_clean, run_ranks):
    assert all(address.startswith("tls://") for address in tls_client.nthreads())
    program, ports = everything(), port_lister()

    def with_ports(group):
        return program(group), ports(), group.counters.bytes_sent

    before = sorted(tls_client.run(ports).items())
    results = run_spmd(with_ports, client=tls_client)
    assert all(open_ports for _, open_ports in before)
    assert [during for _, during, _ in results] == [after for _, after in before]
    assert sorted(tls_client.run(ports).items()) == before
    assert all(sent > 0 for *_, sent in results)
    assert_same_bits([result for result, *_ in results], run_ranks(program, 2))
    assert_clean(tls_client)


def test_a_run_that_starts_before_the_plugin_is_on_all_workers(process_client):
    """As happens when another run has just had it installed."""

    def program(group):
        return int(allreduce(group, np.array(1)))

    def forget(dask_worker):
        del dask_worker.handlers[HANDLER]

    async def hang_up(dask_worker):
        _lines.end_lines(dask_worker)

    def learn(dask_worker):
        dask_worker.plugins[CommPlugin.name].setup(dask_worker)

    run_spmd(program, client=process_client)
    late = list(process_client.nthreads())[-1]
    process_client.run(hang_up)  # those of earlier runs
    process_client.run(forget, workers=[late])
    timer = threading.Timer(0.3, process_client.run, (learn,), {"workers": [late]})
    timer.start()
    assert run_spmd(program, client=process_client) == [4] * 4
    timer.join()
