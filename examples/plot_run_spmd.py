"""
Your own program on every worker: run_spmd
==========================================

:func:`dask_ma.run_spmd` runs a function on every worker and hands it a group, through
which the ranks exchange arrays: the programming model of MPI, on any Dask cluster. The
program here finds the largest singular value of a matrix whose rows are spread over the
ranks, by power iteration.
"""

# %%
# Each rank makes its own rows, multiplies, and adds up the products of all ranks with
# one ``allreduce`` per step. All ranks hold the same vector at the end of each step.
import matplotlib.pyplot as plt
import numpy as np
from dask.distributed import Client, LocalCluster

from dask_ma import run_spmd
from dask_ma.comm import allreduce


def make_rows(rank, n_columns):
    """Rows of one rank: one strong direction, and noise."""
    rng = np.random.default_rng([rank, 0])
    direction = np.linspace(-1, 1, n_columns) / np.sqrt(n_columns / 3)
    strength = 3 * rng.standard_normal((500, 1))
    return strength * direction + rng.standard_normal((500, n_columns))


def power_iteration(group, n_columns, n_steps):
    """Estimates of the largest singular value, one per step."""
    rows = make_rows(group.rank, n_columns)
    vector = np.ones(n_columns)
    vector[0] = 2.0  # the strong direction is orthogonal to a constant vector
    estimates = []
    for _ in range(n_steps):
        vector /= np.linalg.norm(vector)
        vector = allreduce(group, rows.T @ (rows @ vector))
        estimates.append(np.sqrt(np.linalg.norm(vector)))
    return estimates


# %%
# Four workers in this process stand in for a cluster. Every rank returns its result;
# the list is in the order of the ranks.
cluster = LocalCluster(
    n_workers=4, threads_per_worker=1, processes=False, dashboard_address=":0"
)
client = Client(cluster)
results = run_spmd(power_iteration, 50, 9)
client.close()
cluster.close()
len(results), results[0] == results[3]

# %%
# Without a client the same program runs on threads, with the same bits.
results[0] == run_spmd(power_iteration, 50, 9, n_ranks=4)[0]

# %%
# The answer of a single machine that holds all the rows:
matrix = np.vstack([make_rows(rank, 50) for rank in range(4)])
exact = np.linalg.norm(matrix, 2)
error = np.abs(np.array(results[0]) / exact - 1)

figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
axes.semilogy(range(1, 10), error, ".-")
axes.set(xlabel="step", ylabel="relative error of the largest singular value")
plt.show()
