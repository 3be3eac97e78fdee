"""Images a second of one rank, beside a plain loop of PyTorch.

    python mpca_images.py --at-least 0.95
    python mpca_images.py --precision fp16 --at-least 0.95
    python mpca_images.py --depth 20 --images 640 --repeats 5

The network is that of ``examples/resnet110``, with its transforms, its optimiser and
batches of 64 images, on the worker process of a local cluster: on a GPU if there is
one. A fit and the loop take turns there, with the same batches and the same precision.
The first epoch counts for neither. Images are those of ``$DASK_MA_DATA/cifar10_subset``
or, where there is none, of random pixels, which take as long.

Prints medians, and with ``--at-least`` exits with 1 where the rank has a smaller part
of the images a second of the loop.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from dask.distributed import Client, LocalCluster

_EXAMPLE = Path(__file__).parents[2] / "examples" / "resnet110"
sys.path.insert(0, str(_EXAMPLE))

from train import (  # noqa: E402
    load_images,
    make_classifier,
    plain_rate,
    rank_rate,
    without_trimming,
)


def find_images(n_images: int) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels: of a file, as often as needed, or made."""
    folder = os.environ.get("DASK_MA_DATA")
    if folder and Path(folder, "cifar10_subset").exists():
        X, y, *_ = load_images(None)
        rows = np.arange(n_images) % len(y)
        return X[rows], y[rows]
    rng = np.random.default_rng(0)
    X = rng.integers(256, size=(n_images, 3, 32, 32), dtype=np.uint8)
    return X, rng.integers(10, size=n_images)


def measure(client: Client, args: argparse.Namespace) -> list[tuple[float, float]]:
    """Images a second of the rank and of the loop, in turn."""
    X, y = find_images(args.images)
    worker = list(client.nthreads())[:1]
    found = []
    for _ in range(args.repeats):
        model = make_classifier(
            X,
            args.depth,
            args.epochs + 1,
            batch_size=args.batch,
            precision=args.precision,
            prefetch=args.prefetch,
        ).set_params(verbose=0)
        model.fit(X, y)
        settings: tuple[Any, ...] = (model.module, args.batch, args.epochs)
        loop = client.submit(plain_rate, X, y, *settings, workers=worker, pure=False)
        found.append((rank_rate(model.history_, 1), loop.result()))
        print(*found[-1], file=sys.stderr, flush=True)
    return found


def main() -> int:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--depth", type=int, default=110, help="6 n + 2 layers")
    add("--images", type=int, default=5000, help="of an epoch")
    add("--epochs", type=int, default=3, help="that count")
    add("--batch", type=int, default=64)
    add("--precision", default="float32", help="or bf16, fp16")
    add("--prefetch", type=int, default=2, help="batches that a thread has ready")
    add("--repeats", type=int, default=3)
    add("--at-least", type=float, help="part of the images a second of the loop")
    args = parser.parse_args()
    with (
        without_trimming(),
        LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        found = measure(client, args)
    ours, loop = (median(rates) for rates in zip(*found, strict=True))
    part = median(a / b for a, b in found)
    kind = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    values = {"device": kind, "rank": ours, "loop": loop, "part": part}
    print(json.dumps(values))
    return int(args.at_least is not None and part < args.at_least)


if __name__ == "__main__":
    sys.exit(main())
