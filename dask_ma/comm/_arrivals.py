"""The end of a connection at which the messages of another worker arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from distributed.comm import Comm
from distributed.protocol import pickle

from dask_ma.comm._packing import ASK, Header, from_message

Take = Callable[[Comm, Header, Any], Awaitable[None] | None]
# Answers that nobody waits for are gathered.
_LAZY = 0.02  # seconds
_MOST_GATHERED = 64


async def take_messages(comm: Comm, take: Take) -> None:
    """Take the messages of a connection until it is closed.

    Parameters
    ----------
    comm : Comm
        The connection.
    take : callable
        ``take(comm, header, payload)`` puts a message where it belongs. If it returns
        something to wait for, that goes on while later messages are taken.
    """
    answers = Answers(comm)
    waiting: set[asyncio.Task[None]] = set()
    await comm.write(True)  # those that ask know now that somebody listens
    number = 0
    try:
        with suppress(OSError):  # it was closed
            while True:
                message = await comm.read()
                task = _take(comm, take, message, answers, number)
                if task is not None:
                    waiting.add(task)
                    task.add_done_callback(waiting.discard)
                number += 1
    finally:
        for task in waiting:
            task.cancel()
        answers.end()


def _take(
    comm: Comm, take: Take, message: Any, answers: Answers, number: int
) -> asyncio.Task[None] | None:
    """Take one message; return the task that does, if it takes time."""
    if message == ASK:
        answers.accept(number, at_once=True)
        return None
    is_awaited = True
    try:
        header, payload = (
            from_message(message)
            if isinstance(message, bytes)
            else from_message(**message)
        )
        is_awaited = header.is_awaited
        coming = take(comm, header, payload)
    except Exception as error:
        answers.refuse(number, error)
        return None
    if coming is None:
        answers.accept(number, at_once=is_awaited)
        return None
    return asyncio.ensure_future(_wait_for(coming, answers, number))


async def _wait_for(coming: Awaitable[None], answers: Answers, number: int) -> None:
    """Answer when a message has been taken."""
    try:
        await coming
    except Exception as error:
        answers.refuse(number, error)
    else:
        answers.accept(number, at_once=True)


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

    def refuse(self, number: int, error: Exception) -> None:
        """A message was not taken."""
        try:
            pickled = pickle.dumps(error)
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
