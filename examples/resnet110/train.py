"""Train ResNet-110 on CIFAR-10 with the schedule of the paper, on one rank or many.

    python train.py cifar-10-batches-bin
    python train.py cifar-10-batches-bin --depth 20 --epochs 10 --workers 4

The folder has the binary files of CIFAR-10; without one, a set of the same kind is
looked for in ``$DASK_MA_DATA/cifar10_subset``. Each worker is a process with one rank;
with ``--scheduler ADDRESS`` the ranks are on the workers of that cluster. Adam with a
step size of 0.001, a penalty of 0.0001 on the weights, batches of 64 images in all,
crops and flips; models in three phases, projected by 0.7 cycles and smoothed by 0.8,
with a penalty of 0.05, as in the experiments of Langer et al. (2018), section 7.1.
"""

import argparse

import numpy as np
from resnet import Augmented, Centred, ResNet, load_images

from dask_ma import MPCAClassifier
from dask_ma.mpca import Torch, strategies


def make_classifier(
    images, depth=110, epochs=100, n_ranks=1, batch_size=64, **training
):
    """The estimator of the experiment; images tell the mean of each colour."""
    mean = images.mean(axis=(0, 2, 3))
    network = Torch(
        ResNet,
        module_params={"depth": depth},
        optimizer="AdamW",
        optimizer_params={"weight_decay": 1e-4},
        train_transform=Augmented(mean),
        eval_transform=Centred(mean),
        **training,
    )
    return MPCAClassifier(
        module=network,
        strategy=strategies.MPCA(
            n_phases=3, extrapolation=0.7, smoothing=0.8, penalty=0.05, blending=0.9
        ),
        batch_size=max(2, batch_size // n_ranks),
        learning_rate_init=0.001,
        max_iter=epochs,
        tol=None,
        random_state=0,
        verbose=2,
    )


def overlap(timeline):
    """Part of the time of exchanges in which the same rank computes.

    Time in which the processor adds up, or waits for its turn, counts as none.
    """
    beside = together = 0.0
    for rank in np.unique(timeline["rank"]):
        own = timeline[timeline["rank"] == rank]
        steps = own[own["kind"] == "compute"]
        starts, stops = steps["start"], steps["stop"]
        for span in own[own["kind"] == "exchange"]:
            covered = np.minimum(stops, span["stop"]) - np.maximum(
                starts, span["start"]
            )
            together += np.clip(covered, 0, None).sum()
            beside += span["stop"] - span["start"]
    return together / beside if beside else float("nan")


def main():
    """Train, and say how right the network is and how ranks have spent their time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", help="files of CIFAR-10")
    parser.add_argument("--depth", type=int, default=110, help="6 n + 2 layers")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--scheduler", help="address of a cluster")
    parser.add_argument("--images", type=int, help="train on so many only")
    parser.add_argument("--precision", default="float32", help="or bf16, fp16")
    parser.add_argument("--prefetch", type=int, default=2)
    chosen = parser.parse_args()

    from dask.distributed import Client, LocalCluster

    X, y, X_test, y_test = load_images(chosen.folder)
    X, y = X[: chosen.images], y[: chosen.images]
    where = chosen.scheduler or LocalCluster(
        n_workers=chosen.workers, threads_per_worker=1, dashboard_address=None
    )
    with Client(where) as client:
        n_ranks = len(client.nthreads())
        classifier = make_classifier(
            X,
            chosen.depth,
            chosen.epochs,
            n_ranks,
            precision=chosen.precision,
            prefetch=chosen.prefetch,
        )
        classifier.fit(X, y)
    print(f"{classifier.score(X_test, y_test):.4f} of the test images are right")
    seconds = sum(r["seconds_computing"] for r in classifier.history_)
    n_images = sum(r["n_samples"] for r in classifier.history_)
    print(f"{n_images / seconds / n_ranks:.0f} images a second of computing on a rank")
    print(f"{overlap(classifier.timeline_):.1%} of exchanges lie beside steps")


if __name__ == "__main__":
    main()
