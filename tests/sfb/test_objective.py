"""Objective, derivatives and bound on all ranks, beside their formulas in one place."""

import tracemalloc

import numpy as np
import pytest
from scipy import optimize, special

from dask_ma.sfb.logistic import _class_sums, _objective
from dask_ma.sfb.logistic._objective import Objective
from dask_ma.sfb.logistic._penalty import Penalty
from dask_ma.sfb.logistic._totals import add_up
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.supervised import Problem

PENALTIES = {
    None: lambda W: 0.0,
    "l1": lambda W: 0.1 * np.abs(W).sum(),
    "l2": lambda W: 0.05 * (W**2).sum(),
    "elasticnet": lambda W: 0.03 * np.abs(W).sum() + 0.035 * (W**2).sum(),
    "trace": lambda W: 0.1 * np.linalg.svd(W, compute_uv=False).sum(),
}


@pytest.fixture(params=[1, 3], ids=["two", "three"])
def data(request, rows):
    """Rows, codes of as many classes, weights with mean 1, and the outputs."""
    n_outputs = request.param
    y = rows.y if n_outputs == 3 else (rows.y > 0).astype(int)
    return rows.X, y, rows.weight / rows.weight.mean(), n_outputs


def mean_loss(point, X, y, weight, n_outputs):
    """The formula, of coefficients and intercepts in one vector."""
    W, b = np.split(point.reshape(-1, n_outputs).T, [X.shape[1]], axis=1)
    margins = X @ W.T + b.T
    if n_outputs == 1:
        margins = np.hstack([np.zeros_like(margins), margins])
    losses = special.logsumexp(margins, axis=1) - margins[np.arange(len(y)), y]
    return weight @ losses / len(y)


def derivatives(function, point, step):
    """Central differences."""
    return np.array(
        [
            (function(point + h) - function(point - h)) / (2 * step)
            for h in step * np.eye(len(point))
        ]
    )


def evaluate(run_ranks, make_shards, n_ranks, data, penalty, point, **options):
    """What each rank finds at a point, with or without an intercept."""
    X, y, weight, n_outputs = data
    W, b = np.split(point.reshape(-1, n_outputs).T, [X.shape[1]], axis=1)
    shards = make_shards(n_ranks, X, y, weight)
    has_intercept = options.pop("fit_intercept", True)

    def agent(group):
        problem = Problem(
            shard=shards[group.rank],
            classes=np.arange(max(2, n_outputs)),
            n_problems=n_outputs,
            weight=1.0,
            total_weight=float(len(y)),
            total_rows=len(y),
            total_stored=X.size,
            dtype=X.dtype,
        )
        own = Penalty.of(penalty, 0.1, 0.3)
        objective = Objective(
            problem,
            own,
            fit_intercept=has_intercept,
            totals=add_up(problem, group, is_centred=has_intercept),
            group=group,
        )
        matrix = ParameterMatrix(W, b[:, 0] if has_intercept else None, own.prox)
        found = objective.evaluate(matrix)
        return found, options and objective.hessian(matrix, **options)

    return run_ranks(agent, n_ranks)


def some_point(n_outputs):
    return np.random.default_rng(1).normal(size=8 * n_outputs)


def centred(data):
    """The rows less their weighted mean, as the objective is of."""
    X, y, weight, n_outputs = data
    return X - weight @ X / len(y), y, weight, n_outputs


@pytest.mark.pairs
@pytest.mark.parametrize("n_ranks", [1, 3, 5])
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("n_bytes", [1, 50, 2**25])
def test_value_and_gradient(
    run_ranks, make_shards, monkeypatch, data, n_ranks, penalty, n_bytes
):
    """However much of a gradient is sent at a time."""
    monkeypatch.setattr(_objective, "_PART_BYTES", n_bytes)
    n_outputs = data[-1]
    point, formula = some_point(n_outputs), centred(data)
    found = evaluate(run_ranks, make_shards, n_ranks, data, penalty, point)
    loss = mean_loss(point, *formula)
    gradient = derivatives(lambda p: mean_loss(p, *formula), point, 1e-6)
    coefficients = point[: 7 * n_outputs].reshape(7, n_outputs)
    for rank, (own, _) in enumerate(found):
        assert own.loss == pytest.approx(loss, rel=1e-12)
        expected = loss + PENALTIES[penalty](coefficients)
        assert own.objective == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(own.slopes, gradient[7 * n_outputs :], atol=1e-8)
        if rank:
            assert own.gradient is None
        else:
            np.testing.assert_allclose(
                own.gradient.ravel(), gradient[: 7 * n_outputs], atol=1e-8
            )


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_second_derivatives(run_ranks, make_shards, data, n_ranks):
    """Of some coefficients and an intercept, which comes after the features."""
    n_outputs = data[-1]
    point, formula = some_point(n_outputs), centred(data)
    features = np.array([0, 2, 2, 6, 7])
    outputs = np.array([0, 1, 2, 1, 2]) % n_outputs
    if n_outputs == 1:
        features, outputs = features[[0, 1, 3, 4]], outputs[[0, 1, 3, 4]]

    def gradient(p):
        return derivatives(lambda q: mean_loss(q, *formula), p, 1e-4)

    places = features * n_outputs + outputs
    expected = derivatives(gradient, point, 1e-4)[np.ix_(places, places)]
    options = {"features": features, "outputs": outputs, "stride": 1}
    found = evaluate(run_ranks, make_shards, n_ranks, data, "l2", point, **options)
    np.testing.assert_allclose(found[0][1], expected, atol=1e-6)
    assert all(other is None for _, other in found[1:])


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_the_bound_is_met_at_the_minimum(
    run_ranks, make_shards, data, n_ranks, fit_intercept
):
    X, y, weight, n_outputs = data
    formula = centred(data) if fit_intercept else data
    n_coefficients = 7 * n_outputs
    n_free = 8 * n_outputs if fit_intercept else n_coefficients

    def value(free):
        point = np.append(free, np.zeros(8 * n_outputs - n_free))
        return mean_loss(point, *formula) + PENALTIES["l2"](point[:n_coefficients])

    best = optimize.minimize(value, np.zeros(n_free), method="BFGS", tol=1e-9)
    point = np.append(best.x, np.zeros(8 * n_outputs - n_free))
    for at, gap in ((point, 1e-6), (some_point(n_outputs), np.inf)):
        found = evaluate(
            run_ranks,
            make_shards,
            n_ranks,
            data,
            "l2",
            at,
            fit_intercept=fit_intercept,
        )
        for own, _ in found:
            assert -gap <= own.bound - best.fun <= 1e-9


@pytest.mark.each
@pytest.mark.parametrize("penalty", ["l1", "elasticnet", "trace"])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_the_bound_is_below_all_values(run_ranks, make_shards, data, n_ranks, penalty):
    """Also below the value at a point that is nearly the minimum."""
    n_outputs = data[-1]
    formula = centred(data)

    def value(point):
        coefficients = point[: 7 * n_outputs].reshape(7, n_outputs)
        return mean_loss(point, *formula) + PENALTIES[penalty](coefficients)

    best = optimize.minimize(value, np.zeros(8 * n_outputs), method="Powell")
    bounds = [
        own.bound
        for scale in (0.0, 0.1, 1.0)
        for own, _ in evaluate(
            run_ranks,
            make_shards,
            n_ranks,
            data,
            penalty,
            best.x + scale * some_point(n_outputs),
        )
    ]
    assert max(bounds) <= best.fun
    assert best.fun - max(bounds) < 0.05  # and says something


def test_memory_of_four_ranks(run_ranks, make_shards, monkeypatch):
    """A gradient of each, and little else."""
    monkeypatch.setattr(_objective, "_PART_BYTES", 2**16)
    monkeypatch.setattr(_class_sums, "_PART_BYTES", 2**16)
    monkeypatch.setattr(_objective, "_CHUNK", 2**12)
    X = np.random.default_rng(0).normal(size=(23, 8000))
    data = X, np.arange(23) % 3, np.ones(23), 80
    point = np.zeros(80 * 8001)

    def measured():
        evaluate(run_ranks, make_shards, 4, data, "l2", point)
        return tracemalloc.get_traced_memory()[1] / (8 * 80 * 8000)

    tracemalloc.start()
    try:
        measured()  # loads what it needs
        tracemalloc.reset_peak()
        found = measured()
    finally:
        tracemalloc.stop()
    # With the matrix of each rank, and sums of classes.
    assert found <= 4 + 4 + 2.5


def test_nothing_is_known_without_a_penalty(run_ranks, make_shards, data):
    point = some_point(data[-1])
    for own, _ in evaluate(run_ranks, make_shards, 3, data, None, point):
        assert own.bound == -np.inf
