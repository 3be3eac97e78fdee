"""What runs of users' own programs share."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils import check_array, check_random_state

from dask_ma.data import describe, is_dask_collection
from dask_ma.engine._client import fit_client
from dask_ma.engine._context import Listener
from dask_ma.engine._fit import Job, run_fit
from dask_ma.engine._identity import Identity, as_text
from dask_ma.engine._run import Agent

_MAX_SEED = np.iinfo(np.int32).max
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


def describe_program(program: Any, **settings: Any) -> dict[str, str]:
    """What a checkpoint must share with a run that goes on from it.

    Parameters
    ----------
    program : object
        Its class, and its plain attributes and arrays count.
    **settings
        What else counts.

    Returns
    -------
    parameters : dict of str
    """
    kind = type(program)
    parameters = {"program": f"{kind.__module__}.{kind.__qualname__}"}
    parameters |= {name: str(value) for name, value in settings.items()}
    for name, value in vars(program).items():
        if isinstance(value, (*_PLAIN, np.ndarray)):
            parameters[f"program.{name}"] = as_text(value)
    return parameters


def run_program_job(
    agent: Agent,
    params: Any,
    data: tuple[Any, Any, Any],
    *,
    identity: Identity,
    n_ranks: int | None,
    random_state: Any,
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

    Returns
    -------
    result : object
        What rank 0 returns.
    """
    X, y, sample_weight = data
    if not is_dask_collection(X):
        X = check_array(
            X, accept_sparse="csr", dtype=[np.float64, np.float32], input_name="X"
        )
    n_rows = describe(X).n_rows
    seed = check_random_state(random_state).randint(_MAX_SEED)
    if isinstance(random_state, np.random.RandomState):
        random_state = seed
    job = Job(
        agent=agent,
        params=params,
        data=(X, y, sample_weight),
        name=identity.name,
        identity=replace(
            identity,
            parameters={**identity.parameters, "random_state": repr(random_state)},
            options={**identity.options, "n_ranks": n_ranks},
            is_random=random_state is None,
        ),
        n_ranks=n_ranks,
        n_local_ranks=max(1, min(n_ranks or 1, n_rows or 1)),
        n_rows=n_rows,
        seed=seed,
        blas_threads=1,
        is_labelled=y is not None,
    )
    with fit_client() as client:
        return run_fit(job, client, _follow)


def _follow() -> AbstractContextManager[Listener | None]:
    """Nobody follows."""
    return nullcontext()
