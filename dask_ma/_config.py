"""The ``dask-ma`` section of Dask's configuration."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import dask
import yaml
from dask.utils import parse_bytes, parse_timedelta

_FILE = Path(__file__).with_name("dask_ma.yaml")


class _Kept:
    """The setting that :func:`partitions_kept` has made, and how many rely on it."""

    lock = threading.Lock()
    users = 0
    setting: Any = None


def load_defaults() -> None:
    """Add this package's defaults to Dask's configuration, below the user's own."""
    defaults = yaml.safe_load(_FILE.read_text())
    dask.config.update_defaults(defaults)


def get(key: str) -> Any:
    """Value of ``dask-ma.<key>``."""
    return dask.config.get(f"dask-ma.{key}")


def get_timeout(key: str) -> float:
    """Value of ``dask-ma.<key>`` in seconds."""
    return get_dask_timeout(f"dask-ma.{key}")


def get_dask_timeout(key: str) -> float:
    """Value of any key of Dask's configuration in seconds."""
    return float(_as_number(_seconds, key, "a time, such as 30 s"))


def get_bytes(key: str) -> int:
    """Value of ``dask-ma.<key>`` in bytes."""
    return int(_as_number(_bytes, f"dask-ma.{key}", "a number of bytes, such as 64 MB"))


def get_count(key: str) -> int:
    """Value of ``dask-ma.<key>``, a whole number."""
    return int(_as_number(int, f"dask-ma.{key}", "a whole number"))


def get_fraction(key: str) -> float:
    """Value of ``dask-ma.<key>``, a number."""
    return _as_number(float, f"dask-ma.{key}", "a number")


def is_set(key: str) -> bool:
    """Value of ``dask-ma.<key>``, true or false."""
    value = get(key)
    # Environment variables bring the words that are booleans in a YAML file.
    found = yaml.safe_load(value) if isinstance(value, str) else value
    if not isinstance(found, bool) and found not in (0, 1):
        raise ValueError(
            f"the configuration dask-ma.{key} should be true or false; got {value!r}"
        )
    return bool(found)


def _as_number(read: Callable[[Any], float], key: str, expected: str) -> float:
    """Value of a key; if it cannot be read, the error says of which key it is."""
    value = dask.config.get(key)
    cause = None
    try:
        if (number := read(value)) >= 0:
            return number
    except (KeyError, TypeError, ValueError) as error:
        cause = error
    raise ValueError(
        f"the configuration {key} should be {expected}; got {value!r}"
    ) from cause


# Every message asks for some, and reading the words takes longer than the message.
@lru_cache
def _seconds(value: Any) -> float:
    """Seconds that a value of the configuration stands for."""
    return float(parse_timedelta(value, default="s"))


@lru_cache
def _bytes(value: Any) -> int:
    """Bytes that a value of the configuration stands for."""
    return int(parse_bytes(value))


@contextmanager
def partitions_kept() -> Iterator[None]:
    """Let dask.dataframe lower expressions without joining their partitions.

    By default it joins small partitions of files, more of them the fewer columns are
    read. X and y of one frame then have other blocks than `npartitions` says, and other
    blocks than each other.
    """
    # The configuration is that of the process: where threads are in here at the same
    # time, the first one sets it and the last one puts it back.
    with _Kept.lock:
        _Kept.users += 1
        if _Kept.users == 1:
            _Kept.setting = dask.config.set({"optimization.tune.active": False})
    try:
        yield
    finally:
        with _Kept.lock:
            _Kept.users -= 1
            if not _Kept.users:
                _Kept.setting.__exit__(None, None, None)


load_defaults()
