"""Scheduled programs and L1-regularised fits that lose a worker for good."""

import os
import signal

import dask
import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso

from dask_ma import SchMPLasso, SchMPLogisticRegression, losses
from dask_ma.exceptions import RowsLostWarning
from dask_ma.schmp import CoordinateDescent, run, schedules

ALPHA = 0.05


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 50))
    return X, X[:, :10] @ np.arange(-4, 6) + rng.normal(size=300)


@pytest.fixture(scope="module")
def optimum(rows):
    return Lasso(ALPHA, tol=1e-12, max_iter=10**6).fit(*rows)


def check(coef, optimum):
    np.testing.assert_allclose(coef, optimum.coef_, atol=1e-4)


@pytest.mark.slow
def test_run(struck_client, rows, optimum, tmp_path):
    mark = tmp_path / "struck"

    class Doomed(CoordinateDescent):
        n_updates = 0

        def prepare(self, shard, group):
            self.rank = group.rank
            return super().prepare(shard, group)

        def update(self, job, local, model):
            self.n_updates += 1
            if self.rank == 1 and self.n_updates == 130 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().update(job, local, model)

    schedule = schedules.Dynamic(16, 0.3)
    program = Doomed(losses.SquaredError(), schedule, np.full(50, ALPHA), np.zeros(50))
    result = run(
        program,
        *rows,
        n_iterations=300,
        n_schedulers=2,
        random_state=0,
    )
    assert mark.exists()
    check(result.model, optimum)
    assert [record["iteration"] for record in result.history] == [100, 200, 300]


def doomed_agent(mark):
    """The agent, whose second rank dies as it sends something in the second round."""

    def agent(context, arguments, params):
        from dask_ma.schmp.l1 import _agent

        keep, push = context.save_state, context.group.push
        now = {"round": 0, "pushes": 0}

        def striking_keep(n_rounds, *args, **kwargs):
            keep(n_rounds, *args, **kwargs)
            now["round"] = n_rounds

        def striking_push(*args, **kwargs):
            push(*args, **kwargs)
            now["pushes"] += now["round"] == 1
            if now["pushes"] == 5:
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        if context.group.rank == 1 and not mark.exists():
            context.save_state, context.group.push = striking_keep, striking_push
        return _agent.train(context, arguments, params)

    return agent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schedule", "layout"),
    [("working_set", "rows"), ("dynamic", "rows"), ("dynamic", "columns")],
)
def test_fit(struck_client, rows, optimum, monkeypatch, tmp_path, schedule, layout):
    mark = tmp_path / "struck"
    monkeypatch.setattr("dask_ma.schmp.l1._estimator.train", doomed_agent(mark))
    model = SchMPLasso(ALPHA, schedule=schedule, layout=layout, tol=1e-9)
    model.set_params(random_state=0)
    if schedule == "dynamic":  # the steps themselves have to find the optimum
        model.set_params(polish=False, schedule=schedules.Dynamic(8))
    model.fit(*rows)
    assert mark.exists()
    check(model.coef_, optimum)
    assert model.intercept_ == pytest.approx(optimum.intercept_, abs=1e-3)
    rounds = [record["round"] for record in model.history_]
    assert rounds == [*range(1, model.n_iter_ + 1)]
    assert len(rounds) > 1


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_rank_without_rows(
    struck_client, here, rows, monkeypatch, tmp_path, n_classes
):
    """It goes on beside the others, whose rows decide."""
    X, y = rows
    y = np.searchsorted(np.quantile(y, np.arange(1, n_classes) / n_classes), y)
    mark = tmp_path / "struck"
    monkeypatch.setattr("dask_ma.schmp.l1._estimator.train", doomed_agent(mark))
    params = {"alpha": 0.01, "schedule": "dynamic", "tol": 1e-6, "random_state": 0}
    with (
        dask.config.set({"dask-ma.on-worker-loss": "continue"}),
        pytest.warns(RowsLostWarning, match="without 100 of 300 rows"),
    ):
        model = SchMPLogisticRegression(**params).fit(X, y)
    assert mark.exists()
    left = np.r_[:100, 200:300]
    alone = here(SchMPLogisticRegression(**params, n_ranks=1).fit, X[left], y[left])
    np.testing.assert_allclose(model.coef_, alone.coef_, atol=1e-2)


@pytest.mark.parametrize("schedule", ["working_set", "dynamic"])
def test_a_checkpoint_goes_on_with_other_ranks(rows, optimum, tmp_path, schedule):
    params = {"alpha": ALPHA, "schedule": schedule, "tol": 1e-9, "random_state": 0}
    if schedule == "dynamic":
        params["schedule"] = schedules.Dynamic(4)  # too few for the optimum in a round
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        with pytest.warns(ConvergenceWarning, match="maximum of 1 rounds"):
            first = SchMPLasso(max_iter=1, n_ranks=3, **params).fit(*rows)
        with pytest.warns(UserWarning, match="written by 3 ranks and goes on with 2"):
            model = SchMPLasso(n_ranks=2, **params).fit(*rows)
    check(model.coef_, optimum)
    assert np.abs(first.coef_ - optimum.coef_).max() > 1e-3
    assert model.history_[0] == first.history_[0]
    assert len(model.history_) > 1
