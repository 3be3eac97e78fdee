"""Penalties against hand-computed values."""

import numpy as np
import pytest

from dask_ma.kernels import penalty_value

COEF = np.array([[3.0, -4.0], [0.0, 1.0]])


@pytest.mark.parametrize(
    "penalty, expected",
    [(None, 0.0), ("l2", 13.0), ("l1", 8.0), ("elasticnet", 0.75 * 13 + 0.25 * 8)],
)
def test_value(penalty, expected):
    value = penalty_value(penalty, COEF, l1_ratio=0.25)
    assert isinstance(value, float)
    assert value == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("l1_ratio, twin", [(0.0, "l2"), (1.0, "l1")])
def test_elasticnet_limits(l1_ratio, twin):
    assert penalty_value("elasticnet", COEF, l1_ratio) == penalty_value(twin, COEF)


@pytest.mark.parametrize("penalty, unit", [("l2", 0.5), ("l1", 1.0)])
def test_float32_is_summed_in_float64(penalty, unit):
    # a float32 sum of these stops growing at 2^24
    coef = np.ones(2**24 + 10, dtype=np.float32)
    assert penalty_value(penalty, coef) == unit * (2**24 + 10)


def test_l2_of_columns():
    assert penalty_value("l2", np.asfortranarray(COEF)) == 13.0


def test_unknown_penalty():
    with pytest.raises(ValueError, match="penalty must be .*got 'L2'"):
        penalty_value("L2", COEF)
