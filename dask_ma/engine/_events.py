"""Records from rank 0 to the client while a fit runs, and the client's answers.

Records go over the scheduler's event log, under two topics. Everybody may read those of
`TOPIC`. If the client follows the fit, they also go to `LINK_TOPIC`; after each one
rank 0 then waits for the answer of the client, so a callback sees the model of that
very round and stops the fit there. A client has one handler per topic, and that of
`TOPIC` is left to the user.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from dask_ma import _config
from dask_ma.engine._context import Model, Record
from dask_ma.exceptions import CommTimeoutError, GroupClosedError

if TYPE_CHECKING:
    from distributed import Client, Worker

TOPIC = "dask_ma"
LINK_TOPIC = "dask_ma-followed"
_LOOK = 1.0  # seconds between two looks whether the ranks are ended


# Worker ----------------------------------------------------------------------------


class EventLink:
    """Rank 0's end of the line to the client.

    Parameters
    ----------
    run_id : str
        Name of the run.
    worker : Worker
        Worker of rank 0.
    check : callable
        Raises once the ranks are ended, as where the client has gone.
    """

    def __init__(self, run_id: str, worker: Worker, check: Callable[[], None]) -> None:
        self._run_id = run_id
        self._worker = worker
        self._check = check
        self._answers: queue.SimpleQueue[bool | None] = queue.SimpleQueue()
        self._fetch: Callable[[], Model] = dict

    def __enter__(self) -> EventLink:
        _links[self._run_id] = self
        return self

    def __exit__(self, *exc_info: object) -> None:
        del _links[self._run_id]

    def __call__(self, record: Record, fetch: Callable[[], Model]) -> bool:
        """Send a record and wait for the answer: whether to stop."""
        self._fetch = fetch
        event = {"run": self._run_id, "record": record}
        self._worker.log_event(LINK_TOPIC, event)
        stop = self._wait()
        if stop is None:
            raise GroupClosedError(f"run {self._run_id} was ended by its client")
        return stop

    def _wait(self) -> bool | None:
        """The client's answer, as long as there may be one."""
        timeout = _config.get_timeout("comm.timeout")
        deadline = monotonic() + timeout
        while (left := deadline - monotonic()) > 0:
            try:
                return self._answers.get(timeout=min(left, _LOOK))
            except queue.Empty:
                self._check()
        raise CommTimeoutError(
            f"the client did not answer a record within {timeout:g} s "
            "(dask-ma.comm.timeout)"
        )

    def answer(self, stop: bool | None) -> None:
        """Pass on the client's answer; None ends the run."""
        self._answers.put(stop)

    def model(self) -> Model:
        """The model that belongs to the last record."""
        return self._fetch()


_links: dict[str, EventLink] = {}


class RecordLog:
    """Logs what the evaluated rounds of a fit have brought, for whoever wants to know.

    Nobody is waited for. Records that come faster than
    ``dask-ma.trace.event-interval`` are left out, but for the last one.

    Parameters
    ----------
    name : str
        Name of the estimator.
    run_id : str
        Name of the run.
    worker : Worker
        Worker of rank 0.
    """

    def __init__(self, name: str, run_id: str, worker: Worker) -> None:
        self._event = {"estimator": name, "run": run_id}
        self._worker = worker
        self._interval = _config.get_timeout("trace.event-interval")
        self._next = -math.inf
        self._left_out: Record | None = None

    def __enter__(self) -> RecordLog:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._left_out is not None:
            self._send(self._left_out)

    def __call__(self, record: Record) -> None:
        """Log a record, now or at the end, if its objective has been worked out."""
        if math.isnan(record.get("objective", math.nan)):
            return
        if monotonic() < self._next:
            self._left_out = record
        else:
            self._send(record)

    def _send(self, record: Record) -> None:
        self._worker.log_event(TOPIC, {**self._event, "record": record})
        self._left_out = None
        self._next = monotonic() + self._interval


def answer(run_id: str, stop: bool | None) -> None:
    """Answer the last record of a run; meant for ``client.run``."""
    if (link := _links.get(run_id)) is not None:
        link.answer(stop)


def fetch_model(run_id: str) -> Model | None:
    """Model of the last record of a run, None once it is over; for ``client.run``."""
    link = _links.get(run_id)
    return None if link is None else link.model()


# Client ----------------------------------------------------------------------------


class Subscriptions:
    """Handlers of the runs that a client follows, behind one topic.

    A client has one handler per topic, and fits may run in several threads at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: dict[str, tuple[Client, Callable[[Record], None]]] = {}

    def add(
        self, client: Client, run_id: str, handler: Callable[[Record], None]
    ) -> None:
        """Have the records of a run passed to `handler`, on the client's event loop."""
        with self._lock:
            first = all(other is not client for other, _ in self._handlers.values())
            self._handlers[run_id] = client, handler
            if first:
                client.subscribe_topic(LINK_TOPIC, self._dispatch)

    def remove(self, client: Client, run_id: str) -> None:
        """Stop following a run."""
        with self._lock:
            self._handlers.pop(run_id, None)
            last = all(other is not client for other, _ in self._handlers.values())
            if last and client.status == "running":
                client.unsubscribe_topic(LINK_TOPIC)

    def _dispatch(self, event: tuple[float, Any]) -> None:
        """Hand an event to the run that it belongs to."""
        _, message = event
        with self._lock:
            _, handler = self._handlers.get(message["run"], (None, None))
        if handler is not None:
            handler(message["record"])


subscriptions = Subscriptions()
