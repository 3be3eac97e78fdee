"""What a user gets who changes nothing, beside scikit-learn's networks."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_digits, make_classification, make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor

from dask_ma import MPCAClassifier, MPCARegressor

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
    X, y = load()
    train, test = slice(0, 800), slice(800, None)
    rows = X[train], y[train]
    if order == "sorted":
        rows = tuple(array[np.argsort(y[train], kind="stable")] for array in rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        expected = theirs(random_state=0).fit(*rows).score(X[test], y[test])
        model = ours(random_state=0, n_ranks=n_ranks).fit(*rows)
    assert model.score(X[test], y[test]) > expected - MARGIN
