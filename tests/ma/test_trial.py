"""The default step size: found on a sample, the same on all ranks, smaller in time."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.preprocessing import StandardScaler

from dask_ma import MASGDClassifier, MASGDRegressor
from dask_ma.comm import Group
from dask_ma.ma.sgd import _trial
from dask_ma.ma.sgd._trial import Shrinking, lowest

ALPHA = 1e-3


def standardised(load):
    X, y = load(return_X_y=True)
    return StandardScaler().fit_transform(X), (y == y.max()).astype(int)


def objective(coef, intercept, X, y):
    margins = (2 * y - 1) * (X @ coef.ravel() + intercept)
    return np.logaddexp(0, -margins).mean() + ALPHA * (coef**2).sum() / 2


@pytest.mark.parametrize("exponent", [-9, -1, 0, 1, 6])
def test_search_ends_at_the_minimum(exponent):
    found = lowest(lambda eta: abs(np.log(eta) - exponent * np.log(4)), 1.0)
    assert found == pytest.approx(4.0**exponent)


def test_search_leaves_steps_that_diverge():
    found = lowest(lambda eta: np.inf if eta > 1e-4 else -(np.log(eta) ** 2) + 200, 1.0)
    assert found < 1e-4
    tried = []
    lowest(lambda eta: tried.append(eta) or np.inf, 1.0)
    assert len(tried) < 40  # an objective that is finite nowhere ends the search


def test_steps_shrink_when_the_objective_stands():
    shrinking = Shrinking()
    values = [1.0, 0.5, 0.4999, 0.4998, 0.4, 0.41, 0.42, 0.39]
    assert [shrinking.update(value, 2.0) for value in values] == [
        *(False, False, False, True),
        *(False, False, True, False),
    ]


def test_steps_shrink_at_once_when_the_model_is_worse_than_at_the_start():
    shrinking = Shrinking()
    assert shrinking.update(3.0, 2.0)
    assert not shrinking.update(1.0, 2.0)


def test_ranks_meet_seldom_in_a_short_fit(binary, monkeypatch):
    """To agree, for the size of the rows and trials, to merge and evaluate, to end."""
    X, y = binary
    counts = {}
    next_tag = Group._next_tag

    def count(group):
        counts[group.size] = counts.get(group.size, 0) + (group.rank == 0)
        return next_tag(group)

    etas = []
    original = _trial._try
    monkeypatch.setattr(Group, "_next_tag", count)
    monkeypatch.setattr(
        _trial, "_try", lambda *args: etas.append(args[-1]) or original(*args)
    )
    model = MASGDClassifier(max_iter=1, tol=None, n_ranks=2, random_state=0)
    model.fit(X, y)
    n_trials = len(set(etas))  # both ranks try each
    assert counts[2] <= 6 + max(0, n_trials - 3)
    seen = model.history_[0]["n_samples"] / 2
    assert model.t_ == pytest.approx(1 + seen)


def test_many_processes_try_four_sizes_at_once(binary, monkeypatch):
    """Of the steps of few, whose trials take as long as a message, in another order."""
    X, y = binary
    tried = []
    original = _trial._try
    monkeypatch.setattr(
        _trial, "_try", lambda *args: tried.append(args[-1]) or original(*args)
    )
    models = []
    for few in (4, 0):
        monkeypatch.setattr(_trial, "_FEW", few)
        tried.clear()
        model = MASGDClassifier(max_iter=1, tol=None, n_ranks=1, random_state=0)
        models.append(model.fit(100 * X, y))
        first = tried[0]
        at_once = [first, 4 * first, first / 4, 16 * first][: 3 if few else 4]
        assert tried[: len(at_once)] == at_once
        assert len(set(tried)) == len(tried)
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 4])
@pytest.mark.parametrize("load", [load_breast_cancer, load_iris, load_wine])
def test_standardised_rows_converge(load, n_ranks):
    """scikit-learn's schedule is up to 300 % above the optimum of these."""
    X, y = standardised(load)
    model = MASGDClassifier(
        loss="log_loss", alpha=ALPHA, refine=None, n_ranks=n_ranks, random_state=0
    ).fit(X, y)
    exact = LogisticRegression(C=1 / (ALPHA * len(y)), tol=1e-8, max_iter=5000)
    exact.fit(X, y)
    lowest_value = objective(exact.coef_, exact.intercept_, X, y)
    assert objective(model.coef_, model.intercept_, X, y) < 1.06 * lowest_value
    assert model.n_iter_ < 100


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_scale_of_the_rows_is_found(regression, scale):
    """Targets that are linear are met whatever unit the features are in."""
    X, y = regression
    model = MASGDRegressor(alpha=0, n_ranks=2, random_state=0, fit_intercept=False)
    model.set_params(refine=None).fit(scale * X, y)
    exact, *_ = np.linalg.lstsq(scale * X, y, rcond=None)
    residual = np.mean((y - scale * X @ exact) ** 2)
    assert np.mean((y - model.predict(scale * X)) ** 2) < 1.02 * residual + 1e-3


def test_step_size_goes_on_in_partial_fit(binary):
    X, y = binary
    model = MASGDClassifier(random_state=0, n_ranks=2)
    sizes = [model.partial_fit(X, y, classes=[0, 1]).eta_]
    # A trial for each chunk would find the steps of a first pass each time.
    sizes += [model.partial_fit(X, y).eta_ for _ in range(3)]
    assert all(a >= b for a, b in zip(sizes[:-1], sizes[1:], strict=True))


def test_same_seed_same_steps(binary):
    X, y = binary
    fits = [MASGDClassifier(random_state=3, n_ranks=3).fit(X, y) for _ in range(2)]
    assert fits[0].eta_ == fits[1].eta_
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)


def test_scikit_learn_is_told_of_a_step_size_that_it_knows(binary):
    X, y = binary
    model = MASGDClassifier(random_state=0, shuffle="ranks").fit(X, y)
    twin = model.to_sklearn()
    assert isinstance(twin, SGDClassifier)
    assert (twin.learning_rate, twin.eta0) == ("adaptive", model.eta_)
    twin.partial_fit(X, y)  # its parameters are its own


def test_gradients_keep_the_schedule_of_scikit_learn(binary):
    X, y = binary
    params = {"paradigm": "gradient", "max_iter": 5, "tol": None}
    default = MASGDClassifier(**params).fit(X, y)
    optimal = MASGDClassifier(learning_rate="optimal", **params).fit(X, y)
    np.testing.assert_array_equal(default.coef_, optimal.coef_)
