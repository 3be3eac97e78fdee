"""
Recommendations by rotation
===========================

A matrix factorization finds a vector for each user and each item, whose products are
the ratings. Here films belong to four kinds, and users like some kinds better than
others; the factorization learns that from the ratings alone.
"""

# %%
# Ratings
# -------
#
# Each of 300 users has rated some of 120 films. Popular films have more ratings.

import matplotlib.pyplot as plt
import numpy as np

from dask_ma import SchMPMatrixFactorization

rng = np.random.default_rng(0)
kinds = np.array(["comedy", "drama", "horror", "western"])
kind_of = rng.integers(4, size=120)
films = np.array([f"{kinds[kind]} {number}" for number, kind in enumerate(kind_of)])
taste = rng.normal(size=(300, 4))
popularity = np.linspace(0.02, 0.5, 120)
users, items = np.nonzero(rng.random((300, 120)) < popularity)
stars = 3 + taste[users, kind_of[items]] + 0.5 * rng.normal(size=len(users))
stars = np.clip(np.round(stars), 1, 5)
pairs = np.column_stack([users, films[items]])

# %%
# A fit on three ranks
# --------------------
#
# Blocks of films travel past the users, and users past the films. A fifth of the
# ratings is held out.

held_out = rng.random(len(stars)) < 0.2
model = SchMPMatrixFactorization(4, max_iter=100, n_ranks=3, random_state=0)
model.fit(pairs[~held_out], stars[~held_out])
errors = model.predict(pairs[held_out]) - stars[held_out]
print(f"{model.n_iter_} rounds, held-out error {np.sqrt(np.mean(errors**2)):.2f} stars")

# %%
# Neighbours
# ----------
#
# The vectors of films of the same kind point in similar directions, though the fit has
# not been told of kinds.

order = np.argsort(kind_of[[int(name.split()[1]) for name in model.item_ids_]])
vectors = model.item_factors_[order]
unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
figure, ax = plt.subplots()
image = ax.imshow(unit @ unit.T, vmin=-1, vmax=1, cmap="RdBu_r")
bounds = np.cumsum(np.bincount(kind_of))
ax.set_xticks(bounds - np.bincount(kind_of) / 2, kinds)
ax.set_yticks(bounds - np.bincount(kind_of) / 2, kinds)
figure.colorbar(image, label="cosine of the vectors of two films")

# %%
# Recommendations leave out what a user has rated.

best = model.recommend(["7"], n=5)
for film, score in zip(best.items[0], best.scores[0], strict=True):
    print(f"{film:12s} {score:.1f} stars")
print("nearest to", films[-1], "are", *model.similar_items([films[-1]], n=3).items[0])

plt.show()
