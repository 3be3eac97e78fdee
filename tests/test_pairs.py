"""Cases that stand for a whole product, by this suite's own mark and tables."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from pairs import each, pairwise


def pairs_of(cases):
    """All pairs of values, with their places."""
    return {pair for case in cases for pair in combinations(enumerate(case), 2)}


@pytest.mark.parametrize("sizes", [(3, 4), (3, 4, 5, 2, 2), (2, 3, 4, 2, 4), (1, 1)])
def test_each_pair_is_there(sizes):
    cases = [*product(*map(range, sizes))]
    found = pairwise(cases, tuple)
    assert pairs_of(found) == pairs_of(cases)
    assert found == sorted(set(found))
    # No fewer are possible than combinations of the two longest.
    *_, second, first = sorted(sizes)
    assert first * second <= len(found) <= 1.5 * first * second


def test_combinations_that_do_not_exist_stay_out():
    cases = [case for case in product(range(4), repeat=3) if sum(case) % 2]
    found = pairwise(cases, tuple)
    assert set(found) < set(cases)
    assert pairs_of(found) == pairs_of(cases)


@pytest.mark.parametrize("times", [1, 2, 7])
@pytest.mark.parametrize("sizes", [(3, 4), (5, 2, 2), (1, 1)])
def test_each_value_is_there(sizes, times):
    cases = [*product(*map(range, sizes))]
    found = each(cases, tuple, times)
    assert found == sorted(set(found))
    assert len(found) <= times * max(sizes)
    for place, size in enumerate(sizes):
        for value in range(size):
            n_times = [case[place] for case in found].count(value)
            assert n_times >= min(times, len(cases) // size)


def test_equal_cases_are_cases():
    assert each([(1,), (1,), (1,)], tuple, 2) == [(1,), (1,)]


seen = []


@pytest.fixture(params=["x", "y"])
def kind(request):
    return request.param


@pytest.mark.pairs
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize(("second", "third"), [(1, 2), (3, 4), (5, 6)])
def test_with_the_mark(first, second, third, kind):
    assert third == second + 1
    seen.append((first, second, kind))


def test_pairs_of_the_mark():
    """Of parametrized fixtures, too; runs after the one that is marked."""
    if len(seen) < 2:
        pytest.skip("the cases of the test before were not run with this one")
    assert pairs_of(seen) == pairs_of(product(range(4), (1, 3, 5), "xy"))
    assert len(seen) < 16


seen_each = []


@pytest.mark.each
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize(("second", "third"), [(1, 2), (3, 4), (5, 6)])
def test_with_the_mark_of_values(first, second, third, kind):
    assert third == second + 1
    seen_each.append((first, second, kind))


def test_values_of_the_mark():
    """Runs after the one that is marked."""
    if len(seen_each) < 2:
        pytest.skip("the cases of the test before were not run with this one")
    firsts, seconds, kinds = map(set, zip(*seen_each, strict=True))
    assert (firsts, seconds, kinds) == ({*range(4)}, {1, 3, 5}, {*"xy"})
    assert len(seen_each) == 4
