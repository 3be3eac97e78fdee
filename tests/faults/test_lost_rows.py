"""Fits that go on without rows end at the optimum of those that are left."""

import importlib
import os
import signal

import dask
import numpy as np
import pytest

from dask_ma import (
    SchMPLDA,
    SchMPLogisticRegression,
    SchMPMatrixFactorization,
    SFBLogisticRegression,
)
from dask_ma.exceptions import RowsLostWarning

ALPHA = 1e-3
# Passes alone get to the optimum of this one in a quarter as many.
LARGER = {"alpha": 5e-3, "refine": False}
LEFT = np.r_[:200, 400:600]
# Where ranks run, and what they run.
SCHMP = "dask_ma.schmp.l1._estimator.train", "dask_ma.schmp.l1._agent"
RATINGS, TOPICS = (
    (f"dask_ma.schmp.{name}._estimator.train", f"dask_ma.schmp.{name}._agent")
    for name in ("factorization", "topics")
)
SFB = "dask_ma.sfb.logistic._estimator.train", "dask_ma.sfb.logistic._agent"


def doomed_agent(module, mark, at_round):
    """The agent, whose second rank dies when it has kept a round, or a later one."""

    def agent(context, arguments, params):
        keep = context.save_state

        def striking_keep(n_rounds, *args, **kwargs):
            keep(n_rounds, *args, **kwargs)
            if n_rounds >= at_round:
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
    return -np.log(p).mean() + model.alpha * penalty


# A bound of all rows would end a fit too early where those that are lost are noise, and
# their least objective would stay the least where they are not.
NOISE, SENSE = [1], [0, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "place", "at_round", "params", "noisy"),
    [
        (SchMPLogisticRegression, SCHMP, 2, {}, NOISE),
        (SFBLogisticRegression, SFB, 2, LARGER, SENSE),
        (SFBLogisticRegression, SFB, 4, {}, NOISE),  # within its last steps
        (SFBLogisticRegression, SFB, 4, {}, SENSE),
        (SFBLogisticRegression, SFB, 3, {"solver": "sdca", **LARGER}, NOISE),
    ],
    ids=["schmp", "sfb", "sfb refined, noise", "sfb refined, sense", "sdca"],
)
def test_what_was_found_of_lost_rows(
    struck_client, here, monkeypatch, tmp_path, cls, place, at_round, params, noisy
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
    alone = here(cls(**params, n_ranks=1).fit, X[LEFT], y[LEFT])
    expected = objective(alone, X[LEFT], y[LEFT])
    assert objective(model, X[LEFT], y[LEFT]) < 1.002 * expected


@pytest.mark.slow
def test_factors_of_what_is_left(struck_client, here, monkeypatch, tmp_path):
    """Their mean is that of the ratings that are left, as a prediction's is."""
    rng = np.random.default_rng(0)
    pairs = np.argwhere(np.ones((30, 20)))
    rng.shuffle(pairs)
    users, items = rng.normal(size=(30, 3)), rng.normal(size=(20, 3))
    values = (users[pairs[:, 0]] * items[pairs[:, 1]]).sum(axis=1)
    values[200:400] += 5
    mark = tmp_path / "struck"
    monkeypatch.setattr(RATINGS[0], doomed_agent(RATINGS[1], mark, 5))
    params = {"alpha": 0.1, "max_iter": 30, "random_state": 0}
    with (
        dask.config.set({"dask-ma.on-worker-loss": "continue"}),
        pytest.warns(RowsLostWarning, match="without 200 of 600 rows"),
    ):
        model = SchMPMatrixFactorization(3, **params, n_ranks=3).fit(pairs, values)
    alone = SchMPMatrixFactorization(3, **params, n_ranks=1)
    here(alone.fit, pairs[LEFT], values[LEFT])
    found, expected = (
        np.abs(each.predict(pairs[LEFT]) - values[LEFT]).mean()
        for each in (model, alone)
    )
    assert found < 1.2 * expected < 0.4


@pytest.mark.slow
def test_topics_of_what_is_left(struck_client, monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    topics = rng.dirichlet(np.full(30, 0.1), 3)
    X = np.array([rng.multinomial(20, topics[i % 3]) for i in range(600)])
    mark = tmp_path / "struck"
    monkeypatch.setattr(TOPICS[0], doomed_agent(TOPICS[1], mark, 1))
    with (
        dask.config.set({"dask-ma.on-worker-loss": "continue"}),
        pytest.warns(RowsLostWarning, match="without 200 of 600 rows"),
    ):
        model = SchMPLDA(3, max_iter=4, random_state=0, n_ranks=3).fit(X)
    counts = model.components_ - model.topic_word_prior_
    np.testing.assert_allclose(counts.sum(axis=0), X[LEFT].sum(axis=0), rtol=1e-5)
