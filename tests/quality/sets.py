"""Data that nobody here wrote, and kinds of data that are hard."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn import datasets
from sklearn.preprocessing import StandardScaler


class Rows(NamedTuple):
    """Rows, and their targets; in no order."""

    X: Any
    y: np.ndarray

    @property
    def sample_weight(self) -> np.ndarray:
        """Weights of the rows; of many rows, some have none."""
        rng = np.random.default_rng(len(self.y))
        weight = rng.exponential(size=len(self.y)) + 0.1
        if len(self.y) >= 50:
            weight[rng.random(len(self.y)) < 0.1] = 0.0
        return weight


@cache
def load(task: str, name: str) -> Rows:
    """A set of "classification" or "regression" by its name."""
    X, y = SETS[task][name]()
    order = np.random.default_rng(0).permutation(len(y))
    return Rows(X[order], y[order])


def _toy(loader: Callable[..., Any], n: int | None = None) -> Callable[[], Any]:
    """A set of scikit-learn as it is."""

    def make() -> Any:
        X, y = loader(return_X_y=True)
        every = 1 if n is None else -(-len(y) // n)
        return X[::every], y[::every]

    return make


def _standardised(make: Callable[[], Any]) -> Callable[[], Any]:
    """Columns of mean 0 and variance 1."""

    def make_standardised() -> Any:
        X, y = make()
        return StandardScaler().fit_transform(X), y

    return make_standardised


def _dense(**changes: Any) -> Callable[[], Any]:
    """Clouds of points on the corners of a cube, with wrong labels here and there."""
    params = {"n_samples": 500, "n_features": 20, "n_informative": 8, "flip_y": 0.05}

    def make() -> Any:
        given = {**params, "random_state": 0, **changes}
        return datasets.make_classification(**given)

    return make


def _scaled(make: Callable[[], Any]) -> Callable[[], Any]:
    """Columns in units from 1e-4 to 1e4."""

    def make_scaled() -> Any:
        X, y = make()
        return StandardScaler().fit_transform(X) * np.logspace(-4, 4, X.shape[1]), y

    return make_scaled


def _doubled(make: Callable[[], Any]) -> Callable[[], Any]:
    """Each column twice."""

    def make_doubled() -> Any:
        X, y = make()
        return np.hstack([X, X]), y

    return make_doubled


def _few(make: Callable[[], Any], n: int) -> Callable[[], Any]:
    """The first rows; of classes, as many of each."""

    def make_few() -> Any:
        X, y = make()
        if y.dtype.kind == "i":
            classes = np.unique(y)
            rows = [
                np.flatnonzero(y == label)[: n // len(classes)] for label in classes
            ]
            chosen = np.sort(np.concatenate(rows))
        else:
            chosen = np.arange(n)
        return X[chosen], y[chosen]

    return make_few


def _text(n_rows: int, n_words: int) -> Any:
    """Rows of length 1 with some words each, few of which are frequent."""
    rng = np.random.default_rng(0)
    chances = 1 / np.arange(1, n_words + 1)
    words = rng.choice(n_words, (n_rows, 25), p=chances / chances.sum())
    X = sparse.coo_array(
        (np.ones(words.size), (np.repeat(np.arange(n_rows), 25), words.ravel())),
        shape=(n_rows, n_words),
    ).tocsr()
    X = sparse.diags_array(1 / np.sqrt(X.multiply(X).sum(axis=1))) @ X
    scores = X @ (rng.normal(size=n_words) * (rng.random(n_words) < 0.2))
    return sparse.csr_matrix(X), scores + 0.3 * scores.std() * rng.normal(size=n_rows)


def _words() -> Any:
    X, scores = _text(500, 800)
    return X, (scores > np.median(scores)).astype(int)


def _counts() -> Any:
    """Sparse counts of four classes, a column of which is in every row."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 4, 400)
    means = rng.gamma(0.3, 1.0, (4, 60))
    means[:, 0] = 20.0
    return sparse.csr_matrix(rng.poisson(means[y]).astype(float)), y


def _ratings() -> Any:
    X, scores = _text(500, 800)
    return X, 3 + 10 * scores


def _linear(**changes: Any) -> Callable[[], Any]:
    """A linear target with noise."""
    params = {"n_samples": 500, "n_features": 20, "n_informative": 10, "noise": 10.0}

    def make() -> Any:
        return datasets.make_regression(**{**params, "random_state": 0, **changes})

    return make


def _outliers() -> Any:
    """A linear target of which some rows are far off."""
    X, y = _linear()()
    y[::25] += 1000.0
    return X, y


def _shifted() -> Any:
    """Columns far from 0, as years and temperatures in Kelvin are."""
    X, y = _linear(n_features=10)()
    return X + np.linspace(1, 300, X.shape[1]), y + 1000.0


IRIS = _toy(datasets.load_iris)
WINE = _toy(datasets.load_wine)
CANCER = _toy(datasets.load_breast_cancer)
DIGITS = _toy(datasets.load_digits, 450)
DIABETES = _toy(datasets.load_diabetes)
_LINNERUD = datasets.load_linnerud

CLASSIFICATION: dict[str, Callable[[], Any]] = {
    "iris": IRIS,
    "iris standardised": _standardised(IRIS),
    "wine": WINE,
    "wine standardised": _standardised(WINE),
    "cancer": CANCER,
    "cancer standardised": _standardised(CANCER),
    "digits": DIGITS,
    "digits standardised": _standardised(DIGITS),
    "three classes": _dense(n_classes=3),
    "noise": _dense(flip_y=1.0, n_features=8, n_informative=2),
    "imbalanced": _dense(weights=[0.95], flip_y=0.01),
    "double columns": _doubled(_dense()),
    "wide": _dense(n_samples=60, n_features=400),
    "columns in all units": _scaled(_dense()),
    "text": _words,
    "counts": _counts,
    "six rows": _few(_standardised(IRIS), 6),
}
REGRESSION: dict[str, Callable[[], Any]] = {
    "diabetes": DIABETES,
    "diabetes standardised": _standardised(DIABETES),
    "linnerud": lambda: (_LINNERUD().data, _LINNERUD().target[:, 0]),
    "linnerud standardised": _standardised(
        lambda: (_LINNERUD().data, _LINNERUD().target[:, 0])
    ),
    "linear": _linear(),
    "little noise": _linear(noise=0.1),
    "outliers": _outliers,
    "far from zero": _shifted,
    "double columns": _doubled(_linear()),
    "wide": _linear(n_samples=60, n_features=400),
    "columns in all units": _scaled(_linear()),
    "text": _ratings,
    "six rows": _few(_linear(n_features=4, n_informative=4), 6),
}
SETS = {"classification": CLASSIFICATION, "regression": REGRESSION}
