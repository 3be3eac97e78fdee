"""Timeline of a rank: spans of time, kept while it runs and gathered at the end.

A rank is in one activity at a time. An activity may interrupt another, as the wait for
a message does within an evaluation: the outer one is cut in two around it, so the spans
of a rank never overlap. Only exchanges in the background, of the kind "exchange", go on
beside the others.
"""

from __future__ import annotations

import struct
from time import perf_counter, time
from types import TracebackType

import numpy as np

from dask_ma import _config

#: What a rank can be seen doing.
KINDS = ("compute", "evaluate", "aggregate", "send", "wait", "exchange")

#: Of the spans of all ranks. `start` and `stop` are in seconds; `peer` is the rank at
#: the other end, -1 where there is none; `nbytes` counts the bytes of the arrays.
TIMELINE_DTYPE = np.dtype(
    [
        ("rank", np.int32),
        ("kind", "U9"),
        ("start", np.float64),
        ("stop", np.float64),
        ("peer", np.int32),
        ("nbytes", np.int64),
    ]
)

_CODES = {kind: code for code, kind in enumerate(KINDS)}
_BESIDE = _CODES["exchange"]  # noted once it is over, by :meth:`Trace.add_beside`
_SPAN = struct.Struct("=ddqii")
_SPAN_DTYPE = np.dtype(
    [
        ("start", np.float64),
        ("stop", np.float64),
        ("nbytes", np.int64),
        ("peer", np.int32),
        ("kind", np.int32),
    ]
)
_NOBODY = -1
# Seconds. Between two messages an activity goes on for some microseconds, which would
# fill the memory for spans with what nobody can see.
_SLIVER = 2e-5


class Trace:
    """The most recent spans of one rank.

    Belongs to the thread of the rank; no other may use it.

    Parameters
    ----------
    max_spans : int, default=None
        How many spans are kept, the latest ones; 0 keeps none. None takes
        ``dask-ma.trace.max-spans``.

    Raises
    ------
    ValueError
        If `max_spans` is negative.

    Examples
    --------
    >>> from dask_ma.comm import Trace
    >>> trace = Trace()
    >>> with trace.span("compute"):
    ...     total = sum(range(1000))
    >>> trace.spans()["kind"].tolist()
    ['compute']
    """

    def __init__(self, max_spans: int | None = None) -> None:
        if max_spans is None:
            max_spans = _config.get_count("trace.max-spans")
        if max_spans < 0:
            raise ValueError(
                "the number of spans that a rank keeps must be at least 0, got "
                f"{max_spans} (dask-ma.trace.max-spans)"
            )
        self._max_spans = max_spans
        self._n_spans = 0
        # Memory of NumPy's zeros is not taken before it is written to.
        self._buffer = np.zeros(max_spans * _SPAN.size, dtype=np.uint8).data
        self._open: list[tuple[int, int]] = []  # kind and peer, the innermost last
        self._mark = 0.0  # since when the innermost one has been going on
        # Clocks of different hosts are compared by the time of day, which may jump;
        # within a rank only the monotonic clock counts.
        self._epoch = time() - perf_counter()

    @property
    def n_dropped(self) -> int:
        """Spans that later ones have overwritten."""
        return max(0, self._n_spans - self._max_spans)

    def span(self, kind: str) -> _Span:
        """Context manager that notes its body as an activity.

        Parameters
        ----------
        kind : {"compute", "evaluate", "aggregate", "send", "wait"}
            What goes on in it, but for what is noted in between.
        """
        code = _CODES.get(kind, _BESIDE)
        if code == _BESIDE:
            known = ", ".join(name for name in _CODES if name != "exchange")
            raise ValueError(f"kind must be one of {known}, got {kind!r}")
        # Not kept here: in a cycle the buffer, and more, would outlive the rank.
        return _Span(self, code)

    def add_beside(self, start: float, stop: float, nbytes: int) -> None:
        """Note an exchange in the background, whatever went on meanwhile.

        Parameters
        ----------
        start, stop : float
            Times of the monotonic clock.
        nbytes : int
            Bytes of the arrays exchanged.
        """
        self._put(_BESIDE, start, stop, _NOBODY, nbytes)

    def begin(self, kind: int, peer: int = _NOBODY) -> None:
        """Begin an activity within the present one; `kind` is a position in `KINDS`."""
        now = perf_counter()
        self._interrupt(now)
        self._open.append((kind, peer))
        self._mark = now

    def end(self, nbytes: int = 0) -> None:
        """End the innermost activity; `nbytes` counts the bytes of a message."""
        now = perf_counter()
        kind, peer = self._open.pop()
        self._put(kind, self._mark, now, peer, nbytes)
        self._mark = now

    def add(
        self, kind: int, start: float, stop: float, peer: int, nbytes: int = 0
    ) -> None:
        """Note an activity that is over and has contained no other one.

        Parameters
        ----------
        kind : int
            Position in `KINDS`.
        start, stop : float
            Times of the monotonic clock.
        peer : int
            Rank at the other end.
        nbytes : int, default=0
            Bytes of the arrays exchanged.
        """
        self._interrupt(start)
        self._mark = stop
        self._put(kind, start, stop, peer, nbytes)

    def spans(self) -> np.ndarray:
        """The spans so far, in order of time.

        Returns
        -------
        spans : ndarray of shape (n_spans,)
            Fields `start` and `stop`, in seconds of the time of day; `kind`, `peer` and
            `nbytes` as in `TIMELINE_DTYPE`.
        """
        return _decode(self.packed(), rank=0)[
            ["kind", "start", "stop", "peer", "nbytes"]
        ]

    def packed(self) -> np.ndarray:
        """The spans so far as bytes, for a message.

        Returns
        -------
        packed : ndarray of uint8 of shape (n_bytes,)
        """
        if self._max_spans == 0:
            return np.empty(0, dtype=np.uint8)
        spans = np.frombuffer(self._buffer, dtype=_SPAN_DTYPE)
        if self._n_spans <= self._max_spans:
            spans = spans[: self._n_spans].copy()
        else:
            spans = np.roll(spans, -(self._n_spans % self._max_spans))
        spans["start"] += self._epoch
        spans["stop"] += self._epoch
        return spans.view(np.uint8)

    def to_time_of_day(self, monotonic: float) -> float:
        """Time of day, in seconds since 1970, of a time of the monotonic clock."""
        return self._epoch + monotonic

    def _interrupt(self, now: float) -> None:
        """Note the part of the innermost activity that ends here, if it can be seen."""
        if self._open and now - self._mark >= _SLIVER:
            kind, peer = self._open[-1]
            self._put(kind, self._mark, now, peer, 0)

    def _put(
        self, kind: int, start: float, stop: float, peer: int, nbytes: int
    ) -> None:
        if stop <= start or not self._max_spans:
            return
        offset = self._n_spans % self._max_spans * _SPAN.size
        _SPAN.pack_into(self._buffer, offset, start, stop, nbytes, peer, kind)
        self._n_spans += 1


class _Span:
    """An activity as long as its body; without a state, so that it can be nested."""

    __slots__ = ("_kind", "_trace")

    def __init__(self, trace: Trace, kind: int) -> None:
        self._trace = trace
        self._kind = kind

    def __enter__(self) -> None:
        self._trace.begin(self._kind)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._trace.end()


SEND, WAIT = _CODES["send"], _CODES["wait"]


def merge_packed(packed: list[np.ndarray], origin: float = 0.0) -> np.ndarray:
    """The spans of all ranks in one array.

    Parameters
    ----------
    packed : list of ndarray
        What :meth:`Trace.packed` gave on each rank.
    origin : float, default=0.0
        Time of day that the times are to be counted from.

    Returns
    -------
    timeline : ndarray of `TIMELINE_DTYPE` of shape (n_spans,)
        Sorted by start, then by rank.
    """
    parts = [_decode(part, rank) for rank, part in enumerate(packed)]
    timeline = np.concatenate(parts)
    timeline["start"] -= origin
    timeline["stop"] -= origin
    return timeline[np.lexsort((timeline["rank"], timeline["start"]))]


def _decode(packed: np.ndarray, rank: int) -> np.ndarray:
    """Spans of one rank, from bytes."""
    spans = np.ascontiguousarray(packed).view(_SPAN_DTYPE)
    timeline = np.empty(len(spans), dtype=TIMELINE_DTYPE)
    timeline["rank"] = rank
    timeline["kind"] = np.array(KINDS)[spans["kind"]]
    for name in ("start", "stop", "peer", "nbytes"):
        timeline[name] = spans[name]
    return timeline
