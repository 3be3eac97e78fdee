"""Errors that a distributed fit can raise."""

from __future__ import annotations

__all__ = [
    "CommTimeoutError",
    "FitFailedError",
    "GroupClosedError",
    "NoWorkersError",
    "PeerLostError",
    "StaleRunError",
]


class FitFailedError(RuntimeError):
    """A distributed run ended without a result; nothing of it is left behind."""


class NoWorkersError(FitFailedError):
    """The client's cluster has no worker, or the client is closed."""


class GroupClosedError(FitFailedError):
    """The group was closed, by its owner or because another rank failed."""


class PeerLostError(FitFailedError):
    """A worker that carries a rank has gone."""


class CommTimeoutError(TimeoutError, FitFailedError):
    """A wait for a message or for a rank to start took longer than configured."""


class StaleRunError(FitFailedError):
    """A message belongs to a run that this worker has already finished."""
