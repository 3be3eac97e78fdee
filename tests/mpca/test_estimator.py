"""A fit's record and its end, copies, predictions, callbacks; of both estimators."""

import pickle
import warnings

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.neural_network import MLPClassifier

from dask_ma import MPCAClassifier, MPCARegressor
from dask_ma.mpca import strategies
from dask_ma.mpca.networks._mlp import pack
from dask_ma.mpca.training import _agent

QUICK = {"hidden_layer_sizes": (8,), "batch_size": 16, "tol": None, "random_state": 0}
QUICK |= {"max_iter": 3, "learning_rate_init": 0.01}
KEYS = {"round", "time", "epoch", "loss", "n_exchanges", "tau", "n_samples", "n_steps"}
KEYS |= {"bytes_sent", "messages_sent", "bytes_shared"}
KEYS |= {"seconds_computing", "seconds_exchanging", "seconds_waiting", "restarts"}
ESTIMATORS = pytest.mark.parametrize("cls", [MPCAClassifier, MPCARegressor])


def fit(data, weight=None, **params):
    model = MPCAClassifier(**{**QUICK, **params})
    return model.fit(*data, sample_weight=weight)


# What has been done -------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_history(multi, strategy, n_ranks):
    model = fit(multi, strategy=strategy, n_ranks=n_ranks, max_iter=6)
    history = model.history_
    for number, record in enumerate(history, start=1):
        assert set(record) == KEYS
        assert record["round"] == number
        assert 0 < record["loss"] < 3
        assert 0 < record["seconds_computing"] <= record["time"]
        assert 0 <= record["seconds_waiting"] <= record["time"]
        assert record["bytes_sent"] == record["messages_sent"] == 0  # one process
    busy = [r["seconds_computing"] + r["seconds_exchanging"] for r in history]
    assert sum(r["seconds_exchanging"] for r in history) > 0
    assert sum(busy) <= history[-1]["time"]
    assert (history[0]["bytes_shared"] > 0) == (n_ranks > 1)
    times = [record["time"] for record in history]
    assert times == sorted(times) and times[0] > 0
    totals = np.cumsum([record["n_samples"] for record in history])
    np.testing.assert_allclose([r["epoch"] for r in history], totals / 120)
    assert 6 <= history[-1]["epoch"] < 10
    n_steps = sum(record["n_steps"] for record in history)
    assert totals[-1] / 16 <= n_steps <= totals[-1] / 16 * 2
    assert model.n_iter_ == 6
    assert len(model.loss_curve_) <= 6
    assert model.loss_ == model.loss_curve_[-1]
    assert model.best_loss_ == min(model.loss_curve_)
    computing = model.timeline_[model.timeline_["kind"] == "compute"]
    assert set(computing["rank"]) == set(range(n_ranks))


def test_tau_and_exchanges(multi):
    """By the definition: steps between two exchanges of the same values."""
    synchronous = fit(multi, strategy=strategies.Synchronous(2), n_ranks=2)
    assert {record["tau"] for record in synchronous.history_} == {2.0}
    # The last batch of a pass over the 60 rows of a rank is a small one.
    assert sum(r["n_exchanges"] for r in synchronous.history_) == 3 * 4 / 2
    mpca = fit(multi, n_ranks=2, max_iter=20)
    n_steps = sum(r["n_steps"] for r in mpca.history_)
    steps = sum(r["tau"] * r["n_exchanges"] * 2 for r in mpca.history_)
    assert n_steps == pytest.approx(steps)


def test_the_loss_is_that_of_the_rows(multi):
    """With a batch of all rows: the loss before the step that an epoch makes."""
    X, y = multi
    params = {"batch_size": 120, "alpha": 0.5}
    models = [fit(multi, **params, max_iter=n) for n in (1, 2)]
    p = models[0].predict_proba(X)[np.arange(120), y]
    penalty = 0.5 / 2 * sum((w**2).sum() for w in models[0].coefs_) / 120
    assert models[1].loss_ == pytest.approx(penalty - np.log(p).mean())


# Its end ------------------------------------------------------------------------------


def test_it_ends_when_the_loss_settles(multi, strategy):
    params = {"tol": 0.05, "n_iter_no_change": 2, "max_iter": 300, "n_ranks": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = fit(multi, strategy=strategy, **params)
    assert 3 <= model.n_iter_ < 300


def test_a_fit_that_is_cut_off_warns(multi):
    for n_ranks in (1, 2):
        with pytest.warns(ConvergenceWarning, match="maximum of 2 epochs") as caught:
            fit(multi, tol=1e-9, max_iter=2, n_ranks=n_ranks)
        assert caught[0].filename == __file__


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_the_best_model_is_kept(multi, strategy, n_ranks, monkeypatch):
    """Steps that are too long ruin a model that has been good."""
    scored, score = [], _agent.Trainer._score

    def noted(self):
        if self._context.group.rank == 0:
            scored.append(self._strategy.joint().copy())
        score(self)

    monkeypatch.setattr(_agent.Trainer, "_score", noted)
    model = fit(
        multi, strategy=strategy, n_ranks=n_ranks, early_stopping=True,
        validation_fraction=0.4, learning_rate_init=0.3, max_iter=25,
    )  # fmt: skip
    scores = model.validation_scores_
    assert model.best_validation_score_ == max(scores)
    assert max(scores) <= 1
    best = pack(model.coefs_, model.intercepts_)
    np.testing.assert_array_equal(best, scored[int(np.argmax(scores))])
    records = [r["validation_score"] for r in model.history_ if "validation_score" in r]
    assert set(records) <= set(scores)
    n_samples = sum(record["n_samples"] for record in model.history_)
    # Ranks go on until they hear of the end, which on a busy machine takes its time.
    assert 25 * 72 <= n_samples < 60 * 72


def test_the_best_model_is_that_of_its_epoch(multi):
    params = {"early_stopping": True, "learning_rate_init": 0.3, "solver": "sgd"}
    params |= {"validation_fraction": 0.4, "batch_size": 8}
    model = fit(multi, **params, max_iter=25)
    best = int(np.argmax(model.validation_scores_)) + 1
    assert best < 25
    again = fit(multi, **params, max_iter=best)
    np.testing.assert_array_equal(model.coefs_[0], again.coefs_[0])


def test_early_stopping_ends_on_all_ranks(multi, strategy, monkeypatch):
    """By the rule, with the same update, and long before the last epoch."""
    ends, finish = {}, _agent.Trainer.finish

    def finished(self):
        ends[self._context.group.rank] = self._end
        return finish(self)

    monkeypatch.setattr(_agent.Trainer, "finish", finished)
    model = fit(
        multi, strategy=strategy, n_ranks=3, early_stopping=True, tol=1e-3,
        n_iter_no_change=2, max_iter=200,
    )  # fmt: skip
    assert set(ends) == {0, 1, 2}
    assert all(end.converged and end.stop for end in ends.values())
    assert {end.epoch for end in ends.values()} == {model.n_iter_}
    assert 3 <= len(model.validation_scores_) <= model.n_iter_ < 150
    # Of three scores in a row none was better than the best before by `tol`.
    scores = model.validation_scores_
    assert max(scores[-3:]) < max(scores[:-3], default=-np.inf) + 1e-3


def test_validation_rows_on_some_ranks_only(multi, cluster, strategy):
    """A rank of a single row trains on it, and one rank has none at all."""
    X, y = multi
    sizes = (1, 119)
    rows = da.from_array(X, (sizes, 6)), da.from_array(y, (sizes,))
    model = fit(rows, strategy=strategy, n_ranks=3, early_stopping=True, max_iter=3)
    assert 0 <= min(model.validation_scores_) <= model.best_validation_score_ <= 1


def fit_past_an_epoch(*args, **params):
    """A fit that does not end before its first epoch, as one rank ahead can make it."""
    for _ in range(10):
        try:
            return fit(*args, **params)
        except ValueError as error:
            assert "before an epoch was made" in str(error)
    raise AssertionError("each fit diverged before an epoch was made")


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_fit_that_diverges(multi, strategy, n_ranks):
    X, y = multi
    params = {"solver": "sgd", "activation": "identity", "max_iter": 50}
    params |= {"learning_rate_init": 1e6, "batch_size": 8}
    message = r"infinite or NaN on rank \d in its step \d+.*lower learning_rate_init"
    with pytest.warns(UserWarning, match=message) as caught:
        model = fit_past_an_epoch(
            (100 * X, y), strategy=strategy, n_ranks=n_ranks, **params
        )
    assert len(caught) == 1
    assert 0 < model.n_iter_ < 50
    assert all(np.isfinite(part).all() for part in (*model.coefs_, *model.intercepts_))
    assert np.isfinite(model.predict_proba(X)).all()
    # It says nothing of a maximum of epochs.
    with pytest.warns(UserWarning, match=message) as caught:
        params["tol"] = 1e-4
        fit_past_an_epoch((100 * X, y), strategy=strategy, n_ranks=n_ranks, **params)
    assert len(caught) == 1


def test_a_fit_that_diverges_in_its_first_epoch(regression):
    """There is no model to return; the one of the fit before stays."""
    X, y = regression
    params = {"solver": "sgd", "activation": "identity", "batch_size": 8}
    model = MPCARegressor((4,), max_iter=2, tol=None, random_state=0).fit(X, y)
    before = model.predict(X)
    model.set_params(**params, learning_rate_init=1e6)
    with pytest.raises(ValueError, match="before an epoch was made.*lower learning_ra"):
        model.fit(100 * X, y)
    model.set_params(activation="relu")
    np.testing.assert_array_equal(model.predict(X), before)


@pytest.mark.usefixtures("undealt")
def test_a_fit_that_diverges_keeps_the_one_before(multi, monkeypatch):
    """One row of one rank is far off."""
    # Such rows are refused before they can do harm.
    monkeypatch.setattr("dask_ma.data._shard.check_size", lambda *args: None)
    X, y = multi
    X = X.copy()
    model = MPCAClassifier(
        **QUICK, n_ranks=2, warm_start=True, solver="sgd", strategy="synchronous"
    )
    good = model.fit(X, y).score(X, y)
    X[119] = 1e200
    with pytest.raises(ValueError, match="rank 1 in its step"):
        model.fit(X, y)
    X[119] = 0
    assert model.score(X[:119], y[:119]) > good - 0.1


# Parameters and copies ----------------------------------------------------------------


def test_warm_start_is_that_of_scikit_learn(multi, check_same):
    params = {**QUICK, "warm_start": True, "solver": "sgd"}
    ours = MPCAClassifier(**params)
    theirs = MLPClassifier(**{**params, "tol": 0.0, "n_iter_no_change": 99})
    for _ in range(3):
        ours.fit(*multi)
        with pytest.warns(ConvergenceWarning):
            theirs.fit(*multi)
        check_same(ours, theirs, 1e-10)
    assert ours.n_iter_ == 3


def test_warm_start_on_ranks(multi, strategy):
    params = {"strategy": strategy, "n_ranks": 2, "warm_start": True, "max_iter": 25}
    model = MPCAClassifier(**{**QUICK, **params}).fit(*multi)
    warm = model.set_params(max_iter=1).fit(*multi).loss_curve_[0]
    model.set_params(warm_start=False)
    assert warm < 0.6 * model.fit(*multi).loss_curve_[0]


def test_warm_start_from_another_shape(multi):
    X, y = multi
    model = MPCAClassifier(**QUICK, warm_start=True).fit(X, y)
    before = model.coefs_
    reason = "another shape .* 92 values, expected 76 .* set warm_start=False"
    with pytest.raises(ValueError, match=reason):
        model.fit(X[:, :4], y)
    assert model.coefs_ is before
    assert model.n_features_in_ == 6
    model.hidden_layer_sizes = (9,)
    with pytest.raises(ValueError, match="to go on from has 92 values, expected 103"):
        model.partial_fit(X, y)


@pytest.mark.parametrize("data", ["binary", "multi"])
def test_twin(request, data, check_same):
    X, y = request.getfixturevalue(data)
    names = np.array(["d", "a", "c", "b"])[y]
    model = fit((X, names), n_ranks=2, learning_rate="cosine", class_weight="balanced")
    twin = model.to_sklearn()
    assert type(twin) is MLPClassifier
    for method in ("predict", "predict_proba", "predict_log_proba"):
        theirs, ours = (getattr(m, method)(X) for m in (twin, model))
        np.testing.assert_array_equal(theirs, ours)
    assert twin.n_iter_ == 3 and twin.loss_curve_ == model.loss_curve_
    before = model.coefs_[0].copy()
    twin.partial_fit(X, names)
    assert not np.array_equal(twin.coefs_[0], before)
    np.testing.assert_array_equal(model.coefs_[0], before)


@ESTIMATORS
def test_copies(multi, cls, check_same):
    params = {**QUICK, "n_ranks": 2, "strategy": "synchronous"}
    model = cls(**params).fit(*multi)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(multi[0]), model.predict(multi[0]))
    fresh = clone(model)
    assert not hasattr(fresh, "coefs_")
    check_same(fresh.fit(*multi), model)


# Predictions --------------------------------------------------------------------------


def test_predictions_of_a_collection_are_lazy(multi, cluster):
    X, y = multi
    model = fit((X.astype(np.float32), y))
    rows = da.from_array(X.astype(np.float32), chunks=(50, 6))
    unknown = rows[rows[:, 0] > -1e9]
    for method, width in [
        ("predict", ()), ("predict_proba", (4,)), ("predict_log_proba", (4,))
    ]:  # fmt: skip
        expected = getattr(model, method)(X.astype(np.float32))
        for part in (rows, unknown):
            lazy = getattr(model, method)(part)
            assert isinstance(lazy, da.Array)
            assert lazy.shape[1:] == width
            assert lazy.dtype == expected.dtype
            np.testing.assert_allclose(lazy.compute(), expected, rtol=1e-5)
        assert getattr(model, method)(rows).shape == (120, *width)
    score = model.score(X.astype(np.float32), y)
    assert model.score(rows, da.from_array(y, chunks=50)) == score
    assert model.score(unknown, y) == score


@pytest.mark.usefixtures("undealt")
def test_collections_are_as_arrays(multi, cluster, check_same):
    X, y = multi
    params = {"strategy": "synchronous", "n_ranks": 4}
    expected = fit(multi, **params)
    rows = da.from_array(X, chunks=(30, 6))
    known = rows, da.from_array(y, chunks=30)
    check_same(fit(known, **params), expected)
    kept = rows[:, 0] > -1e9
    check_same(fit((rows[kept], known[1][kept]), **params), expected)
    frame = pd.DataFrame(X, columns=list("abcdef"))
    model = fit((frame, y), **params)
    check_same(model, expected)
    assert model.feature_names_in_.tolist() == list("abcdef")
    np.testing.assert_array_equal(model.predict(frame), expected.predict(X))


@ESTIMATORS
def test_nothing_is_there_before_a_fit(multi, cls):
    model = cls()
    with pytest.raises(NotFittedError):
        model.predict(multi[0])
    with pytest.raises(NotFittedError):
        model.to_sklearn()
    for name in ("to_module", "state_dict"):
        assert not hasattr(model, name)


# Watching -----------------------------------------------------------------------------


def test_verbose_prints_the_epochs(multi, capsys):
    for n_ranks in (1, 2):
        fit(multi, verbose=2, n_ranks=n_ranks, strategy="local", max_iter=4)
        assert len(capsys.readouterr().out.strip().splitlines()) == 4
    fit(multi)
    assert not capsys.readouterr().out


class Recorder:
    """Notes the models of the epochs, and says stop in one of them."""

    def __init__(self, stop_at=None):
        self.models = []
        self._stop_at = stop_at

    def setup(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context, *, X=None, y=None, metadata=None):
        pass

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        if fitted_estimator is None:
            return False
        self.models.append(fitted_estimator)
        return len(self.models) == self._stop_at

    def teardown(self, estimator, context):
        pass


def followed(data, recorder, **params):
    pytest.importorskip(
        "sklearn.callback", reason="scikit-learn has callbacks from version 1.9 on"
    )
    model = MPCAClassifier(**{**QUICK, **params}).set_callbacks(recorder)
    return model.fit(*data)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_callbacks_get_the_models(multi, check_same, n_ranks):
    params = {"n_ranks": n_ranks, "strategy": "local"}
    recorder = Recorder()
    followed(multi, recorder, **params)
    assert len(recorder.models) == 3
    for number, seen in enumerate(recorder.models, start=1):
        check_same(seen, fit(multi, **params, max_iter=number))
        assert seen.n_iter_ == len(seen.loss_curve_) == number
        assert seen.history_[-1]["epoch"] >= number


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_callbacks_stop_a_fit(multi, strategy, n_ranks):
    """Without a word about a maximum of epochs."""
    recorder = Recorder(stop_at=2)
    model = followed(
        multi, recorder, strategy=strategy, n_ranks=n_ranks, max_iter=50, tol=1e-9,
    )  # fmt: skip
    assert len(recorder.models) == 2
    assert 2 <= model.n_iter_ < 50
    assert model.history_[-1]["round"] == len(model.history_)
