"""Targets that no model can reach, or that all models reach, by units or far out.

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
_DROWNED = 5.0  # deviations that those of most targets make of the standard deviation
_TUBE = 2.0  # deviations, within which nearly all targets are
_INNER = 0.9  # of the targets, which are not far out
_USUAL = 3.0  # times their mean deviation: residuals that cost more are far out
_N_SEEN = 1000  # targets of all ranks that stand for the others


def notes_on_units(
    group: Group, shard: Shard, params: RefineParams, coordinates: Coordinates
) -> Iterator[str]:
    """What the user is to know of the units of features and targets; collective.

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
    if coordinates.note is not None:
        yield coordinates.note
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
    slope, l2 = _slope_of(params), coordinates.penalty.l2
    if not (np.isfinite(slope) and l2):
        return
    most = slope * coordinates.total_variance / l2
    distance = float(np.median(np.abs(y - np.median(y))))
    if most < _FEW * _NORMAL * distance:
        cure = ", raise epsilon" if loss == "huber" else ""
        # Where few are far out, the standard deviation tells of nothing else.
        is_drowned = spread > _DROWNED * _NORMAL * distance
        robust = " with sklearn.preprocessing.RobustScaler, as some targets are far out"
        scaler = robust if is_drowned else ""
        yield (
            f"with loss={loss!r} and alpha={params.alpha:g} the values of no "
            f"model have a standard deviation above {most:.3g}, and half of the "
            f"targets are {distance:.3g} or more from their median; scale y to a "
            f"deviation near 1{scaler}{cure}, or lower alpha"
        )


def usual_objective(group: Group, shard: Shard, params: RefineParams) -> float:
    """A few times what residuals as large as most deviations cost; collective.

    Where the slope of the loss has a bound, a few targets far out may cost any model a
    thousand times what all others do, and say nothing of how good it is.

    Parameters
    ----------
    group : Group
        This rank.
    shard : Shard
        Its rows.
    params : RefineParams
        Parameters of the fit.

    Returns
    -------
    objective : float
        Infinite where the slope has no bound, or nearly all targets are the same.
    """
    slope = _slope_of(params)
    if not np.isfinite(slope):
        return np.inf
    y, _ = _some_targets(group, shard)
    deviations = np.sort(np.abs(y - np.median(y)))
    inner = deviations[: max(1, int(_INNER * len(deviations)))]
    return _USUAL * slope * float(inner.mean()) or np.inf


def _slope_of(params: RefineParams) -> float:
    """The largest slope of the loss of a regression; infinite if it is not known."""
    if params.is_classifier or not isinstance(params.loss, str):
        return np.inf
    slopes = {"huber": params.epsilon, "epsilon_insensitive": 1.0}
    return slopes.get(params.loss, np.inf)


def _some_targets(group: Group, shard: Shard) -> tuple[np.ndarray, float]:
    """Some targets of all ranks, evenly spaced, and their range: a collective call."""
    own = [block.y for block in shard.blocks]
    y = np.sort(np.concatenate([np.zeros(0), *own]))
    step = max(1, sum(allgather(group, len(y))) // _N_SEEN)
    parts = allgather(group, (y[step // 2 :: step], y[:1], y[-1:]))
    some, least, most = (np.concatenate(column) for column in zip(*parts, strict=True))
    return some, float(most.max() - least.min())
