"""The rule that ends a fit."""

import pytest

from dask_ma.supervised._stopping import StopRule


def n_values_until_stop(rule, values):
    for n, value in enumerate(values, start=1):
        if rule.update(value):
            return n
    return None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5, 4, 3, 2, 1], None),
        ([5, 4.95, 4.92, 1], 3),
        ([5, 5, 4, 4, 4], 5),
        ([5, 6, 4, 5, 5], 5),
        ([5, 4.9, 3, 2.95, 2.91], 5),
    ],
)
def test_patience_counts_values_in_a_row(values, expected):
    rule = StopRule(0.1, 2, maximize=False)
    assert n_values_until_stop(rule, values) == expected
    rule = StopRule(0.1, 2, maximize=True)
    assert n_values_until_stop(rule, [-value for value in values]) == expected


def test_without_tol_it_never_stops():
    assert n_values_until_stop(StopRule(None, 1, maximize=False), [1] * 50) is None


def test_slow_steps_down_do_not_add_up():
    """Each value is set against the best so far, as in scikit-learn."""
    rule = StopRule(0.1, 3, maximize=False)
    assert n_values_until_stop(rule, [1, 0.95, 0.9, 0.85]) == 4


def test_restart_gives_patience_again():
    rule = StopRule(0.1, 2, maximize=False)
    assert n_values_until_stop(rule, [1, 1, 1]) == 3
    rule.restart()
    assert n_values_until_stop(rule, [1, 1, 1]) == 2


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("maximize", [False, True])
def test_a_relative_tolerance_is_a_part_of_the_best_value(scale, maximize):
    rule = StopRule(0.1, 2, maximize=maximize, is_relative=True)
    values = [1.0, 1.2, 1.3, 1.35] if maximize else [1.0, 0.8, 0.75, 0.74]
    assert [rule.update(scale * v) for v in values] == [False, False, False, True]


def test_what_is_as_good_as_zero_counts_as_zero():
    rule = StopRule(0.1, 3, maximize=False, is_relative=True)
    values = [2.0**-k for k in range(60)]
    assert 20 < n_values_until_stop(rule, values) < 40


def test_another_rule_goes_on():
    rule = StopRule(0.1, 3, maximize=False, is_relative=True)
    for value in (1.0, 1e-8, 9e-9):
        rule.update(value)
    other = StopRule(0.1, 3, maximize=False, is_relative=True)
    other.load_state_dict(rule.state_dict())
    for value in (8e-9, 1e-12, 1e-12, 1e-12):
        assert other.update(value) == rule.update(value)
        assert other.state_dict() == rule.state_dict()


def test_a_part_of_nothing_is_no_gain():
    rule = StopRule(0.1, 3, maximize=False, is_relative=True)
    assert n_values_until_stop(rule, [0.0] * 9) == 4
    rule = StopRule(0.1, 3, maximize=False, is_relative=True)
    assert n_values_until_stop(rule, [0.0, 0.0, -1.0, -1.0, -1.0, -1.0]) == 6
    rule = StopRule(None, 3, maximize=False, is_relative=True)
    assert n_values_until_stop(rule, [0.0] * 9) is None


def test_a_part_of_what_rounding_leaves_is_no_gain():
    values = [1e-20 * 2.0**-k for k in range(9)]
    rule = StopRule(0.1, 3, maximize=False, is_relative=True)
    assert n_values_until_stop(rule, values) is None
    rule = StopRule(0.1, 3, maximize=False, is_relative=True, rounding=1e-18)
    assert n_values_until_stop(rule, values) == 4
