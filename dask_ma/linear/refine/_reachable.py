"""Targets that no model can reach, or that all models reach, by the units they are in.

The slope of some losses has a bound `s`. At the optimum with an L2 penalty of weight
`alpha` coefficients are a mean of centred rows, each times its slope, over `alpha`: the
length of none is above ``s sqrt(T) / alpha``, where `T` is the sum of the variances of
the columns, and the values of no model deviate by more than ``s T / alpha``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dask_ma.data import Shard
from dask_ma.linear._model import RefineParams
from dask_ma.linear.refine._coordinates import Coordinates

_NORMAL = 1.4826  # deviations of normal targets over their median distance
# Of the deviation of targets: values that vary less explain three quarters at most.
_FEW = 0.5
_TUBE = 2.0  # deviations, within which nearly all targets are


def notes_on_targets(
    shard: Shard, params: RefineParams, coordinates: Coordinates
) -> Iterator[str]:
    """What the user is to know of a loss and the units of the targets.

    Parameters
    ----------
    shard : Shard
        Rows of one rank, which stand for all: a few targets far off do not count.
    params : RefineParams
        Parameters of the fit.
    coordinates : Coordinates
        Variances of all columns and targets.

    Yields
    ------
    note : str
    """
    is_known = not params.is_classifier and isinstance(params.loss, str)
    if not (is_known and shard.blocks):
        return
    y, spread = np.concatenate([block.y for block in shard.blocks]), coordinates.spread
    loss = str(params.loss)
    has_tube = loss.endswith("epsilon_insensitive")
    is_narrow = coordinates.has_spread and _TUBE * spread < params.epsilon
    # A few targets outside may be what the tube is for.
    if has_tube and is_narrow and np.ptp(y) <= 2 * params.epsilon:
        yield (
            f"loss={loss!r} counts no residual below epsilon={params.epsilon:g}"
            f", and the standard deviation of the targets is {spread:.3g}, so that "
            "nearly all models are as good; scale y to a deviation near 1, or lower "
            "epsilon"
        )
        return
    slopes = {"huber": params.epsilon, "epsilon_insensitive": 1.0}
    slope, l2 = slopes.get(loss, np.inf), coordinates.penalty.l2
    if not (np.isfinite(slope) and l2):
        return
    most = slope * coordinates.total_variance / l2
    distance = float(np.median(np.abs(y - np.median(y))))
    if most < _FEW * _NORMAL * distance:
        cure = ", raise epsilon" if loss == "huber" else ""
        yield (
            f"with loss={loss!r} and alpha={params.alpha:g} the values of no "
            f"model have a standard deviation above {most:.3g}, and half of the "
            f"targets are {distance:.3g} or more from their median; scale y to a "
            f"deviation near 1{cure}, or lower alpha"
        )
