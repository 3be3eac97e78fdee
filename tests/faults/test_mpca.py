"""Networks by MPCA SGD that lose a worker for good."""

import os
import signal

import dask
import dask.array as da
import numpy as np
import pytest

from dask_ma import MPCAClassifier
from dask_ma.exceptions import RowsLostWarning


def doomed_agent(mark):
    """The agent, whose second rank dies as it sends something in the fourth epoch."""

    def agent(context, arguments, params):
        from dask_ma.mpca.training import _agent

        keep, push = context.save_state, context.group.push
        now = {"epoch": 0, "pushes": 0}

        def striking_keep(n_epochs, *args, **kwargs):
            keep(n_epochs, *args, **kwargs)
            now["epoch"] = n_epochs

        def striking_push(*args, **kwargs):
            push(*args, **kwargs)
            now["pushes"] += now["epoch"] >= 3
            if now["pushes"] == 3:
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        if context.group.rank == 1 and not mark.exists():
            context.save_state, context.group.push = striking_keep, striking_push
        return _agent.train(context, arguments, params)

    return agent


@pytest.fixture
def rows():
    """Four classes that overlap a little."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 600)
    return rng.normal(size=(600, 6)) + 2 * np.eye(4, 6)[y], y


PARAMS = {"hidden_layer_sizes": (8,), "batch_size": 16, "max_iter": 8, "tol": None}
PARAMS |= {"random_state": 0, "learning_rate_init": 0.02}


def check(model, X, y, ranks):
    """It has gone on from where it was, and ended."""
    assert model.n_iter_ == 8
    assert model.score(X, y) > 0.7
    times = [record["time"] for record in model.history_]
    assert times == sorted(times)
    rounds = [record["round"] for record in model.history_]
    assert rounds == [*range(1, len(rounds) + 1)]
    computing = model.timeline_[model.timeline_["kind"] == "compute"]
    assert set(computing["rank"]) == ranks


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["mpca", "easgd"])
def test_training_goes_on_with_the_rows(
    struck_client, rows, monkeypatch, tmp_path, strategy
):
    mark = tmp_path / "struck"
    monkeypatch.setattr("dask_ma.mpca._estimator.train", doomed_agent(mark))
    model = MPCAClassifier(**PARAMS, strategy=strategy).fit(*rows)
    assert mark.exists()
    check(model, *rows, ranks={0, 1, 2})  # two of them on one worker


@pytest.mark.slow
def test_training_goes_on_without_the_rows(struck_client, rows, monkeypatch, tmp_path):
    """As the paper has it: the worker is dropped."""
    mark = tmp_path / "struck"
    monkeypatch.setattr("dask_ma.mpca._estimator.train", doomed_agent(mark))
    X, y = rows
    lazy = da.from_array(X, chunks=(200, 6)), da.from_array(y, chunks=200)
    with (
        dask.config.set({"dask-ma.on-worker-loss": "continue"}),
        pytest.warns(RowsLostWarning, match="without 200 of 600 rows"),
    ):
        model = MPCAClassifier(**PARAMS).fit(*lazy)
    assert mark.exists()
    check(model, X, y, ranks={0, 2})
