"""Places of numbers in lists: against NumPy's own way, which sorts."""

import numpy as np
import pytest

from dask_ma.kernels import RowPlaces


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("n", [0, 1, 40])
def test_a_list_is_made_again_from_its_distinct_rows(n, dtype):
    places = RowPlaces(30)
    rows = np.random.default_rng(n).integers(0, 30, n).astype(dtype)
    for _ in range(2):  # what is left of the last time makes no difference
        distinct, own = places.named(rows)
        assert sorted(distinct.tolist()) == np.unique(rows).tolist()
        np.testing.assert_array_equal(distinct[own], rows)
        np.testing.assert_array_equal(places.distinct(rows), distinct)
        places.named(np.arange(30))
