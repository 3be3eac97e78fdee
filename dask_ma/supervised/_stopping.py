"""Early stopping: rows held out of the training, and the rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dask_ma.comm import allreduce
from dask_ma.data import Block, Shard
from dask_ma.engine import RankContext
from dask_ma.supervised._params import ValidationParams
from dask_ma.supervised._problem import Problem

# A value this small against the first one is as good as zero: of rows that a model fits
# exactly, it goes down forever.
_ZERO = 1e-7
_SHOWN = 5


def hold_out(
    context: RankContext, problem: Problem, params: ValidationParams
) -> tuple[Problem, Shard | None]:
    """Set rows aside for validation if early stopping asks for it; collective then.

    Parameters
    ----------
    context : RankContext
        This rank.
    problem : Problem
        All rows.
    params : ValidationParams
        Parameters of the fit.

    Returns
    -------
    problem : Problem
        The rows to train on. They are copied if rows are set aside.
    validation : Shard or None
        The rows set aside; a rank with a single row trains on it.

    Raises
    ------
    ValueError
        If no rank has a row to set aside, or a class has one row only.
    """
    if not params.early_stopping:
        return problem, None
    seed = context.seed.spawn(1)[0]
    held_out = choose_rows(
        problem.shard, params.validation_fraction, seed, stratify=params.has_classes
    )
    if problem.classes is not None:
        # Rows that were lost may have been those of a class; then it has been known.
        is_known = params.classes is not None
        _keep_classes(
            context, problem.shard, problem.classes, held_out, may_be_small=is_known
        )
    train, validation = cut_rows(problem.shard, held_out)
    weight = sum(block.weights().sum() for block in train.blocks)
    n_held_out = validation.n_rows
    sums = np.array([weight, train.n_rows, n_held_out], dtype=np.float64)
    total_weight, total_rows, n_held_out = allreduce(context.group, sums).tolist()
    if n_held_out == 0 or total_weight <= 0:
        raise ValueError(
            "early_stopping holds out validation_fraction="
            f"{params.validation_fraction} of {problem.total_rows} rows, which leaves "
            "none to validate with or none to train on; give more rows or another "
            "fraction"
        )
    problem = replace(
        problem,
        shard=train,
        weight=float(weight),
        total_weight=total_weight,
        total_rows=int(total_rows),
        most=None,
    )
    return problem, validation


def _keep_classes(
    context: RankContext,
    shard: Shard,
    classes: np.ndarray,
    held_out: np.ndarray,
    *,
    may_be_small: bool,
) -> None:
    """Leave each class a row to train on, on some rank; a collective call."""
    group = context.group
    codes = [block.y for block in shard.blocks]
    labels = np.concatenate([np.zeros(0, dtype=np.intp), *codes])
    held, trained = (
        np.bincount(labels[rows], minlength=len(classes)).astype(np.float64)
        for rows in (held_out, ~held_out)
    )
    all_held, all_trained = allreduce(group, [held, trained])
    if not may_be_small:
        _check_counts(all_held + all_trained, classes)
    lost = (all_trained == 0) & (all_held > 0)
    if not lost.any():
        return
    # The first rank that holds out a row of a class without any takes one back.
    owners = np.where(held > 0, group.rank, group.size)
    owners = allreduce(group, owners, "min")
    for code in np.flatnonzero(lost & (owners == group.rank)):
        held_out[np.flatnonzero(held_out & (labels == code))[0]] = False


def _check_counts(counts: np.ndarray, classes: np.ndarray) -> None:
    """Refuse a class whose only row could be trained on or validated with, not both."""
    alone = classes[counts < 2].tolist()
    if not alone:
        return
    shown = ", ".join(repr(label) for label in alone[:_SHOWN])
    more = f" and {len(alone) - _SHOWN} more" if len(alone) > _SHOWN else ""
    raise ValueError(
        "early_stopping holds out rows of each class, but the least populated class "
        f"in y has only 1 member, which is too few: {shown}{more}; the minimum is 2. "
        "Remove such classes, give them more rows, or set early_stopping=False."
    )


def choose_rows(
    shard: Shard, fraction: float, seed: np.random.SeedSequence, *, stratify: bool
) -> np.ndarray:
    """Choose rows of a shard at random.

    Parameters
    ----------
    shard : Shard
        Rows of a rank, y encoded.
    fraction : float
        Part of the rows to choose; at least one if there are two.
    seed : SeedSequence
        Seed of the choice.
    stratify : bool
        Whether to keep the proportions of the labels where the numbers allow it.

    Returns
    -------
    chosen : ndarray of bool of shape (n_rows,)
    """
    chosen = np.zeros(shard.n_rows, dtype=bool)
    if shard.n_rows >= 2:
        labels = np.concatenate([block.y for block in shard.blocks])
        chosen[_choose(labels, fraction, seed, stratify)] = True
    return chosen


def cut_rows(shard: Shard, chosen: np.ndarray) -> tuple[Shard, Shard]:
    """Split a shard in two.

    Parameters
    ----------
    shard : Shard
        Rows of a rank.
    chosen : ndarray of bool of shape (n_rows,)
        Which rows the second part gets.

    Returns
    -------
    others, chosen : Shard
        Copies of the rows.
    """
    others, picked, start = [], [], 0
    for block in shard.blocks:
        mask = chosen[start : start + len(block.y)]
        start += len(block.y)
        others.append(_select(block, ~mask))
        picked.append(_select(block, mask))
    return _assemble(shard, others), _assemble(shard, picked)


def _choose(
    labels: np.ndarray, fraction: float, seed: np.random.SeedSequence, stratify: bool
) -> np.ndarray:
    """Positions of the rows to hold out."""
    # Of all ranks those that hold rows out need it, which takes a while to load.
    from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit

    n_held_out = min(max(1, int(fraction * len(labels))), len(labels) - 1)
    splitter = ShuffleSplit
    if stratify:
        _, counts = np.unique(labels, return_counts=True)
        fewest = min(n_held_out, len(labels) - n_held_out)
        if counts.min() >= 2 and fewest >= len(counts):
            splitter = StratifiedShuffleSplit
    split = splitter(
        n_splits=1,
        test_size=n_held_out,
        random_state=np.random.RandomState(np.random.MT19937(seed)),
    )
    _, chosen = next(split.split(np.empty((len(labels), 1)), labels))
    return chosen


def _select(block: Block, mask: np.ndarray) -> Block:
    """The rows of a block where `mask` is True."""
    weight = block.sample_weight
    return block._replace(
        X=block.X[np.flatnonzero(mask)],
        y=block.y[mask],
        sample_weight=None if weight is None else weight[mask],
    )


def _assemble(shard: Shard, blocks: list[Block]) -> Shard:
    """A shard of some rows of another."""
    return replace(shard, blocks=[block for block in blocks if len(block.y) > 0])


class StopRule:
    """Counts rounds that have brought less than `tol`.

    Parameters
    ----------
    tol : float or None
        What a round must bring; None never stops.
    patience : int
        How many rounds in a row may bring less.
    maximize : bool
        Whether a larger value is better.
    is_relative : bool, default=False
        Whether `tol` is a part of the best value so far, of 1e-7 times the first one
        at least.
    rounding : float, default=0.0
        A value that rounding may leave of zero, which `tol` is a part of at least, too.
    """

    def __init__(
        self,
        tol: float | None,
        patience: int,
        *,
        maximize: bool,
        is_relative: bool = False,
        rounding: float = 0.0,
    ) -> None:
        self._rounding = rounding
        self._tol = -np.inf if tol is None else tol
        self._is_relative = is_relative
        self._patience = patience
        self._sign = -1.0 if maximize else 1.0
        self._best = self._first = np.inf
        self._idle = 0

    def update(self, value: float) -> bool:
        """Take the value of a round; return whether patience has run out."""
        value = self._sign * value
        if np.isinf(self._first):
            self._first = value
        # As in scikit-learn: the value is set against the best so far.
        unit = 1.0
        if self._is_relative and np.isfinite(self._best):
            unit = max(abs(self._best), _ZERO * abs(self._first), self._rounding)
        is_idle = value > self._best - self._tol * unit
        if unit == 0 and np.isfinite(self._tol):
            is_idle = value >= 0  # what begins with 0 cannot bring a part of it
        self._idle = self._idle + 1 if is_idle else 0
        self._best = min(self._best, value)
        return self._idle >= self._patience

    def state_dict(self) -> list[float]:
        """What another rule needs to go on from here."""
        return [self._best, float(self._idle), self._first]

    def load_state_dict(self, state: Sequence[float]) -> None:
        """Take over the state of another rule."""
        self._best, self._idle = float(state[0]), int(state[1])
        self._first = float(state[2])

    def restart(self) -> None:
        """Give as many rounds again."""
        self._idle = 0
