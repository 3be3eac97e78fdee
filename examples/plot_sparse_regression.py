"""
Sparse regression: SchMPLasso and SchMPLassoCV
==============================================

:class:`~dask_ma.SchMPLasso` finds few features among many. Here are its models for
falling weights of the penalty, the one that cross-validation chooses, and what becomes
of the same fit if the coefficients are updated in another order.
"""

# %%
# The diabetes data have ten features. With the products of two and of three of them
# there are 175, many of which are correlated with each other.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from dask_ma import SchMPLasso, SchMPLassoCV
from dask_ma.plotting import ConvergenceDisplay
from dask_ma.schmp import schedules

X, y = load_diabetes(return_X_y=True, as_frame=True)
products = PolynomialFeatures(3, interaction_only=True, include_bias=False)
expand = make_pipeline(StandardScaler(), products, StandardScaler())
expand.set_output(transform="pandas")
X = expand.fit_transform(X)
X.shape

# %%
# ``path`` begins with the smallest weight that leaves no feature, and each model starts
# from the one before. Without a cluster, ``n_ranks`` ranks run as threads of this
# process; with one, there is nothing to change.
alphas, coefs, _ = SchMPLasso.path(X, y, eps=0.02, alphas=50, n_ranks=2)
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
ax.semilogx(alphas, coefs.T, color="0.8", linewidth=0.8)
for j in np.argsort(-np.abs(coefs[:, 25]))[:7]:
    ax.semilogx(alphas, coefs[j], label=X.columns[j])
ax.invert_xaxis()
ax.set(xlabel="alpha", ylabel="coefficient")
ax.legend(frameon=False)
plt.show()

# %%
# Cross-validation makes such a path for each fold. The rows stay where they are: those
# that a fold is tested with have the weight 0 meanwhile.
chosen = SchMPLassoCV(
    eps=0.02, alphas=50, cv=KFold(5, shuffle=True, random_state=0), n_ranks=2
).fit(X, y)
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
ax.semilogx(chosen.alphas_, chosen.mse_path_, color="0.8", linewidth=0.8)
ax.semilogx(chosen.alphas_, chosen.mse_path_.mean(axis=1), color="black", label="mean")
ax.axvline(chosen.alpha_, linestyle="--", label="best")
ax.invert_xaxis()
ax.set(xlabel="alpha", ylabel="mean squared error of the test rows")
ax.legend(frameon=False)
plt.show()

# %%
# The model with it:
nonzero = chosen.sparse_coef_.indices
dict(zip(X.columns[nonzero], chosen.coef_[nonzero].round(1), strict=True))

# %%
# Which coefficients are updated next is the matter of a schedule. The next data have
# 2000 features in groups of ten, which are correlated within the group; 20 features
# count.
rng = np.random.default_rng(0)
X = np.repeat(rng.standard_normal((500, 200)), 10, axis=1)
X += rng.standard_normal(X.shape)
coef = np.zeros(2000)
coef[rng.choice(2000, 20, replace=False)] = rng.standard_normal(20)
y = X @ coef + rng.standard_normal(500)

# %%
# Working sets, the default, solve for many coefficients together. The others update 64
# at a time by coordinate descent: "random" any of them, "dynamic" those that should
# move most, without those that are correlated with another. Most coefficients are zero
# and stay zero, and "dynamic" spends little on them. With ``polish=False`` nobody helps
# them: by default, slow rounds end with the coefficients other than zero solved for
# together.
alone = {"random_state": 0, "polish": False}
ways = {
    "working sets": {},
    "dynamic": {"schedule": schedules.Dynamic(n_candidates=64), **alone},
    "random": {"schedule": schedules.Random(n_candidates=64), **alone},
}
fits = {
    name: SchMPLasso(alpha=0.3, tol=1e-6, n_ranks=2, **parameters).fit(X, y)
    for name, parameters in ways.items()
}
{name: (lasso.n_iter_, lasso.dual_gap_) for name, lasso in fits.items()}

# %%
# What a schedule is worth shows in three pictures: how far the data that were read have
# brought the fit, how fast data were read, and what comes of both. To choose takes
# time: "dynamic" needs less data than "random", but reads them more slowly.
best = fits["working sets"]
optimum = best.history_[-1]["objective"] - best.dual_gap_
figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
ConvergenceDisplay.from_estimators(fits, "n_touched", best=optimum, ax=axes[0])
ConvergenceDisplay.from_estimators(fits, "time", "n_touched", ax=axes[1])
ConvergenceDisplay.from_estimators(fits, "time", best=optimum, ax=axes[2])
for ax in axes[::2]:
    ax.set_ylim(1e-9)
for ax in axes[1:]:
    ax.get_legend().remove()
plt.show()
