"""Refinements that are interrupted, ended from outside, or asked for again."""

import dask
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler

from dask_ma import MASGDClassifier, MASGDRegressor

PARAMS = {"alpha": 1e-3, "random_state": 0, "n_ranks": 2, "refine_tol": 1e-6}


@pytest.fixture
def scaled(multi):
    X, y = multi
    return StandardScaler().fit_transform(X), y


def saving(path):
    return dask.config.set({"dask-ma.checkpoint.path": str(path)})


def n_refined(model):
    return sum(record.get("refined", False) for record in model.history_)


@pytest.mark.each
@pytest.mark.parametrize("method", ["auto", "lbfgs"])
@pytest.mark.parametrize("params", [{}, {"average": True}], ids=str)
def test_an_interrupted_one_goes_on(scaled, tmp_path, interrupted, method, params):
    # After 3 rounds enough is left to refine that it can be interrupted on its way.
    params = {**PARAMS, "loss": "log_loss", "refine": method, "max_iter": 3, **params}
    whole = MASGDClassifier(**params).fit(*scaled)
    n_rounds = whole.n_iter_ - n_refined(whole)
    assert n_refined(whole) > 3
    with saving(tmp_path):
        with interrupted(n_rounds + 3):
            MASGDClassifier(**params).fit(*scaled)
        resumed = MASGDClassifier(**params).fit(*scaled)
    # Those before the interruption are not made again.
    for ours, theirs in zip(
        resumed.history_[: n_rounds + 3], whole.history_, strict=False
    ):
        assert ours["objective"] == theirs["objective"]
    rounds = [record["round"] for record in resumed.history_]
    assert rounds == list(range(1, resumed.n_iter_ + 1))
    values = [r["objective"] for r in resumed.history_[n_rounds:]]
    assert values == sorted(values, reverse=True)
    best = whole.history_[-1]["objective"]
    assert values[-1] == pytest.approx(best, rel=2e-6)


def test_between_the_rounds_and_the_first_of_it(scaled, tmp_path, interrupted):
    params = {**PARAMS, "loss": "log_loss"}
    whole = MASGDClassifier(**params).fit(*scaled)
    with saving(tmp_path):
        with interrupted(whole.n_iter_ - n_refined(whole)):
            MASGDClassifier(**params).fit(*scaled)
        resumed = MASGDClassifier(**params).fit(*scaled)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)
    assert resumed.n_iter_ == whole.n_iter_


def test_one_that_is_done_is_not_done_again(scaled, tmp_path):
    with saving(tmp_path):
        first = MASGDClassifier(**PARAMS).fit(*scaled)
        again = MASGDClassifier(**PARAMS).fit(*scaled)
    assert n_refined(first) > 0
    assert again.history_ == first.history_
    np.testing.assert_array_equal(again.coef_, first.coef_)


def test_no_rounds_left_ends_at_once(scaled, tmp_path):
    params = {**PARAMS, "refine_tol": 0, "refine_max_iter": 3, "loss": "log_loss"}
    with saving(tmp_path):
        for _ in range(2):
            with pytest.warns(ConvergenceWarning, match="raise refine_max_iter"):
                model = MASGDClassifier(**params).fit(*scaled)
            assert n_refined(model) == 3


@pytest.mark.parametrize("loss", ["squared_hinge", "hinge", "log_loss"])
@pytest.mark.parametrize("refine", ["auto", "lbfgs"])
def test_sgd_that_only_does_harm_is_ended(binary, objective, loss, refine):
    """Columns of scales from 0.01 to 1000; the first round is worse than zero."""
    X, y = binary
    X = X * np.logspace(-2, 3, X.shape[1])
    params = {"loss": loss, "random_state": 0}
    model = MASGDClassifier(
        **params, learning_rate="optimal", refine=refine, n_ranks=1
    ).fit(X, y)
    direct = MASGDClassifier(**params, refine="newton", max_iter=0).fit(X, y)
    assert model.n_iter_ - n_refined(model) < 100
    found = objective(model, X, y)
    assert found <= 1.01 * objective(direct, X, y) < model.history_[0]["objective"]


def test_what_auto_leaves_alone(scaled, regression):
    # Rounds of all of them end soon, by themselves.
    soon = {"random_state": 0, "n_ranks": 2, "tol": 0.1, "n_iter_no_change": 1}
    for params in (
        {"tol": None, "max_iter": 3, "n_iter_no_change": "auto"},
        {"early_stopping": True},
        {"learning_rate": "pa1", "eta0": 0.1},
        {"paradigm": "gradient", "learning_rate": "constant", "eta0": 0.1},
        {"loss": "perceptron"},
        {"refine": None},
    ):
        model = MASGDClassifier(**{**soon, **params}).fit(*scaled)
        assert n_refined(model) == 0, params
    assert n_refined(MASGDClassifier(**soon).fit(*scaled)) > 0
    regressor = MASGDRegressor(random_state=0).fit(*regression)
    assert n_refined(regressor) > 0
    two = np.unique(scaled[1])[:2]
    rows = np.isin(scaled[1], two)
    X, y = scaled[0][rows], scaled[1][rows]
    part = MASGDClassifier(random_state=0, n_ranks=2).partial_fit(X, y, classes=two)
    assert n_refined(part) == 0


class Recorder:
    """Notes the objectives of the models it is given; ends the fit with one of them."""

    def __init__(self, data, objective, stop_at):
        self.values = []
        self._data, self._objective, self._stop_at = data, objective, stop_at

    def setup(self, estimator, context):
        pass

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context, *, X=None, y=None, metadata=None):
        pass

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        if fitted_estimator is None:
            return False
        self.values.append(self._objective(fitted_estimator, *self._data))
        return len(self.values) == self._stop_at


def test_callbacks_follow_it_and_may_end_it(scaled, objective, tmp_path):
    params = {**PARAMS, "loss": "log_loss"}
    whole = MASGDClassifier(**params).fit(*scaled)
    stop_at = whole.n_iter_ - 2
    recorder = Recorder(scaled, objective, stop_at)
    with saving(tmp_path):
        model = MASGDClassifier(**params).set_callbacks(recorder).fit(*scaled)
        follower = Recorder(scaled, objective, None)
        again = MASGDClassifier(**params).set_callbacks(follower).fit(*scaled)
    assert model.n_iter_ == len(recorder.values) == stop_at
    found = [record["objective"] for record in model.history_]
    np.testing.assert_allclose(recorder.values, found, rtol=1e-9)
    # What somebody has ended is not gone on with.
    assert again.history_ == model.history_
    assert not follower.values
