"""What does one slow rank do to the training of all, with and without weights?

A multi-layer perceptron is trained on Fashion-MNIST by the workers of a cluster three
times: undisturbed; with one rank that takes three times as long for each step, and
counts by the steps that it makes (``weighting="steps"``); and with the same rank
counting like any other (``weighting="uniform"``). The study prints the accuracy of the
joint model on rows held out against epochs and against time, medians over repeats, and
how far the other curves fall below the undisturbed one (the paper's Fig. 10c).

A rank sleeps in each of its steps, so that its speed hardly depends on how many ranks
share a processor; the slow one sleeps longer, until its step has taken as many times as
long as it would have.

Run ``python mpca_stragglers.py --data FOLDER``; the folder (or ``$DASK_MA_DATA``) holds
``fashion_mnist``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
from dask.distributed import Client, get_worker
from mpca_strategies import (
    Images,
    add_common,
    connect,
    load_images,
    make_model,
    parse,
    scores,
    spread,
    warm_up,
)

from dask_ma import MPCAClassifier
from dask_ma.kernels import mlp_initial_values
from dask_ma.mpca import strategies
from dask_ma.mpca.networks._mlp import MLPNetwork, MLPSpec

CASES = {
    "undisturbed": (False, "steps"),
    "slow, by steps": (True, "steps"),
    "slow, uniform": (True, "uniform"),
}
_SKIPPED = 0.2  # of the curves, at the beginning, where they are steep


@dataclass(frozen=True)
class SlowedSpec(MLPSpec):
    """A multi-layer perceptron whose steps take their time.

    Parameters
    ----------
    **network
        As for :class:`MLPSpec`.
    pause : float, default=0.0
        Seconds that every rank sleeps in a step.
    factor : float, default=1.0
        How many times as long a step of the slow rank takes.
    slow_worker : str or None, default=None
        Address of the slow rank's worker; None slows nobody.
    """

    pause: float = 0.0
    factor: float = 1.0
    slow_worker: str | None = None

    def build(
        self,
        n_features: int,
        n_classes: int | None,
        dtype: np.dtype,
        random_state: np.random.RandomState,
    ) -> SlowedNetwork:
        layout = self.layout(n_features, n_classes)
        values = mlp_initial_values(layout, dtype, random_state)
        network = SlowedNetwork(self, layout, values)
        is_slow = get_worker().address == self.slow_worker
        network.pause, network.factor = self.pause, self.factor if is_slow else 1.0
        return network


class SlowedNetwork(MLPNetwork):
    """The same in training."""

    pause = 0.0
    factor = 1.0

    def step(self, *args: Any, **kwargs: Any) -> float:
        start = perf_counter()
        loss = super().step(*args, **kwargs)
        sleep(self.pause)
        sleep((self.factor - 1) * (perf_counter() - start))
        return loss


class SlowedClassifier(MPCAClassifier):
    """An estimator with such a network; set `slowness` before a fit."""

    slowness: dict[str, Any] = {}

    def _make_spec(self) -> SlowedSpec:
        return SlowedSpec(**vars(super()._make_spec()), **self.slowness)


def course(
    case: str, seed: int, data: Any, client: Client, args: argparse.Namespace
) -> tuple[np.ndarray, float]:
    """Scores of a fit, and the share of the slow rank's steps in all."""
    is_disturbed, weighting = CASES[case]
    chosen = {name: getattr(args, name) for name in ("penalty", "extrapolation")}
    strategy = strategies.MPCA(weighting=weighting, **chosen)
    common = make_model(args, seed, strategy=strategy)
    model = SlowedClassifier(**common.get_params(deep=False))
    address = sorted(client.scheduler_info(n_workers=-1)["workers"])[-1]
    model.slowness = {
        "pause": args.pause / 1000,
        "factor": args.factor,
        "slow_worker": address if is_disturbed else None,
    }
    model.fit(*data)
    spans = model.timeline_[model.timeline_["kind"] == "compute"]
    last = spans["start"] > spans["start"].max() / 2
    steps = np.bincount(spans["rank"][last])
    return scores(model.history_), float(steps.min() / steps.mean())


def at(curves: list[np.ndarray], column: int, points: np.ndarray) -> np.ndarray:
    """Median accuracy at some epochs (column 1) or times (column 0)."""
    found = [np.interp(points, curve[:, column], curve[:, 2]) for curve in curves]
    return np.median(found, axis=0)


def print_table(
    curves: dict[str, list[np.ndarray]], column: int, n_points: int
) -> None:
    """The accuracies, and the distances from the undisturbed fits."""
    name = ("seconds", "epochs")[column]
    everything = [curve for found in curves.values() for curve in found]
    first = max(curve[0, column] for curve in everything)
    last = min(curve[-1, column] for curve in everything)
    points = np.linspace(first, last, n_points)
    found = {case: at(curves[case], column, points) for case in curves}
    print(f"{name:>10}" + "".join(f"{case:>18}" for case in found))
    for number, point in enumerate(points):
        cells = "".join(f"{found[case][number]:>18.4f}" for case in found)
        print(f"{point:>10.2f}{cells}")
    late = points >= first + _SKIPPED * (last - first)
    for case, values in found.items():
        below = 100 * (found["undisturbed"] - values)[late]
        print(
            f"{case}: at most {below.max():.2f} points below, {below.mean():.2f} mean"
        )
    print()


def plot(curves: dict[str, list[np.ndarray]], output: Path) -> None:
    """Draw all curves against epochs and time."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, sharey=True, figsize=(11, 4))
    for ax, column, name in zip(axes, (1, 0), ("epochs", "time (s)"), strict=True):
        for number, (case, found) in enumerate(curves.items()):
            for curve in found:
                label = case if curve is found[0] else None
                ax.plot(curve[:, column], curve[:, 2], f"C{number}", label=label)
        ax.set_xlabel(name)
    axes[0].set_ylabel("accuracy on rows held out")
    axes[0].legend()
    figure.savefig(output, dpi=120)


def study(images: Images, args: argparse.Namespace) -> dict[str, list[np.ndarray]]:
    """Scores of all fits, by case."""
    curves: dict[str, list[np.ndarray]] = {case: [] for case in CASES}
    with connect(args) as client:
        warm_up(images, ["mpca"])
        data = spread(images, client)
        for seed in range(args.repeats):
            for case, found in curves.items():
                curve, share = course(case, seed, data, client, args)
                found.append(curve)
                print(
                    f"{case:<16} {curve[-1, 0]:7.2f} s, accuracy {curve[-1, 2]:.4f}; "
                    f"fewest steps of a rank: {share:.2f} of the mean",
                    flush=True,
                )
    return curves


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_common(parser)
    add = parser.add_argument
    add("--pause", type=float, default=10.0, help="ms that a rank sleeps in a step")
    add("--factor", type=float, default=3.0, help="of a slow step")
    add("--penalty", type=float, default=0.05)
    add("--extrapolation", type=float, default=0.7)
    add("--points", type=int, default=10, help="rows of a table")
    add("--output", type=Path, help="write a figure here")
    args = parse(parser)
    curves = study(load_images(args.data, args.rows), args)
    print_table(curves, 1, args.points)
    print_table(curves, 0, args.points)
    if args.output is not None:
        plot(curves, args.output)


if __name__ == "__main__":
    main()
