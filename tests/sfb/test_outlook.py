"""When passes are too slow: gaps that fall by known factors."""

from math import inf

import pytest

from dask_ma.sfb.logistic._outlook import Outlook


def looks(gaps, target, most=10):
    outlook = Outlook(most)
    return [outlook.is_long(gap, target) for gap in gaps]


@pytest.mark.parametrize(("factor", "is_long"), [(0.4, False), (0.6, True)])
def test_gaps_that_fall_by_a_factor(factor, is_long):
    # After three passes: 0.4^11 * 1 is below 1e-4, 0.6^12 * 1 is not.
    gaps = [factor**n for n in range(3)]
    assert looks(gaps, 1e-4) == [False, False, is_long]
    assert looks(gaps, 1e-4, most=40) == [False, False, False]


def test_gaps_that_do_not_fall():
    assert looks([1.0, 2.0, 1.5], 0.1) == [False, False, True]
    assert looks([inf, inf, inf], 0.1) == [False, False, True]
    assert looks([inf, inf, 1.0], 0.1) == [False, False, True]
    # The least gap so far counts, not one that has risen again.
    assert looks([1.0, 0.1, 0.5, 0.01], 0.005) == [False] * 4


def test_gaps_at_their_target():
    assert looks([1.0, 0.1, 0.1], 0.1) == [False, False, False]
    assert looks([0.0, 0.0, 0.0], 0.0) == [False, False, False]
    assert looks([1.0, 0.5, 0.25], 0.0) == [False, False, True]
