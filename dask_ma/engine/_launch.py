"""Start an agent on every rank, see it through, and return what it found."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from pickle import PickleBuffer
from typing import Any

from distributed import Client, Future
from distributed.protocol import pickle

from dask_ma import _config
from dask_ma.comm import LocalGroup, ensure_plugin
from dask_ma.engine._causes import order_of
from dask_ma.engine._context import Listener, RankContext, tell
from dask_ma.engine._monitor import RunMonitor
from dask_ma.engine._process import kept_memory, limited_blas
from dask_ma.engine._run import Agent, Run, run_rank
from dask_ma.engine.recovery._identity import FitInfo, Trail, note_ended
from dask_ma.exceptions import GroupClosedError

logger = logging.getLogger("dask_ma.engine")

# Ranks that are each sent the addresses of all. Those of more ranks go to rank 0 alone,
# and from rank to rank: what passes through client and scheduler would grow with the
# square of the ranks (29 MB for a thousand).
_FEW = 64
# Ranks that send rank 0 what they have noted of their time though nobody has asked.
_MOST_TIMED = 64
# Tasks that are made while the client does nothing else, in some 0.2 ms each.
_TOGETHER = 64
# Bytes of a model to start from with which it goes to one rank only, which broadcasts
# it. In the task of each rank, all of them would pass through the scheduler.
_MUCH = 1 << 16


def launch(
    agent: Agent,
    shards: Sequence[Any],
    params: Any = None,
    *,
    name: str,
    client: Client | None,
    addresses: Sequence[str] | None,
    seed: int = 0,
    blas_threads: int = 1,
    listener: Listener | None = None,
    collect: str = "root",
    fit_info: FitInfo | None = None,
    trail: Trail | None = None,
    is_to_stop: Callable[[], bool] | None = None,
) -> Any:
    """Run `agent` on all ranks and wait for its result.

    Parameters
    ----------
    agent : callable
        ``agent(context, shard, params)``; it must be importable on the workers, or be
        picklable by cloudpickle.
    shards : sequence
        What each rank works on; futures inside are replaced by their data on the
        workers.
    params : object
        What all ranks get.
    name : str
        Name for the dashboard and for errors.
    client : Client or None
        Cluster to run on; None runs the ranks as threads of this process.
    addresses : sequence of str or None
        Worker of each rank; None without a client.
    seed : int, default=0
        Seed of the ranks' random numbers.
    blas_threads : int, default=1
        Threads that BLAS may use in each process meanwhile.
    listener : callable, default=None
        Gets the records while the run lasts; called in this thread. True ends the fit.
    collect : {"root", "all"}, default="root"
        Return the result of rank 0, or a list of the results of all ranks.
    fit_info : FitInfo, default=None
        The fit that this launch belongs to.
    trail : Trail, default=None
        Gets the tasks of the ranks, which otherwise are released.
    is_to_stop : callable, default=None
        Asked now and then whether the ranks are to end after their round.

    Returns
    -------
    result : object or list of object

    Raises
    ------
    FitFailedError
        If a worker is lost, or a wait takes longer than configured.
    Exception
        What the agent raised, if it did.
    """
    if client is None or addresses is None:
        return _launch_here(
            agent, shards, params, name, seed, blas_threads, listener, collect, fit_info
        )
    run = Run(
        name=name,
        run_id=uuid.uuid4().hex,
        addresses=tuple(addresses),
        agent=agent,
        params=params,
        shares_params=len(addresses) > 1 and _nbytes(params) > _MUCH,
        shares_addresses=len(addresses) > _FEW,
        seed=seed,
        blas_threads=blas_threads,
        listening=listener is not None,
        collect=collect,
        fit_info=fit_info,
        is_timed=is_timed(len(addresses)),
    )
    _ensure_plugin_once(client, trail)
    logger.debug("run %s of %s on %d ranks", run.run_id, name, run.size)
    with RunMonitor(run, client, listener, trail, is_to_stop) as watch:
        watch.start(_submit(client, run, shards))
        return watch.result()


def _submit(client: Client, run: Run, shards: Sequence[Any]) -> list[Future]:
    """Have the tasks of all ranks begin at once."""
    # What the client has to send to the scheduler goes at once, but what comes right
    # behind it waits for 10 ms, in which the first rank would wait for the others. Of
    # tasks that are made in the loop that sends them, many go together.
    pairs = list(zip(run.addresses, shards, strict=True))

    async def submit(ranks: range) -> list[Future]:
        return [
            client.submit(
                run_rank,
                run.of_rank(rank),
                rank,
                pairs[rank][1],
                key=run.key(rank),
                workers=[pairs[rank][0]],
                allow_other_workers=False,
                pure=False,
            )
            for rank in ranks
        ]

    starts = range(0, run.size, _TOGETHER)
    parts = [range(at, min(at + _TOGETHER, run.size)) for at in starts]
    return [future for part in parts for future in client.sync(submit, part)]


def _ensure_plugin_once(client: Client, trail: Trail | None) -> None:
    """Have the workers look after ranks, once in a fit."""
    # The scheduler gives the plugin to workers that join; to register it again would
    # mean to wait for workers that are about to go.
    if trail is None or not trail.has_plugin:
        ensure_plugin(client)
    if trail is not None:
        trail.has_plugin = True


def _launch_here(
    agent: Agent,
    shards: Sequence[Any],
    params: Any,
    name: str,
    seed: int,
    blas_threads: int,
    listener: Listener | None,
    collect: str,
    fit_info: FitInfo | None,
) -> Any:
    """Run the ranks as threads of this process; rank 0 is this thread."""
    groups = LocalGroup.create(len(shards))
    contexts = [
        RankContext(
            group,
            seed,
            listening=listener is not None,
            listener=listener if group.rank == 0 else None,
            fit_info=fit_info,
            arguments=shards[group.rank],
            is_timed=is_timed(len(shards)),
        )
        for group in groups
    ]
    results: list[Any] = [None] * len(shards)
    errors: list[BaseException | None] = [None] * len(shards)

    def run(rank: int) -> None:
        try:
            with contexts[rank].blaming_checkpoint():
                results[rank] = agent(contexts[rank], shards[rank], params)
        except BaseException as error:
            errors[rank] = error
            groups[rank].abort(GroupClosedError(f"rank {rank} of {name} failed"))

    threads = [
        threading.Thread(
            target=run, args=(rank,), name=f"dask_ma-{name}-{rank}", daemon=True
        )
        for rank in range(1, len(shards))
    ]
    with limited_blas(blas_threads), kept_memory():
        for thread in threads:
            thread.start()
        run(0)
        for thread in threads:
            thread.join()
    raise_first(errors)
    note_ended(contexts[0].series)
    tell(contexts[0].notes)
    return results if collect == "all" else results[0]


def is_timed(n_ranks: int) -> bool:
    """Whether the timeline of so many ranks is asked for."""
    chosen = _config.get("trace.timeline")
    if chosen == "auto":
        return n_ranks <= _MOST_TIMED
    if not isinstance(chosen, bool):
        raise ValueError(
            f"the configuration dask-ma.trace.timeline is {chosen!r}, expected true, "
            "false or 'auto'"
        )
    return chosen


def _nbytes(params: Any) -> int:
    """Bytes of an object on its way to a rank."""
    buffers: list[PickleBuffer] = []
    pickled = pickle.dumps(params, buffer_callback=buffers.append)
    return len(pickled) + sum(buffer.raw().nbytes for buffer in buffers)


def raise_first(errors: Sequence[BaseException | None]) -> None:
    """Raise the cause: the error of the lowest rank that is not a consequence."""
    found = [error for error in errors if error is not None]
    if found:
        raise min(found, key=order_of)
