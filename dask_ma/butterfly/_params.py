"""What butterfly mixing needs to know besides the parameters of every linear fit."""

from __future__ import annotations

from dataclasses import dataclass

from dask_ma.linear import LinearParams


@dataclass(frozen=True, kw_only=True)
class ButterflyParams(LinearParams):
    """Parameters of one fit by butterfly mixing.

    The names are those of :class:`~dask_ma.ButterflySGDClassifier`.
    """

    batch_size: int | str
    mixing: str
    eta0: float
    preconditioner: str | None
