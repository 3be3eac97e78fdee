"""Strategies as parameters: names and objects, copies, searches, identities."""

import os
import pickle

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from dask_ma import MPCAClassifier, MPCARegressor
from dask_ma.engine import as_text
from dask_ma.mpca import strategies
from dask_ma.mpca.strategies._parameters import STRATEGY

QUICK = {"hidden_layer_sizes": (4,), "max_iter": 2, "tol": None, "random_state": 0}
QUICK |= {"batch_size": 16}
CHANGED = [
    strategies.MPCA(n_phases=2, penalty=0.1, penalty_form="loss", weighting="uniform"),
    strategies.MPCA(extrapolation=1.0, smoothing=0.5, blending=0.7),
    strategies.Synchronous(period=3),
    strategies.ElasticAveraging(period=3, elasticity=0.2),
    strategies.Gradients(),
    strategies.ParameterServer(),
    strategies.Local(),
]
ESTIMATORS = pytest.mark.parametrize("cls", [MPCAClassifier, MPCARegressor])


def identity_of(model):
    """What tells a fit from others, as text."""
    return model._identity(None, seed=0).parameters


def test_every_object_has_a_name():
    names = STRATEGY.options - {"auto"}
    kinds = {type(STRATEGY.as_object(name)).__name__ for name in names}
    assert kinds == set(strategies.__all__)
    assert STRATEGY.as_object("auto") is None


@pytest.mark.parametrize("chosen", CHANGED, ids=str)
def test_copies_are_alike(chosen):
    params = chosen.get_params()
    for copy in (clone(chosen), pickle.loads(pickle.dumps(chosen))):
        assert copy is not chosen
        assert type(copy) is type(chosen)
        assert copy.get_params() == params
        assert repr(copy) == repr(chosen) == str(eval(repr(chosen), vars(strategies)))
    assert type(chosen)().set_params(**params).get_params() == params
    with pytest.raises(ValueError, match="Invalid parameter 'n_phase' for estimator"):
        clone(chosen).set_params(n_phase=2)


@ESTIMATORS
def test_parameters_of_a_strategy_are_the_estimators_too(cls):
    model = cls(strategy=strategies.MPCA(n_phases=2))
    params = model.get_params()
    assert params["strategy__n_phases"] == 2
    assert params["strategy__penalty"] == "auto"
    assert "strategy__n_phases" not in model.get_params(deep=False)
    copy = clone(model).set_params(strategy__n_phases=3, alpha=0.5)
    assert (copy.strategy.n_phases, copy.alpha) == (3, 0.5)
    assert model.strategy.n_phases == 2
    assert repr(model) == f"{cls.__name__}(strategy=MPCA(n_phases=2))"


@ESTIMATORS
def test_a_name_becomes_an_object_where_its_parameters_are_set(cls):
    with pytest.raises(ValueError, match="strategy='auto' has no parameters"):
        cls().set_params(strategy__extrapolation=1.0)
    model = cls(strategy="mpca").set_params(strategy__extrapolation=1.0)
    assert isinstance(model.strategy, strategies.MPCA)
    assert model.strategy.extrapolation == 1.0
    model.set_params(strategy="easgd", strategy__elasticity=0.3)
    assert isinstance(model.strategy, strategies.ElasticAveraging)
    assert model.strategy.elasticity == 0.3
    assert model.set_params(strategy="local").strategy == "local"
    with pytest.raises(ValueError, match="Invalid parameter 'period' for estimator Lo"):
        model.set_params(strategy__period=3)
    with pytest.raises(
        ValueError, match="strategy must be a str among {'auto', 'mpca', 'gr"
    ):
        model.set_params(strategy="gossip", strategy__period=3)


@pytest.mark.parametrize("name", ["synchronous", "local"])
def test_a_name_is_the_object_with_its_defaults(multi, check_same, name):
    by_name = MPCAClassifier(**QUICK, n_ranks=2, strategy=name).fit(*multi)
    by_object = MPCAClassifier(
        **QUICK, n_ranks=2, strategy=STRATEGY.as_object(name)
    ).fit(*multi)
    check_same(by_name, by_object)


# Searches -----------------------------------------------------------------------------


def search(data, grid, **params):
    model = MPCAClassifier(**QUICK, n_ranks=2, **params)
    found = GridSearchCV(model, grid, cv=2, error_score="raise").fit(*data)
    assert np.isfinite(found.cv_results_["mean_test_score"]).all()
    return found


@pytest.mark.parametrize("strategy", ["mpca", strategies.MPCA(n_phases=2)], ids=str)
def test_a_search_over_a_parameter_of_a_strategy(multi, strategy):
    grid = {"strategy__extrapolation": [0.0, 1.0, 2.5]}
    found = search(multi, grid, strategy=strategy)
    tried = found.cv_results_["param_strategy__extrapolation"].tolist()
    assert tried == grid["strategy__extrapolation"]
    best = found.best_estimator_.strategy
    assert best.extrapolation == found.best_params_["strategy__extrapolation"]
    assert best.n_phases == STRATEGY.as_object(strategy).n_phases


def test_a_search_over_strategies(multi):
    grid = [
        {"strategy": ["local", strategies.Synchronous(2), strategies.MPCA()]},
        {"strategy": ["easgd"], "strategy__period": [1, 2]},
    ]
    found = search(multi, grid)
    tried = found.cv_results_["params"]
    assert [str(params["strategy"]) for params in tried[:3]] == [
        "local",
        "Synchronous(period=2)",
        "MPCA()",
    ]
    assert [params.get("strategy__period") for params in tried[3:]] == [1, 2]


def test_a_search_scores_the_parameters_that_it_names(multi):
    """The scores of a strategy that does not depend on the clock."""
    X, y = multi
    half = [(np.arange(0, 120, 2), np.arange(1, 120, 2))]
    model = MPCAClassifier(**QUICK, n_ranks=2, strategy="synchronous")
    grid = {"strategy__period": [1, 2, None]}
    found = GridSearchCV(model, grid, cv=half, refit=False).fit(X, y).cv_results_
    for period, score in zip(
        grid["strategy__period"], found["split0_test_score"], strict=True
    ):
        model.set_params(strategy=strategies.Synchronous(period))
        assert score == model.fit(X[::2], y[::2]).score(X[1::2], y[1::2])


# Identities ---------------------------------------------------------------------------


@ESTIMATORS
def test_equal_strategies_have_equal_identities(cls):
    texts = [str(identity_of(cls(strategy=each))) for each in CHANGED]
    assert len(set(texts)) == len(CHANGED)
    for each, text in zip(CHANGED, texts, strict=True):
        assert str(identity_of(cls(strategy=clone(each)))) == text
        with sklearn.config_context(print_changed_only=False):
            assert str(identity_of(cls(strategy=clone(each)))) == text


def test_the_text_of_a_strategy_is_that_of_other_processes(process_client):
    chosen = strategies.MPCA(penalty=0.1)
    found = process_client.submit(
        lambda: (os.getpid(), as_text(strategies.MPCA(penalty=0.1))), pure=False
    )
    process, text = found.result(timeout=60)
    assert process != os.getpid()
    assert text == as_text(chosen)
    assert "0.1" in as_text(chosen)
