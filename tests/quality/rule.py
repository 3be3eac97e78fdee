"""What the model of default parameters has to keep, and who keeps it.

A model is at most 1 % above the optimum, or a ConvergenceWarning says what to change;
and it is never worse than that of the peer's defaults.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from . import peers
from .cells import Cell, arrange
from .contestants import Contestant
from .exact import solve
from .objectives import Objective, make_objective
from .sets import load

WITHIN = 0.01  # of the optimum
_ROUNDING = 1e-12  # of the objective without a model
_DATA = r"standardi[sz]e|scale|shuffle|sorted|separat"


@dataclass(frozen=True)
class Reference:
    """The objective of a contestant on a set, its least value and the peer's."""

    objective: Objective
    optimum: float
    peer: float

    def excess(self, value: float) -> float:
        """How far a value is above the optimum, relative to it.

        Where the optimum is 0, what is as small as rounding reaches it, and nothing
        else is near.
        """
        if self.optimum > 0:
            return value / self.optimum - 1
        return 0.0 if value <= _ROUNDING * self.objective.untrained else np.inf


@dataclass(frozen=True)
class Result:
    """What has become of a cell.

    Attributes
    ----------
    verdict : str
        "within" 1 % of the optimum; "warned", with words that help; "behind" the peer,
        if with a warning; "silent", with no warning that helps; "failed" with an error.
    excess : float
        Objective above the optimum, relative to it.
    seconds : float
    text : str
        Warnings of convergence, or the error.
    """

    contestant: Contestant
    cell: Cell
    verdict: str
    excess: float
    peer: float
    seconds: float
    text: str = ""

    @property
    def keeps(self) -> bool:
        """Whether the cell keeps the rule."""
        return self.verdict in ("within", "warned")

    def __str__(self) -> str:
        line = (
            f"{str(self.contestant):<34}{str(self.cell):<44}{self.verdict:<7}"
            f"{self.excess:>+10.2%}  peer {self.peer:>+10.2%} {self.seconds:6.1f} s"
        )
        return f"{line}  {self.text[:160]}" if self.text else line


def judge(contestant: Contestant, cell: Cell) -> Result:
    """Fit a cell and look at the model."""
    reference = _reference(contestant, cell.rows, cell.layout == "weighted")
    X, y, weight = arrange(load(contestant.task, cell.rows), cell.layout)
    model = contestant.make(n_ranks=cell.n_ranks, **_seed(contestant))
    excess, text = np.inf, ""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit(X, y, sample_weight=weight)
        except Exception as error:  # any kind of it is a failed cell
            text = f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - start
    behind = reference.excess(reference.peer)
    if text:
        return Result(contestant, cell, "failed", excess, behind, seconds, text)
    value = reference.objective.value(model.coef_, model.intercept_)
    excess = reference.excess(value)
    said = [
        str(one.message)
        for one in caught
        if issubclass(one.category, ConvergenceWarning)
    ]
    verdict = classify(excess, behind, said, model.get_params())
    return Result(contestant, cell, verdict, excess, behind, seconds, " ".join(said))


def classify(
    excess: float, peer: float, said: Iterable[str], parameters: Iterable[str]
) -> str:
    """The verdict on a model that came out of a fit."""
    if excess <= WITHIN:
        return "within"
    if not any(says_what_to_change(text, parameters) for text in said):
        return "silent"
    return "warned" if excess <= peer + WITHIN * (1 + max(peer, 0.0)) else "behind"


def says_what_to_change(text: str, parameters: Iterable[str]) -> bool:
    """Whether a warning names a parameter, or what is to be done about the data."""
    names = "|".join(map(re.escape, parameters))
    return bool(re.search(rf"\b({names})\b|{_DATA}", text))


def _seed(contestant: Contestant) -> dict[str, Any]:
    """A seed, for those that draw something."""
    drawn = "random_state" in contestant.make().get_params()
    return {"random_state": 0} if drawn else {}


@cache
def _reference(contestant: Contestant, name: str, weighted: bool) -> Reference:
    """Optimum and peer's objective; the order of the rows changes neither."""
    rows = load(contestant.task, name)
    weight = rows.sample_weight if weighted else None
    total = float(len(rows.y) if weight is None else weight.sum())
    alpha, ratio = contestant.alpha(total), contestant.l1_ratio
    objective = make_objective(rows.X, rows.y, weight, contestant.loss, alpha, ratio)
    peer = contestant.peer(total, alpha, ratio)
    return Reference(
        objective,
        _optimum(contestant, name, weighted, alpha),
        peers.value_of(peer, rows.X, rows.y, weight, objective),
    )


def _optimum(contestant: Contestant, name: str, weighted: bool, alpha: float) -> float:
    """The least value, solved for once in a session."""
    given = contestant.task, name, weighted, contestant.loss
    return _solved(*given, alpha, contestant.l1_ratio)


@cache
def _solved(
    task: str, name: str, weighted: bool, loss: str, alpha: float, l1_ratio: float
) -> float:
    """The least value of an objective of a set."""
    rows = load(task, name)
    weight = rows.sample_weight if weighted else None
    return solve(make_objective(rows.X, rows.y, weight, loss, alpha, l1_ratio))
