"""Parameters of a logistic regression, as sent to every rank."""

from __future__ import annotations

from dataclasses import dataclass

from dask_ma.linear import LinearParams
from dask_ma.sfb.exchange._settings import RunSettings


@dataclass(frozen=True, kw_only=True)
class SFBParams(LinearParams):
    """Parameters of one fit by sufficient factor broadcasting.

    The names are those of :class:`~dask_ma.SFBLogisticRegression`.

    Parameters
    ----------
    solver, learning_rate : str
    eta0 : float or "auto"
    power_t : float
    refine : bool
        Whether steps on the whole objective may follow.
    must_refine : bool
        Whether there must be memory for them.
    may_open_with_steps : bool
        Whether these may come first, where they take less than passes.
    centre : bool
        Whether dense rows are centred.
    settings : RunSettings
        How the ranks train and exchange.
    link_bandwidth : float
        Bytes a second between two ranks.
    most_moved : float
        Bytes of rows that may go to one rank.
    """

    solver: str
    learning_rate: str
    eta0: float | str
    power_t: float
    refine: bool
    must_refine: bool
    may_open_with_steps: bool
    centre: bool
    settings: RunSettings
    link_bandwidth: float
    most_moved: float
