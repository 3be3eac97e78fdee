"""What a user gets who changes nothing, beside scikit-learn's networks."""

import warnings
from functools import cache

import numpy as np
import pytest
from sklearn.datasets import load_digits, make_classification, make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor

from dask_ma import MPCAClassifier, MPCARegressor

N_ROWS = 250  # to train with
MARGIN = 0.03  # of accuracy, or of the coefficient of determination


def digits():
    X, y = load_digits(return_X_y=True)
    return X / 16, y


def generated():
    X, y = make_classification(
        1600, 20, n_informative=8, n_redundant=4, n_classes=3, random_state=0
    )
    return (X - X.mean(axis=0)) / X.std(axis=0), y


def friedman():
    X, y = make_friedman1(1600, noise=0.5, random_state=0)
    return (X - 0.5) * np.sqrt(12), (y - y.mean()) / y.std()


def halves(load, order):
    """Rows to train with, and the others."""
    X, y = load()
    rows = X[:N_ROWS], y[:N_ROWS]
    if order == "sorted":
        rows = tuple(array[np.argsort(rows[1], kind="stable")] for array in rows)
    return rows, (X[N_ROWS:], y[N_ROWS:])


@cache
def score_of(theirs, load, order):
    """Score of scikit-learn's network, for any number of ranks."""
    train, test = halves(load, order)
    return theirs(random_state=0).fit(*train).score(*test)


@pytest.mark.each
@pytest.mark.parametrize("order", ["any order", "sorted"])
@pytest.mark.parametrize("n_ranks", [2, 4])
@pytest.mark.parametrize(
    ("load", "ours", "theirs"),
    [
        (digits, MPCAClassifier, MLPClassifier),
        (generated, MPCAClassifier, MLPClassifier),
        (friedman, MPCARegressor, MLPRegressor),
    ],
)
def test_the_score_on_other_rows_is_that_of_scikit_learn(
    load, ours, theirs, n_ranks, order
):
    """Rows in memory are dealt out, so that each rank sees all kinds of them."""
    train, test = halves(load, order)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        expected = score_of(theirs, load, order)
        model = ours(random_state=0, n_ranks=n_ranks).fit(*train)
    assert model.score(*test) > expected - MARGIN
