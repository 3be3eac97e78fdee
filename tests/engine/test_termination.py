"""SIGTERM in a fit that is saved."""

import os
import signal
import threading
import time

import dask
import numpy as np
import pytest
from distributed.utils import get_mp_context

from dask_ma import MASGDClassifier
from dask_ma.engine import RankContext
from dask_ma.engine._process import Termination, terminable
from dask_ma.engine.recovery import _states
from dask_ma.exceptions import FitTerminatedError

X = np.random.default_rng(0).normal(size=(200, 4))
Y = (X[:, 0] > 0).astype(int)
PARAMS = {"max_iter": 8, "tol": None, "random_state": 0}
SECONDS = 120  # bound of a program


@pytest.fixture
def saved(tmp_path):
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path / "saved")}):
        yield tmp_path / "saved"


@pytest.fixture(autouse=True)
def nothing_stays():
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) is before
    assert not _states._stop_wanted


@pytest.fixture
def strike(monkeypatch):
    """``strike(n)``: SIGTERM comes to this process while round n is kept."""
    keep = RankContext.save_state

    def arm(number):
        def striking(self, n_rounds, *args, **kwargs):
            if n_rounds == number and self.group.rank == 0:
                signal.raise_signal(signal.SIGTERM)
            keep(self, n_rounds, *args, **kwargs)

        monkeypatch.setattr(RankContext, "save_state", striking)

    yield arm
    monkeypatch.undo()


def rounds_in(path):
    return sorted(int(file.stem[6:]) for file in path.glob("*/*.json"))


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_the_round_is_saved_and_the_fit_ends(saved, strike, monkeypatch, n_ranks):
    whole = MASGDClassifier(**PARAMS, n_ranks=n_ranks)
    with dask.config.set({"dask-ma.checkpoint.path": None}):
        whole.fit(X, Y)
    with dask.config.set({"dask-ma.checkpoint.every": 100}):
        strike(3)
        model = MASGDClassifier(**PARAMS, n_ranks=n_ranks)
        with pytest.raises(FitTerminatedError, match=f"goes on from.*{saved}") as end:
            model.fit(X, Y)
    assert end.value.code == 143
    assert rounds_in(saved) == [3]
    assert not hasattr(model, "coef_")
    monkeypatch.undo()
    resumed = MASGDClassifier(**PARAMS, n_ranks=n_ranks).fit(X, Y)
    np.testing.assert_array_equal(resumed.coef_, whole.coef_)


def test_in_the_last_round(saved, strike):
    strike(8)
    with pytest.raises(FitTerminatedError):
        MASGDClassifier(**PARAMS).fit(X, Y)
    assert rounds_in(saved)[-1] == 8


def test_a_search_ends_with_its_fit(saved, strike):
    """scikit-learn goes on with the next fit after an Exception."""
    from sklearn.model_selection import cross_val_score

    strike(3)
    with pytest.raises(FitTerminatedError):
        cross_val_score(MASGDClassifier(**PARAMS), X, Y, error_score=0.0)
    assert len(list(saved.iterdir())) == 1


@pytest.mark.parametrize("raises", [False, True])
def test_the_handler_of_the_program_gets_it(saved, strike, raises):
    calls = []

    def handler(signum, frame):
        calls.append(rounds_in(saved))
        if raises:
            raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, handler)
    try:
        strike(3)
        error = KeyboardInterrupt if raises else FitTerminatedError
        with pytest.raises(error):
            MASGDClassifier(**PARAMS).fit(X, Y)
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, former)
    assert calls == [[2, 3]]


def test_who_ignores_it_goes_on(saved, strike):
    former = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        strike(3)
        assert MASGDClassifier(**PARAMS).fit(X, Y).n_iter_ == 8
    finally:
        signal.signal(signal.SIGTERM, former)


def test_in_another_thread_signals_are_left_alone(saved):
    before, seen, results = signal.getsignal(signal.SIGTERM), [], []
    keep = RankContext.save_state

    def keeping(self, *args, **kwargs):
        seen.append(signal.getsignal(signal.SIGTERM))
        keep(self, *args, **kwargs)

    def fit():
        results.append(MASGDClassifier(**PARAMS).fit(X, Y))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RankContext, "save_state", keeping)
        thread = threading.Thread(target=fit)
        thread.start()
        thread.join(60)
    assert results[0].n_iter_ == 8
    assert set(seen) == {before}


def test_without_checkpoints_signals_are_left_alone():
    with terminable(Termination("Fit", "fit", None)):
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_before_the_ranks_run_it_ends_at_once():
    with (
        pytest.raises(FitTerminatedError),
        terminable(Termination("Fit", "fit", "path")),
    ):
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("not reached")


def test_a_second_one_does_not_wait():
    termination = Termination("Fit", "fit", "path")
    with (
        pytest.raises(FitTerminatedError),
        terminable(termination),
        termination.saving(),
    ):
        signal.raise_signal(signal.SIGTERM)
        assert termination.is_wanted and _states._stop_wanted == {"fit"}
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("not reached")


def test_ranks_on_a_cluster(saved, inproc_client, monkeypatch):
    keep, struck = RankContext.save_state, threading.Event()

    def slow(self, n_rounds, *args, **kwargs):
        keep(self, n_rounds, *args, **kwargs)
        if n_rounds == 2 and self.group.rank == 0 and not struck.is_set():
            struck.set()
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.05)

    with monkeypatch.context() as patched:
        patched.setattr(RankContext, "save_state", slow)
        model = MASGDClassifier(**{**PARAMS, "max_iter": 10**6})
        with inproc_client.as_current(), pytest.raises(FitTerminatedError):
            model.fit(X, Y)
    done = rounds_in(saved)[-1]
    assert done >= 2
    with inproc_client.as_current():
        resumed = MASGDClassifier(**{**PARAMS, "max_iter": done + 2}).fit(X, Y)
    assert [record["round"] for record in resumed.history_] == [*range(1, done + 3)]


MAIN = """
import os
import dask
import numpy as np
from dask_ma import MASGDClassifier

for number in 1, 2:
    os.dup2(os.open({log!r}, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)

def main(path):
    X = np.random.default_rng(0).normal(size=(400, 4))
    with dask.config.set({{"dask-ma.checkpoint.path": path}}):
        MASGDClassifier(max_iter=10**7, tol=None, random_state=0).fit(X, X[:, 0] > 0)
"""
ALONE = """
try:
    main({path!r})
finally:
    print("closed")
"""
WITH_A_CLUSTER = """
from distributed import Client

with dask.config.set({{"dask-ma.data.moved-rows": 0}}), Client({address!r}):
    try:
        main({path!r})
    finally:
        print("closed")
"""


def terminated(code, path, log):
    """What a program has printed that is ended once it has saved two rounds.

    It runs in a copy of a process that has loaded all modules.
    """
    process = get_mp_context().Process(target=exec, args=(code, {}))
    process.start()
    deadline = time.monotonic() + SECONDS
    try:
        while len(rounds_in(path)) < 2:
            assert process.is_alive() and time.monotonic() < deadline
            time.sleep(0.02)
        process.terminate()
        process.join(SECONDS)
    finally:
        process.kill()
    printed = log.read_text()
    assert process.exitcode == 143, printed
    return printed


def check_that_another_process_goes_on(path, n_ranks):
    done = rounds_in(path)[-1]
    rows = np.random.default_rng(0).normal(size=(400, 4))
    model = MASGDClassifier(max_iter=done + 3, tol=None, random_state=0)
    model.set_params(n_ranks=n_ranks).fit(rows, rows[:, 0] > 0)
    assert [record["round"] for record in model.history_] == [*range(1, done + 4)]


@pytest.mark.parametrize("ranks", ["here", "on a cluster"])
def test_a_program(request, saved, tmp_path, ranks):
    """A job that its batch system ends, and another process that goes on from there.

    Ranks in other processes, which get no signal, end with their client.
    """
    places, n_ranks = {"log": str(tmp_path / "log"), "path": str(saved)}, 1
    code = MAIN + ALONE
    if ranks == "on a cluster":
        client = request.getfixturevalue("process_client")
        places["address"], n_ranks = client.scheduler.address, len(client.nthreads())
        code = MAIN + WITH_A_CLUSTER
    printed = terminated(code.format(**places), saved, tmp_path / "log")
    assert "SIGTERM has ended the fit of MASGDClassifier" in printed
    assert "closed" in printed and "Traceback" not in printed
    check_that_another_process_goes_on(saved, n_ranks)
