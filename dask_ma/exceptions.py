"""Errors and warnings of a distributed fit."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "CheckpointError",
    "CommTimeoutError",
    "FitFailedError",
    "FitTerminatedError",
    "GroupClosedError",
    "InsufficientMemoryError",
    "NoWorkersError",
    "PeerLostError",
    "RoundsLostWarning",
    "RowsLostError",
    "RowsLostWarning",
    "StaleRunError",
]


class FitFailedError(RuntimeError):
    """A distributed run ended without a result; nothing of it is left behind."""


class NoWorkersError(FitFailedError):
    """The client's cluster has no worker, or the client is closed."""


class GroupClosedError(FitFailedError):
    """The group was closed, by its owner or because another rank failed."""


class PeerLostError(FitFailedError):
    """A worker that carries a rank has gone.

    Parameters
    ----------
    message : str
        What has happened.
    addresses : sequence of str, default=()
        Workers that have gone, as far as they are known.

    Attributes
    ----------
    addresses : tuple of str
        Workers that have gone, as far as they are known.
    """

    def __init__(self, message: str, addresses: Sequence[str] = ()) -> None:
        # All of it in `args`, from which copies for other threads are made.
        super().__init__(message, tuple(addresses))
        self.addresses = tuple(addresses)

    def __str__(self) -> str:
        return str(self.args[0])


class InsufficientMemoryError(MemoryError):
    """The workers have too little memory for what a fit has to keep there."""


class RowsLostError(PeerLostError):
    """All rows of a fit were lost with workers, and nobody else has them."""


class CommTimeoutError(TimeoutError, FitFailedError):
    """A wait for a message or for a rank to start took longer than configured."""


class CheckpointError(ValueError):
    """A checkpoint cannot be written or read, is damaged, or is of another fit."""


class FitTerminatedError(SystemExit):
    """SIGTERM has ended a fit, which has been saved.

    Like every SystemExit it ends the program unless it is caught, here with the status
    of a process that SIGTERM has ended, and passes by ``except Exception``: a search
    over parameters does not go on with its next fit.

    Parameters
    ----------
    message : str
        What has happened.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = 128 + 15


class RoundsLostWarning(UserWarning):
    """A fit lost all its workers at once, and the rounds since its last checkpoint."""


class RowsLostWarning(UserWarning):
    """A fit went on without the rows of workers that were lost."""


class StaleRunError(FitFailedError):
    """A message belongs to a run that this worker has already finished."""
