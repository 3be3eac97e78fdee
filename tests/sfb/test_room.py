"""Whether processes have memory for steps on the whole objective."""

import numpy as np
import pytest
from scipy import sparse
from traced import traced

from dask_ma import SFBLogisticRegression
from dask_ma.comm import LocalGroup
from dask_ma.exceptions import InsufficientMemoryError
from dask_ma.sfb.logistic import _room
from dask_ma.sfb.logistic._outlook import Outlook
from dask_ma.sfb.logistic._room import Room, count_pairs, find_room, step_bytes

SHAPE = 10, 20_000


def test_pairs():
    assert count_pairs(1000) == 10
    assert count_pairs(2**26) == 2
    assert count_pairs(2**31) == 1


def test_bytes():
    """Those of rank 0, and of each rank."""
    alone, four, others = (
        step_bytes(1000, 4, n, has_root=root)
        for n, root in ((1, True), (4, True), (4, False))
    )
    assert four - alone == 3 * (others // 4)
    assert others < alone < four


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_steps_take(monkeypatch):
    """As many bytes as are asked for, when all pairs of BFGS are there."""
    n_ranks = 3
    monkeypatch.setattr(Outlook, "is_long", lambda *_: True)
    n_classes, n_features = 10, 10_000
    params = {"density": 1e-3, "format": "csr", "dtype": np.float32, "rng": 0}
    X = sparse.random_array((60, n_features), **params)
    y = np.arange(60) % n_classes
    # With an L2 penalty there are no pairs.
    settings = {"penalty": None, "tol": 1e-12, "random_state": 0, "n_ranks": n_ranks}
    model = SFBLogisticRegression(solver="sgd", max_iter=14, **settings)
    model.fit(X[:, :50], y)  # loads what it needs
    with traced() as memory:
        model.fit(X, y)
    expected = step_bytes(n_classes * n_features, 4, n_ranks, has_root=True)
    chunks = 8 * 20 * 2**14 + 8 * 2**18  # what is worked on at a time
    assert 0.7 * expected <= memory.peak <= expected + chunks


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.05, Room(False, False, False)),
        (0.9, Room(False, False, True)),
        (1.1, Room(True, False, True)),
        (2.5, Room(True, True, True)),
    ],
)
def test_what_fits(run_ranks, monkeypatch, n_ranks, share, expected):
    """All ranks say the same."""
    needed = step_bytes(10 * 20_000, 4, n_ranks, has_root=True)
    limit = int(share * needed / _room._MOST)
    monkeypatch.setattr(_room, "_SMALL", 0)
    monkeypatch.setattr(_room, "memory_here", lambda: limit)
    program = lambda group, **options: find_room(  # noqa: E731
        group, SHAPE, 4, needed // 16, **options
    )
    for found in run_ranks(program, n_ranks):
        assert found[:3] == expected[:3]
        assert ("would be enough" in found.lacks) == (not expected.steps)

    def required(group):
        try:
            return program(group, is_required=True)
        except InsufficientMemoryError as error:
            return str(error)

    for found in run_ranks(required, n_ranks):
        if expected.steps:
            assert found == expected
        else:
            assert "10 outputs and 20000 features" in found
            assert "refine at 'auto'" in found


def test_small_models_ask_nobody(monkeypatch):
    monkeypatch.setattr(_room, "allgather", None)
    assert find_room(LocalGroup.create(2)[0], (3, 100), 8, 0) == Room()


def test_nothing_is_said_of_steps_that_nobody_wants(run_ranks, monkeypatch, caplog):
    monkeypatch.setattr(_room, "_SMALL", 0)
    monkeypatch.setattr(_room, "memory_here", lambda: 10)
    caplog.set_level("INFO", logger="dask_ma.sfb")
    for is_wanted in (False, True):
        run_ranks(lambda group: find_room(group, SHAPE, 4, 0, is_wanted=is_wanted), 2)  # noqa: B023
        assert caplog.text.count("There will only be passes") == is_wanted
