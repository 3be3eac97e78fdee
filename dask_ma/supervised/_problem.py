"""The training problem that all ranks agree on: classes, weights, sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from dask_ma.comm import Group, allgather
from dask_ma.data import (
    Block,
    Shard,
    build_shard,
    check_size,
    encode_labels,
    target_numbers,
    unique_labels_of,
)
from dask_ma.engine import RankContext, ReplicaOf, State
from dask_ma.supervised._classes import (
    agree_on_classes,
    class_factors,
    class_weighted,
    shares_of,
    uneven_classes,
)
from dask_ma.supervised._params import ProblemParams
from dask_ma.supervised._summary import Summary

_SPARSE_WORDS = {True: "sparse", False: "dense"}


@dataclass(frozen=True)
class Problem:
    """The training problem as one rank sees it.

    Attributes
    ----------
    shard : Shard
        The rank's rows; y holds class codes or float targets, which may have several
        columns, and the weights, if there are any, have mean 1 over all ranks and
        include the class weights, unless these are in `positive_weight`.
    classes : ndarray of shape (n_classes,) or None
        Sorted labels.
    n_problems : int
        Number of linear functions: 1 for two classes and for regression.
    weight : float
        Sum of the weights of this rank's rows.
    total_weight : float
        Sum over all ranks.
    total_rows : int
        Rows of all ranks.
    total_stored : int
        Stored elements of X on all ranks.
    dtype : numpy.dtype
        Type of the model.
    uneven : str or None
        Says so if the ranks have rows of different classes.
    positive_weight : ndarray of float64, shape (n_problems,), or None
        What the weights of each class are multiplied by in its own problem against the
        rest; None if they are not.
    measured : ndarray of float64, or None
        Sums over all ranks of what the method has measured on the rows.
    shares : ndarray of float64, shape (n_classes,), or None
        Of each class in the sum of the weights of all ranks.
    class_weight : ndarray of float64, shape (n_classes,), or None
        What the weights of each class's rows are multiplied by; None if they are not.
    level : float
        Value of the model that a fit starts from where none is given.
    most : (int, float) or None
        Rows of the rank that has most, and stored elements of the one that stores most,
        infinite for dense rows; None where rows have been held out since.
    is_weighted : bool
        Whether the rows of some rank have weights.
    given_weight : float
        Sum over all ranks of the sample weights, times the class weights that are in
        them, before they were scaled.
    all_rows : int
        Rows of all ranks with those that are held out, of which other numbers of ranks
        have more or fewer: a fit has lost rows if there are fewer of these.
    """

    shard: Shard
    classes: np.ndarray | None
    n_problems: int
    weight: float
    total_weight: float
    total_rows: int
    total_stored: int
    dtype: np.dtype
    uneven: str | None = None
    positive_weight: np.ndarray | None = None
    measured: np.ndarray | None = None
    shares: np.ndarray | None = None
    class_weight: np.ndarray | None = None
    level: float = 0.0
    most: tuple[int, float] | None = None
    is_weighted: bool = False
    given_weight: float = 0.0
    all_rows: int = 0


P = TypeVar("P", bound=ProblemParams)


def restore_state(
    context: RankContext,
    params: P,
    replica_of: ReplicaOf | None = None,
    *,
    whole: bool = False,
) -> tuple[State | None, P]:
    """State that a fit goes on from, and the classes it has; a collective call.

    Rows that were lost may have been the only ones of their class.

    Parameters
    ----------
    context : RankContext
        This rank.
    params : ProblemParams
        Parameters of the fit.
    replica_of, whole
        As :meth:`RankContext.restore_state` has them.

    Returns
    -------
    state : State or None
        None at a fresh start.
    params : ProblemParams
        Those given, with the classes of the state.
    """
    state = context.restore_state(replica_of, whole=whole)
    if state is not None:
        params = replace(params, classes=state.shared["classes"])
    return state, params


def agree_on_problem(
    group: Group,
    arguments: Any,
    params: ProblemParams,
    *,
    dtypes: Sequence[Any] = (np.float64, np.float32),
    drop_weightless: bool = True,
    one_vs_rest: bool = False,
    join_limit: int = 0,
    measure: Callable[[Shard], np.ndarray] | None = None,
    small_targets: bool = False,
) -> Problem:
    """Check this rank's data and settle with the other ranks what is to be trained.

    A collective call. If the data of some rank are wrong, all ranks raise the error of
    the lowest such rank.

    Parameters
    ----------
    group : Group
        This rank.
    arguments : object
        Data of the rank's shard as the data layer lays them out.
    params : ProblemParams
        Parameters of the fit.
    dtypes : sequence of dtypes, default=(float64, float32)
        Types that X may have; any other becomes the first.
    drop_weightless : bool, default=True
        Whether rows of weight 0 are left out.
    one_vs_rest : bool, default=False
        Whether each of more than two classes is set against the rest. The weight of a
        class counts in its own problem only then, as SGDClassifier has it: rows of
        the other problems weigh no more for being of a heavy class.
    join_limit : int, default=0
        Bytes of a shard up to which rows that have been dealt out are one block.
    measure : callable, default=None
        What else is to be known of the rows of all ranks: gives an array of this rank's
        parts of some sums, for which no message goes out.
    small_targets : bool, default=False
        Whether targets of 8 and 16 bits, as of images and their masks, stay what they
        are, in place of float64.

    Returns
    -------
    problem : Problem
    """
    build = partial(
        build_shard,
        dtype=dtypes,
        drop_weightless=drop_weightless,
        n_targets=params.n_targets,
        needs_squares=True,
        join_limit=join_limit,
    )
    shard, own = _inspect(arguments, params, build, measure, small_targets)
    summaries: list[Summary] = allgather(group, own)
    for summary in summaries:
        if summary.error is not None:
            raise summary.error
    if shard is None:
        raise RuntimeError("a rank without an error has no shard")
    _check_kinds(summaries)
    classes = agree_on_classes(summaries, params)
    factors = class_factors(summaries, classes, params)
    positive = None
    if one_vs_rest and factors is not None and len(factors) > 2:
        _check_some(factors.sum())
        positive, factors = factors, None
    problem = _scale(shard, own, summaries, classes, factors)
    measured = None if measure is None else sum(s.measured for s in summaries)
    return replace(problem, positive_weight=positive, measured=measured)


def _inspect(
    arguments: Any,
    params: ProblemParams,
    build: Callable[[Any], Shard],
    measure: Callable[[Shard], np.ndarray] | None,
    small_targets: bool,
) -> tuple[Shard | None, Summary]:
    """Build the shard and describe it; an error goes into the description."""
    try:
        shard = build(arguments)
        labels = weights = None
        if params.has_classes:
            labels = unique_labels_of(shard)
            weights = _label_weights(shard, labels)
        else:
            blocks = [_number_target(b, small_targets) for b in shard.blocks]
            shard = replace(shard, blocks=blocks)
            if params.n_codes is not None:
                blocks = [_with_codes(block, params) for block in shard.blocks]
                shard = replace(shard, blocks=blocks)
            for block in shard.blocks:
                check_size(block.y, "y", block.index, "y")
                if params.is_classifier and params.n_codes is None:
                    _check_indicators(block)
    except (ValueError, TypeError) as error:
        # The traceback would keep the shard alive on its way to the other ranks.
        return None, Summary(error=error.with_traceback(None))
    return shard, Summary(
        n_rows=shard.n_rows,
        n_stored=sum(b.X.nnz if shard.is_sparse else b.X.size for b in shard.blocks),
        dtype=shard.dtype,
        is_sparse=shard.is_sparse,
        has_weights=any(b.sample_weight is not None for b in shard.blocks),
        labels=labels,
        label_weights=weights,
        weight=_weight_sum(shard),
        n_weightless=shard.n_weightless,
        measured=None if measure is None else measure(shard),
    )


def _weights_of(shard: Shard) -> np.ndarray | None:
    """Weights of all rows of a shard, None where none are given."""
    if all(block.sample_weight is None for block in shard.blocks):
        return None
    return np.concatenate([block.weights() for block in shard.blocks])


# Sums go over all rows at once, so that they do not depend on how these are cut.


def _weight_sum(shard: Shard) -> float:
    """Sum of the weights of a shard."""
    weights = _weights_of(shard)
    if weights is None:
        return float(shard.n_rows)
    with np.errstate(over="ignore"):  # too large sums are refused later on
        return float(weights.sum())


def _label_weights(shard: Shard, labels: np.ndarray) -> np.ndarray:
    """Sum of the weights of each label."""
    if not shard.blocks:
        return np.zeros(len(labels))
    codes = np.concatenate([encode_labels(b.y, labels) for b in shard.blocks])
    with np.errstate(over="ignore"):
        sums = np.bincount(codes, _weights_of(shard), minlength=len(labels))
    return sums.astype(np.float64, copy=False)


def _number_target(block: Block, small_targets: bool) -> Block:
    """A block whose y holds finite floats, or maybe small integers."""
    if small_targets and _is_small(np.asarray(block.y)):
        return block._replace(y=np.asarray(block.y))
    y = target_numbers(block.y, f"block {block.index}")
    if not np.isfinite(y).all():
        row = int(np.flatnonzero(~np.isfinite(y))[0])
        raise ValueError(
            f"y of block {block.index} contains NaN or infinity, first in its row {row}"
        )
    return block._replace(y=y)


def _is_small(y: np.ndarray) -> bool:
    """Whether y holds integers that take less than an int32, and that torch has."""
    return y.dtype in (np.uint8, np.int8, np.int16)


def _check_indicators(block: Block) -> None:
    """Refuse columns of labels that hold other values than 0 and 1."""
    is_indicator = (block.y == 0) | (block.y == 1)
    if not is_indicator.all():
        row = int(np.flatnonzero(~is_indicator.all(axis=1))[0])
        # Not its number: rows in memory are dealt out, which gives them others.
        found = np.array2string(block.y[row], threshold=10)
        raise ValueError(
            "Unknown label type: y has several columns, which must hold 0 and 1 to "
            f"tell the labels of each row, but one of block {block.index} holds {found}"
            "; for one class of several in each place, as in a segmentation, the "
            "module needs outputs of a dimension more than y: (n, n_classes, ...)"
        )


def _with_codes(block: Block, params: ProblemParams) -> Block:
    """A block with whole numbers in y; refuses those of classes that there are not."""
    y, n_codes, no_code = block.y, params.n_codes or 0, params.no_code
    is_code = ((y >= 0) & (y < n_codes) & (y == np.floor(y))) | (y == no_code)
    if not is_code.all():
        row = int(np.flatnonzero(~is_code.all(axis=1))[0])
        wrong = y[row][~is_code[row]][0]
        raise ValueError(
            f"y must hold whole numbers from 0 to {n_codes - 1}, as the module has "
            f"outputs for {n_codes} classes, or the criterion's ignore_index={no_code} "
            f"where none counts, but a row of block {block.index} holds {wrong:g}"
        )
    return block if _is_small(y) else block._replace(y=y.astype(np.int32))


def _check_kinds(summaries: list[Summary]) -> None:
    """Refuse data without rows or weight, and dense together with sparse shards."""
    filled = [s for s in summaries if s.n_rows]
    if not filled or sum(s.weight for s in summaries) <= 0:
        raise ValueError(
            "there is no row to train on: X has no rows, or sample_weight has the "
            "weight zero for all of them; one row with a positive weight is needed"
        )
    if not np.isfinite(sum(s.weight for s in summaries)):
        raise ValueError(
            "the sum of sample_weight over all rows is beyond the range of float64; "
            "divide the weights by their largest one"
        )
    for rank, summary in enumerate(summaries):
        if summary.n_rows and summary.is_sparse != filled[0].is_sparse:
            raise TypeError(
                f"all blocks of X must be of one kind, but the first are "
                f"{_SPARSE_WORDS[filled[0].is_sparse]} and those of rank {rank} are "
                f"{_SPARSE_WORDS[summary.is_sparse]}; convert one of them"
            )


def _check_some(total: float) -> None:
    """Refuse class weights that leave nothing but zeros."""
    if not total > 0:
        raise ValueError(
            "class_weight gives every row the weight 0; it must leave at least one "
            "class a positive weight"
        )


def _scale(
    shard: Shard,
    own: Summary,
    summaries: list[Summary],
    classes: np.ndarray | None,
    factors: np.ndarray | None,
) -> Problem:
    """Encode the labels and scale the weights to mean 1 over all ranks."""
    total_rows = sum(s.n_rows for s in summaries)
    weighted = factors is not None or any(s.has_weights for s in summaries)
    total = sum(class_weighted(s, classes, factors) for s in summaries)
    _check_some(total)
    scale = total_rows / total
    dtype = np.dtype(np.result_type(*[s.dtype for s in summaries if s.n_rows]))
    blocks = []
    for block in shard.blocks:
        y = block.y if classes is None else encode_labels(block.y, classes)
        weight = None
        if weighted:
            # Rows may be of integers, as pixels and numbers of tokens are.
            is_float = shard.dtype.kind == "f"
            kind = shard.dtype if is_float else np.dtype(np.float32)
            weight = np.full(len(y), scale, dtype=kind)
            if block.sample_weight is not None:
                weight *= block.sample_weight
            if factors is not None:
                weight *= factors[y]
        blocks.append(block._replace(y=y, sample_weight=weight))
    return Problem(
        shard=replace(shard, blocks=blocks),
        classes=classes,
        n_problems=1 if classes is None or len(classes) == 2 else len(classes),
        weight=scale * class_weighted(own, classes, factors),
        total_weight=float(total_rows),
        total_rows=total_rows,
        total_stored=sum(s.n_stored for s in summaries),
        most=_most(summaries),
        dtype=dtype,
        uneven=uneven_classes(summaries, classes),
        shares=shares_of(summaries, classes, factors),
        class_weight=None if factors is None else scale * factors,
        is_weighted=weighted,
        given_weight=float(total),
        all_rows=total_rows,
    )


def _most(summaries: list[Summary]) -> tuple[int, float]:
    """Rows, and stored elements, of the ranks that have most."""
    filled = [s for s in summaries if s.n_rows]
    stored = max(s.n_stored if s.is_sparse else math.inf for s in filled)
    return max(s.n_rows for s in filled), float(stored)
