"""How much waiting does staleness save where a rank is slow?

Multinomial logistic regression over four ranks that are threads of one process. In an
iteration a rank sleeps for a fixed time, and three times as long where it is slow:
either always the same rank, or each rank in some iterations drawn at random. For each
bound of the staleness: iterations and seconds until the objective is near the optimum,
and the seconds that a rank has computed (with its sleep) and waited meanwhile, on
average over ranks (figure 8 of the paper). The objective is known at the end of each
pass; in between, its distance from the optimum is taken to fall by a constant factor.

Run ``python sfb_staleness.py --help``; the defaults take some minutes.
"""

from __future__ import annotations

import argparse
from statistics import median
from time import sleep
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from dask_ma import SFBLogisticRegression
from dask_ma.comm import Group
from dask_ma.data import Shard
from dask_ma.kernels import log_loss_sum, softmax_slopes
from dask_ma.sfb import Batch, Exchange, FactorModel, ParameterMatrix, run
from dask_ma.sfb.prox import L2


class Softmax(FactorModel):
    """Multinomial logistic regression."""

    fit_intercept = True

    def __init__(self, n_classes: int, alpha: float, learning_rate: float) -> None:
        self.n_classes = n_classes
        self.prox = L2(alpha)
        self.learning_rate = learning_rate

    def initial_matrix(self, n_features: int) -> np.ndarray:
        return np.zeros((self.n_classes, n_features))

    def factors(self, matrix: ParameterMatrix, batch: Batch) -> tuple[np.ndarray, Any]:
        return softmax_slopes(matrix.product(batch.X), batch.y), batch.X

    def loss(self, matrix: ParameterMatrix, batch: Batch) -> float:
        return log_loss_sum(matrix.product(batch.X), batch.y)


class Slowed(Softmax):
    """The same on ranks that take their time.

    Parameters
    ----------
    n_classes, alpha, learning_rate
        As in the class above.
    pause : float
        Seconds of an iteration.
    factor : float
        How many times as long a slow iteration takes.
    who : {"one", "any"}
        Whether the last rank is always slow, or each in one of as many iterations as
        there are ranks.
    """

    def __init__(
        self,
        n_classes: int,
        alpha: float,
        learning_rate: float,
        pause: float,
        factor: float,
        who: str,
    ) -> None:
        super().__init__(n_classes, alpha, learning_rate)
        self.pause = pause
        self.factor = factor
        self.who = who

    def prepare(self, shard: Shard, group: Group) -> None:
        self.share = 1 / group.size
        self.is_slow = group.rank == group.size - 1
        self.rng = np.random.default_rng(group.rank)

    def factors(self, matrix: ParameterMatrix, batch: Batch) -> tuple[np.ndarray, Any]:
        slow = self.is_slow
        if self.who == "any":
            slow = bool(self.rng.random() < self.share)
        sleep(self.pause * (self.factor if slow else 1))
        return super().factors(matrix, batch)


class Course(NamedTuple):
    """A run until it is near the optimum; infinity if it never was."""

    iterations: float
    seconds: float
    computing: float
    waiting: float


def make_data(args: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and classes that depend on them with noise."""
    rng = np.random.default_rng(args.seed)
    X = rng.standard_normal((args.rows, args.columns)) / np.sqrt(args.columns)
    scores = 5 * X @ rng.standard_normal((args.columns, args.classes))
    return X, np.argmax(scores + rng.gumbel(size=scores.shape), axis=1)


def optimum(X: np.ndarray, y: np.ndarray, alpha: float) -> float:
    """The least objective, from below."""
    model = SFBLogisticRegression(alpha=alpha, solver="sdca", tol=1e-5, max_iter=500)
    model.fit(X, y)
    last = model.history_[-1]
    return float(last["objective"] - last["dual_gap"])


def course(model: Slowed, X: Any, y: Any, bound: int, args: Any, best: float) -> Course:
    """Run until the objective is near the best."""
    history = run(
        model,
        X,
        y,
        n_passes=args.passes,
        batch_size=args.batch,
        communication=Exchange("factors", staleness=bound),
        dtype="float64",
        n_ranks=args.ranks,
        random_state=args.seed,
    ).history
    distance = np.array([record["objective"] for record in history]) / best - 1
    sums = np.array(
        [
            [record["iteration"] for record in history],
            [record["time"] for record in history],
            np.cumsum([record["seconds_computing"] for record in history]),
            np.cumsum([record["seconds_waiting"] for record in history]),
        ]
    ).T
    near = np.flatnonzero(distance <= args.excess)
    if not len(near):
        return Course(*[np.inf] * 4)
    last = near[0]
    if last == 0:
        return Course(*sums[0])
    before, after = np.log(distance[last - 1 : last + 1])
    part = (before - np.log(args.excess)) / (before - after)
    return Course(*(sums[last - 1] + part * (sums[last] - sums[last - 1])))


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=int, default=6_400)
    add("--columns", type=int, default=200)
    add("--classes", type=int, default=20)
    add("--alpha", type=float, default=1e-3)
    add("--learning-rate", type=float, default=0.5)
    add("--ranks", type=int, default=4)
    add("--batch", type=int, default=8, help="rows of a rank")
    add("--passes", type=int, default=20, help="at most")
    add("--staleness", type=int, nargs="+", default=[0, 2, 8, 32])
    add("--pause", type=float, default=2.0, help="ms of an iteration")
    add("--factor", type=float, default=3.0, help="of a slow iteration")
    add("--who", nargs="+", default=["one", "any"], choices=["one", "any"])
    add("--excess", type=float, default=0.01, help="of the objective, of the optimum")
    add("--repeats", type=int, default=3)
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    X, y = make_data(args)
    n_classes = int(y.max()) + 1
    best = optimum(X, y, args.alpha)
    print(
        f"{'slow':<6}{'staleness':>9}{'iterations':>12}{'seconds':>10}"
        f"{'computing':>11}{'waiting':>9}"
    )
    with threadpool_limits(1):
        for who in args.who:
            how = args.learning_rate, args.pause / 1000, args.factor, who
            for bound in args.staleness:
                found = [
                    course(Slowed(n_classes, args.alpha, *how), X, y, bound, args, best)
                    for _ in range(args.repeats)
                ]
                result = Course(*(median(values) for values in zip(*found)))
                print(
                    f"{who:<6}{bound:>9}{result.iterations:>12.0f}"
                    f"{result.seconds:>10.2f}{result.computing:>11.2f}"
                    f"{result.waiting:>9.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
