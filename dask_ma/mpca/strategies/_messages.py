"""Messages between ranks that exchange in the background."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time
from typing import Any

import numpy as np

from dask_ma.comm import Group

_TAG = ("mpca", "message")


class CoalescedMessages:
    """Several things to a rank in one message; from all ranks, in turn.

    A message costs the interpreter far more time than its bytes where models are small,
    so what has come up for a rank since the last message goes to it together.

    Parameters
    ----------
    group : Group
        The rank.
    kinds : tuple of str
        What there is to send. Things of a kind arrive in the order of their sending.
    """

    def __init__(self, group: Group, kinds: tuple[str, ...]) -> None:
        self._group = group
        self._ranks = range(group.size)
        self._out: list[list[tuple[str, Any]]] = [[] for _ in self._ranks]
        self._in = {kind: [deque[Any]() for _ in self._ranks] for kind in kinds}

    def put(self, kind: str, payload: Any, rank: int) -> None:
        """Have something sent; its arrays must not change any more."""
        if rank == self._group.rank:
            self._in[kind][rank].append(payload)
        else:
            self._out[rank].append((kind, payload))

    def send(self) -> None:
        """Send what has been put, from the next rank on, so that all get some."""
        size = len(self._ranks)
        for offset in range(1, size):
            rank = (self._group.rank + offset) % size
            if self._out[rank]:
                self._group.push(self._out[rank], rank, _TAG, copy=False)
                self._out[rank] = []

    def look(self) -> None:
        """Take in what has arrived."""
        for rank in self._ranks:
            if rank == self._group.rank:
                continue
            arrived = True
            while arrived:
                arrived, message = self._group.poll(rank, _TAG)
                for kind, payload in message or ():
                    self._in[kind][rank].append(payload)

    def take(self, kind: str) -> list[Any] | None:
        """The next thing of a kind from every rank, None if one is missing."""
        queues = self._in[kind]
        if not all(queues):
            return None
        return [queue.popleft() for queue in queues]

    def wait(self) -> None:
        """Wait until something has arrived from another rank."""
        others = [(rank, _TAG) for rank in self._ranks if rank != self._group.rank]
        self._group.wait_any(others)


class ExchangeBudget:
    """Keeps what exchanges cost to a part of the time that a rank computes.

    On a fast network exchanges would follow each other with every step, and the
    interpreter would spend its time on messages.

    Parameters
    ----------
    part : float
        Processor time of the exchanges by time of computing, above 0.
    group : Group
        The rank.

    Raises
    ------
    ValueError
        If `part` is not above 0.
    """

    _MEMORY = 0.9  # of what was before an exchange, after it

    def __init__(self, part: float, group: Group) -> None:
        if not part > 0:
            raise ValueError(
                "the time that exchanges may take must be above 0, got "
                f"{part} (dask-ma.mpca.exchange-share)"
            )
        self._part = part
        self._group = group
        self._n_local = len(group.local_ranks)
        self._own = 0.0  # processor time of the rank's thread
        self._begun = np.array([0.0, self._carried()])  # computing and exchange

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Count the processor time of this thread inside."""
        start = thread_time()
        try:
            yield
        finally:
            self._own += thread_time() - start

    def is_due(self, computed: float) -> bool:
        """Whether another exchange can be afforded.

        Parameters
        ----------
        computed : float
            Seconds that the rank has computed since the start.
        """
        computing, exchange = self._now(computed) - self._begun
        return bool(exchange <= self._part * computing)

    def note_exchange(self, computed: float) -> None:
        """Count an exchange; what lies longer back counts for less and less."""
        self._begun += (1 - self._MEMORY) * (self._now(computed) - self._begun)

    def _now(self, computed: float) -> np.ndarray:
        return np.array([computed, self._own + self._carried()])

    def _carried(self) -> float:
        """This rank's part of the processor time that messages take."""
        return self._group.carrier_time() / self._n_local
