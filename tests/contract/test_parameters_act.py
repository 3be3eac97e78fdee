"""No parameter is without effect: it acts, or the fit says that it cannot."""

from __future__ import annotations

import re
import warnings
from functools import cache

import numpy as np
import pytest
from parameter_table import (
    ACTS,
    ESTIMATORS,
    EXEMPT,
    INACTIVE,
    SIBLINGS,
    changed,
    observe,
    parameters_of,
    rows_of,
)
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import dask_ma.base
from dask_ma import MALDA, MASGDClassifier

ALL_INACTIVE = [(name, case) for case in INACTIVE for name in case.estimators]


def by_turns(cases, words_of):
    """Every other one of those that two estimators have in common, for each of them.

    The same lines read their parameters, and say which of them cannot act.
    """
    pairs = {name: pair for pair in SIBLINGS for name in pair}
    shared = {}
    for name, case in cases:
        key = pairs.get(name, name), words_of(name, case)
        shared.setdefault(key, []).append((name, case))
    assert max(map(len, shared.values())) <= 2
    return [both[turn % len(both)] for turn, both in enumerate(shared.values())]


def words_of_acts(name, parameter):
    """What tells an entry of the table from others; a module has other outputs."""
    entry = ACTS[name][parameter]
    return parameter, None if parameter.startswith("module") else id(entry)


def words_of_case(name, case):
    """What tells a combination from others."""
    others = {k: None if k == "module" else repr(v) for k, v in case.others.items()}
    return case.name, repr(case.value), case.reasons, repr(sorted(others.items()))


SOME_ACTS = by_turns(
    [(name, each) for name in ACTS for each in ACTS[name]], words_of_acts
)
SOME_INACTIVE = by_turns(ALL_INACTIVE, words_of_case)
SOME_EXEMPT = by_turns(
    [(name, case) for case in EXEMPT for name in case.estimators], words_of_case
)
_fits: dict[str, object] = {}


def fitted(name, params, **options):
    """What fits show; those that several tests need are made once."""
    key = repr((name, sorted(params.items(), key=repr), options))
    if key not in _fits:
        _fits[key] = observe(name, params, **options)
    return _fits[key]


def label(value):
    """Words of an identifier."""
    if not hasattr(value, "others"):
        return str(value)
    others = [f"{k}={v}" for k, v in value.others.items() if np.size(v) < 9]
    return "-".join([value.name, *others]).split("\n")[0]


@cache
def is_there_torch():
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_table_names_every_parameter(name):
    """A new parameter needs an entry: two settings under which fits differ."""
    expected = set(parameters_of(name))
    if not is_there_torch():
        expected = {each for each in expected if not each.startswith("module")}
    # A parameter of an object that one estimator takes need not act in another.
    never = {case.name for n, case in ALL_INACTIVE if n == name and "__" in case.name}
    assert set(ACTS[name]) | never == expected


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_table_has_every_rule(name):
    """A new rule needs a case that shows that the parameter cannot act."""
    declared = parameters_of(name)
    rules = ESTIMATORS[name]._inactive
    ruled = {n for names, _, _ in rules for n in names if n in declared}
    if not is_there_torch():
        ruled -= {"hidden_layer_sizes", "alpha", "solver", "learning_rate_init"}
        ruled = {each for each in ruled if not each.startswith("module")}
    shown = {case.name for n, case in ALL_INACTIVE if n == name}
    assert shown == ruled


@pytest.mark.parametrize(("name", "parameter"), SOME_ACTS, ids=label)
def test_parameter_acts(name, parameter):
    entry = ACTS[name][parameter]
    how = {"n_fits": entry.n_fits, "method": entry.method}
    after = {parameter: entry.value}
    if entry.sees == "error":
        own = parameter.rpartition("__")[2]
        with pytest.raises(ValueError, match=f"^{own}={entry.value!r} is "):
            observe(name, {**entry.others, **after}, **how)
        return
    before = fitted(name, entry.others, **how)
    different = changed(before, fitted(name, {**entry.others, **after}, **how))
    assert entry.sees in different
    if parameter == "verbose":
        assert different == {"output"}


@pytest.mark.parametrize(("name", "case"), SOME_INACTIVE, ids=label)
def test_parameter_that_cannot_act(name, case, monkeypatch):
    with_it = {**case.others, case.name: case.value}
    reasons = ".* and ".join(f"{reason}=" for reason in case.reasons)
    default = parameters_of(name)[case.name]
    message = (
        rf"^{case.name}={re.escape(repr(case.value))} has no effect with {reasons}"
        rf"[\s\S]*; .+, or leave {case.name} at its default, "
        rf"{re.escape(repr(default))}$"
    )
    if case.outcome == "raises":
        with pytest.raises(ValueError, match=message):
            observe(name, with_it)
    else:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = observe(name, with_it)
        assert [w for w in caught if re.search(message, str(w.message))]
    monkeypatch.setattr(dask_ma.base, "check_inactive", lambda *args, **how: None)
    if case.outcome == "raises":
        found = observe(name, with_it)
    # It is the truth: the fit is the same with and without it.
    assert changed(fitted(name, case.others), found) == set()


@pytest.mark.parametrize(("name", "case"), SOME_EXEMPT, ids=label)
def test_what_is_exempt(name, case):
    """Any warning but that of convergence is an error."""
    with_it = {**case.others, case.name: case.value}
    assert changed(fitted(name, case.others), observe(name, with_it)) == set()


@pytest.fixture
def binary():
    return rows_of("MASGDClassifier")


def test_only_fits_look(binary):
    model = MASGDClassifier(refine=None, refine_tol=1e-6, max_iter=2, tol=None)
    model = clone(model).set_params(refine_tol=1e-7)
    for fit in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match="^refine_tol=1e-07 has no effect"):
            fit(*binary)
        assert not hasattr(model, "n_features_in_")
    model.set_params(refine_tol=1e-3).fit(*binary)


def test_a_search_makes_all_fits(binary):
    """As over the parameters of scikit-learn's estimator."""
    grid = {"penalty": ["l2", "elasticnet"], "l1_ratio": [0.1, 0.9]}
    model = MASGDClassifier(max_iter=2, tol=None, random_state=0)
    search = GridSearchCV(model, grid, cv=2, error_score="raise")
    with pytest.warns(UserWarning, match="^l1_ratio=0.[19] has no effect with penalty"):
        scores = search.fit(*binary).cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()


def test_a_warning_points_at_the_line_of_the_user(binary):
    model = MASGDClassifier(l1_ratio=0.5, max_iter=2, tol=None)
    for fit in (model.fit, model.partial_fit):
        classes = {"classes": [0, 1]} if fit == model.partial_fit else {}
        with pytest.warns(UserWarning, match="l1_ratio") as caught:
            fit(*binary, **classes)
        assert [w.filename for w in caught] == [__file__]


def test_topics_of_partial_fit_are_online():
    """Whatever `learning_method` is, so these act there."""
    (X,) = rows_of("MALDA")
    params = {"learning_method": "batch", "total_samples": 24, "random_state": 0}
    plain = MALDA(3, **params).partial_fit(X)
    other = MALDA(3, learning_decay=0.9, **params).partial_fit(X)
    assert (plain.components_ != other.components_).any()
    with pytest.raises(ValueError, match="^local_batch_size=4 has no effect with para"):
        MALDA(3, local_batch_size=4, paradigm="gradient", **params).partial_fit(X)
