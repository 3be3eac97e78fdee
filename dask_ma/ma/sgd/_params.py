"""Parameters of model averaging, besides those of every linear fit."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dask_ma.linear import RefineParams
from dask_ma.ma._paradigm import Gradients, Models


@dataclass(frozen=True, kw_only=True)
class FitParams(RefineParams):
    """Parameters of one fit by model averaging.

    The names are those of :class:`~dask_ma.MASGDClassifier`; the rest is listed here.

    Parameters
    ----------
    eta : float or None
        Step size to go on with where ``learning_rate="auto"`` has found one before.
    mean : tuple of (ndarray, ndarray, float, float) or None
        A mean of models to go on with: coefficients, intercepts, and how many rows and
        rounds have gone into it.
    join_limit : int
        Bytes up to which blocks are joined.
    link_bandwidth : float
        Bytes a second from one worker to another.
    """

    learning_rate: str
    eta0: float
    power_t: float
    average: bool | int
    local_epochs: float | str
    paradigm: Models | Gradients
    join_limit: int
    link_bandwidth: float
    eta: float | None = None
    mean: tuple[np.ndarray, np.ndarray, float, float] | None = field(
        default=None, repr=False
    )

    @property
    def is_balanced(self) -> bool:
        """Whether step sizes are found by trial and shrink with the objective."""
        return self.learning_rate == "auto" and isinstance(self.paradigm, Models)
