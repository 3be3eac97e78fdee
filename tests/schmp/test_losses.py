"""Losses against scikit-learn's formulas, finite differences and duality."""

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.metrics import log_loss, mean_squared_error

from dask_ma.kernels import LogLoss, MultinomialLogLoss, SquaredError
from dask_ma.schmp.l1._losses import WeightedLoss

N = 12
KINDS = ["squared", "two", "three"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def make_loss(kind, seed=0):
    """A loss with weights that add up to 1; its targets have the mean 0."""
    rng = np.random.default_rng(seed)
    weight = rng.uniform(0.5, 2, N)
    weight /= weight.sum()
    if kind == "squared":
        y = rng.normal(size=N)
        return WeightedLoss(SquaredError(), y - weight @ y, weight)
    if kind == "two":
        return WeightedLoss(LogLoss(), np.arange(N) % 2, weight)
    return WeightedLoss(MultinomialLogLoss(3), np.arange(N) % 3, weight)


def make_margins(loss, spread=2.0, seed=1):
    rng = np.random.default_rng(seed)
    return spread * rng.normal(size=(N, loss.n_outputs))


def settle(loss, margins):
    """Move all margins of an output so that its slopes add up to 0."""

    def total(shift):
        slopes = loss.negative_slopes(margins + shift)
        return loss.value(margins + shift), -slopes.sum(axis=0)

    start = np.zeros(loss.n_outputs)
    options = {"gtol": 1e-13, "ftol": 1e-16}
    found = minimize(total, start, jac=True, method="L-BFGS-B", options=options)
    return margins + found.x


@every_kind
def test_values(kind):
    loss = make_loss(kind)
    margins = make_margins(loss)
    if kind == "squared":
        expected = mean_squared_error(loss.y, margins[:, 0], sample_weight=loss.weight)
        expected /= 2
    else:
        if kind == "two":
            margins_of_all = np.hstack([0 * margins, margins])
        else:
            margins_of_all = margins
        exponents = np.exp(margins_of_all)
        probabilities = exponents / exponents.sum(axis=1, keepdims=True)
        expected = log_loss(loss.y, probabilities, sample_weight=loss.weight)
    assert loss.value(margins) == pytest.approx(expected, rel=1e-12)


@every_kind
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_slopes(kind, spread):
    loss = make_loss(kind)
    margins, step = make_margins(loss, spread), 1e-5
    slopes = loss.negative_slopes(margins)
    for row, output in np.ndindex(margins.shape):
        moved = np.zeros_like(margins)
        moved[row, output] = step
        ahead, behind = loss.value(margins + moved), loss.value(margins - moved)
        expected = (behind - ahead) / (2 * step)
        assert slopes[row, output] == pytest.approx(expected, abs=1e-9)


@every_kind
def test_curvature(kind):
    loss = make_loss(kind)
    margins, step = make_margins(loss), 1e-5
    largest = 0.0
    for right in range(loss.n_outputs):
        moved = np.zeros_like(margins)
        moved[:, right] = step
        ahead, behind = (loss.negative_slopes(margins + s * moved) for s in (1, -1))
        change = (behind - ahead) / (2 * step)
        for left in range(loss.n_outputs):
            curvature = loss.curvatures(margins)(left)[:, right]
            np.testing.assert_allclose(curvature, change[:, left], atol=1e-9)
            largest = max(largest, (np.abs(curvature) / loss.weight).max())
    assert largest <= loss.smoothness


@every_kind
@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_smoothness_bounds_the_curvature_along_any_direction(kind, spread):
    loss = make_loss(kind)
    margins = make_margins(loss, spread)
    K = range(loss.n_outputs)
    hessians = np.moveaxis(
        [[loss.curvatures(margins)(a)[:, b] / loss.weight for b in K] for a in K], -1, 0
    )
    eigenvalues = np.linalg.eigvalsh(hessians)
    assert eigenvalues.min() > -1e-15
    assert eigenvalues.max() <= loss.smoothness + 1e-15
    if spread == 0 and kind != "three":
        assert eigenvalues.max() == pytest.approx(loss.smoothness)


@every_kind
@pytest.mark.parametrize("alpha", [0.01, 0.1])
@pytest.mark.parametrize("seed", range(5))
def test_weak_duality(kind, alpha, seed):
    """Any model is at least as bad as any dual point is good."""
    loss = make_loss(kind, seed)
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, 4))

    def primal(coef, intercept):
        return loss.value(X @ coef + intercept) + alpha * np.abs(coef).sum()

    shape = (4, loss.n_outputs)
    models = [
        (s * rng.normal(size=shape), rng.normal(size=loss.n_outputs))
        for s in (0, 0.1, 0.3, 1)
    ]
    models += [(0 * coef, 0 * intercept) for coef, intercept in models[:1]]
    lowest = min(primal(coef, intercept) for coef, intercept in models)
    highest = -np.inf
    for coef, intercept in models:
        margins = settle(loss, X @ coef + intercept)
        slopes = loss.negative_slopes(margins)
        np.testing.assert_allclose(slopes.sum(axis=0), 0, atol=1e-5)
        reach = np.abs(X.T @ slopes).max() / alpha
        top = min(1.0, 1 / reach)
        for scale in (0, 0.3 * top, 0.9 * top, top):
            highest = max(highest, loss.dual(margins, scale))
    assert highest <= lowest + 1e-8
    assert highest > -1e-12  # a scale of 0 gives 0


@every_kind
def test_a_scale_that_is_too_large_is_no_bound(kind):
    """The test above can fail: the slopes as they are exceed the minimum."""
    loss = make_loss(kind)
    zeros = settle(loss, np.zeros((N, loss.n_outputs)))
    at_zero = loss.dual(zeros, 1.0)
    assert at_zero == pytest.approx(loss.value(zeros), rel=1e-9)
    best = loss.y[:, np.newaxis] if kind == "squared" else make_perfect(loss)
    assert loss.value(best) < at_zero


def make_perfect(loss):
    if loss.n_outputs == 1:
        return 20.0 * np.where(loss.y == 1, 1, -1)[:, np.newaxis]
    return 20.0 * np.eye(3)[loss.y]


@every_kind
@pytest.mark.parametrize("alpha", [0.02, 0.1])
def test_strong_duality(kind, alpha):
    """At the optimum, found by splitting coefficients in two, both sides are equal."""
    loss = make_loss(kind)
    X = np.random.default_rng(3).normal(size=(N, 3))
    K = loss.n_outputs
    size = 3 * K

    def objective(values):
        coef = (values[:size] - values[size : 2 * size]).reshape(3, K)
        margins = X @ coef + values[2 * size :]
        slopes = loss.negative_slopes(margins)
        smooth = -(X.T @ slopes).ravel()
        gradient = [smooth + alpha, -smooth + alpha, -slopes.sum(axis=0)]
        total = loss.value(margins) + alpha * values[: 2 * size].sum()
        return total, np.concatenate(gradient)

    bounds = [(0, None)] * (2 * size) + [(None, None)] * K
    options = {"maxiter": 10_000, "maxfun": 10**5, "ftol": 1e-16, "gtol": 1e-11}
    found = minimize(
        objective, np.zeros(len(bounds)), jac=True, bounds=bounds, options=options
    )
    coef = (found.x[:size] - found.x[size : 2 * size]).reshape(3, K)
    margins = settle(loss, X @ coef + found.x[2 * size :])
    reach = np.abs(X.T @ loss.negative_slopes(margins)).max() / alpha
    assert coef.any() and reach == pytest.approx(1, abs=1e-4)
    dual = loss.dual(margins, min(1.0, 1 / reach))
    assert dual == pytest.approx(found.fun, abs=1e-6)


def model_norm(loss, margins):
    """The constant that `norm` is to bound, row by row."""
    slopes = loss.negative_slopes(margins) / loss.weight[:, np.newaxis]
    K = range(loss.n_outputs)
    total = 0.0
    for row in range(N):
        D = (
            np.array([[loss.curvatures(margins)(a)[:, b][row] for b in K] for a in K])
            / loss.weight[row]
        )
        if loss.is_quadratic:
            target = np.atleast_1d(loss.y[row])
        else:
            target = margins[row] + np.linalg.pinv(D, rcond=1e-10) @ slopes[row]
        total += loss.weight[row] * target @ D @ target
    return total


@every_kind
@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0])
def test_norm(kind, spread):
    loss = make_loss(kind)
    margins = make_margins(loss, spread)
    expected = model_norm(loss, margins)
    assert loss.norm(margins) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("kind", ["two", "three"])
@pytest.mark.parametrize("size", [50.0, 800.0])
def test_large_margins(kind, size):
    """No warning, which is an error here, and finite numbers."""
    loss = make_loss(kind)
    for sign in (-1, 1):
        margins = sign * size / 20 * make_perfect(loss)
        assert loss.value(margins) >= 0
        assert np.isfinite(loss.norm(margins))
        assert np.isfinite(loss.negative_slopes(margins)).all()
        for scale in (0, 0.5, 1):
            assert np.isfinite(loss.dual(margins, scale))
        if sign == 1:
            assert loss.value(margins) < 1e-20
        else:
            expected = size if kind == "two" else size
            assert loss.value(margins) == pytest.approx(expected, rel=0.05)


@every_kind
def test_no_rows(kind):
    """A rank without rows adds nothing."""
    y, none = np.zeros(0, dtype=np.int64), np.zeros(0)
    of_row = {
        "squared": SquaredError(),
        "two": LogLoss(),
        "three": MultinomialLogLoss(3),
    }[kind]
    loss = WeightedLoss(of_row, none if kind == "squared" else y, none)
    margins = np.zeros((0, loss.n_outputs))
    assert loss.value(margins) == loss.dual(margins, 0.5) == loss.norm(margins) == 0
    assert loss.negative_slopes(margins).shape == margins.shape
    assert loss.curvatures(margins)(0)[:, 0].shape == (0,)
