"""Signs of life of the workers, as the scheduler sees them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import Any
from uuid import uuid4

from distributed import Client

from dask_ma import _config

logger = logging.getLogger("dask_ma.engine")


def is_running(info: dict[str, Any]) -> bool:
    """Whether a worker takes tasks, by what the scheduler says of it.

    Not one that is starting, is paused for want of memory, or is about to close.
    """
    return bool(info.get("status", "running") == "running")


def process_of(info: dict[str, Any]) -> str:
    """What tells a worker from another one with the same address and name.

    Each process makes a directory of its own.
    """
    return str(info.get("local_directory"))


def run_on(
    client: Client, workers: Sequence[str], function: Callable[..., Any], *args: Any
) -> dict[str, Any]:
    """``client.run`` on some workers, which may have gone or stopped.

    Returns
    -------
    answers : dict of str to object
        Of the workers that have answered without an error within
        ``dask-ma.launch.abort-timeout``.
    """
    timeout = _config.get_timeout("launch.abort-timeout")

    async def ask(address: str) -> Any:
        call = client.run(function, *args, workers=[address])
        return await asyncio.wait_for(call, timeout)

    async def ask_all() -> list[Any]:
        calls = [ask(address) for address in workers]
        return await asyncio.gather(*calls, return_exceptions=True)

    answers = zip(workers, client.sync(ask_all), strict=True)
    return {
        address: answer[address]
        for address, answer in answers
        if not isinstance(answer, BaseException) and address in answer
    }


def settle(client: Client) -> None:
    """Return once the scheduler is sure to hear of released futures before all else."""

    async def nothing() -> None:
        """Come after what the event loop had to do."""

    client.sync(nothing)


def has_retired(client: Client, address: str) -> bool:
    """Whether a worker that has gone was retired, not lost.

    The scheduler is told so by ``dask worker --lifetime`` and when a cluster shrinks.
    """
    try:
        events = client.get_events(address)
    except Exception:  # whatever a connection that has gone may raise
        return False
    removals = [
        event
        for _, event in events
        if isinstance(event, dict) and event.get("action") == "remove-worker"
    ]
    return bool(removals and removals[-1].get("expected"))


class Liveness:
    """Notices workers that have gone, and workers that give no sign of life.

    A stopped process, or a host behind a cut link, stays in the scheduler's list for
    minutes, but the time of its last sign of life stands still. Only changes of that
    time are looked at, so the clocks of the hosts need not agree.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}

    def lost(
        self, addresses: Iterable[str], workers: dict[str, dict[str, Any]]
    ) -> list[str]:
        """Those of `addresses` that are not there or have been silent too long."""
        now = monotonic()
        patience = _config.get_timeout("launch.worker-timeout")
        lost = []
        for address in sorted(set(addresses)):
            if address not in workers:
                lost.append(address)
                continue
            last_seen = workers[address].get("last_seen", 0.0)
            if self._seen.get(address, (None, 0.0))[0] != last_seen:
                self._seen[address] = last_seen, now
            if now - self._seen[address][1] > patience:
                lost.append(address)
        return lost


def remove_silent(client: Client, addresses: Sequence[str]) -> None:
    """Have the scheduler give up workers that are silent, with the data they hold.

    It does so itself only after ``distributed.scheduler.worker-ttl``, and until then
    would send every task that needs those data to fetch them there.
    """

    async def remove(dask_scheduler: Any) -> None:
        for address in addresses:
            if address in dask_scheduler.workers:
                await dask_scheduler.remove_worker(
                    address, stimulus_id=f"dask_ma-silent-{uuid4().hex}"
                )

    try:
        client.run_on_scheduler(remove)
    except Exception as error:  # a scheduler need not run functions of its clients
        logger.warning("could not give up %s: %s", ", ".join(addresses), error)
