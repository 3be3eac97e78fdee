"""How many rows do the schemes of mixing need to reach a loss?

The ranks of butterfly mixing are simulated one after the other in one process, with the
kernels, the batches and the schedule of the package; the objective of the mean model is
evaluated some times in each pass. Results are counted in passes over all rows, so they
do not depend on the machine (figure 2 of the paper).

Run ``python butterfly_samples.py --help``; the defaults take some minutes. The data are
read from ``--data`` or ``$DASK_MA_DATA``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer

from dask_ma.butterfly._state import RankState, unstack
from dask_ma.butterfly._steps import StepRule
from dask_ma.comm import butterfly_depth, butterfly_partners
from dask_ma.data import Block, Shard
from dask_ma.kernels import (
    PRECONDITIONERS,
    feature_moments,
    loss_sums,
    penalty_value,
    preconditioner_diagonal,
    row_slice,
)
from dask_ma.supervised import pass_batches

SCHEMES = ("allreduce", "butterfly", "periodic")
EVALUATIONS = 10  # per pass


class Setting(NamedTuple):
    """One simulated fit."""

    n_ranks: int
    batch_size: int
    loss: str
    alpha: float
    eta0: float
    preconditioner: str | None
    n_passes: int
    seed: int


def load(folder: Path) -> tuple[Any, np.ndarray]:
    """Tf-idf rows of imdb and labels 0 and 1."""
    counts = sparse.load_npz(folder / "imdb" / "X_train.npz").astype(np.float64)
    y = np.load(folder / "imdb" / "y_train.npy")
    return TfidfTransformer(sublinear_tf=True).fit_transform(counts), (y > 0).astype(
        int
    )


def shards(X: Any, y: np.ndarray, n_ranks: int) -> list[Shard]:
    """The rows, cut evenly."""
    bounds = np.linspace(0, len(y), n_ranks + 1).astype(int)
    return [
        Shard([Block(row_slice(X, a, b), y[a:b], None, 0, int(a))], X.shape[1], X.dtype)
        for a, b in zip(bounds[:-1], bounds[1:], strict=True)
    ]


def mixed(weights: list[np.ndarray], step: int, scheme: str) -> list[np.ndarray]:
    """The weights of all ranks after an exchange."""
    size = len(weights)
    is_due = (step + 1) % butterfly_depth(size) == 0
    if scheme == "allreduce" or (scheme == "periodic" and is_due):
        mean = np.mean(weights, axis=0)
        return [mean.copy() for _ in weights]
    if scheme == "periodic":
        return weights
    sources = [butterfly_partners(rank, step, size).source for rank in range(size)]
    return [(weights[k] + weights[j]) / 2 for k, j in enumerate(sources)]


def simulate(
    X: Any, y: np.ndarray, scheme: str, setting: Setting
) -> Iterator[tuple[float, float]]:
    """Passes so far, and the objective of the mean model."""
    parts = shards(X, y, setting.n_ranks)
    n_steps = -(-max(part.n_rows for part in parts) // setting.batch_size)
    H = None
    if setting.preconditioner is not None:
        H = preconditioner_diagonal(
            feature_moments(X, None),
            len(y),
            setting.preconditioner,
            setting.batch_size,
        )
    scale = n_steps * setting.n_ranks / len(y)
    # All that a step reads of a fit's parameters.
    params: Any = SimpleNamespace(
        loss=setting.loss, alpha=setting.alpha, epsilon=0.1, fit_intercept=True
    )
    rule = StepRule(params, scale)
    weights = [np.zeros((X.shape[1] + 1, 1)) for _ in parts]
    due = {n_steps * (i + 1) // EVALUATIONS for i in range(EVALUATIONS)}
    step = 0
    for number in range(setting.n_passes):
        rngs = [
            np.random.default_rng([setting.seed, rank, number])
            for rank in range(setting.n_ranks)
        ]
        batches = [
            pass_batches(part, n_steps, rng, n_problems=1)
            for part, rng in zip(parts, rngs, strict=True)
        ]
        for done in range(1, n_steps + 1):
            for rank in range(setting.n_ranks):
                state = RankState(
                    weights[rank], step + 1, setting.eta0, preconditioner=H
                )
                rule.update(state, next(batches[rank]))
            weights = mixed(weights, step, scheme)
            step += 1
            if done in due:
                yield number + done / n_steps, objective(X, y, weights, setting)


def objective(
    X: Any, y: np.ndarray, weights: list[np.ndarray], setting: Setting
) -> float:
    """Mean loss plus penalty of the mean model."""
    model = unstack(np.mean(weights, axis=0))
    sums = loss_sums(X, y, None, *model, loss=setting.loss, one_vs_rest=True)
    return float(sums[0] / len(y) + setting.alpha * penalty_value("l2", model.coef))


def passes_to(curve: list[tuple[float, float]], target: float) -> float:
    """Passes after which the objective is first below `target`, interpolated."""
    before, above = 0.0, np.inf
    for passes, value in curve:
        if value <= target:
            if not np.isfinite(above):
                return passes
            return before + (passes - before) * (above - target) / (above - value)
        before, above = passes, value
    return np.inf


def report(X: Any, y: np.ndarray, setting: Setting, targets: list[float]) -> None:
    """Print a line per target: passes of each scheme, and times those of allreduce."""
    curves = {scheme: list(simulate(X, y, scheme, setting)) for scheme in SCHEMES}
    for target in targets:
        needed = [passes_to(curves[scheme], target) for scheme in SCHEMES]
        if not np.isfinite(needed[0]):
            continue
        cells = [f"{passes:7.2f} ({passes / needed[0]:4.2f})" for passes in needed]
        print(f"{setting.eta0:6g} {target:9.3f} | " + " | ".join(cells), flush=True)


def main() -> None:
    """Read the arguments and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("DASK_MA_DATA"))
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--loss", default="log_loss")
    parser.add_argument("--alpha", type=float, default=1e-5)
    parser.add_argument("--etas", type=float, nargs="+", default=[0.4, 0.8, 1.6, 3.2])
    parser.add_argument(
        "--targets", type=float, nargs="+", default=[0.35, 0.3, 0.27, 0.25]
    )
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--sorted", action="store_true", help="rows sorted by class")
    parser.add_argument(
        "--preconditioner", default="bounded", choices=[*PRECONDITIONERS, "none"]
    )
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if not arguments.data:
        parser.error("give --data, or set DASK_MA_DATA")
    plain = arguments.preconditioner == "none"
    X, y = load(Path(arguments.data))
    if arguments.sorted:
        order = np.argsort(y, kind="stable")
        X, y = X[order], y[order]
    for n_ranks in arguments.ranks:
        for batch_size in arguments.batches:
            steps = -(-(-(-len(y) // n_ranks)) // batch_size)
            print(f"-- {n_ranks} ranks, {batch_size} rows each, {steps} steps per pass")
            print("  eta0 objective | " + " | ".join(f"{s:>14}" for s in SCHEMES))
            for eta0 in arguments.etas:
                setting = Setting(
                    n_ranks,
                    batch_size,
                    arguments.loss,
                    arguments.alpha,
                    eta0,
                    None if plain else arguments.preconditioner,
                    arguments.passes,
                    arguments.seed,
                )
                report(X, y, setting, arguments.targets)


if __name__ == "__main__":
    main()
