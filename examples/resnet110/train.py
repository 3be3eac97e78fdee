"""Train ResNet-110 on CIFAR-10 with the schedule of the paper, on one rank or many.

    python train.py cifar-10-batches-bin
    python train.py cifar-10-batches-bin --depth 20 --epochs 10 --workers 4

The folder has the binary files of CIFAR-10; without one, a set of the same kind is
looked for in ``$DASK_MA_DATA/cifar10_subset``. Each worker is a process with one rank;
with ``--scheduler ADDRESS`` the ranks are on the workers of that cluster. Adam with a
step size of 0.001, a penalty of 0.0001 on the weights, batches of 64 images in all,
crops and flips; models in three phases, projected by 0.7 cycles and smoothed by 0.8,
with a penalty of 0.05, as in the experiments of Langer et al. (2018), section 7.1.

    python train.py --workers 1 --images 640 --epochs 4
    python train.py --workers 4 --images 640 --epochs 4

show on a processor, in some minutes, that losses fall alike on one rank and on four: to
2.0 and 2.1 after four epochs, while 95% of the time of exchanges lies beside steps.

``--compare`` trains in a plain loop of PyTorch as well, in one of the workers after the
fit, on the same device, with the batches and the precision of a rank.
"""

import argparse
import time
from contextlib import nullcontext

import dask
import numpy as np
import torch
from resnet import Augmented, Centred, ResNet, load_images
from torch.nn import functional as F

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


def plain_rate(X, y, network, batch_size, n_epochs):
    """Images a second of a plain loop with the module of an estimator.

    The first epoch is not counted. Threads are those of the process, as a fit has left
    them.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = network.module(**network.module_params).to(device).train()
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device, enabled=network.precision == "fp16")
    kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
    kind = kinds.get(network.precision)
    for epoch in range(n_epochs + 1):
        if epoch == 1:
            start = time.perf_counter()
        total = 0.0
        for rows in torch.randperm(len(y)).split(batch_size):
            images = network.train_transform(torch.from_numpy(X[rows.numpy()]))
            labels = torch.from_numpy(y[rows.numpy()]).to(device)
            optimizer.zero_grad()
            with torch.autocast(device, kind) if kind else nullcontext():
                loss = F.cross_entropy(module(images.to(device)), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            total += float(loss.detach())
    return n_epochs * len(y) / (time.perf_counter() - start)


def without_trimming():
    """Workers whose memory is that of any script, for a loop beside a fit.

    Nannies have workers give memory back to the system at once, and take it again in
    each step. A fit keeps it, a plain loop in a worker would not.
    """
    name = "distributed.nanny.pre-spawn-environ"
    environ = dict(dask.config.get(name))
    environ.pop("MALLOC_TRIM_THRESHOLD_", None)
    return dask.config.set({name: environ})


def rank_rate(history, n_ranks):
    """Images a second of a rank after the first epoch, by the clock."""
    epochs = np.array([record["epoch"] for record in history])
    first = int(np.flatnonzero(epochs >= 1)[0])
    n_images = sum(record["n_samples"] for record in history[first + 1 :])
    seconds = history[-1]["time"] - history[first]["time"]
    return n_images / seconds / n_ranks


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
    parser.add_argument("--compare", action="store_true", help="with a plain loop")
    chosen = parser.parse_args()

    from dask.distributed import Client, LocalCluster

    X, y, X_test, y_test = load_images(chosen.folder)
    X, y = X[: chosen.images], y[: chosen.images]
    with without_trimming():
        where = chosen.scheduler or LocalCluster(
            n_workers=chosen.workers, threads_per_worker=1, dashboard_address=":0"
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
        if chosen.compare:
            settings = (classifier.module, classifier.batch_size, chosen.epochs - 1)
            worker = list(client.nthreads())[:1]
            plain = client.submit(plain_rate, X, y, *settings, workers=worker).result()
            ours = rank_rate(classifier.history_, n_ranks)
            print(f"{ours:.0f} images a second on a rank, {plain:.0f} in a plain loop")
            print(f"{ours / plain:.2f} of the plain loop")
    print(f"{classifier.score(X_test, y_test):.4f} of the test images are right")
    seconds = sum(r["seconds_computing"] for r in classifier.history_)
    n_images = sum(r["n_samples"] for r in classifier.history_)
    print(f"{n_images / seconds / n_ranks:.0f} images a second of computing on a rank")
    if n_ranks > 1:
        print(f"{overlap(classifier.timeline_):.1%} of exchanges lie beside steps")


if __name__ == "__main__":
    main()
