"""What changes from cycle to cycle, and the step size, against the formulas."""

import numpy as np
import pytest
from sklearn.neural_network._stochastic_optimizers import SGDOptimizer

from dask_ma.mpca.strategies._schedules import N_RAMP, CycleSchedule, LearningRate


@pytest.fixture
def schedule():
    """The values of section 7.1."""
    return CycleSchedule(extrapolation=0.7, smoothing=0.8, penalty=0.05, blending=0.9)


# Cycles -------------------------------------------------------------------------------


@pytest.mark.parametrize("blending", [0.9, 0.5, 1.0])
def test_blending_falls_from_one_by_a_constant_factor_over_5_cycles(schedule, blending):
    schedule = schedule._replace(blending=blending)
    values = [schedule.blending_at(cycle) for cycle in range(30)]
    assert values[0] == 1.0
    factors = np.array(values[1:6]) / values[:5]
    np.testing.assert_allclose(factors, blending ** (1 / 5), rtol=1e-14)
    np.testing.assert_allclose(values[5:], blending, rtol=1e-15)
    assert N_RAMP == 5


def test_extrapolation_rises_from_zero_in_a_line(schedule):
    values = [schedule.extrapolation_at(cycle) for cycle in range(30)]
    np.testing.assert_allclose(values[:6], np.linspace(0, 0.7, 6), rtol=1e-14)
    np.testing.assert_allclose(values[5:], 0.7, rtol=1e-15)


def test_no_extrapolation(schedule):
    schedule = schedule._replace(extrapolation=0.0)
    assert [schedule.extrapolation_at(cycle) for cycle in (0, 7, 50)] == [0.0] * 3


@pytest.mark.parametrize("penalty", [0.05, 0.3, 1e-4])
def test_penalty_is_nothing_then_a_half_and_then_decays(schedule, penalty):
    schedule = schedule._replace(penalty=penalty)
    values = [schedule.penalty_at(cycle) for cycle in range(30)]
    assert values[:3] == [0.0, 0.0, 0.5]
    factors = np.array(values[3:13]) / values[2:12]
    np.testing.assert_allclose(factors, (penalty / 0.5) ** 0.1, rtol=1e-13)
    np.testing.assert_allclose(values[12:], penalty, rtol=1e-14)


@pytest.mark.parametrize("penalty", [0.5, 0.8, 1.0])
def test_a_strong_penalty_does_not_begin_weaker(schedule, penalty):
    schedule = schedule._replace(penalty=penalty)
    values = [schedule.penalty_at(cycle) for cycle in range(20)]
    assert values == [0.0, 0.0] + [penalty] * 18


@pytest.mark.parametrize("pull", [0.05, 0.4, 0.9])
@pytest.mark.parametrize("tau", [1, 2.5, 17, 300])
def test_the_steps_of_a_cycle_draw_by_a_part_of_the_distance(schedule, pull, tau):
    """From the first joint model on, and with no jump."""
    schedule = schedule._replace(penalty=None, pull=pull)
    values = [schedule.penalty_at(cycle, tau) for cycle in range(30)]
    assert values[0] == 0
    assert set(values[1:]) == {values[1]}
    assert (1 - values[1]) ** tau == pytest.approx(1 - pull, rel=1e-12)


def test_no_penalty_at_all(schedule):
    schedule = schedule._replace(penalty=0.0)
    assert not any(schedule.penalty_at(cycle) for cycle in range(20))


# Step size ----------------------------------------------------------------------------


def rates_of(rate, n_epochs=8, n_rows=130):
    """Step size after each epoch."""
    values = []
    for epoch in range(1, n_epochs + 1):
        rate.end_epoch(float(epoch * n_rows), epoch / n_epochs)
        values.append(rate.value)
    return values


def sklearn_rates(schedule, n_epochs=8, n_rows=130):
    """The same of scikit-learn's optimiser."""
    optimizer = SGDOptimizer([], 0.2, schedule, power_t=0.6)
    values = []
    for epoch in range(1, n_epochs + 1):
        optimizer.iteration_ends(epoch * n_rows)
        values.append(optimizer.learning_rate)
    return values


@pytest.mark.parametrize("name", ["constant", "invscaling", "adaptive"])
def test_rates_are_those_of_sklearn(name):
    rates = rates_of(LearningRate(name, 0.2, 0.6))
    np.testing.assert_allclose(rates, sklearn_rates(name), rtol=1e-14)
    assert (len(set(rates)) > 1) == (name == "invscaling")


def test_cosine_goes_down_to_nothing():
    rate = LearningRate("cosine", 0.2, 0.5)
    assert rate.value == 0.2
    expected = [0.1 * (1 + np.cos(np.pi * part / 8)) for part in range(1, 9)]
    np.testing.assert_allclose(rates_of(rate), expected, atol=1e-16)
    assert rate.value == pytest.approx(0, abs=1e-16)


@pytest.mark.parametrize("name", ["constant", "invscaling", "cosine"])
def test_only_an_adaptive_rate_helps_at_the_end(name):
    rate = LearningRate(name, 0.2, 0.5)
    assert not rate.goes_on()
    assert rate.value == 0.2


@pytest.mark.parametrize("first", [0.2, 1e-6, 1.1e-6, 5e-6])
def test_an_adaptive_rate_is_lowered_as_often_as_in_sklearn(first):
    optimizer = SGDOptimizer([], first, "adaptive")
    rate = LearningRate("adaptive", first, 0.5)
    for _ in range(12):
        assert rate.goes_on() == (not optimizer.trigger_stopping("", False))
        assert rate.value == pytest.approx(optimizer.learning_rate, rel=1e-12)
    assert not rate.goes_on()
