"""
Who sends to whom: SFBLogisticRegression
========================================

In sufficient factor broadcasting a rank sends the factors of its batch to other ranks
after every batch: to all of them, or to a few. Here are the networks in which a few
suffice to reach everybody soon, and what they do to a fit of
:class:`~dask_ma.SFBLogisticRegression`.
"""

# %%
# Twelve ranks, each of which sends to Q = 1, 2, 4 or all 11 others. ``optimal`` looks
# for the links with which it takes the fewest steps from one rank to another. One peer
# makes a ring; with four, no rank is more than two steps away from another one.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from dask_ma import SFBLogisticRegression
from dask_ma.plotting import ConvergenceDisplay, NetworkDisplay
from dask_ma.sfb import Exchange
from dask_ma.sfb.topology import Topology

N_RANKS = 12
topologies = {q: Topology.optimal(N_RANKS, q) for q in (1, 2, 4, 11)}

figure, axes = plt.subplots(2, 2, figsize=(9, 9.5), layout="constrained")
for ax, (q, topology) in zip(axes.flat, topologies.items(), strict=True):
    NetworkDisplay.from_topology(topology, ax=ax)
    ax.set_title(f"Q = {q}")
plt.show()

# %%
# Nothing can be better than a topology that says so. Where that cannot be shown,
# ``gap`` is how far its sum of distances is from a bound that no topology need reach.
for q, topology in topologies.items():
    print(f"Q = {q}: {topology.is_optimal}, {topology.gap:.3f}")

# %%
# A third of the images of digits, on twelve ranks, which are threads of this process.
# Dual ascent says how small the objective can become.
X, y = load_digits(return_X_y=True)
X, y = X[::3] / 16, y[::3]
exact = SFBLogisticRegression(alpha=1e-2, solver="sdca").fit(X, y)
last = exact.history_[-1]
best = last["objective"] - last["dual_gap"]


# %%
# Every fit makes the same number of iterations. Ranks that do not relay tell their
# peers of their own rows alone; the others learn of these rows by what the peers do
# next, and by the mean of all matrices at the end of a pass. Ranks that do relay pass
# on what they get, so that everybody gets everything, some iterations later.
def fit_all(order, relay):
    """A fit for each topology, with the rows in some order."""
    return {
        f"Q = {q}": SFBLogisticRegression(
            alpha=1e-2,
            solver="sgd",
            communication=Exchange(broadcast=topology, relay=relay),
            batch_size=8,
            max_iter=5,
            tol=None,
            n_ranks=N_RANKS,
            random_state=0,
        ).fit(X[order], y[order])
        for q, topology in topologies.items()
    }


mixed, by_digit = np.arange(len(y)), np.argsort(y, kind="stable")
cases = {
    "mixed rows, to the peers alone": (mixed, False),
    "rows by digit, to the peers alone": (by_digit, False),
    "rows by digit, relayed": (by_digit, True),
}

# %%
# With rows in no order, a few peers are as good as all: their rows are like those of
# the others. If the rows lie by digit, a rank has one or two of the ten digits, and its
# peers too few of the rest. Then factors have to be relayed, and two peers are enough.
figure, axes = plt.subplots(1, 3, sharey=True, figsize=(13, 4), layout="constrained")
for ax, (title, case) in zip(axes, cases.items(), strict=True):
    ConvergenceDisplay.from_estimators(fit_all(*case), "round", best=best, ax=ax)
    ax.set_title(title)
plt.show()
