"""SIGTERM in a fit: the round under way is saved before the process ends.

Batch systems announce the end of a job in this way. Only Python's main thread gets
signals, so a fit elsewhere leaves everything as it is, and so does one without
checkpoints.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from dask_ma.engine.recovery._states import forget_stop, want_stop
from dask_ma.exceptions import FitTerminatedError

logger = logging.getLogger("dask_ma.engine")


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
