"""Every parameter of the constructors acts, and every wrong value raises."""

import inspect
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from dask_ma import MASGDClassifier, MASGDRegressor

BASE = {"max_iter": 3, "tol": None, "random_state": 0, "n_ranks": 1}
# Parameter: (what the others have to be for it to act, another value for it)
FLIPS = {
    "penalty": ({"learning_rate": "optimal"}, "l1"),
    "alpha": ({}, 0.1),
    "l1_ratio": ({"penalty": "elasticnet"}, 0.9),
    "fit_intercept": ({}, False),
    "max_iter": ({}, 4),
    "tol": ({"max_iter": 100}, 0.2),
    "shuffle": ({}, False),
    "verbose": ({}, 1),
    "epsilon": ({"loss": "huber"}, 0.5),
    "random_state": ({}, 1),
    "learning_rate": ({}, "constant"),
    "eta0": ({"learning_rate": "constant"}, 0.03),
    "power_t": ({"learning_rate": "invscaling"}, 0.1),
    "early_stopping": ({}, True),
    "validation_fraction": ({"early_stopping": True}, 0.4),
    "n_iter_no_change": ({"tol": 1e-2, "max_iter": 100}, 2),
    "warm_start": ({}, True),
    "average": ({}, True),
    "local_epochs": ({}, 2),
    "paradigm": ({}, "gradient"),
    "refine": ({"loss": "huber"}, "newton"),
    "refine_max_iter": ({"loss": "huber", "refine": "lbfgs"}, 3),
    "refine_tol": ({"loss": "huber", "refine": "lbfgs"}, 1e-9),
    "n_ranks": ({}, 3),
}
ONLY = {
    MASGDClassifier: {
        "loss": ({}, "log_loss"),
        "class_weight": ({}, {0: 3.0, 1: 0.5}),
    },
    MASGDRegressor: {"loss": ({}, "huber")},
}
FLIPPED = [
    (cls, name) for cls, only in ONLY.items() for name in sorted({**FLIPS, **only})
]
WRONG = {
    "loss": "unknown",
    "penalty": "l3",
    "alpha": -1e-9,
    "l1_ratio": 1.5,
    "fit_intercept": "yes",
    "max_iter": 0,
    "tol": -1.0,
    "shuffle": None,
    "verbose": -1,
    "epsilon": -0.1,
    "random_state": "seed",
    "learning_rate": "fast",
    "eta0": 0.0,
    "power_t": -1.0,
    "early_stopping": "no",
    "validation_fraction": 1.0,
    "n_iter_no_change": 0,
    "class_weight": "unbalanced",
    "warm_start": "no",
    "average": -1,
    "local_epochs": 0,
    "paradigm": "models",
    "refine": "bfgs",
    "refine_max_iter": 0,
    "refine_tol": -1.0,
    "n_ranks": 0,
}
MORE_WRONG = [
    ("max_iter", 2.5),
    ("l1_ratio", -0.1),
    ("validation_fraction", 0.0),
    ("average", 1.5),
    ("local_epochs", "often"),
    ("local_epochs", -0.5),
    ("n_ranks", -1),
    ("n_ranks", 2.0),
    ("shuffle", "rows"),
    ("alpha", None),
    ("epsilon", None),
    ("class_weight", [1, 2]),
]


def names_of(cls):
    return set(inspect.signature(cls).parameters)


def observe(cls, params, X, y, capsys, n_fits):
    """All that a user can see of fits with these parameters, one after the other."""
    estimator = cls(**{**BASE, **params})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for _ in range(n_fits):
            estimator.fit(X, y)
    return {
        "coef_": estimator.coef_.tolist(),
        "n_iter_": estimator.n_iter_,
        "output": capsys.readouterr().out,
        "shared": estimator.history_[0]["bytes_shared"],
        "record": set(estimator.history_[0]),
    }


@pytest.fixture(scope="module")
def seen():
    """What was observed before another value: most parameters have the same fits."""
    return {}


def test_all_parameters_are_tried():
    for cls, only in ONLY.items():
        assert {*FLIPS, *only} == names_of(cls)
        assert names_of(cls) <= set(WRONG)


@pytest.mark.parametrize(("cls", "name"), FLIPPED)
def test_parameter_acts(cls, name, binary, regression, capsys, seen):
    X, y = binary if cls is MASGDClassifier else regression
    others, value = {**FLIPS, **ONLY[cls]}[name]
    n_fits = 2 if name == "warm_start" else 1  # what it is about is the second
    key = cls, repr(others), n_fits
    if key not in seen:
        seen[key] = observe(cls, others, X, y, capsys, n_fits)
    before = seen[key]
    after = observe(cls, {**others, name: value}, X, y, capsys, n_fits)
    changed = {key for key in before if before[key] != after[key]}
    expected = {
        "verbose": {"output"},
        "max_iter": {"coef_", "n_iter_"},
        "tol": {"coef_", "n_iter_"},
        "n_iter_no_change": {"coef_", "n_iter_"},
        "early_stopping": {"coef_", "record"},
        "refine": {"coef_", "n_iter_"},
        "refine_max_iter": {"coef_", "n_iter_"},
        "refine_tol": {"coef_", "n_iter_"},
        "n_ranks": {"coef_", "shared"},
    }
    assert changed == expected.get(name, {"coef_"})


@pytest.mark.pairs
@pytest.mark.parametrize("cls", [MASGDClassifier, MASGDRegressor])
@pytest.mark.parametrize(("name", "value"), [*WRONG.items(), *MORE_WRONG])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_values_out_of_range(cls, name, value, method, binary):
    if name not in names_of(cls):
        pytest.skip(f"{cls.__name__} has no {name}")
    X, y = binary
    estimator = cls(**{**BASE, name: value})
    with pytest.raises(ValueError, match=f"The '{name}' parameter of {cls.__name__}"):
        getattr(estimator, method)(X, y)
    assert not hasattr(estimator, "coef_")
    assert not hasattr(estimator, "n_features_in_")


@pytest.mark.parametrize(
    ("cls", "params", "message"),
    [
        (
            MASGDClassifier,
            {"alpha": 0, "learning_rate": "optimal"},
            "alpha must be > 0 since learning_rate is 'optimal'",
        ),
        (
            MASGDClassifier,
            {"learning_rate": "pa1", "loss": "log_loss"},
            "'pa1' only works with loss='hinge', got loss='log_loss'",
        ),
        (
            MASGDClassifier,
            {"learning_rate": "pa2", "loss": "epsilon_insensitive"},
            "'pa2' only works with loss='hinge'",
        ),
        (
            MASGDRegressor,
            {"learning_rate": "pa1"},
            "'pa1' only works with loss='epsilon_insensitive'",
        ),
    ],
)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_parameters_that_do_not_go_together(cls, params, message, method, binary):
    X, y = binary
    classes = (
        {} if (cls, method) != (MASGDClassifier, "partial_fit") else {"classes": [0, 1]}
    )
    estimator = cls(**{**BASE, **params})
    with pytest.raises(ValueError, match=message):
        getattr(estimator, method)(X, y, **classes)
    assert not hasattr(estimator, "coef_")


def test_no_penalty_where_the_step_does_not_need_it(binary):
    X, y = binary
    params = {**BASE, "learning_rate": "constant"}
    without = MASGDClassifier(alpha=0, **params).fit(X, y)
    none = MASGDClassifier(penalty=None, **params).fit(X, y)
    np.testing.assert_array_equal(without.coef_, none.coef_)


def test_intercept_is_never_penalised(binary):
    X, y = binary
    strong = MASGDClassifier(
        loss="log_loss",
        alpha=100,
        learning_rate="constant",
        eta0=0.001,
        max_iter=200,
        tol=None,
        random_state=0,
    ).fit(X, y + (np.arange(120) < 60) * (1 - y))
    share = (y + (np.arange(120) < 60) * (1 - y)).mean()
    assert abs(strong.coef_).max() < 0.01
    # With no coefficients left the intercept alone fits the share of the classes.
    assert strong.intercept_[0] == pytest.approx(np.log(share / (1 - share)), abs=0.1)
