"""A client that is killed in a fit, and another one that goes on with it."""

import re
import time

import cloudpickle
import dask
import numpy as np
import pytest
from distributed import Client
from distributed.utils import get_mp_context

from dask_ma import MASGDClassifier, MPCAClassifier

N_WORKERS = 2
SECONDS = 60  # until the first checkpoints are there

NETWORK = {"hidden_layer_sizes": (8,), "batch_size": 8, "learning_rate_init": 0.02}
ESTIMATORS = {
    "mpca": (MPCAClassifier, {"n_ranks": N_WORKERS, **NETWORK}),
    "averaging": (MASGDClassifier, {"n_ranks": N_WORKERS}),
    "one rank": (MASGDClassifier, {"n_ranks": 1}),
}


@pytest.fixture
def client(crew, assert_usable):
    client = crew(N_WORKERS)
    yield client
    assert_usable(client, N_WORKERS)


@pytest.fixture
def fit(client, tmp_path):
    """``fit(max_iter)`` with checkpoints, in whatever process it is called."""
    address, path = client.scheduler.address, str(tmp_path / "saved")
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 400)
    X = rng.normal(size=(400, 6)) + 2 * np.eye(4, 6)[y]

    def fit(kind, max_iter):
        cls, params = ESTIMATORS[kind]
        model = cls(max_iter=max_iter, tol=None, random_state=0, **params)
        with Client(address), dask.config.set({"dask-ma.checkpoint.path": path}):
            return model.fit(X, y), model.score(X, y)

    return fit


def newest_round(path):
    """Number of the last round that is saved, 0 for none."""
    found = [re.fullmatch(r"round-(\d+)\.json", file.name) for file in path.glob("*/*")]
    return max((int(match[1]) for match in found if match), default=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ESTIMATORS)
def test_another_client_goes_on(client, fit, tmp_path, assert_clean, kind):
    def first():
        fit(kind, 10**6)

    code = f"import cloudpickle; cloudpickle.loads({cloudpickle.dumps(first)!r})()"
    process = get_mp_context().Process(target=exec, args=(code, {}))
    process.start()
    deadline = time.monotonic() + SECONDS
    while newest_round(tmp_path / "saved") < 3:
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.join(30)
    assert_clean(client)
    done = newest_round(tmp_path / "saved")
    time.sleep(0.5)
    assert newest_round(tmp_path / "saved") == done  # nobody trains on
    model, score = fit(kind, done + 5)
    assert model.n_iter_ == done + 5
    assert score > 0.6
    rounds = [record["round"] for record in model.history_]
    assert rounds == [*range(1, len(rounds) + 1)]
    times = [record["time"] for record in model.history_]
    assert times == sorted(times)
