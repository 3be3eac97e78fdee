"""
A first fit on a cluster: MASGDClassifier on Dask arrays
========================================================

A fit takes Dask collections as they are: blocks that lie in the memory of a worker stay
there, blocks that are not yet computed are computed where they are needed. Nothing is
gathered to the client.
"""

# %%
# An in-process cluster stands in for a real one. Two workers with one thread each carry
# one rank each.
import matplotlib.pyplot as plt
from dask.distributed import Client, LocalCluster

from dask_ma import MASGDClassifier
from dask_ma.datasets import make_dask_sparse_classification

cluster = LocalCluster(
    n_workers=2, threads_per_worker=1, processes=False, dashboard_address=":0"
)
client = Client(cluster)

# %%
# The generator gives lazy arrays, whose blocks are SciPy ``csr_matrix``. ``persist``
# makes the workers compute and keep them.
X, y, _ = make_dask_sparse_classification(
    40_000, 5_000, n_nonzero=20, random_state=0, chunk_rows=5_000
)
X, y = client.persist([X, y])
X

# %%
# The current client is used; there is no parameter for it.
classifier = MASGDClassifier(alpha=1e-5, max_iter=10, tol=None, random_state=0)
classifier.fit(X[:30_000], y[:30_000])

# %%
# Predictions of Dask input are lazy, and ``score`` works out the accuracy where the
# rows are.
predicted = classifier.predict(X[30_000:])
print(predicted)
print(f"accuracy {classifier.score(X[30_000:], y[30_000:]):.3f}")

# %%
# What a round costs: the time that the ranks compute, and the time that they wait for
# messages.
history = classifier.history_
rounds = [record["round"] for record in history]
figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
computing = [record["seconds_computing"] for record in history]
waiting = [record["seconds_waiting"] for record in history]
axes.bar(rounds, computing, label="computing")
axes.bar(rounds, waiting, bottom=computing, label="waiting")
axes.set(xlabel="round", ylabel="seconds, mean over ranks")
axes.legend()
plt.show()

# %%
# The fitted model holds plain arrays and needs no cluster.
client.close()
cluster.close()
classifier.to_sklearn()
