"""A process while a fit runs in it: threads of BLAS, freed memory, SIGTERM.

Dask's nannies start workers with an allocator that gives freed memory back at once
(``MALLOC_TRIM_THRESHOLD_``), which is right between tasks. A rank that needs the same
temporary arrays over and over would get each of them page by page from the kernel: on
arrays of a megabyte that took twice as long as the computation itself.

Batch systems announce the end of a job by SIGTERM: the round under way is saved before
the process ends. Only Python's main thread gets signals, so a fit elsewhere leaves
everything as it is, and so does one without checkpoints.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from threadpoolctl import ThreadpoolController

from dask_ma import _config
from dask_ma.data import allocator, spare_memory
from dask_ma.engine.recovery._states import forget_stop, want_stop
from dask_ma.exceptions import FitTerminatedError

# Options of mallopt in the C library of GNU, and the defaults of that library.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_DEFAULT_MMAP_THRESHOLD = 128 * 2**10
_LARGEST_MMAP_THRESHOLD = 32 * 2**20
_MOST = 2**31 - 1  # mallopt takes an int


# Were each rank to restore what it found, one that began second and ended last would
# restore the setting of the first.
class _Shared:
    """One setting for all ranks of a process, made by the first, undone by the last."""

    def __init__(self, make: Callable[[int], Callable[[], None]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._users = 0

    @contextmanager
    def hold(self, value: int) -> Iterator[None]:
        with self._lock:
            if self._users == 0:
                self._undo = self._make(value)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    self._undo()


@cache
def _controller() -> ThreadpoolController:
    """The thread pools of this process; finding them takes milliseconds, so once."""
    return ThreadpoolController()


def _has_threads(threads: int) -> bool:
    """Whether BLAS has that many threads already, as on most workers."""
    pools = _controller().lib_controllers
    return all(p.num_threads == threads for p in pools if p.user_api == "blas")


def _limit(threads: int) -> Callable[[], None]:
    """Limit the threads of BLAS; return what lifts the limit."""
    if _has_threads(threads):
        return lambda: None
    is_set, lift = threading.Event(), threading.Event()

    def keep() -> None:
        with _controller().limit(limits=threads, user_api="blas"):
            is_set.set()
            lift.wait()

    # threadpoolctl lets only the thread that set a limit change it, and no rank lives
    # as long as the limit.
    thread = threading.Thread(target=keep, name="dask_ma-blas-limit", daemon=True)
    thread.start()
    is_set.wait()

    def undo() -> None:
        lift.set()
        thread.join()

    return undo


# A nanny sets them for its workers in the process that starts these, too, whose
# allocator, having read its own when it began, would be set up here for good.
@cache
def _first_environment() -> dict[str, str]:
    """The environment variables with which this process has begun."""
    try:
        lines = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return dict(os.environ)
    # A process that has given itself a title, as workers do with setproctitle, has
    # written it, and zeros, over them.
    pairs = [os.fsdecode(line).partition("=") for line in lines if line]
    if not pairs or not all(equals for _, equals, _ in pairs):
        return dict(os.environ)
    return {name: value for name, _, value in pairs}


def _number(name: str, default: int) -> int | None:
    """Value of an environment variable; None if it is no number."""
    try:
        return int(_first_environment().get(name, default))
    except ValueError:
        return None


def _keep(n_bytes: int) -> Callable[[], None]:
    """Let the allocator keep freed memory; return what undoes it."""
    before = _number("MALLOC_TRIM_THRESHOLD_", -1)
    mapped = _number("MALLOC_MMAP_THRESHOLD_", _DEFAULT_MMAP_THRESHOLD)
    library = allocator()
    # Where the environment says nothing, the allocator adapts by itself.
    if library is None or before is None or before < 0 or mapped is None or not n_bytes:
        return lambda: None
    library.mallopt(_TRIM_THRESHOLD, min(n_bytes, _MOST))
    library.mallopt(_MMAP_THRESHOLD, min(n_bytes, _LARGEST_MMAP_THRESHOLD))

    def undo() -> None:
        library.mallopt(_TRIM_THRESHOLD, before)
        library.mallopt(_MMAP_THRESHOLD, mapped)
        library.malloc_trim(0)

    return undo


_blas, _memory = _Shared(_limit), _Shared(_keep)


@contextmanager
def limited_blas(threads: int) -> Iterator[None]:
    """Let BLAS use at most `threads` threads in this process meanwhile."""
    # Once more here, for libraries with a limit for each thread, and for a thread that
    # has set the limit of the process before.
    with _blas.hold(threads):
        if _has_threads(threads):
            yield
            return
        with _controller().limit(limits=threads, user_api="blas"):
            yield


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep up to ``dask-ma.memory.keep-freed`` of freed memory in this process."""
    with _memory.hold(spare_memory(_config.get_bytes("memory.keep-freed"))):
        yield


logger = logging.getLogger("dask_ma.engine")


# -- SIGTERM -------------------------------------------------------------------------


class Termination:
    """Whether this process has been asked to end.

    Parameters
    ----------
    name : str
        Name of the estimator.
    fit_id : str
        The fit.
    path : str or None
        Where it is saved; None leaves signals alone.

    Attributes
    ----------
    is_saved : bool
        Whether the fit is saved.
    is_wanted : bool
        Whether SIGTERM has come.
    """

    def __init__(self, name: str, fit_id: str, path: str | None) -> None:
        self.is_saved = path is not None
        self.is_wanted = False
        self._can_wait = False
        self._fit_id = fit_id
        self._message = (
            f"SIGTERM has ended the fit of {name}; the same call of fit goes on from "
            f"what is saved in {path}"
        )

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Ranks run, which save what they have before the fit ends."""
        self._can_wait = True
        try:
            yield
        finally:
            self._can_wait = False

    def error(self) -> FitTerminatedError:
        """What ends the program."""
        return FitTerminatedError(self._message)

    def on_signal(self, signum: int, frame: FrameType | None) -> None:
        """Have the fit end: after the round, or at once if it cannot or must not wait.

        Nothing is logged here: a signal may come in the middle of anything.
        """
        if self.is_wanted or not self._can_wait:
            self.is_wanted = True
            raise self.error()
        self.is_wanted = True
        want_stop(self._fit_id)

    def forget(self) -> None:
        """Ask nobody to stop any more."""
        forget_stop(self._fit_id)


@contextmanager
def terminable(termination: Termination) -> Iterator[None]:
    """Let SIGTERM end the body once a checkpoint has been written.

    The former handler gets the signal afterwards if the program has one of its own.

    Parameters
    ----------
    termination : Termination
        Learns of the signal.

    Raises
    ------
    FitTerminatedError
        After SIGTERM.
    """
    is_main = threading.current_thread() is threading.main_thread()
    former: Any = signal.getsignal(signal.SIGTERM) if is_main else None
    # None: a handler that was not set in Python. One that ignores is to stay, too.
    if not termination.is_saved or former is None or former is signal.SIG_IGN:
        yield
        return
    failure: BaseException | None = None
    signal.signal(signal.SIGTERM, termination.on_signal)
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        signal.signal(signal.SIGTERM, former)
        termination.forget()
        if termination.is_wanted:
            _end(termination, former, failure)


def _end(
    termination: Termination,
    former: Callable[..., Any] | int,
    failure: BaseException | None,
) -> None:
    """Hand the signal on, or end the program in an orderly way."""
    logger.warning("%s", termination.error())
    if callable(former):
        signal.raise_signal(signal.SIGTERM)  # may well raise
    raise termination.error() from failure
