"""Losses of distances against slow loops and finite differences."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from sklearn.neighbors import KNeighborsClassifier

from dask_ma.kernels import (
    MetricLoss,
    batch_weights,
    distance_gradient,
    neighbour_hits,
    pair_losses,
    squared_distances,
    triplet_losses,
)

LOSSES = [
    MetricLoss("nca"),
    MetricLoss("hinge", 2.0, 3.0),
    MetricLoss("logistic", 1.5),
    MetricLoss("triplet", 0.7),
]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
# The last row is alone in its class.
CODES = np.array([0, 1, 0, 1, 2, 2, 0, 3])
Z = np.random.default_rng(0).normal(size=(8, 3))


def slow_loss(Z, codes, loss, rows=None):
    """The sum over rows, pair by pair."""
    total = 0.0
    for i in range(len(Z)) if rows is None else rows:
        others = [j for j in range(len(Z)) if j != i]
        D = {j: ((Z[i] - Z[j]) ** 2).sum() for j in others}
        near = [j for j in others if codes[j] == codes[i]]
        far = [j for j in others if codes[j] != codes[i]]
        if not near or (not far and loss.name != "nca"):
            continue
        if loss.name == "nca":
            probability = sum(np.exp(-D[j]) for j in near)
            total -= np.log(probability / sum(np.exp(-D[j]) for j in others))
        elif loss.name == "triplet":
            excess = [max(0, loss.margin + D[j] - D[k]) for j in near for k in far]
            total += np.mean(excess)
        elif loss.name == "hinge":
            total += np.mean([D[j] for j in near])
            total += loss.push * np.mean([max(0, loss.margin - D[k]) for k in far])
        else:
            total += np.mean([np.log1p(np.exp(3 * (D[j] - loss.margin))) for j in near])
            total += np.mean([np.log1p(np.exp(3 * (loss.margin - D[k]))) for k in far])
    return total / (3 if loss.name == "logistic" else 1)


def loss_and_gradient(Z, codes, loss, rows):
    own = Z[rows]
    weights, value = batch_weights(
        squared_distances(own, Z), codes[rows][:, np.newaxis] == codes, rows, loss
    )
    of_own, gradient = distance_gradient(weights, own, Z)
    gradient[rows] += of_own
    return value, gradient


@every_loss
@pytest.mark.parametrize("rows", [np.arange(8), np.array([1, 2, 7])], ids=len)
def test_losses_of_a_batch(loss, rows):
    value, gradient = loss_and_gradient(Z, CODES, loss, rows)
    assert value == pytest.approx(slow_loss(Z, CODES, loss, rows), rel=1e-12)
    expected = approx_fprime(
        Z.ravel(), lambda z: slow_loss(z.reshape(Z.shape), CODES, loss, rows), 1e-7
    )
    np.testing.assert_allclose(gradient.ravel(), expected, atol=2e-5)


@every_loss
@pytest.mark.parametrize("codes", [np.zeros(5, int), np.arange(5)], ids=["one", "all"])
def test_batches_in_which_nothing_can_be_compared(loss, codes):
    """One class, or no two rows of a class: no gradient, and no NaN."""
    value, gradient = loss_and_gradient(Z[:5], codes, loss, np.arange(5))
    assert value == pytest.approx(0, abs=1e-12)
    np.testing.assert_allclose(gradient, 0, atol=1e-12)


@every_loss
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances_that_are_large(loss, dtype):
    """Exponentials that vanish are no division by zero."""
    value, gradient = loss_and_gradient(
        (100 * Z).astype(dtype), CODES, loss, np.arange(8)
    )
    assert gradient.dtype == dtype
    assert np.isfinite(gradient).all()
    assert np.isfinite(value)


def test_a_batch_without_rows():
    none = np.zeros(0, dtype=int)
    for loss in LOSSES:
        value, gradient = loss_and_gradient(Z, CODES, loss, none)
        assert value == 0
        assert (gradient == 0).all()


@pytest.mark.parametrize("loss", LOSSES[1:3], ids=lambda loss: loss.name)
@pytest.mark.parametrize("similar", [True, False])
def test_losses_of_pairs(loss, similar):
    distances = np.array([0.0, 0.3, 1.4, 1.6, 5.0, 100.0])
    values, slopes = pair_losses(distances, similar, loss)
    if loss.name == "logistic":
        sign = 1 if similar else -1
        expected = np.logaddexp(0, 3 * sign * (distances - 1.5)) / 3
    else:
        expected = distances if similar else 3 * np.maximum(0, 2 - distances)
    np.testing.assert_allclose(values, expected)
    step = 1e-6
    ahead = pair_losses(distances + step, similar, loss)[0]
    np.testing.assert_allclose(slopes, (ahead - values) / step, atol=1e-4)
    # Labels of their own for each pair.
    labels = np.where(np.arange(6) % 2 == 0, similar, not similar)
    mixed = pair_losses(distances, labels, loss)[0]
    np.testing.assert_array_equal(mixed[::2], values[::2])
    assert (mixed[1::2] != values[1::2]).any()


def test_losses_of_triplets():
    near, far = np.array([1.0, 1.0, 3.0]), np.array([3.0, 1.2, 1.0])
    values, slopes = triplet_losses(near, far, 0.5)
    np.testing.assert_allclose(values, [0, 0.3, 2.5])
    assert slopes.tolist() == [0, 1, 1]


@pytest.mark.parametrize("k", [1, 3])
def test_neighbours_that_name_the_class(k):
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 3, 40)
    rows = rng.normal(size=(40, 2)) + codes[:, np.newaxis]
    expected = 0
    for i in range(40):
        rest = np.arange(40) != i
        peer = KNeighborsClassifier(k).fit(rows[rest], codes[rest])
        _, near = peer.kneighbors(rows[[i]])
        named = codes[rest][near[0]]
        counts = np.bincount(named)
        # Where all three differ, the nearest one decides.
        winner = named[0] if counts.max() == 1 else counts.argmax()
        expected += winner == codes[i]
    own = np.arange(40)
    assert neighbour_hits(rows, codes, rows, codes, own, k) == expected
    parts = [
        neighbour_hits(rows[part], codes[part], rows, codes, part, k)
        for part in (own[:13], own[13:], own[:0])
    ]
    assert sum(parts) == expected
