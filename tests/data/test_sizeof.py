"""Sizes of sparse arrays as Dask sees them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from dask.utils import Dispatch

from _dask_ma_sizeof import register


@pytest.fixture
def sizeof():
    """A dispatcher of our own, so that the test does not depend on an installation."""
    dispatch = Dispatch()
    dispatch.register(object)(lambda item: 0)
    dispatch.register(np.ndarray)(lambda item: item.nbytes)
    dispatch.register(tuple)(lambda item: sum(map(dispatch, item)))
    dispatch.register(dict)(lambda item: 100 * len(item))
    register(dispatch)
    return dispatch


@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("fmt", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
def test_size_counts_the_data(sizeof, fmt, kind):
    make = getattr(sp, f"{fmt}_{kind}")
    array = make(sp.random_array((40, 50), density=0.5, rng=0))
    assert array.nnz >= 1000
    assert sizeof(array) >= 1000 * 8
    assert sizeof(array) <= 1000 * 1000
