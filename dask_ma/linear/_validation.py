"""Rows held out of the training, and the score on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit

from dask_ma.comm import allreduce
from dask_ma.data import Block, Shard
from dask_ma.engine import RankContext
from dask_ma.kernels import chunked_predictions
from dask_ma.linear._params import LinearModel, ValidationParams
from dask_ma.linear._problem import Problem

N_SCORE_SUMS = 4


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
        If no rank has a row to set aside.
    """
    if not params.early_stopping:
        return problem, None
    seed = context.seed.spawn(1)[0]
    train, validation = split_rows(
        problem.shard, params.validation_fraction, seed, stratify=params.is_classifier
    )
    weight = sum(_weights(block).sum() for block in train.blocks)
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
    )
    return problem, validation


def split_rows(
    shard: Shard, fraction: float, seed: np.random.SeedSequence, *, stratify: bool
) -> tuple[Shard, Shard]:
    """Split a shard in two at random.

    Parameters
    ----------
    shard : Shard
        Rows of a rank, y encoded.
    fraction : float
        Part of the rows for the second shard; at least one if there are two.
    seed : SeedSequence
        Seed of the choice.
    stratify : bool
        Whether to keep the proportions of the labels where the numbers allow it.

    Returns
    -------
    train, validation : Shard
        Copies of the rows.
    """
    held_out = np.zeros(shard.n_rows, dtype=bool)
    if shard.n_rows >= 2:
        labels = np.concatenate([block.y for block in shard.blocks])
        held_out[_choose(labels, fraction, seed, stratify)] = True
    train, validation, start = [], [], 0
    for block in shard.blocks:
        mask = held_out[start : start + len(block.y)]
        start += len(block.y)
        train.append(_select(block, ~mask))
        validation.append(_select(block, mask))
    return _assemble(shard, train), _assemble(shard, validation)


def _choose(
    labels: np.ndarray, fraction: float, seed: np.random.SeedSequence, stratify: bool
) -> np.ndarray:
    """Positions of the rows to hold out."""
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
    filled = [block for block in blocks if len(block.y) > 0]
    return replace(shard, blocks=filled, n_rows=sum(len(b.y) for b in filled))


def _weights(block: Block) -> np.ndarray:
    """Weights of the rows of a block."""
    if block.sample_weight is None:
        return np.ones(len(block.y))
    return block.sample_weight.astype(np.float64, copy=False)


def score_sums(shard: Shard, model: LinearModel, *, is_classifier: bool) -> np.ndarray:
    """Weighted sums from which the score over all ranks follows.

    Returns
    -------
    sums : ndarray of shape (4,)
        Sum of the weights; of correct predictions or of squared errors; of y; of the
        squares of y.
    """
    sums = np.zeros(N_SCORE_SUMS)
    for block in shard.blocks:
        all_weights = _weights(block)
        for rows, p in chunked_predictions(block.X, model.coef, model.intercept):
            y, weight = block.y[rows], all_weights[rows]
            if is_classifier:
                codes = p > 0 if p.ndim == 1 else p.argmax(axis=1)
                hit = codes == y
            else:
                hit = (p - y) ** 2
            sums += weight.sum(), weight @ hit, weight @ y, weight @ y**2
    return sums


def score(sums: np.ndarray, *, is_classifier: bool) -> float:
    """Accuracy, or coefficient of determination, from the sums over all ranks."""
    weight, value, first, second = sums
    if is_classifier:
        return float(value / weight)
    variation = second - first**2 / weight
    return float(1 - value / variation) if variation > 0 else 0.0
