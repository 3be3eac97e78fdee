"""Parameters out of range, of wrong types, unknown, or at odds with each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from bad_input._cases import Call, Case, refused, trained, with_params
from bad_input._world import ATOMS, ESTIMATORS, NETWORKS, TOPICS, Box, N

# Parameters are looked at before the rows are, so that other containers say nothing.
BEFORE_DATA = ("numpy", "array")


def has(name: str) -> tuple[str, ...]:
    """Estimators with a parameter."""
    return tuple(e for e, make in ESTIMATORS.items() if name in make().get_params())


def wrong(name: str, value: Any, shown: str | None = None) -> Case:
    """A value that no estimator takes for a parameter."""
    text = repr(value) if shown is None else shown
    return Case(
        f"{name}={text}",
        with_params(**{name: value}),
        refused(f"'{name}' parameter of .* must be .*Got .* instead"),
        has(name),
        BEFORE_DATA,
    )


def unknown(box: Box) -> Call:
    """A parameter that no estimator has."""
    return Call(before=lambda estimator, box: estimator.set_params(steps=3))


CASES = [
    *(wrong("n_ranks", value) for value in (0, -1, 2.0, "2", np.nan)),
    *(wrong("max_iter", value) for value in (-1, 1.5, "10", None, np.inf)),
    *(wrong("tol", value) for value in (-1.0, np.nan, "small", -np.inf)),
    *(wrong("alpha", value) for value in (-1.0, np.nan, "one over n", None)),
    *(wrong("random_state", value) for value in (-1, 1.5, "seed", [1, 2])),
    *(wrong("verbose", value) for value in (-1, "yes")),
    *(wrong("fit_intercept", value) for value in ("yes", 2)),
    *(wrong("warm_start", value) for value in ("yes",)),
    *(wrong("loss", value) for value in ("logistics", 1)),
    *(wrong("penalty", value) for value in ("L3",)),
    *(wrong("solver", value) for value in ("lbfgs",)),
    *(wrong("schedule", value) for value in ("fast",)),
    *(wrong("layout", value) for value in ("cells",)),
    *(wrong("batch_size", value) for value in (0, -3, 2.5, "large")),
    *(wrong("eta0", value) for value in (0, -1.0, np.nan)),
    *(wrong("l1_ratio", value) for value in (-0.1, 1.1)),
    *(wrong("validation_fraction", value) for value in (0, 1, -0.5)),
    *(wrong("n_iter_no_change", value) for value in (0, 1.5)),
    *(wrong("shuffle", value) for value in ("yes",)),
    *(wrong("early_stopping", value) for value in ("yes",)),
    *(wrong("n_components", value) for value in (0, 2.5)),
    wrong("word_weights", "sampled"),
    *(wrong("learning_decay", value) for value in (-0.1, 1.5)),
    *(wrong("strategy", value) for value in ("gossip",)),
    *(wrong("mixing", value) for value in ("gossip",)),
    *(wrong("mixing_period", value) for value in ("often", 0, 1.5)),
    *(wrong("cv", value) for value in ("five",)),
    *(wrong("alphas", value) for value in (0, "many")),
    Case(
        "n_ranks=30",
        with_params(n_ranks=30),
        trained(with_params(n_ranks=N)),
        tuple(e for e in ESTIMATORS if not e.startswith("SchMP")),
        ("numpy",),
    ),
    Case(
        "n_ranks=True",
        with_params(n_ranks=True),
        trained(with_params(n_ranks=1)),
    ),
    Case(
        "unknown parameter", unknown, refused("Invalid parameter 'steps' for estimator")
    ),
    Case(
        "hidden_layer_sizes of zero units",
        with_params(hidden_layer_sizes=(0,)),
        refused(r"hidden_layer_sizes must be > 0, one int for each layer, got \(0,\)"),
        NETWORKS,
    ),
    Case(
        "hidden_layer_sizes in words",
        with_params(hidden_layer_sizes=("a",)),
        refused("hidden_layer_sizes must be > 0, one int for each layer, got"),
        NETWORKS,
    ),
    Case(
        "hidden_layer_sizes with fractions",
        with_params(hidden_layer_sizes=(2.5,)),
        refused("hidden_layer_sizes must be > 0, one int for each layer, got"),
        NETWORKS,
    ),
    Case(
        "feature_weights below 0",
        with_params(feature_weights=[1, -1, 1]),
        refused("feature_weights must be a vector of finite numbers, none .* negative"),
        has("feature_weights"),
    ),
    Case(
        "feature_weights of NaN",
        with_params(feature_weights=[1, np.nan, 1]),
        refused("feature_weights must be a vector of finite numbers, none .* negative"),
        has("feature_weights"),
    ),
    Case(
        "too few feature_weights",
        with_params(feature_weights=[1, 1]),
        refused(r"feature_weights must have shape \(3,\), one weight for each feature"),
        has("feature_weights"),
    ),
    Case(
        "more folds than rows",
        with_params(cv=100),
        refused(
            "cv must be at least 2 and at most the number of rows",
            frame="a fold of cv has no row",
        ),
        has("cv"),
    ),
    Case(
        "doc_topic_prior below 0",
        with_params(doc_topic_prior=-1.0),
        refused("'doc_topic_prior' parameter of .* must be .*Got -1.0 instead"),
        TOPICS,
    ),
    Case(
        "alpha=0 of codes",
        with_params(alpha=0.0),
        refused("'alpha' parameter of .* must be .*Got 0.0 instead"),
        ATOMS,
    ),
    Case(
        "dict_init of another shape",
        with_params(dict_init=np.ones((2, 4))),
        refused(r"dict_init has the shape \(2, 4\), expected \(2, 3\)"),
        ATOMS,
    ),
    Case(
        "dict_init with NaN",
        with_params(dict_init=np.full((2, 3), np.nan)),
        refused("Input dict_init contains NaN"),
        ATOMS,
    ),
    Case(
        "alpha=0 where it sets the steps",
        with_params(alpha=0.0, learning_rate="optimal"),
        refused("alpha must be (> 0|above 0).*learning_rate|learning_rate.*alpha"),
        ("MASGDClassifier",),
    ),
    Case(
        "alpha=0 where steps are found by trial",
        with_params(alpha=0.0),
        trained(with_params(penalty=None)),
        ("MASGDClassifier", "MASGDRegressor"),
    ),
]
