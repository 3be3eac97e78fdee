"""scikit-learn's callbacks and lines of text, in the client process."""

import os
import threading

import numpy as np
import pytest

from dask_ma import MALDA, ButterflySGDClassifier, MASGDClassifier, MASGDRegressor
from dask_ma._callbacks import _RoundCallbacks

callback = pytest.importorskip(
    "sklearn.callback", reason="scikit-learn has callbacks from version 1.9 on"
)

PARAMS = {"max_iter": 6, "tol": None, "random_state": 0, "n_ranks": 2}


class Recorder:
    """Notes all calls; says stop in one of the rounds, or raises there."""

    def __init__(self, stop_at=None, raise_at=None):
        self.calls = []
        self.rounds = []
        self._stop_at = stop_at
        self._raise_at = raise_at

    def setup(self, estimator, context):
        self.calls.append("setup")

    def on_fit_task_begin(self, estimator, context, *, X=None, y=None, metadata=None):
        self.calls.append(f"begin {context.task_name}")
        if context.task_name == "fit":
            self.max_rounds = context.max_subtasks
        self.data = X, y, metadata

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        self.calls.append(f"end {context.task_name}")
        if fitted_estimator is None:
            return False
        assert fitted_estimator is not estimator
        where = os.getpid(), threading.current_thread()
        self.rounds.append((fitted_estimator, where))
        if len(self.rounds) == self._raise_at:
            raise RuntimeError("the callback has failed")
        return len(self.rounds) == self._stop_at

    def teardown(self, estimator, context):
        self.calls.append("teardown")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 5))
    return X, (X[:, 0] > 0).astype(int)


@pytest.fixture(params=["here", "inproc", "process"])
def place(request):
    """No client, in-process workers, worker processes."""
    if request.param == "here":
        yield None
        return
    client = request.getfixturevalue(f"{request.param}_client")
    with client.as_current():
        yield client


@pytest.mark.parametrize("cls", [MASGDClassifier, MASGDRegressor])
def test_hooks_are_called_in_order(cls, data):
    recorder = Recorder()
    cls(**{**PARAMS, "max_iter": 2}).set_callbacks(recorder).fit(*data)
    rounds = ["begin round", "end round"] * 2
    expected = ["setup", "begin fit", *rounds, "end fit", "teardown"]
    assert recorder.calls == expected


def test_each_round_has_its_model(place, data):
    """The model in the hook is that of a fit which ends there."""
    X, y = data
    recorder = Recorder()
    model = MASGDClassifier(**PARAMS).set_callbacks(recorder).fit(X, y)
    assert len(recorder.rounds) == 6
    for n_rounds, (fitted, where) in enumerate(recorder.rounds, start=1):
        assert where == (os.getpid(), threading.current_thread())
        assert fitted.n_iter_ == len(fitted.history_) == n_rounds
        assert fitted.history_ == model.history_[:n_rounds]
        short = MASGDClassifier(**{**PARAMS, "max_iter": n_rounds}).fit(X, y)
        np.testing.assert_array_equal(fitted.coef_, short.coef_)
        np.testing.assert_array_equal(fitted.predict(X), short.predict(X))
    np.testing.assert_array_equal(recorder.rounds[-1][0].coef_, model.coef_)


@pytest.mark.parametrize("cls", [ButterflySGDClassifier, MASGDClassifier])
def test_rounds_of_a_refinement_have_their_models(cls, data):
    recorder = Recorder()
    params = {"loss": "log_loss", "tol": 1e-2, "n_ranks": 2, "random_state": 0}
    model = cls(**params, refine_tol=1e-9).set_callbacks(recorder).fit(*data)
    assert len(recorder.rounds) == model.n_iter_
    assert model.history_[-1]["refined"]
    np.testing.assert_array_equal(recorder.rounds[-1][0].coef_, model.coef_)


def test_stop_at_the_third_round(place, data):
    model = MASGDClassifier(**PARAMS).set_callbacks(Recorder(stop_at=3)).fit(*data)
    assert model.n_iter_ == len(model.history_) == 3
    short = MASGDClassifier(**{**PARAMS, "max_iter": 3}).fit(*data)
    np.testing.assert_array_equal(model.coef_, short.coef_)


def test_stop_is_no_lack_of_convergence(data):
    """With `tol` set, a fit that a callback has stopped does not warn."""
    model = MASGDClassifier(**{**PARAMS, "tol": 1e-9})
    model.set_callbacks(Recorder(stop_at=2)).fit(*data)
    assert model.n_iter_ == 2


def test_error_of_a_callback(place, data, assert_clean):
    X, y = data
    model = MASGDClassifier(**PARAMS).fit(X, y)
    before = dict(vars(model))
    recorder = Recorder(raise_at=2)
    model.set_callbacks(recorder)
    with pytest.raises(RuntimeError, match="the callback has failed"):
        model.fit(X[:, :3], y)
    assert len(recorder.rounds) == 2
    assert recorder.calls[-1] == "teardown"
    model.set_callbacks()
    assert vars(model).keys() == before.keys()
    assert all(vars(model)[name] is value for name, value in before.items())
    if place is not None:
        assert_clean(place)
    np.testing.assert_array_equal(model.fit(X, y).coef_, before["coef_"])


def test_one_of_several_callbacks_stops(data):
    callbacks = [Recorder(), Recorder(stop_at=2), Recorder(stop_at=4)]
    model = MASGDClassifier(**PARAMS).set_callbacks(*callbacks).fit(*data)
    assert model.n_iter_ == 2
    assert [len(recorder.rounds) for recorder in callbacks] == [2, 2, 2]


def test_hooks_see_the_data(data):
    X, y = data
    recorder = Recorder()
    weight = np.linspace(1, 2, 80)
    model = MASGDClassifier(**PARAMS).set_callbacks(recorder)
    model.fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(recorder.data[0], X)
    np.testing.assert_array_equal(recorder.data[1], y)
    np.testing.assert_array_equal(recorder.data[2]["sample_weight"], weight)
    model.fit(X, y)
    assert recorder.data[2] is None


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_all_rounds_are_known_before(n_ranks):
    # More documents make a round of two ranks than of one.
    X = np.random.default_rng(0).poisson(1, size=(17000, 4))
    model = MALDA(2, max_iter=1, learning_method="online", n_ranks=n_ranks)
    recorder = Recorder()
    model.set_callbacks(recorder).fit(X)
    assert recorder.max_rounds == len(recorder.rounds)


def test_partial_fit_is_one_round(data):
    recorder = Recorder()
    MASGDClassifier(n_ranks=2).set_callbacks(recorder).partial_fit(
        *data, classes=[0, 1]
    )
    assert len(recorder.rounds) == 1


def test_attributes_without_callbacks_are_the_same(place, data):
    plain = MASGDClassifier(**PARAMS).fit(*data)
    watched = MASGDClassifier(**PARAMS).set_callbacks(Recorder()).fit(*data)
    np.testing.assert_array_equal(plain.coef_, watched.coef_)
    assert [set(r) for r in plain.history_] == [set(r) for r in watched.history_]


def test_progress_bar(place, data, capsys):
    pytest.importorskip("rich", reason="scikit-learn's progress bar needs rich")
    model = MASGDClassifier(**PARAMS).set_callbacks(callback.ProgressBar())
    model.fit(*data)
    assert model.n_iter_ == 6
    output = capsys.readouterr().out
    assert "MASGDClassifier" in output
    assert "100%" in output


def test_scoring_monitor(place, data):
    X, y = data
    monitor = callback.ScoringMonitor(scoring="accuracy")
    model = MASGDClassifier(**PARAMS).set_callbacks(monitor).fit(X, y)
    scores = [entry["accuracy"] for entry in monitor.get_logs().data]
    assert len(scores) == 6
    assert scores[-1] == model.score(X, y)


# -- Lines of text -------------------------------------------------------------------


def test_verbose_prints_here(place, data, capsys):
    model = MASGDClassifier(**{**PARAMS, "verbose": 1, "max_iter": 3}).fit(*data)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for line, record in zip(lines, model.history_, strict=True):
        assert line.startswith(
            f"-- Round {record['round']}: objective {record['objective']:.6f}, "
        )


def test_verbose_tells_the_score_of_early_stopping(data, capsys):
    MASGDClassifier(verbose=1, early_stopping=True, **PARAMS).fit(*data)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert all("validation score 0." in line or "score 1." in line for line in lines)


def test_verbose_and_callbacks_together(place, data, capsys):
    recorder = Recorder(stop_at=4)
    MASGDClassifier(verbose=1, **PARAMS).set_callbacks(recorder).fit(*data)
    assert len(capsys.readouterr().out.splitlines()) == len(recorder.rounds) == 4


def test_rounds_that_are_made_again(data):
    """As after the loss of a worker: each has its context, and its last record."""
    model, recorder = MASGDClassifier(**PARAMS), Recorder()
    model.set_callbacks(recorder).fit(*data)
    found = []
    told = _RoundCallbacks(model, 3, (*data, None), lambda model: {"n_iter_": 0})
    told.begin()
    for number, time in [(1, 0.1), (2, 0.2), (3, 0.3), (2, 0.4), (3, 0.5)]:
        told({"round": number, "time": time}, dict)
        found = recorder.rounds[-1][0].history_
        assert [record["round"] for record in found] == [*range(1, number + 1)]
    assert [record["time"] for record in found] == [0.1, 0.4, 0.5]
