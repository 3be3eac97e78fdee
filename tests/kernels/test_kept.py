"""Memory that is used again."""

import numpy as np

from dask_ma.kernels import KeptArrays


def test_arrays_are_there_again_by_name_and_type():
    kept = KeptArrays()
    first = kept("a", 10, np.float32)
    assert first.shape == (10,)
    assert first.dtype == np.float32
    assert np.shares_memory(first, kept("a", 7, "f4"))
    assert len(kept("a", 7, "f4")) == 7
    for name, dtype in (("b", np.float32), ("a", np.int32)):
        assert not np.shares_memory(first, kept(name, 10, dtype))
    larger = kept("a", 11, np.float32)
    assert larger.shape == (11,)
    assert np.shares_memory(larger, kept("a", 10, np.float32))
