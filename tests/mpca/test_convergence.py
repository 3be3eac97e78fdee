"""What is said of classifiers that end above the model of the class frequencies."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from dask_ma import MPCAClassifier
from dask_ma.mpca import Torch

ABOVE = "to predict the frequencies of the classes"


def fit(X, y, weight=None, **params):
    params = {"random_state": 0, "tol": None, "max_iter": 30, **params}
    if "module" not in params:
        params["hidden_layer_sizes"] = (8,)
    return MPCAClassifier(**params).fit(X, y, sample_weight=weight)


def labels_of(y, n_labels=3):
    return (y[:, None] == np.arange(n_labels)).astype(int)


@pytest.mark.each
@pytest.mark.parametrize("options", [{}, {"n_ranks": 3}, {"tol": 1e-4}])
@pytest.mark.parametrize("several", [False, True])
def test_steps_that_are_too_long(digits, several, options):
    X, y = digits.train
    y = labels_of(y) if several else y
    with pytest.warns(ConvergenceWarning, match=f"{ABOVE}.* lower learning_rate_init"):
        fit(X, y, learning_rate_init=1e3, **options)


def test_steps_that_are_too_short(digits):
    """The network is left where it began, at classes that are all as likely."""
    X, y = digits.train
    y = (y == 0) & (np.arange(len(y)) % 10 == 0)
    with pytest.warns(ConvergenceWarning, match=f"{ABOVE}.* raise learning_rate_init"):
        fit(X, y, learning_rate_init=1e-9, tol=1e-4)


@pytest.mark.parametrize("solver", ["adam", "sgd"])
def test_labels_that_are_noise(digits, solver):
    X, _ = digits.train
    y = np.random.default_rng(0).integers(0, 5, len(X))
    fit(X, y, solver=solver, max_iter=60)
    fit(X, y == 0, solver=solver, max_iter=500, tol=1e-3)
    fit(X, labels_of(y), solver=solver)


def test_fits_that_learn(digits):
    X, y = digits.train
    fit(16 * X, y, max_iter=1)
    fit(X, y == 0, max_iter=1)
    fit(X, y)
    weight = np.where(y == 0, 1e3, 1)
    fit(X, y, weight, class_weight={1: 0.0})
    fit(X, y, early_stopping=True)


def test_partial_fit_does_not_tell(digits):
    model = MPCAClassifier((8,), learning_rate_init=1e3, random_state=0)
    for _ in range(15):
        model.partial_fit(*digits.train, classes=np.arange(10))
    assert model.loss_ > 100


@pytest.mark.parametrize(
    ("n_outputs", "criterion", "params", "is_known"),
    [
        (10, "auto", None, True),
        (1, "BCEWithLogitsLoss", None, True),
        (3, "auto", None, True),
        (10, "MultiMarginLoss", None, False),
        (10, "CrossEntropyLoss", {"reduction": "sum"}, False),
        (10, "CrossEntropyLoss", {"label_smoothing": 0.1}, False),
    ],
)
def test_criteria_whose_losses_are_known(
    digits, n_outputs, criterion, params, is_known
):
    torch = pytest.importorskip("torch")
    X, _ = digits.train
    y = np.random.default_rng(0).integers(0, 10, len(X))
    y = {1: y > 4, 3: labels_of(y), 10: y}[n_outputs]
    module = torch.nn.Linear(64, n_outputs)
    chosen = Torch(module, criterion=criterion, criterion_params=params)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fit(X, y, module=chosen, learning_rate_init=100.0, max_iter=12)
    assert any(ABOVE in str(each.message) for each in seen) == is_known
