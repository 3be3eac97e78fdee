"""Which checkpoint a fit goes on from, while others write theirs."""

import os
import socket
import threading
from dataclasses import replace
from pathlib import Path

import dask
import numpy as np
import psutil
import pytest

from dask_ma import MASGDClassifier
from dask_ma.engine.recovery._checkpoint import Store
from dask_ma.engine.recovery._identity import (
    CheckpointSettings,
    Identity,
    Session,
    parts_of,
)
from dask_ma.engine.recovery._manifest import Saved
from dask_ma.engine.recovery._series import choose
from dask_ma.exceptions import CheckpointError

DATA = {"rows": 20}
GONE = {"host": "elsewhere", "pid": 1, "started": 1.5}  # of a process that has ended


@pytest.fixture
def settings(tmp_path):
    return CheckpointSettings(str(tmp_path / "fits"), every=1, keep=1, resume=True)


def identity(max_iter=10, tol=None, **more):
    options = {"max_iter": max_iter, "tol": tol}
    return Identity("Estimator", {"alpha": "1"}, options, **more)


def save(settings, fit, *numbers, name=None, **changed):
    """Save rounds of a fit; return the name of its series."""
    name = fit.series(DATA) if name is None else name
    for number in numbers:
        saved = Saved(
            name=fit.name,
            parameters=fit.parameters,
            options=fit.options,
            data=DATA,
            fit_id="other",
            writer=GONE,
            seed=7,
            done=False,
            round=number,
            elapsed=1.5,
            shared={"w": np.zeros(1)},
            own=[{}],
            shares=[[]],
            history=[{}] * number,
        )
        saved = saved._replace(**changed)
        Store(settings.path).save(name, saved, settings.keep)
    return name


# While another fit removes its old rounds ---------------------------------------------


@pytest.mark.parametrize("method", ["manifest", "load"])
@pytest.mark.parametrize("is_own", [True, False])
def test_a_round_that_is_replaced_meanwhile(settings, monkeypatch, method, is_own):
    there = identity(10 if is_own else 5)
    save(settings, there, 1)
    original, numbers = getattr(Store, method), [2, 3]

    def late(self, series, number):
        if numbers:
            save(settings, there, numbers.pop(0))
        return original(self, series, number)

    monkeypatch.setattr(Store, method, late)
    choice = choose(settings, identity(), DATA, Session(), "mine")
    assert choice.saved.round == 3
    assert "round-00000003" in choice.path
    assert choice.note is None


def test_a_series_that_has_been_removed(settings, monkeypatch):
    name = save(settings, identity(5), 1)
    Store(settings.path)._remove(name, [1])
    monkeypatch.setattr(Store, "series", lambda self: {name: [1]})
    choice = choose(settings, identity(), DATA, Session(), "mine")
    assert choice.saved is None
    assert choice.note is None


def test_a_damaged_round_of_this_fit_is_an_error(settings, tmp_path):
    name = save(settings, identity(), 1)
    (tmp_path / "fits" / name / "round-00000001.npz").unlink()
    with pytest.raises(CheckpointError, match=r"round-00000001\.npz is damaged"):
        choose(settings, identity(), DATA, Session(), "mine")


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_a_damaged_round_of_another_fit_is_left_out(settings, tmp_path, suffix):
    save(settings, identity(5), 2)
    name = save(settings, identity(6), 4)
    (tmp_path / "fits" / name / f"round-00000004.{suffix}").write_bytes(b"x")
    choice = choose(settings, identity(), DATA, Session(), "mine")
    assert choice.saved.round == 2
    assert "leaves out" in choice.note and "round-00000004" in choice.note


# Whose series it is -------------------------------------------------------------------

HERE = {"host": "here", "pid": 7, "started": 1.5}


def session(launch=1, *running):
    return Session({**HERE, "launch": launch}, frozenset(running))


@pytest.fixture
def alive():
    """A process of this host that has not ended, and is not that of the fits."""
    process = psutil.Process(os.getppid())
    started = process.create_time()
    return {"host": socket.gethostname(), "pid": process.pid, "started": started}


@pytest.mark.parametrize("is_random", [False, True])
def test_two_fits_at_once_have_two_series(settings, is_random):
    fit = identity(is_random=is_random)
    both = session(2, "a", "b")
    first = choose(settings, fit, DATA, both, "a").series.name
    second = choose(settings, fit, DATA, both, "b").series.name
    assert second == f"{first}-2"
    # The first is saved now: its checkpoints say whose they are.
    save(settings, fit, 1, name=first, fit_id="a", writer=both.writer)
    assert Store(settings.path).owner(first) is None
    third = choose(settings, fit, DATA, session(3, "a", "b", "c"), "c")
    assert third.series.name == f"{first}-3"
    assert third.saved is None
    assert parts_of(third.series.name) == parts_of(first)


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_fit_that_started_after_the_other_was_launched(settings, is_saved):
    later, earlier = session(2, "a", "b"), session(1, "a")
    name = choose(settings, identity(), DATA, later, "b").series.name
    if is_saved:
        save(settings, identity(), 1, fit_id="b", writer=later.writer)
    assert choose(settings, identity(), DATA, earlier, "a").series.name != name


@pytest.mark.parametrize("is_saved", [False, True])
@pytest.mark.parametrize("resume", [False, True])
def test_a_fit_finds_its_series_again(settings, is_saved, resume):
    settings = replace(settings, resume=resume)
    fit, both = identity(is_random=True), session(2, "a", "b")
    choose(settings, fit, DATA, both, "a")
    name = choose(settings, fit, DATA, both, "b").series.name
    if is_saved:
        save(settings, fit, 4, name=name, fit_id="b", writer=both.writer)
    again = choose(settings, fit, DATA, session(3, "b"), "b", 1)
    assert again.series.name == name
    assert (again.saved is not None) == is_saved


def test_a_fit_that_failed_leaves_its_series_to_the_next(settings):
    name = choose(settings, identity(), DATA, session(1, "a"), "a").series.name
    assert choose(settings, identity(), DATA, session(2, "b"), "b").series.name == name
    save(settings, identity(), 3, fit_id="b", writer=session(2).writer)
    choice = choose(settings, identity(), DATA, session(3, "c"), "c")
    assert choice.series.name == name
    assert choice.saved.round == 3


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("is_random", [False, True])
def test_a_fit_of_another_process_that_is_alive(settings, alive, is_random, done):
    fit = identity(is_random=is_random)
    name = save(settings, fit, 3, writer=alive, done=done)
    choice = choose(settings, fit, DATA, session(), "mine")
    if done and not is_random:
        assert choice.series.name == name
        assert choice.saved.done
        assert Store(settings.path).owner(name) is None
    else:
        assert choice.series.name == f"{name}-2"
        assert choice.saved is None


def test_fits_that_are_meant_to_differ_do_not_go_on_from_the_same(settings):
    save(settings, identity(5, is_random=True), 5, done=True)
    fit, both = identity(is_random=True), session(2, "a", "b")
    assert choose(settings, fit, DATA, both, "a").saved.round == 5
    assert choose(settings, fit, DATA, both, "b").saved is None


def test_a_fit_that_another_one_goes_on_with_is_not_left(settings):
    save(settings, identity(), 3)
    both = session(2, "a", "b")
    assert choose(settings, identity(), DATA, both, "a").saved.round == 3
    assert choose(settings, identity(tol=0.1), DATA, both, "b").saved is None


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"fit_id": 1}'])
def test_a_claim_that_is_damaged_does_not_count(settings, monkeypatch, text):
    monkeypatch.setattr("dask_ma.engine.recovery._checkpoint._PAUSE", 0.0)
    store = Store(settings.path)
    name = save(settings, identity(), 1)
    store._write(store._claim_path(name), text)
    choice = choose(settings, identity(), DATA, session(1, "mine"), "mine")
    assert choice.saved.round == 1
    assert store.owner(name)["fit_id"] == "mine"


@pytest.mark.parametrize("has_mode", [True, False])
def test_claims_in_memory(tmp_path, monkeypatch, has_mode):
    store = Store(f"memory://{tmp_path.name}")
    original = type(store._fs).open

    def open_file(self, path, mode="rb", **kwargs):
        if mode == "xb" and not has_mode:
            raise NotImplementedError("File mode not supported")
        return original(self, path, mode, **kwargs)

    monkeypatch.setattr(type(store._fs), "open", open_file)
    one, two = ({"fit_id": name, "writer": HERE} for name in ("one", "two"))
    assert store.claim("series", one)
    assert not store.claim("series", two)
    assert store.owner("series") == one
    store.release("series")
    store.release("series")
    assert store.claim("series", two)


def test_fits_in_threads_that_are_alike(settings):
    """Without a seed they differ; with one they are the same; none is disturbed."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 5))
    y = (X[:, 0] + rng.normal(size=200) > 0).astype(int)
    for seed, n_distinct in ((None, 4), (0, 1)):
        found = {}

        def fit(number, seed=seed, found=found):
            model = MASGDClassifier(max_iter=20, tol=None, random_state=seed)
            found[number] = model.fit(X, y)

        path = f"{settings.path}-{seed}"
        with dask.config.set({"dask-ma.checkpoint.path": path}):
            threads = [threading.Thread(target=fit, args=(n,)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        assert len({model.coef_.tobytes() for model in found.values()}) == n_distinct
        assert all(len(model.history_) == 20 for model in found.values())
        assert not list(Path(path).glob("*/claim"))
