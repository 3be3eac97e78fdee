"""Targets that no model can reach, or that all models reach, by the units they are in.

The slope of some losses has a bound `s`. At the optimum with an L2 penalty of weight
`alpha` coefficients are a mean of centred rows, each times its slope, over `alpha`: the
length of none is above ``s sqrt(T) / alpha``, where `T` is the sum of the variances of
the columns, and the values of no model deviate by more than ``s T / alpha``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dask_ma.comm import Group, allgather
from dask_ma.data import Shard
from dask_ma.linear._model import RefineParams
from dask_ma.linear.refine._coordinates import Coordinates

_NORMAL = 1.4826  # deviations of normal targets over their median distance
# Of the deviation of targets: values that vary less explain three quarters at most.
_FEW = 0.5
_TUBE = 2.0  # deviations, within which nearly all targets are
_N_SEEN = 1000  # targets of all ranks that stand for the others


def notes_on_targets(
    group: Group, shard: Shard, params: RefineParams, coordinates: Coordinates
) -> Iterator[str]:
    """What the user is to know of a loss and the units of the targets; collective.

    Parameters
    ----------
    group : Group
        This rank.
    shard : Shard
        Its rows.
    params : RefineParams
        Parameters of the fit.
    coordinates : Coordinates
        Variances of all columns and targets.

    Yields
    ------
    note : str
    """
    is_known = not params.is_classifier and isinstance(params.loss, str)
    loss, spread = str(params.loss), coordinates.spread
    has_tube = loss.endswith("epsilon_insensitive")
    if not is_known or not (has_tube or loss == "huber"):
        return
    y, width = _some_targets(group, shard)
    is_narrow = coordinates.has_spread and _TUBE * spread < params.epsilon
    # A few targets outside may be what the tube is for.
    if has_tube and is_narrow and width <= 2 * params.epsilon:
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


def _some_targets(group: Group, shard: Shard) -> tuple[np.ndarray, float]:
    """Some targets of all ranks, evenly spaced, and their range: a collective call."""
    own = [block.y for block in shard.blocks]
    y = np.sort(np.concatenate([np.zeros(0), *own]))
    step = max(1, sum(allgather(group, len(y))) // _N_SEEN)
    parts = allgather(group, (y[step // 2 :: step], y[:1], y[-1:]))
    some, least, most = (np.concatenate(column) for column in zip(*parts, strict=True))
    return some, float(most.max() - least.min())
