"""Accuracy on real text, beside scikit-learn's SGDClassifier.

The larger sets are not shipped. Set the environment variable DASK_MA_DATA to a folder
that holds ``imdb`` and ``newsgroups20`` (``X_train.npz``, ``y_train.npy`` and the same
for the test rows, counts of words) to run their tests.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer, TfidfVectorizer
from sklearn.linear_model import SGDClassifier

from dask_ma import MASGDClassifier
from dask_ma.datasets import load_clinc150

pytestmark = pytest.mark.slow


def load(name):
    """Tf-idf rows and labels for training and for testing."""
    folder = os.environ.get("DASK_MA_DATA")
    if not folder:
        pytest.skip(
            f"the environment variable DASK_MA_DATA names no folder with {name}"
        )
    folder = Path(folder) / name
    if not folder.is_dir():
        pytest.skip(f"there is no folder {folder}")
    tfidf = TfidfTransformer(sublinear_tf=True)
    X, X_test = (
        sparse.load_npz(folder / f"X_{part}.npz").astype(np.float64)
        for part in ("train", "test")
    )
    y, y_test = (np.load(folder / f"y_{part}.npy") for part in ("train", "test"))
    return tfidf.fit_transform(X), y, tfidf.transform(X_test), y_test


def load_queries():
    """Words and word pairs of the shipped queries, in random order."""
    (texts, y), (test_texts, y_test) = (load_clinc150(s) for s in ("train", "test"))
    tfidf = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    X = tfidf.fit_transform(texts)
    order = np.random.default_rng(0).permutation(len(y))
    return X[order], y[order], tfidf.transform(test_texts), y_test


def accuracies(data, record_property, **params):
    """Test accuracy of 4 ranks and of one SGDClassifier, after at most 20 passes."""
    X, y, X_test, y_test = data
    params = {"max_iter": 20, "tol": None, "random_state": 0, **params}
    ours = MASGDClassifier(n_ranks=4, **params).fit(X, y)
    assert ours.n_iter_ <= 20
    theirs = SGDClassifier(**params).fit(X, y)
    result = ours.score(X_test, y_test), theirs.score(X_test, y_test)
    record_property("accuracy", f"{result[0]:.4f}")
    record_property("accuracy of SGDClassifier", f"{result[1]:.4f}")
    print(f"accuracy {result[0]:.4f}, SGDClassifier {result[1]:.4f}")
    return result


def test_imdb(record_property):
    data = load("imdb")
    ours, theirs = accuracies(data, record_property, loss="hinge", alpha=1e-5)
    assert ours > theirs - 0.005


def test_newsgroups20(record_property):
    data = load("newsgroups20")
    ours, theirs = accuracies(data, record_property, loss="hinge", alpha=1e-5)
    assert ours > theirs - 0.01


def test_clinc150(record_property):
    ours, theirs = accuracies(
        load_queries(), record_property, loss="log_loss", alpha=1e-5, max_iter=8
    )
    assert ours > theirs - 0.01
    assert ours > 0.85
