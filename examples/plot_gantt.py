"""
Where the time of a fit goes: timelines of MASGDClassifier
==========================================================

Each rank notes what it does while it trains, and a fitted estimator has the notes of
all ranks in ``timeline_``. Here they show why model averaging exchanges models between
the workers and not through a driver. The three charts have the settings of those in the
paper of :class:`~dask_ma.MASGDClassifier` [1]_: gradients through a driver, models
through a driver, and models between the workers.
"""

# %%
# Four worker processes stand in for a cluster, and the model is large for them: 200,000
# weights.
import matplotlib.pyplot as plt
import numpy as np
from dask.distributed import Client, SubprocessCluster

from dask_ma import MASGDClassifier
from dask_ma.datasets import make_sparse_classification
from dask_ma.ma import Gradients, Models
from dask_ma.plotting import ConvergenceDisplay, GanttDisplay

X, y, _ = make_sparse_classification(20_000, 200_000, n_nonzero=30, random_state=0)
paradigms = {
    "gradients through a driver": {
        "paradigm": Gradients(aggregation="driver"),
        "learning_rate": "invscaling",
        "eta0": 3.0,
    },
    "models through a driver": {"paradigm": Models("driver"), "local_epochs": 1},
    "models between the workers": {"paradigm": Models(), "local_epochs": 1},
}


# %%
# The first fit on a cluster loads the code on the workers, so it is not looked at.
def fit(X, y, **parameters):
    """A fit of four rounds."""
    common = {
        "max_iter": 4,
        "tol": None,
        "alpha": 1e-5,
        "random_state": 0,
        "n_ranks": 4,
    }
    return MASGDClassifier(**common, **parameters).fit(X, y)


cluster = SubprocessCluster(n_workers=4, threads_per_worker=1, dashboard_address=":0")
client = Client(cluster)
client.wait_for_workers(4)
fit(X[:100], y[:100])
models = {name: fit(X, y, **parameters) for name, parameters in paradigms.items()}
client.close()
cluster.close()

# %%
# With a driver, all the other ranks wait (grey) while rank 0 takes in their arrays,
# adds them up and sends the result to one after the other. Between the workers, each
# rank adds up its part of the weights, and all of them send at the same time. On one
# machine the four processes share the cores and the memory, so the gain is smaller than
# between machines, where the network link of the driver is the bottleneck.
figure, axes = plt.subplots(
    len(models), sharex=True, figsize=(9, 7), layout="constrained"
)
for ax, (name, model) in zip(axes, models.items(), strict=True):
    GanttDisplay.from_estimator(model, ax=ax, legend=ax is axes[-1])
    ax.set_title(name, fontsize="medium")
    ax.label_outer()
axes[-1].legend_.set_bbox_to_anchor((0, -0.25))
axes[-1].legend_.set_loc("upper left")
plt.show()


# %%
# The same as numbers: seconds of rank 0, and in the mean of the others.
def seconds(timeline, kind, ranks):
    """Mean of the seconds that ranks have spent on something."""
    chosen = (timeline["kind"] == kind) & np.isin(timeline["rank"], ranks)
    return (timeline["stop"] - timeline["start"])[chosen].sum() / len(ranks)


for name, model in models.items():
    print(name)
    for who, ranks in (("rank 0", [0]), ("others", [1, 2, 3])):
        shares = [
            f"{kind} {seconds(model.timeline_, kind, ranks):.2f} s"
            for kind in ("compute", "aggregate", "send", "wait")
        ]
        print(f"   {who}: {', '.join(shares)}")

# %%
# What the charts do not show is how much a round brings. A gradient at the common model
# is one step; a local pass is 5,000 of them.
ConvergenceDisplay.from_estimators(models)
plt.show()

# %%
# .. [1] Y. Guo et al. "Model averaging in distributed machine learning: a case study
#    with Apache Spark." The VLDB Journal 30, 2021, Fig. 2.
