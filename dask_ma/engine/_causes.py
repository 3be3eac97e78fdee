"""The cause of a failure, told from what it has led to on other ranks."""

from __future__ import annotations

from dask_ma.exceptions import FitFailedError, GroupClosedError, StaleRunError


class TaskLostError(FitFailedError):
    """The task of a rank was cancelled by others, or what it needs has gone."""


def order_of(error: BaseException) -> int:
    """Order of errors: causes before what they led to.

    Parameters
    ----------
    error : BaseException
        What has ended a rank.

    Returns
    -------
    order : int
        The lower, the nearer to the cause: what the program of a rank has raised; what
        a rank raises that waits in vain or loses another; what says only that a rank
        has ended; what ends ranks since another one has failed.
    """
    if isinstance(error, GroupClosedError):
        return 3
    if isinstance(error, (StaleRunError, TaskLostError)):
        return 2
    return int(isinstance(error, FitFailedError))
