"""Allreduce between worker processes, next to plain sockets that do the same.

The reference is what a program without any library would do: as many processes, a
socket between each two, a reduce-scatter and an all-gather. A thread sends while the
main one receives into memory that is there already; sums are taken in rank order. For
short vectors each process sends all it has to each other one. Both are timed in turns,
in rank 0: long ones from one barrier to the next, short ones, which would take less
than the barriers, 20 in a row; the processor time is that of all ranks.

Run ``python allreduce_sockets.py``; the defaults, 8 and 10 million float64 on four
processes, take about a minute. With ``--bind`` each process keeps to a processor of its
own, as schedulers of clusters have it (Linux only).
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from dask.distributed import Client, LocalCluster

from dask_ma import run_spmd
from dask_ma.comm import Group, allreduce, barrier

# Worker processes import it by this path as well.
sys.path.append(str(Path(__file__).parent.parent))

from benchmarks._binding import bind, bind_workers  # noqa: E402

_SHORT = 4096  # elements up to which vectors go whole
_IN_A_ROW = 20  # of these, without a barrier in between: none can overtake another


class Mesh:
    """One process with a socket to each other one.

    Parameters
    ----------
    rank : int
        Number of this process.
    ports : sequence of int
        Where each one listens.
    listener : socket
        Of this process.
    """

    def __init__(self, rank: int, ports: list[int], listener: socket.socket) -> None:
        self.rank, self.size = rank, len(ports)
        self.peers: dict[int, socket.socket] = {}
        for peer in range(rank):
            found = socket.create_connection(("127.0.0.1", ports[peer]))
            found.sendall(bytes([rank]))
            self.peers[peer] = found
        for _ in range(self.size - 1 - rank):
            found, _ = listener.accept()
            self.peers[found.recv(1)[0]] = found
        for found in self.peers.values():
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, outgoing: dict[int, Any], incoming: dict[int, Any]) -> None:
        """Send something to each peer and receive something from each."""

        def send() -> None:
            for step in range(1, self.size):
                peer = (self.rank + step) % self.size
                self.peers[peer].sendall(memoryview(outgoing[peer]).cast("B"))

        sender = threading.Thread(target=send)
        sender.start()
        for step in range(1, self.size):
            peer = (self.rank - step) % self.size
            rest = memoryview(incoming[peer]).cast("B")
            while rest:
                rest = rest[self.peers[peer].recv_into(rest) :]
        sender.join()

    def allreduce(self, vector: np.ndarray) -> np.ndarray:
        """Sum of the vectors of all processes."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        if len(vector) <= _SHORT:
            received = {rank: np.empty_like(vector) for rank in others}
            self.exchange(dict.fromkeys(others, vector), received)
            received[self.rank] = vector
            return sum(received[rank] for rank in range(self.size))
        bounds = [len(vector) * rank // self.size for rank in range(self.size + 1)]
        parts = [vector[a:b] for a, b in zip(bounds[:-1], bounds[1:])]
        own = parts[self.rank]
        received = {rank: np.empty_like(own) for rank in others}
        self.exchange(dict(enumerate(parts)), received)
        received[self.rank] = own
        total = np.empty_like(vector)
        places = [total[a:b] for a, b in zip(bounds[:-1], bounds[1:])]
        places[self.rank][:] = received[0]
        for rank in range(1, self.size):
            places[self.rank] += received[rank]
        self.exchange(dict.fromkeys(others, places[self.rank]), dict(enumerate(places)))
        return total


def time_sums(sum_up: Any, meet: Any, length: int, repeats: int) -> list[Any]:
    """Seconds of a call, measured some times, and seconds of processor time of one."""
    vector = np.random.default_rng(0).random(length)
    is_short = length <= _SHORT
    n_calls = _IN_A_ROW if is_short else 1
    found = []
    before = time.process_time()
    for _ in range(repeats + 1):
        meet()
        start = time.perf_counter()
        for _ in range(n_calls):
            sum_up(vector)
        if not is_short:
            meet()
        found.append((time.perf_counter() - start) / n_calls)
    used = time.process_time() - before
    return [found[1:], used / (n_calls * (repeats + 1))]


def run_plain(
    rank: int, ports: Any, listener: Any, work: Any, results: Any, is_bound: bool
) -> None:
    """One process of the reference."""
    if is_bound:
        bind(rank)
    mesh = Mesh(rank, ports, listener)
    nothing = np.zeros(1)
    found = [
        time_sums(mesh.allreduce, lambda: mesh.allreduce(nothing), *size)
        for size in work
    ]
    results.put((rank, found))


def plain_sockets(
    n_processes: int, work: list[tuple[int, int]], is_bound: bool
) -> list[Any]:
    """What each process of the reference has measured."""
    context = multiprocessing.get_context("fork")
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(n_processes)]
    ports = [listener.getsockname()[1] for listener in listeners]
    results = context.Queue()
    processes = [
        context.Process(
            target=run_plain,
            args=(rank, ports, listeners[rank], work, results, is_bound),
        )
        for rank in range(n_processes)
    ]
    for process in processes:
        process.start()
    found = dict(results.get() for _ in processes)
    for process in processes:
        process.join()
    for listener in listeners:
        listener.close()
    return [found[rank] for rank in range(n_processes)]


def on_rank(group: Group, work: list[tuple[int, int]]) -> list[Any]:
    """The same by a rank of a cluster."""
    return [
        time_sums(lambda v: allreduce(group, v), lambda: barrier(group), *size)
        for size in work
    ]


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--processes", type=int, default=4)
    add("--lengths", type=float, nargs="+", default=[8, 1e7], help="of float64")
    add("--repeats", type=int, nargs="+", default=[100, 5], help="for each length")
    add("--turns", type=int, default=3, help="how often both are measured")
    add("--bind", action="store_true", help="each process to a processor of its own")
    args = parser.parse_args()
    lengths = [int(length) for length in args.lengths]
    work = list(zip(lengths, args.repeats))
    runs: dict[str, list[Any]] = {"sockets": [], "dask_ma": []}
    with (
        LocalCluster(
            n_workers=args.processes,
            threads_per_worker=1,
            dashboard_address=":0",
            memory_limit=0,
        ) as cluster,
        Client(cluster) as client,
    ):
        if args.bind:
            bind_workers(client)
        for _ in range(args.turns):
            runs["sockets"].append(plain_sockets(args.processes, work, args.bind))
            runs["dask_ma"].append(run_spmd(on_rank, work))
    for place, length in enumerate(lengths):
        medians = {}
        for name, turns in runs.items():
            times = [t for ranks in turns for t in ranks[0][place][0]]
            used = [sum(rank[place][1] for rank in ranks) for ranks in turns]
            medians[name] = statistics.median(times)
            print(
                f"{length:>9} float64, {name}: {1e3 * medians[name]:.3f} ms (least "
                f"{1e3 * min(times):.3f}), processor time of all ranks "
                f"{1e3 * statistics.median(used):.3f} ms"
            )
        print(f"  dask_ma / sockets: {medians['dask_ma'] / medians['sockets']:.2f}")


if __name__ == "__main__":
    main()
