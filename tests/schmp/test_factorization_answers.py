"""Where factorizations end, and what they say of Dask frames and of unsigned ids."""

import warnings

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from dask_ma import SchMPMatrixFactorization
from dask_ma.schmp.factorization._held_out import has_settled
from dask_ma.schmp.factorization._ids import find_ids, unique_ids

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {"user": RNG.integers(0, 30, 400), "item": RNG.integers(0, 20, 400)}
).assign(rating=RNG.integers(1, 6, 400).astype(float))
PAIRS = FRAME[["user", "item"]]


# The end of a fit ---------------------------------------------------------------------


def kinds_of_taste(n_users=300, n_items=60):
    """Pairs and ratings: biases, noise, and little of two kinds of taste."""
    rng = np.random.default_rng(0)
    users, items = np.nonzero(rng.random((n_users, n_items)) < 0.5)
    taste = rng.gamma(0.3, size=(n_users, 2)) @ rng.gamma(0.3, size=(n_items, 2)).T
    taste = (taste - taste.mean()) / taste.std()
    biases = rng.normal(size=n_users)[users] + rng.normal(size=n_items)[items]
    noise = rng.normal(size=len(users))
    return np.column_stack([users, items]), biases + 0.5 * taste[users, items] + noise


@pytest.mark.parametrize("seed", range(2))
def test_a_plateau_at_the_start_is_no_end(seed):
    """Biases settle, and vectors without negative components grow slowly."""
    pairs, ratings = kinds_of_taste()
    options = {"n_components": 8, "positive": True, "random_state": seed}
    ended = SchMPMatrixFactorization(**options, tol=5e-4).fit(pairs, ratings)
    best = SchMPMatrixFactorization(**options, tol=1e-5).fit(pairs, ratings)
    values = [model.history_[-1]["objective"] for model in (ended, best)]
    assert values[0] < 1.01 * values[1]


@pytest.mark.parametrize(
    ("falls", "is_cold", "expected"),
    [
        ([2e-3, 8.9e-5], True, False),  # near a saddle, after the biases
        ([2e-3, 8.9e-5], False, True),  # a fit that goes on from another
        ([2e-3, 8.9e-5, 7e-5], True, True),
        ([2e-3, 2e-5, 4e-5, 8e-5], True, False),  # it falls faster and faster
        ([2e-3, 1e-3, 1e-3, 1e-3, 2e-4, 9e-5], True, True),
        ([1e-3, 0.0, 0.0, 0.0, 1e-9, 2e-9], True, True),  # rounding
        ([2e-3], True, False),
        ([1e-5], True, True),
        ([], True, False),
        ([1.0], True, True),
    ],
)
def test_when_an_objective_has_settled(falls, is_cold, expected):
    objectives = list(np.cumprod([1e6, *(1 - fall for fall in falls)]))
    assert has_settled(objectives, 1e-4, is_cold=is_cold) == expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_is_left_of_equal_ratings(dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = SchMPMatrixFactorization(4, dtype=dtype, random_state=0, max_iter=5)
        model.fit(PAIRS, np.full(len(PAIRS), 3.0))
    assert model.history_[-1]["objective"] == 0
    assert model.n_iter_ <= 3


def test_the_default_of_rounds_is_enough():
    """Items of which most have few ratings, as films do, take more than 20."""
    rng = np.random.default_rng(0)
    users = rng.integers(0, 200, 6000)
    items = (rng.pareto(0.4, 6000) * 10).astype(np.int64) % 2000
    biases = rng.normal(size=200)[users] + rng.normal(size=2000)[items]
    left, right = rng.normal(size=(200, 2))[users], rng.normal(size=(2000, 2))[items]
    ratings = biases + 0.5 * (left * right).sum(axis=1) + rng.normal(size=6000)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model = SchMPMatrixFactorization(8, als_solver="cholesky", random_state=0)
        model.fit(np.column_stack([users, items]), ratings)
    assert 20 < model.n_iter_ < 100


# Dask frames --------------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("feedback", ["explicit", "implicit"])
def test_scores_of_dask_collections(any_client, feedback):
    model = SchMPMatrixFactorization(4, feedback=feedback, tol=0.5)
    model.set_params(random_state=0, n_ranks=2).fit(FRAME)
    lazy = dd.from_pandas(FRAME, npartitions=3)
    metrics = model.ranking_metrics(FRAME, exclude_seen=False)
    assert metrics["recall"] > 0
    pairs, ratings = lazy[["user", "item"]], lazy["rating"]
    arrays = (da.from_array(PAIRS.to_numpy(), (100, 2)), FRAME["rating"].to_numpy())
    for given in ((lazy,), (pairs, ratings), arrays):
        found = model.ranking_metrics(*given, exclude_seen=False)
        assert found == pytest.approx(metrics)
        assert model.score(*given) == pytest.approx(model.score(FRAME))


def test_scores_of_a_dask_matrix():
    rows, columns = PAIRS.to_numpy().T
    matrix = sparse.csr_array((np.ones(400), (rows, columns)))
    model = SchMPMatrixFactorization(4, feedback="implicit", tol=0.5)
    model.fit(matrix)
    lazy = da.from_array(matrix, (10, 20), asarray=False)
    expected = model.ranking_metrics(matrix, exclude_seen=False)
    assert model.ranking_metrics(lazy, exclude_seen=False) == pytest.approx(expected)


def test_predictions_of_a_dask_frame_are_a_series(any_client):
    model = SchMPMatrixFactorization(4, tol=0.5, random_state=0)
    model.set_params(n_ranks=2).fit(FRAME)
    lazy = dd.from_pandas(FRAME, npartitions=3)
    found = model.predict(lazy[["user", "item"]])
    assert isinstance(found, dd.Series)
    assert found.dtype == np.float64
    expected = pd.Series(model.predict(PAIRS), index=FRAME.index)
    pd.testing.assert_series_equal(found.compute(), expected)
    # Some of the partitions have no rows left.
    few = lazy[lazy["rating"] > 4].partitions[:2]
    few = dd.concat([few, lazy[lazy["rating"] > 9]])
    told = few.assign(told=model.predict(few[["user", "item"]])).compute()
    pd.testing.assert_series_equal(
        told["told"], expected[told.index], check_names=False
    )


def test_predictions_of_one_column_are_refused():
    model = SchMPMatrixFactorization(4, tol=0.5).fit(FRAME)
    lazy = dd.from_pandas(FRAME, npartitions=2)
    with pytest.raises((TypeError, ValueError), match="X"):
        model.predict(lazy["user"])


# Unsigned ids -------------------------------------------------------------------------


@pytest.mark.parametrize("power", [0, 53, 62, 63])
def test_consecutive_unsigned_ids(power):
    options = {"n_components": 4, "tol": 0.5, "random_state": 0}
    expected = SchMPMatrixFactorization(**options).fit(PAIRS, FRAME["rating"])
    users = PAIRS["user"].to_numpy().astype(np.uint64) + np.uint64(2**power)
    pairs = PAIRS.assign(user=users)
    model = SchMPMatrixFactorization(**options).fit(pairs, FRAME["rating"])
    assert model.user_ids_.dtype == np.uint64
    np.testing.assert_array_equal(model.user_ids_, np.unique(users))
    np.testing.assert_allclose(model.predict(pairs), expected.predict(PAIRS))


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_small_ids_that_span_their_type(dtype):
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    ids = np.arange(low + 20, high - 7).astype(dtype)
    np.testing.assert_array_equal(unique_ids(ids[::-1], "users"), ids)
    np.testing.assert_array_equal(find_ids(ids, ids, "users"), np.arange(len(ids)))
    strangers = np.array([low, high, low + 19], dtype=dtype)
    np.testing.assert_array_equal(find_ids(ids, strangers, "users"), [-1, -1, -1])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64])
@pytest.mark.parametrize("is_large", [False, True])
def test_no_more_items_where_ids_are_unsigned(dtype, is_large):
    first = int(np.iinfo(dtype).max) - 40 if is_large else 0
    pairs = PAIRS.assign(item=PAIRS["item"].to_numpy().astype(dtype) + dtype(first))
    model = SchMPMatrixFactorization(4, tol=0.5, random_state=0)
    model.fit(pairs, FRAME["rating"])
    users = np.arange(30)
    found = model.recommend(users, n=21)
    assert (found.items[:, -1] == -1).all()
    assert np.isneginf(found.scores[:, -1]).all()
    is_beyond = dtype is np.uint64 and is_large
    assert found.items.dtype == (object if is_beyond else np.int64)
    told = found.items[found.items >= 0]
    assert set(told.tolist()) <= set(model.item_ids_.tolist())
    lazy = model.recommend(da.from_array(users, 10), n=21)
    assert lazy.items.dtype == found.items.dtype
    np.testing.assert_array_equal(lazy.items.compute(), found.items)
    ids = model.item_ids_[:3]
    assert (model.similar_items(ids, n=20).items[:, -1] == -1).all()
