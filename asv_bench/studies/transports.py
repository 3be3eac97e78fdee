"""Ways for an array to get from one worker process to another, and what they take.

Two worker processes send arrays of some sizes to and fro, for each way on a cluster of
its own: seconds by the clock of one way, and seconds of the processor of both processes
for it. The ways are

- ``as it is``: Dask's TCP connections with their defaults, as dask_ma uses them;
- ``frames of 2 GiB``: ``distributed.comm.shard``, so that no array is cut into frames;
- ``one thread``: ``distributed.comm.offload``, so that large arrays are packed and
  unpacked by the event loop itself;
- ``behind the header``: without the byte that dask_ma sends ahead, so that Dask reads
  the header and the array into one buffer, and its elements lie at any byte;
- ``UCX``: ``protocol="ucxx"``, where the package distributed-ucxx can be imported;
- ``sockets``: two processes that only send bytes, and receive them into memory that is
  there already.

The receiver adds the array to another one, since that is what allreduces do with it;
the time of this on arrays in memory is printed first.

Run ``python transports.py``; the defaults take about two minutes.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import socket
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from dask.distributed import Client, LocalCluster

from dask_ma import run_spmd
from dask_ma.comm import Group

SHARD = "DASK_DISTRIBUTED__COMM__SHARD"
OFFLOAD = "DASK_DISTRIBUTED__COMM__OFFLOAD"
WAYS: dict[str, dict[str, str]] = {
    "as it is": {},
    "frames of 2 GiB": {SHARD: "2 GiB"},
    "one thread": {OFFLOAD: "False"},
    "behind the header": {},
}
Times = tuple[float, float]  # by the clock, and of the processor


def play(group: Group, sizes: list[int], repeats: int) -> list[Times]:
    """Seconds of a message with an array of each size, and of the processor for it."""
    found = []
    for nbytes in sizes:
        array = np.ones(nbytes // 8)
        times = []
        for repeat in range(repeats + 1):
            if repeat == 1:  # the first fills the pools of memory
                before = time.process_time()
            start = time.perf_counter()
            if group.rank == 0:
                group.send(array, 1)
                array += group.recv(1)
            else:
                array += group.recv(0)
                group.send(array, 0)
            times.append((time.perf_counter() - start) / 2)
        used = (time.process_time() - before) / (2 * repeats)
        found.append((statistics.median(times[1:]), used))
    return found


def without_a_byte_ahead() -> None:
    """Have this process send arrays right behind the header."""
    from dask_ma.comm import _packing

    _packing._WHOLE = 0


def on_workers(way: str, protocol: str, args: argparse.Namespace) -> list[Times]:
    """What two workers measure; both ranks' processor time together."""
    changes = WAYS.get(way, {})
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)  # read by the workers as they start
    try:
        with (
            LocalCluster(
                n_workers=2,
                threads_per_worker=1,
                dashboard_address=":0",
                memory_limit=0,
                protocol=protocol,
            ) as cluster,
            Client(cluster) as client,
        ):
            if way == "behind the header":
                client.run(without_a_byte_ahead)
            first, second = run_spmd(play, args.sizes, args.repeats)
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    pairs = zip(first, second, strict=True)
    return [(clock, own + other) for (clock, own), (_, other) in pairs]


class Wire:
    """A socket that is played with like a group of two ranks."""

    def __init__(self, rank: int, connection: socket.socket, nbytes: int) -> None:
        self.rank = rank
        self._connection = connection
        self._room = np.empty(nbytes // 8)

    def send(self, array: np.ndarray, dest: int) -> None:
        """Send all bytes."""
        self._connection.sendall(memoryview(array).cast("B"))

    def recv(self, source: int) -> np.ndarray:
        """Receive as many as there is room for."""
        rest = memoryview(self._room).cast("B")
        while rest:
            rest = rest[self._connection.recv_into(rest) :]
        return self._room


def by_sockets(args: argparse.Namespace) -> list[Times]:
    """What two processes with a socket measure."""
    context = multiprocessing.get_context("fork")
    found = []
    for nbytes in args.sizes:
        results = context.Queue()
        ends = socket.create_server(("127.0.0.1", 0))
        port = ends.getsockname()[1]

        def run(rank: int, nbytes: int = nbytes, port: int = port) -> None:
            if rank:
                connection, _ = ends.accept()  # noqa: B023
            else:
                connection = socket.create_connection(("127.0.0.1", port))
            wire: Any = Wire(rank, connection, nbytes)
            results.put((rank, *play(wire, [nbytes], args.repeats)))  # noqa: B023

        processes = [context.Process(target=run, args=(rank,)) for rank in (0, 1)]
        for process in processes:
            process.start()
        (_, (clock, own)), (_, (_, other)) = sorted(results.get() for _ in processes)
        for process in processes:
            process.join()
        ends.close()
        found.append((clock, own + other))
    return found


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--sizes", type=int, nargs="+", default=[10**6, 2 * 10**7, 16 * 10**7])
    add("--repeats", type=int, default=9)
    add("--write", type=Path, help="file for the table")
    args = parser.parse_args()
    args.sizes = [size // 8 * 8 for size in args.sizes]
    ways = [(way, "tcp") for way in WAYS]
    try:
        importlib.import_module("distributed_ucxx")
        ways.append(("UCX", "ucxx"))
    except ImportError as error:
        print(f"without UCX: {error}")
    for nbytes in args.sizes:
        one, other = np.ones(nbytes // 8), np.ones(nbytes // 8)
        start = time.perf_counter()
        for _ in range(args.repeats):
            one += other
        seconds = (time.perf_counter() - start) / args.repeats
        print(f"{nbytes / 1e6:g} MB added up in {1e3 * seconds:.2f} ms")
    rows = [["ms by the clock / of the processor"]]
    rows[0] += [f"{nbytes / 1e6:g} MB" for nbytes in args.sizes]
    runs = {way: on_workers(way, protocol, args) for way, protocol in ways}
    runs["sockets"] = by_sockets(args)
    for way, found in runs.items():
        cells = [f"{1e3 * clock:.2f} / {1e3 * used:.2f}" for clock, used in found]
        rows.append([way, *cells])
    text = "".join(",".join(row) + "\n" for row in rows)
    print(text)
    if args.write:
        args.write.write_text(text)


if __name__ == "__main__":
    main()
