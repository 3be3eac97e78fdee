"""Parameters of butterfly mixing, besides those of every linear fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dask_ma.linear import RefineParams


class Moments(NamedTuple):
    """What the preconditioner is made from.

    Attributes
    ----------
    sums : ndarray of shape (2, n_features)
        Weight of the rows in which a feature is not zero, and weighted sum of its
        squares, over all ranks.
    total : float
        Weight of all rows.
    """

    sums: np.ndarray
    total: float


@dataclass(frozen=True, kw_only=True)
class ButterflyParams(RefineParams):
    """Parameters of one fit by butterfly mixing.

    The names are those of :class:`~dask_ma.ButterflySGDClassifier`; the rest is listed
    here.

    Parameters
    ----------
    moments : Moments or None
        Those of the rows of calls before this one, which count, too.
    """

    batch_size: int | str
    mixing: str
    learning_rate: str
    eta0: float
    preconditioner: str | None
    average: bool | int
    moments: Moments | None = field(default=None, repr=False)
