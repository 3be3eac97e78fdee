"""Coordinate descent for any loss with a bounded curvature."""

import numpy as np
import pytest
from scipy import optimize, sparse

from dask_ma import losses
from dask_ma.data import Block, Shard
from dask_ma.engine import RankContext
from dask_ma.schmp import (
    ColumnDescent,
    CoordinateDescent,
    DynamicEngine,
    schedules,
)

N_ROWS, N_COLUMNS, L1, L2 = 60, 8, 0.05, 0.02


class LogCosh(losses.Loss):
    """A loss that the library does not know."""

    smoothness = 1.0

    def value(self, y, p):
        return np.logaddexp(p - y, y - p) - np.log(2)

    def slope(self, y, p):
        return np.tanh(p - y)


# Steps are the smaller the larger the bound of the curvature is against the curvature
# itself, which is 0 beyond the threshold of Huber's loss.
N_ITERATIONS = {"huber": 700}
LOSSES = {
    "huber": losses.Huber(0.5),
    "squared epsilon": losses.SquaredEpsilonInsensitive(0.2),
    "squared hinge": losses.SquaredHinge(),
    "modified huber": losses.ModifiedHuber(),
    "own": LogCosh(),
}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, N_COLUMNS)) + 0.5
    X[rng.random(X.shape) < 0.4] = 0
    number = X[:, :3] @ [1, -1, 0.5] + rng.standard_t(2, N_ROWS)
    return {"X": X, "y": number, "weight": rng.uniform(0.2, 3, N_ROWS)}


def targets_of(name, y):
    is_class = isinstance(LOSSES[name], losses.MarginLoss)
    return (y > 0).astype(np.int64) if is_class else y


def optimum(loss, X, y, weight, fit_intercept):
    """Coefficients and the intercept, each the difference of two that are not less."""
    y, share = loss.targets(y), weight / weight.sum()
    Z = np.hstack([X, np.full((len(X), 1), float(fit_intercept))])
    l1 = np.r_[np.full(X.shape[1], L1), 0]
    n = len(l1)

    def objective(parts):
        w = parts[:n] - parts[n:]
        p = Z @ w
        gradient = Z.T @ (share * loss.slope(y, p))
        gradient[:-1] += L2 * w[:-1]
        total = (
            share @ loss.value(y, p)
            + np.r_[l1, l1] @ parts
            + L2 * (w[:-1] @ w[:-1]) / 2
        )
        return total, np.r_[gradient + l1, l1 - gradient]

    options = {"maxiter": 10**5, "maxfun": 10**6, "ftol": 1e-16, "gtol": 1e-12}
    found = optimize.minimize(
        objective,
        np.zeros(2 * n),
        jac=True,
        bounds=[(0, None)] * 2 * n,
        options=options,
    )
    return found.x[:n] - found.x[n:], found.fun


def run_engines(run_ranks, program, X, y, weight, n_ranks, n_iterations):
    def agent(group):
        a, b = (N_ROWS * q // n_ranks for q in (group.rank, group.rank + 1))
        block = Block(X[a:b], y[a:b], weight[a:b], 0, a)
        shard = Shard([block], N_COLUMNS, X.dtype)
        engine = DynamicEngine(RankContext(group, 0), program, shard)
        engine.run(n_iterations)
        engine.sums = engine.measure()
        return engine

    return run_ranks(agent, n_ranks)


@pytest.mark.each
@pytest.mark.parametrize(
    ("kind", "n_ranks", "make", "fit_intercept"),
    [
        (CoordinateDescent, 1, np.asarray, True),
        (CoordinateDescent, 3, sparse.csr_array, True),
        (CoordinateDescent, 2, sparse.csr_array, False),
        (ColumnDescent, 2, np.asarray, True),
    ],
)
@pytest.mark.parametrize("name", LOSSES)
def test_optimum(run_ranks, data, name, kind, n_ranks, make, fit_intercept):
    loss, X, weight = LOSSES[name], data["X"], data["weight"]
    y = targets_of(name, data["y"])
    expected, objective = optimum(loss, X, y, weight, fit_intercept)
    program = kind(
        loss,
        schedules.Cyclic(2),
        np.full(N_COLUMNS, L1),
        np.full(N_COLUMNS, L2),
        fit_intercept=fit_intercept,
    )
    n_iterations = N_ITERATIONS.get(name, 230)
    engines = run_engines(run_ranks, program, make(X), y, weight, n_ranks, n_iterations)
    for engine in engines:
        np.testing.assert_array_equal(engine.model, engines[0].model)
    engine = engines[0]
    np.testing.assert_allclose(engine.model[:-1], expected[:-1], atol=1e-5)
    intercept = engine.program.intercept(engine.model)
    assert intercept == pytest.approx(expected[-1], abs=1e-5)
    report = engine.report(sum(e.sums for e in engines))
    assert report["objective"] == pytest.approx(objective, rel=1e-8)
    assert 0 < report["n_nonzero"] == np.count_nonzero(engine.model[:-1])
    predictions = np.concatenate([e.program.predictions(e.local) for e in engines])
    np.testing.assert_allclose(
        predictions[:N_ROWS], X @ expected[:-1] + expected[-1], atol=1e-4
    )


def test_a_loss_without_bound_is_refused():
    class Unbounded(LogCosh):
        smoothness = np.inf

    with pytest.raises(ValueError, match="the smoothness of Unbounded is inf"):
        CoordinateDescent(Unbounded(), schedules.Cyclic(1), np.ones(2), np.ones(2))


@pytest.mark.parametrize("kind", [CoordinateDescent, ColumnDescent])
def test_no_targets(run_ranks, data, kind):
    X = data["X"]
    shard = Shard([Block(X, None, None, 0, 0)], N_COLUMNS, X.dtype)
    program = kind(
        LogCosh(), schedules.Cyclic(1), np.ones(N_COLUMNS), np.ones(N_COLUMNS)
    )
    with pytest.raises(ValueError, match="needs targets y"):
        run_ranks(lambda g: DynamicEngine(RankContext(g, 0), program, shard), 1)
