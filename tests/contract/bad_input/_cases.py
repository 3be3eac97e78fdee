"""One kind of bad input, and what is to become of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bad_input._world import CONTAINERS, ESTIMATORS, Box, good_rows

GOOD: Any = object()  # stands for good rows, or for a good y


@dataclass(frozen=True)
class Call:
    """A call of a method of an estimator.

    `before` is what happens to the estimator first, and `changed` are parameters that
    are set after it.
    """

    X: Any = GOOD
    y: Any = GOOD
    method: str = "fit"
    arguments: dict[str, Any] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    before: Callable[[Any, Box], Any] | None = None


@dataclass(frozen=True)
class Expected:
    """What is to become of a call.

    An error whose message matches an expression, or what becomes of a clean call.
    """

    message: str | None = None
    like: Callable[[Box], Call] | None = None


@dataclass(frozen=True)
class Case:
    """A kind of bad input, with the estimators and containers that it exists for."""

    name: str
    make: Callable[[Box], Call]
    expect: Callable[[Box], Expected]
    estimators: tuple[str, ...] = tuple(ESTIMATORS)
    containers: tuple[str, ...] = CONTAINERS


def clean(box: Box) -> Call:
    """The fit that nothing is wrong with."""
    return Call()


def refused(message: str | None = None, **messages: str) -> Callable[[Box], Expected]:
    """An error; its message may depend on the estimator or on the container."""

    def expect(box: Box) -> Expected:
        place = "lazy" if box.is_lazy else "memory"
        for key in (box.estimator, box.kind, place):
            if key in messages:
                return Expected(messages[key])
        assert message is not None, f"no message for {box}"
        return Expected(message)

    return expect


def trained(like: Callable[[Box], Call] = clean) -> Callable[[Box], Expected]:
    """What becomes of a clean call."""
    return lambda box: Expected(like=like)


def rows_with(change: Callable[[np.ndarray], Any]) -> Callable[[Box], Call]:
    """Good rows after a change."""
    return lambda box: Call(X=box.rows(change(good_rows())))


def y_with(change: Callable[[np.ndarray], Any]) -> Callable[[Box], Call]:
    """A good y after a change."""
    return lambda box: Call(y=box.column(change(box.good_y.copy())))


def with_params(**params: Any) -> Callable[[Box], Call]:
    """Parameters of the estimator."""
    return lambda box: Call(params=params)


def put(value: Any, row: int = 15, column: int = 1) -> Callable[[Any], Any]:
    """A change of one element."""

    def change(X: np.ndarray) -> np.ndarray:
        X[row, column] = value
        return X

    return change
