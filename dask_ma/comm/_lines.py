"""Connections by which the ranks of a worker send to those of another one.

There is one from each worker to each other one that its ranks write to, which stays for
later runs. Messages go into it one after the other, without waiting for answers: those
come by themselves, for many short messages at once. So a short message takes one way
through two event loops, and neither a task nor a reply of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from distributed.comm import Comm, CommClosedError, connect
from distributed.protocol import pickle

from dask_ma import _config
from dask_ma.comm._packing import ASK, withdrawal
from dask_ma.exceptions import CommTimeoutError, FitFailedError, GroupClosedError

if TYPE_CHECKING:
    from distributed import Worker

#: Name of the handler that takes the messages of a connection.
HANDLER = "dask_ma_receive"
_FIRST_PAUSE = 0.01  # seconds after which a worker without the handler is asked again
_LONGEST_PAUSE = 0.5
_MOST_OPEN = 512  # connections of a worker, as many as Dask keeps
_IN_A_ROW = 16  # messages after which the event loop sees to other things
_AT_REST = 5.0  # seconds without a message until a connection that may close does


class Pace(Protocol):
    """What keeps a worker from sending faster than it may."""

    async def wait(self, nbytes: int) -> None:
        """Wait as long as a message of some bytes takes."""


class Route:
    """The way from one rank to another one.

    Until the first message has been taken, the next ones are put aside: a rank that has
    not started keeps one message of each other one.

    Parameters
    ----------
    line : Line
        Connection to the worker of the other rank.
    dest : int
        The other rank.
    explain : callable
        ``explain(error)`` hears what has gone wrong on the way, and returns what the
        rank that sends is to be told.
    """

    def __init__(
        self, line: Line, dest: int, explain: Callable[[Exception], BaseException]
    ) -> None:
        self.line = line
        self.dest = dest
        self._explain = explain
        self._error: BaseException | None = None
        self._aside: list[Message] | None = None
        self.is_open = False

    def ask(self) -> None:
        """Ask for the answers to all messages before this one."""
        self._signal(ASK)

    def leave(self, run_id: str, source: int) -> None:
        """The rank that sends has ended: what has not been taken is void."""
        self.line.call(self._leave, run_id, source)

    # Event loop of the worker --------------------------------------------------------

    def may_go(self, message: Message) -> bool:
        """Whether a message is to be sent now, and not dropped or put aside."""
        if message.future.cancelled():  # the rank has gone
            return False
        if self.end_after_failure(message):
            return False
        if self.is_open:
            return True
        if self._aside is None:
            self._aside = []
            return True
        self._aside.append(message)
        return False

    def end_after_failure(self, message: Message) -> bool:
        """Whether one before a message has been lost; then it is not to be sent."""
        if self._error is None:
            return False
        message.end(self._error)
        return True

    def open(self) -> None:
        """A message has been taken: those that were put aside may go."""
        if not self.is_open:
            self.is_open = True
            self.line.put_first(self._aside or [])
            self._aside = None

    def skip(self) -> None:
        """A message was dropped before it was sent: another one may be the first."""
        if not self.is_open and self._error is None:
            aside, self._aside = self._aside or [], None
            self.line.put_first(aside)

    def _leave(self, run_id: str, source: int) -> None:
        """Withdraw the message that has not been taken; no other one is sent."""
        if not self.is_open and self.line.is_answer_due(self):
            self._signal(withdrawal(run_id, source))
        if self._error is None:
            self._error = GroupClosedError("the rank that sends has ended")

    def _signal(self, content: Any) -> None:
        """Send what is no harm if it does not arrive."""
        self.line.put(Message(Route(self.line, self.dest, _as_it_is), content, 0))

    def fail(self, message: Message, error: Exception) -> None:
        """A message has not been taken; no other one is sent."""
        if self._error is None:
            self._error = self._explain(error)
        for failed in (message, *(self._aside or [])):
            failed.end(self._error)
        self._aside = []


def _as_it_is(error: Exception) -> Exception:
    """What nobody is to be told of."""
    return error


@dataclass(eq=False, slots=True)
class Message:
    """A message under way.

    Attributes
    ----------
    route : Route
    content : object
        As Dask's connections take it; None when it has been sent or has failed.
    nbytes : int
        Size of its arrays.
    size : int
        Bytes of all of it.
    is_lent : bool
        Whether its arrays are those of the rank.
    is_awaited : bool
        Whether the other end is to answer at once.
    pace : Pace or None
        Of the worker.
    future : Future
        Done when the message lies in its mailbox.
    """

    route: Route
    content: Any
    nbytes: int
    size: int = 0
    is_lent: bool = False
    is_awaited: bool = True
    pace: Pace | None = None
    future: Future[None] = field(default_factory=Future)

    def end(self, error: BaseException | None = None) -> None:
        """Tell the rank that sends, unless it has gone, how the message fared."""
        self.content = None
        with suppress(InvalidStateError):
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)


class Line:
    """A connection to another worker, made when it is needed.

    Parameters
    ----------
    worker : Worker
        The one at this end.
    address : str
        Of the one at the other end.
    """

    def __init__(self, worker: Worker, address: str) -> None:
        self._address = address
        self._connection_args = worker.connection_args
        self._loop = worker.loop.asyncio_loop
        self._lock = threading.Lock()
        self._outbox: deque[Message] = deque()
        self._is_awake = False
        self._is_retired = False
        self._timer: asyncio.TimerHandle | None = None
        self._comm: Comm | None = None
        self._n_sent = 0  # by this connection
        self._unanswered: dict[int, Message] = {}
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None

    # Any thread --------------------------------------------------------------------

    def put(self, message: Message) -> None:
        """Send a message after those before it."""
        with self._lock:
            self._outbox.append(message)
        self._rouse()

    def put_first(self, messages: list[Message]) -> None:
        """Send messages before those that wait."""
        with self._lock:
            self._outbox.extendleft(reversed(messages))
        self._rouse()

    def retire(self) -> None:
        """Have the connection closed whenever it has not been used for a while."""
        self.call(self._retire)

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Have the event loop call a function, unless it has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    def _rouse(self) -> None:
        """Have the event loop send what is there."""
        with self._lock:
            was_awake, self._is_awake = self._is_awake, True
        if was_awake:
            return
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # it has ended
            self._is_awake = False
            raise

    # Event loop of the worker --------------------------------------------------------

    def end(self, error: Exception) -> None:
        """Close the connection; messages that are under way fail."""
        if self._sender is not None:
            self._sender.cancel()
        while (message := self._next()) is not None:
            message.route.fail(message, error)
        self._drop(error)

    def is_answer_due(self, route: Route) -> bool:
        """Whether a message of a route has been sent and not been answered."""
        return any(message.route is route for message in self._unanswered.values())

    def _wake(self) -> None:
        self._sender = self._loop.create_task(self._send_all())

    def _retire(self) -> None:
        self._is_retired = True
        self._rest_if_retired()

    def _rest_if_retired(self) -> None:
        """Look in a while whether a connection that nobody asks for is still used."""
        if self._is_retired and self._comm is not None and self._timer is None:
            self._timer = self._loop.call_later(_AT_REST, self._rest, self._n_sent)

    def _rest(self, n_sent: int) -> None:
        """Close the connection until it is needed, if nothing has been sent since."""
        self._timer = None
        with self._lock:
            is_idle = not self._is_awake and not self._unanswered
        if is_idle and self._n_sent == n_sent:
            self._drop(CommClosedError("the connection was not used"))
        else:
            self._rest_if_retired()

    def _next(self) -> Message | None:
        """The message that is to be sent next; None to sleep until there is one."""
        with self._lock:
            if self._outbox:
                return self._outbox.popleft()
            self._is_awake = False
            return None

    async def _send_all(self) -> None:
        """Send what is there."""
        for number in itertools.count(1):
            if number % _IN_A_ROW == 0:
                # With no message in hand: those put aside may come before it meanwhile.
                await asyncio.sleep(0)
            if (message := self._next()) is None:
                self._rest_if_retired()
                return
            if message.route.may_go(message):
                try:
                    await self._send(message)
                except asyncio.CancelledError:
                    message.route.fail(message, _closing())
                    raise
                except Exception as error:  # the rank raises it
                    message.route.fail(message, error)

    async def _send(self, message: Message) -> None:
        """Send one message."""
        if message.pace is not None:
            await message.pace.wait(message.nbytes)
        comm = self._comm
        if not message.future.cancelled() and (comm is None or comm.closed()):
            comm = await self._connect()
        if comm is None or message.future.cancelled():  # the rank has gone meanwhile
            message.route.skip()
            return
        if message.route.end_after_failure(message):
            return
        number = self._n_sent
        # The answer may come before the call returns.
        self._unanswered[number] = message
        self._n_sent += 1
        try:
            await comm.write(message.content, on_error="raise")
        except Exception:
            if not comm.closed():  # it cannot be packed, and none of it was sent
                self._n_sent = number
                self._unanswered.pop(number, None)
            raise
        message.content = None  # the answer may take a while

    async def _connect(self) -> Comm:
        """Connect to the worker, and wait until it takes messages."""
        self._drop(CommClosedError(f"the connection to {self._address} was closed"))
        try:
            comm = await connect(self._address, **self._connection_args)
        except OSError as error:
            self._fail_waiting(error)
            raise
        try:
            await self._ask(comm)
        except BaseException as error:
            comm.abort()
            if isinstance(error, Exception):
                self._fail_waiting(error)
            raise
        self._comm, self._n_sent = comm, 0
        self._listener = self._loop.create_task(self._listen(comm))
        return comm

    def _fail_waiting(self, error: Exception) -> None:
        """Fail what waits for a worker that cannot be reached, and not one by one."""
        with self._lock:
            waiting = list(self._outbox)
            self._outbox.clear()
        for message in waiting:
            if not message.future.cancelled():
                message.route.fail(message, error)

    async def _ask(self, comm: Comm) -> None:
        """Ask a worker to take messages until it does."""
        # A scheduler says that the plugin is installed while it is still on its way to
        # some workers for another run. Those answer None.
        timeout = _config.get_timeout("launch.start-timeout")
        deadline = monotonic() + timeout
        pause = _FIRST_PAUSE
        while True:
            await comm.write({"op": HANDLER, "reply": True})
            if await comm.read():
                return
            if monotonic() >= deadline:
                raise CommTimeoutError(
                    f"worker {self._address} has taken no messages for {timeout:g} s "
                    "(dask-ma.launch.start-timeout): the plugin dask_ma-comm is not "
                    "there"
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _listen(self, comm: Comm) -> None:
        """Hear how messages have fared."""
        try:
            while True:
                # Nothing here names a message: it would stay until the next answer.
                self._hear(await comm.read())
        except Exception as error:
            if self._comm is comm:
                self._drop(
                    error
                    if isinstance(error, OSError)
                    else CommClosedError(f"the connection was closed: {error!r}")
                )

    def _hear(self, answer: tuple[list[int], list[tuple[int, bytes]]]) -> None:
        """Pass on how messages have fared."""
        taken, refused = answer
        for number in taken:
            message = self._unanswered.pop(number)
            message.route.open()
            message.end()
        for number, error in refused:
            message = self._unanswered.pop(number)
            message.route.fail(message, _loaded(error))
        self._rest_if_retired()

    def _drop(self, error: Exception) -> None:
        """Forget the connection; what has not been answered fails."""
        if self._comm is not None:
            self._comm.abort()
        if self._listener is not None and self._listener is not asyncio.current_task():
            self._listener.cancel()
        self._comm = self._listener = None
        unanswered, self._unanswered = self._unanswered, {}
        for message in unanswered.values():
            message.route.fail(message, error)


def _closing() -> GroupClosedError:
    """Why messages of a worker that is closing go nowhere: their ends are there."""
    return GroupClosedError("the worker of the rank that sends is closing")


def _loaded(pickled: bytes) -> Exception:
    """The error by which the other end has refused a message."""
    try:
        error = pickle.loads(pickled)
    except Exception as error_here:
        return FitFailedError(f"a message was refused, unreadably: {error_here!r}")
    return error if isinstance(error, Exception) else FitFailedError(repr(error))


@dataclass
class _Lines:
    """Connections of a worker: some by address, and all of which use is made."""

    # Those that were asked for last are at the end.
    recent: dict[str, Line] = field(default_factory=dict)
    every: WeakSet[Line] = field(default_factory=WeakSet)


_lines: WeakKeyDictionary[Worker, _Lines] = WeakKeyDictionary()
_lock = threading.Lock()


def line_of(worker: Worker, address: str) -> Line:
    """The connection by which the ranks on a worker send to those on another one."""
    with _lock:
        lines = _lines.setdefault(worker, _Lines())
        line = lines.recent.pop(address, None) or Line(worker, address)
        lines.recent[address] = line
        lines.every.add(line)
        # Workers come and go, and nobody says which of them will not be written to.
        while len(lines.recent) > _MOST_OPEN:
            lines.recent.pop(next(iter(lines.recent))).retire()
    return line


def end_lines(worker: Worker) -> None:
    """End the connections of a worker that is closing; called by its event loop."""
    with _lock:
        lines = _lines.pop(worker, _Lines())
        ending = list(lines.every)
    for line in ending:
        line.end(_closing())
