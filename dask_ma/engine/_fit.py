"""A fit from its data to its result, whatever happens to the workers meanwhile."""

from __future__ import annotations

import logging
import uuid
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

from distributed import Client, Future, KilledWorker
from distributed.client import FutureCancelledError, FuturesCancelledError

from dask_ma import _config
from dask_ma.data import Partition, drop_shards, partition, recover_shards
from dask_ma.engine._checkpoint import CheckpointSettings
from dask_ma.engine._client import place_ranks, running_workers
from dask_ma.engine._context import Listener
from dask_ma.engine._keeper import RegroupError
from dask_ma.engine._kept import forget_fit
from dask_ma.engine._launch import launch
from dask_ma.engine._liveness import (
    Liveness,
    remove_silent,
    run_on,
    scheduler_workers,
)
from dask_ma.engine._run import Agent
from dask_ma.engine._ticket import Ticket
from dask_ma.exceptions import (
    CommTimeoutError,
    FitFailedError,
    NoWorkersError,
    PeerLostError,
    RowsLostWarning,
)

logger = logging.getLogger("dask_ma.engine")

#: What the loss of a worker may raise, here or on a rank.
_OF_LOSSES = (
    FitFailedError,
    OSError,
    FutureCancelledError,
    FuturesCancelledError,
    KilledWorker,
)
_POLICIES = ("restart", "continue", "raise")
_SHORT_WAIT = 0.1  # seconds between looks at the cluster


@dataclass(frozen=True)
class Job:
    """What is to be fitted.

    Parameters
    ----------
    agent : callable
        ``agent(context, shard arguments, params)``.
    params : object
        Parameters of the agent.
    data : tuple
        X, y and the sample weights.
    name : str
        Name of the estimator.
    parameters : dict of str to str
        Its parameters as text, as far as a checkpoint must have the same.
    n_ranks : int or None
        Number of ranks wanted.
    n_local_ranks : int
        Number of ranks without a client.
    n_rows : int or None
        Rows of X if known.
    seed : int
        Seed of the ranks' random numbers.
    blas_threads : int
        Threads that BLAS may use in a process.
    is_labelled : bool
        Whether every row needs a label.
    """

    agent: Agent
    params: Any
    data: tuple[Any, Any, Any]
    name: str
    parameters: dict[str, str]
    n_ranks: int | None
    n_local_ranks: int
    n_rows: int | None
    seed: int
    blas_threads: int
    is_labelled: bool = True


def run_fit(
    job: Job,
    client: Client | None,
    follow: Callable[[], AbstractContextManager[Listener | None]],
) -> Any:
    """Share out the rows, run the agent on all ranks, return rank 0's result.

    Parameters
    ----------
    job : Job
        What is to be fitted.
    client : Client or None
        Cluster to run on; None for threads of this process.
    follow : callable
        Makes the context manager that gives the listener.

    Raises
    ------
    FitFailedError
        If a worker is lost and ``dask-ma.on-worker-loss`` is "raise", or the fit
        cannot go on without it.
    """
    fit = _Fit(job, client)
    try:
        fit.prepare()
        with follow() as listener:
            return fit.run(listener)
    finally:
        fit.close()


@dataclass
class _Fit:
    """One fit and where its ranks are at the moment."""

    job: Job
    client: Client | None
    fit_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    addresses: list[str] | None = None  # worker of each shard
    shards: Partition | None = None
    attempt: int = 0
    n_losses: int = 0
    start: float = 0.0
    held: list[Future] = field(default_factory=list)
    known_workers: frozenset[str] = frozenset()
    has_result: bool = False

    def __post_init__(self) -> None:
        self.policy = _config.get("on-worker-loss")
        if self.policy not in _POLICIES:
            raise ValueError(
                f"the configuration dask-ma.on-worker-loss is {self.policy!r}, "
                f"expected one of {', '.join(_POLICIES)}"
            )
        self.checkpoint = CheckpointSettings.from_config()
        self.elastic = bool(_config.get("elastic")) and self.client is not None
        self.keeps = self.client is not None and (
            self.policy != "raise" or self.elastic
        )

    # The way through ---------------------------------------------------------------

    def prepare(self) -> None:
        """Place the ranks and share out the rows."""
        while self.shards is None:
            try:
                self._share_out()
            except Exception as error:
                self._check_recoverable(error, self.addresses or [])

    def run(self, listener: Listener | None) -> Any:
        """Launch the ranks until they come to an end."""
        self.start = monotonic()
        while True:
            try:
                return self._launch(listener)
            except RegroupError:
                logger.info("%s: starts again on more workers", self.job.name)
                self._regroup()
            except Exception as error:
                lost = self._check_recoverable(error, self.addresses or [])
                self._replace(lost)
            self.attempt += 1

    def close(self) -> None:
        """Leave nothing on the cluster, not even after an error."""
        for future in self.held:
            future.release()
        self.held.clear()
        if self.shards is not None:
            self.shards.release()
        if self.client is None or not self.keeps or self.client.status != "running":
            return
        if self.attempt or not self.has_result:
            try:
                workers = list(scheduler_workers(self.client))
                run_on(self.client, workers, forget_fit, self.fit_id)
            except FitFailedError as error:
                logger.warning("could not clean up after a fit: %s", error)

    def _launch(self, listener: Listener | None) -> Any:
        """Launch the ranks once."""
        job = self.job
        result = launch(
            job.agent,
            [shard.arguments for shard in self._shards().shards],
            job.params,
            name=job.name,
            client=self.client,
            addresses=self.addresses,
            seed=job.seed,
            blas_threads=job.blas_threads,
            listener=listener,
            ticket=Ticket(
                name=job.name,
                fit_id=self.fit_id,
                parameters=job.parameters,
                attempt=self.attempt,
                elapsed=monotonic() - self.start,
                keeps=self.keeps,
                elastic=self.elastic,
                checkpoint=self.checkpoint,
                known_workers=self.known_workers,
            ),
            held=self.held,
        )
        self.has_result = True
        return result

    def _share_out(self) -> None:
        """Choose the workers and give them the rows."""
        job = self.job
        if self.elastic and self.client is not None:
            self.known_workers = frozenset(scheduler_workers(self.client))
        self.addresses = place_ranks(self.client, job.n_ranks, job.n_rows)
        n_ranks = job.n_local_ranks if self.addresses is None else len(self.addresses)
        self.shards = partition(
            *job.data,
            n_ranks=n_ranks,
            addresses=self.addresses,
            client=self.client,
            allow_unlabelled=not job.is_labelled,
        )
        logger.info(
            "%s: %d rows on %d ranks; %d bytes moved between workers, %d sent",
            job.name,
            self.shards.n_rows,
            n_ranks,
            self.shards.bytes_moved + self.shards.bytes_followed,
            self.shards.bytes_scattered,
        )

    def _shards(self) -> Partition:
        if self.shards is None:
            raise RuntimeError("the rows have not been shared out")
        return self.shards

    # After a loss ------------------------------------------------------------------

    def _check_recoverable(
        self, error: Exception, addresses: Sequence[str]
    ) -> list[str]:
        """Raise `error` unless it comes of lost workers and the fit may go on.

        Returns
        -------
        lost : list of str
            Workers of `addresses` that are not to be used any more.
        """
        may = isinstance(error, _OF_LOSSES)
        if self.client is None or not may or isinstance(error, NoWorkersError):
            raise error
        if self.policy == "raise" or self.client.status != "running":
            raise error
        lost = self._find_lost(error, addresses)
        if not lost:
            raise error
        self.n_losses += 1
        limit = int(_config.get("recovery.max-restarts"))
        if self.n_losses > limit:
            error.add_note(
                f"dask_ma: gave up after {limit} losses "
                "(dask-ma.recovery.max-restarts)"
            )
            raise error
        logger.warning(
            "%s: lost %s; policy %r", self.job.name, ", ".join(lost), self.policy
        )
        return lost

    def _find_lost(self, error: Exception, addresses: Sequence[str]) -> list[str]:
        """Workers that an error comes of, as far as the scheduler can tell."""
        if self.client is None:
            return []
        named = set(error.addresses) if isinstance(error, PeerLostError) else set()
        patience = _config.get_timeout("launch.poll-interval")
        if isinstance(error, CommTimeoutError):
            patience += _config.get_timeout("launch.worker-timeout")
        deadline = monotonic() + patience
        liveness = Liveness()
        while True:
            try:
                workers = scheduler_workers(self.client)
            except FitFailedError as failure:
                raise error from failure
            lost = set(liveness.lost(addresses, workers))
            if lost or named or monotonic() >= deadline:
                break
            sleep(_SHORT_WAIT)
        silent = sorted((lost | named) & set(workers))
        if silent:
            remove_silent(self.client, silent)
        return sorted(lost | named)

    def _replace(self, lost: Sequence[str]) -> None:
        """Give the shards of lost workers to others, with or without their rows."""
        if self.client is None or self.addresses is None:
            raise RuntimeError("there are no workers to lose")
        shards = self._shards()
        slots = [s for s, address in enumerate(self.addresses) if address in lost]
        threads = self._wait_for_workers(len(self.addresses), lost)
        self.known_workers |= set(threads)
        counts = dict.fromkeys(threads, 0)
        # A paused worker is not lost, and its rows are there, but it starts no rank.
        idle = [s for s, a in enumerate(self.addresses) if a not in threads]
        for address in self.addresses:
            if address in counts:
                counts[address] += 1
        for slot in sorted({*slots, *idle}):
            address = min(counts, key=lambda a: (counts[a] + 1) / threads[a])
            counts[address] += 1
            self.addresses[slot] = address
        if self.policy == "restart":
            moved = {slot: self.addresses[slot] for slot in slots}
            timeout = _config.get_timeout("recovery.data-timeout")
            n_lost = recover_shards(shards, moved, self.client, timeout)
        else:
            n_lost = drop_shards(shards, slots)
        if not any(shard.pieces for shard in shards.shards):
            raise PeerLostError(
                f"all rows of the fit of {self.job.name} were lost with their workers",
                lost,
            )
        if n_lost:
            warnings.warn(
                f"the fit of {self.job.name} goes on without {n_lost} of "
                f"{n_lost + shards.n_rows} rows, which were lost with "
                f"{', '.join(lost)}",
                RowsLostWarning,
                stacklevel=2,
            )

    def _wait_for_workers(self, n_ranks: int, lost: Sequence[str]) -> dict[str, int]:
        """Threads of the workers there are, after waiting a while for new ones."""
        if self.client is None:
            return {}
        patience = _config.get_timeout("recovery.wait")
        deadline = monotonic() + (patience if self.policy == "restart" else 0.0)
        while True:
            try:
                found = running_workers(self.client)
            except NoWorkersError:
                if self.client.status != "running" or monotonic() >= deadline:
                    raise
                found = {}
            threads = {a: n for a, n in found.items() if a not in lost}
            if threads and sum(threads.values()) >= n_ranks:
                return threads
            if monotonic() >= deadline:
                if not threads:
                    raise NoWorkersError(
                        f"no worker is left for the fit of {self.job.name}"
                    )
                return threads
            sleep(_SHORT_WAIT)

    def _regroup(self) -> None:
        """Share the rows out anew over the workers that there are now."""
        old, self.shards = self._shards(), None
        try:
            # What the old partition holds is in memory, so little is done twice.
            self.prepare()
        finally:
            old.release()
