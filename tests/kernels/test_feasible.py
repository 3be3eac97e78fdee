"""Feasible points of the dual: the constraint, the formulas and the bound."""

import numpy as np
import pytest
from scipy import optimize, sparse, special

from dask_ma.kernels import (
    FeasibleMix,
    class_sums,
    entropy_sum,
    feasible_mix,
    log_loss_sum,
    mixed_entropy_sum,
    mixed_values,
    residuals,
    shrunk_entropy_sum,
    softmax,
)

ALPHA = 0.02
CONTAINERS = {
    "dense": np.asarray,
    "csr_matrix": sparse.csr_matrix,
    "csr_array": sparse.csr_array,
}
every_width = pytest.mark.parametrize("n_columns", [1, 2, 4])
# Weights of the last class, in those of its rows that it has otherwise.
few_weights = pytest.mark.parametrize("light", [1.0, 1e-12, 0.0])


def problem(n_columns, n_rows=50, light=1.0):
    """Rows, class codes, weights and the weights of the classes."""
    rng = np.random.default_rng([n_columns, n_rows])
    n_classes = max(2, n_columns)
    y = rng.integers(n_classes, size=n_rows)
    y[:n_classes] = np.arange(n_classes)
    X = rng.normal(size=(n_rows, 5)) + rng.normal(size=(n_classes, 5))[y]
    weight = rng.uniform(0.2, 2, n_rows)
    weight[y == n_classes - 1] *= light
    return X, y, weight, np.bincount(y, weight)


def random_dual(n_columns, n_rows=50, seed=0):
    rng = np.random.default_rng(seed)
    full = rng.dirichlet(np.full(max(2, n_columns), 0.5), n_rows)
    return full[:, -n_columns:]


def imbalance(dual, y, weight):
    return weight @ residuals(dual, y)


def mixed(dual, mix):
    n_columns = dual.shape[1]
    if mix.taken is not None:
        whole = dual if n_columns > 1 else np.hstack([1 - dual, dual])
        gone = whole * mix.taken
        whole = whole - gone + np.outer(gone.sum(axis=1), mix.given)
        dual = whole[:, -n_columns:]
    return (1 - mix.share) * dual + mix.share * mix.prior


@pytest.mark.parametrize("seed", range(2))
@few_weights
@every_width
def test_the_mixture_is_feasible(n_columns, light, seed):
    _, y, weight, counts = problem(n_columns, light=light)
    dual = random_dual(n_columns, seed=seed)
    mix = feasible_mix(imbalance(dual, y, weight), counts)
    assert mix.changes
    assert 0 <= mix.share < 1
    assert (mix.prior >= 0).all()
    assert mix.prior.sum() <= 1 + 1e-12
    assert (mix.taken is None) == (light == 1)
    point = mixed(dual, mix)
    assert (point >= 0).all() and (point.sum(axis=1) <= 1 + 1e-12).all()
    found = imbalance(point, y, weight)
    np.testing.assert_allclose(found, 0, atol=1e-10)


def test_no_smaller_share_will_do():
    _, y, weight, counts = problem(4)
    dual = random_dual(4)
    mix = feasible_mix(imbalance(dual, y, weight), counts)
    # Of one class there is nothing left to take away.
    assert mix.prior.min() == pytest.approx(0, abs=1e-12)


@every_width
def test_a_feasible_point_stays(n_columns):
    counts = np.arange(1.0, max(2, n_columns) + 1)
    mix = feasible_mix(np.zeros(n_columns), counts)
    assert mix.share == 0 and not mix.changes
    np.testing.assert_allclose(mix.prior, (counts / counts.sum())[-n_columns:])


def test_a_class_without_rows_must_vanish():
    """What it has goes to the class that lacks some; of the others less is taken."""
    mix = feasible_mix(np.array([-2.0, 0.5, 1.5]), np.array([4.0, 0.0, 3.0]))
    np.testing.assert_array_equal(mix.taken, [0, 1, 0])
    np.testing.assert_array_equal(mix.given, [1, 0, 0])
    assert mix.share == pytest.approx(1.5 / (3 + 1.5))
    np.testing.assert_allclose(mix.prior, [1, 0, 0], atol=1e-15)
    mix = feasible_mix(np.array([-2.0, 0.0, 2.0]), np.array([4.0, 0.0, 3.0]))
    assert mix.share == pytest.approx(2 / 5) and mix.taken is None


def test_a_surplus_that_nobody_lacks_goes_to_all():
    """As rounding leaves it."""
    mix = feasible_mix(np.array([0.0, 1e-9, 0.0]), np.array([3.0, 0.0, 1.0]))
    np.testing.assert_allclose(mix.given, [3 / 4, 0, 1 / 4])
    assert mix.share < 1e-9


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("container", sorted(CONTAINERS))
def test_class_sums_by_hand(container, weighted):
    X, y, weight, _ = problem(3)
    sums = class_sums(CONTAINERS[container](X), y, weight if weighted else None, 4)
    assert type(sums) is np.ndarray
    expected = np.zeros((5, 4))
    for i, row in enumerate(X):
        expected[:, y[i]] += row * (weight[i] if weighted else 1)
    np.testing.assert_allclose(sums, expected, atol=1e-12)


@pytest.mark.parametrize("container", sorted(CONTAINERS))
def test_sums_of_some_of_many_classes_are_added(container):
    """Those that rows lack stay as they are."""
    X, y, weight, _ = problem(3)
    codes = np.array([11, 2, 7, 5])[y]
    out = np.arange(60.0).reshape(5, 12)
    expected = out.copy()
    for i, row in enumerate(X):
        expected[:, codes[i]] += row * weight[i]
    found = class_sums(CONTAINERS[container](X), codes, weight, 12, out)
    assert found is out
    np.testing.assert_allclose(out, expected, rtol=1e-12)


@few_weights
@every_width
def test_values_and_entropies_of_the_mixture(n_columns, light):
    X, y, weight, counts = problem(n_columns, light=light)
    scale, dual = 1 / (ALPHA * weight.sum()), random_dual(n_columns)

    def values(q):
        return -scale * X.T @ (weight[:, np.newaxis] * residuals(q, y))

    sums = class_sums(X, y, weight, len(counts))
    for mix in [
        feasible_mix(imbalance(dual, y, weight), counts),
        FeasibleMix(0.0, dual[0]),
        FeasibleMix(1.0, dual[0]),
    ]:
        found = mixed_values(values(dual), sums, mix, scale=scale)
        np.testing.assert_allclose(found, values(mixed(dual, mix)), atol=1e-12)
        entropy = mixed_entropy_sum(dual, weight, mix)
        assert entropy == pytest.approx(entropy_sum(mixed(dual, mix), weight))


def bound(X, y, weight, counts, dual):
    """Dual value of the feasible point of any dual point."""
    total = weight.sum()
    scale = 1 / (ALPHA * total)
    values = -scale * X.T @ (weight[:, np.newaxis] * residuals(dual, y))
    mix = feasible_mix(imbalance(dual, y, weight), counts)
    sums = class_sums(X, y, weight, len(counts))
    values = mixed_values(values, sums, mix, scale=scale)
    entropy = mixed_entropy_sum(dual, weight, mix)
    return entropy / total - ALPHA / 2 * np.vdot(values, values)


def optimum(X, y, weight, n_columns):
    """Least primal value and its model."""

    def primal(flat):
        coef, intercept = flat[:-n_columns].reshape(-1, n_columns), flat[-n_columns:]
        loss = log_loss_sum(X @ coef + intercept, y, weight) / weight.sum()
        return loss + ALPHA / 2 * np.vdot(coef, coef)

    found = optimize.minimize(primal, np.zeros((X.shape[1] + 1) * n_columns), tol=1e-10)
    flat = found.x
    return found.fun, X @ flat[:-n_columns].reshape(-1, n_columns) + flat[-n_columns:]


@few_weights
@every_width
def test_a_bound_of_the_optimum_that_is_tight_there(n_columns, light):
    X, y, weight, counts = problem(n_columns, light=light)
    best, margins = optimum(X, y, weight, n_columns)
    for seed in range(20):
        found = bound(X, y, weight, counts, random_dual(n_columns, seed=seed))
        assert found < best
    at_best = bound(X, y, weight, counts, softmax(margins))
    assert at_best == pytest.approx(best, abs=1e-4)
    assert at_best <= best + 1e-9


def test_an_infeasible_point_is_no_bound():
    # Why the mixture is needed: here the plain dual value exceeds the optimum.
    X, y, weight, counts = np.zeros((4, 1)), np.array([0, 0, 0, 1]), np.ones(4), [3, 1]
    dual = np.full((4, 2), 0.5)
    best = special.entr([0.75, 0.25]).sum()
    assert entropy_sum(dual) / 4 > best + 0.1
    assert bound(X, y, weight, np.array(counts), dual) <= best + 1e-12


@pytest.mark.parametrize("n_columns", [1, 4])
@pytest.mark.parametrize("share", [0.0, 0.3])
@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0])
def test_shrunk_entropies(n_columns, share, factor):
    """Row by row, with both probabilities where one column stands for two."""
    rng = np.random.default_rng(0)
    n_classes = max(2, n_columns)
    full, prior = (
        rng.dirichlet(np.ones(n_classes), 9),
        rng.dirichlet(np.ones(n_classes)),
    )
    y, weight = rng.integers(0, n_classes, 9), rng.uniform(0, 2, 9)
    expected = 0.0
    for q, label, s in zip(full, y, weight, strict=True):
        p = factor * ((1 - share) * q + share * prior)
        p += (1 - factor) * np.eye(n_classes)[label]
        expected -= s * sum(x * np.log(x) for x in p if x > 1e-15)
    mix = FeasibleMix(share, prior[-n_columns:])
    found = shrunk_entropy_sum(full[:, -n_columns:], y, weight, mix, factor)
    assert found == pytest.approx(expected, abs=1e-12)
