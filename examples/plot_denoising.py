"""
Noise taken out of a picture by atoms
=====================================

Small pieces of a picture are sums of few atoms: edges and stripes of some directions.
Noise is not, so the sum of the atoms that a noisy piece needs most is the piece with
less noise. The atoms are learned from the noisy picture itself.
"""

# %%
# A noisy picture
# ---------------
#
# The grey values of a photograph, at a quarter of its size, with noise added.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image
from sklearn.feature_extraction.image import (
    extract_patches_2d,
    reconstruct_from_patches_2d,
)

from dask_ma import SFBDictionaryLearning

photograph = load_sample_image("china.jpg").mean(axis=2) / 255
height, width = (side // 4 * 4 for side in photograph.shape)
blocks = photograph[:height, :width].reshape(height // 4, 4, width // 4, 4)
picture = blocks.mean(axis=(1, 3))
noise = 0.1
noisy = picture + noise * np.random.default_rng(0).normal(size=picture.shape)

# %%
# Atoms
# -----
#
# The rows are all pieces of 7 x 7 pixels, each less its mean. Two ranks learn from
# them; the larger ``alpha`` is, the fewer atoms a piece has.

size = (7, 7)
patches = extract_patches_2d(noisy, size).reshape(-1, 49)
means = patches.mean(axis=1, keepdims=True)
rows = (patches - means).astype(np.float32)
learner = SFBDictionaryLearning(
    100, alpha=0.2, max_iter=4, tol=0, n_ranks=2, random_state=0
)
learner.fit(rows)
print(f"{len(rows)} rows, {learner.n_steps_} batches, {learner.n_unused_} unused atoms")

figure, axes = plt.subplots(10, 10, figsize=(6, 6))
for ax, atom in zip(axes.flat, learner.components_, strict=True):
    ax.imshow(atom.reshape(size), cmap="gray")
    ax.set_axis_off()
figure.suptitle("The atoms")

# %%
# With less noise
# ---------------
#
# Codes of all pieces, the pieces that they stand for, and the mean of those where they
# overlap. The error is in decibels: higher is better.

codes = learner.transform(rows)
clean = learner.inverse_transform(codes) + means
denoised = reconstruct_from_patches_2d(clean.reshape(-1, *size), noisy.shape)
print(f"{np.count_nonzero(codes, axis=1).mean():.1f} atoms in a piece, on average")


def signal_to_noise(other):
    """Peak signal-to-noise ratio, in decibels."""
    return -10 * np.log10(np.mean((other - picture) ** 2))


figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
shown = {"picture": picture, "noisy": noisy, "denoised": denoised}
for ax, (name, image) in zip(axes, shown.items(), strict=True):
    ax.imshow(image, cmap="gray", vmin=0, vmax=1)
    ax.set_axis_off()
    of = "" if image is picture else f", {signal_to_noise(image):.1f} dB"
    ax.set_title(f"{name}{of}")

# %%
# How the fit went
# ----------------
#
# The objective of each batch, before the atoms are updated by it.

figure, ax = plt.subplots(layout="constrained")
ax.plot([record["objective"] for record in learner.history_])
ax.set_xlabel("batch")
ax.set_ylabel("objective of a row")

plt.show()
