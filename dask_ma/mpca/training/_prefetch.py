"""Batches that a thread makes ready while the rank makes steps."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from dask_ma.mpca.strategies._base import Batch
from dask_ma.mpca.training._batches import Sampler

_POLL = 0.1  # seconds between looks whether the rank, or the thread, has ended
_PATIENCE = 5.0  # seconds that a batch under way has to be done when a fit ends


class Prefetcher:
    """Gives the batches of a sampler, some of which are ready before they are wanted.

    Parameters
    ----------
    sampler : Sampler
        It belongs to the thread from the first batch on.
    prepare : callable
        Makes the rows of a batch ready.
    depth : int
        Most batches that are ready and wait, at least 1.
    """

    def __init__(
        self, sampler: Sampler, prepare: Callable[[Any], Any], depth: int
    ) -> None:
        self._sampler, self._prepare = sampler, prepare
        self._ready: queue.Queue[Any] = queue.Queue(depth)
        self._is_over = threading.Event()
        self._at = sampler.position()
        self._thread: threading.Thread | None = None

    def next(self) -> Batch:
        """The next batch; raises what the thread has run into."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="dask_ma-prefetch", daemon=True
            )
            self._thread.start()
        batch, self._at, error = self._take()
        if error is not None:
            raise error
        found: Batch = batch
        return found

    def _take(self) -> Any:
        """What the thread hands over, as long as it is there."""
        while True:
            is_alive = self._thread is not None and self._thread.is_alive()
            try:
                return self._ready.get(timeout=_POLL)
            except queue.Empty:
                if not is_alive:
                    raise RuntimeError(
                        "the thread that reads batches is gone"
                    ) from None

    def state_dict(self) -> dict[str, Any]:
        """State of the sampler after the last batch that was given out."""
        return self._sampler.state_dict(self._at)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state, before the first batch."""
        self._sampler.load_state_dict(state)
        self._at = self._sampler.position()

    def close(self) -> None:
        """End the thread; it may still make the batch ready that it is at."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(_PATIENCE)  # a data set of the user's may hang

    def _work(self) -> None:
        """Make batches ready until nobody wants any."""
        while not self._is_over.is_set():
            item: tuple[Any, Any, BaseException | None]
            try:
                batch = self._sampler.next()
                batch = batch._replace(X=self._prepare(batch.X))
                item = batch, self._sampler.position(), None
            except BaseException as error:  # raised again by the thread of the rank
                item = None, None, error
            self._hand_over(item)
            if item[2] is not None:
                return

    def _hand_over(self, item: Any) -> None:
        """Put a batch where the rank finds it, once there is room."""
        while not self._is_over.is_set():
            try:
                return self._ready.put(item, timeout=_POLL)
            except queue.Full:
                continue
