"""
Your own choice of updates: schmp.run
=====================================

In scheduled model parallelism a program says which parameters to update next, what each
rank works out for them from its rows, and how the results of all ranks change the
model. The program here is non-negative least squares, ``min ||X b - y||^2 / 2`` with
``b >= 0``, by coordinate descent. Columns of ``X`` that are alike must not be updated
at the same time: two of them would both take what one is to explain.
"""

# %%
# The program keeps the residual of its rows. ``schedule`` is left to one of the
# schedules of :mod:`dask_ma.schmp.schedules`, which compares columns on a sample of
# rows and prefers parameters that have moved much.
import matplotlib.pyplot as plt
import numpy as np
from dask.distributed import Client, LocalCluster
from scipy.optimize import nnls

from dask_ma.schmp import Program, run, schedules


class Rows:
    """Rows of a rank, and their residual."""

    def __init__(self, shard):
        n_columns = shard.n_features
        self.X = np.vstack([np.empty((0, n_columns)), *[b.X for b in shard.blocks]])
        self.y = np.concatenate([np.empty(0), *[b.y for b in shard.blocks]])
        self.residual = self.y


class NonNegativeLeastSquares(Program):
    """Coordinate descent with a lower bound of 0."""

    def __init__(self, schedule):
        self._schedule = schedule

    def prepare(self, shard, group):
        return Rows(shard)

    def initial_model(self, local, group):
        return np.zeros(local.X.shape[1])

    def schedule(self, model, request):
        return self._schedule(model, request)

    def update(self, job, local, model):
        columns = local.X[:, job]
        return columns.T @ local.residual, (columns**2).sum(axis=0)

    def aggregate(self, results, jobs, model):
        products, squares = (sum(part) for part in zip(*results))
        return np.maximum(model[jobs] + products / squares, 0) - model[jobs]

    def commit(self, local, index, change, model):
        local.residual = local.residual - local.X[:, index] @ change

    def refresh(self, local, model):
        local.residual = local.y - local.X @ model

    def measure(self, local, model):
        return np.array([local.residual @ local.residual])

    def report(self, sums, model):
        return {"objective": sums[0] / 2}


# %%
# The columns come in groups that are much alike. SciPy finds the exact answer on a
# single machine.
rng = np.random.default_rng(0)
groups = np.repeat(rng.standard_normal((1000, 20)), 6, axis=1)
X = groups + rng.standard_normal(groups.shape)
y = X @ np.maximum(rng.standard_normal(120), 0) + rng.standard_normal(1000)
exact, norm = nnls(X, y)

# %%
# Four workers in this process stand in for a cluster; the rows are shared out over
# them. Three iterations are under way at a time.
tried = {
    "cyclic": schedules.Cyclic(n_candidates=4),
    "priority": schedules.Priority(n_candidates=4),
    "dynamic": schedules.Dynamic(n_candidates=16, dependency_threshold=0.3),
}
cluster = LocalCluster(
    n_workers=4, threads_per_worker=1, processes=False, dashboard_address=":0"
)
client = Client(cluster)
results = {}
for name, schedule in tried.items():
    program = NonNegativeLeastSquares(schedule)
    results[name] = run(
        program, X, y, n_iterations=800, report_every=20, random_state=0
    )
client.close()
cluster.close()
{name: np.abs(result.model - exact).max() for name, result in results.items()}

# %%
# Four columns of a group at a time, one after the other, do not converge at all. To
# prefer what moves most helps, and to leave out what depends on it helps more. The
# history tells the objective at the end of each round, and how many elements of
# ``X`` the updates have read.
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
for name, result in results.items():
    touched = np.cumsum([record["n_touched"] for record in result.history])
    objective = np.array([record["objective"] for record in result.history])
    axes.semilogy(touched / X.size, objective - norm**2 / 2 + 1e-9, ".-", label=name)
axes.set(xlabel="passes over the elements of X", ylabel="objective above the best")
axes.legend()
plt.show()
