"""How many communication steps do SendModel and SendGradient need?

Both paradigms train a linear classifier on the reviews of imdb (tf-idf) with four
ranks. SendModel is ``MASGDClassifier`` as it is; SendGradient is the same with
``paradigm="gradient"``, over a grid of step sizes and batch fractions. A step is a
round: one merge of models, or one update by a gradient. The optimum is that of
scikit-learn's solvers, or the lowest objective of all runs if that is lower.

The objective is evaluated once the rows have been gone over, so with a batch fraction
`q` the steps are known to the next multiple of ``1 / q``.

Run ``python paradigms.py --data FOLDER``; the defaults take some twenty minutes on two
cores. The folder (or ``$DASK_MA_DATA``) holds ``imdb/X_train.npz`` and
``imdb/y_train.npy``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from dask_ma import MASGDClassifier
from dask_ma.kernels import loss_sums, penalty_value
from dask_ma.ma import Gradients

RATIOS = (1.5, 1.2, 1.1, 1.05, 1.02, 1.01)


class Run(NamedTuple):
    """The course of a fit."""

    name: str
    steps: np.ndarray  # rounds with a known objective
    objectives: np.ndarray
    passes: float  # over all rows, in the whole run
    seconds: float


def load(folder: Path) -> tuple[Any, np.ndarray]:
    """Tf-idf rows and labels 0 and 1."""
    counts = sparse.load_npz(folder / "imdb" / "X_train.npz").astype(np.float64)
    X = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    y = (np.load(folder / "imdb" / "y_train.npy") > 0).astype(int)
    # The file may be sorted by class, which no paradigm is to be blamed for.
    order = np.random.default_rng(0).permutation(len(y))
    return X[order], y[order]


def optimum(X: Any, y: np.ndarray, loss: str, alpha: float) -> float:
    """Objective of scikit-learn's solution."""
    C = 1 / (alpha * len(y))
    if loss == "hinge":
        # Its intercept is penalised, which hardly matters with classes of equal size.
        model = LinearSVC(loss="hinge", C=C, tol=1e-4, max_iter=3000, random_state=0)
    else:
        model = LogisticRegression(C=C, tol=1e-7, max_iter=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    losses = loss_sums(
        X, y, None, model.coef_, model.intercept_, loss=loss, one_vs_rest=True
    )
    return float(losses[0] / len(y) + alpha * penalty_value("l2", model.coef_))


def fit(name: str, X: Any, y: np.ndarray, **params: Any) -> Run:
    """Fit, and keep the rounds that were evaluated."""
    start = perf_counter()
    model = MASGDClassifier(n_ranks=4, tol=None, random_state=0, **params).fit(X, y)
    seconds = perf_counter() - start
    known = [r for r in model.history_ if not np.isnan(r["objective"])]
    return Run(
        name,
        np.array([r["round"] for r in known]),
        np.array([r["objective"] for r in known]),
        sum(r["n_samples"] for r in model.history_) / len(y),
        seconds,
    )


def send_model(X: Any, y: np.ndarray, args: argparse.Namespace) -> Iterator[Run]:
    """Model averaging with several lengths of the local passes."""
    for epochs in args.local_epochs:
        yield fit(
            f"model, {epochs:g} local epochs",
            X,
            y,
            loss=args.loss,
            alpha=args.alpha,
            average=True,
            local_epochs=epochs,
            max_iter=max(1, int(args.model_passes / epochs)),
        )


def send_gradient(X: Any, y: np.ndarray, args: argparse.Namespace) -> Iterator[Run]:
    """Distributed gradient descent with Spark's step size, eta0 / sqrt(t)."""
    grid = itertools.product(args.batch_fraction, args.eta0, args.average)
    for fraction, eta0, average in grid:
        yield fit(
            f"gradient, eta0 {eta0:g}, fraction {fraction:g}"
            + (", average" if average else ""),
            X,
            y,
            loss=args.loss,
            alpha=args.alpha,
            paradigm=Gradients(batch_fraction=fraction),
            learning_rate="invscaling",
            power_t=0.5,
            eta0=eta0,
            average=average,
            max_iter=args.gradient_steps,
        )


def steps_to(run: Run, target: float) -> float:
    """First step at or below the target; infinity if there is none."""
    below = np.flatnonzero(run.objectives <= target)
    return float(run.steps[below[0]]) if len(below) else np.inf


def print_run(run: Run, best: float) -> None:
    """Steps to each ratio, and where the run ended."""
    cells = "".join(f"{steps_to(run, best * ratio):>8g}" for ratio in RATIOS)
    lowest = run.objectives.min() / best
    print(
        f"{run.name:<44}{cells}{lowest:>9.4f}{run.steps[-1]:>8}"
        f"{run.passes:>8.0f}{run.seconds:>7.0f} s",
        flush=True,
    )


def compare(models: list[Run], gradients: list[Run], best: float) -> None:
    """Fewest steps of each paradigm, ratio by ratio."""
    print("\nfewest steps to ... times the best objective")
    longest = max(run.steps[-1] for run in gradients)
    for ratio in RATIOS:
        ours, theirs = (
            min(steps_to(run, ratio * best) for run in runs)
            for runs in (models, gradients)
        )
        if np.isinf(ours):
            print(f"{ratio:<6g} not reached by SendModel")
        elif np.isinf(theirs):
            print(
                f"{ratio:<6g} SendModel {ours:g}, SendGradient not reached after "
                f"{longest}: more than {longest / ours:.0f} times"
            )
        else:
            print(
                f"{ratio:<6g} SendModel {ours:g}, SendGradient {theirs:g}: "
                f"{theirs / ours:.0f} times"
            )


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--loss", default="hinge", choices=["hinge", "log_loss"])
    add("--alpha", type=float, default=1e-5)
    add("--local-epochs", type=float, nargs="+", default=[1, 3, 10])
    add("--model-passes", type=float, default=300)
    add("--eta0", type=float, nargs="+", default=[100, 300, 1000, 3000])
    add("--batch-fraction", type=float, nargs="+", default=[1, 0.1, 0.01])
    add("--average", type=int, nargs="+", choices=[0, 1], default=[0])
    add("--gradient-steps", type=int, default=1000)
    args = parser.parse_args()
    if args.data is None:
        parser.error("--data or DASK_MA_DATA must name the folder with imdb")
    return args


def main() -> None:
    """Run the study."""
    args = parse()
    X, y = load(Path(args.data))
    best = optimum(X, y, args.loss, args.alpha)
    print(f"{args.loss}, alpha={args.alpha:g}: optimum {best:.6f}")
    head = "".join(f"{ratio:>8g}" for ratio in RATIOS)
    print(f"{'steps to':<44}{head}   lowest   steps  passes")
    courses: list[list[Run]] = []
    for paradigm in (send_model, send_gradient):
        courses.append([])
        for run in paradigm(X, y, args):
            courses[-1].append(run)
            print_run(run, best)
    models, gradients = courses
    lowest = min(run.objectives.min() for run in models + gradients)
    if lowest < best:
        print(f"the lowest objective of all runs, {lowest:.6f}, is the optimum now")
    compare(models, gradients, min(best, lowest))


if __name__ == "__main__":
    main()
