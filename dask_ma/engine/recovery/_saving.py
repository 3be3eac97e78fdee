"""Writing the checkpoints of a fit: by rank 0 alone, or each rank its part."""

from __future__ import annotations

import threading
import weakref
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from dask_ma.comm import allreduce, gather
from dask_ma.engine.recovery._checkpoint import Store
from dask_ma.engine.recovery._identity import FitInfo
from dask_ma.engine.recovery._manifest import Saved
from dask_ma.engine.recovery._series import Series

if TYPE_CHECKING:
    from dask_ma.comm import Group


class Progress(Protocol):
    """What is saved of a rank besides its model: history, clock, random numbers."""

    group: Group
    seed: np.random.SeedSequence
    history: list[dict[str, Any]]

    def elapsed(self) -> float:
        """Seconds since the start."""

    def set_elapsed(self, seconds: float) -> None:
        """Set the seconds since the start."""

    def set_seed(self, seed: int, rank: int) -> None:
        """Draw the random numbers of a shard from a seed."""

    def note(self, message: str) -> None:
        """Queue a warning for the user."""


class Saver:
    """Writes the checkpoints of one fit; every rank has one.

    Parameters
    ----------
    context : Progress
        The rank, and how far it is.
    fit_info : FitInfo
        The fit.
    """

    def __init__(self, context: Progress, fit_info: FitInfo) -> None:
        # No cycle, in which what a rank has would outlive it.
        self._context: Progress = weakref.proxy(context)
        self._group = context.group
        self._fit_info = fit_info
        self._saved_at = monotonic()
        self._pending: _Pending | None = None

    def seconds_since(self) -> float:
        """Time since the last checkpoint; on rank 0."""
        return monotonic() - self._saved_at

    def save(
        self,
        series: Series,
        rows: Any,
        n_rounds: int,
        shared: dict[str, Any],
        own: dict[str, Any],
        *,
        done: bool,
    ) -> None:
        """Collect what the ranks have of their own; rank 0 writes it all.

        Parameters
        ----------
        series : Series
            Where to.
        rows : list or None
            Which rows this rank has.
        n_rounds : int
            Rounds made.
        shared, own : dict
            What all ranks have, and what only this one has.
        done : bool
            Whether this was the last round.
        """
        owns = gather(self._group, (own, rows))
        saved = self._describe(series, n_rounds, shared, done=done)
        if owns is not None and saved is not None:
            states, shares = [state for state, _ in owns], [rows for _, rows in owns]
            self._write(series, saved._replace(own=states, shares=shares))

    def begin_parts(
        self,
        series: Series,
        rows: Any,
        n_rounds: int,
        shared: dict[str, Any],
        own: dict[str, Any],
        *,
        done: bool,
    ) -> None:
        """Have each rank begin to write what it has; a collective call.

        Parameters
        ----------
        series, rows, n_rounds, shared, own, done
            As in :meth:`save`. Arrays must not be changed afterwards.
        """
        self.finish_parts(at_once=True)
        shares = gather(self._group, rows)
        saved = self._describe(series, n_rounds, shared, done=done)
        settings = self._fit_info.checkpoint
        if saved is None or settings is None:
            return
        if shares is not None:
            saved = saved._replace(shares=shares)
        store = Store(settings.path)
        writer = f"{self._fit_info.fit_id[:8]}{self._fit_info.attempt:04x}"
        name = store.part_name(series.name, n_rounds, writer, self._group.rank)
        self._saved_at = monotonic()
        self._pending = _Pending(series, saved, _PartWriter(store, name, own))

    def finish_parts(self, *, at_once: bool) -> None:
        """Complete a checkpoint when all ranks have written theirs; a collective call.

        Parameters
        ----------
        at_once : bool
            Whether to wait for them.

        Raises
        ------
        CheckpointError
            If a part of it cannot be written.
        """
        pending = self._pending
        if pending is None:
            return
        if not at_once and _any(self._group, not pending.writer.is_done):
            return
        self._pending = None
        entries = gather(self._group, pending.writer.result())
        if entries is not None:
            self._write(pending.series, pending.saved._replace(own=entries))

    def _describe(
        self, series: Series, n_rounds: int, shared: dict[str, Any], *, done: bool
    ) -> Saved | None:
        """What rank 0 writes, but for what the ranks have of their own."""
        fit_info, context = self._fit_info, self._context
        if fit_info.identity is None or fit_info.checkpoint is None:
            return None
        entropy: Any = context.seed.entropy
        return Saved(
            name=fit_info.identity.name,
            parameters=fit_info.identity.parameters,
            options=fit_info.identity.options,
            data=series.data,
            fit_id=fit_info.fit_id,
            writer=fit_info.session.writer,
            seed=int(entropy),
            done=done,
            round=n_rounds,
            elapsed=context.elapsed(),
            shared=shared,
            own=[],
            shares=[],
            history=list(context.history),
        )

    def _write(self, series: Series, saved: Saved) -> None:
        """Write a checkpoint; on rank 0."""
        settings = self._fit_info.checkpoint
        if settings is not None:
            Store(settings.path).save(series.name, saved, settings.keep)
            self._saved_at = monotonic()


class _PartWriter:
    """Writes the part of a rank in a thread of its own."""

    def __init__(self, store: Store, name: str, own: dict[str, Any]) -> None:
        self._store, self._name, self._own = store, name, own
        self._error: BaseException | None = None
        self._entry: dict[str, Any] = {}
        self._thread = threading.Thread(
            target=self._write, name="dask_ma-checkpoint", daemon=True
        )
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether the file is there, or cannot be written."""
        return not self._thread.is_alive()

    def result(self) -> dict[str, Any]:
        """What the manifest is to say of the file, after waiting for it."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._entry

    def _write(self) -> None:
        try:
            self._entry = self._store.save_part(self._name, self._own)
        except BaseException as error:  # for the thread of the rank
            self._error = error


class _Pending(NamedTuple):
    """A checkpoint whose parts are being written."""

    series: Series
    saved: Saved
    writer: _PartWriter


def _any(group: Group, flag: bool) -> bool:
    """Whether the flag of any rank is set; a collective call."""
    return bool(allreduce(group, np.array(flag, dtype=np.int8), "max"))
