"""
Neural networks on images: MPCAClassifier
=========================================

Ranks that train a neural network together have to bring their models together again and
again. :class:`~dask_ma.MPCAClassifier` does that while they go on training. Here it is
next to other strategies: how soon each finds a good network, and what the ranks do.
"""

# %%
# Images of handwritten digits, or of fashion articles if the environment variable
# ``DASK_MA_DATA`` names a folder with the files of Fashion-MNIST in ``fashion_mnist``.
import gzip
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from dask.distributed import Client, SubprocessCluster
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from dask_ma import MPCAClassifier
from dask_ma.mpca.strategies import Synchronous
from dask_ma.plotting import GanttDisplay


def read_idx(path, offset):
    """Bytes of a gzipped file after its header."""
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8, offset=offset)


def load_images():
    """Images as rows of values from 0 to 1, and what they show."""
    folder = os.environ.get("DASK_MA_DATA")
    if not folder:
        images, labels = load_digits(return_X_y=True)
        return images.astype(np.float32) / 16, labels
    start = str(Path(folder) / "fashion_mnist" / "train")
    labels = read_idx(f"{start}-labels-idx1-ubyte.gz", offset=8)
    images = read_idx(f"{start}-images-idx3-ubyte.gz", offset=16)
    return images.reshape(len(labels), -1).astype(np.float32) / 255, labels


X, X_test, y, y_test = train_test_split(*load_images(), test_size=0.2, random_state=0)

# %%
# Four ranks, which are threads of this process, each with its own quarter of the
# images. ``early_stopping`` has the ranks hold out some of them, and score the joint
# model on these after each epoch; with ``tol=None`` that does not stop the fit.
strategies = ("mpca", "synchronous", "easgd", "local")
models = {
    strategy: MPCAClassifier(
        (64,),
        strategy=strategy,
        batch_size=16,
        learning_rate_init=0.01,
        max_iter=8,
        early_stopping=True,
        tol=None,
        n_ranks=4,
        random_state=0,
    ).fit(X, y)
    for strategy in strategies
}
for strategy, model in models.items():
    print(f"{strategy:<12} {model.score(X_test, y_test):.3f} on the test images")


# %%
# A record of the history has the score that was known by then. Ranks that train apart
# ("local") learn nothing of the rows of others, and the mean of their networks is good
# for something only because all have begun at the same values. The other strategies
# hold the ranks together: at once and often, which "synchronous" is first with here, or
# little by little. What an epoch costs in time is another matter.
def scores(history):
    """Epochs at which the score on the rows held out has changed, and the scores."""
    known = [r for r in history if "validation_score" in r]
    epochs = np.array([r["epoch"] for r in known])
    values = np.array([r["validation_score"] for r in known])
    new = np.append(True, np.diff(values) != 0)
    return epochs[new], values[new]


figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for strategy, model in models.items():
    ax.plot(*scores(model.history_), marker=".", label=strategy)
ax.set(xlabel="epochs of all ranks together", ylabel="accuracy on rows held out")
ax.legend(frameon=False)
plt.show()

# %%
# To see what goes on at the same time, two worker processes train a larger network. The
# first fit on a cluster loads the code on the workers, so it is not looked at.
cluster = SubprocessCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0")
client = Client(cluster)
client.wait_for_workers(2)
MPCAClassifier((8,), max_iter=1, tol=None).fit(X[:200], y[:200])
wide = {
    name: MPCAClassifier(
        (512, 256),
        strategy=strategy,
        batch_size=64,
        max_iter=3,
        tol=None,
        random_state=0,
    ).fit(X, y)
    for name, strategy in {"mpca": "mpca", "synchronous": Synchronous(period=1)}.items()
}
client.close()
cluster.close()

# %%
# A part of each fit. The synchronous ranks stop after each step here, and the time
# between two steps is that of the exchange. With "mpca" step follows step, and the
# stripe below them is an exchange in the background: from when a rank has sent its
# model until the joint model is back. White gaps are what no note is kept of, such as
# preparing the next batch, or the processor being busy with something else.
figure, axes = plt.subplots(2, figsize=(9, 5), layout="constrained")
for ax, (name, model) in zip(axes, wide.items(), strict=True):
    middle = float(np.median(model.timeline_["start"]))
    GanttDisplay.from_estimator(
        model,
        time_range=(middle, middle + 0.06),
        rounds=False,
        ax=ax,
    )
    ax.set_title(name, fontsize="medium", loc="right")
plt.show()

# %%
# The same as numbers, over the whole fits.
for name, model in wide.items():
    seconds = {
        kind: sum(record[f"seconds_{kind}"] for record in model.history_)
        for kind in ("computing", "waiting")
    }
    share = seconds["computing"] / model.history_[-1]["time"]
    print(
        f"{name:<12} {share:.0%} of the time computing, "
        f"{seconds['waiting']:.2f} s waiting, tau {model.history_[-1]['tau']:.0f}"
    )
