"""Batch size by the time model of section 6.3 of the paper."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from time import perf_counter
from typing import NamedTuple

import numpy as np

from dask_ma.butterfly._lazy_steps import run
from dask_ma.butterfly._params import ButterflyParams, Moments
from dask_ma.butterfly._state import RankState
from dask_ma.butterfly._steps import StepRule, make_preconditioner, make_rule
from dask_ma.comm import Group, allreduce, barrier
from dask_ma.engine import RankContext
from dask_ma.kernels import descend
from dask_ma.supervised import Piece, Problem, pass_batches

# Steps with so many dense rows make good use of the matrix products.
_USUAL = 64
# Of sparse rows, the more of which share what a step costs besides, the better.
_SPARSE = (64, 128, 256)
# Seconds of a step, for each weight, for each element of the batch, and for each of its
# products with a problem's weights; where steps follow the elements alone, of these.
# They are those of imdb, newsgroups20 and clinc150; what comes of them is measured by
# asv_bench/studies/butterfly_batches.py.
_STEP, _PER_WEIGHT, _PER_ELEMENT, _PER_PRODUCT = 80e-6, 2.2e-9, 3e-9, 4e-9
_LAZY_STEP, _PER_LAZY_ELEMENT, _PER_LAZY_PRODUCT = 250e-6, 70e-9, 13e-9
# Rows of all ranks' batches together at which text needs twice as many passes.
_NOISE_SCALE = 600
# Ranks with few rows need more steps in a pass than one or two to get anywhere.
_USUAL_STEPS = 16
_SMALLEST = 8
_FEWEST_STEPS = 8  # of a pass
_PROBED = (16, 256)  # batch sizes whose steps are timed
_N_TIMED = 16  # steps of each
_N_GRADIENTS = 4  # batches of each rank that the noise is estimated from


class TimeModel(NamedTuple):
    """What the choice of a batch size rests on.

    Attributes
    ----------
    seconds_per_row : float
        Time that a row of a batch costs a rank; in the paper, `alpha`.
    seconds_per_exchange : float
        Time that a step costs besides, the exchange most of all; in the paper, `beta`.
    noise_scale : float
        Rows of all ranks' batches together at which twice as many rows are needed as
        with small batches.
    """

    seconds_per_row: float
    seconds_per_exchange: float
    noise_scale: float

    def best_batch_size(self, n_ranks: int) -> float:
        """Rows per rank and step for which a given loss is reached first.

        With `S` rows in the batches of all `N` ranks together, and
        ``S_min * (1 + S / noise_scale)`` rows needed, the time is ``alpha / N + beta /
        S`` for each row needed. It is least for ``S = sqrt(beta * N * noise_scale /
        alpha)``.

        Parameters
        ----------
        n_ranks : int
            Number of ranks.

        Returns
        -------
        batch_size : float
            Rows per rank, not rounded; it may be infinite.
        """
        if self.seconds_per_row == 0:
            return math.inf
        ratio = self.seconds_per_exchange / self.seconds_per_row
        return math.sqrt(ratio * self.noise_scale / n_ranks)


class Sizes(NamedTuple):
    """What the cost of a step rests on; the same on all ranks.

    Attributes
    ----------
    n_ranks : int
        Number of ranks.
    most_rows : int
        Rows of the rank that has most.
    most_nonzero : float
        Elements of the rank that stores most; infinite for dense rows.
    n_features, n_problems : int
        Columns of X, and linear functions to train.
    cost_of_entry : int
        Features that take as long as an element, where steps follow these alone.
    is_adaptive : bool
        Whether steps that are too long are taken back, as in large batches they may be:
        those of rare features are longer there.
    """

    n_ranks: int
    most_rows: int
    most_nonzero: float
    n_features: int
    n_problems: int
    cost_of_entry: int
    is_adaptive: bool = True

    def seconds_of_step(self, batch_size: int) -> float:
        """About what a step on so many sparse rows takes, without an exchange."""
        n_nonzero = self.most_nonzero / max(1, self.most_rows) * batch_size
        if self.cost_of_entry * n_nonzero <= self.n_features:
            each = _PER_LAZY_ELEMENT + self.n_problems * _PER_LAZY_PRODUCT
            return _LAZY_STEP + n_nonzero * each
        each = _PER_ELEMENT + self.n_problems * _PER_PRODUCT
        n_weights = self.n_features * self.n_problems
        return _STEP + n_weights * _PER_WEIGHT + n_nonzero * each


def usual_batch_size(sizes: Sizes) -> int:
    """The batch size where nobody asks for another one.

    Parameters
    ----------
    sizes : Sizes
        Sizes of the problem. The clock plays no part.

    Returns
    -------
    batch_size : int
        64 dense rows; of sparse ones 64, 128 or 256, with which a given loss is reached
        first, by the time model with usual costs, or 64 if steps are not adapted. As
        many as leave a pass 16 steps in any case, but at least 1.
    """
    best = _USUAL
    if sizes.is_adaptive and math.isfinite(sizes.most_nonzero):
        best = min(_SPARSE, key=lambda size: _relative_seconds(sizes, size))
    return min(best, max(1, sizes.most_rows // _USUAL_STEPS))


def _relative_seconds(sizes: Sizes, batch_size: int) -> float:
    """Time to a loss with a batch size, but for a factor that all have in common."""
    needed = 1 + sizes.n_ranks * batch_size / _NOISE_SCALE
    return needed * sizes.seconds_of_step(batch_size) / batch_size


def rounded(batch_size: float, most_rows: int) -> int:
    """The nearest power of two that leaves a pass some steps.

    Parameters
    ----------
    batch_size : float
        Rows wanted, not negative; it may be infinite.
    most_rows : int
        Rows of the rank that has most.

    Returns
    -------
    batch_size : int
        From 8, or all the rows if they are fewer, to an eighth of the rows.
    """
    largest = max(_SMALLEST, most_rows // _FEWEST_STEPS)
    bounded = min(max(batch_size, _SMALLEST), largest)
    return min(1 << round(math.log2(bounded)), most_rows)


def fit_time_model(
    context: RankContext,
    problem: Problem,
    params: ButterflyParams,
    state: RankState,
    moments: Moments | None,
    most_rows: int,
    most_nonzero: float,
) -> TimeModel:
    """Time some steps on all ranks and estimate the noise of the gradients.

    A collective call. The steps are made on a copy of the weights, which is thrown
    away.

    Parameters
    ----------
    context : RankContext
        This rank.
    problem : Problem
        The rows to train on.
    params : ButterflyParams
        Parameters of the fit.
    state : RankState
        Where the fit starts.
    moments : Moments or None
        Moments of the features, for the preconditioner.
    most_rows : int
        Rows of the rank that has most.
    most_nonzero : float
        Elements of the rank that stores most; infinite for dense rows.

    Returns
    -------
    model : TimeModel
        The same on all ranks.
    """
    group = context.group
    state = state._replace(weights=state.weights.copy())
    timings = []
    sizes = [min(size, most_rows) for size in _PROBED]
    for number, size in enumerate(sizes):
        n_steps = -(-most_rows // size)
        rule = make_rule(params, problem, group.size, n_steps, most_nonzero)
        state = state._replace(
            batch_size=size,
            preconditioner=make_preconditioner(moments, params, problem, size),
        )
        batches = _probe_batches(context, problem, n_steps, number)
        state, timing = _time_steps(group, state, batches, rule, params.mixing)
        timings.append(timing)
    per_row, per_exchange = split_times(sizes, timings)
    batches = _probe_batches(context, problem, n_steps, len(sizes))
    noise_scale = _noise_scale(group, state, batches, rule)
    return TimeModel(per_row, per_exchange, noise_scale)


def _probe_batches(
    context: RankContext, problem: Problem, n_steps: int, number: int
) -> Iterator[list[Piece]]:
    """Batches from a random order that no pass has."""
    key = (*context.seed.spawn_key, 0, number)
    seed = np.random.SeedSequence(context.seed.entropy, spawn_key=key)
    rng = np.random.default_rng(seed)
    n_problems = problem.n_problems if problem.classes is not None else None
    return pass_batches(problem.shard, n_steps, rng, n_problems=n_problems)


class Timing(NamedTuple):
    """Seconds of a step: computing, and altogether; means over steps and ranks."""

    computing: float
    total: float


def _time_steps(
    group: Group,
    state: RankState,
    batches: Iterator[list[Piece]],
    rule: StepRule,
    mixing: str,
) -> tuple[RankState, Timing]:
    """Make some steps and time them, after a first one."""
    watch = _Stopwatch()
    state = run(group, state, islice(batches, 1), rule, mixing, nullcontext)
    barrier(group)
    start, before = perf_counter(), state.t
    timed = islice(batches, _N_TIMED)
    state = run(group, state, timed, rule, mixing, watch.running)
    seconds = np.array([watch.seconds, perf_counter() - start])
    seconds = allreduce(group, seconds) / (group.size * max(1, state.t - before))
    return state, Timing(*seconds.tolist())


class _Stopwatch:
    """Adds up the time of some pieces of work."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time spent inside."""
        start = perf_counter()
        yield
        self.seconds += perf_counter() - start


def split_times(sizes: list[int], timings: list[Timing]) -> tuple[float, float]:
    """Time of a row, and time that a step takes besides.

    Parameters
    ----------
    sizes : list of int
        A small batch size and a large one.
    timings : list of Timing
        What the steps with these sizes took.

    Returns
    -------
    per_row : float
        Slope of the computing time over the batch size; where the clock is too coarse
        to tell, all the computing of the large batch is put down to its rows.
    per_step : float
        What is left of a step with the large batch, not negative.
    """
    small, large = sizes
    rise = timings[1].computing - timings[0].computing
    if large > small and rise > 0:
        per_row = rise / (large - small)
    else:
        per_row = timings[1].computing / large
    return per_row, max(0.0, timings[1].total - per_row * large)


def _noise_scale(
    group: Group,
    state: RankState,
    batches: Iterator[list[Piece]],
    rule: StepRule,
) -> float:
    """Noise scale of the gradients: those of the ranks compared with their mean."""
    weights = allreduce(group, state.weights) / group.size
    trace = square = 0.0
    for batch in islice(batches, _N_GRADIENTS):
        # In the metric of the preconditioner: the steps follow ``H g``, not `g`.
        gradient, n_rows = _mean_gradient(weights, batch, state, rule)
        own = np.array([np.vdot(gradient, gradient), n_rows, n_rows > 0], np.float64)
        total, (squares, n_rows, n_filled) = allreduce(group, [gradient, own])
        if n_filled > 1:
            total /= n_filled
            parts = signal_and_noise(
                squares / n_filled,
                float(np.vdot(total, total)),
                n_rows / n_filled,
                n_filled,
            )
            trace, square = trace + parts[0], square + parts[1]
    return float(trace / square) if square > 0 else math.inf


def signal_and_noise(
    own: float, whole: float, n_rows: float, n_parts: float
) -> tuple[float, float]:
    """Noise and signal of a gradient, from the means of some parts and of all of them.

    Parameters
    ----------
    own : float
        Mean over the parts of the squared norm of a part's mean gradient.
    whole : float
        Squared norm of the mean gradient of all parts.
    n_rows : float
        Rows of a part.
    n_parts : float
        Number of parts, above 1.

    Returns
    -------
    trace : float
        Estimate of the trace of the covariance of one row's gradient, without bias.
    square : float
        Estimate of the squared norm of the true gradient, without bias.
    """
    trace = n_rows * (own - whole) * n_parts / (n_parts - 1)
    square = (n_parts * whole - own) / (n_parts - 1)
    return trace, square


def _mean_gradient(
    weights: np.ndarray, batch: list[Piece], state: RankState, rule: StepRule
) -> tuple[np.ndarray, int]:
    """Mean gradient of the losses of a batch, times the root of H; and its rows."""
    gradient = np.zeros(weights.shape)
    n_rows = sum(piece.n_rows for piece in batch)
    for piece in batch:
        descend(
            gradient,
            piece.X,
            rule.slopes(weights, piece),
            -1 / n_rows,
            None,
            fit_intercept=rule.params.fit_intercept,
        )
    if state.preconditioner is not None:
        gradient[:-1] *= np.sqrt(state.preconditioner)[:, np.newaxis]
    return gradient, n_rows
