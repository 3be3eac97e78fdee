"""Which pull of a cycle and which extrapolation train networks best, by default?

A multi-layer perceptron is trained by "mpca" on three sets: the digits of scikit-learn,
images of Fashion-MNIST and generated rows. Two or four ranks make their steps in turn
in one thread, and messages leave some steps after they were made: so a cycle is as
long as it would be on a slower or faster network, and a run gives the same result each
time. Every pull is tried with every extrapolation, beside the values of the paper
(``penalty=0.05, extrapolation=0.7``), whose penalty is that of a step.

For each set, number of ranks and length of a cycle the study takes the log loss of the
joint model on rows held out, in the middle and at the end of the fit, the mean over
seeds, and divides it by the best one found there. The table has the geometric means of
these ratios, and the worst one.

Run ``python mpca_defaults.py --data FOLDER``; the folder (or ``$DASK_MA_DATA``) holds
``fashion_mnist``.
"""

from __future__ import annotations

import argparse
import os
from collections import deque
from itertools import product
from math import exp, log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpca_strategies import load_images
from sklearn.datasets import load_digits, make_classification
from sklearn.metrics import log_loss

from dask_ma.comm import Group, LocalGroup
from dask_ma.data import Block, Shard
from dask_ma.mpca.networks._mlp import MLPSpec
from dask_ma.mpca.strategies._base import Trainee
from dask_ma.mpca.strategies._coordinated import Coordinated
from dask_ma.mpca.strategies._messages import CoalescedMessages
from dask_ma.mpca.strategies._progress import FitProgress, RankCounters
from dask_ma.mpca.strategies._schedules import CycleSchedule, LearningRate
from dask_ma.mpca.training._batches import Sampler
from dask_ma.supervised import StopRule

SPEC = MLPSpec((64,))
RATE = 2e-3
ROWS_PER_STEP = 128  # of all ranks together
PAPER = CycleSchedule(extrapolation=0.7, smoothing=0.8, penalty=0.05, blending=0.9)


class Rows(NamedTuple):
    """Rows to train on, rows to score models with, and how long to train."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    n_epochs: int


def load_sets(folder: Path) -> dict[str, Rows]:
    """The three sets by name."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order] / 16, y[order]
    digits = Rows(X[:1300], y[:1300], X[1300:], y[1300:], 48)
    X, y = make_classification(
        4000, 40, n_informative=12, n_redundant=8, n_classes=5, random_state=0
    )
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    generated = Rows(X[:2000], y[:2000], X[2000:], y[2000:], 40)
    X, y = load_images(folder, 6000)[:2]
    y = y.astype(int)
    images = Rows(X[:3000], y[:3000], X[3000:], y[3000:], 12)
    return {"digits": digits, "generated": generated, "Fashion-MNIST": images}


class LateMessages(CoalescedMessages):
    """CoalescedMessages that leave some steps after they were put.

    Parameters
    ----------
    group : Group
        The rank.
    kinds : tuple of str
        As for :class:`CoalescedMessages`.
    delay : int
        How many steps.

    Attributes
    ----------
    step : int
        Number of the step that the rank is in; to be set from outside.
    """

    def __init__(self, group: Group, kinds: tuple[str, ...], delay: int) -> None:
        super().__init__(group, kinds)
        self.step = 0
        self._delay = delay
        self._held: deque[tuple[int, Any]] = deque()

    def send(self) -> None:
        """Send what was put so many steps ago."""
        self._held.append((self.step + self._delay, self._out))
        empty: Any = [[] for _ in self._ranks]
        while self._held and self._held[0][0] <= self.step:
            self._out = self._held.popleft()[1]
            super().send()
        self._out = empty


class Rank:
    """A rank that makes its steps when it is told to."""

    def __init__(
        self, group: Group, rows: Rows, tau: int, schedule: CycleSchedule, seed: int
    ) -> None:
        n_classes = int(rows.y.max()) + 1
        self.network = SPEC.build(
            rows.X.shape[1], n_classes, rows.X.dtype, np.random.RandomState(seed)
        )
        self.counters = RankCounters(group)
        progress = FitProgress(
            len(rows.y),
            group.size,
            StopRule(None, 1, maximize=False),
            LearningRate("constant", RATE, 0.5),
            max_iter=rows.n_epochs,
            by_score=False,
            is_mean=True,
        )
        trainee = Trainee(group, self.network, self.counters, progress, lambda: 0.0)
        # An exchange after each step, whatever the time that it takes.
        self.strategy = Coordinated(trainee, 1, schedule, "steps", most_steps=1)
        # A cycle is the way there and back, and the step in which it begins.
        self.messages = LateMessages(group, ("model", "joint"), max(0, tau // 2 - 1))
        self.strategy._messages = self.messages
        order = np.random.default_rng(seed).permutation(len(rows.y))
        own = np.array_split(order, group.size)[group.rank]
        X = rows.X[own]
        block = Block(X, rows.y[own], None, 0, 0)
        shard = Shard([block], X.shape[1], X.dtype)
        self.sampler = Sampler(
            shard,
            ROWS_PER_STEP // group.size,
            np.random.RandomState(1000 * seed + group.rank),
        )

    def step(self) -> list[Any]:
        """Make a step and exchange what there is; what has become known."""
        batch = self.sampler.next()
        loss = self.strategy.step(batch, RATE)
        self.counters.note_step(len(batch.y), loss)
        self.messages.step += 1
        return self.strategy.exchange(ends_pass=False, idle=False)


def train(
    rows: Rows, n_ranks: int, tau: int, schedule: CycleSchedule, seed: int
) -> tuple[float, float]:
    """Log loss on the test rows in the middle and at the end of a fit."""
    groups = LocalGroup.create(n_ranks)
    ranks = [Rank(group, rows, tau, schedule, seed) for group in groups]
    middle = None
    while True:
        for rank in ranks:
            for update in rank.step():
                is_late = update.epoch >= rows.n_epochs // 2
                if rank is ranks[0] and is_late and middle is None:
                    middle = test_loss(rank, rows)
                if update.stop:
                    assert middle is not None  # the end is later
                    return middle, test_loss(rank, rows)


def test_loss(rank: Rank, rows: Rows) -> float:
    """Log loss of the joint model on the test rows."""
    n_classes = int(rows.y.max()) + 1
    vector = rank.strategy.joint().astype(np.float64)
    p = SPEC.forward(vector, rows.X_test.astype(np.float64), n_classes)
    return float(log_loss(rows.y_test, p))


def schedules(args: argparse.Namespace) -> dict[str, CycleSchedule]:
    """What is tried, by the first two columns of the table."""
    found = {"paper | 0.7": PAPER}
    for pull, extrapolation in product(args.pulls, args.extrapolations):
        found[f"{pull} | {extrapolation}"] = PAPER._replace(
            penalty=None, pull=pull, extrapolation=extrapolation
        )
    return found


def study(
    sets: dict[str, Rows], args: argparse.Namespace
) -> dict[str, list[tuple[float, float]]]:
    """Ratios to the best loss in the middle and at the end, for each cell."""
    tried = schedules(args)
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in tried}
    for (label, rows), n_ranks, tau in product(sets.items(), args.ranks, args.taus):
        means = {}
        for name, schedule in tried.items():
            losses = [
                train(rows, n_ranks, tau, schedule, s) for s in range(args.repeats)
            ]
            means[name] = np.mean(losses, axis=0)
        best = np.min(list(means.values()), axis=0)
        for name, mean in means.items():
            ratios[name].append(tuple(mean / best))
        order = sorted(means, key=lambda name: means[name][1])
        print(
            f"{label}, {n_ranks} ranks, tau {tau}: best {order[0]} with {best[1]:.3f}; "
            f"paper {means['paper | 0.7'][1]:.3f}",
            flush=True,
        )
    return ratios


def print_table(ratios: dict[str, list[tuple[float, float]]]) -> None:
    """Geometric means over the cells, the best at the end first."""
    table = {}
    for name, found in ratios.items():
        middle, end = (exp(np.mean([log(r[i]) for r in found])) for i in (0, 1))
        table[name] = middle, end, max(r[1] for r in found)
    for name, values in sorted(table.items(), key=lambda item: item[1][1]):
        print(f"{name} | " + " | ".join(f"{value:.2f}" for value in values))


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--data", default=os.environ.get("DASK_MA_DATA"))
    parser.add_argument("--pulls", type=float, nargs="+", default=[0.1, 0.2, 0.3, 0.4])
    parser.add_argument(
        "--extrapolations", type=float, nargs="+", default=[2.5, 3.0, 3.5, 4.5]
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--taus", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--repeats", type=int, default=2, help="seeds, from 0 on")
    args = parser.parse_args()
    if args.data is None:
        parser.error("give --data, or set DASK_MA_DATA")
    print_table(study(load_sets(Path(args.data)), args))


if __name__ == "__main__":
    main()
