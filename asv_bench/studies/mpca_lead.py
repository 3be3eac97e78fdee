"""How far ahead is "mpca" of other strategies, by task and by link?

Networks are trained by the workers of a cluster, on links of several rates, by every
strategy and with every combination of a grid that is the same for all. Ranks hold a
tenth of the images out and score the joint model after each epoch; the time is that
until the accuracy reaches the target of the task, as in ``mpca_strategies.py``. Each
strategy is shown at its best setting, beside "mpca" at its best.

    python mpca_lead.py --data FOLDER
    python mpca_lead.py --data FOLDER --tasks perceptron --bandwidths 12.5MB 0
    python mpca_lead.py --data FOLDER --scheduler tcp://host:8786 --bandwidths 0

The folder (or ``$DASK_MA_DATA``) holds ``fashion_mnist``, and ``cifar10_subset`` for
the residual network. Bandwidths are those of each worker in a second; 0 is no limit.
Workers behind links of their own come by ``--scheduler``. "gradients" does what
DistributedDataParallel does: each step is made with the gradients of all ranks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mpca_strategies import (
    Course,
    Images,
    add_common,
    connect,
    limit_rate,
    load_images,
    medians,
    parse,
    run,
    spread,
    warm_up,
)

from dask_ma import MPCAClassifier
from dask_ma.mpca import Torch, strategies

_EXAMPLE = Path(__file__).parents[2] / "examples" / "resnet110"
_STRATEGIES: dict[str, list[Any]] = {
    "mpca": ["mpca", strategies.MPCA(extrapolation=1.5)],
    "synchronous": [strategies.Synchronous(period) for period in (5, 10, 20, 40)],
    "easgd": [strategies.ElasticAveraging(period) for period in (5, 10, 20, 40)],
    "gradients": ["gradients"],
    "parameter_server": ["parameter_server"],
}
_RATES = (1e-3, 2e-3)


class Task(NamedTuple):
    """Images, and what learns them.

    Attributes
    ----------
    load : callable
        Reads the images from the folder of the data, so many of them.
    shape : tuple of int
        Of an image as the network takes it; empty for a row.
    network : callable
        Gives the parameters of the estimator that make the network.
    target : float
        Accuracy on the images held out.
    """

    load: Callable[[Path, int | None], Images]
    shape: tuple[int, ...]
    network: Callable[[], dict[str, Any]]
    target: float


class Row(NamedTuple):
    """What a setting of a strategy has come to on a link."""

    task: str
    bandwidth: str
    strategy: str
    setting: str
    course: Course


def convolutions() -> Any:
    """Two layers of convolutions and two of units, for images of 28 x 28 pixels."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 49, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def residual() -> Any:
    """The network of 20 layers of the example."""
    sys.path.insert(0, str(_EXAMPLE))
    from resnet import ResNet

    return ResNet(depth=20)


def load_colours(folder: Path, n_rows: int | None) -> Images:
    """Images of CIFAR-10, centred, as rows."""
    sys.path.insert(0, str(_EXAMPLE))
    from resnet import load_images as load_cifar

    X, y, X_test, y_test = load_cifar(folder / "cifar10_subset")
    found = []
    for rows, labels in ((X[:n_rows], y[:n_rows]), (X_test, y_test)):
        flat = rows.reshape(len(rows), -1).astype(np.float32) / 255 - 0.5
        found += [flat, labels]
    return Images(*found)


def perceptron() -> dict[str, Any]:
    """The built-in network of 256 and 128 units."""
    return {"hidden_layer_sizes": (256, 128)}


def module_of(make: Callable[[], Any]) -> dict[str, Any]:
    """A network of PyTorch."""
    return {"module": Torch(make)}


TASKS = {
    "perceptron": Task(load_images, (), perceptron, 0.87),
    "convolutions": Task(
        load_images, (1, 28, 28), partial(module_of, convolutions), 0.88
    ),
    "resnet20": Task(load_colours, (3, 32, 32), partial(module_of, residual), 0.5),
}


def measure(
    name: str, bandwidth: str, client: Any, args: argparse.Namespace
) -> list[Row]:
    """All settings of all strategies on a link, in turn, several times."""
    task = TASKS[name]
    images = task.load(args.data, args.rows)
    X, y = spread(images, client)
    if task.shape:
        X = X.reshape(-1, *task.shape)
        test = images.X_test.reshape(-1, *task.shape)
        images = images._replace(X_test=test)
    limit_rate(client, bandwidth)
    settings = [
        (strategy, kind, rate)
        for strategy in args.strategies
        for kind, rate in product(_STRATEGIES[strategy], args.rates)
    ]
    courses: list[list[Course]] = [[] for _ in settings]
    for seed in range(args.repeats):
        for own, (_, kind, rate) in zip(courses, settings, strict=True):
            model = MPCAClassifier(
                **task.network(),
                strategy=kind,
                batch_size=args.batch,
                learning_rate_init=rate,
                max_iter=args.epochs,
                tol=None,
                early_stopping=True,
                random_state=seed,
            )
            own.append(run(model, (X, y), images, args.target or task.target))
            print(name, bandwidth, kind, rate, own[-1], file=sys.stderr, flush=True)
    limit_rate(client, "0")
    return [
        Row(name, bandwidth, strategy, f"{kind}, rate {rate:g}", medians(own))
        for own, (strategy, kind, rate) in zip(courses, settings, strict=True)
    ]


def print_lead(rows: list[Row]) -> None:
    """The best setting of each strategy on each link, and how long it takes by mpca."""
    print(
        f"{'task':<14}{'link':<10}{'strategy':<18}{'best setting':<44}{'seconds':>9}"
        f"{'epochs':>8}{'computing':>11}{'test':>8}{'by mpca':>9}"
    )
    for task, bandwidth in dict.fromkeys(row[:2] for row in rows):
        here = [row for row in rows if row[:2] == (task, bandwidth)]
        best: dict[str, Row] = {}
        for row in here:
            known = best.get(row.strategy)
            if known is None or row.course.seconds < known.course.seconds:
                best[row.strategy] = row
        ours = best["mpca"].course.seconds if "mpca" in best else np.nan
        for row in best.values():
            course = row.course
            print(
                f"{task:<14}{bandwidth:<10}{row.strategy:<18}{row.setting:<44}"
                f"{course.seconds:>9.1f}{course.epochs:>8.2f}{course.computing:>11.0%}"
                f"{course.accuracy:>8.4f}{course.seconds / ours:>8.2f}x"
            )


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_common(parser)
    add = parser.add_argument
    add("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    add("--strategies", nargs="+", choices=_STRATEGIES, default=list(_STRATEGIES))
    add("--bandwidths", nargs="+", default=["12.5MB", "125MB", "0"])
    add("--rates", type=float, nargs="+", default=_RATES, help="step sizes")
    add("--target", type=float, help="accuracy, in place of the task's own")
    args = parse(parser)
    rows: list[Row] = []
    with connect(args) as client:
        warm_up(load_images(args.data, 1000), args.strategies)
        for name, bandwidth in product(args.tasks, args.bandwidths):
            rows += measure(name, bandwidth, client, args)
    print_lead(rows)


if __name__ == "__main__":
    main()
