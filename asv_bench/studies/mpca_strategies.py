"""How soon does each strategy train a network, and how long do its ranks compute?

A multi-layer perceptron is trained on Fashion-MNIST by the workers of a cluster, with
every strategy asked for and every combination of its parameters. Ranks hold a tenth of
the images out and score the joint model on them after each epoch. The time is that
until this accuracy reaches the target, in a straight line between the scores before and
after; it begins on rank 0, when all ranks run, so it does not hold the way of the data
to the workers. Fits of all kinds are made in turn, several times; the table has
medians, and for each strategy its best setting beside the best of "mpca" (the paper's
Table 2).

    python mpca_strategies.py --data FOLDER
    python mpca_strategies.py --data FOLDER --scheduler tcp://host:8786

The folder (or ``$DASK_MA_DATA``) holds ``fashion_mnist``. Without a scheduler there is
a local cluster of processes. ``--bandwidth`` limits what each worker sends; otherwise
take a scheduler whose workers lie behind links of some rate.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from dask.distributed import Client, LocalCluster

from dask_ma import MPCAClassifier

STRATEGIES = (
    "mpca",
    "gradients",
    "synchronous",
    "easgd",
    "parameter_server",
    "local",
)
_PARAMETERS = {
    "mpca": ("extrapolation", "penalty", "n_phases"),
    "synchronous": ("period",),
    "easgd": ("period", "elasticity"),
}


class Images(NamedTuple):
    """Fashion-MNIST, or a part of it: rows of float32 from 0 to 1, and labels."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


class Course(NamedTuple):
    """What a fit has come to.

    Attributes
    ----------
    seconds, epochs : float
        Until the target; infinite if it was not reached.
    computing : float
        Part of the time that ranks have computed, a mean over ranks.
    tau : float
        Steps between two exchanges, a mean over records.
    megabytes : float
        Sent by all ranks in an epoch.
    accuracy : float
        On the test images, in the end.
    """

    seconds: float
    epochs: float
    computing: float
    tau: float
    megabytes: float
    accuracy: float


def load_images(folder: Path, n_rows: int | None = None) -> Images:
    """Read the files.

    Parameters
    ----------
    folder : Path
        Where the folder ``fashion_mnist`` is.
    n_rows : int or None
        The first so many training images; None for all.
    """

    def read(name: str, offset: int) -> np.ndarray:
        path = folder / "fashion_mnist" / f"{name}-ubyte.gz"
        with gzip.open(path) as file:
            return np.frombuffer(file.read(), np.uint8, offset=offset)

    found = []
    for part, stop in (("train", n_rows), ("t10k", None)):
        y = read(f"{part}-labels-idx1", 8)
        X = read(f"{part}-images-idx3", 16).reshape(len(y), -1)
        found += [X[:stop].astype(np.float32) / 255, y[:stop]]
    return Images(*found)


@contextmanager
def connect(args: argparse.Namespace) -> Iterator[Client]:
    """Client of a cluster, or of processes on this machine, with limited messages."""
    if args.scheduler is not None:
        with Client(args.scheduler) as client:
            limit_rate(client, args.bandwidth)
            yield client
        return
    with (
        LocalCluster(
            n_workers=args.workers, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(args.workers)
        limit_rate(client, args.bandwidth)
        yield client


def limit_rate(client: Client, bandwidth: str) -> None:
    """Have each worker send no more than so many bytes a second; "0" for no limit."""

    # Within a function, it reaches workers that cannot import this file.
    def set_limit() -> None:
        import dask

        dask.config.set({"dask-ma.comm.max-bandwidth": bandwidth})

    client.run(set_limit)


def spread(images: Images, client: Client) -> tuple[Any, Any]:
    """The training images in the memory of the workers, a block for each thread."""
    import dask
    import dask.array as da

    workers = client.scheduler_info(n_workers=-1)["workers"]
    places = [name for name, info in workers.items() for _ in range(info["nthreads"])]
    bounds = np.linspace(0, len(images.y), len(places) + 1).astype(int)
    blocks: tuple[list[Any], list[Any]] = [], []
    for place, start, stop in zip(places, bounds[:-1], bounds[1:], strict=True):
        for own, values in zip(blocks, (images.X, images.y), strict=True):
            rows = values[start:stop]
            future = client.scatter(rows, workers=[place], hash=False)
            own.append(da.from_delayed(dask.delayed(future), rows.shape, rows.dtype))
    X, y = client.persist([da.concatenate(own) for own in blocks])
    return X, y


def warm_up(images: Images, strategies: Sequence[str]) -> None:
    """Have the workers load the code, which the first fit on a cluster waits for."""
    for strategy in strategies:
        MPCAClassifier((8,), strategy=strategy, max_iter=1, tol=None).fit(
            images.X[:1000], images.y[:1000]
        )


def make_model(args: argparse.Namespace, seed: int, **parameters: Any) -> Any:
    """An estimator that makes all epochs and scores each."""
    return MPCAClassifier(
        args.hidden,
        solver=args.solver,
        batch_size=args.batch,
        learning_rate_init=args.learning_rate,
        max_iter=args.epochs,
        tol=None,
        early_stopping=True,
        random_state=seed,
    ).set_params(**parameters)


def scores(history: Sequence[dict[str, Any]]) -> np.ndarray:
    """Times, epochs and accuracies, of shape (n_scores, 3), as they became known."""
    rows: list[tuple[float, float, float]] = []
    for record in history:
        accuracy = record.get("validation_score")
        if accuracy is not None and (not rows or accuracy != rows[-1][2]):
            rows.append((record["time"], record["epoch"], accuracy))
    return np.array(rows).reshape(-1, 3)


def reached(history: Sequence[dict[str, Any]], target: float) -> tuple[float, float]:
    """Seconds and epochs until a target; infinite if it was not reached."""
    known = scores(history)
    above = np.flatnonzero(known[:, 2] >= target)
    if not len(above):
        return np.inf, np.inf
    after = known[above[0]]
    before = known[above[0] - 1] if above[0] else after
    rise = after[2] - before[2]
    part = (target - before[2]) / rise if rise > 0 else 1.0
    seconds, epochs, _ = before + part * (after - before)
    return float(seconds), float(epochs)


def run(model: Any, data: tuple[Any, Any], images: Images, target: float) -> Course:
    """Fit, and see how it went."""
    history = model.fit(*data).history_
    last = history[-1]
    return Course(
        *reached(history, target),
        computing=sum(r["seconds_computing"] for r in history) / last["time"],
        tau=float(np.mean([r["tau"] for r in history])),
        megabytes=sum(r["bytes_sent"] for r in history) / last["epoch"] / 1e6,
        accuracy=model.score(images.X_test, images.y_test),
    )


def settings(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All combinations of the parameters of each strategy."""
    found = []
    for strategy in args.strategies:
        names = _PARAMETERS.get(strategy, ())
        values = [getattr(args, name) for name in names]
        for chosen in product(*values):
            parameters = dict(zip(names, chosen, strict=True))
            if parameters.get("elasticity") == 0:
                parameters["elasticity"] = None
            named = {f"strategy__{name}": v for name, v in parameters.items()}
            found.append({"strategy": strategy, **named})
    return found


def medians(courses: Sequence[Course]) -> Course:
    """Medians of what several fits have come to."""
    return Course(*(median(values) for values in zip(*courses, strict=True)))


def describe(setting: dict[str, Any]) -> str:
    """The parameters of a setting."""
    return ", ".join(
        f"{name.removeprefix('strategy__')} {'default' if value is None else value}"
        for name, value in setting.items()
        if name != "strategy"
    )


def print_tables(found: list[tuple[dict[str, Any], list[Course]]]) -> None:
    """All settings, and the best of each strategy."""
    print(
        f"{'strategy':<18}{'parameters':<34}{'reached':>8}{'seconds':>9}{'epochs':>8}"
        f"{'computing':>11}{'tau':>8}{'MB/epoch':>10}{'test':>8}"
    )
    best: dict[str, float] = {}
    for setting, courses in found:
        result, name = medians(courses), setting["strategy"]
        best[name] = min(result.seconds, best.get(name, np.inf))
        n_reached = sum(np.isfinite(course.seconds) for course in courses)
        print(
            f"{name:<18}{describe(setting):<34}{n_reached:>4} of{len(courses):>2}"
            f"{result.seconds:>9.2f}{result.epochs:>8.2f}{result.computing:>11.0%}"
            f"{result.tau:>8.1f}{result.megabytes:>10.1f}{result.accuracy:>8.4f}"
        )
    for name, seconds in best.items():
        ratio = best.get("mpca", np.nan) / seconds
        print(f"best of {name}: {seconds:.2f} s; mpca takes {ratio:.2f} times as long")


def add_common(parser: argparse.ArgumentParser) -> None:
    """Options of the data, the network and the cluster."""
    add = parser.add_argument
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--rows", type=int, help="first training images; all by default")
    add("--scheduler", help="address; without it, a local cluster")
    add("--workers", type=int, default=4, help="processes of a local cluster")
    add(
        "--bandwidth", default="0", help="of a worker, as '10 MB' a second; 0: no limit"
    )
    add("--hidden", type=int, nargs="+", default=[256, 128])
    add("--batch", type=int, default=64, help="rows of a rank")
    add("--solver", choices=("adam", "sgd"), default="adam")
    add("--learning-rate", type=float, default=1e-3)
    add("--epochs", type=int, default=10, help="of all ranks together")
    add("--repeats", type=int, default=5)


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Options of the command line; there must be data."""
    args = parser.parse_args()
    if args.data is None:
        parser.error("give --data, or set DASK_MA_DATA")
    return args


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_common(parser)
    add = parser.add_argument
    add("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES)
    add("--target", type=float, default=0.88, help="accuracy on the rows held out")
    add("--extrapolation", type=float, nargs="+", default=[0.7, 1.5, 2.5])
    add("--penalty", type=float, nargs="+", default=[0.05])
    add("--n-phases", type=int, nargs="+", default=[1])
    add("--period", type=int, nargs="+", default=[5, 10, 20, 40])
    add("--elasticity", type=float, nargs="+", default=[0], help="0: the default")
    args = parse(parser)
    images = load_images(args.data, args.rows)
    found: list[tuple[dict[str, Any], list[Course]]] = [
        (setting, []) for setting in settings(args)
    ]
    with connect(args) as client:
        warm_up(images, args.strategies)
        data = spread(images, client)
        for seed in range(args.repeats):
            for setting, courses in found:
                model = make_model(args, seed, **setting)
                courses.append(run(model, data, images, args.target))
                print(setting, courses[-1], file=sys.stderr, flush=True)
    print_tables(found)


if __name__ == "__main__":
    main()
