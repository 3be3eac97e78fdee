"""
Exchange after every batch: ButterflySGDClassifier
==================================================

Mini-batch SGD on several ranks can mix the weights of the ranks in several ways. The
complete way is an average over all ranks after every step. Butterfly mixing averages
two ranks at a time, with another partner in each step, for a fraction of the messages.
"""

# %%
# Rows that look like text, on eight ranks, which are threads of this process.
import matplotlib.pyplot as plt

from dask_ma import ButterflySGDClassifier
from dask_ma.comm import butterfly_depth, butterfly_partners
from dask_ma.datasets import make_sparse_classification

N_RANKS = 8
X, y, _ = make_sparse_classification(10_000, 5_000, n_nonzero=30, random_state=0)

# %%
# Whom rank 0 and rank 5 exchange with, step by step: after three steps they have heard
# of all the others.
for rank in (0, 5):
    partners = [
        butterfly_partners(rank, step, N_RANKS).dest
        for step in range(butterfly_depth(N_RANKS))
    ]
    print(f"rank {rank}: {partners}")


# %%
# Every fit makes the same number of steps. What differs is how much is exchanged in
# them: "allreduce" takes three exchanges after each step, "butterfly" takes one,
# "periodic" takes three after every third step, and "none" leaves the ranks alone until
# the mean model is evaluated. With ``learning_rate="invscaling"`` their steps have the
# same lengths, too.
def fit_history(mixing):
    """Records of a fit of eight passes."""
    classifier = ButterflySGDClassifier(
        alpha=1e-5,
        mixing=mixing,
        learning_rate="invscaling",
        batch_size=50,
        max_iter=8,
        tol=None,
        n_ranks=N_RANKS,
        random_state=0,
    )
    return classifier.fit(X, y).history_


histories = {
    mixing: fit_history(mixing)
    for mixing in ("allreduce", "butterfly", "periodic", "none")
}

# %%
# By passes, butterfly mixing keeps up with the complete average. By bytes, it is far
# ahead.
figure, axes = plt.subplots(1, 2, sharey=True, figsize=(9, 4), layout="constrained")
for mixing, history in histories.items():
    objective = [record["objective"] for record in history]
    megabytes, total = [], 0.0
    for record in history:
        total += record["bytes_shared"] / 1e6
        megabytes.append(total)
    axes[0].plot([record["round"] for record in history], objective, ".-", label=mixing)
    axes[1].plot(megabytes, objective, ".-", label=mixing)
axes[0].set(xlabel="pass", ylabel="objective")
axes[1].set(xlabel="MB exchanged", xscale="log")
axes[0].legend()
plt.show()
