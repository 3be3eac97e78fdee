"""Scales of the features and targets of all ranks, and what helps with far ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.data import Shard
from dask_ma.engine import RankContext, State
from dask_ma.kernels import column_squares, column_sums, moment_sums_about
from dask_ma.mpca.networks._network import Scaling
from dask_ma.mpca.training._distances import distances_of, far_rows_note
from dask_ma.mpca.training._outliers import outliers_note, without_outliers
from dask_ma.mpca.training._params import MPCAParams

_FAR = 5.0  # standard deviations
_LARGE = 10.0  # a standard deviation
_SMALL = 1.0  # a distance of rows from their mean, the root of the mean square
_ROUNDING = 1e-13  # of the mean square of a feature: below it is no variance
# Of a mean square: a variance below may be what rounding has left of it. It takes
# another look at the rows, in which distances from the mean are squared.
_LOST = 1e-11
_LEFT = 64 * np.finfo(np.float64).eps
_APART = 10.0  # times the standard deviation of another column of targets
_HIDDEN = 0.03  # of a unit: rows this near to their mean are all alike in it
_OFF = 3.0  # a standard deviation of targets, or the inverse of one


class FeatureMoments(NamedTuple):
    """Features of the rows of all ranks.

    Attributes
    ----------
    mean, variance : ndarray of shape (n_features,)
    is_known : ndarray of bool, shape (n_features,)
        Whether they are finite.
    has_values : ndarray of bool, shape (n_features,)
        Whether any row has another value than 0.
    """

    mean: np.ndarray
    variance: np.ndarray
    is_known: np.ndarray
    has_values: np.ndarray


def find_scaling(
    context: RankContext,
    shard: Shard,
    params: MPCAParams,
    target_variance: np.ndarray | None,
    kept: State | None,
) -> tuple[Scaling | None, np.ndarray | None]:
    """How a network scales its rows; a collective call.

    Parameters
    ----------
    context : RankContext
        This rank.
    shard : Shard
        Its rows.
    params : MPCAParams
        Parameters of the fit.
    target_variance : ndarray of shape (n_targets,) or None
        As in :func:`agree_on_scaling`.
    kept : State or None
        State of a fit that goes on.

    Returns
    -------
    scaling : Scaling or None
    has_values : ndarray of bool of shape (n_features,), or None
        Which features are not 0 in all rows, if the rows have been looked at.
    """
    if kept is not None:
        return kept_scaling(kept.shared), None
    if not params.is_suited:
        return params.scaling, None
    moments = moments_of_features(context.group, shard)
    scaling = agree_on_scaling(
        context.group, shard, target_variance, context.note, moments
    )
    return scaling, moments.has_values


def agree_on_scaling(
    group: Group,
    shard: Shard,
    target_variance: np.ndarray | None,
    tell: Callable[[str], None] | None = None,
    moments: FeatureMoments | None = None,
) -> Scaling | None:
    """Scales of the features and targets, if they need any; a collective call.

    The gradient of a network by the weights of a feature far from zero is nearly the
    same in each row, whatever the feature says, and large: steps move the hidden units
    as a whole, out of the range in which they tell rows apart. A feature of a large
    scale drowns the others, and a step that suits them throws the outputs about. Steps
    of one size take long to come to large targets, and go past small ones.

    Parameters
    ----------
    group : Group
        This rank.
    shard : Shard
        Its rows; the weights of all ranks have a sum above 0.
    target_variance : ndarray of shape (n_targets,) or None
        Of each column of y; None for a classifier, whose outputs are scores of labels,
        near 1.
    tell : callable, default=None
        Called with a note for the user.
    moments : FeatureMoments, default=None
        Of the features, where they are known; None finds them.

    Returns
    -------
    scaling : Scaling or None
        Outputs of a regression are scaled by the standard deviation of the targets, the
        root of the mean variance, where that is above 3 or below a third, unless those
        of columns are ten times apart: the smaller ones would begin far off. Then large
        features are left as they are, too: outputs as large as the targets may be made
        of them.

        Rows whose distance from their mean is below 1 are divided by that, so that
        a network learns of them, too; all else is for rows so divided.

        Otherwise the center is the weighted mean of each feature, and the scale its
        standard deviation, but 1 where that is less, if a feature is more than five
        standard deviations from zero or has one above 10; of a regression with outputs
        as they are the means of the far features, and 1, unless a feature is large and
        columns are not apart. None if there is nothing to scale. The same on every
        rank.

        Means and standard deviations of a classification, and the distance of its rows,
        are those without the few values that would drown all others. Steps of a
        regression would follow the losses of such rows, which have no bound: they
        count, and the user is told.
    """
    target_scale = _scale_of(target_variance)
    outputs = np.array(target_scale or 1.0)
    moments = moments or moments_of_features(group, shard)
    mean, variance, is_known, _ = moments
    is_regression = target_variance is not None
    unit = _unit_of(mean, variance)
    # A few values of another size must not make a scale in which all others vanish.
    of_most, of_rest = _units_of_most(group, shard, moments, unit)
    unit = unit if is_regression else of_most
    if of_rest < _HIDDEN * unit and tell is not None:
        tell(far_rows_note(unit, of_rest))
    with np.errstate(over="ignore", invalid="ignore"):
        is_wide = is_known & (variance > (_LARGE * unit) ** 2)
    inner = without_outliers(group, shard, mean, np.where(is_wide, variance, 0.0))
    drowned = np.flatnonzero(is_wide & (inner[1] < variance))
    with_all = variance
    if not is_regression:
        mean, variance = np.where(is_wide, inner, (mean, variance))
    if unit != 1:
        mean, variance = mean / unit, variance / unit**2
    units = np.array(unit)
    with np.errstate(over="ignore", invalid="ignore"):
        # What a square is more than that of the mean may be rounding, below 0 even.
        is_far = is_known & (mean != 0) & (mean**2 > _FAR**2 * variance)
        is_large = is_known & (variance > _LARGE**2)
    ones = np.ones(len(mean))
    is_plain = is_regression and outputs == 1 and not is_large.any()
    if target_scale is None or is_plain:
        far = Scaling(np.where(is_far, mean, 0.0), ones, unit=units)
        return far if unit != 1 or is_far.any() else None
    if not (is_far.any() or is_large.any()):
        nothing = Scaling(np.zeros(len(mean)), ones, outputs, units)
        return nothing if outputs != 1 or unit != 1 else None
    if len(drowned) and is_regression and tell is not None:
        tell(outliers_note(drowned, with_all, inner[1]))
    scale = np.sqrt(np.maximum(1.0, variance, where=is_known, out=ones))
    return Scaling(np.where(is_known, mean, 0.0), scale, outputs, units)


def _scale_of(variance: np.ndarray | None) -> float | None:
    """Standard deviation to allow for, 1 if that is moderate; None if there is none."""
    if variance is None:
        return 1.0
    varying = variance[variance > 0]
    if len(varying) and varying.max() > _APART**2 * varying.min():
        return None
    spread = float(np.sqrt(np.mean(variance)))
    is_off = 0 < spread < 1 / _OFF or _OFF < spread < np.inf
    return spread if is_off else 1.0


def _unit_of(mean: np.ndarray, variance: np.ndarray) -> float:
    """Distance of rows from their mean, if it is small; 1 if not."""
    with np.errstate(over="ignore", invalid="ignore"):
        least = _ROUNDING * (np.abs(variance) + mean**2)
        is_certain = variance > least
        known, doubt = variance[is_certain].sum(), least[~is_certain].sum()
    # Steps of the size that suits features near 1 would take for ever.
    distance = float(np.sqrt(known + doubt))
    return distance if doubt < known < _SMALL**2 else 1.0


def _units_of_most(
    group: Group, shard: Shard, moments: FeatureMoments, unit: float
) -> tuple[float, float]:
    """The unit without few rows far out, and without some; a collective call."""
    if not moments.is_known.all():
        return unit, unit
    square, inner, rest, size = distances_of(group, shard, moments.mean)
    most = min(square, _SMALL**2)
    inner, rest = (
        float(np.sqrt(each)) if _ROUNDING * (each + size) < each < most else unit
        for each in (inner, rest)
    )
    return inner, min(inner, rest)


def kept_scaling(shared: Mapping[str, Any]) -> Scaling | None:
    """The scaling in the state of a fit, if it has one.

    Parameters
    ----------
    shared : mapping
        What all ranks have kept.

    Returns
    -------
    scaling : Scaling or None
    """
    if "scale" not in shared:
        return None
    return Scaling(**{name: shared[name] for name in Scaling._fields if name in shared})


def unscaled_tol(tol: float | None, scaling: Scaling | None) -> float | None:
    """By how much the loss of targets as they are must fall, for that of scaled ones.

    Parameters
    ----------
    tol : float or None
        For targets that are scaled; None if it may do anything.
    scaling : Scaling or None
        Of the fit.

    Returns
    -------
    tol : float or None
    """
    if tol is None or scaling is None:
        return tol
    return tol * float(scaling.outputs) ** 2


def moments_of_features(group: Group, shard: Shard) -> FeatureMoments:
    """Moments of the features over all ranks; a collective call."""
    n_features = shard.n_features
    sums = np.zeros(1 + 2 * n_features)
    with np.errstate(over="ignore", invalid="ignore"):
        for block in shard.read():
            weight = block.weights()
            sums[0] += weight.sum()
            sums[1 : 1 + n_features] += column_sums(block.X, weight)
            sums[1 + n_features :] += column_squares(block.X, weight)
        sums = allreduce(group, sums)
        mean, square = sums[1:].reshape(2, n_features) / sums[0]
        has_values = (mean != 0) | (square != 0)
        is_known = np.isfinite(square)
        variance = square - mean**2
        hidden = _LOST * square
        lost = np.flatnonzero(is_known & (variance <= hidden) & (hidden > _SMALL))
    if len(lost):
        own = np.zeros((2, len(lost)))
        for block in shard.read():
            own += moment_sums_about(block.X, block.sample_weight, lost, mean[lost])
        off, about = allreduce(group, own) / sums[0]
        mean[lost] += off
        # The network takes the products of means and weights from those of rows, which
        # leaves as much of a column that is the same in all of them.
        least = _LEFT * np.abs(mean[lost])
        variance[lost] = np.maximum(about - off**2, least**2)
    return FeatureMoments(mean, variance, is_known, has_values)
