"""Errors that come of a checkpoint, told from those of the data and of users' code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from dask_ma.exceptions import CheckpointError, FitFailedError

# Where rows are read and checked: what goes wrong there has to do with them.
_OF_ROWS = ("dask_ma.data._shard", "dask_ma.data._checks", "dask_ma.data._blocks")
_OF_ALL_ROWS = {"dask_ma.supervised._problem", "dask_ma.topics._corpus"}
_LIBRARIES = {"dask_ma", "numpy", "scipy", "sklearn", "torch"}


@contextmanager
def blaming(source: Callable[[], str | None]) -> Iterator[None]:
    """Turn an error into one that names the checkpoint that a fit goes on from.

    Parameters
    ----------
    source : callable
        Gives the checkpoint as long as it may be at fault, then None.

    Raises
    ------
    CheckpointError
        For errors of this package, or of a library that it uses, that have nothing to
        do with the rows.
    """
    try:
        yield
    except FitFailedError:
        raise
    except Exception as error:
        path, text = source(), str(error)[:300]
        if path is None or not _may_come_of_state(error.__traceback__):
            raise
        if isinstance(error, CheckpointError):
            if path.rpartition(".")[0] in str(error):
                raise
        else:
            text = f"{type(error).__name__}: {text}"
        raise CheckpointError(
            f"the fit cannot go on from the checkpoint {path}: {text}; if data and "
            "parameters are right, remove it to go on from an older one, or set "
            "dask-ma.checkpoint.resume to False to start anew"
        ) from error


def _may_come_of_state(traceback: TracebackType | None) -> bool:
    """Whether an error was raised where a state was used."""
    modules = []
    while traceback is not None:
        modules.append(str(traceback.tb_frame.f_globals.get("__name__")))
        traceback = traceback.tb_next
    if any(module.startswith(_OF_ROWS) for module in modules):
        return False
    if not modules or modules[-1] in _OF_ALL_ROWS:
        return False
    return modules[-1].partition(".")[0] in _LIBRARIES
