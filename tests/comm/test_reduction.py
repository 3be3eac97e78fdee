"""The arithmetic of the reductions, driven by hand."""

import numpy as np
import pytest

from dask_ma.comm import Layout
from dask_ma.comm._reduction import LocalReducer, SubtreeSums, concatenate_parts
from dask_ma.comm._topology import tree_combine

N = 11


def vectors(size):
    """A vector for each rank, whose sum depends on the order of the additions."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=N) * 10.0 ** rng.integers(-8, 8, N) for _ in range(size)]


def reduced(size, per_node, combine=np.add):
    """What each rank gets, put together, with `per_node` ranks in a process."""
    layout = Layout.from_nodes([rank // per_node for rank in range(size)])
    values = vectors(size)
    reducers = [
        LocalReducer(layout, combine, {r: values[r] for r in layout.ranks_of(node)})
        for node in range(layout.n_nodes)
    ]
    parts = [
        reducers[0].total(
            [reducer.partial_sums(reducer.part(rank)) for reducer in reducers]
        )
        for rank in range(size)
    ]
    return concatenate_parts(parts, values[0])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 12])
def test_placement_does_not_change_a_bit(size):
    expected = reduced(size, size)
    np.testing.assert_allclose(expected, sum(vectors(size)), rtol=1e-6)
    for per_node in range(1, size):
        assert reduced(size, per_node).tobytes() == expected.tobytes()


def test_the_order_of_additions_matters_for_these_vectors():
    assert np.any(sum(vectors(8)) != sum(vectors(8)[::-1]))


def test_other_operations():
    expected = np.max(vectors(5), axis=0)
    np.testing.assert_array_equal(reduced(5, 2, np.maximum), expected)


def test_aligned_ranks_of_a_process_send_one_vector():
    layout = Layout.from_nodes([rank // 4 for rank in range(8)])
    values = dict(enumerate(vectors(4)))
    reducer = LocalReducer(layout, np.add, values)
    assert [len(v) for v in reducer.partial_sums(reducer.part(7))] == [2]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
def test_subtrees_in_any_order_make_the_same_sum(size):
    """Also where some come twice, or as parts of what is there already."""
    rng = np.random.default_rng(size)
    parts = [((rank, rank + 1), vector) for rank, vector in enumerate(vectors(size))]
    expected = tree_combine(dict(parts), 0, size, np.add)
    for _ in range(5):
        order = rng.permutation(size)
        sums = SubtreeSums(size, np.add, [parts[rank] for rank in order[: size // 2]])
        before = sums.items()
        sums.add([parts[rank] for rank in order])
        sums.add(before)
        assert sums.total.tobytes() == expected.tobytes()
        assert [part for part, _ in sums.items()] == [(0, size)]
