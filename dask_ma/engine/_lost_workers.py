"""Lost workers of a fit, and the workers that take over their ranks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Any

from dask.utils import format_bytes
from distributed import Client, KilledWorker
from distributed.client import FutureCancelledError, FuturesCancelledError

from dask_ma import _config
from dask_ma.data import Partition, scheduler_workers
from dask_ma.engine._client import running_workers
from dask_ma.engine._liveness import (
    Liveness,
    has_retired,
    process_of,
    remove_silent,
)
from dask_ma.exceptions import (
    CommTimeoutError,
    FitFailedError,
    InsufficientMemoryError,
    NoWorkersError,
    PeerLostError,
)

logger = logging.getLogger("dask_ma.engine")

#: What the loss of a worker may raise, on the client or on a rank.
OF_LOSSES = (
    FitFailedError,
    OSError,
    FutureCancelledError,
    FuturesCancelledError,
    KilledWorker,
)
_SHORT_WAIT = 0.1  # seconds between looks at the cluster


class Losses:
    """Counts losses of workers since a fit has finished a round, and gives it up.

    Parameters
    ----------
    name : str
        Name of the estimator, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._n_losses = self._n_ended = self._round = 0

    def count(
        self, error: Exception, newest_round: int, ended: Mapping[str, int]
    ) -> None:
        """Count a loss, or raise.

        Parameters
        ----------
        error : Exception
            What the loss has raised.
        newest_round : int
            Rounds that the fit has finished.
        ended : dict of str to int
            Bytes of the workers that were ended for want of memory though the rows
            were on disks by then, or could not go there.

        Raises
        ------
        InsufficientMemoryError
            After more than ``dask-ma.recovery.max-memory-restarts`` losses of such.
        Exception
            `error`, after more than ``dask-ma.recovery.max-restarts`` losses.
        """
        if newest_round > self._round:
            self._round, self._n_losses, self._n_ended = newest_round, 0, 0
        self._n_losses += 1
        self._n_ended += bool(ended)
        since = f"since the fit has come to round {self._round}"
        if self._n_ended > _config.get_count("recovery.max-memory-restarts"):
            raise InsufficientMemoryError(
                f"{self._name} was given up after {self._n_ended} losses {since} "
                f"(dask-ma.recovery.max-memory-restarts); {describe_memory(ended)}"
            ) from error
        limit = _config.get_count("recovery.max-restarts")
        if self._n_losses > limit:
            error.add_note(
                f"dask_ma: gave up after {limit} losses {since} "
                "(dask-ma.recovery.max-restarts)"
            )
            raise error


def find_lost(client: Client, error: Exception, known: Mapping[str, str]) -> list[str]:
    """Workers that an error comes of, as far as the scheduler can tell.

    Those that are silent are given up, with the data they hold.

    Parameters
    ----------
    client : Client
        Client of the fit.
    error : Exception
        What has gone wrong.
    known : dict of str to str
        Process of each worker that the fit has used, by address. A process that has
        started in the place of another may have its address.

    Returns
    -------
    lost : list of str
        Workers that are not to be used any more.
    """
    named = set(error.addresses) if isinstance(error, PeerLostError) else set()
    patience = _config.get_timeout("launch.poll-interval")
    if isinstance(error, CommTimeoutError):
        patience += _config.get_timeout("launch.worker-timeout")
    deadline = monotonic() + patience
    liveness = Liveness()
    while True:
        try:
            workers = scheduler_workers(client)
        except FitFailedError as failure:
            raise error from failure
        there = [address for address in known if address in workers]
        replaced = {a for a in there if process_of(workers[a]) != known[a]}
        lost = {*liveness.lost(known, workers), *replaced}
        if lost or named or monotonic() >= deadline:
            break
        sleep(_SHORT_WAIT)
    silent = sorted((lost | named) & set(workers) - replaced)
    if silent:
        remove_silent(client, silent)
    return sorted(lost | named)


def wait_for_workers(
    client: Client, name: str, n_ranks: int, patience: float
) -> dict[str, int]:
    """Threads of the workers there are, after waiting a while for new ones.

    Parameters
    ----------
    client : Client
        Client of the fit.
    name : str
        Name of the estimator, for errors.
    n_ranks : int
        Threads that are waited for.
    patience : float
        Seconds to wait for so many threads. Where there is no worker at all, the fit
        waits for ``dask-ma.recovery.wait-for-any`` if that is longer.

    Returns
    -------
    threads : dict of str to int
        At least one worker.

    Raises
    ------
    NoWorkersError
        If there is none in the end, or the scheduler has gone, too.
    """
    start = monotonic()
    while True:
        threads = {}
        if client.status == "running":
            threads = running_workers(client, allow_none=True)
        waited = monotonic() - start
        if threads and (sum(threads.values()) >= n_ranks or waited >= patience):
            return threads
        if client.status != "running":  # nobody can tell of new ones
            raise _nobody_to_ask(client, name)
        longest = max(patience, _config.get_timeout("recovery.wait-for-any"))
        if waited >= longest:
            raise _nobody_left(name, waited)
        sleep(_SHORT_WAIT)


def have_left_files(client: Client, shards: Partition, lost: Sequence[str]) -> bool:
    """Whether rows on disks went with workers, but not what names their files.

    Parameters
    ----------
    client : Client
        Client of the fit.
    shards : Partition
        Where the rows are.
    lost : sequence of str
        Addresses of the workers.

    Returns
    -------
    bool
        Dask would compute again what has gone. But what retired workers had in their
        memory, it has moved to others, which look for the files in vain.
    """
    return shards.is_on_disks and any(has_retired(client, each) for each in lost)


def log_loss(
    client: Client,
    name: str,
    lost: Sequence[str],
    policy: str,
    ended: Mapping[str, int],
    is_placed: bool,
) -> None:
    """Say which workers a fit has lost, and warn unless nothing is lost with them.

    Parameters
    ----------
    client : Client
        Client of the fit.
    name : str
        Name of the estimator.
    lost : sequence of str
        Addresses of the workers.
    policy : str
        What the fit does.
    ended : dict of str to int
        Bytes of those that were ended for want of memory.
    is_placed : bool
        Whether the rows were on the workers. Until then they are shared out anew, and
        Dask has moved what retired workers had.
    """
    where = ", ".join(lost)
    if not is_placed and all(has_retired(client, address) for address in lost):
        logger.info("%s: shares out its rows anew, as %s left", name, where)
        return
    why = f"; {describe_memory(ended)}" if ended else ""
    logger.warning("%s: lost %s; policy %r%s", name, where, policy, why)


class MemoryLosses:
    """Workers of a fit that their nannies have ended for want of memory.

    Attributes
    ----------
    ended : dict of str to int
        Bytes that they held then, by address.
    """

    def __init__(self) -> None:
        self.ended: dict[str, int] = {}
        self._since: dict[str, float] = {}

    def watch(self, workers: Mapping[str, Mapping[str, Any]]) -> None:
        """Note what the scheduler says of workers that the fit is going to use.

        What was logged of an address before its process gave a sign of life was of
        another process, which the fit has never used. All times are the scheduler's.
        """
        for address, info in workers.items():
            self._since.setdefault(address, info.get("last_seen", 0.0))

    def look(self, client: Client | None) -> dict[str, int]:
        """Bytes of those that were ended since the last look, by address."""
        if client is None or client.status != "running":
            return {}
        try:
            # Nannies log it there; nobody else knows why a process has gone.
            events = client.get_events("worker-restart-memory")
        except Exception:  # whatever a connection that has gone may raise
            return {}
        found: dict[str, int] = {}
        for time, event in events:
            address = event.get("worker") if isinstance(event, dict) else None
            if address in self._since and time > self._since[address]:
                self._since[address] = time
                found[address] = int(event["rss"])
        self.ended |= found
        return found


def describe_memory(ended: Mapping[str, int]) -> str:
    """What a user can do about workers that were ended for want of memory."""
    named = ", ".join(f"{a} with {format_bytes(n)}" for a, n in sorted(ended.items()))
    return (
        f"nannies ended workers that took too much memory: {named}. Take more or "
        "larger workers, smaller blocks of rows, fewer ranks for each worker "
        "(n_ranks), or have rows on disks (dask-ma.data.persist, "
        "dask-ma.data.memory-fraction)"
    )


def _nobody_to_ask(client: Client, name: str) -> NoWorkersError:
    """Error of a fit that has lost its scheduler, too."""
    return NoWorkersError(
        f"the client was closed, or lost its scheduler, during the fit of {name} (it "
        f"is {client.status!r}); keep client and cluster until fit returns. With "
        "dask-ma.checkpoint.path a later fit goes on from where this one had got to"
    )


def _nobody_left(name: str, waited: float) -> NoWorkersError:
    """Error of a fit that has lost all its workers."""
    return NoWorkersError(
        f"the fit of {name} was under way and has lost all its workers; none came "
        f"within {waited:.3g} s. Set dask-ma.recovery.wait-for-any to the time in "
        "which new ones start, and dask-ma.checkpoint.path to have a later fit go on "
        "from where this one had got to"
    )


def reassign(addresses: Sequence[str], threads: dict[str, int]) -> list[str]:
    """Give the ranks of workers that are not there any more to others.

    Parameters
    ----------
    addresses : sequence of str
        Worker of each rank.
    threads : dict of str to int
        Threads of each worker that there is.

    Returns
    -------
    addresses : list of str
        Worker of each rank; ranks on a worker that is there stay. The others go, in
        turn, to the worker with the most free threads.
    """
    counts = dict.fromkeys(threads, 0)
    for address in addresses:
        if address in counts:
            counts[address] += 1
    placed = list(addresses)
    for rank, address in enumerate(addresses):
        if address not in threads:
            chosen = min(counts, key=lambda a: (counts[a] + 1) / threads[a])
            counts[chosen] += 1
            placed[rank] = chosen
    return placed
