"""Facts that the launches of one fit share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from distributed import Future

from dask_ma.engine.recovery._checkpoint import CheckpointSettings
from dask_ma.engine.recovery._identity import Identity, Session


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
