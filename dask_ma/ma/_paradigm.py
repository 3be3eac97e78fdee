"""Paradigms of model averaging: models or gradients, and ways to add them up.

Gradients are there to compare with (Figures 1 and 3 of the paper).
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np

from dask_ma._ranges import Interval, StrOptions
from dask_ma._settings import Named, Settings
from dask_ma.comm import Group, allreduce, broadcast, broadcast_direct, reduce

AGGREGATIONS = ("allreduce", "tree", "driver")


def aggregate(
    group: Group, arrays: Sequence[np.ndarray], aggregation: str
) -> list[np.ndarray]:
    """Sum the arrays of all ranks; everybody gets the sums.

    Parameters
    ----------
    group : Group
        This rank.
    arrays : sequence of ndarray
        Same shapes and dtypes on every rank.
    aggregation : {"allreduce", "tree", "driver"}
        "allreduce" cuts the arrays into parts, and each rank adds up one of them.
        "driver" has every rank send to rank 0, which stands for Spark's driver, adds up
        alone and answers each rank in turn. "tree" has intermediate ranks add up first,
        as Spark's treeAggregate does, and rank 0 broadcasts down a tree.

    Returns
    -------
    sums : list of ndarray
        New arrays, with the same bits whichever way is taken. Only those of
        "allreduce" are sure to be writeable.
    """
    arrays = list(arrays)
    if aggregation == "allreduce":
        return allreduce(group, arrays)
    if aggregation == "tree":
        sums = reduce(group, arrays, algorithm="tree")
        return list(broadcast(group, sums))
    sums = reduce(group, arrays, algorithm="direct")
    return list(broadcast_direct(group, sums))


class Models(Settings):
    """Every rank trains a model of its own; a round ends with their mean (SendModel).

    For the parameter `paradigm` of the estimators of :mod:`dask_ma.ma`.

    Parameters
    ----------
    aggregation : {"allreduce", "tree", "driver"}, default="allreduce"
        How the models are added up: by an allreduce from worker to worker; by
        intermediate ranks and then rank 0, as Spark's treeAggregate does; or by rank 0
        alone, as Spark's driver does. "tree" and "driver" are there to compare with.
        The result is the same to the last bit.
    evaluate_every : int, default=1
        Passes over the rows from one evaluation of the objective, and of the rows held
        out, to the next; the last round is always evaluated, and for 0 and below no
        other. An evaluation reads all rows, for a tenth to a fifth of the time of a
        pass. Topics have an `evaluate_every` of their own.

    Examples
    --------
    >>> from dask_ma import MASGDClassifier
    >>> from dask_ma.ma import Models
    >>> classifier = MASGDClassifier(paradigm=Models(aggregation="driver"))
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "aggregation": [StrOptions(AGGREGATIONS)],
        "evaluate_every": [Interval(Integral, None, None, closed="neither")],
    }

    def __init__(
        self, aggregation: str = "allreduce", *, evaluate_every: int = 1
    ) -> None:
        self.aggregation = aggregation
        self.evaluate_every = evaluate_every


class Gradients(Settings):
    """A round ends with one update of the common model, by a sum (SendGradient).

    The method of Spark's MLlib, which is there to compare with: the sum is that of the
    gradients of a sample of the rows, and for topics that of what the documents show.
    For the parameter `paradigm` of the estimators of :mod:`dask_ma.ma`.

    Parameters
    ----------
    batch_fraction : float, default=1.0
        Probability of each row to be part of a round, independently of the others;
        above 0 and at most 1. Topics have a `batch_size` in its place.
    aggregation : {"allreduce", "tree", "driver"}, default="allreduce"
        How the sums of the ranks are added up, as in :class:`Models`.
    evaluate_every : int, default=1
        Passes over the rows from one evaluation to the next, as in :class:`Models`.

    Examples
    --------
    MLlib's way, with a driver that adds up along a tree:

    >>> from dask_ma import MASGDClassifier
    >>> from dask_ma.ma import Gradients
    >>> mllib = Gradients(batch_fraction=0.1, aggregation="tree")
    >>> classifier = MASGDClassifier(paradigm=mllib, learning_rate="invscaling")
    >>> classifier.set_params(paradigm__batch_fraction=0.5).paradigm
    Gradients(aggregation='tree', batch_fraction=0.5)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "batch_fraction": [Interval(Real, 0, 1, closed="right")],
        "aggregation": [StrOptions(AGGREGATIONS)],
        "evaluate_every": [Interval(Integral, None, None, closed="neither")],
    }

    def __init__(
        self,
        batch_fraction: float = 1.0,
        *,
        aggregation: str = "allreduce",
        evaluate_every: int = 1,
    ) -> None:
        self.batch_fraction = batch_fraction
        self.aggregation = aggregation
        self.evaluate_every = evaluate_every


#: What the parameter can be.
PARADIGM: Named[Models | Gradients] = Named(
    "paradigm", {"model": Models, "gradient": Gradients}, "dask_ma.ma"
)


def is_gradient(paradigm: str | Models | Gradients) -> bool:
    """Whether ranks send sums for one update."""
    return isinstance(PARADIGM.as_object(paradigm), Gradients)


def by_gradients(estimator: Any) -> tuple[str, ...]:
    """A reason why parameters of the ranks' own models cannot act."""
    return ("paradigm",) if is_gradient(estimator.paradigm) else ()
