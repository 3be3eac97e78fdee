"""The rule that ends a fit."""

import pytest

from dask_ma.linear._stopping import StopRule


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
