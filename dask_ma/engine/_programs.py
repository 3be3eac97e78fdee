"""What runs of users' own programs share."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager, nullcontext
from numbers import Integral
from typing import Any

import numpy as np

from dask_ma.engine._client import fit_client
from dask_ma.engine._context import Listener
from dask_ma.engine._fit import Job, run_fit

_PLAIN = (bool, int, float, str, type(None), np.generic)


def check_counts(**numbers: Any) -> None:
    """Refuse what is no integer from 1 on.

    Parameters
    ----------
    **numbers
        By the names of the parameters.

    Raises
    ------
    TypeError, ValueError
        With the name of the parameter.
    """
    for name, number in numbers.items():
        if not isinstance(number, Integral) or isinstance(number, bool):
            raise TypeError(f"{name} must be an integer, got {number!r}")
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")


def identity_of(program: Any, **settings: Any) -> dict[str, str]:
    """What a checkpoint must share with a run that goes on from it.

    Parameters
    ----------
    program : object
        Its class, and its plain attributes and arrays count.
    **settings
        What else counts.

    Returns
    -------
    identity : dict of str
    """
    kind = type(program)
    identity = {"program": f"{kind.__module__}.{kind.__qualname__}"}
    identity |= {name: str(value) for name, value in settings.items()}
    for name, value in vars(program).items():
        if isinstance(value, _PLAIN):
            identity[f"program.{name}"] = repr(value)
        elif isinstance(value, np.ndarray):
            digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            identity[f"program.{name}"] = f"{value.shape} {value.dtype} {digest}"
    return identity


def run_program_job(job: Job) -> Any:
    """Run a job that no callback follows, and return what rank 0 returns."""
    with fit_client() as client:
        return run_fit(job, client, _follow)


def _follow() -> AbstractContextManager[Listener | None]:
    """Nobody follows."""
    return nullcontext()
