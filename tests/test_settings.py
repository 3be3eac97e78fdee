"""Objects that hold parameters of an estimator which belong together."""

import re
from importlib import import_module
from numbers import Integral

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import GridSearchCV

import dask_ma
from dask_ma import (
    MALDA,
    MASGDClassifier,
    MPCAClassifier,
    MPCARegressor,
    SchMPLasso,
    SchMPLogisticRegression,
    SFBLogisticRegression,
    SFBMetricLearner,
)
from dask_ma._ranges import Interval
from dask_ma._settings import (
    Inactive,
    Named,
    Settings,
    SettingsMixin,
    check_inactive,
    find_parameter,
    is_set,
    unless,
)
from dask_ma._sklearn import NamedRange
from dask_ma.engine import as_text
from dask_ma.ma import Gradients, Models
from dask_ma.mpca import Torch, strategies
from dask_ma.schmp import schedules
from dask_ma.sfb import Exchange


class Pace(Settings):
    _parameter_constraints = {"steps": [Interval(Integral, 1, None, closed="left")]}

    def __init__(self, steps=1, table=None):
        self.steps = steps
        self.table = table


class Walk(Pace):
    pass


PACE = Named("pace", {"slow": Pace, "still": lambda: None}, "walks")


class Walker(SettingsMixin, BaseEstimator):
    _to_object = {"pace": PACE.as_object}

    def __init__(self, pace="slow", place="here"):
        self.pace = pace
        self.place = place


def test_a_name_or_an_object():
    for own in (Pace(3), Walk()):
        assert PACE.as_object(own) is own
    assert PACE.as_object("slow").get_params() == {"steps": 1, "table": None}
    assert PACE.as_object("slow") is not PACE.as_object("slow")
    assert PACE.as_object("still") is None


@pytest.mark.parametrize("wrong", ["fast", None, 3, Pace, Walker()], ids=str)
def test_no_name_and_no_object(wrong):
    message = r"^pace must be a str among \{'slow', 'still'\} or an instance of "
    with pytest.raises(ValueError, match=rf"{message}'walks\.Pace', got "):
        PACE.as_object(wrong)
    assert not PACE.is_satisfied_by(wrong)


def test_a_name_becomes_its_object_where_a_parameter_of_it_is_set():
    walker = Walker().set_params(pace__steps=4)
    assert walker.pace.get_params() == {"steps": 4, "table": None}
    own = Walk()
    assert walker.set_params(pace=own, pace__steps=5).pace is own
    assert own.steps == 5
    assert walker.set_params(pace="slow", pace__steps=2).pace.steps == 2
    assert walker.set_params(pace="slow", place="there").pace == "slow"
    with pytest.raises(ValueError, match="pace='still' has no parameters; give an obj"):
        walker.set_params(pace="still", pace__steps=2)
    with pytest.raises(ValueError, match="pace must be a str among .*, got 'fast'"):
        walker.set_params(pace="fast", pace__steps=2)
    assert walker.pace == "slow"
    with pytest.raises(ValueError, match="Invalid parameter 'speed' for estimator Pa"):
        walker.set_params(pace__speed=2)


def test_parameters_of_an_object_are_within_reach():
    walker = clone(Walker(Pace(3))).set_params(pace__steps=4)
    assert walker.get_params()["pace__steps"] == 4
    assert find_parameter(walker, "pace__steps")[0] == 4
    assert find_parameter(walker, "pace__speed") is None
    assert find_parameter(Walker("slow"), "pace__steps") is None
    assert repr(walker.pace) == "Pace(steps=4)"


def test_check_names_the_parameter():
    Pace(2).check()
    with pytest.raises(ValueError, match="'steps' parameter of Pace must be .* Got 0"):
        Pace(0).check()


def test_equal_objects_have_equal_text():
    table = np.arange(2000)
    texts = [as_text(Pace(*v)) for v in [(1, table), (1, table.copy()), (2, table)]]
    assert texts[0] == texts[1] != texts[2]
    # Of so long an array the `repr` leaves the middle out.
    table = table.copy()
    table[1000] = 0
    assert as_text(Pace(1, table)) != texts[0]


def test_what_is_set_in_an_object():
    assert is_set(Walker(Pace(3)), "pace__steps")
    assert not is_set(Walker(Pace()), "pace__steps")
    assert not is_set(Walker(), "pace__steps")


def test_a_parameter_of_an_object_that_cannot_act():
    rules = [Inactive(("pace__steps",), unless("place", "there"), "go there")]
    message = (
        "^pace__steps=3 has no effect with place='here'; go there, or leave "
        "pace__steps at its default, 1$"
    )
    with pytest.raises(ValueError, match=message):
        check_inactive(Walker(Pace(3)), rules, Walker, stacklevel=1)
    for walker in (Walker(Pace(3), "there"), Walker(Pace()), Walker()):
        check_inactive(walker, rules, Walker, stacklevel=1)


# Estimators ---------------------------------------------------------------------------

SGD = {"max_iter": 3, "tol": None, "random_state": 0, "n_ranks": 3}
SEARCHES = {
    "paradigm__batch_fraction": (
        MASGDClassifier(**SGD, paradigm=Gradients()),
        [0.5, 1.0],
    ),
    "communication__staleness": (
        SFBLogisticRegression(**SGD, communication=Exchange("factors")),
        [0, 2],
    ),
    "schedule__n_candidates": (
        SchMPLogisticRegression(
            0.01, tol=0.1, schedule=schedules.Dynamic(4), random_state=0, n_ranks=2
        ),
        [2, 4],
    ),
}


def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 8))
    return X, (X[:, 0] + X[:, 1] + rng.normal(size=60) > 0).astype(int)


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_reaches_into_an_object(name):
    model, values = SEARCHES[name]
    before = repr(model)
    search = GridSearchCV(model, {name: values}, cv=2, error_score="raise")
    search.fit(*rows())
    assert search.cv_results_[f"param_{name}"].tolist() == values
    assert search.best_estimator_.get_params()[name] == search.best_params_[name]
    assert repr(model) == before


@pytest.mark.parametrize("name", SEARCHES)
def test_fits_leave_the_object_as_it_was(name):
    model = clone(SEARCHES[name][0])
    outer = name.partition("__")[0]
    held = getattr(model, outer)
    before = repr(vars(held))
    model.fit(*rows())
    assert getattr(model, outer) is held and repr(vars(held)) == before


@pytest.mark.parametrize("name", SEARCHES)
def test_checkpoints_tell_objects_apart(name):
    model, (value, other) = SEARCHES[name]
    texts = [
        clone(model).set_params(**{name: v})._identity(None, 0).parameters
        for v in (value, value, other)
    ]
    assert texts[0] == texts[1] != texts[2]


# Names and objects --------------------------------------------------------------------


def dense():
    from torch import nn

    return nn.Linear(8, 2)


# What each name stands for.
SCHEDULES = {
    "dynamic": schedules.Dynamic(),
    "priority": schedules.Priority(),
    "random": schedules.Random(),
    "cyclic": schedules.Cyclic(),
}
CONTENTS = {
    "auto": Exchange(),
    "factors": Exchange("factors"),
    "full_matrix": Exchange("full_matrix"),
    "server": Exchange("server"),
    "outputs": Exchange("outputs"),
}
PARADIGMS = {"model": Models(), "gradient": Gradients()}
STRATEGIES = {
    "mpca": strategies.MPCA(),
    "gradients": strategies.Gradients(),
    "synchronous": strategies.Synchronous(),
    "easgd": strategies.ElasticAveraging(),
    "parameter_server": strategies.ParameterServer(),
    "local": strategies.Local(),
}
SAME = [
    (cls, parameter, name, held)
    for cls, parameter, kinds in (
        (SchMPLasso, "schedule", SCHEDULES),
        (SchMPLogisticRegression, "schedule", SCHEDULES),
        (SFBLogisticRegression, "communication", CONTENTS),
        (SFBMetricLearner, "communication", CONTENTS),
        (MASGDClassifier, "paradigm", PARADIGMS),
        (MALDA, "paradigm", PARADIGMS),
        (MPCAClassifier, "strategy", STRATEGIES),
        (MPCARegressor, "strategy", STRATEGIES),
    )
    for name, held in kinds.items()
]
RANGES = {
    (cls, parameter): constraint.named
    for cls in (getattr(dask_ma, name) for name in dask_ma.__all__)
    if isinstance(cls, type)
    for parameter, constraints in cls._parameter_constraints.items()
    for constraint in constraints
    if isinstance(constraint, NamedRange)
}


def identity_of(model):
    return model._identity(None, 0)


@pytest.mark.parametrize(("cls", "parameter", "name", "held"), SAME, ids=str)
def test_a_name_and_its_object_are_one_fit(cls, parameter, name, held):
    by_name = identity_of(cls(**{parameter: name}))
    assert identity_of(cls(**{parameter: held})) == by_name
    assert identity_of(cls(**{parameter: clone(held)})) == by_name
    (inner, value), *_ = (*held.get_params().items(), (None, None))
    if inner is not None:
        other = clone(held).set_params(**{inner: 7 if value is None else f"{value}!"})
        assert identity_of(cls(**{parameter: other})) != by_name


def test_a_bare_module_and_a_wrapped_one_are_one_fit():
    bare = identity_of(MPCAClassifier(module=dense))
    assert identity_of(MPCAClassifier(module=Torch(dense))) == bare
    assert identity_of(MPCAClassifier(module=Torch(dense, device="cpu"))) != bare
    assert identity_of(MPCAClassifier()).parameters["module"] == "None"


def test_no_name_is_left_out():
    """All that have an object are above, and the estimators know their objects."""
    for (cls, parameter), constraint in RANGES.items():
        tried = {name for _, of, name, _ in SAME if of == parameter}
        options = constraint.options
        assert tried == {n for n in options if constraint.as_object(n) is not None}
        assert cls._to_object[parameter] == constraint.as_object


def test_settings_that_estimators_hold_are_public():
    """Errors say where users find them."""
    found = set()
    for constraint in RANGES.values():
        for path in re.findall(r"'(dask_ma[^']*)'", str(constraint)):
            where, _, name = path.rpartition(".")
            assert name in import_module(where).__all__
            assert constraint.is_satisfied_by(getattr(import_module(where), name)())
            assert "._" not in path
            found.add(name)
    kinds = {type(held).__name__ for *_, held in SAME}
    assert found == kinds


@pytest.mark.parametrize(("cls", "parameter"), RANGES, ids=str)
def test_the_error_of_a_wrong_value(cls, parameter):
    X, y = rows()
    message = f"The '{parameter}' parameter of {cls.__name__} must be a str among "
    for wrong in ("gossip", 3, Pace()):
        with pytest.raises(ValueError, match=message) as error:
            cls(**{parameter: wrong}).fit(np.abs(X), y)
        allowed, _, _ = str(error.value).partition(" Got ")
        assert "._" not in allowed


def test_names_of_parameters_are_read_once_of_each_class(monkeypatch):
    class Wider(MASGDClassifier):
        def __init__(self, loss="hinge", width=2):
            super().__init__(loss)
            self.width = width

    models = MASGDClassifier(), Wider()
    names = [sorted(model.get_params()) for model in models]
    assert "alpha" in names[0]
    assert names[1] == ["loss", "width"]

    def again(*args):
        raise AssertionError("the signature is known")

    monkeypatch.setattr("sklearn.base.inspect.signature", again)
    assert [sorted(model.get_params()) for model in models] == names
