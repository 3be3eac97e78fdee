"""The end of a connection at which the messages of another worker arrive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from distributed.comm import Comm
from distributed.core import Status
from distributed.protocol import pickle

from dask_ma.comm._packing import ASK, Header, from_message, withdrawn
from dask_ma.exceptions import FitFailedError, PeerLostError

logger = logging.getLogger("dask_ma.comm")

Take = Callable[[Comm, Header, Any], Awaitable[None] | None]
Withdraw = Callable[[str, int], object]
# Answers that nobody waits for are gathered. Where there are messages every few
# milliseconds, as in rounds, an answer to each two or three would cost as much as one.
_LAZY = 0.5  # seconds
_MOST_GATHERED = 64
_IN_A_ROW = 16  # messages after which the event loop sees to other things


class Door:
    """Where messages come into a worker.

    Parameters
    ----------
    take : callable
        ``take(comm, header, payload)`` puts a message where it belongs. If it returns
        something to wait for, that goes on while later messages are taken.
    withdraw : callable
        ``withdraw(run_id, source)`` drops messages of a rank that wait.
    """

    def __init__(self, take: Take, withdraw: Withdraw) -> None:
        self._take = take
        self._withdraw = withdraw
        self._owner: str | None = None

    async def receive(self, comm: Comm) -> Status:
        """Handler: take the messages of a connection until it is closed."""
        await take_messages(comm, self._take_in, self._withdraw)
        return Status.dont_reply

    def close(self, owner: str) -> None:
        """Tell those who send from now on that the worker of an address goes.

        The connections stay until it has gone: answers may be on their way.
        """
        self._owner = owner

    def _take_in(
        self, comm: Comm, header: Header, payload: Any
    ) -> Awaitable[None] | None:
        """Put a message where it belongs, while the worker is there."""
        if self._owner is not None:
            raise PeerLostError(f"worker {self._owner} is closing", [self._owner])
        return self._take(comm, header, payload)


async def take_messages(comm: Comm, take: Take, withdraw: Withdraw) -> None:
    """Take the messages of a connection until it is closed; see :class:`Door`."""
    # Each payload is unpacked by itself: if that fails, the others come nevertheless.
    comm.deserialize = False
    answers = Answers(comm)
    waiting: set[asyncio.Future[None]] = set()
    try:
        await comm.write(True)  # those that ask know now that somebody listens
        number = 0
        while True:
            # No name for the message: it would stay until the next one is there.
            coming = _take(comm, take, withdraw, await comm.read(), answers, number)
            if coming is not None:
                task = asyncio.ensure_future(coming)
                waiting.add(task)
                task.add_done_callback(waiting.discard)
                task.add_done_callback(partial(_tell, answers, number))
                del coming, task
            number += 1
            if number % _IN_A_ROW == 0:
                await asyncio.sleep(0)
    except Exception:
        if not comm.closed():
            logger.exception("closing a connection that cannot be read")
    finally:
        comm.abort()
        for unfinished in waiting:
            unfinished.cancel()
        answers.end()


def _take(
    comm: Comm,
    take: Take,
    withdraw: Withdraw,
    message: Any,
    answers: Answers,
    number: int,
) -> Awaitable[None] | None:
    """Take one message; return what is to be waited for, if it takes time."""
    if message == ASK:
        answers.accept(number, at_once=True)
        return None
    if (sender := withdrawn(message)) is not None:
        # Not now: what its messages wait in may not have begun.
        asyncio.get_running_loop().call_soon(withdraw, *sender)
        answers.accept(number, at_once=False)
        return None
    try:
        header, payload = _read(message)
        coming = take(comm, header, payload)
    except Exception as error:
        answers.refuse(number, error)
        return None
    if coming is None:
        answers.accept(number, at_once=header.is_awaited)
    return coming


def _read(message: Any) -> tuple[Header, Any]:
    """Header and payload of a message."""
    try:
        if isinstance(message, bytes):
            return from_message(message)
        return from_message(**message)
    except OSError as error:  # which would mean that a worker has gone
        raise FitFailedError(f"a message cannot be read: {error!r}") from error


def _tell(answers: Answers, number: int, task: asyncio.Future[None]) -> None:
    """Answer when a message has been taken."""
    if task.cancelled():  # there is nobody to tell
        return
    error = task.exception()
    if error is None:
        answers.accept(number, at_once=True)
    else:
        answers.refuse(number, error)


class Answers:
    """What becomes of the messages of a connection, told to the other end.

    Parameters
    ----------
    comm : Comm
        The connection.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._loop = asyncio.get_running_loop()
        self._taken: list[int] = []
        self._refused: list[tuple[int, bytes]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def accept(self, number: int, *, at_once: bool) -> None:
        """A message lies in its mailbox; say so at once or with others."""
        self._taken.append(number)
        is_due = at_once or len(self._taken) >= _MOST_GATHERED
        self._tell(0.0 if is_due else _LAZY)

    def refuse(self, number: int, error: BaseException) -> None:
        """A message was not taken."""
        try:
            pickled = pickle.dumps(error)
            pickle.loads(pickled)  # not all that can be sent can be read
        except Exception:
            pickled = pickle.dumps(RuntimeError(repr(error)))
        self._refused.append((number, pickled))
        self._tell(0.0)

    def end(self) -> None:
        """Nobody listens any more."""
        for pending in (self._timer, self._task):
            if pending is not None:
                pending.cancel()

    def _tell(self, delay: float) -> None:
        """Send what there is after a while, or now."""
        if not delay:
            self._start()
        elif self._timer is None:
            self._timer = self._loop.call_later(delay, self._start)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._send())

    async def _send(self) -> None:
        while self._taken or self._refused:
            answer = self._taken, self._refused
            self._taken, self._refused = [], []
            with suppress(OSError):  # it was closed
                await self._comm.write(answer)
