"""A fit from its data to its result, whatever happens to the workers meanwhile."""

from __future__ import annotations

import logging
import uuid
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from distributed import Client

from dask_ma import _config
from dask_ma.data import (
    Narrow,
    Partition,
    can_be_had_again,
    drop_shards,
    may_spare,
    partition,
    recover_shards,
    scheduler_workers,
)
from dask_ma.engine._client import (
    await_workers,
    known_workers,
    place_ranks,
    running_workers,
)
from dask_ma.engine._context import Listener
from dask_ma.engine._job import Job
from dask_ma.engine._launch import launch
from dask_ma.engine._liveness import process_of, run_on, settle
from dask_ma.engine._lost_workers import (
    OF_LOSSES,
    Losses,
    MemoryLosses,
    describe_memory,
    find_lost,
    have_left_files,
    log_loss,
    reassign,
    wait_for_workers,
)
from dask_ma.engine._process import Termination, terminable
from dask_ma.engine._rank_count import choose_ranks, narrowing
from dask_ma.engine.recovery._identity import (
    FitInfo,
    Session,
    Trail,
    counted,
    saved_as,
    this_session,
)
from dask_ma.engine.recovery._memory import forget_fit, forget_rows, newest_round
from dask_ma.engine.recovery._states import NotStartedError, RegroupError
from dask_ma.exceptions import (
    CommTimeoutError,
    FitFailedError,
    NoWorkersError,
    RoundsLostWarning,
    RowsLostError,
    RowsLostWarning,
)

logger = logging.getLogger("dask_ma.engine")

_POLICIES = ("restart", "continue", "raise")


def run_fit(
    job: Job,
    client: Client | None,
    follow: Callable[[int], AbstractContextManager[Listener | None]],
) -> Any:
    """Share out the rows, run the agent on all ranks, return rank 0's result.

    Parameters
    ----------
    job : Job
        What is to be fitted.
    client : Client or None
        Cluster to run on; None for threads of this process.
    follow : callable
        Makes the context manager that gives the listener, from the number of ranks.

    Raises
    ------
    FitFailedError
        If a worker is lost and ``dask-ma.on-worker-loss`` is "raise", or the fit
        cannot go on without it.
    FitTerminatedError
        After SIGTERM, if the fit is saved and this is the main thread.
    """
    fit = _Fit(job, client)
    await_workers(client)
    with counted(fit.fit_id), terminable(fit.termination):
        try:
            fit.prepare()
            with follow(fit.n_ranks) as listener:
                return fit.run(listener)
        except Exception as error:
            fit.explain(error)
            raise
        finally:
            fit.close()


@dataclass
class _Fit:
    """One fit and where its ranks are at the moment."""

    job: Job
    client: Client | None
    fit_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    addresses: list[str] | None = None  # worker of each rank
    shards: Partition | None = None
    attempt: int = 0
    start: float = 0.0
    trail: Trail = field(default_factory=Trail)
    known_workers: dict[str, str] = field(default_factory=dict)  # processes, by address
    is_whole: bool = True  # whether no rows are lost
    lost: set[str] = field(default_factory=set)  # not to be used any more
    has_result: bool = False
    memory: MemoryLosses = field(default_factory=MemoryLosses)
    spares_memory: bool = False  # whether this attempt has its rows on disks if it can

    def __post_init__(self) -> None:
        self.policy = _config.get("on-worker-loss")
        if self.policy not in _POLICIES:
            raise ValueError(
                f"the configuration dask-ma.on-worker-loss is {self.policy!r}, "
                f"expected one of {', '.join(_POLICIES)}"
            )
        self.checkpoint, self.identity = saved_as(self.job.identity)
        path = None if self.checkpoint is None else self.checkpoint.path
        self.losses = Losses(self.job.name)
        self.termination = Termination(self.job.name, self.fit_id, path)
        self.elastic = _config.is_set("elastic") and self.client is not None
        self.keeps = self.client is not None and (
            self.policy != "raise" or self.elastic
        )

    @property
    def n_ranks(self) -> int:
        """Ranks, once they are placed."""
        placed = self.addresses
        return self.job.n_local_ranks if placed is None else len(placed)

    # The way through ---------------------------------------------------------------

    def prepare(self) -> None:
        """Place the ranks and share out the rows."""
        while self.shards is None:
            try:
                self._share_out()
            except Exception as error:
                if self._is_held_up(error):
                    self._count_loss(error, {})
                else:
                    self._note_loss(error)

    def run(self, listener: Listener | None) -> Any:
        """Launch the ranks until they come to an end."""
        self.start = monotonic()
        while True:
            try:
                if self.lost:
                    self._replace()
                with self.termination.saving():
                    return self._launch(listener)
            except RegroupError as error:
                logger.info("%s: starts again on other workers", self.job.name)
                if isinstance(error, NotStartedError):
                    self._count_loss(error, {})
                self._regroup()
            except Exception as error:
                if self.termination.is_wanted:
                    raise  # SIGTERM may have gone to the workers, too
                self._note_loss(error)
            self.attempt += 1

    def explain(self, error: Exception) -> None:
        """Say which workers were ended for want of memory, if that may be it."""
        if isinstance(error, OF_LOSSES):
            self.memory.look(self.client)
            if self.memory.ended:
                error.add_note(f"dask_ma: {describe_memory(self.memory.ended)}")

    def close(self) -> None:
        """Leave nothing on the cluster, not even after an error."""
        self.trail.release()
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
            collect="root" if job.join is None else "all",
            fit_info=FitInfo(
                name=job.name,
                fit_id=self.fit_id,
                attempt=self.attempt,
                elapsed=monotonic() - self.start,
                keeps=self.keeps,
                elastic=self.elastic,
                # What is learnt without rows that were lost must not pass for more.
                checkpoint=self.checkpoint if self.is_whole else None,
                known_workers=frozenset(self.known_workers),
                identity=self.identity,
                session=self._session(),
            ),
            trail=self.trail,
            is_to_stop=lambda: self.termination.is_wanted,
        )
        self.has_result = True
        return result if job.join is None else job.join(result)

    def _session(self) -> Session:
        """What this process knows of its other fits."""
        if self.checkpoint is None:
            return Session()
        return this_session(self.checkpoint.path, self.job.name)

    def _share_out(self) -> None:
        """Choose the workers and give them the rows."""
        workers: dict[str, dict[str, Any]] | None = None
        if self.client is not None:
            if self.lost and self.addresses is not None:
                self._wait_for_workers(len(self.addresses))
                settle(self.client)
            # Asked once: a short fit consists of little more than such questions.
            workers = known_workers(self.client)
            running = running_workers(self.client, allow_none=True, workers=workers)
            self._note_workers(running, workers)
        self.lost.clear()
        n_ranks, n_rows = self.job.n_ranks, self.job.info.n_rows
        narrow = None
        if self.client is not None and workers is not None and not self.elastic:
            n_ranks, workers = choose_ranks(self.client, self.job, workers)
            narrow = None if n_ranks else narrowing(self.client, self.job, workers)
        self.addresses = place_ranks(self.client, n_ranks, n_rows, workers)
        self._partition(narrow)

    def _note_workers(
        self,
        addresses: Collection[str],
        workers: dict[str, dict[str, Any]] | None = None,
    ) -> None:
        """Note which processes the fit knows of."""
        if self.client is None:
            return
        if workers is None:
            workers = scheduler_workers(self.client)
        self.known_workers = {
            address: process_of(workers[address])
            for address in addresses
            if address in workers
        }
        self.memory.watch({a: workers[a] for a in self.known_workers})

    def _find_left(self) -> set[str]:
        """Workers that the fit knows and that are still the same processes."""
        if self.client is None:
            return set()
        workers = scheduler_workers(self.client)
        return {
            address
            for address, process in self.known_workers.items()
            if address in workers
            and address not in self.lost
            and process_of(workers[address]) == process
        }

    def _partition(self, narrow: Narrow | None = None) -> None:
        """Give the ranks their rows."""
        job = self.job
        self.spares_memory = bool(self.memory.ended)
        self.shards = partition(
            *job.data,
            n_ranks=self.n_ranks,
            addresses=self.addresses,
            client=self.client,
            allow_unlabelled=not job.is_labelled,
            multi_output=job.is_multi_output,
            deal=job.deal,
            info=job.info,
            dtypes=job.row_dtypes,
            sent_as=job.sent_as,
            copies=job.copies,
            needed=(job.agent, job.loads),
            spares_memory=self.spares_memory,
            narrow=narrow,
        )
        self.addresses = self.shards.addresses or self.addresses
        logger.info(
            "%s: %d rows on %d ranks; %d bytes moved between workers, %d sent",
            job.name,
            self.shards.n_rows,
            self.n_ranks,
            self.shards.bytes_moved + self.shards.bytes_followed,
            self.shards.bytes_scattered,
        )

    def _shards(self) -> Partition:
        if self.shards is None:
            raise RuntimeError("the rows have not been shared out")
        return self.shards

    # After a loss ------------------------------------------------------------------

    def _note_loss(self, error: Exception) -> None:
        """Raise `error` unless it comes of lost workers and the fit may go on."""
        if self.client is None or not isinstance(error, OF_LOSSES):
            raise error
        if isinstance(error, (NoWorkersError, RowsLostError)):
            raise error
        if self.policy == "raise" or self.client.status != "running":
            raise error
        lost = find_lost(self.client, error, self.known_workers)
        if not lost:
            raise error
        self.lost.update(lost)
        ended = {a: n for a, n in self.memory.look(self.client).items() if a in lost}
        self._count_loss(error, {} if self._can_spare() else ended)
        is_placed = self.shards is not None
        log_loss(self.client, self.job.name, lost, self.policy, ended, is_placed)

    def _can_spare(self) -> bool:
        """Whether the next attempt, unlike this one, has its rows on disks."""
        if self.spares_memory:
            return False
        if self.shards is None:
            return may_spare(self.job.data[0], self.job.info)
        is_to_share = self.policy == "restart" and can_be_had_again(*self.job.data)
        return is_to_share and self.shards.can_spare

    def _is_held_up(self, error: Exception) -> bool:
        """Whether rows could not be sent since a worker has been paused meanwhile."""
        if self.client is None or not isinstance(error, CommTimeoutError):
            return False
        running = running_workers(self.client, allow_none=True)
        return bool(running) and not running.keys() >= {*(self.addresses or ())}

    def _count_loss(self, error: Exception, ended: Mapping[str, int]) -> None:
        """Give up a fit that has lost workers again and again without a new round."""
        if self.client is not None and self.addresses is not None:
            there = sorted(self._find_left())  # others would be waited for in vain
            ask = forget_rows if isinstance(error, RegroupError) else newest_round
            answers = run_on(self.client, there, ask, self.fit_id)
            self.trail.note_round(max(answers.values(), default=0))
        self.losses.count(error, self.trail.newest_round, ended)

    def _replace(self) -> None:
        """Give the ranks of lost workers to others, with or without their rows."""
        if self.client is None or self.addresses is None:
            raise RuntimeError("there are no workers to lose")
        before = list(self.addresses)
        threads = self._wait_for_workers(len(before))
        # Others may have gone while new ones were waited for. A paused worker has not,
        # and its rows are there, but it starts no rank.
        there = self._find_left()
        moved = [rank for rank, address in enumerate(before) if address not in there]
        if len(moved) == len(before):
            self._tell_of_lost_rounds()
        self.addresses = reassign(before, threads)
        try:
            self._bring_back_rows(moved, sorted({before[rank] for rank in moved}))
        except BaseException:
            self.addresses = before  # these ranks are still to be moved
            raise
        # Workers that got nothing count as new ones.
        self._note_workers({*there, *self.addresses})
        self.lost.clear()

    def _bring_back_rows(self, moved: list[int], lost: list[str]) -> None:
        """Give the ranks that have moved their rows, as far as possible and wanted."""
        shards = self._shards()
        if self.client is None or self.addresses is None:
            raise RuntimeError("there are no workers to lose")
        if self.policy == "restart":
            can_again = can_be_had_again(*self.job.data)
            has_all_lost = len(moved) == len(self.addresses)
            if can_again and (has_all_lost or (self.memory.ended and shards.can_spare)):
                # Tasks that are pinned to workers that have all gone are never run. And
                # where rows have taken too much memory, they go to disks.
                self._partition_again()
                return
            if have_left_files(self.client, shards, lost):
                self._partition_again()
                return
            timeout = _config.get_timeout("recovery.data-timeout")
            n_lost = recover_shards(
                shards,
                moved,
                self.addresses,
                self.client,
                timeout,
                allow_pending=can_again,
            )
            if n_lost and can_again:
                self._partition_again()
                return
        else:
            n_lost = drop_shards(shards, moved)
        if not any(shard.pieces for shard in shards.shards):
            raise RowsLostError(
                f"all rows of the fit of {self.job.name} were lost: they were only in "
                "the memory of workers that have gone, or were released by a restart "
                "of the cluster. Persist or scatter them again, or pass a collection "
                "that can be computed",
                lost,
            )
        if n_lost:
            self.is_whole = False
            unsaved = "; it is not saved any more" if self.checkpoint else ""
            warnings.warn(
                f"the fit of {self.job.name} goes on without {n_lost} of "
                f"{n_lost + shards.n_rows} rows, which were lost with "
                f"{', '.join(lost)}{unsaved}",
                RowsLostWarning,
                stacklevel=2,
            )

    def _partition_again(self) -> None:
        """Give the ranks their rows as if for the first time."""
        self._forget(self._shards())
        self._partition()

    def _forget(self, shards: Partition) -> None:
        """Let go of shards, so that the next ones may have the same names."""
        # Otherwise Dask would take the new tasks for the old ones, and their workers.
        shards.release()
        self.trail.release()
        if self.client is not None:
            settle(self.client)

    def _wait_for_workers(self, n_ranks: int) -> dict[str, int]:
        """Threads of the workers there are, after waiting a while for new ones."""
        if self.client is None:
            return {}
        waits = self.policy == "restart"
        patience = _config.get_timeout("recovery.wait") if waits else 0.0
        return wait_for_workers(self.client, self.job.name, n_ranks, patience)

    def _tell_of_lost_rounds(self) -> None:
        """Warn that nobody has kept a model in memory."""
        known = self.trail.newest_round  # 0 where nobody has been asked yet
        come_to = f", though it had come to round {known} or further" if known else ""
        begins = (
            f"begins anew{come_to}, since there is no checkpoint "
            "(dask-ma.checkpoint.path)"
        )
        if self.checkpoint is not None and self.is_whole:
            begins = f"goes on from the last checkpoint in {self.checkpoint.path}"
        warnings.warn(
            f"all workers of the fit of {self.job.name} were lost at once, and what "
            f"they had in memory with them; it {begins}",
            RoundsLostWarning,
            stacklevel=2,
        )

    def _regroup(self) -> None:
        """Share the rows out anew over the workers that there are now."""
        old, self.shards = self._shards(), None
        if self.client is not None and self.addresses is not None:
            running = running_workers(self.client, allow_none=True)
            self.lost.update(a for a in self.addresses if a not in running)
            if self.lost.issuperset(self.addresses):
                self._wait_for_workers(len(self.addresses))
                self._tell_of_lost_rounds()
                if can_be_had_again(*self.job.data):
                    self._forget(old)
        try:
            # What the old partition holds is in memory, so little is done twice.
            self.prepare()
        finally:
            old.release()
