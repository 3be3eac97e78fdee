"""Fits that go on from a checkpoint."""

import warnings

import dask
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from dask_ma import MPCAClassifier, MPCARegressor
from dask_ma.mpca import strategies
from dask_ma.mpca.training import _agent

QUICK = {"hidden_layer_sizes": (8,), "batch_size": 16, "tol": None, "random_state": 0}
QUICK |= {"max_iter": 6, "learning_rate_init": 0.01}


def fit(data, **params):
    return MPCAClassifier(**{**QUICK, **params}).fit(*data)


@pytest.fixture
def saved(tmp_path):
    """Fits write checkpoints, and go on from them."""
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        yield tmp_path


@pytest.fixture
def steps(monkeypatch):
    """Ranks of the steps that are made."""
    seen = []
    run_step = _agent.Trainer.run_step

    def counted(self):
        seen.append(self._context.group.rank)
        run_step(self)

    monkeypatch.setattr(_agent.Trainer, "run_step", counted)
    return seen


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"solver": "sgd", "learning_rate": "invscaling"},
        {"shuffle": False, "learning_rate": "constant"},
        {"early_stopping": True},
        {"n_ranks": 3, "strategy": strategies.Synchronous(1), "batch_size": 40},
        {"n_ranks": 3, "strategy": "gradients", "batch_size": 10},
    ],
    ids=str,
)
def test_a_resumed_fit_is_an_uninterrupted_one(multi, saved, check_same, params):
    with dask.config.set({"dask-ma.checkpoint.path": None}):
        whole = fit(multi, **params)
    first = fit(multi, **params, max_iter=2)
    resumed = fit(multi, **params)
    check_same(resumed, whole)
    np.testing.assert_allclose(resumed.loss_curve_, whole.loss_curve_, rtol=1e-12)
    assert resumed.validation_scores_ == whole.validation_scores_
    assert resumed.history_[: len(first.history_)] == first.history_
    rounds = [record["round"] for record in resumed.history_]
    assert rounds == [*range(1, len(rounds) + 1)]
    times = [record["time"] for record in resumed.history_]
    assert times == sorted(times)


@pytest.mark.parametrize("shift", [0, 1000])
def test_a_regressor_goes_on(regression, saved, check_same, shift):
    X, y = regression
    regression = X + shift, y
    models = [MPCARegressor(**QUICK | {"max_iter": n}) for n in (3, 6)]
    for model in models:
        model.fit(*regression)
    with dask.config.set({"dask-ma.checkpoint.path": None}):
        check_same(models[1], MPCARegressor(**QUICK).fit(*regression))


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [(3, 3), (3, 2), (2, 1), (1, 3)], ids=str)
def test_it_goes_on_with_other_ranks(multi, saved, steps, strategy, n_ranks):
    before, after = n_ranks
    first = fit(multi, strategy=strategy, n_ranks=before, max_iter=4)
    steps.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = fit(multi, strategy=strategy, n_ranks=after, max_iter=6)
    text = " ".join(str(warning.message) for warning in caught)
    assert (f"written by {before} ranks and goes on with" in text) == (before != after)
    assert model.n_iter_ == 6
    assert set(steps) == set(range(after))
    assert len(steps) < 6 * 120 / 16  # the first epochs are not made again
    assert model.loss_curve_[: len(first.loss_curve_)] == first.loss_curve_
    assert model.loss_ < first.loss_curve_[0]
    assert model.history_[: len(first.history_)] == first.history_


@pytest.mark.each
@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_finished_fit_that_is_resumed_is_the_same(
    multi, saved, steps, check_same, strategy, n_ranks, early_stopping
):
    """Nothing is trained, and no model is projected or scored anew."""
    params = {"strategy": strategy, "n_ranks": n_ranks}
    params |= {"early_stopping": early_stopping, "max_iter": 6}
    first = fit(multi, **params)
    assert steps
    steps.clear()
    again = fit(multi, **params)
    assert not steps
    check_same(again, first)
    assert again.n_iter_ == 6
    assert again.loss_curve_ == first.loss_curve_
    assert again.validation_scores_ == first.validation_scores_


def test_the_joint_model_goes_on_along_its_way(multi, saved, monkeypatch):
    """A fit goes on from the joint model and its trajectory, not from a projection."""
    begun, ended = [], []
    make, finish = _agent.Trainer._make_strategy, _agent.Trainer.finish

    def note(strategy, where):
        if strategy._group.rank == 0:
            where.append((strategy.joint().copy(), strategy.trajectory().copy()))

    def made(self, *args):
        strategy = make(self, *args)
        note(strategy, begun)
        np.testing.assert_array_equal(self._network._values, strategy.joint())
        return strategy

    def finished(self):
        note(self._strategy, ended)
        return finish(self)

    monkeypatch.setattr(_agent.Trainer, "_make_strategy", made)
    monkeypatch.setattr(_agent.Trainer, "finish", finished)
    for max_iter in (20, 22):
        fit(multi, strategy="mpca", n_ranks=3, max_iter=max_iter)
    for before, after in zip(ended[0], begun[1], strict=True):
        np.testing.assert_array_equal(before, after)
    assert np.abs(begun[1][1]).max() > 1e-6


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_after_convergence_nothing_is_trained(multi, saved, steps, n_ranks):
    params = {"tol": 0.05, "n_iter_no_change": 2, "max_iter": 300}
    params |= {"strategy": "local", "n_ranks": n_ranks}
    first = fit(multi, **params)
    assert 2 < first.n_iter_ < 300
    steps.clear()
    again = fit(multi, **params)
    assert not steps
    assert again.n_iter_ == first.n_iter_
    np.testing.assert_array_equal(again.coefs_[0], first.coefs_[0])


def test_the_stop_rule_goes_on(multi, saved, check_same):
    params = {"tol": 0.02, "n_iter_no_change": 3, "max_iter": 300}
    with dask.config.set({"dask-ma.checkpoint.path": None}):
        whole = fit(multi, **params)
    with pytest.warns(ConvergenceWarning):
        fit(multi, **params | {"max_iter": whole.n_iter_ - 1})
    resumed = fit(multi, **params)
    assert resumed.n_iter_ == whole.n_iter_
    check_same(resumed, whole)


def test_the_best_model_goes_on(multi, saved, check_same):
    """The best epoch lies before the checkpoint."""
    params = {"early_stopping": True, "learning_rate_init": 0.3, "solver": "sgd"}
    params |= {"validation_fraction": 0.4, "batch_size": 8, "max_iter": 25}
    with dask.config.set({"dask-ma.checkpoint.path": None}):
        whole = fit(multi, **params)
    best = int(np.argmax(whole.validation_scores_)) + 1
    assert best < 20
    fit(multi, **params | {"max_iter": 20})
    resumed = fit(multi, **params)
    assert resumed.best_validation_score_ == whole.best_validation_score_
    check_same(resumed, whole)


def test_other_data_and_parameters(multi, tmp_path, check_same):
    X, y = multi
    others = [((X[:, :4], y), {}), (multi, {"alpha": 0.1})]
    plain = [fit(data, **params) for data, params in others]
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        fit(multi, max_iter=1)
        for (data, params), expected in zip(others, plain, strict=True):
            check_same(fit(data, **params), expected)


def test_what_is_sent_is_not_added_to(multi, monkeypatch):
    """A server may be sending a record while its rank puts it into the history."""
    sent, act_on = [], _agent.Trainer._act_on

    def noted(self, update):
        if update.record is not None:
            sent.append((update.record, set(update.record)))
        act_on(self, update)

    monkeypatch.setattr(_agent.Trainer, "_act_on", noted)
    model = fit(multi, n_ranks=2, strategy="synchronous", max_iter=2)
    assert sent and all(set(record) == names for record, names in sent)
    assert all("restarts" in record for record in model.history_)
