"""
Your own matrix, learnt by factors: sfb.run
===========================================

In sufficient factor broadcasting every rank keeps the whole parameter matrix. The
gradient of a row of data is the product of two vectors, and these are what the ranks
send, as pairs of factors. The model here is a regression with many targets, ``min ||W x
- t||^2 / 2``, whose matrix is to have a low rank: its penalty is the sum of the
singular values.
"""

# %%
# A model says where to start, how the factors of some rows are computed, and which
# penalty there is. ``y`` holds one number for each row, so the targets come with ``X``.
import matplotlib.pyplot as plt
import numpy as np
from dask.distributed import Client, LocalCluster

from dask_ma.sfb import Exchange, FactorModel, prox, run


class LowRankRegression(FactorModel):
    """Least squares for several targets, which are the first columns."""

    def __init__(self, n_targets, alpha, learning_rate):
        self.n_targets = n_targets
        self.prox = prox.TraceNorm(alpha)
        self.learning_rate = learning_rate

    def initial_matrix(self, n_features):
        return np.zeros((self.n_targets, n_features))

    def factors(self, matrix, batch):
        inputs = batch.X.copy()
        inputs[:, : self.n_targets] = 0
        return matrix.product(inputs) - batch.X[:, : self.n_targets], inputs

    def loss(self, matrix, batch):
        residual, _ = self.factors(matrix, batch)
        return (residual**2).sum() / 2


# %%
# The targets depend on three directions of the inputs, and on noise.
rng = np.random.default_rng(0)
n_rows, n_inputs, n_targets = 2000, 60, 40
truth = rng.standard_normal((n_targets, 3)) @ rng.standard_normal((3, n_inputs))
inputs = rng.standard_normal((n_rows, n_inputs))
targets = inputs @ truth.T + 2 * rng.standard_normal((n_rows, n_targets))
X = np.hstack([targets, inputs])

# %%
# Four workers in this process stand in for a cluster; the rows are shared out over
# them. Each rank sends the factors of its batch to all others, or, with
# ``broadcast=1``, to one of them, which passes them on.
cluster = LocalCluster(
    n_workers=4, threads_per_worker=1, processes=False, dashboard_address=":0"
)
client = Client(cluster)
ways = {
    "to all": "factors",
    "to one, relayed": Exchange("factors", broadcast=1),
    "whole matrices": "full_matrix",
}
model = LowRankRegression(n_targets, alpha=1.5, learning_rate=0.3)
options = {"n_passes": 10, "batch_size": 100, "random_state": 0}
results = {
    name: run(model, X, communication=way, **options) for name, way in ways.items()
}
client.close()
cluster.close()
{
    name: np.linalg.norm(result.matrix[:, n_targets:] - truth) / np.linalg.norm(truth)
    for name, result in results.items()
}

# %%
# Where all ranks apply the same updates, the matrix has rank 3 in the end. Relayed
# updates come later, and leave small singular values. Least squares without a penalty
# uses all 40 directions, to explain the noise.
exact, *_ = np.linalg.lstsq(inputs, targets)
matrices = {"low rank": results["to all"].matrix, "least squares": exact}
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.5), layout="constrained")
for name, result in results.items():
    left.plot([record["objective"] for record in result.history], ".-", label=name)
for name, matrix in matrices.items():
    singular_values = np.linalg.svd(matrix, compute_uv=False)
    right.semilogy(singular_values[:12] + 1e-3, "o", label=name)
left.set(xlabel="passes over the rows", ylabel="objective")
right.set(ylabel="singular values")
left.legend()
right.legend()
plt.show()
