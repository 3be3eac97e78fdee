"""Intercepts that settle while coefficients stay, and what bounds gain by it."""

import numpy as np
import pytest
from scipy import special

from dask_ma.data import Block, Shard
from dask_ma.sfb.logistic import _intercepts
from dask_ma.sfb.logistic._intercepts import settle_intercepts
from dask_ma.sfb.logistic._objective import Objective
from dask_ma.sfb.logistic._penalty import Penalty
from dask_ma.sfb.logistic._totals import add_up
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.supervised import Problem


@pytest.fixture(params=[1, 3], ids=["two", "three"])
def data(request, rows):
    """Rows, codes of as many classes, weights with mean 1, and the outputs."""
    y = rows.y if request.param == 3 else (rows.y > 0).astype(int)
    return rows.X, y, rows.weight / rows.weight.mean(), request.param


@pytest.fixture
def on_ranks(run_ranks, make_shards, data):
    """``on_ranks(function, n_ranks, intercept)``: what it gives for each rank."""
    X, y, weight, n_outputs = data
    W = np.random.default_rng(1).normal(size=(n_outputs, X.shape[1]))

    def run(function, n_ranks, intercept):
        shards = make_shards(n_ranks, X, y, weight)

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
            totals = add_up(problem, group, is_centred=True)
            place = problem, totals, group
            return function(
                place, ParameterMatrix(W, intercept, Penalty.of("l2", 1e-3, 0).prox)
            )

        return run_ranks(agent, n_ranks)

    return run


@pytest.mark.each
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_column_that_is_the_same_in_many_rows(run_ranks, n_ranks, weighted):
    """Its mean is exact enough to tell that it is no feature, however many add up."""
    rng, n_rows = np.random.default_rng(0), 200_000
    X, y = rng.normal(size=(n_rows, 3)), rng.integers(2, size=n_rows)
    X[:, 1], X[:, 2] = 7.3, 0.1
    weight = rng.uniform(0.5, 2, n_rows) if weighted else np.ones(n_rows)
    weight *= n_rows / weight.sum()
    data = X, y, weight
    parts = zip(*(np.array_split(array, 4) for array in data), strict=True)
    blocks = [Block(*part, i, 50_000 * i) for i, part in enumerate(parts)]

    def agent(group):
        shard = Shard(blocks[group.rank :: n_ranks], 3, X.dtype)
        sizes = {"total_rows": n_rows, "total_stored": X.size, "dtype": X.dtype}
        labels = {"classes": np.arange(2), "n_problems": 1}
        weights = {"weight": 1.0, "total_weight": float(n_rows)}
        problem = Problem(shard=shard, **labels, **weights, **sizes)
        return add_up(problem, group, is_centred=True)

    for totals in run_ranks(agent, n_ranks):
        np.testing.assert_allclose(totals.centre, weight @ X / n_rows, atol=1e-11)
        assert totals.feature_scales[1:].tolist() == [1, 1]


def slopes_at(data, matrix, margins):
    """Sums of the slopes of the losses, from the linear functions of all rows."""
    _, y, weight, n_outputs = data
    if n_outputs == 1:
        return weight @ (special.expit(margins[:, 0]) - y)
    return weight @ (special.softmax(margins, axis=1) - np.eye(n_outputs)[y])


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("far", [0.0, 3.0, 100.0])
def test_slopes_vanish(data, on_ranks, n_ranks, far):
    n_outputs = data[-1]
    start = far * np.cos(np.arange(n_outputs))

    def settle(place, matrix):
        return settle_intercepts(*place, matrix), matrix, place[1].centre

    found = on_ranks(settle, n_ranks, start)
    margins = np.vstack([part for parts, *_ in found for part in parts])
    _, matrix, centre = found[0]
    expected = (data[0] - centre) @ matrix.whole() + matrix.intercept
    np.testing.assert_allclose(margins, expected, atol=1e-8)
    np.testing.assert_allclose(slopes_at(data, matrix, margins), 0, atol=1e-5)
    for _, other, _ in found[1:]:
        np.testing.assert_array_equal(other.intercept, matrix.intercept)
    if n_outputs > 1:  # the loss does not depend on the mean
        assert matrix.intercept.mean() == pytest.approx(start.mean(), abs=1e-8)


def test_too_many_rows_and_none_to_settle(monkeypatch, data, on_ranks):
    def settle(place, matrix):
        return settle_intercepts(*place, matrix), matrix

    assert on_ranks(settle, 1, None)[0][0] is None
    monkeypatch.setattr(_intercepts, "MOST_BYTES", 100)
    start = np.ones(data[-1])
    margins, matrix = on_ranks(settle, 1, start)[0]
    assert margins is None
    np.testing.assert_array_equal(matrix.intercept, start)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_the_bound_is_that_of_the_gradient(data, on_ranks, n_ranks):
    """Slopes of intercepts would have to be mixed away, which costs far more."""
    alpha = 1e-3

    def evaluate(place, matrix):
        problem, totals, group = place
        objective = Objective(
            problem,
            Penalty.of("l2", alpha, 0.0),
            fit_intercept=True,
            totals=totals,
            group=group,
        )
        before = objective.evaluate(matrix)
        return before, objective.evaluate(matrix, settles=True), matrix.whole().copy()

    found = on_ranks(evaluate, n_ranks, 0.3 * np.arange(data[-1]) - 0.2)
    before, after, values = found[0]
    assert after.objective < before.objective
    gap = after.objective - after.bound
    whole = after.gradient + alpha * values
    assert gap == pytest.approx((whole**2).sum() / (2 * alpha), rel=1e-4)
    assert 0 < after.curvature <= 0.25
    assert {each.objective for _, each, _ in found} == {after.objective}
