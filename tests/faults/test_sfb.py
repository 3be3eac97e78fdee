"""Fits by sufficient factor broadcasting that lose a worker for good."""

import importlib
import os
import signal

import dask
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dask_ma import SFBLogisticRegression, SFBMetricLearner

N_WORKERS = 3
ALPHA = 0.05


@pytest.fixture
def client(cluster_client, bare_workers, assert_usable):
    """The current client, of three workers of which the test kills one."""
    with bare_workers(cluster_client, N_WORKERS):
        with (
            cluster_client.as_current(),
            dask.config.set({"dask-ma.recovery.wait": "100 ms"}),
        ):
            yield cluster_client
        assert len(cluster_client.nthreads()) == N_WORKERS - 1
        assert_usable(cluster_client, N_WORKERS - 1)


def doomed_agent(mark, package="logistic"):
    """The agent, whose second rank dies as it sends something in the third pass."""

    def agent(context, arguments, params):
        _agent = importlib.import_module(f"dask_ma.sfb.{package}._agent")
        keep, push = context.save_state, context.group.push
        now = {"round": 0, "pushes": 0}

        def striking_keep(n_rounds, *args, **kwargs):
            keep(n_rounds, *args, **kwargs)
            now["round"] = n_rounds

        def striking_push(*args, **kwargs):
            push(*args, **kwargs)
            now["pushes"] += now["round"] == 2
            if now["pushes"] == 5:
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        if context.group.rank == 1 and not mark.exists():
            context.save_state, context.group.push = striking_keep, striking_push
        return _agent.train(context, arguments, params)

    return agent


def value(model, X, y):
    """Objective by its formula."""
    p = model.predict_proba(X)[np.arange(len(y)), y]
    return -np.log(p).mean() + ALPHA / 2 * (model.coef_**2).sum()


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["sgd", "sdca"])
def test_fit(client, monkeypatch, tmp_path, solver):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 300)
    X = (rng.normal(size=(300, 6)) + rng.normal(size=(4, 6))[y]) / 3
    best = value(LogisticRegression(C=1 / (300 * ALPHA), tol=1e-9).fit(X, y), X, y)
    mark = tmp_path / "struck"
    monkeypatch.setattr("dask_ma.sfb.logistic._estimator.train", doomed_agent(mark))
    params = {"solver": solver, "alpha": ALPHA, "batch_size": 16, "max_iter": 40}
    params |= {"tol": None, "random_state": 0, "communication": "factors"}
    model = SFBLogisticRegression(**params, n_ranks=3).fit(X, y)
    assert mark.exists()
    rtol = 1e-2 if solver == "sgd" else 1e-4
    assert -1e-9 < value(model, X, y) - best < rtol * best
    assert [record["round"] for record in model.history_] == [*range(1, 41)]
    if solver == "sdca":
        assert value(model, X, y) - best <= model.dual_gap_ + 1e-9
    else:
        whole = SFBLogisticRegression(**params, n_ranks=3).fit(X, y)
        np.testing.assert_array_equal(model.coef_, whole.coef_)


@pytest.mark.slow
@pytest.mark.parametrize("content", ["factors", "outputs"])
@pytest.mark.parametrize("how", ["labels", "pairs"])
def test_learnt_distances(client, monkeypatch, tmp_path, how, content):
    """Batches do not depend on the ranks, so the fit is the undisturbed one."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 300)
    X = (rng.normal(size=(300, 6)) + rng.normal(size=(4, 6))[y]) / 3
    params = {"max_iter": 10, "tol": None, "random_state": 0, "batch_size": 32}
    params |= {"communication": content}
    data = {"y": y}
    if how == "pairs":
        params["loss"] = "logistic"
        pairs = rng.integers(0, 150, size=(400, 2)) + [0, 150]
        same = np.where(y[pairs[:, 0]] == y[pairs[:, 1]], 1, -1)
        data = {"pairs": pairs, "pair_labels": same}
    expected = SFBMetricLearner(3, **params, n_ranks=2).fit(X, **data)
    mark = tmp_path / "struck"
    monkeypatch.setattr(
        "dask_ma.sfb.metric._learner.train", doomed_agent(mark, "metric")
    )
    learner = SFBMetricLearner(3, **params, n_ranks=3).fit(X, **data)
    assert mark.exists()
    assert [record["round"] for record in learner.history_] == [*range(1, 11)]
    assert learner.history_[-1]["restarts"] == 1
    np.testing.assert_allclose(learner.components_, expected.components_, atol=1e-3)
