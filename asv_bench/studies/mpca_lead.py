"""How far ahead is "mpca" of other strategies, by task and by link?

Networks of PyTorch are trained by the workers of a cluster by every strategy, and by
``torch.distributed`` on the same workers: DistributedDataParallel over gloo, and
post-local SGD. Each has every combination of a grid that is the same for all. Ranks
hold a tenth of the images out and score the joint model after each epoch; the time is
that until the accuracy reaches the target of the task, as in ``mpca_strategies.py``.
Each strategy is shown at its best setting, beside "mpca" by default.

    python shaped_hosts.py --rate 100mbit mpca_lead.py --data FOLDER --link 100mbit
    python mpca_lead.py --data FOLDER --tasks perceptron --pause 0.01
    python mpca_lead.py --data FOLDER --tasks resnet20_narrow --brief

"one_rank" is one process with batches as large as those of all ranks together. With a
target above 1, as ``--target 2``, all fits make all epochs, and tell what they come to:

    python mpca_lead.py --tasks resnet20 --strategies one_rank mpca --target 2 \\
        --pause 0 --epochs 20 --rates 0.001 --device cuda

``--brief`` has one step size, one period and one repetition, and leaves out the forms
of strategies with fewer bits.

The folder (or ``$DASK_MA_DATA``) holds ``fashion_mnist``, and ``cifar10_subset`` for
the residual network. Where several hosts share the processors of one machine, ranks
that wait leave theirs to the others, as they could not on hosts of their own.
``--pause`` makes up for it: each step of training sleeps so long, whoever makes it.

``--cells FILE`` adds each fit to a file as it ends, and makes none that is in there.
With ``--seconds 200`` no fit begins after so many, and the exit status is 75 while some
are left: so the study can be run in pieces. ``--show`` makes none and prints what the
file has; keep one for each set of the other options. ``--write`` adds the best settings
to a file.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import torch
import torch_peers
from dask.distributed import wait
from mpca_cells import Cell, Cells, table
from mpca_strategies import (
    Course,
    Images,
    add_common,
    connect,
    load_images,
    parse,
    reached,
    run,
    spread,
)
from torch import nn

from dask_ma import MPCAClassifier
from dask_ma.mpca import Torch, strategies

_EXAMPLE = Path(__file__).parents[2] / "examples" / "resnet110"
_RATES = (1e-3, 2e-3)
_PERIODS = (5, 10, 20, 40)
_DDP, _POST_LOCAL = "ddp", "post_local"
_OF_TORCH = (_DDP, _POST_LOCAL)
_ALONE = "one_rank"
_LEFT = 75  # status of a study that has fits left


def kinds(periods: Sequence[int]) -> dict[str, list[Any]]:
    """What is tried of each strategy; of those of torch, the period."""
    compressed = [strategies.MPCA(compression=name) for name in ("bf16", "int8")]
    means = partial(strategies.Synchronous, compression="int8")
    return {
        "mpca": ["mpca"],
        "mpca_1.5": [strategies.MPCA(extrapolation=1.5)],
        "mpca_bf16": compressed[:1],
        "mpca_int8": compressed[1:],
        "synchronous": [strategies.Synchronous(period) for period in periods],
        "synchronous_int8": [means(period) for period in periods],
        "easgd": [strategies.ElasticAveraging(period) for period in periods],
        "gradients": ["gradients"],
        "parameter_server": ["parameter_server"],
        _ALONE: ["mpca"],
        _DDP: [None],
        _POST_LOCAL: list(periods),
    }


_STRATEGIES = tuple(kinds(_PERIODS))
_DEFAULT = [name for name in _STRATEGIES if name != _ALONE]
_BRIEF = "mpca", "synchronous", "easgd", "parameter_server", *_OF_TORCH


class Task(NamedTuple):
    """Images, and what learns them.

    Attributes
    ----------
    load : callable
        Reads the images from the folder of the data, so many of them.
    shape : tuple of int
        Of an image as the network takes it; empty for a row.
    network : callable
        Makes it.
    target : float
        Accuracy on the images held out.
    n_rows : int or None
        Images to train on, the first ones; None for all.
    n_epochs : int
        Most of them.
    batch : int
        Images of a step of a rank.
    pause : float
        Seconds that a step is longer than it takes by itself.
    """

    load: Callable[[Path, int | None], Images]
    shape: tuple[int, ...]
    network: Callable[[], Any]
    target: float
    n_rows: int | None = None
    n_epochs: int = 10
    batch: int = 64
    pause: float = 0.0


def convolutions() -> Any:
    """Two layers of convolutions and two of units, for images of 28 x 28 pixels."""
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


def residual(width: int = 16) -> Any:
    """The network of 20 layers of the example."""
    sys.path.insert(0, str(_EXAMPLE))
    from resnet import ResNet

    return ResNet(depth=20, width=width)


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


def perceptron(first: int = 256, second: int = 128) -> Any:
    """Two hidden layers."""
    return nn.Sequential(
        nn.Linear(784, first),
        nn.ReLU(),
        nn.Linear(first, second),
        nn.ReLU(),
        nn.Linear(second, 10),
    )


class Limit:
    """Ends a fit after the epoch in which its time is up, as a callback."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.start = 0.0

    def setup(self, estimator: Any, context: Any) -> None:
        """Begin to count."""
        self.start = time.monotonic()

    def on_fit_task_begin(self, estimator: Any, context: Any, **known: Any) -> None:
        """Nothing before an epoch."""

    def on_fit_task_end(self, estimator: Any, context: Any) -> bool:
        """Whether the time is up; asked for no model, ranks need not collect it."""
        return time.monotonic() - self.start > self.seconds

    def teardown(self, estimator: Any, context: Any) -> None:
        """Nothing to end with."""


class Slow(nn.Module):
    """A network whose steps of training take longer."""

    def __init__(self, make: Callable[[], Any], seconds: float) -> None:
        super().__init__()
        self.network, self.seconds = make(), seconds

    def forward(self, X: Any) -> Any:
        if self.training:
            time.sleep(self.seconds)
        return self.network(X)


TASKS = {
    "perceptron": Task(
        load_images, (), perceptron, 0.8, n_rows=12_000, n_epochs=6, pause=0.01
    ),
    # 15 MB, which a link of 1 Gbit/s carries in the time of several steps.
    "wide": Task(
        load_images, (), partial(perceptron, 2048, 1024), 0.8, n_rows=12_000,
        n_epochs=6, pause=0.05,
    ),
    "convolutions": Task(
        load_images, (1, 28, 28), convolutions, 0.8, n_rows=12_000, n_epochs=6,
        pause=0.02,
    ),
    "resnet20": Task(
        load_colours, (3, 32, 32), residual, 0.4, n_epochs=6, batch=32, pause=0.1
    ),
    # A quarter of the work, for machines with fewer processors than hosts.
    "resnet20_narrow": Task(
        load_colours, (3, 32, 32), partial(residual, width=8), 0.4, batch=32,
        pause=0.03,
    ),
}  # fmt: skip


def cells_of(
    name: str, args: argparse.Namespace
) -> Iterator[tuple[Cell, int | str | Any]]:
    """Fits of a task, with the strategy's object or period."""
    known = kinds(args.periods)
    for seed, strategy in product(range(args.repeats), args.strategies):
        for kind, rate in product(known[strategy], args.rates):
            period = kind if isinstance(kind, int) else getattr(kind, "period", "")
            yield Cell(name, args.link, strategy, str(period), rate, seed), kind


def measure(name: str, client: Any, args: argparse.Namespace, cells: Cells) -> None:
    """All settings of all strategies, in turn, several times."""
    task = TASKS[name]
    images = task.load(args.data, args.rows or task.n_rows)
    data = spread(images, client)
    # Futures of the same blocks, for what knows nothing of dask.array.
    X, y = (client.compute(list(each.to_delayed().ravel())) for each in data)
    wait([*X, *y])  # only then does somebody hold them
    blocks = list(zip(X, y, strict=True))
    if task.shape:
        data = data[0].reshape(-1, *task.shape), data[1]
        test = images.X_test.reshape(-1, *task.shape)
        images = images._replace(X_test=test)
    for cell, kind in cells_of(name, args):
        if cell.strategy in _OF_TORCH:
            fit = partial(fit_by_torch, client, blocks, images, cell, kind, args)
        else:
            fit = partial(fit_by_dask, data, images, cell, kind, args)
        cells.find(cell, fit)


def fit_by_torch(
    client: Any, blocks: Any, images: Images, cell: Cell, kind: Any, args: Any
) -> Course:
    """What ``torch.distributed`` comes to."""
    task = TASKS[cell.task]
    plan = torch_peers.Plan(
        partial(Slow, task.network, task.pause if args.pause is None else args.pause),
        task.shape,
        cell.rate,
        args.batch or task.batch,
        args.epochs or task.n_epochs,
        cell.seed,
        args.target or task.target,
        period=kind,
        limit=args.limit,
    )
    return course_of(torch_peers.train(client, blocks, plan), plan, images)


def fit_by_dask(data: Any, images: Images, cell: Cell, kind: Any, args: Any) -> Course:
    """What a strategy of ours comes to."""
    task = TASKS[cell.task]
    pause = task.pause if args.pause is None else args.pause
    is_alone = cell.strategy == _ALONE
    model = MPCAClassifier(
        module=network_of(partial(Slow, task.network, pause), args),
        strategy=kind,
        batch_size=(args.batch or task.batch) * (args.workers if is_alone else 1),
        n_ranks=1 if is_alone else None,
        learning_rate_init=cell.rate,
        max_iter=args.epochs or task.n_epochs,
        tol=None,
        early_stopping=True,
        random_state=cell.seed,
    )
    model.set_callbacks(Limit(args.limit))
    return run(model, data, images, args.target or task.target)


def network_of(make: Callable[[], Any], args: argparse.Namespace) -> Torch:
    """A network where it is wanted; ranks of one machine share its GPU."""
    if args.device == "cpu":
        return Torch(make, device="cpu")
    return Torch(make, device=args.device, ranks_per_gpu=args.workers)


def load_torch() -> None:
    """Have a worker load it."""
    import torch.distributed.algorithms.model_averaging.averagers
    import torch.optim  # noqa: F401


def warm_up(args: argparse.Namespace, client: Any) -> None:
    """Make a few steps: optimisers of torch load most of it with their first one."""
    X, y = spread(load_images(args.data, 1000), client)
    for strategy in ("mpca", "synchronous"):
        MPCAClassifier(
            module=network_of(perceptron, args),
            strategy=strategy,
            max_iter=1,
            tol=None,
            early_stopping=True,
        ).fit(X, y)


def course_of(outcome: Any, plan: Any, images: Images) -> Course:
    """What ranks of torch have come to; of their messages it does not tell."""
    module = plan.network().eval()
    module.load_state_dict({k: torch.tensor(v) for k, v in outcome.state.items()})
    with torch.no_grad():
        codes = module(torch.tensor(images.X_test)).argmax(1).numpy()
    seconds, epochs = reached(outcome.history, plan.target)
    accuracy = float((codes == images.y_test).mean())
    return Course(seconds, epochs, np.nan, np.nan, np.nan, accuracy)


def main() -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_common(parser)
    add = parser.add_argument
    add("--tasks", nargs="+", choices=TASKS, default=["perceptron"])
    add("--strategies", nargs="+", choices=_STRATEGIES, default=_DEFAULT)
    add("--link", default="", help="name of what workers send through")
    add("--rates", type=float, nargs="+", default=_RATES, help="step sizes")
    add("--periods", type=int, nargs="+", default=_PERIODS, help="steps")
    add("--pause", type=float, help="seconds, of each step; the task's by default")
    add("--target", type=float, help="accuracy, in place of the task's own")
    add("--device", default="cpu", help="of ranks; those of torch take processors")
    add("--write", type=Path, help="file of comma-separated values to add to")
    add(
        "--limit", type=float, default=120.0, help="seconds until a fit ends unfinished"
    )
    add("--brief", action="store_true", help="one setting of each strategy")
    add("--cells", type=Path, help="file with fits, to go on with")
    add("--seconds", type=float, default=np.inf, help="begin no fit after so many")
    add("--show", action="store_true", help="make no fits")
    parser.set_defaults(batch=None, epochs=None)  # those of the tasks
    args = parse(parser)
    if args.brief:
        args.rates, args.periods, args.repeats = _RATES[:1], _PERIODS[1:2], 1
        args.strategies = [n for n in args.strategies if n in _BRIEF]
    cells = Cells(args.cells, args.seconds)
    if not args.show:
        make(args, cells)
    lines = table(cells.rows(), args.limit)
    csv.writer(sys.stdout).writerows(lines)
    if args.write is not None:
        is_new = not args.write.exists()
        with args.write.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(lines[not is_new :])
    return _LEFT if cells.n_left else 0


def make(args: argparse.Namespace, cells: Cells) -> None:
    """Make the fits that are not known."""
    wanted = [cell for name in args.tasks for cell, _ in cells_of(name, args)]
    if all(cell in cells.known for cell in wanted):
        return
    # Workers cannot import it.
    cloudpickle.register_pickle_by_value(torch_peers)
    with connect(args) as client:
        client.wait_for_workers(args.workers, timeout=60)
        workers = client.scheduler_info(n_workers=-1)["workers"]
        # The import takes long, and fits count the time from the first step on.
        wait([client.submit(load_torch, workers=[w], pure=False) for w in workers])
        warm_up(args, client)
        for name in args.tasks:
            measure(name, client, args, cells)


if __name__ == "__main__":
    sys.exit(main())
