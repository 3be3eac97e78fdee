"""
How many ranks? MASGDClassifier by round and by time
====================================================

Every fit leaves a record of its rounds in ``history_``. Here they show what the number
of ranks changes. Each rank goes over its own part of the rows only, so a round makes
less progress with more ranks. Whether it also takes less time depends on the data: a
rank's pass over its rows gets shorter, and averaging the models costs what it costs.
"""

# %%
# Many short rows of generated text, and a model of 5,000 weights.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from dask_ma import MASGDClassifier
from dask_ma.datasets import load_clinc150, make_sparse_classification
from dask_ma.plotting import ConvergenceDisplay

X_many, y_many, _ = make_sparse_classification(
    50_000, 5_000, n_nonzero=30, random_state=0
)

# %%
# Few rows and a model that is large for them: the first 20 intents of the CLINC150
# queries have 20 models of 7,000 weights for 2,000 queries. They come sorted by intent,
# so they are shuffled.
texts, labels = load_clinc150("train")
chosen = np.flatnonzero(np.isin(labels, np.unique(labels)[:20]))
chosen = np.random.default_rng(0).permutation(chosen)
X_few = TfidfVectorizer(ngram_range=(1, 2)).fit_transform([texts[i] for i in chosen])
y_few = labels[chosen]
X_few.shape


# %%
# Without a cluster, ``n_ranks`` ranks run as threads of this process. ``tol=None``
# makes all the rounds, and ``local_epochs=1`` merges after every pass over the rows.
def fit(X, y, n_ranks):
    """A fit of ten rounds."""
    classifier = MASGDClassifier(
        loss="log_loss",
        alpha=1e-5,
        max_iter=10,
        tol=None,
        local_epochs=1,
        n_ranks=n_ranks,
        random_state=0,
    )
    return classifier.fit(X, y)


fit(X_few, y_few, 2).history_[0]

# %%
# Time is counted from the start of rank 0 and includes the evaluation of the objective.
# In the lower row a round takes longer with more ranks: the rows are too few to be
# shared out. In the upper row it gets shorter, if there is an idle core for each rank.
figure, axes = plt.subplots(2, 2, sharey="row", figsize=(9, 6), layout="constrained")
for row, (title, X, y) in enumerate(
    [("50,000 generated rows", X_many, y_many), ("2,000 queries", X_few, y_few)]
):
    models = {
        "1 rank": fit(X, y, 1),
        "2 ranks": fit(X, y, 2),
        "4 ranks": fit(X, y, 4),
    }
    for ax, x in zip(axes[row], ("round", "time"), strict=True):
        ConvergenceDisplay.from_estimators(models, x, ax=ax)
    axes[row, 0].set_title(title)
plt.show()
