"""
Neighbours by a learnt distance: SFBMetricLearner
=================================================

Pictures of digits are compared pixel by pixel, and after a projection that has been
learnt from labels by :class:`~dask_ma.SFBMetricLearner`: who are the nearest
neighbours?
"""

# %%
# Rows that are harder than they look
# -----------------------------------
#
# To 64 pixels come 64 columns of noise, as measurements often have that say nothing
# about what is asked. Euclidean distances count them all.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from dask_ma import SFBMetricLearner

rng = np.random.default_rng(0)
X, y = load_digits(return_X_y=True)
X = np.hstack([X / 16, rng.normal(scale=0.35, size=X.shape)])
train, test, of_train, of_test = train_test_split(X, y, random_state=0, stratify=y)

# %%
# A fit on three ranks
# --------------------
#
# All pairs of rows of a batch count, whichever ranks they are on.

learner = SFBMetricLearner(20, early_stopping=True, n_ranks=3, random_state=0)
learner.fit(train, of_train)
projected = learner.transform(train), learner.transform(test)
for name, (rows, others) in {
    "pixels and noise": (train, test),
    "learnt distance": projected,
}.items():
    score = KNeighborsClassifier(3).fit(rows, of_train).score(others, of_test)
    print(f"{name}: accuracy of three neighbours {score:.3f}")

# %%
# Neighbours before and after
# ---------------------------
#
# The first column has test pictures whose neighbours are wrong before. The next five
# columns are the nearest training pictures by all columns, the last five by the learnt
# distance. Wrong ones have a red frame.

before = NearestNeighbors(n_neighbors=5).fit(train).kneighbors(test)[1]
after = NearestNeighbors(n_neighbors=5).fit(projected[0]).kneighbors(projected[1])[1]
wrong = (of_train[before] != of_test[:, np.newaxis]).sum(axis=1)
shown = np.argsort(-wrong, kind="stable")[:6]


def draw(ax, row, is_right=None):
    """A picture, with a frame that says whether it is of the right class."""
    ax.imshow(row[:64].reshape(8, 8), cmap="gray_r")
    ax.set(xticks=[], yticks=[])
    if is_right is not None:
        for side in ax.spines.values():
            side.set(color="tab:green" if is_right else "tab:red", linewidth=2.5)


figure, axes = plt.subplots(len(shown), 11, figsize=(9, 5.2), layout="constrained")
for line, i in zip(axes, shown):
    draw(line[0], test[i])
    for ax, j in zip(line[1:], [*before[i], *after[i]]):
        draw(ax, train[j], of_train[j] == of_test[i])
axes[0, 0].set_title("test")
axes[0, 3].set_title("nearest before")
axes[0, 8].set_title("nearest after")

# %%
# What counts
# -----------
#
# The diagonal of the matrix of the distance says how much each column counts. The
# noise, on the right, hardly does.

weights = np.diag(learner.get_mahalanobis_matrix()).reshape(2, 8, 8)
figure, axes = plt.subplots(1, 2, figsize=(6, 3), layout="constrained")
for ax, part, name in zip(axes, weights, ["pixels", "noise"]):
    image = ax.imshow(part, vmin=0, vmax=weights.max(), cmap="viridis")
    ax.set(title=name, xticks=[], yticks=[])
figure.colorbar(image, ax=axes, label="weight in the distance")

# %%
# Two dimensions
# --------------
#
# Rows projected to a plane: by principal components, and learnt.

plane = SFBMetricLearner(2, max_iter=60, n_ranks=3, random_state=0)
plane.fit(train, of_train)
centred = test - train.mean(axis=0)
vectors = np.linalg.svd(train - train.mean(axis=0), full_matrices=False)[2][:2]
figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for ax, Z, name in zip(
    axes,
    [centred @ vectors.T, plane.transform(test)],
    ["principal components", "learnt"],
):
    ax.scatter(*Z.T, c=of_test, cmap="tab10", s=12)
    ax.set(title=name, xticks=[], yticks=[])
plt.show()
