"""Losses against scikit-learn's own and against their formulas."""

import math

import numpy as np
import pytest
from sklearn._loss._loss import CyHalfSquaredError, CyHuberLoss
from sklearn.linear_model._sgd_fast import (
    EpsilonInsensitive,
    Hinge,
    ModifiedHuber,
    SquaredEpsilonInsensitive,
    SquaredHinge,
)

from dask_ma.kernels import LOSSES, loss_values

EPSILON = 0.3
MARGIN_LOSSES = ["hinge", "log_loss", "modified_huber", "squared_hinge", "perceptron"]
PREDICTIONS = [-50.0, -2.0, -1.0, -0.31, -0.3, 0.0, 0.29, 0.7, 1.0, 1.3, 2.0, 50.0]

SKLEARN = {
    "hinge": Hinge(1.0),
    "perceptron": Hinge(0.0),
    "squared_hinge": SquaredHinge(1.0),
    "modified_huber": ModifiedHuber(),
    "epsilon_insensitive": EpsilonInsensitive(EPSILON),
    "squared_epsilon_insensitive": SquaredEpsilonInsensitive(EPSILON),
}
FORMULAS = {
    "log_loss": lambda y, p: math.log1p(math.exp(-y * p)),
    "squared_error": lambda y, p: 0.5 * (p - y) ** 2,
    "huber": lambda y, p: (
        0.5 * (p - y) ** 2
        if abs(p - y) <= EPSILON
        else EPSILON * abs(p - y) - 0.5 * EPSILON**2
    ),
}


def test_every_loss_is_tested():
    assert set(SKLEARN) | set(FORMULAS) == set(LOSSES)


@pytest.mark.parametrize("name", sorted(SKLEARN))
@pytest.mark.parametrize("target", [-1.0, 1.0])
def test_equals_scikit_learn(name, target):
    y = np.full(len(PREDICTIONS), target)
    expected = [SKLEARN[name].py_loss(p, target) for p in PREDICTIONS]
    got = loss_values(name, y, np.array(PREDICTIONS), EPSILON)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", sorted(FORMULAS))
@pytest.mark.parametrize("target", [-1.0, 1.0])
def test_equals_formula(name, target):
    y = np.full(len(PREDICTIONS), target)
    expected = [FORMULAS[name](target, p) for p in PREDICTIONS]
    got = loss_values(name, y, np.array(PREDICTIONS), EPSILON)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    "name, reference",
    [("squared_error", CyHalfSquaredError()), ("huber", CyHuberLoss(EPSILON))],
)
def test_regression_losses_equal_scikit_learn(name, reference):
    rng = np.random.default_rng(0)
    y, p = rng.normal(size=(2, 100))
    expected = np.empty(100)
    reference.loss(
        y_true=y, raw_prediction=p, sample_weight=None, loss_out=expected, n_threads=1
    )
    np.testing.assert_allclose(loss_values(name, y, p, EPSILON), expected, rtol=1e-12)


@pytest.mark.parametrize("name", MARGIN_LOSSES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_margin_losses_are_finite_at_extremes(name, dtype):
    p = np.array([-1e15, -800, 800, 1e15], dtype=dtype)
    for target in (-1, 1):
        values = loss_values(name, np.full(4, target, dtype=dtype), p)
        assert values.dtype == dtype
        assert np.isfinite(values).all()
        right = values[np.sign(p) == target]
        np.testing.assert_array_equal(right, 0)


def test_log_loss_keeps_small_values():
    values = loss_values("log_loss", np.ones(2), np.array([40.0, -700.0]))
    np.testing.assert_allclose(values, [math.exp(-40), 700.0], rtol=1e-12)


def test_squared_loss_overflows_to_infinity_in_silence():
    values = loss_values("squared_error", np.zeros(1), np.array([1e200]))
    assert values[0] == np.inf


@pytest.mark.each
@pytest.mark.parametrize("name", sorted(LOSSES))
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_keeps_dtype_and_inputs(name, dtype):
    y = np.array([1, -1, 1], dtype=dtype)
    p = np.array([0.5, 0.5, -3], dtype=dtype)
    y_before, p_before = y.copy(), p.copy()
    assert loss_values(name, y, p, EPSILON).dtype == dtype
    np.testing.assert_array_equal(y, y_before)
    np.testing.assert_array_equal(p, p_before)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_empty(name):
    assert loss_values(name, np.empty(0), np.empty(0)).shape == (0,)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_nan_prediction_gives_nan(name):
    assert np.isnan(loss_values(name, np.ones(1), np.array([np.nan])))[0]


def test_unknown_loss():
    with pytest.raises(ValueError, match="loss must be one of .*got 'hing'"):
        loss_values("hing", np.ones(1), np.ones(1))
