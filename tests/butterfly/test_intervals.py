"""Functions that are known at nodes of intervals, and looked up by polynomials."""

import numpy as np
import pytest

from dask_ma.butterfly import _intervals
from dask_ma.butterfly._intervals import Intervals

AMOUNTS = 1e-3 / np.sqrt(1 + np.arange(50))
BOUNDS = 1e-3, 1e6


def logarithm(numbers):
    """What the penalty takes of rows, as the steps of a pass do it."""
    return np.log1p(np.multiply.outer(AMOUNTS, numbers)).sum(axis=0)


def looked_up(n_numbers):
    intervals = Intervals(BOUNDS)
    return intervals.polynomials(logarithm(intervals.nodes), n_numbers)


@pytest.mark.parametrize("cut", _intervals._CUTS)
def test_each_cut_is_as_exact(monkeypatch, cut):
    monkeypatch.setattr(_intervals, "_CUTS", (cut,))
    rng = np.random.default_rng(0)
    numbers = np.exp(rng.uniform(*np.log(BOUNDS), 5000))
    numbers = np.concatenate([numbers, BOUNDS])
    found = looked_up(len(numbers)).at(numbers)
    np.testing.assert_allclose(found, logarithm(numbers), rtol=2e-12)


def test_many_numbers_are_looked_up_by_few_coefficients():
    """What a step has of them, and what the end of a pass has."""
    n_terms = [len(looked_up(n).coefficients) for n in (1, 5000, 300_000)]
    assert n_terms == [7, 5, 4]


@pytest.mark.parametrize("n_parts", [n_parts for n_parts, _ in _intervals._CUTS])
def test_numbers_at_an_end_are_in_one_interval_however_it_is_cut(n_parts):
    """Else what begins anew in an interval would count for rows that have not."""
    intervals = Intervals((2.0**-40, 2.0**40))
    ends = np.exp2(np.arange(-160, 161) / 4)
    numbers = [np.nextafter(ends[1:-1], side) for side in (0, np.inf)]
    numbers = np.concatenate([*numbers, ends[1:-1]])
    numbers = np.concatenate([numbers, numbers * (1 - 2e-15), numbers * (1 + 2e-15)])
    # Of each number the interval is its value, on all parts of it.
    count = np.repeat(np.arange(len(intervals.nodes)), n_parts)[np.newaxis]
    at = _intervals.Polynomials(count.astype(float), intervals._first, n_parts).at
    np.testing.assert_array_equal(at(numbers), intervals.find(numbers))


def test_more_numbers_than_at_once_have_the_same_bits(monkeypatch):
    numbers = np.geomspace(*BOUNDS, 1000)
    polynomials = looked_up(len(numbers))
    expected = polynomials.at(numbers)
    monkeypatch.setattr(_intervals, "AT_ONCE", 64)
    np.testing.assert_array_equal(polynomials.at(numbers), expected)
