"""Which checkpoint a fit goes on from, while others write theirs."""

import numpy as np
import pytest

from dask_ma.engine._checkpoint import CheckpointSettings, Store
from dask_ma.engine._identity import Identity, Session
from dask_ma.engine._manifest import Saved
from dask_ma.engine._series import choose
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
    choice = choose(settings, identity(), DATA, Session())
    assert choice.saved.round == 3
    assert "round-00000003" in choice.path
    assert choice.note is None


def test_a_series_that_has_been_removed(settings, monkeypatch):
    name = save(settings, identity(5), 1)
    Store(settings.path)._remove(name, [1])
    monkeypatch.setattr(Store, "series", lambda self: {name: [1]})
    choice = choose(settings, identity(), DATA, Session())
    assert choice.saved is None
    assert choice.note is None


def test_a_damaged_round_of_this_fit_is_an_error(settings, tmp_path):
    name = save(settings, identity(), 1)
    (tmp_path / "fits" / name / "round-00000001.npz").unlink()
    with pytest.raises(CheckpointError, match=r"round-00000001\.npz is damaged"):
        choose(settings, identity(), DATA, Session())


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_a_damaged_round_of_another_fit_is_left_out(settings, tmp_path, suffix):
    save(settings, identity(5), 2)
    name = save(settings, identity(6), 4)
    (tmp_path / "fits" / name / f"round-00000004.{suffix}").write_bytes(b"x")
    choice = choose(settings, identity(), DATA, Session())
    assert choice.saved.round == 2
    assert "leaves out" in choice.note and "round-00000004" in choice.note
