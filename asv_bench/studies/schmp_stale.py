"""Would SchMPLasso gain if ranks screened while rank 0 solves, one round behind?

The paper's pipeline of depth two, emulated in one process: each working set is chosen
by the gradient at the model of a round before, as if other ranks had looked for it
while rank 0 solved. Rounds are counted, and the seconds of the processor of what only
rank 0 can do, the small problem, and of what is shared out: gradients, gap and columns.
From these follows how long a fit takes on some ranks if messages cost nothing:

- one after the other, rounds take what is shared out over the ranks, and the small
  problem on top;
- in the pipeline, whichever is longer: the small problem, or all work over the ranks,
  where rank 0 has as many rows less as keep it busy no longer than the others.

This is the best case for the pipeline: what ranks tell each other takes no time.

Run ``python schmp_stale.py``; the defaults take about a minute and 2 GB of memory.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import thread_time
from typing import Any, NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parent.parent))

from peers._sparse_solvers import make_correlated  # noqa: E402
from threadpoolctl import threadpool_limits  # noqa: E402

from dask_ma import SchMPLasso  # noqa: E402
from dask_ma.schmp.l1 import _agent  # noqa: E402
from dask_ma.schmp.l1._solver import DualityGap  # noqa: E402
from dask_ma.schmp.l1._working_set import WorkingSets  # noqa: E402


class Work(NamedTuple):
    """Seconds of each round: of the small problem, and of all else."""

    alone: np.ndarray
    shared: np.ndarray

    def in_turns(self, n_ranks: int) -> float:
        """Seconds of a fit whose ranks wait while rank 0 solves."""
        return float((self.alone + self.shared / n_ranks).sum())

    def overlapped(self, n_ranks: int) -> float:
        """Seconds of one whose ranks screen meanwhile, with the best shares of rows."""
        together = (self.alone + self.shared) / n_ranks
        return float(np.maximum(self.alone, together).sum())


class Timed(WorkingSets):
    """Working sets as they are, with the time of their rounds."""

    rounds: list[list[float]]  # of the small problem, and of all else

    def check(self) -> DualityGap:
        start = thread_time()
        try:
            return super().check()
        finally:
            type(self).rounds.append([0.0, thread_time() - start])

    def improve(self) -> None:
        start = thread_time()
        super().improve()
        type(self).rounds[-1][1] += thread_time() - start

    def _step(self, *args: Any) -> Any:
        start = thread_time()
        try:
            return super()._step(*args)
        finally:
            seconds = thread_time() - start
            last = type(self).rounds[-1]
            last[0] += seconds
            last[1] -= seconds  # of all that is in `improve`


class Stale(Timed):
    """Working sets that are chosen by the gradient of a round before."""

    _older: Any = None
    _asks_for = 1

    @property
    def _size(self) -> int:
        return self._asks_for * super()._size

    def _proposal(self) -> tuple[np.ndarray, ...]:
        # The worst are in the working set by the time that the others are chosen.
        self._asks_for = 2
        try:
            return super()._proposal()
        finally:
            self._asks_for = 1

    def _take_proposals(self, proposals: list[list[np.ndarray]]) -> None:
        super()._take_proposals(proposals)
        newest = self._found
        if self._older is not None:
            self._found = self._older
        self._older = newest

    def _known_gradient(self, coordinates: np.ndarray) -> None:
        return None  # that of the older model does not do for a step


def rounds_of(
    kind: type[Timed], problem: Any, divisor: float, args: argparse.Namespace
) -> Work:
    """The work of a fit, in the fastest of some runs."""
    ordinary, runs = _agent.WorkingSets, []
    _agent.WorkingSets = kind  # type: ignore[misc]
    try:
        for _ in range(args.repeats):
            kind.rounds = []
            model = SchMPLasso(
                problem.alpha_max / divisor, tol=args.gap, max_iter=args.most
            )
            model.fit(problem.features, problem.targets)
            runs.append(Work(*np.array(kind.rounds).T))
    finally:
        _agent.WorkingSets = ordinary  # type: ignore[misc]
    return min(runs, key=lambda work: work.in_turns(1))


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=int, default=463)
    add("--columns", type=int, nargs="+", default=[20_000, 100_000])
    add("--divisors", type=float, nargs="+", default=[10, 50])
    add("--gap", type=float, default=1e-6, help="relative duality gap to reach")
    add("--ranks", type=int, nargs="+", default=[2, 4])
    add("--most", type=int, default=200, help="rounds after which to give up")
    add("--repeats", type=int, default=3)
    add("--write", type=Path, help="file for the table")
    args = parser.parse_args()
    rows = [["columns", "largest alpha over", "rounds", "a round behind"]]
    rows[0] += ["small problems [s]", "all else [s]"]
    rows[0] += [f"ratio on {n} ranks" for n in args.ranks]
    print(*rows[0], sep=", ")
    for columns in args.columns:
        problem = make_correlated(args.rows, columns)
        for divisor in args.divisors:
            with threadpool_limits(1):
                found = rounds_of(Timed, problem, divisor, args)
                stale = rounds_of(Stale, problem, divisor, args)
            ratios = [stale.overlapped(n) / found.in_turns(n) for n in args.ranks]
            # The last look at the gap finds that it is the end.
            rounds = [len(work.alone) - 1 for work in (found, stale)]
            seconds = [found.alone.sum(), found.shared.sum()]
            row = [str(columns), f"{divisor:g}", *map(str, rounds)]
            row += [f"{number:.3f}" for number in seconds]
            row += [f"{ratio:.2f}" for ratio in ratios]
            print(*row, sep=", ", flush=True)
            rows.append(row)
    if args.write:
        args.write.write_text("".join(",".join(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
