"""Paired measurement of the speed of two worker processes against one process."""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

from benchmarks._data import persist

from ._problem import Problem
from ._solvers import fit_dask_ma, local_cluster, run_sklearn

# Merging twice a pass, and the mean of the merged models, need the fewest passes on two
# ranks (see the user guide, "How often to merge").
SETTINGS = {"local_epochs": 0.5, "average": True}


class Pair(NamedTuple):
    """One run of each, one after the other.

    Attributes
    ----------
    epochs, seconds_one : int, float
        What SGDClassifier.partial_fit needed, objectives not counted.
    rounds, seconds_two : int, float
        What the whole call of MASGDClassifier.fit needed.
    """

    epochs: int
    seconds_one: float
    rounds: int
    seconds_two: float

    @property
    def ratio(self) -> float:
        """Time of two processes over time of one."""
        return self.seconds_two / self.seconds_one


def measure_pairs(
    problem: Problem, target: float, n_pairs: int, limit: int, seed: int
) -> list[Pair]:
    """Time both until `target`, `n_pairs` times with a fresh seed each.

    The number of rounds is found by a first fit that is not timed; the timed fit is
    told to make just so many, so that launch and result count.

    Raises
    ------
    RuntimeError
        If one of them does not get to `target` within `limit` epochs or rounds.
    """
    pairs = []
    with local_cluster(2) as client:
        X, y = persist(problem.features, problem.labels, client)
        for number in range(seed, seed + n_pairs):
            history = fit_dask_ma(problem, X, y, limit, number, **SETTINGS).history_
            rounds = _first_at(target, [record["objective"] for record in history])
            curve = run_sklearn(problem, limit, number, until=target)
            epochs = _first_at(target, curve.objectives)
            start = time.perf_counter()
            model = fit_dask_ma(problem, X, y, rounds, number, **SETTINGS)
            seconds = time.perf_counter() - start
            reached = problem.objective_of(model)
            if reached > target:
                raise RuntimeError(f"{rounds} rounds gave {reached}, not {target}")
            pairs.append(Pair(epochs, curve.seconds[epochs - 1], rounds, seconds))
    return pairs


def _first_at(target: float, objectives: list[float]) -> int:
    """Count of steps until an objective is at or below `target`."""
    for count, objective in enumerate(objectives, start=1):
        if objective <= target:
            return count
    raise RuntimeError(
        f"{len(objectives)} steps ended at {objectives[-1]:.5f}, the target is "
        f"{target:.5f}: raise --limit"
    )


def format_pairs(pairs: list[Pair]) -> str:
    """Table of the pairs, closed by the median ratio."""
    lines = [f"{'epochs':>8}{'one [s]':>10}{'rounds':>8}{'two [s]':>10}{'ratio':>8}"]
    for pair in pairs:
        lines.append(
            f"{pair.epochs:>8}{pair.seconds_one:>10.3f}{pair.rounds:>8}"
            f"{pair.seconds_two:>10.3f}{pair.ratio:>8.2f}"
        )
    median = statistics.median(pair.ratio for pair in pairs)
    lines.append(f"median ratio {median:.2f}")
    return "\n".join(lines)
