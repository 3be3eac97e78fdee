"""Every parameter of the constructors acts, and every wrong value raises."""

import inspect
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso

from dask_ma import SchMPLasso, SchMPLassoCV, SchMPLogisticRegression
from dask_ma.schmp import schedules

CLASSES = [SchMPLasso, SchMPLassoCV, SchMPLogisticRegression]
BASE = {
    SchMPLasso: {"alpha": 0.02, "tol": 1e-6},
    SchMPLassoCV: {"cv": 3, "alphas": 3, "eps": 0.01, "tol": 1e-6},
    SchMPLogisticRegression: {"alpha": 0.02, "tol": 1e-6},
}
FACTORS = np.linspace(0.5, 2, 90)
SCHEDULED = {
    "schedule": schedules.Dynamic(16),
    "random_state": 0,
    "max_iter": 2,
    "tol": 0,
}
# Parameter: (what the others have to be for it to act, another value, what it changes).
FLIPS = {
    "alpha": ({}, 0.05, {"coef"}),
    "l1_ratio": ({}, 0.5, {"coef"}),
    "fit_intercept": ({}, False, {"coef"}),
    "positive": ({}, True, {"coef"}),
    "max_iter": ({"tol": 1e-12}, 1, {"coef", "rounds", "warns"}),
    "tol": ({}, 0.3, {"coef", "rounds"}),
    "class_weight": ({}, {0: 3.0, 1: 0.5}, {"coef"}),
    "feature_weights": ({}, FACTORS, {"coef"}),
    "warm_start": ({}, True, {"rounds"}),
    "schedule": ({"max_iter": 1}, "cyclic", {"coef"}),
    "layout": ({"n_ranks": 3, "layout": "rows"}, "columns", {"shared"}),
    "polish": (SCHEDULED, False, {"history", "polished"}),
    "random_state": (SCHEDULED, 1, {"history"}),
    "verbose": ({}, 1, {"output"}),
    "n_ranks": ({}, 3, {"shared"}),
    "cv": ({}, 4, {"errors"}),
    "alphas": ({}, 5, {"errors"}),
    "eps": ({}, 0.1, {"errors"}),
}
ONLY_CV = {"max_iter": {"coef"}, "tol": {"coef"}}
FLIPPED = [
    (cls, name) for cls in CLASSES for name in sorted(inspect.signature(cls).parameters)
]
WRONG = [
    ("alpha", -1e-9),
    ("alpha", None),
    ("l1_ratio", 1.5),
    ("l1_ratio", -0.1),
    ("fit_intercept", "yes"),
    ("positive", "no"),
    ("max_iter", 0),
    ("max_iter", 2.5),
    ("tol", -1.0),
    ("tol", None),
    ("class_weight", "unbalanced"),
    ("class_weight", [1, 2]),
    ("feature_weights", 1.0),
    ("warm_start", "no"),
    ("schedule", "fast"),
    ("layout", "blocks"),
    ("schedule", schedules.Dynamic),
    ("polish", "no"),
    ("random_state", "seed"),
    ("verbose", -1),
    ("n_ranks", 0),
    ("n_ranks", 2.0),
    ("cv", "five"),
    ("alphas", 0),
    ("alphas", "many"),
    ("eps", 0.0),
    ("eps", 1.5),
]


def observe(cls, params, wide, capsys, *, twice=False):
    """All that a user can see of a fit, or of a second one, with these parameters."""
    estimator = cls(**{**BASE[cls], **params})
    y = wide["two" if cls is SchMPLogisticRegression else "number"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        for _ in range(1 + twice):
            estimator.fit(wide["X"], y)
    return {
        "coef": estimator.coef_.round(12).tolist(),
        "rounds": estimator.n_iter_,
        "warns": len(caught),
        "output": capsys.readouterr().out,
        "shared": estimator.history_[0]["bytes_shared"],
        "history": [(r["objective"], r["n_touched"]) for r in estimator.history_],
        "polished": [r.get("polished") for r in estimator.history_],
        "errors": getattr(estimator, "mse_path_", np.zeros(0)).tolist(),
    }


@pytest.fixture(scope="module")
def seen():
    """What was observed before another value: most parameters have the same fits."""
    return {}


def test_all_parameters_are_tried():
    names = {name for cls in CLASSES for name in inspect.signature(cls).parameters}
    assert set(FLIPS) == names == {name for name, _ in WRONG}


@pytest.mark.parametrize(("cls", "name"), FLIPPED)
def test_parameter_acts(cls, name, wide, capsys, seen):
    others, value, expected = FLIPS[name]
    if cls is SchMPLassoCV:
        expected = ONLY_CV.get(name, expected)
    twice = name == "warm_start"  # which acts on a second fit alone
    key = cls, repr(others), twice
    if key not in seen:
        seen[key] = observe(cls, others, wide, capsys, twice=twice)
    before = seen[key]
    after = observe(cls, {**others, name: value}, wide, capsys, twice=twice)
    changed = {key for key in before if before[key] != after[key]}
    assert expected <= changed
    if name == "verbose":
        assert changed == {"output"}


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(("name", "value"), WRONG)
def test_values_out_of_range(cls, name, value, wide):
    if name not in inspect.signature(cls).parameters:
        pytest.skip(f"{cls.__name__} has no {name}")
    y = wide["two"]
    estimator = cls(**{**BASE[cls], name: value})
    with pytest.raises(ValueError, match=f"'?{name}'? (parameter|must)"):
        estimator.fit(wide["X"], y)
    assert not hasattr(estimator, "coef_")
    assert not hasattr(estimator, "n_features_in_")


# -- Schedules -----------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize(
    "schedule",
    [
        schedules.Dynamic(4),
        schedules.Priority(4),
        schedules.Random(4),
        schedules.Cyclic(4),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    ("n_ranks", "layout"), [(1, "rows"), (3, "rows"), (2, "columns")]
)
@pytest.mark.parametrize("cls", [SchMPLasso, SchMPLogisticRegression])
def test_schedules_find_the_optimum(
    wide, l1_objective, logistic, cls, schedule, n_ranks, layout
):
    """On their own: nothing is solved for together."""
    X, y = wide["X"][:, :30], wide["number" if cls is SchMPLasso else "two"]
    alpha = 0.3 if cls is SchMPLasso else 0.05
    params = {"alpha": alpha, "layout": layout, "n_ranks": n_ranks, "tol": 1e-5}
    params |= {"schedule": schedule, "polish": False}
    model = cls(**params, random_state=0).fit(X, y)
    assert {record["polished"] for record in model.history_} == {False}
    if cls is SchMPLasso:
        expected = Lasso(alpha, tol=1e-12, max_iter=10**6).fit(X, y)
    else:
        expected = logistic(X, y, alpha)
    best = l1_objective(expected, X, y, alpha=alpha, l1_ratio=1.0)
    null = y.var() / 2 if cls is SchMPLasso else np.log(2)
    assert model.dual_gap_ <= 1e-5 * null * 1.001
    last = l1_objective(model, X, y)
    assert model.history_[-1]["objective"] == pytest.approx(last, rel=1e-10)
    assert -1e-8 <= last - best <= model.dual_gap_ + 1e-8
    np.testing.assert_allclose(model.coef_, np.atleast_1d(expected.coef_), atol=0.05)
    for record in model.history_:
        assert record["objective"] - best <= record["dual_gap"] + 1e-8


@pytest.mark.parametrize("cls", [SchMPLasso, SchMPLogisticRegression])
@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"polish": False}, "polish"),
        (
            {"schedule": schedules.Dynamic(n_schedulers=2), "layout": "columns"},
            "schedule__n_schedulers",
        ),
    ],
    ids=str,
)
def test_parameters_that_do_nothing(wide, cls, params, name):
    model = cls(0.1, **params)
    with pytest.raises(ValueError, match=f"^{name}=.* has no effect with "):
        model.fit(wide["X"], wide["two"])
    assert not hasattr(model, "coef_")


@pytest.mark.each
@pytest.mark.parametrize("cls", [SchMPLasso, SchMPLogisticRegression])
@pytest.mark.parametrize("name", ["dynamic", "priority", "random", "cyclic"])
def test_a_name_is_an_object_with_its_defaults(wide, cls, name):
    y = wide["number" if cls is SchMPLasso else "two"]
    kind = getattr(schedules, name.capitalize())
    models = [
        cls(0.02, schedule=schedule, max_iter=2, tol=0.1, random_state=0, n_ranks=2)
        for schedule in (name, kind())
    ]
    by_name, by_object = (model.fit(wide["X"], y) for model in models)
    np.testing.assert_array_equal(by_name.coef_, by_object.coef_)


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.Random(0),
        schedules.Cyclic(1.5),
        schedules.Dynamic(dependency_threshold=1.1),
        schedules.Dynamic(pipeline_depth="deep"),
    ],
    ids=repr,
)
def test_objects_out_of_range(wide, schedule):
    [name] = [n for n in schedule.get_params() if f"{n}=" in repr(schedule)]
    kind = type(schedule).__name__
    with pytest.raises(ValueError, match=f"The '{name}' parameter of {kind} must be"):
        SchMPLasso(schedule=schedule).fit(wide["X"], wide["number"])


@pytest.mark.parametrize("schedule", ["dynamic", "priority", "random", "cyclic"])
def test_a_seed_decides(wide, schedule):
    def fit(seed):
        model = SchMPLasso(
            0.3, schedule=schedule, random_state=seed, max_iter=2, tol=0, n_ranks=2
        )
        with pytest.warns(ConvergenceWarning):
            model.fit(wide["X"], wide["number"])
        return model.coef_.tobytes(), [r["objective"] for r in model.history_]

    first = fit(0)
    assert fit(0) == first
    assert (fit(1) == first) == (schedule == "cyclic")
