"""Fits by sufficient factor broadcasting that lose a worker for good."""

import importlib
import os
import signal

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dask_ma import SFBLogisticRegression, SFBMetricLearner
from dask_ma.comm import allreduce
from dask_ma.sfb import FactorModel, prox, run

ALPHA = 0.05
N_PASSES = 12


def doomed_agent(mark, module="logistic._agent", name="train"):
    """The agent, whose second rank dies as it sends something in the third pass."""

    def agent(context, arguments, params):
        train = getattr(importlib.import_module(f"dask_ma.sfb.{module}"), name)
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
        return train(context, arguments, params)

    return agent


def value(model, X, y):
    """Objective by its formula."""
    p = model.predict_proba(X)[np.arange(len(y)), y]
    ratio, coef = model.l1_ratio or 0, model.coef_
    penalty = ratio * np.abs(coef).sum() + (1 - ratio) / 2 * (coef**2).sum()
    return -np.log(p).mean() + ALPHA * penalty


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "l1_ratio"), [("sgd", 0.0), ("sdca", 0.0), ("sdca", 0.5)]
)
def test_fit(struck_client, here, monkeypatch, tmp_path, solver, l1_ratio):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 300)
    X = (rng.normal(size=(300, 6)) + rng.normal(size=(4, 6))[y]) / 3
    peer = LogisticRegression(C=1 / (300 * ALPHA), l1_ratio=l1_ratio, tol=1e-9)
    if l1_ratio:
        peer.set_params(solver="saga", max_iter=10**4, random_state=0)
        # Versions before 1.8 take the kind of penalty apart from the ratio.
        if peer.get_params()["penalty"] == "l2":
            peer.set_params(penalty="elasticnet")
    best = value(peer.fit(X, y), X, y)
    mark = tmp_path / "struck"
    monkeypatch.setattr("dask_ma.sfb.logistic._estimator.train", doomed_agent(mark))
    params = {"solver": solver, "alpha": ALPHA, "batch_size": 16, "max_iter": N_PASSES}
    params |= {"penalty": "elasticnet", "l1_ratio": l1_ratio}
    params |= {"tol": None, "random_state": 0, "communication": "factors"}
    model = SFBLogisticRegression(**params, n_ranks=3).fit(X, y)
    assert mark.exists()
    rtol = 1e-2 if solver == "sgd" else 1e-4
    assert -1e-9 < value(model, X, y) - best < rtol * best
    assert [record["round"] for record in model.history_] == [*range(1, N_PASSES + 1)]
    if solver == "sdca":
        assert value(model, X, y) - best <= model.dual_gap_ + 1e-9
    else:
        whole = here(SFBLogisticRegression(**params, n_ranks=3).fit, X, y)
        np.testing.assert_array_equal(model.coef_, whole.coef_)


@pytest.mark.each
@pytest.mark.slow
@pytest.mark.parametrize("content", ["factors", "outputs"])
@pytest.mark.parametrize("how", ["labels", "pairs"])
def test_learnt_distances(struck_client, here, monkeypatch, tmp_path, how, content):
    """Batches do not depend on the ranks, so the fit is the undisturbed one."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 4, 300)
    X = (rng.normal(size=(300, 6)) + rng.normal(size=(4, 6))[y]) / 3
    params = {"max_iter": 5, "tol": None, "random_state": 0, "batch_size": 32}
    params |= {"communication": content}
    data = {"y": y}
    if how == "pairs":
        params["loss"] = "logistic"
        pairs = rng.integers(0, 150, size=(400, 2)) + [0, 150]
        same = np.where(y[pairs[:, 0]] == y[pairs[:, 1]], 1, -1)
        data = {"pairs": pairs, "pair_labels": same}
    expected = here(SFBMetricLearner(3, **params, n_ranks=2).fit, X, **data)
    mark = tmp_path / "struck"
    monkeypatch.setattr(
        "dask_ma.sfb.metric._learner.train", doomed_agent(mark, "metric._agent")
    )
    learner = SFBMetricLearner(3, **params, n_ranks=3).fit(X, **data)
    assert mark.exists()
    assert [record["round"] for record in learner.history_] == [*range(1, 6)]
    assert learner.history_[-1]["restarts"] == 1
    np.testing.assert_allclose(learner.components_, expected.components_, atol=1e-3)


@pytest.mark.slow
def test_dual_variables_of_a_users_loss(struck_client, monkeypatch, tmp_path):
    """Those of the rank that died are set anew, and the dual sums follow."""

    alpha = 0.5

    class Ridge(FactorModel):
        prox = prox.L2(alpha)

        def prepare(self, shard, group):
            self.n_ranks = group.size
            self.n_rows = int(allreduce(group, np.array(shard.n_rows)))
            self.dual = np.zeros((shard.n_rows, 1))

        def initial_matrix(self, n_features):
            return np.zeros((1, n_features))

        def dual_operator(self, sums):
            return sums / alpha

        def factors(self, matrix, batch):
            gram = batch.X @ batch.X.T * (self.n_ranks / (alpha * self.n_rows))
            slopes = matrix.product(batch.X) - batch.y[:, np.newaxis]
            system = np.eye(batch.n_rows) + gram
            changes = np.linalg.solve(system, self.dual[batch.rows] + slopes)
            self.dual[batch.rows] -= changes
            return changes, batch.X

        def loss(self, matrix, batch):
            return ((matrix.product(batch.X)[:, 0] - batch.y) ** 2).sum() / 2

        def state_dict(self):
            return {"dual": self.dual.copy()}

        def load_state_dict(self, state):
            if state is not None:
                self.dual[...] = state["dual"]

        def rebuild(self, matrix, batch):
            if matrix is not None:
                y = batch.y[:, np.newaxis]
                self.dual[batch.rows] = y - matrix.product(batch.X)
            return self.dual[batch.rows], batch.X

    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 6))
    y = X @ rng.normal(size=6) + rng.normal(size=300)
    expected = np.linalg.solve(X.T @ X / 300 + alpha * np.eye(6), X.T @ y / 300)
    mark = tmp_path / "struck"
    agent = doomed_agent(mark, "_run", "run_model")
    monkeypatch.setattr("dask_ma.sfb._run.run_model", agent)
    params = {"n_passes": 20, "batch_size": 16, "communication": "factors"}
    result = run(Ridge(), X, y, random_state=0, n_ranks=3, **params)
    assert mark.exists() and result.history[-1]["restarts"] == 1
    np.testing.assert_allclose(result.matrix[0], expected, atol=1e-8)
