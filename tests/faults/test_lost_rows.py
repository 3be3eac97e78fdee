"""Fits that go on without rows end at the optimum of those that are left."""

import importlib
import os
import signal

import dask
import numpy as np
import pytest

from dask_ma import SchMPLogisticRegression, SFBLogisticRegression
from dask_ma.exceptions import RowsLostWarning

ALPHA = 1e-3
# Where ranks run, and what they run.
SCHMP = "dask_ma.schmp.l1._estimator.train", "dask_ma.schmp.l1._agent"
SFB = "dask_ma.sfb.logistic._estimator.train", "dask_ma.sfb.logistic._agent"


def doomed_agent(module, mark, at_round):
    """The agent, whose second rank dies when it has kept a round."""

    def agent(context, arguments, params):
        keep = context.save_state

        def striking_keep(n_rounds, *args, **kwargs):
            keep(n_rounds, *args, **kwargs)
            if n_rounds == at_round:
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        if context.group.rank == 1 and not mark.exists():
            context.save_state = striking_keep
        return importlib.import_module(module).train(context, arguments, params)

    return agent


def make_rows(noisy):
    """Two classes, which labels of some thirds of the rows say next to nothing of."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 10))
    y = (X @ rng.normal(size=10) > 0).astype(int)
    is_noise = np.isin(np.arange(600) // 200, noisy) & (rng.random(600) < 0.9)
    return X, np.where(is_noise, rng.integers(0, 2, 600), y)


def objective(model, X, y):
    """By its formula."""
    p = model.predict_proba(X)[np.arange(len(y)), y]
    coef = np.asarray(model.coef_)
    is_l1 = isinstance(model, SchMPLogisticRegression)
    penalty = np.abs(coef).sum() if is_l1 else (coef**2).sum() / 2
    return -np.log(p).mean() + ALPHA * penalty


@pytest.mark.slow
@pytest.mark.parametrize("noisy", [[1], [0, 2]], ids=["noise", "sense"])
@pytest.mark.parametrize(
    ("cls", "place", "at_round", "params"),
    [
        (SchMPLogisticRegression, SCHMP, 2, {}),
        (SFBLogisticRegression, SFB, 2, {"refine": False, "max_iter": 200}),
        (SFBLogisticRegression, SFB, 4, {}),  # within its last steps
        (SFBLogisticRegression, SFB, 3, {"solver": "sdca", "refine": False}),
    ],
    ids=["schmp", "sfb", "sfb refined", "sdca"],
)
def test_what_was_found_of_lost_rows(
    struck_client, monkeypatch, tmp_path, cls, place, at_round, params, noisy
):
    """Bounds and objectives of all rows say nothing of the others."""
    X, y = make_rows(noisy)
    mark = tmp_path / "struck"
    monkeypatch.setattr(place[0], doomed_agent(place[1], mark, at_round))
    params = {"alpha": ALPHA, "tol": 1e-4, "random_state": 0, **params}
    with (
        dask.config.set({"dask-ma.on-worker-loss": "continue"}),
        pytest.warns(RowsLostWarning, match="without 200 of 600 rows"),
    ):
        model = cls(**params, n_ranks=3).fit(X, y)
    assert mark.exists()
    left = np.r_[:200, 400:600]
    alone = cls(**params, n_ranks=1).fit(X[left], y[left])
    expected = objective(alone, X[left], y[left])
    assert objective(model, X[left], y[left]) < 1.002 * expected
