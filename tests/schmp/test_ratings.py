"""Ratings on their way: order, places, and the tables of ids."""

import numpy as np
import pytest

from dask_ma.schmp.factorization._ids import find_ids, unique_ids
from dask_ma.schmp.factorization._inputs import encode
from dask_ma.schmp.factorization._ratings import Ratings, counted_order, to_csr

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("n", [0, 1, 300])
def test_an_order_by_counting_is_stable(n):
    keys = RNG.integers(0, 20, n)
    np.testing.assert_array_equal(counted_order(keys), np.argsort(keys, kind="stable"))


def test_sorted_ratings_do_not_depend_on_how_they_came():
    """Pairs that are there several times are in the order of ratings and weights."""
    users, items = RNG.integers(0, 6, 200), RNG.integers(6, 12, 200)
    ratings = Ratings(users, items, RNG.integers(0, 3, 200) / 2, RNG.random(200))
    order = np.lexsort((ratings.weights, ratings.values, items, users))
    for came in (np.arange(200), RNG.permutation(200)):
        found = ratings.take(came).sorted()
        for ours, expected in zip(found, ratings.take(order), strict=True):
            np.testing.assert_array_equal(ours, expected)


def test_ratings_without_weights_are_sorted_by_value():
    users, items = RNG.integers(0, 6, 200), RNG.integers(6, 12, 200)
    ratings = Ratings(users, items, RNG.integers(0, 3, 200) / 2, None)
    order = np.lexsort((ratings.values, items, users))
    found = ratings.sorted()
    assert found.weights is None
    assert found.total_weight() == 200
    np.testing.assert_array_equal(found.values, ratings.values[order])
    again = found.sorted()
    assert again.values is found.values  # what is sorted already is not copied


@pytest.mark.parametrize(("values", "dtype"), [([0.5, 4], "f4"), ([0.1, 4], "f8")])
def test_rows_are_in_single_precision_where_it_is_exact(values, dtype):
    encoded = encode(np.array([[3, 1], [1, 1]]), values, "float32", adds_up=False)
    assert encoded.table.dtype == dtype
    np.testing.assert_array_equal(encoded.table, [[1, 0, values[0]], [0, 0, values[1]]])


@pytest.mark.parametrize("by", ["users", "items"])
def test_a_matrix_of_some_users_and_items(by):
    users, items = RNG.choice([1, 4, 5], 30), RNG.choice([7, 8, 11], 30)
    ratings = Ratings(users, items, RNG.random(30), RNG.random(30)).sorted()
    sides = np.array([1, 4, 5]), np.array([7, 8, 11])
    rows, columns = sides if by == "users" else sides[::-1]
    matrix, weights = ratings.matrix(rows, columns, by, np.dtype(np.float64))
    expected = np.zeros((2, 3, 3))
    own, other = (users, items) if by == "users" else (items, users)
    places = np.searchsorted(rows, own), np.searchsorted(columns, other)
    own, other = (ratings.users, ratings.items) if by == "users" else ratings[1::-1]
    places = np.searchsorted(rows, own), np.searchsorted(columns, other)
    np.add.at(expected[0], places, ratings.values)
    np.add.at(expected[1], places, ratings.weights)
    np.testing.assert_allclose(matrix.toarray(), expected[0])
    again = to_csr(*places, ratings.weights, weights, (3, 3))[0]
    np.testing.assert_allclose(again.toarray(), expected[1])
    assert weights.sum() == pytest.approx(ratings.weights.sum())


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint64])
@pytest.mark.parametrize("step", [1, 1000])
def test_ids_in_a_table_and_by_search(dtype, step):
    """Few places are looked up in a table, many are searched in."""
    step = 1 if dtype is np.int8 else step
    ids = (RNG.integers(0, 60, 80) * step).astype(dtype)
    if dtype is not np.uint64:
        ids -= dtype(20)
    known = unique_ids(ids, "users")
    np.testing.assert_array_equal(known, np.unique(ids))
    assert known.dtype == dtype
    np.testing.assert_array_equal(known[find_ids(known, ids, "users")], ids)
    strangers = np.array([127 if step == 1 else 7, 126], dtype=dtype)
    np.testing.assert_array_equal(find_ids(known, strangers, "users"), [-1, -1])
    if dtype is not np.uint64:
        below = np.array([-128], dtype=dtype)
        np.testing.assert_array_equal(find_ids(known, below, "users"), [-1])
