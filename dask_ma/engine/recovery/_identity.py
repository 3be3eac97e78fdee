"""Identity of a fit, the fits of this process, and what launches of one share."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from typing import Any

import psutil
from distributed import Future

from dask_ma import _config

_DIGITS = 8  # of each checksum in the name of a series
_NAME = re.compile(rf"(.+?)-([0-9a-f]{{{_DIGITS}}})-([0-9a-f]{{{_DIGITS}}})-.+")
_MOST_ENDED = 10_000  # fits of this process that are remembered
_PROCESS = ("host", "pid", "started")  # what tells a process from others
_ABOUT = 0.1  # seconds by which two times of one start may differ
_ON_MISMATCH = ("restart", "raise")


@dataclass(frozen=True)
class Identity:
    """What tells a fit from others, but for its data.

    Parameters
    ----------
    name : str
        Name of the estimator.
    parameters : dict of str to str
        Parameters that make it another fit if they change, as text.
    options : dict
        Parameters that may change before the fit goes on: numbers, text or None.
    prolongs : str, default="max_iter"
        Option that says how many rounds there may be. Up to its end a fit goes the same
        way as one of which it allows more.
    step : int, default=1
        The former holds for multiples of this number.
    is_random : bool, default=False
        Whether a second fit, with the same data, is meant to have another result.
    """

    name: str
    parameters: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    prolongs: str = "max_iter"
    step: int = 1
    is_random: bool = False

    def series(self, data: dict[str, Any]) -> str:
        """Name for the checkpoints of this fit with some data."""
        parts = [self.name, self.parameters], data, self.options
        return "-".join([self.name, *map(_checksum, parts)])

    def allows_more(self, options: dict[str, Any]) -> bool:
        """Whether this fit goes the way of one with other options, only further."""
        free = {self.prolongs, "n_ranks"}
        if _without(options, free) != _without(self.options, free):
            return False
        theirs, ours = options.get(self.prolongs), self.options.get(self.prolongs)
        if not isinstance(theirs, int) or not isinstance(ours, int):
            return False
        return theirs < ours and theirs % self.step == 0


def parts_of(series: str) -> tuple[str, str, str] | None:
    """Estimator, parameters and data in the name of a series; None for other names."""
    found = _NAME.fullmatch(series)
    return None if found is None else (found[1], found[2], found[3])


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """What is not the same in two descriptions, in words."""
    return [
        f"{key} is {_short(theirs.get(key))} in the checkpoint and "
        f"{_short(ours.get(key))} here"
        for key in sorted({*ours, *theirs})
        if ours.get(key) != theirs.get(key)
    ]


def _short(value: Any) -> str:
    """A value for a message."""
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _without(options: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def _checksum(content: Any) -> str:
    """Checksum of what JSON knows."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


# -- This process --------------------------------------------------------------------


@dataclass(frozen=True)
class Session:
    """What the process of the client knows of its fits.

    Parameters
    ----------
    writer : dict
        The process: its host, its id, when it started, and how many launches it had
        made when this was noted.
    running : frozenset of str
        Fits under way.
    ended : frozenset of str
        Where the checkpoints of fits lie that have come to their end here.
    """

    writer: dict[str, Any] = field(default_factory=dict)
    running: frozenset[str] = frozenset()
    ended: frozenset[str] = frozenset()

    def is_under_way(self, writer: dict[str, Any], fit_id: str) -> bool:
        """Whether a fit of this process is under way, or its process is alive."""
        if any(writer.get(key) != self.writer.get(key) for key in _PROCESS):
            return is_alive(writer)
        launch = writer.get("launch")
        is_later = isinstance(launch, int) and launch > self.writer.get("launch", 0)
        return is_later or fit_id in self.running


_lock = threading.Lock()
_running: set[str] = set()
_ended: OrderedDict[str, None] = OrderedDict()
_launches = count(1)


@contextmanager
def counted(fit_id: str) -> Iterator[None]:
    """Count a fit among those that are under way."""
    with _lock:
        _running.add(fit_id)
    try:
        yield
    finally:
        with _lock:
            _running.discard(fit_id)


def note_ended(place: str | None) -> None:
    """Remember where the checkpoints of a fit lie that has come to its end."""
    if place is None:
        return
    with _lock:
        _ended[place] = None
        _ended.move_to_end(place)
        while len(_ended) > _MOST_ENDED:
            _ended.popitem(last=False)


def this_session(path: str, name: str) -> Session:
    """What there is to know for a fit of an estimator with checkpoints in `path`."""
    start = f"{path}/{name}-"
    with _lock:
        ended = frozenset(place for place in _ended if place.startswith(start))
        writer = {**_this_process(), "launch": next(_launches)}
        return Session(writer, frozenset(_running), ended)


def is_alive(writer: dict[str, Any]) -> bool:
    """Whether a process is on this host and has not ended."""
    if writer.get("host") != socket.gethostname():
        return False
    try:
        started = psutil.Process(int(writer["pid"])).create_time()
        return abs(started - float(writer["started"])) < _ABOUT
    except (psutil.Error, KeyError, TypeError, ValueError, OverflowError):
        return False


@cache
def _process(pid: int) -> dict[str, Any]:
    """How others may find a process of this host."""
    started = psutil.Process(pid).create_time()
    return {"host": socket.gethostname(), "pid": pid, "started": started}


def _this_process() -> dict[str, Any]:
    return _process(os.getpid())


# -- Launches of one fit -------------------------------------------------------------


@dataclass(frozen=True)
class CheckpointSettings:
    """Where and how often a fit is saved.

    Parameters
    ----------
    path : str
        Directory, as fsspec names it.
    every : int
        Least number of rounds from one checkpoint to the next.
    keep : int
        How many of them stay.
    resume : bool
        Whether a fit goes on from its newest one in the directory.
    every_seconds : float, default=0.0
        Least time from one checkpoint to the next.
    on_mismatch : {"restart", "raise"}, default="restart"
        What to do where there is none of the fit, but one that was left unfinished and
        differs in its data, or in its parameters, alone.
    """

    path: str
    every: int
    keep: int
    resume: bool
    every_seconds: float = 0.0
    on_mismatch: str = "restart"

    @classmethod
    def from_config(cls) -> CheckpointSettings | None:
        """The settings in Dask's configuration, None without a path.

        Raises
        ------
        ValueError
            For a value out of range; the message names the key.
        """
        path = _config.get("checkpoint.path")
        if path is None:
            return None
        if not isinstance(path, str | os.PathLike) or not str(path):
            raise ValueError(
                f"the configuration dask-ma.checkpoint.path is {path!r}, expected a "
                "folder or the URL of one"
            )
        numbers = {}
        for key in ("every", "keep"):
            value = _config.get(f"checkpoint.{key}")
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(
                    f"the configuration dask-ma.checkpoint.{key} is {value!r}, "
                    "expected an int of at least 1"
                )
            numbers[key] = value
        on_mismatch = _config.get("checkpoint.on-mismatch")
        if on_mismatch not in _ON_MISMATCH:
            raise ValueError(
                f"the configuration dask-ma.checkpoint.on-mismatch is {on_mismatch!r}, "
                f"expected one of {', '.join(_ON_MISMATCH)}"
            )
        return cls(
            str(path),
            resume=_config.is_set("checkpoint.resume"),
            every_seconds=_seconds("checkpoint.every-seconds"),
            on_mismatch=on_mismatch,
            **numbers,
        )


def saved_as(
    identity: Identity | Callable[[], Identity] | None,
) -> tuple[CheckpointSettings | None, Identity | None]:
    """Where a fit is saved, and as which; what finds that is asked for no other."""
    settings = None if identity is None else CheckpointSettings.from_config()
    if settings is None or identity is None:
        return None, None
    return settings, identity() if callable(identity) else identity


def _seconds(key: str) -> float:
    """A time of the configuration that is not negative."""
    try:
        seconds = _config.get_timeout(key)
    except (ValueError, TypeError, KeyError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ValueError(
            f"the configuration dask-ma.{key} is {_config.get(key)!r}, expected a "
            "number of seconds from 0 on, or a text such as '10 minutes'"
        )
    return seconds


@dataclass(frozen=True)
class FitInfo:
    """Identity of a fit, whose ranks may be launched more than once.

    Parameters
    ----------
    name : str
        Name of the estimator.
    fit_id : str
        Identity of the fit; each of its launches has a run id besides.
    attempt : int
        0 for the first launch.
    elapsed : float
        Seconds since the first launch.
    keeps : bool
        Whether ranks keep their states in memory for another launch.
    elastic : bool
        Whether the fit may be asked to start over on more workers.
    checkpoint : CheckpointSettings or None
        Where the fit is saved.
    known_workers : frozenset of str
        Workers that took tasks when the ranks were placed.
    identity : Identity or None
        What tells the fit from others; None for one that is not saved.
    session : Session
        What the client's process knows of other fits.
    """

    name: str
    fit_id: str
    attempt: int = 0
    elapsed: float = 0.0
    keeps: bool = False
    elastic: bool = False
    checkpoint: CheckpointSettings | None = None
    known_workers: frozenset[str] = frozenset()
    identity: Identity | None = None
    session: Session = field(default_factory=Session)

    def of_rank(self) -> FitInfo:
        """What ranks are sent: the workers are known to the client alone."""
        return replace(self, known_workers=frozenset())


@dataclass
class Trail:
    """What the launches of a fit leave with the client.

    Parameters
    ----------
    held : list of Future
        Tasks of ranks that have ended. What they keep of the fit stays in the memory of
        their workers until these are released.
    newest_round : int
        The last round that the client has heard of.
    has_plugin : bool
        Whether the scheduler has the plugin that takes messages.
    """

    held: list[Future] = field(default_factory=list)
    newest_round: int = 0
    has_plugin: bool = False

    def note_round(self, number: int) -> None:
        """Note that a round has been kept by some rank."""
        self.newest_round = max(self.newest_round, number)

    def release(self) -> None:
        """Let go of the tasks."""
        for future in self.held:
            future.release()
        self.held.clear()
