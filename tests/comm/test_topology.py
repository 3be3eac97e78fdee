"""Who owns which part, and the one tree in which parts are added."""

import numpy as np
import pytest

from dask_ma.comm import Layout
from dask_ma.comm._topology import split_bounds, tree_combine, tree_cover, tree_split

SIZES = range(1, 18)


def subtrees(size):
    """All ranges of ranks that are subtrees of the tree over `size` ranks."""
    found, todo = set(), [(0, size)]
    while todo:
        low, high = todo.pop()
        found.add((low, high))
        if high - low > 1:
            middle = tree_split(low, high)
            todo += [(low, middle), (middle, high)]
    return found


def fewest_pieces(low, high, ranges):
    """Length of the shortest way through `ranges` from `low` to `high`."""
    best = {low: 0}
    for position in range(low, high):
        for start, stop in ranges:
            if start == position and position in best and stop <= high:
                best[stop] = min(best.get(stop, high), best[position] + 1)
    return best[high]


def in_brackets(left, right, out=None):
    """Write down in which order things are combined."""
    return f"({left}{right})"


def pairwise(values):
    """Combine neighbours, then neighbouring results, and so on."""
    while len(values) > 1:
        pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
        values = [in_brackets(*p) if len(p) == 2 else p[0] for p in pairs]
    return values[0]


@pytest.mark.parametrize("length", [0, 1, 2, 3, 10, 97, 1000])
@pytest.mark.parametrize("parts", [1, 2, 3, 7, 12])
def test_split_bounds_are_balanced(length, parts):
    bounds = split_bounds(length, parts)
    runs = np.diff(bounds)
    assert (bounds[0], bounds[-1], len(runs)) == (0, length, parts)
    assert runs.min() >= 0
    assert runs.max() - runs.min() <= 1


@pytest.mark.parametrize(
    ("low", "high", "middle"),
    [(0, 2, 1), (0, 3, 2), (0, 4, 2), (0, 5, 4), (0, 8, 4), (8, 12, 10), (4, 7, 6)],
)
def test_tree_splits_after_the_largest_power_of_two(low, high, middle):
    assert tree_split(low, high) == middle


@pytest.mark.parametrize("size", SIZES)
def test_cover_is_exact_and_of_fewest_pieces(size):
    allowed = subtrees(size)
    for low in range(size):
        for high in range(low + 1, size + 1):
            pieces = tree_cover(range(low, high), size)
            assert set(pieces) <= allowed
            ranks = [rank for a, b in pieces for rank in range(a, b)]
            assert ranks == list(range(low, high))
            assert len(pieces) == fewest_pieces(low, high, allowed)


@pytest.mark.parametrize("per_node", [1, 2, 4, 8])
def test_an_aligned_block_of_ranks_is_one_piece(per_node):
    for size in range(per_node, 33, per_node):
        for low in range(0, size, per_node):
            block = (low, low + per_node)
            assert tree_cover(range(*block), size) == [block]


@pytest.mark.parametrize("size", SIZES)
def test_order_of_combination_does_not_depend_on_the_partition(size):
    letters = [chr(ord("a") + rank) for rank in range(size)]
    expected = pairwise(letters)
    for per_node in range(1, size + 1):
        parts = {}
        for start in range(0, size, per_node):
            for low, high in tree_cover(
                range(start, min(start + per_node, size)), size
            ):
                leaves = {(r, r + 1): letters[r] for r in range(low, high)}
                parts[low, high] = tree_combine(leaves, low, high, in_brackets)
        assert tree_combine(parts, 0, size, in_brackets) == expected


def test_combining_leaves_the_parts_as_they_were():
    parts = {(r, r + 1): np.full(3, float(r)) for r in range(5)}
    total = tree_combine(parts, 0, 5, np.add)
    np.testing.assert_array_equal(total, np.full(3, 10.0))
    for (rank, _), part in parts.items():
        np.testing.assert_array_equal(part, np.full(3, float(rank)))


def test_layout_of_unequal_nodes():
    layout = Layout.from_nodes(["x", "x", "x", "y", "z", "z"])
    assert (layout.size, layout.n_nodes) == (6, 3)
    assert [layout.node_of(rank) for rank in range(6)] == [0, 0, 0, 1, 2, 2]
    assert [list(layout.ranks_of(node)) for node in range(3)] == [
        [0, 1, 2],
        [3],
        [4, 5],
    ]


def test_delegates_are_on_their_node_and_share_the_work():
    layout = Layout.from_nodes([rank // 4 for rank in range(12)])
    for node in range(3):
        delegates = [layout.delegate(rank, node) for rank in range(12)]
        assert set(delegates) == set(layout.ranks_of(node))
        assert {delegates.count(rank) for rank in layout.ranks_of(node)} == {3}
        for rank in layout.ranks_of(node):
            assert layout.delegate(rank, node) == rank


def test_layout_of_scattered_ranks():
    layout = Layout.from_nodes(["b", "a", "b", "c", "a"])
    assert (layout.size, layout.n_nodes) == (5, 3)
    assert [layout.node_of(rank) for rank in range(5)] == [0, 1, 0, 2, 1]
    assert [layout.ranks_of(node) for node in range(3)] == [(0, 2), (1, 4), (3,)]
    assert [layout.delegate(rank, 1) for rank in range(5)] == [1, 1, 4, 1, 4]


@pytest.mark.parametrize("size", SIZES)
def test_order_of_combination_does_not_depend_on_who_has_which_rank(size):
    letters = [chr(ord("a") + rank) for rank in range(size)]
    nodes = np.random.default_rng(size).integers(0, 3, size).tolist()
    layout = Layout.from_nodes(nodes)
    parts = {}
    for node in range(layout.n_nodes):
        for low, high in tree_cover(layout.ranks_of(node), size):
            leaves = {(r, r + 1): letters[r] for r in range(low, high)}
            parts[low, high] = tree_combine(leaves, low, high, in_brackets)
    assert tree_combine(parts, 0, size, in_brackets) == pairwise(letters)
