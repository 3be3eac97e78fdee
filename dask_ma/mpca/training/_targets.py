"""Targets of a regression on all ranks: their means, and how the ranks differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from scipy.special import entr

from dask_ma.comm import Group, allgather, allreduce
from dask_ma.data import Shard
from dask_ma.mpca.networks._network import Network
from dask_ma.mpca.training._params import LITTLE_EXPLAINED, Baseline, MPCAParams
from dask_ma.supervised import Problem

_FAR = 0.5  # of a standard deviation between the mean of a rank and that of all
_ROUNDING = 1e-24  # of the square of the mean
_AT_ONCE = 2**18  # targets, of which there are copies
_TAILED = 100.0  # times the square of the variance, the mean fourth power
_UNLIKELY = 4.0  # times what is to be expected of a random draw


class Moments(NamedTuple):
    """Targets of one rank.

    Attributes
    ----------
    n_rows : int
    weight : float
        Of all rows together.
    mean : ndarray of float64, shape (n_targets,)
    variation : ndarray of float64, shape (n_targets,)
        Weighted sum of the squared deviations from the mean.
    """

    n_rows: int
    weight: float
    mean: np.ndarray
    variation: np.ndarray


class Targets(NamedTuple):
    """Targets of all ranks.

    Attributes
    ----------
    mean : ndarray of float64, shape (n_targets,)
        Weighted mean over all rows; one element for a y of one dimension.
    variance : ndarray of float64, shape (n_targets,)
        Of each column.
    uneven : str or None
        Says so if the targets of some rank are not a random draw from all.
    """

    mean: np.ndarray
    variance: np.ndarray
    uneven: str | None

    @property
    def half_variance(self) -> float:
        """The mean over columns: the loss of predicting the mean."""
        return float(np.mean(self.variance)) / 2 if len(self.variance) else 0.0

    @property
    def mean_square(self) -> float:
        """Of the targets, the mean over columns."""
        return 2 * self.half_variance + float(np.mean(self.mean**2))

    @property
    def untrained(self) -> float:
        """Squared error of predictions that are hardly better than the mean."""
        if not self.half_variance > 0:
            return np.inf
        return (1 - LITTLE_EXPLAINED) * self.half_variance


def agree_on_targets(
    group: Group,
    shard: Shard,
    n_targets: int | None,
    tell: Callable[[str], None] | None = None,
) -> Targets:
    """Mean of the targets, and whether the ranks have similar ones; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    shard : Shard
        Its rows, y as floats; the weights of all ranks have a sum above 0.
    n_targets : int or None
        Columns of y; None for a y of one dimension.
    tell : callable, default=None
        Called with a note for the user where a few rows make up the variance; given
        on all ranks or on none.

    Returns
    -------
    targets : Targets
    """
    found: list[Moments] = allgather(group, moments_of(shard, n_targets or 1))
    weights = np.array([each.weight for each in found])
    means = np.array([each.mean for each in found])
    mean = weights @ means / weights.sum()
    variation = np.sum([each.variation for each in found], axis=0)
    variance = (variation + weights @ (means - mean) ** 2) / weights.sum()
    variance[variance <= _ROUNDING * mean**2] = 0  # what is left of a constant
    if tell is not None:
        note = _describe_tails(group, shard, mean, np.sqrt(variance))
        if note is not None:
            tell(note)
    uneven = _describe_uneven(found, mean, np.sqrt(variance))
    return Targets(mean, variance, uneven)


def find_baseline(
    params: MPCAParams, problem: Problem, targets: Targets, network: Network
) -> Baseline:
    """What models lose that look at no features.

    Parameters
    ----------
    params : MPCAParams
        Parameters of the fit.
    problem : Problem
        The rows.
    targets : Targets
        Their targets, where there are no classes.
    network : Network
        What is trained on them.

    Returns
    -------
    baseline : Baseline
        Zeros where the loss is neither the log loss of labels nor the squared error.
    """
    if not params.is_classifier:
        # The built-in network begins at the mean, and a module near zero.
        variance = 2 * targets.half_variance
        start = variance if params.spec.has_scaling else targets.mean_square
        factor = network.squared_error
        return Baseline(factor * variance, factor * start)
    if network.log_loss is None:
        return Baseline()
    if problem.shares is not None:
        return Baseline(entr(problem.shares).sum(), np.log(len(problem.shares)))
    each = np.sum(entr([targets.mean, 1 - targets.mean]), axis=0)
    total = np.array([each.sum(), len(each) * np.log(2)])
    return Baseline(*(total if network.log_loss == "sum" else total / len(each)))


def moments_of(shard: Shard, n_targets: int) -> Moments:
    """Targets of this rank; the squares are of deviations, which loses no digits.

    Parameters
    ----------
    shard : Shard
        Rows, perhaps none, y as floats.
    n_targets : int
        Columns of y, 1 for a y of one dimension.

    Returns
    -------
    moments : Moments
        Zeros for no rows.
    """
    total = float(sum(block.weights().sum() for block in shard.blocks))
    mean, variation = np.zeros((2, n_targets))
    for weight, y in _pieces(shard, n_targets) if total else ():
        mean += weight @ y / total
    for weight, y in _pieces(shard, n_targets):
        variation += weight @ (y - mean) ** 2
    return Moments(shard.n_rows, total, mean, variation)


def _pieces(shard: Shard, n_targets: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Weights and targets of some rows at a time, as floats row by row."""
    step = max(1, _AT_ONCE // n_targets)
    for block in shard.blocks:
        weight = block.weights()
        for start in range(0, len(block.y), step):
            part = slice(start, start + step)
            y = np.reshape(block.y[part], (-1, n_targets))
            # Sums of columns that lie apart in memory would be rounded otherwise.
            yield weight[part], np.ascontiguousarray(y, dtype=np.float64)


def _describe_tails(
    group: Group, shard: Shard, mean: np.ndarray, spread: np.ndarray
) -> str | None:
    """Say which column has few rows that make up its variance; a collective call."""
    sums = np.zeros(1 + len(mean))
    scale = np.where(spread > 0, spread, np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        for weight, y in _pieces(shard, len(mean)):
            sums[0] += weight.sum()
            sums[1:] += weight @ ((y - mean) / scale) ** 4
    total, *powers = allreduce(group, sums)
    # Of n rows with one far away it is n; of a normal distribution 3.
    tails = np.nan_to_num(np.array(powers) / total)
    tailed = np.flatnonzero(tails > _TAILED)
    tailed = tailed[~_have_two_values(group, shard, len(mean), tailed)]
    if not len(tailed):
        return None
    worst = int(tailed[tails[tailed].argmax()])
    where = "y" if len(mean) == 1 else f"column {worst} of y"
    part = 1 / tails[worst]
    return (
        f"{where} has values far out, which make up its variance as {part:.1%} of the "
        "rows would by themselves; the squared error hardly counts the others. If they "
        "are to count, transform y: for targets above 0, as incomes and prices are, by "
        "TransformedTargetRegressor(regressor, func=np.log, inverse_func=np.exp) of "
        "sklearn.compose"
    )


def _have_two_values(
    group: Group, shard: Shard, n_targets: int, columns: np.ndarray
) -> np.ndarray:
    """Which columns say yes or no, however rarely one of them; a collective call."""
    if not len(columns):
        return np.zeros(0, dtype=bool)
    ends = np.full((2, len(columns)), -np.inf)
    for _, y in _pieces(shard, n_targets):
        own = y[:, columns]
        ends = np.maximum(ends, [own.max(axis=0), (-own).max(axis=0)])
    high, low = allreduce(group, ends, "max") * [[1.0], [-1.0]]
    others = np.zeros(len(columns))
    for _, y in _pieces(shard, n_targets):
        own = y[:, columns]
        others += ((own != high) & (own != low)).sum(axis=0)
    return np.asarray(allreduce(group, others) == 0)


def _describe_uneven(
    found: list[Moments], mean: np.ndarray, spread: np.ndarray
) -> str | None:
    """Say which rank is furthest from the others, if that is no matter of chance."""
    filled = [(rank, each) for rank, each in enumerate(found) if each.weight]
    varies = spread > 0
    if len(filled) < 2 or not varies.any():
        return None
    scale = np.where(varies, spread, 1.0)
    distances = np.array([abs(each.mean - mean) / scale for _, each in filled])
    # The mean of n random rows is a standard deviation / sqrt(n) away from that of all.
    chance = np.array([1 / np.sqrt(each.n_rows) for _, each in filled])
    excess = distances * varies - np.maximum(_FAR, _UNLIKELY * chance)[:, None]
    worst, column = np.unravel_index(excess.argmax(), excess.shape)
    if excess[worst, column] <= 0:
        return None
    rank, moments = filled[worst]
    where = "" if len(mean) == 1 else f" in column {column}"
    return (
        f"the ranks have rows of different targets: y{where} has the mean "
        f"{moments.mean[column]:.3g} on rank {rank}, {mean[column]:.3g} over all rows, "
        f"whose standard deviation is {spread[column]:.3g}"
    )
