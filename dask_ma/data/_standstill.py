"""Blocks that are waited for in vain: nobody works on them, or they are gone.

``Client.scheduler`` is used for ``get_task_status``: nothing public tells the state of
a task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

from distributed import Client, Future

from dask_ma import _config
from dask_ma.data._workers import address_of, workers_of
from dask_ma.exceptions import CommTimeoutError, PeerLostError

__all__: list[str] = []

# What tasks are doing that a worker will come to the end of.
_AT_WORK = ("executing", "long-running", "flight")
# And of those that it is going to fetch, unless it is paused.
_TO_FETCH = "fetch"

# What tasks wait for, by their state on the scheduler, while nobody works on them.
_WAITS_FOR = {
    "no-worker": "a worker with their resources, or that they are restricted to",
    "waiting": "other tasks",
    "queued": "a free thread",
    "processing": "a worker that has not started them",
}
# States of tasks whose data nobody makes again.
_GONE = (None, "released", "forgotten")


def refuse_lost(client: Client, blocks: Sequence[Future]) -> None:
    """Raise if a block was lost with a worker, and is not going to be made again."""
    lost = [block for block in blocks if block.status == "lost"]
    for key, state in _states_of(client, lost).items():
        if state in _GONE:
            raise gone(key)


def gone(key: Any) -> PeerLostError:
    """Error of a block that is nowhere."""
    return PeerLostError(
        f"The block with key {key!r} is in no worker's memory any more. Persist the "
        "input again."
    )


def out_of_reach(block: Future, client: Client) -> PeerLostError:
    """Error of a block that no worker of a client has: is it on another cluster?"""
    here, there = address_of(client), address_of(block.client)
    if here == there:
        return gone(block.key)
    return PeerLostError(
        f"The block with key {block.key!r} is in no worker's memory on the cluster of "
        f"the current client, at {here}: it was persisted with the client of another "
        f"cluster, at {there}. Fit within `with client.as_current():` of that client, "
        "or persist the input again with the current one."
    )


class Standstill:
    """Notices that nobody works on anything, though blocks are waited for.

    Paused workers start nothing, and as long as their memory is full it stays like
    that. And where a worker has gone while the others were paused, Dask does not give
    the tasks that it was to do to another one that joins.

    Parameters
    ----------
    client : distributed.Client

    Attributes
    ----------
    n_running : int
        Workers that take tasks, when they were last looked at.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._since = self._seen = monotonic()
        self.n_running = self._n_paused = 0

    def restart(self) -> None:
        """Begin anew, since a block has been finished."""
        self._since = monotonic()

    def seconds(self) -> float:
        """For how long nobody has been seen at work; asks every few seconds."""
        now = monotonic()
        if now - self._seen >= _config.get_timeout("launch.heartbeat-interval"):
            self._seen = now
            workers = workers_of(self._client)
            states = {a: info.get("status") for a, info in workers.items()}
            running = [a for a, state in states.items() if state == "running"]
            self.n_running = len(running)
            self._n_paused = list(states.values()).count("paused")
            if not workers or any(map(_is_at_work, workers.values())):
                self._since = now
            elif running and any(self._client.processing(running).values()):
                self._since = now
        return now - self._since

    def check(self, blocks: Sequence[Future]) -> None:
        """Raise after ``dask-ma.launch.start-timeout``, or if a block is gone.

        Parameters
        ----------
        blocks : sequence of Future
            Those that are waited for.
        """
        refuse_lost(self._client, blocks)
        if self.seconds() < (limit := _config.get_timeout("launch.start-timeout")):
            return
        states = _states_of(self._client, blocks)
        for key, state in states.items():
            if state is None:
                raise gone(key)
        raise CommTimeoutError(
            f"{len(blocks)} tasks for rows are waited for, but no worker has done "
            f"anything for {limit:g} s (dask-ma.launch.start-timeout): "
            + self._describe(Counter(states.values()))
        )

    def _describe(self, states: Counter[str | None]) -> str:
        """What is known of why nobody works."""
        waits = ", ".join(
            f"{_WAITS_FOR.get(str(state), f'something in the state {state!r}')} ({n})"
            for state, n in states.most_common()
        )
        if self._n_paused:
            return (
                f"{self._n_paused} are paused, as their memory is full, and "
                f"{self.n_running} are not. Take more or larger workers, or smaller "
                f"blocks of rows (the tasks wait for {waits})"
            )
        return (
            f"none is paused, {self.n_running} take tasks, and these wait for {waits}. "
            "If that is yet to come, set the timeout to the time that it takes"
        )


def _states_of(client: Client, blocks: Sequence[Future]) -> dict[Any, str | None]:
    """State of each task on the scheduler; None of one that it does not know."""
    if not blocks:
        return {}
    keys = [block.key for block in blocks]
    return dict(client.sync(client.scheduler.get_task_status, keys=keys))


def _is_at_work(info: Mapping[str, Any]) -> bool:
    """Whether a worker was doing something at its last heartbeat."""
    counts = info.get("metrics", {}).get("task_counts", {})
    is_running = info.get("status", "running") == "running"
    states = (*_AT_WORK, _TO_FETCH) if is_running else _AT_WORK
    return any(counts.get(state) for state in states)
