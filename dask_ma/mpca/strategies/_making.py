"""Strategies of ranks from what users have chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from dask_ma._settings import Settings
from dask_ma.comm import Group
from dask_ma.mpca.strategies._base import Alone, Averaging, Strategy, Trainee
from dask_ma.mpca.strategies._coordinated import Coordinated
from dask_ma.mpca.strategies._descent import CommonDescent
from dask_ma.mpca.strategies._parameters import (
    MPCA,
    ElasticAveraging,
    Gradients,
    ParameterServer,
    Synchronous,
)
from dask_ma.mpca.strategies._schedules import schedule_of
from dask_ma.mpca.strategies._server import Central, Elastic

_ELASTICITY = 0.9  # of all ranks together (section 6.3)
_LEAST_EXCHANGES, _PERIOD = 10, 10  # of an epoch; in steps


def make_strategy(
    trainee: Trainee,
    chosen: Settings,
    n_steps: int,
    kept: Mapping[str, Any],
    second: Group | None,
    note: Callable[[str], None],
    n_batches: int,
    has_history: bool | None,
    *,
    pulls_at_once: bool = False,
    is_sparse: bool = False,
) -> Strategy:
    """How a rank works with the others; may be a collective call.

    Parameters
    ----------
    trainee : Trainee
        The rank.
    chosen : Settings
        Of :mod:`dask_ma.mpca.strategies`.
    n_steps : int
        Steps of a rank in an epoch, where all are alike.
    kept : mapping
        What all ranks know of a fit that goes on; empty for a new one.
    second : Group or None
        The rank for the thread of a server, where there is one.
    note : callable
        Queues a warning for the user.
    n_batches : int
        Batches of this rank in a pass over its rows; 0 where no row counts.
    has_history : bool or None
        Whether the rank has the optimiser's state of a fit that goes on; None in a new
        one.
    pulls_at_once : bool, default=False
        See :class:`Coordinated`.
    is_sparse : bool, default=False
        Whether all rows of the rank are.

    Returns
    -------
    strategy : Strategy
    """
    if isinstance(chosen, MPCA):
        return Coordinated(
            trainee,
            chosen.n_phases,
            schedule_of(chosen),
            chosen.weighting,
            kept.get("cycles") or None,
            max(1, n_steps // _LEAST_EXCHANGES),
            kept.get("trajectory"),
            n_steps,
            penalty_form=chosen.penalty_form,
            compression=chosen.compression,
            pulls_at_once=pulls_at_once,
        )
    if isinstance(chosen, Gradients):
        share = n_batches / n_steps
        return CommonDescent(trainee, n_steps, share, has_history, is_sparse=is_sparse)
    if isinstance(chosen, Synchronous):
        period = _cut_period(chosen.period, n_steps, note)
        return Averaging(trainee, period, chosen.compression)
    if isinstance(chosen, ElasticAveraging):
        elasticity = chosen.elasticity or _ELASTICITY / trainee.group.size
        period = _cut_period(chosen.period, n_steps, note)
        return Elastic(trainee, cast(Group, second), period, elasticity)
    if isinstance(chosen, ParameterServer):
        return Central(trainee, cast(Group, second))
    return Alone(trainee)


def _cut_period(wanted: int | None, most: int, note: Callable[[str], None]) -> int:
    """Steps from one exchange to the next; no epoch goes by without one."""
    if wanted is None:
        return min(_PERIOD, most)
    if wanted > most:
        note(
            f"period={wanted} of the strategy is cut to {most}, the steps that a "
            "rank makes in an epoch; take a smaller batch_size, or a shorter period"
        )
    return min(wanted, most)
