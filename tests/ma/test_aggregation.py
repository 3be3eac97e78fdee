"""Sums of all ranks, whichever way they are added up."""

import numpy as np
import pytest

from dask_ma.ma._paradigm import AGGREGATIONS, aggregate

SHAPES = [(), (3,), (2, 5)]


def arrays_of(rank):
    """What a rank has, of numbers whose sums are exact."""
    rng = np.random.default_rng(rank)
    arrays = [rng.integers(-99, 99, shape).astype(np.float64) for shape in SHAPES]
    return [*arrays, np.full(4, rank, dtype=np.float32)]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 6])
def test_everybody_gets_the_sums(run_ranks, n_ranks, aggregation):
    def program(group):
        own = arrays_of(group.rank)
        sums = aggregate(group, own, aggregation)
        for array, before in zip(own, arrays_of(group.rank), strict=True):
            np.testing.assert_array_equal(array, before)
        return sums

    expected = [sum(each) for each in zip(*map(arrays_of, range(n_ranks)), strict=True)]
    for sums in run_ranks(program, n_ranks):
        assert len(sums) == len(expected)
        for found, wanted in zip(sums, expected, strict=True):
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)


def test_bits_do_not_depend_on_the_way(run_ranks):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5, 1000)) * 10.0 ** rng.integers(-9, 9, (5, 1000))
    found = [
        run_ranks(lambda group, how=how: aggregate(group, [values[group.rank]], how), 5)
        for how in AGGREGATIONS
    ]
    for sums in found:
        for [one] in sums:
            np.testing.assert_array_equal(one, found[0][0][0])
