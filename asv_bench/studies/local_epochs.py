"""How long should a rank work alone between two merges?

Model averaging is simulated in one process: every rank is a scikit-learn
``SGDClassifier`` on its own contiguous rows, and after ``local_epochs`` passes over
them all the ranks go on from the mean model. The results are counted in passes over a
rank's rows, which is what a rank spends its time on, so they do not depend on the
machine. A pass of one of P ranks takes 1/P of the time of a pass over all the rows:
with linear speed-up, P ranks need as many passes as one does.

Run ``python local_epochs.py --help``; the defaults take a few minutes. The real sets
are read from ``--data`` or ``$DASK_MA_DATA`` and skipped where neither is given.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sklearn
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import SGDClassifier

from dask_ma.datasets import make_sparse_classification
from dask_ma.kernels import loss_sums, penalty_value, row_slice

SCHEDULES: dict[str, Callable[[int], float]] = {
    "1/64": lambda round_: 1 / 64,
    "1/32": lambda round_: 1 / 32,
    "1/16": lambda round_: 1 / 16,
    "1/8": lambda round_: 1 / 8,
    "1/4": lambda round_: 1 / 4,
    "1/2": lambda round_: 1 / 2,
    "1": lambda round_: 1.0,
    "2": lambda round_: 2.0,
    # one pass in short pieces, then whole passes
    "8x1/8,1": lambda round_: 1 / 8 if round_ < 8 else 1.0,
    "4x1/4,1": lambda round_: 1 / 4 if round_ < 4 else 1.0,
    # pieces that double: 1/8 1/8 1/4 1/2 1 1 1
    "doubling": lambda round_: min(1.0, 2.0 ** (max(round_, 1) - 4)),
}


class Problem(NamedTuple):
    """A data set with its objective."""

    name: str
    X: Any
    codes: np.ndarray
    loss: str
    alpha: float

    @property
    def n_problems(self) -> int:
        """Binary problems in the model."""
        n_classes = int(self.codes.max()) + 1
        return 1 if n_classes == 2 else n_classes


class Model(NamedTuple):
    """Coefficients (n_problems, n_features) and intercepts (n_problems,)."""

    coef: np.ndarray
    intercept: np.ndarray


class Variant(NamedTuple):
    """What a run does differently from plain averaging."""

    schedule: str = "1"
    # t_ counts a rank's own samples times this: 1 is scikit-learn's own course
    step_decay: float = 1.0
    # models reported: the "last" merged one, or a "mean" of the merged models in
    # which round r has a weight that grows with r
    report: str = "last"
    # models sent: the "end" of the local pass, or the "mean" of 8 points along it
    send: str = "end"


def objective(problem: Problem, model: Model) -> float:
    """Mean loss plus penalty, averaged over the one-vs-rest problems."""
    sums = loss_sums(
        problem.X,
        problem.codes,
        None,
        model.coef,
        model.intercept,
        loss=problem.loss,
        one_vs_rest=True,
    )
    penalty = penalty_value("l2", model.coef)
    total = sums.sum() / problem.X.shape[0] + problem.alpha * penalty
    return float(total) / problem.n_problems


class Rank:
    """One simulated rank: its rows, its solver and where it is in its rows."""

    def __init__(self, problem: Problem, start: int, stop: int, seed: int) -> None:
        self.X = row_slice(problem.X, start, stop)
        self.codes = problem.codes[start:stop]
        self.n_samples = stop - start
        self.classes = np.arange(max(2, problem.n_problems))
        self.position = 0
        self.offset = 0
        self.seen = 0
        self.random = np.random.default_rng(seed)
        self.solver = SGDClassifier(
            loss=problem.loss,
            alpha=problem.alpha,
            random_state=np.random.RandomState(seed),
        )

    def load(self, model: Model, step_decay: float) -> None:
        """Go on from a merged model."""
        self.solver.coef_ = model.coef.copy()
        self.solver.intercept_ = model.intercept.copy()
        if step_decay != 1.0:
            self.solver.t_ = 1 + self.seen * step_decay

    def work(self, epochs: float, n_points: int) -> Model:
        """`epochs` local passes; the mean of the models at `n_points` points."""
        ends = np.linspace(0, epochs * self.n_samples, n_points + 1).round().astype(int)
        coef, intercept = 0.0, 0.0
        for n_rows in np.diff(ends):
            self._advance(int(n_rows))
            coef = coef + self.solver.coef_ / n_points
            intercept = intercept + self.solver.intercept_ / n_points
        return Model(coef, intercept)

    def _advance(self, n_rows: int) -> None:
        """Learn the next rows; every pass starts at another row and goes round."""
        while n_rows > 0:
            if self.position == 0:
                self.offset = int(self.random.integers(self.n_samples))
            start = (self.offset + self.position) % self.n_samples
            step = min(n_rows, self.n_samples - max(self.position, start))
            X = row_slice(self.X, start, start + step)
            codes = self.codes[start : start + step]
            self.solver.partial_fit(X, codes, classes=self.classes)
            n_rows -= step
            self.seen += step
            self.position = (self.position + step) % self.n_samples


def simulate(
    problem: Problem, n_ranks: int, variant: Variant, passes: float, seed: int
) -> Iterator[tuple[float, Model]]:
    """Passes so far and the model to report, after every merge."""
    edges = np.linspace(0, problem.X.shape[0], n_ranks + 1).astype(int)
    ranks = [
        Rank(problem, start, stop, 1000 * seed + i)
        for i, (start, stop) in enumerate(zip(edges[:-1], edges[1:], strict=True))
    ]
    share = np.diff(edges) / edges[-1]
    schedule = SCHEDULES[variant.schedule]
    n_points = 8 if variant.send == "mean" else 1
    done, mean, round_ = 0.0, None, 0
    while done < passes - 1e-9:
        epochs = min(schedule(round_), passes - done)
        models = [rank.work(epochs, n_points) for rank in ranks]
        model = Model(
            sum(s * m.coef for s, m in zip(share, models, strict=True)),
            sum(s * m.intercept for s, m in zip(share, models, strict=True)),
        )
        for rank in ranks:
            rank.load(model, variant.step_decay)
        done, round_ = done + epochs, round_ + 1
        mean = _running_mean(mean, model, round_)
        yield done, mean if variant.report == "mean" else model


def _running_mean(mean: Model | None, model: Model, round_: int) -> Model:
    """Weighted mean of the merged models; round r weighs about r^3."""
    if mean is None:
        return model
    weight = 4 / (round_ + 3)
    return Model(
        mean.coef + weight * (model.coef - mean.coef),
        mean.intercept + weight * (model.intercept - mean.intercept),
    )


def curve(
    problem: Problem, n_ranks: int, variant: Variant, passes: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Passes and objectives, at most sixteen to a pass."""
    at, values, last = [], [], 0.0
    for done, model in simulate(problem, n_ranks, variant, passes, seed):
        if done - last > 1 / 16 - 1e-9:
            at.append(done)
            values.append(objective(problem, model))
            last = done
    return np.array(at), np.array(values)


def reference(problem: Problem, passes: int) -> float:
    """Objective of a long run of one rank with growing averages."""
    variant = Variant(report="mean")
    at_end = [m for _, m in simulate(problem, 1, variant, passes, seed=99)][-1]
    return objective(problem, at_end)


def passes_to(at: np.ndarray, values: np.ndarray, target: float) -> float:
    """First number of passes at or below `target`, interpolated; inf if never."""
    below = np.flatnonzero(values <= target)
    if len(below) == 0:
        return np.inf
    i = below[0]
    if i == 0:
        return float(at[0])
    part = (values[i - 1] - target) / (values[i - 1] - values[i])
    return float(at[i - 1] + part * (at[i] - at[i - 1]))


def synthetic(n_samples: int, n_features: int, loss: str, alpha: float) -> Problem:
    """Text-like rows with a known model."""
    X, y, _ = make_sparse_classification(n_samples, n_features, random_state=0)
    return Problem(f"synthetic-{n_samples // 1000}k", X, y, loss, alpha)


def real(folder: Path, name: str, loss: str, alpha: float) -> Problem:
    """Tf-idf of the counts in ``<folder>/<name>/X_train.npz``."""
    counts = sparse.load_npz(folder / name / "X_train.npz")
    X = TfidfTransformer().fit_transform(counts)
    _, codes = np.unique(np.load(folder / name / "y_train.npy"), return_inverse=True)
    return Problem(name, X, codes, loss, alpha)


def study(problem: Problem, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All runs on one problem: one record per number of ranks, variant and seed."""
    records = []
    for n_ranks in args.ranks:
        for variant in _variants(args):
            for seed in range(args.seeds):
                at, values = curve(problem, n_ranks, variant, args.passes, seed)
                records.append(
                    {"n_ranks": n_ranks, "variant": variant, "at": at, "f": values}
                )
    lowest = min(record["f"].min() for record in records)
    best = min(lowest, reference(problem, args.reference_passes))
    for record in records:
        record["ratio"] = record["f"] / best
    return records


def _variants(args: argparse.Namespace) -> list[Variant]:
    """The product of the options."""
    return [
        Variant(schedule, decay, report, send)
        for schedule in args.schedules
        for decay in args.step_decay
        for report in args.report
        for send in args.send
    ]


def print_table(problem: Problem, records: list[dict[str, Any]], passes: float) -> None:
    """Mean objective over best after some passes, and passes to 1.02 and 1.01."""
    marks = [m for m in (0.125, 0.5, 1, 2, 3, 5, 10, 20, 50, 100) if m <= passes]
    print(f"\n{problem.name} {problem.loss} alpha={problem.alpha:g}: objective / best")
    head = "".join(f"{f'@{m:g}':>8}" for m in marks)
    print(f"{'ranks':>5} {'schedule, decay, report, send':<30}{head}   to1.02 (seeds)")
    keys = dict.fromkeys((r["n_ranks"], r["variant"]) for r in records)
    for key in keys:
        runs = [r for r in records if (r["n_ranks"], r["variant"]) == key]
        ratios = np.mean([r["ratio"] for r in runs], axis=0)
        cells = "".join(f"{_at(runs[0]['at'], ratios, m):8.4f}" for m in marks)
        need = [passes_to(r["at"], r["ratio"], 1.02) for r in runs]
        label = " ".join(str(part) for part in key[1])
        text = " ".join(f"{n:.2f}" for n in need)
        print(f"{key[0]:>5} {label:<30}{cells}   {text}", flush=True)


def _at(at: np.ndarray, values: np.ndarray, mark: float) -> float:
    """Value at a number of passes, nan where no merge happened there."""
    hit = np.flatnonzero(np.abs(at - mark) < 1e-6)
    return values[hit[0]] if len(hit) else np.nan


def plot(results: dict[str, list[dict[str, Any]]], output: Path) -> None:
    """One panel per problem and number of ranks."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ranks = sorted({r["n_ranks"] for records in results.values() for r in records})
    fig, axes = plt.subplots(
        len(results),
        len(ranks),
        figsize=(4 * len(ranks), 3 * len(results)),
        squeeze=False,
        layout="constrained",
    )
    for row, (name, records) in zip(axes, results.items(), strict=True):
        for ax, n_ranks in zip(row, ranks, strict=True):
            _plot_panel(ax, [r for r in records if r["n_ranks"] == n_ranks])
            ax.set(title=f"{name}, {n_ranks} ranks", xlabel="passes per rank")
        row[0].set_ylabel("objective / best - 1")
    axes[0, -1].legend(fontsize="x-small")
    fig.savefig(output, dpi=120)


def _plot_panel(ax: Any, records: list[dict[str, Any]]) -> None:
    """Mean curve over the seeds, one line per variant."""
    for variant in dict.fromkeys(r["variant"] for r in records):
        runs = [r for r in records if r["variant"] == variant]
        excess = np.mean([r["ratio"] for r in runs], axis=0) - 1
        label = " ".join(str(part) for part in variant)
        ax.plot(runs[0]["at"], excess, marker=".", label=label)
    ax.set(yscale="log")
    ax.axhline(0.02, color="grey", linewidth=0.8)


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--rows", type=int, nargs="*", default=[50_000, 200_000])
    add("--features", type=int, default=50_000)
    add("--real", nargs="*", default=["imdb", "newsgroups20"])
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    add("--schedules", nargs="+", choices=SCHEDULES, default=["1/16", "1/4", "1"])
    add("--step-decay", type=float, nargs="+", default=[1.5])
    add("--report", nargs="+", choices=["last", "mean"], default=["last"])
    add("--send", nargs="+", choices=["end", "mean"], default=["end"])
    add("--loss", default="hinge")
    add("--alpha", type=float, default=1e-5)
    add("--passes", type=float, default=5)
    add("--seeds", type=int, default=3)
    add("--reference-passes", type=int, default=40)
    add("--output", type=Path, help="write the figure here")
    return parser.parse_args()


def main() -> None:
    """Run the study."""
    args = parse()
    sklearn.set_config(assume_finite=True)
    makers = [
        lambda n=n: synthetic(n, args.features, args.loss, args.alpha)
        for n in args.rows
    ]
    if args.data is None:
        print("no --data and no DASK_MA_DATA: the real sets are skipped")
    else:
        folder = Path(args.data)
        makers += [
            lambda name=name: real(folder, name, args.loss, args.alpha)
            for name in args.real
        ]
    results = {}
    for make in makers:
        problem = make()
        records = study(problem, args)
        print_table(problem, records, args.passes)
        results[problem.name] = records
    if args.output is not None:
        plot(results, args.output)


if __name__ == "__main__":
    main()
