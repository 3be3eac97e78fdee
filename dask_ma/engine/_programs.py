"""Runs of users' own programs, as jobs of the engine."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from dask_ma import _config
from dask_ma.data import describe, is_dask_collection
from dask_ma.engine._client import fit_client
from dask_ma.engine._context import Listener
from dask_ma.engine._fit import run_fit
from dask_ma.engine._job import Job
from dask_ma.engine._run import Agent
from dask_ma.engine.recovery._described import IndescribableError, describe_value
from dask_ma.engine.recovery._identity import Identity
from dask_ma.engine.recovery._text import as_text

_MAX_SEED = np.iinfo(np.int32).max
_UNKNOWN = "unknown: "  # begins the text of what cannot be told from others


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


def describe_program(program: Any, **settings: Any) -> dict[str, str]:
    """What a checkpoint must share with a run that goes on from it.

    Parameters
    ----------
    program : object
        Its class counts, with what its methods do where the user has written them, and
        all its attributes with what they hold themselves.
    **settings
        What else counts.

    Returns
    -------
    parameters : dict of str
    """
    parameters = {"program": as_text(type(program))}
    parameters |= {name: str(value) for name, value in settings.items()}
    for name, value in vars(program).items():
        try:
            text = describe_value(value)
        except IndescribableError as error:
            text = f"{_UNKNOWN}{error}"
        parameters[f"program.{name}"] = text
    return parameters


def _can_be_saved(identity: Identity) -> bool:
    """Whether a program can be told from others; warns if it cannot, but should."""
    for name, text in identity.parameters.items():
        if not text.startswith(_UNKNOWN):
            continue
        if _config.get("checkpoint.path") is not None:
            warnings.warn(
                f"the run of {identity.name} is not saved: its attribute "
                f"{name.partition('.')[2]} cannot be told from that of another run, as "
                f"{text.removeprefix(_UNKNOWN)}",
                UserWarning,
                stacklevel=4,
            )
        return False
    return True


def run_program_job(
    agent: Agent,
    params: Any,
    data: tuple[Any, Any, Any],
    *,
    identity: Identity,
    n_ranks: int | None,
    random_state: Any,
    is_multi_output: bool = False,
    join: Callable[[list[Any]], Any] | None = None,
) -> Any:
    """Run a user's program on the rows of all ranks; no callback follows it.

    Parameters
    ----------
    agent : callable
        What each rank runs.
    params : object
        What all ranks get.
    data : tuple
        X, y and the sample weights, as the user gave them; the last two may be None.
    identity : Identity
        What tells the run from others. Its name is for the dashboard and for errors,
        too.
    n_ranks : int or None
        Number of ranks that the user wants.
    random_state : int, RandomState instance or None
        Seed of the run.
    is_multi_output : bool, default=False
        Whether y may have several columns.
    join : callable, default=None
        Makes the result of those of all ranks, in this process.

    Returns
    -------
    result : object
        What rank 0 returns, or `join` makes.
    """
    from sklearn.utils import check_array, check_random_state  # no rank needs them

    X, y, sample_weight = data
    if not is_dask_collection(X):
        X = check_array(
            X, accept_sparse="csr", dtype=[np.float64, np.float32], input_name="X"
        )
    info = describe(X)
    seed = check_random_state(random_state).randint(_MAX_SEED)
    if isinstance(random_state, np.random.RandomState):
        random_state = seed
    saved_as = replace(
        identity,
        parameters={**identity.parameters, "random_state": repr(random_state)},
        options={**identity.options, "n_ranks": n_ranks},
        is_random=random_state is None,
    )
    job = Job(
        agent=agent,
        params=params,
        data=(X, y, sample_weight),
        name=identity.name,
        identity=saved_as if _can_be_saved(identity) else None,
        n_ranks=n_ranks,
        info=info,
        seed=seed,
        blas_threads=1,
        is_labelled=y is not None,
        is_multi_output=is_multi_output,
        join=join,
    )
    with fit_client() as client:
        return run_fit(job, client, _follow)


def _follow(n_ranks: int) -> AbstractContextManager[Listener | None]:
    """Nobody follows."""
    return nullcontext()
