"""The door through which messages enter a worker.

One handler on each worker takes the messages of all runs and puts them into the mailbox
of the rank they are for. The plugin that installs it holds no data and stays on the
cluster; mailboxes live from the start of a rank to its end.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable
from functools import cache
from time import monotonic
from typing import TYPE_CHECKING, Any

from distributed import WorkerPlugin
from distributed.comm import Comm, CommClosedError

from dask_ma import _config
from dask_ma.comm._arrivals import Door
from dask_ma.comm._group import payload_nbytes
from dask_ma.comm._held import WaitingRoom
from dask_ma.comm._lines import HANDLER, end_lines
from dask_ma.comm._mailbox import Mailbox
from dask_ma.comm._packing import Header
from dask_ma.exceptions import CommTimeoutError, GroupClosedError, StaleRunError

if TYPE_CHECKING:
    from distributed import Client, Worker

logger = logging.getLogger("dask_ma.comm")

#: Keys of the tasks of ranks are ``<prefix><name>-<run id>-<rank>``.
KEY_PREFIX = "dask_ma-"
_RUNNING = ("executing", "long-running")
_N_REMEMBERED = 10_000  # closed ranks and runs whose late messages can still be named
_LEAVE_POLL = 0.02  # seconds between looks for ranks that are about to end
_SENDER_LOOK = 5.0  # seconds between looks whether a sender that waits is still there


class RunRegistry:
    """Mailboxes of the ranks in this process.

    Workers of one process share it, so that their ranks exchange through memory.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._mailboxes: dict[tuple[str, int], tuple[Mailbox, str]] = {}
        self._closed: OrderedDict[tuple[str, int | None], BaseException] = OrderedDict()
        self._heeding: set[tuple[str, int]] = set()
        # Runs whose ranks have looked, or never will; also for who asks late.
        self._agreed: OrderedDict[str, bool] = OrderedDict()
        self._leaving: set[str] = set()
        #: Messages for ranks that have not started.
        self.waiting_room = WaitingRoom()

    def open(self, run_id: str, rank: int, owner: str) -> Mailbox:
        """Make the mailbox of a rank that runs on the worker at address `owner`."""
        with self._changed:
            self._raise_if_closed(run_id, rank)
            mailbox = Mailbox(rank)
            self._mailboxes[run_id, rank] = mailbox, owner
            self._changed.notify_all()
        self.waiting_room.wake(run_id, rank)
        return mailbox

    def find(self, run_id: str, rank: int) -> Mailbox | None:
        """Mailbox of a rank, None if the rank has not started."""
        with self._changed:
            self._raise_if_closed(run_id, rank)
            mailbox, _ = self._mailboxes.get((run_id, rank), (None, ""))
        return mailbox

    def wait_for(self, run_id: str, rank: int, timeout: float) -> Mailbox:
        """Mailbox of a rank, waiting up to `timeout` seconds for the rank to start."""
        deadline = monotonic() + timeout
        with self._changed:
            while (run_id, rank) not in self._mailboxes:
                self._raise_if_closed(run_id, rank)
                if not self._changed.wait(deadline - monotonic()):
                    raise _not_started(run_id, rank, timeout)
            return self._mailboxes[run_id, rank][0]

    def put(self, mailbox: Mailbox, header: Header, payload: Any) -> None:
        """Add a message to the mailbox of a rank, which may just have ended."""
        try:
            mailbox.put(header.source, header.tag, payload)
        except GroupClosedError:
            with self._changed:
                self._raise_if_closed(header.run_id, header.dest)
            raise

    def close(self, run_id: str, rank: int) -> None:
        """Forget the mailbox of a rank that has ended."""
        error = GroupClosedError(f"rank {rank} of run {run_id} has ended")
        with self._changed:
            mailbox, _ = self._mailboxes.pop((run_id, rank), (None, ""))
            if (run_id, rank) in self._heeding:
                self._heeding.remove((run_id, rank))
                _remember(self._agreed, run_id, True)
            _remember(self._closed, (run_id, rank), error)
        self.waiting_room.wake(run_id, rank)
        if mailbox is not None:
            mailbox.close(error)

    def abort(self, run_id: str, error: BaseException) -> int:
        """End a run: calls of its ranks here raise `error`. Return their number."""
        with self._changed:
            mailboxes = [
                m for (run, _), (m, _) in self._mailboxes.items() if run == run_id
            ]
            _remember(self._closed, (run_id, None), error)
            self._changed.notify_all()
        self.waiting_room.wake(run_id)
        for mailbox in mailboxes:
            mailbox.close(error)
        return len(mailboxes)

    def abort_owner(self, owner: str) -> None:
        """End the ranks on a worker that is closing."""
        with self._changed:
            self._leaving.discard(owner)
            mailboxes = [m for m, o in self._mailboxes.values() if o == owner]
        for mailbox in mailboxes:
            mailbox.close(GroupClosedError(f"the worker at {owner} is closing"))

    def is_aborted(self, run_id: str) -> bool:
        """Whether a run was ended from outside."""
        with self._changed:
            return (run_id, None) in self._closed

    def agree(self, run_id: str, rank: int, *, heeds: bool) -> None:
        """Note whether a rank ends after its round when its worker wants to close."""
        with self._changed:
            if heeds:
                self._heeding.add((run_id, rank))
            else:
                _remember(self._agreed, run_id, False)

    def has_heeded(self, run_id: str) -> bool | None:
        """Whether ranks of a run here look, or looked, for workers that close."""
        with self._changed:
            if any(run == run_id for run, _ in self._heeding):
                return True
            return self._agreed.get(run_id)

    def leave(self, owner: str) -> None:
        """Have the ranks on a worker that wants to close end after their round."""
        with self._changed:
            self._leaving.add(owner)

    def is_leaving(self, owner: str) -> bool:
        """Whether a worker waits for its ranks to end, so that it can close."""
        with self._changed:
            return owner in self._leaving

    def n_heeding(self, owner: str) -> int:
        """Ranks on a worker that will end after their round."""
        with self._changed:
            return sum(
                key in self._heeding and o == owner
                for key, (_, o) in self._mailboxes.items()
            )

    def open_ranks(self) -> list[tuple[str, int]]:
        """Runs and ranks that are open in this process."""
        with self._changed:
            return list(self._mailboxes)

    def _raise_if_closed(self, run_id: str, rank: int) -> None:
        if (run_id, None) in self._closed:
            error = self._closed[run_id, None]
            raise type(error)(*error.args)
        if (run_id, rank) in self._closed:
            runs = sorted({run for run, _ in self._mailboxes})
            raise StaleRunError(
                f"a message for rank {rank} of run {run_id} came after that rank had "
                f"ended; runs that are open here: {runs or 'none'}"
            )


def _remember(notes: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    """Note what has ended, for messages and questions that come late."""
    notes[key] = value
    while len(notes) > _N_REMEMBERED:
        notes.popitem(last=False)


registry = RunRegistry()


def _not_started(run_id: str, rank: int, timeout: float) -> CommTimeoutError:
    return CommTimeoutError(
        f"rank {rank} of run {run_id} did not start within {timeout:g} s "
        "(dask-ma.launch.start-timeout); is its worker busy with other tasks?"
    )


# Event loop of the worker ----------------------------------------------------------


def put_message(comm: Comm, header: Header, payload: Any) -> Awaitable[None] | None:
    """Put a message into its mailbox, or return what waits for the mailbox."""
    mailbox = registry.find(header.run_id, header.dest)
    if mailbox is None:
        return _put_later(comm, header, payload)
    registry.put(mailbox, header, payload)
    return None


async def _put_later(comm: Comm, header: Header, payload: Any) -> None:
    """Put a message into the mailbox of a rank that has not started."""
    nbytes = payload_nbytes(payload)
    mailbox = await _mailbox_of(comm, header.run_id, header.source, header.dest, nbytes)
    registry.put(mailbox, header, payload)


async def _mailbox_of(
    comm: Comm, run_id: str, source: int, dest: int, nbytes: int
) -> Mailbox:
    """Mailbox of a rank that has not started, as long as the sender is there."""
    timeout = _config.get_timeout("launch.start-timeout")
    deadline = monotonic() + timeout
    held = registry.waiting_room.enter(run_id, source, dest, nbytes)
    try:
        while (mailbox := registry.find(run_id, dest)) is None:
            if (left := deadline - monotonic()) <= 0:
                raise _not_started(run_id, dest, timeout)
            await held.wait(min(left, _SENDER_LOOK))
            if comm.closed():
                raise CommClosedError(f"rank {source} of run {run_id} has gone")
        return mailbox
    finally:
        registry.waiting_room.leave(held)


def withdraw(run_id: str, source: int) -> None:
    """Drop the messages of a rank that has ended for ranks that have not started."""
    registry.waiting_room.withdraw(run_id, source)


class CommPlugin(WorkerPlugin):
    """Installs the handler that takes messages on every worker, also on later ones."""

    name = "dask_ma-comm"
    # A second registration must not restart it under a run of another client.
    idempotent = True

    def setup(self, worker: Worker) -> None:
        """Add the handler.

        A worker without it answers None, as Dask has it.
        """
        self._door = Door(put_message, withdraw)
        worker.handlers[HANDLER] = self._door.receive
        if worker.nanny is not None:
            _end_quickly()

    def transition(self, key: Any, start: str, finish: str, **kwargs: Any) -> None:
        """End the rank of a task that nobody waits for any more."""
        if start in _RUNNING and finish == "released":
            parts = str(key).rsplit("-", 2)
            if parts[0].startswith(KEY_PREFIX) and len(parts) == 3:
                close_run(parts[1], "the task of a rank was cancelled")

    async def teardown(self, worker: Worker) -> None:
        """Take the handler away and end the ranks on this worker.

        Ranks that look for it are given the time to end after their round.
        """
        owner = worker.address
        deadline = monotonic() + _config.get_timeout("launch.leave-timeout")
        registry.leave(owner)
        while registry.n_heeding(owner) and monotonic() < deadline:
            await asyncio.sleep(_LEAVE_POLL)
        worker.handlers.pop(HANDLER, None)
        self._door.close(owner)
        registry.abort_owner(owner)
        end_lines(worker)


@cache
def _end_quickly() -> None:
    """Let the process of a worker end without looking for garbage."""
    # Python otherwise frees all objects of all modules one by one: 0.6 s of processor
    # time with scikit-learn, 1.7 s with torch, on a busy host more than the 4 s after
    # which a nanny kills the process. What other code has to do at the end is done.
    atexit.register(gc.freeze)


# Client ----------------------------------------------------------------------------


def ensure_plugin(client: Client) -> None:
    """Install the plugin on the cluster of `client` unless it is there."""
    client.register_plugin(CommPlugin())


def close_run(run_id: str, reason: str) -> int:
    """End a run in this process; meant for ``client.run``.

    Returns
    -------
    n_ranks : int
        Number of ranks that were open here.
    """
    logger.debug("closing run %s: %s", run_id, reason)
    return registry.abort(run_id, GroupClosedError(reason))


def open_ranks(run_id: str) -> list[int]:
    """Ranks of a run that have started in this process; meant for ``client.run``."""
    return [rank for run, rank in registry.open_ranks() if run == run_id]


def has_heeded(run_id: str) -> bool | None:
    """Whether ranks of a run end with a round where a worker wants to close.

    Meant for ``client.run``, also when they have ended: where rounds take milliseconds,
    all ranks may have ended before the client sees that the worker has gone.

    Returns
    -------
    heeded : bool or None
        None if no rank here has agreed on that with the others, as after a round.
    """
    return registry.has_heeded(run_id)


def is_aborted(run_id: str) -> bool:
    """Whether a run was ended in this process by :func:`close_run`."""
    return registry.is_aborted(run_id)
