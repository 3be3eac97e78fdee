"""What model averaging needs to know besides the parameters of every linear fit."""

from __future__ import annotations

from dataclasses import dataclass

from dask_ma.linear import RefineParams


@dataclass(frozen=True, kw_only=True)
class FitParams(RefineParams):
    """Parameters of one fit by model averaging.

    The names are those of :class:`~dask_ma.MASGDClassifier`.
    """

    learning_rate: str
    eta0: float
    power_t: float
    average: bool | int
    local_epochs: float | str
    paradigm: str
    batch_fraction: float
    aggregation: str
