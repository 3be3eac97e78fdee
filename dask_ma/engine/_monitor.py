"""The client's side of a run: follow the ranks, end them all when one fails."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from time import monotonic, sleep
from typing import Any

from distributed import Client, Future, KilledWorker
from distributed.client import FutureCancelledError, FuturesCancelledError
from distributed.comm import CommClosedError

from dask_ma import _config
from dask_ma.comm import close_run, open_ranks
from dask_ma.data import scheduler_workers
from dask_ma.engine._causes import TaskLostError, order_of
from dask_ma.engine._context import Listener, Model, Record, tell
from dask_ma.engine._departures import Departures
from dask_ma.engine._events import answer, fetch_model, subscriptions
from dask_ma.engine._liveness import Liveness, is_running, run_on
from dask_ma.engine._nearby import are_near, fetch_near
from dask_ma.engine._run import LargeOutcome, Outcome, Run
from dask_ma.engine.recovery._identity import Trail, note_ended
from dask_ma.engine.recovery._memory import newest_round
from dask_ma.engine.recovery._states import (
    NotStartedError,
    RegroupError,
    StoppedError,
    request_regroup,
    request_stop,
)
from dask_ma.exceptions import (
    CommTimeoutError,
    FitFailedError,
    GroupClosedError,
    PeerLostError,
)

logger = logging.getLogger("dask_ma.engine")

_FAILED = ("error", "lost", "cancelled")
_SHORT_WAIT = 0.05  # seconds between looks at ranks that are about to end


class _OverError(GroupClosedError):
    """The model was asked for of ranks that have ended."""


class RunMonitor:
    """Waits for the ranks of a run and cleans up after them.

    Leaving the context ends the run on all workers, unless it has ended well, and takes
    its tasks off the cluster.

    Parameters
    ----------
    run : Run
        The run.
    client : Client
        Client that the tasks were submitted with.
    listener : callable or None
        Called in the waiting thread for each record.
    trail : Trail or None
        Gets the tasks at the end instead of their being released.
    is_to_stop : callable or None
        Asked now and then whether the ranks are to end after their round.
    """

    def __init__(
        self,
        run: Run,
        client: Client,
        listener: Listener | None,
        trail: Trail | None = None,
        is_to_stop: Callable[[], bool] | None = None,
    ) -> None:
        self._is_to_stop = is_to_stop
        self._run = run
        self._trail = trail
        self._client = client
        self._listener = listener
        self._futures: list[Future] = []
        self._news: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._alive: set[str] | None = None
        self._is_over = False
        self._n_ended = 0
        self._liveness = Liveness()
        self._has_asked = False
        self._leaving = Departures(run, client)
        self._held_up: set[int] = set()  # ranks that a pause kept from starting

    def __enter__(self) -> RunMonitor:
        if self._listener is not None:
            subscriptions.add(self._client, self._run.run_id, self._news.put)
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._listener is not None:
            subscriptions.remove(self._client, self._run.run_id)
        if not self._is_over:
            self._abort(f"run of {self._run.name} was ended by its client")
        if self._trail is not None:
            self._trail.held += self._futures
        else:
            for future in self._futures:
                future.release()
        self._futures.clear()

    def start(self, futures: Sequence[Future]) -> None:
        """Follow the tasks of the ranks, given in rank order."""
        self._futures = list(futures)
        for future in self._futures:
            future.add_done_callback(self._note_end)

    def _note_end(self, future: Future) -> None:
        """Wake who waits for the ranks: when one has failed, or all have ended."""
        # Not for each of them: who wakes up looks at all. Called in one thread.
        self._n_ended += 1
        has_failed = future.status != "finished" and self._news.empty()
        if has_failed or self._n_ended >= len(self._futures):
            self._news.put(None)

    def result(self) -> Any:
        """Wait for all ranks; return rank 0's result, or all of them if wanted.

        Raises
        ------
        FitFailedError
            If a worker is lost or a rank does not start in time.
        Exception
            What a rank raised.
        """
        poll = _config.get_timeout("launch.poll-interval")
        start_deadline = monotonic() + _config.get_timeout("launch.start-timeout")
        heartbeat = _config.get_timeout("launch.heartbeat-interval")
        next_look = monotonic() + poll
        next_heartbeat = monotonic() + heartbeat
        while not all(future.done() for future in self._awaited()):
            self._answer(self._next_record(poll))
            if any(future.status in _FAILED for future in self._awaited()):
                break
            self._ask_to_stop()
            if monotonic() >= next_look:
                self._check_workers()
                next_look = monotonic() + poll
            if monotonic() >= next_heartbeat:
                self._check_heartbeats()
                next_heartbeat = monotonic() + heartbeat
            if monotonic() >= start_deadline:
                self._check_started()
                start_deadline = float("inf")
        awaited = self._awaited()
        if any(future.status != "finished" for future in awaited):
            self._fail()
        n_wanted = self._run.size if self._run.collect == "all" else 1
        outcomes = self._gather(awaited[:n_wanted], poll)
        self._is_over = True
        if outcomes[0].regroup:
            raise RegroupError(f"the fit of {self._run.name} starts again")
        if outcomes[0].stopped:
            raise StoppedError(f"the fit of {self._run.name} was asked to end")
        if awaited[:n_wanted] != self._futures[:n_wanted]:
            # A worker has left in order with the last round, and its result with it.
            raise RegroupError(f"the fit of {self._run.name} makes up for a result")
        note_ended(outcomes[0].series)
        tell(outcomes[0].notes)
        results = [outcome.result for outcome in outcomes]
        return results if self._run.collect == "all" else results[0]

    def _awaited(self) -> list[Future]:
        """Tasks of the ranks whose outcome can come: not of those that are leaving."""
        # What had ended before its worker left is on another one by now.
        return [
            future
            for future, address in zip(self._futures, self._run.addresses, strict=True)
            if address not in self._leaving or future.status == "finished"
        ]

    def _gather(self, futures: Sequence[Future], poll: float) -> list[Outcome]:
        """Fetch outcomes as long as their workers are there."""
        pairs = zip(self._futures, self._run.addresses, strict=True)
        places = {f: address for f, address in pairs if f in futures}

        async def start() -> asyncio.Future[list[Outcome]]:
            return asyncio.ensure_future(self._fetch(places))

        async def wait(fetch: asyncio.Future[list[Outcome]]) -> bool:
            done, _ = await asyncio.wait([fetch], timeout=poll)
            return bool(done)

        fetch = self._client.sync(start)
        try:
            # A result that is lost with its worker would be waited for in vain.
            while not self._client.sync(wait, fetch):
                self._check_workers(finished=False)
            outcomes: list[Outcome] = fetch.result()
        except (OSError, FutureCancelledError, FuturesCancelledError):
            self._wait_for_loss(finished=False)
            raise
        finally:
            self._client.loop.add_callback(fetch.cancel)
        return outcomes

    async def _fetch(self, places: dict[Future, str]) -> list[Outcome]:
        """Outcomes from the workers that have them, or by way of the scheduler."""
        # That is a detour, which matters only where they are large.
        is_large = any(future.type is LargeOutcome for future in places)
        if is_large and await are_near(self._client, places.values()):
            keys = {future.key: address for future, address in places.items()}
            found = await fetch_near(self._client, keys)
            if found is not None:
                return [found[key] for key in keys]
        fetch = self._client.gather(list(places), asynchronous=True)
        outcomes: list[Outcome] = await fetch
        return outcomes

    def _ask_to_stop(self) -> None:
        """Ask the ranks to end after their round if that is wanted."""
        if self._is_to_stop is not None and self._is_to_stop():
            root = self._run.addresses[0]
            answers = run_on(self._client, [root], request_stop, self._run.run_id)
            if any(answers.values()):
                self._is_to_stop = None

    def _next_record(self, timeout: float) -> Record | None:
        """Next record; None if a rank has ended or nothing came in time."""
        try:
            return self._news.get(timeout=timeout)
        except queue.Empty:
            return None

    def _answer(self, record: Record | None) -> None:
        """Pass a record to the listener, and the listener's wish to rank 0."""
        if record is None or self._listener is None:
            return
        root = self._run.addresses[0]
        try:
            stop = self._listener(record, self._fetch_model)
            if not run_on(self._client, [root], answer, self._run.run_id, bool(stop)):
                self._wait_for_loss()
                raise PeerLostError(
                    f"{self._run.describe(0)} does not answer any more in the fit of "
                    f"{self._run.name}",
                    [root],
                )
        except _OverError:
            pass  # the outcomes of the ranks say why
        except CommClosedError:
            self._wait_for_loss()
            raise

    def _fetch_model(self) -> Model:
        """Model of the record that rank 0 waits to have answered."""
        root, run_id = self._run.addresses[0], self._run.run_id
        models = self._client.run(fetch_model, run_id, workers=[root])
        model: Model | None = models[root]
        if model is None:
            raise _OverError(f"the fit of {self._run.name} has ended")
        return model

    def _wait_for_loss(self, *, finished: bool = True) -> None:
        """Raise once the scheduler, too, has seen that a worker has gone."""
        deadline = monotonic() + _config.get_timeout("launch.abort-timeout")
        while monotonic() < deadline:
            self._check_workers(finished=finished)
            sleep(_SHORT_WAIT)

    def _check_workers(self, *, finished: bool = True) -> None:
        """Raise if a worker that carries a rank has gone."""
        addresses = sorted(set(self._run.addresses))
        try:
            alive = self._client.nthreads(addresses)
        except Exception as error:
            self._raise_if_closed(error)
            raise FitFailedError(
                f"lost the scheduler during the fit of {self._run.name}: "
                f"{type(error).__name__}: {error}"
            ) from error
        gone = {address for address in addresses if address not in alive}
        self._leaving.note(gone)
        overdue = self._leaving.overdue()
        lost = {a for a in gone if a not in self._leaving or a in overdue}
        # A rank that has ended needs its worker no more, unless `finished` is False.
        self._raise_if_lost(lost, finished=finished)

    def _raise_if_closed(self, error: Exception) -> None:
        """Say so if it was the client that has gone."""
        if self._client.status in ("closing", "closed"):
            raise FitFailedError(
                "the client was closed, or lost its scheduler, during the fit of "
                f"{self._run.name}; keep client and cluster until fit returns"
            ) from error

    def _check_heartbeats(self) -> None:
        """Raise if a worker is silent; ask the ranks to end if others have joined."""
        try:
            workers = scheduler_workers(self._client)
        except FitFailedError as error:
            self._raise_if_closed(error)
            raise FitFailedError(
                f"lost the scheduler during the fit of {self._run.name}: {error}"
            ) from error
        # Some may have gone since the last look at them.
        self._leaving.note({*self._run.addresses} - workers.keys())
        silent = self._liveness.lost(self._run.addresses, workers)
        lost = {address for address in silent if address not in self._leaving}
        self._raise_if_lost(lost, finished=True)
        self._raise_if_held_up(workers)
        fit_info = self._run.fit_info
        if fit_info is None or not fit_info.keeps:
            return
        root = [self._run.addresses[0]]
        if self._trail is not None:
            answers = run_on(self._client, root, newest_round, fit_info.fit_id)
            self._trail.note_round(max(answers.values(), default=0))
        if not fit_info.elastic or self._has_asked:
            return
        running = {a for a, info in workers.items() if is_running(info)}
        if running - fit_info.known_workers:
            answers = run_on(self._client, root, request_regroup, self._run.run_id)
            self._has_asked = any(answers.values())

    def _raise_if_lost(self, addresses: Collection[str], *, finished: bool) -> None:
        """Raise if ranks that are still needed were on workers that have gone."""
        if ranks := self._needed(addresses, finished=finished):
            raise self._lost(ranks)
        if ranks := self._needed(self._leaving.early, finished=finished):
            where = ", ".join(map(self._run.describe, ranks))
            raise NotStartedError(
                f"in the fit of {self._run.name} the workers of these have left before "
                f"a round had ended: {where}"
            )

    def _needed(self, addresses: Collection[str], *, finished: bool) -> list[int]:
        """Ranks on some workers, without those that have ended if `finished`."""
        return [
            rank
            for rank, address in enumerate(self._run.addresses)
            if address in addresses
            and not (finished and self._futures[rank].status == "finished")
        ]

    def _raise_if_held_up(self, workers: dict[str, dict[str, Any]]) -> None:
        """Raise if workers that were paused meanwhile start no rank, and others may."""
        if self._run.fit_info is None:
            return  # nobody would start the ranks on others
        running = {a for a, info in workers.items() if is_running(info)}
        paused = {a for a in self._run.addresses if a in workers} - running
        paused = {address for address in paused if address not in self._leaving}
        held_up = self._not_started(paused) if running else []
        # A short pause is waited for: until the next look.
        if stuck := self._held_up.intersection(held_up):
            # Nothing would come of waiting for them to end.
            self._client.cancel([self._futures[rank] for rank in stuck], force=True)
            where = ", ".join(self._run.describe(rank) for rank in sorted(stuck))
            raise NotStartedError(
                f"in the fit of {self._run.name} these do not start, since their "
                f"workers are paused: {where}"
            )
        self._held_up = set(held_up)

    def _not_started(self, addresses: Collection[str]) -> list[int]:
        """Ranks on some workers that still wait for a thread there."""
        waiting = [
            rank
            for rank, address in enumerate(self._run.addresses)
            if address in addresses and not self._futures[rank].done()
        ]
        if not waiting:
            return []
        workers = sorted(addresses)
        answers = run_on(self._client, workers, open_ranks, self._run.run_id)
        started = {rank for ranks in answers.values() for rank in ranks}
        return [rank for rank in waiting if rank not in started]

    def _check_started(self) -> None:
        """Raise if a rank still waits for a thread of its worker."""
        ranks = self._not_started(set(self._run.addresses))
        if ranks:
            waiting = ", ".join(map(self._run.describe, ranks))
            timeout = _config.get_timeout("launch.start-timeout")
            raise CommTimeoutError(
                f"in the fit of {self._run.name} these did not start within "
                f"{timeout:g} s (dask-ma.launch.start-timeout): {waiting}; "
                + self._why_not_started({self._run.addresses[rank] for rank in ranks})
            )

    def _why_not_started(self, addresses: set[str]) -> str:
        """What may keep ranks from starting, by what their workers are doing."""
        workers = scheduler_workers(self._client)
        states = [workers[a].get("status") for a in addresses & {*workers}]
        if n_paused := states.count("paused"):
            return (
                f"{n_paused} of their {len(states)} workers are paused, as their "
                "memory is full: take more or larger workers, or fewer ranks (n_ranks)"
            )
        return "are their workers busy with other tasks?"

    def _fail(self) -> None:
        """End the other ranks and raise the error that started it all."""
        self._close(f"another rank of {self._run.name} failed")
        # Before ranks are cancelled here, which says nothing of what has gone wrong.
        errors = {
            rank: self._error_of(rank, future)
            for rank, future in enumerate(self._futures)
            if future.status in _FAILED
        }
        self._cancel()
        self._check_workers()
        if not errors:  # lost in the meantime
            raise FitFailedError(
                f"a task of the fit of {self._run.name} has gone, with its worker"
            )
        rank = min(errors, key=lambda r: (order_of(errors[r]), r))
        errors[rank].add_note(f"dask_ma: raised by {self._run.describe(rank)}")
        raise errors[rank]

    def _error_of(self, rank: int, future: Future) -> BaseException:
        """What went wrong on a rank, in terms of the fit."""
        error = future.exception() if future.status == "error" else None
        if isinstance(error, KilledWorker):
            return self._lost([rank])
        if error is None or isinstance(error, FutureCancelledError):
            return TaskLostError(
                f"the task of {self._run.describe(rank)} in the fit of "
                f"{self._run.name} was cancelled, or the data it needs are no longer "
                "on the cluster"
            )
        return error

    def _lost(self, ranks: Sequence[int]) -> PeerLostError:
        where = ", ".join(self._run.describe(rank) for rank in ranks)
        return PeerLostError(
            f"a worker left the cluster during the fit of {self._run.name}; lost: "
            f"{where}. The cluster can be used again: fit once more to train on the "
            "workers that are left",
            sorted({self._run.addresses[rank] for rank in ranks}),
        )

    def _abort(self, reason: str) -> None:
        """Close the group on every worker, and cancel the ranks that do not end."""
        self._close(reason)
        self._cancel()

    def _close(self, reason: str) -> None:
        """Close the group on every worker and wait a while for the ranks to end."""
        self._is_over = True
        timeout = _config.get_timeout("launch.abort-timeout")
        deadline = monotonic() + timeout
        # In a thread of its own: a worker that does not answer must not hold up the
        # client.
        caller = threading.Thread(
            target=self._close_everywhere, args=(reason,), daemon=True
        )
        caller.start()
        caller.join(timeout)
        while self._waiting() and monotonic() < deadline:
            self._next_record(_SHORT_WAIT)

    def _cancel(self) -> None:
        """Take the ranks that have not ended off the cluster."""
        left = [future for future in self._futures if not future.done()]
        if left and self._client.status == "running":
            self._client.cancel(left, force=True)

    def _close_everywhere(self, reason: str) -> None:
        """End the run in each process that carries a rank."""
        workers = sorted(set(self._run.addresses))
        try:
            workers = list(self._client.nthreads(workers))
            self._alive = set(workers)
            run_on(self._client, workers, _end_run, self._run.run_id, reason)
        except Exception as error:
            logger.warning(
                "could not end run %s on its workers: %s", self._run.run_id, error
            )

    def _waiting(self) -> bool:
        """Whether a rank on a worker that is still there has not ended yet."""
        return self._client.status == "running" and any(
            not future.done() and (self._alive is None or address in self._alive)
            for future, address in zip(self._futures, self._run.addresses, strict=False)
        )


def _end_run(run_id: str, reason: str) -> None:
    """Make the ranks of a run in this process stop; meant for ``client.run``."""
    close_run(run_id, reason)
    answer(run_id, None)
