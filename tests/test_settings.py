"""Objects that hold parameters of an estimator which belong together."""

from numbers import Integral

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import GridSearchCV

from dask_ma import MASGDClassifier, SchMPLogisticRegression, SFBLogisticRegression
from dask_ma._inactive import Inactive, check_inactive, is_set, unless
from dask_ma._settings import Settings, find_parameter, named
from dask_ma._sklearn import Interval
from dask_ma.engine import as_text
from dask_ma.ma import Gradients
from dask_ma.schmp import schedules
from dask_ma.sfb import Exchange


class Pace(Settings):
    _parameter_constraints = {"steps": [Interval(Integral, 1, None, closed="left")]}

    def __init__(self, steps=1, table=None):
        self.steps = steps
        self.table = table


class Walker(BaseEstimator):
    def __init__(self, pace="slow", place="here"):
        self.pace = pace
        self.place = place


def test_a_name_or_an_object():
    kinds = {"slow": Pace}
    own = Pace(3)
    assert named(own, kinds) is own
    assert named("slow", kinds).get_params() == {"steps": 1, "table": None}


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
