"""The steps of a rank where batches touch few of the features.

A step then follows the non-zeros of the batch. What it would do to all weights alike is
left for later: the shrinking by the penalty (:class:`Decay`), the mean over steps, the
projection of hinge while a bound says that nothing is to project, and the exchange of
what the ranks have in common (:class:`Mixer`). At the end of a pass it is made good.

The weights are kept as they would be without a penalty since some step: divided by what
the penalty has left of each row, which is the same on all ranks, and so commutes with
every mean over ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np

from dask_ma.butterfly._changes import (
    Changes,
    Mixer,
    Places,
    entries_sent,
    make_mixer,
    scale_rows,
)
from dask_ma.butterfly._decay import (
    Decay,
    decay_range,
    has_most_rows,
    rows_with_values,
)
from dask_ma.butterfly._mixing import agree_after
from dask_ma.butterfly._state import RankState
from dask_ma.butterfly._steps import DEGREE, StepRule, run_steps
from dask_ma.butterfly._together import shrink_together
from dask_ma.butterfly._whole import WholeMixer
from dask_ma.comm import Group
from dask_ma.supervised import Piece

# A non-zero of a batch, or an entry of a message, takes a rank as long as so many
# features take it in a step over all of them.
_COST_OF_ENTRY = 32
_COST_SENT = 4
_BYTES_SENT = 1.5  # of an entry with its row's number, in those of a weight
# Powers of e by which a row may be shrunk before it is made good: within the range of
# the type; with sums over steps, such that their terms are of one size.
_MOST_DECAY = {np.dtype(np.float64): 300.0, np.dtype(np.float32): 40.0}
_MOST_AVERAGED = 2.0
_LEAST_LEFT = 1e-12  # of a mean, whose inverse has to be within the range of the type
_SLACK = 1e-6  # of the bound of the norms, for its rounding


def run(
    group: Group,
    state: RankState,
    batches: Iterator[list[Piece]],
    rule: StepRule,
    mixing: str,
    computing: Callable[[], AbstractContextManager[None]],
) -> RankState:
    """Make a step for each batch, in the way that costs least; a collective call.

    As :func:`run_steps`, whose steps these are, but for rounding.
    """
    bounds = None
    if is_small(group.size, len(state.weights) - 1, rule, mixing, state.weights.dtype):
        bounds = decay_range(state.preconditioner)
    if bounds is None:
        return run_steps(group, state, batches, rule, mixing, computing)
    steps = LazySteps(group, state, rule, mixing, bounds)
    with computing():
        batch = next(batches, None)
    while batch is not None:
        with computing():
            steps.update(batch)
        # Rows are picked while the changes are under way.
        steps.begin_mixing()
        with computing():
            batch = next(batches, None)
        steps.finish_mixing()
    return steps.end()


def is_small(
    size: int, n_features: int, rule: StepRule, mixing: str, dtype: np.dtype
) -> bool:
    """Whether a batch, and what is exchanged of it, is small beside the model."""
    return cost_of_entry(size, mixing, dtype) * rule.n_nonzero <= n_features


def is_whole(
    size: int, n_features: int, rule: StepRule, mixing: str, dtype: np.dtype
) -> bool:
    """Whether what changes from one exchange to the next is much of the model."""
    # A mean over steps, and the bound of a ball, follow the rows that have changed.
    if rule.is_projected or math.isfinite(rule.first_averaged):
        return False
    n_sent = entries_sent(size, mixing, dtype) * rule.n_nonzero * rule.period
    # Two ranks send what differs alone; else whole weights are not to be more bytes.
    is_pair = size == 2 and mixing == "butterfly"
    return (_COST_SENT if is_pair else _BYTES_SENT) * n_sent > n_features


def cost_of_entry(size: int, mixing: str, dtype: np.dtype) -> int:
    """Features that take as long as a non-zero, where steps follow these alone."""
    return max(_COST_OF_ENTRY, _COST_SENT * entries_sent(size, mixing, dtype))


class LazySteps:
    """Steps of a pass; making one, mixing and ending are collective calls.

    Parameters
    ----------
    group : Group
        This rank.
    state : RankState
        State before the steps; its weights are lost.
    rule : StepRule
        What a rank does in a step.
    mixing : str
        How the ranks mix; see :func:`start_mixing`.
    bounds : (float, float)
        Range of the preconditioner.
    """

    def __init__(
        self,
        group: Group,
        state: RankState,
        rule: StepRule,
        mixing: str,
        bounds: tuple[float, float],
    ) -> None:
        self._group, self._state, self._rule = group, state, rule
        self._weights = weights = state.weights
        self._t = state.t
        n_features = len(weights) - 1
        self._intercept = np.array([n_features], dtype=np.int32)
        self._places = Places(n_features + 1)
        self._before = np.empty_like(weights)  # of a batch, first, and intercepts, last
        self._numbers = np.arange(0, dtype=np.int32)
        most = _MOST_DECAY[weights.dtype]
        if math.isfinite(rule.first_averaged):
            most = _MOST_AVERAGED
        steps = state.t + np.arange(rule.n_steps)
        amounts = state.eta * rule.params.alpha / np.sqrt(steps)
        self._decay = Decay(
            state.preconditioner, bounds, n_features, weights.dtype, most, amounts
        )
        self._mixing = mixing
        self._mixer: Mixer | None = None
        self._whole: WholeMixer | None = None
        if is_whole(group.size, n_features, rule, mixing, weights.dtype):
            self._whole = WholeMixer(group, state, mixing)
        else:
            self._mixer = make_mixer(group, state, self._places, mixing)
        self._number, self._n_exchanges = 0, state.n_exchanges
        self._mean = LazyMean(self._decay, weights, state)
        self._ball: Ball | None = None
        if rule.is_projected:
            self._ball = Ball(self._decay, weights, rule.radius)

    def update(self, batch: Sequence[Piece]) -> None:
        """Make a step on the weights of this rank."""
        weights, rule = self._weights, self._rule
        rows, pieces = self._compact(batch)
        kept = weights.take(rows, axis=0)
        elements = self._decay.elements(rows)
        factors = self._decay.factors_of(elements)
        factors[-1] = 1  # nothing shrinks the intercepts
        before = self._before_step(kept, factors)
        step_size = self._state.eta / math.sqrt(self._t)
        slopes = [rule.slopes(before, piece) for piece in pieces]
        if self._is_distinct:
            after = before.copy()
            rule.descend(after, pieces, slopes, step_size, elements[:-1])
            change = after - before
        else:
            scale = step_size * rule.gradient_scale
            change = self._entries(pieces, slopes, scale, elements)
        change /= factors
        if self._is_distinct:
            weights[rows] = kept + change
            self._note(rows, change)
        else:
            np.add.at(weights[:, 0], rows, change[:, 0])
            self._tell(rows, change)
        if self._ball is not None:  # then rows are distinct
            self._ball.count(rows, before, after)
        self._decay.advance(step_size * rule.params.alpha)
        if self._ball is not None and self._ball.may_be_left:
            self._project(self._ball)
        due = self._decay.due
        if due is not None:
            self._make_good(due, self._decay.rows_from(due))

    def begin_mixing(self) -> None:
        """Send what the others need, if an exchange follows the step."""
        self._group.raise_if_closed()
        if not self._rule.is_mixed(self._number):
            return
        if self._mixer is not None:
            self._mixer.begin()
        elif self._whole is not None:
            self._whole.begin(self._weights)

    def finish_mixing(self) -> None:
        """Wait for what the others have sent, and complete the step."""
        is_mixed = self._rule.is_mixed(self._number)
        self._number += 1
        self._n_exchanges += is_mixed
        rows = self._mixer.finish() if self._mixer is not None and is_mixed else None
        if self._mixer is not None and rows is not None:
            self._settle(self._mixer.settle, rows)
        if self._whole is not None and is_mixed:
            self._weights = self._whole.finish()
        if self._t >= self._rule.first_averaged:
            self._mean.advance()
        if self._mean.is_due:
            self._make_good(0, None)
            self._mean.complete()
        self._t += 1

    def end(self) -> RankState:
        """The state after all steps, with everything made good; a collective call."""
        merged = None
        if self._mean.number:
            pass  # the model is another mean
        elif agree_after(self._n_exchanges - 1, self._group.size, self._mixing):
            merged = self._weights
        elif self._mixer is not None:
            merged = self._mixer.mean()
            rows = rows_with_values(merged)
            scale_rows(merged, rows, self._decay.factors(rows))
        self._mixer = None  # nothing more is mixed
        self._make_good(0, None, are_same=merged is self._weights)
        self._mean.complete()
        return self._state.after_steps(
            self._weights,
            merged,
            t=self._t,
            mean=self._mean.values,
            n_averaged=self._mean.number,
            n_exchanges=self._n_exchanges,
        )

    def _compact(self, batch: Sequence[Piece]) -> tuple[np.ndarray, list[Piece]]:
        """Rows of the weights that a batch touches, and the batch on those alone."""
        # What a step reads many times is read from far once. Rows are named once each
        # if they are to be distinct, else once for each non-zero; intercepts come last.
        indices = [piece.X.indices for piece in batch]
        rows = np.concatenate([*indices, self._intercept], dtype=np.intp)
        if self._is_distinct:
            rows, places = self._places.named(rows)
        else:
            if len(self._numbers) < len(rows):
                self._numbers = np.arange(len(rows), dtype=np.int32)
            places = self._numbers
        pieces, start = [], 0
        for piece in batch:
            stop = start + len(piece.X.indices)
            # The batch is made for this step. Another matrix would take longer to make
            # than the products with it.
            piece.X.indices = places[start:stop]
            if not self._is_wide(rows):
                piece.X.resize(piece.n_rows, len(rows) - 1)
            pieces.append(piece)
            start = stop
        return rows, pieces

    def _is_wide(self, rows: np.ndarray) -> bool:
        """Whether a batch keeps all columns, and has elements in the first ones."""
        # To take the others away would take as long as the products with the batch.
        return not self._is_distinct and len(rows) <= len(self._before)

    def _before_step(self, kept: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """The weights of the columns of a batch as they really are."""
        if not self._is_wide(kept):
            return kept * factors
        np.multiply(kept, factors, out=self._before[: len(kept)])
        self._before[-1] = kept[-1]
        return self._before

    def _entries(
        self,
        pieces: Sequence[Piece],
        slopes: Sequence[np.ndarray],
        scale: float,
        elements: np.ndarray,
    ) -> np.ndarray:
        """The step of one problem, non-zero by non-zero, and last the intercept's."""
        own = self._weights.dtype.type(-scale)
        scaled = [own * piece_slopes[:, 0] for piece_slopes in slopes]
        change = np.empty((len(elements), 1), self._weights.dtype)
        entries, start = change[:-1, 0], 0
        for piece, of_rows in zip(pieces, scaled, strict=True):
            values = np.repeat(of_rows, np.diff(piece.X.indptr))
            stop = start + len(values)
            np.multiply(piece.X.data, values, out=entries[start:stop])
            start = stop
        entries *= elements[:-1]
        change[-1] = 0
        if self._rule.params.fit_intercept:
            change[-1] = sum(of_rows.sum() for of_rows in scaled)
        return change

    @property
    def _is_distinct(self) -> bool:
        """Whether changes of rows count beyond the rows, which are named once then."""
        is_counted = self._ball is not None or self._mean.number > 0
        is_counted = is_counted or self._rule.is_bounded
        return is_counted or self._weights.shape[1] > 1

    def _note(self, rows: np.ndarray, change: np.ndarray) -> None:
        """Take a change of this rank's weights into account."""
        self._mean.note(rows, change)
        self._tell(rows, change)

    def _tell(self, rows: np.ndarray, change: np.ndarray) -> None:
        """Have a change mixed with those of the other ranks."""
        if self._mixer is not None:
            # X may have indices of 64 bits, which messages would be longer for.
            self._mixer.add(Changes(rows.astype(np.int32, copy=False), change))

    def _settle(self, settle: Callable[[np.ndarray], None], rows: np.ndarray) -> None:
        """Take the mixed weights over."""
        if self._ball is None and not self._mean.number:
            settle(rows)
            return
        rows = self._places.distinct(rows)
        before = self._weights[rows]
        settle(rows)
        after = self._weights[rows]
        self._mean.note(rows, after - before)
        if self._ball is not None:
            factors = self._decay.factors(rows)
            self._ball.count(rows, before * factors, after * factors)

    def _project(self, ball: Ball) -> None:
        """Pull the weights into the ball, if they have left it."""
        scales = ball.scales()
        if scales is None:
            return
        rows = rows_with_values(self._weights[:-1])
        before = self._weights[rows]
        after = before * scales
        self._weights[rows] = after
        self._note(rows, after - before)

    def _make_good(
        self, due: int, rows: np.ndarray | None, *, are_same: bool = False
    ) -> None:
        """Shrink the rows that are due, and all that is in their units."""
        # Where all ranks have the same weights, it is a collective call.
        decay, weights = self._decay, self._weights
        is_most = rows is None and has_most_rows(weights)
        if not is_most or self._mean.number:  # else nobody asks for the rows
            if rows is None:
                kept = rows_with_values(weights)
            else:
                kept = rows[rows_with_values(weights[rows])]
            self._mean.absorb(kept)
        if not is_most:
            scale_rows(weights, kept, decay.factors(kept))
        elif are_same:
            shrink_together(self._group, weights, decay)
        else:
            decay.shrink(weights)
        if self._mixer is not None:
            self._mixer.rescale(rows, lambda found: decay.factors(found, due))
        decay.restart(due)


class LazyMean:
    """Mean of the weights over steps, of which a step touches the changed ones only.

    With ``r_s`` the part that step `s` has in the mean after it, and ``g_t`` the
    product of ``1 - r_s`` up to `t`, the mean is ``g_t`` times the sum of the mean
    before and of ``r_s / g_s * w_s``. With weights that a factor shrinks in each step,
    and changes `d` of them before step `t`, the latter is the weights times the sum `S`
    of ``r_s / g_s`` times the factors, less the sum of ``d`` times the `S` of the steps
    before.

    Parameters
    ----------
    decay : Decay
        Factors of the weights, whose sums are those of this mean.
    weights : ndarray of shape (n_rows, n_problems)
        Weights as :class:`LazySteps` has them.
    state : RankState
        State before the steps.

    Attributes
    ----------
    values : ndarray of the shape of `weights`, or None
        The mean, after :meth:`complete`; None before the first step that counts.
    number : int
        Steps that it is the mean of.
    """

    def __init__(self, decay: Decay, weights: np.ndarray, state: RankState) -> None:
        self._decay, self._weights = decay, weights
        self.values, self.number = state.mean, state.n_averaged
        self._rest = None if state.mean is None else np.zeros_like(weights)
        self._left = 1.0

    @property
    def is_due(self) -> bool:
        """Whether it is to be made complete, lest its terms become too large."""
        return self._left < _LEAST_LEFT

    def note(self, rows: np.ndarray, change: np.ndarray) -> None:
        """Take a change of some rows into account, before the step counts."""
        if self._rest is not None:
            self._rest[rows] -= self._decay.sums(rows) * change

    def advance(self) -> None:
        """Count the weights as they are now."""
        self.number += 1
        part = (DEGREE + 1) / (self.number + DEGREE)
        if self._rest is None:
            self.values = np.zeros_like(self._weights)
            self._rest = np.zeros_like(self._weights)
        if self.number > 1:
            self._left *= 1 - part
        self._decay.count(part / self._left)

    def absorb(self, rows: np.ndarray) -> None:
        """Add what rows have been so far, whose factors are to begin anew."""
        if self._rest is not None:
            self._rest[rows] += self._decay.sums(rows) * self._weights[rows]

    def complete(self) -> None:
        """Make the mean complete, once all rows are absorbed, and begin anew."""
        if self._rest is not None and self.values is not None:
            self._rest += self.values
            self._rest *= self._rest.dtype.type(self._left)
            self.values, self._rest = self._rest, np.zeros_like(self._rest)
            self._left = 1.0
            self._decay.total = 0.0


class Ball:
    """Says from a bound of the norms when weights may have left a ball.

    Parameters
    ----------
    decay : Decay
        Factors of the weights.
    weights : ndarray of shape (n_rows, n_problems)
        Weights as :class:`LazySteps` has them.
    radius : float
        Radius of the ball.
    """

    def __init__(self, decay: Decay, weights: np.ndarray, radius: float) -> None:
        self._decay, self._weights, self._radius = decay, weights, radius
        self._bounds = self._squares()

    @property
    def may_be_left(self) -> bool:
        """Whether a bound is beyond the ball."""
        return bool((self._bounds * (1 + _SLACK) > self._radius**2).any())

    def count(self, rows: np.ndarray, before: np.ndarray, after: np.ndarray) -> None:
        """Count a change of some rows, given as the weights really are."""
        is_feature = (rows < len(self._weights) - 1)[:, np.newaxis]
        for sign, values in ((1, after), (-1, before)):
            squares = np.square(values, dtype=np.float64)
            self._bounds += sign * squares.sum(axis=0, where=is_feature)

    def scales(self) -> np.ndarray | None:
        """What each problem's weights are to be multiplied by, None for nothing."""
        self._bounds = self._squares()
        norms = np.sqrt(self._bounds)
        if not (norms > self._radius).any():
            return None
        scales = np.minimum(1, self._radius / np.maximum(norms, self._radius))
        self._bounds *= scales**2
        return scales.astype(self._weights.dtype)

    def _squares(self) -> np.ndarray:
        """Squared norms of the coefficients of each problem."""
        coef = self._weights[:-1]
        rows = rows_with_values(coef)
        values = (coef[rows] * self._decay.factors(rows)).astype(np.float64)
        squares: np.ndarray = np.einsum("ij,ij->j", values, values)
        return squares
