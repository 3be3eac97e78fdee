"""The ``dask-ma`` section of Dask's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import yaml
from dask.utils import parse_bytes, parse_timedelta

_FILE = Path(__file__).with_name("dask_ma.yaml")


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
    return float(parse_timedelta(dask.config.get(key), default="s"))


def get_bytes(key: str) -> int:
    """Value of ``dask-ma.<key>`` in bytes."""
    return int(parse_bytes(get(key)))


load_defaults()
