"""Which of 150 things does a query ask for? Training on a local cluster.

The data are the CLINC150 queries that come with the package. Two worker processes
train a linear model by model averaging; scikit-learn trains the same model in this
process. Run it with ``make demo``, or ``python examples/clinc150_intents.py``.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
from dask.distributed import Client, LocalCluster
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import SGDClassifier

from dask_ma import MASGDClassifier
from dask_ma.datasets import load_clinc150

PARAMETERS = {
    "loss": "log_loss",
    "alpha": 1e-5,
    "max_iter": 10,
    "tol": None,
    "random_state": 0,
}


def load_matrices() -> tuple[sparse.csr_matrix, np.ndarray, sparse.csr_matrix, Any]:
    """Tf-idf of words and word pairs: training rows in random order, and test rows."""
    texts, labels = load_clinc150("train")
    test_texts, test_labels = load_clinc150("test")
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    X = vectorizer.fit_transform(texts)
    # The queries are sorted by intent; every rank should see all of them.
    order = np.random.default_rng(0).permutation(len(labels))
    return X[order], labels[order], vectorizer.transform(test_texts), test_labels


def show_progress(model: MASGDClassifier) -> MASGDClassifier:
    """A progress bar where scikit-learn has callbacks and rich is there, else lines."""
    try:
        from sklearn.callback import ProgressBar

        return model.set_callbacks(ProgressBar())
    except ImportError:
        return model.set_params(verbose=1)


def timed_fit(model: Any, X: sparse.csr_matrix, y: np.ndarray) -> float:
    """Fit and return the seconds that it took."""
    start = time.perf_counter()
    model.fit(X, y)
    return time.perf_counter() - start


def print_history(model: MASGDClassifier) -> None:
    """Some rounds of the fit, one per line."""
    print(f"\n{'round':>5} {'seconds':>8} {'objective':>10} {'MB between workers':>19}")
    for record in model.history_:
        if record["round"] in (1, 2, 3, 5, 10):
            print(
                f"{record['round']:>5} {record['time']:>8.2f} "
                f"{record['objective']:>10.5f} {record['bytes_sent'] / 1e6:>19.1f}"
            )


def main(client: Client) -> None:
    """Train with both, print a table."""
    X, y, X_test, y_test = load_matrices()
    print(
        f"CLINC150: {X.shape[0]:,} queries, {X.shape[1]:,} words and word pairs, "
        f"{len(np.unique(y))} intents"
    )
    workers = client.scheduler_info(n_workers=-1)["workers"]
    print(f"Training on {len(workers)} worker processes")
    ours = show_progress(MASGDClassifier(**PARAMETERS))
    theirs = SGDClassifier(**PARAMETERS)
    rows = [
        ("dask_ma MASGDClassifier", timed_fit(ours, X, y), ours.score(X_test, y_test)),
        (
            "scikit-learn SGDClassifier",
            timed_fit(theirs, X, y),
            theirs.score(X_test, y_test),
        ),
    ]
    print_history(ours)
    print(f"\n{'10 passes over the rows':<28} {'fit [s]':>8} {'test accuracy':>14}")
    for name, seconds, accuracy in rows:
        print(f"{name:<28} {seconds:>8.2f} {accuracy:>14.4f}")
    print("\nData: CLINC150, Larson et al., EMNLP-IJCNLP 2019, CC BY 3.0")


# Worker processes import this file again.
if __name__ == "__main__":
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            # A worker that is told to close may log a heartbeat that came too late.
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as current,
    ):
        main(current)
