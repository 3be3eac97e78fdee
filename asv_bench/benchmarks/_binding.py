"""Worker processes that keep to a processor of their own each; Linux only."""

from __future__ import annotations

import os

from dask.distributed import Client


def bind(place: int) -> None:
    """Keep all threads of this process to one of the processors of its parent."""
    processors = sorted(os.sched_getaffinity(os.getppid()))
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {processors[place % len(processors)]})


def bind_workers(client: Client) -> None:
    """Give each worker process of this machine a processor."""
    for place, address in enumerate(client.scheduler_info(n_workers=-1)["workers"]):
        client.run(bind, place, workers=[address])
