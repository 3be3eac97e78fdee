"""Matrices of ratings most of whose rows and columns are empty."""

import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from dask_ma import SchMPMatrixFactorization

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
N_USERS, N_ITEMS = 70, 5000
KINDS = {
    "cg": {"als_solver": "cg"},
    "cholesky": {"als_solver": "cholesky"},
    "positive": {"positive": True},
    "sgd": {"solver": "sgd"},
    "implicit": {"feedback": "implicit"},
    "held out": {"early_stopping": True},
}


@pytest.fixture(scope="module")
def ratings():
    rng = np.random.default_rng(0)
    users = rng.choice(np.arange(3, N_USERS, 2), 600)
    items = rng.choice(rng.choice(N_ITEMS, 40, replace=False), 600)
    pairs = np.unique(np.column_stack([users, items]), axis=0)
    return pairs, rng.integers(1, 6, len(pairs)).astype(float)


def as_matrix(pairs, values):
    return sparse.csr_array((values, tuple(pairs.T)), shape=(N_USERS, N_ITEMS))


def fit(*data, **params):
    params = {"n_components": 3, "max_iter": 6, "tol": 0.0, "random_state": 0} | params
    return SchMPMatrixFactorization(**params).fit(*data)


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_is_fitted_as_its_pairs(ratings, kind, n_ranks):
    pairs, values = ratings
    params = {**KINDS[kind], "n_ranks": n_ranks}
    whole, some = fit(as_matrix(pairs, values), **params), fit(pairs, values, **params)
    assert whole.user_ids_.tolist() == list(range(N_USERS))
    assert whole.item_ids_.tolist() == list(range(N_ITEMS))
    assert whole.seen_.shape == (N_USERS, N_ITEMS)
    assert whole.history_[-1]["objective"] == some.history_[-1]["objective"]
    # Rows that nobody has rated take no part.
    assert whole.history_[-1]["n_updates"] == some.history_[-1]["n_updates"]
    for side in ("user", "item"):
        ids = getattr(some, f"{side}_ids_")
        for name in (f"{side}_factors_", f"{side}_bias_"):
            found = getattr(whole, name)
            assert len(found) == len(getattr(whole, f"{side}_ids_"))
            np.testing.assert_array_equal(found[ids], getattr(some, name))
            rest = np.delete(found, ids, axis=0)
            assert not rest.any()
    np.testing.assert_array_equal(whole.predict(pairs), some.predict(pairs))


def test_rows_and_columns_without_ratings_are_known(ratings):
    model = fit(as_matrix(*ratings), cold_start="raise", n_ranks=1)
    empty = np.setdiff1d(np.arange(N_ITEMS), ratings[0][:, 1])[:3]
    expected = np.clip(model.mean_ + model.user_bias_[5], *model.rating_range_)
    found = model.predict(np.column_stack([np.full(3, 5), empty]))
    np.testing.assert_allclose(found, expected)
    assert model.recommend([0], n=N_ITEMS).items.shape == (1, N_ITEMS)


@pytest.mark.parametrize("chunks", [(20, 1700), (N_USERS, N_ITEMS)])
def test_blocks_of_dask_give_the_same(ratings, chunks):
    X = as_matrix(*ratings)
    dense = da.from_array(X.toarray(), chunks=chunks)
    blocks = dense.map_blocks(sparse.csr_array)
    ours, theirs = fit(blocks, n_ranks=1), fit(X, n_ranks=1)
    np.testing.assert_array_equal(ours.item_ids_, theirs.item_ids_)
    np.testing.assert_allclose(ours.item_factors_, theirs.item_factors_, atol=1e-5)
    np.testing.assert_array_equal(ours.seen_.toarray(), theirs.seen_.toarray())


def test_a_warm_start_knows_columns_by_their_numbers(ratings):
    pairs, values = ratings
    first = pairs[:, 1] < np.median(pairs[:, 1])
    model = fit(as_matrix(pairs[first], values[first]), max_iter=30, n_ranks=1)
    whole = as_matrix(pairs, values)
    cold = fit(whole, max_iter=1, n_ranks=1).history_[0]["objective"]
    model.set_params(warm_start=True, max_iter=1)
    assert model.fit(whole).history_[0]["objective"] < cold


@pytest.mark.parametrize("kind", ["cg", "positive", "sgd", "implicit"])
def test_a_warm_start_draws_vectors_of_what_was_not_rated(kind):
    """Where both sides of new ratings were zero, they stayed there."""
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 30, 800), rng.integers(0, 20, 800)
    old = np.unique(np.column_stack([users, items]), axis=0)
    both = np.concatenate([old, old + [30, 20]])
    values = rng.integers(1, 6, len(both)).astype(float)
    params = {**KINDS[kind], "warm_start": True, "n_ranks": 1}
    first = both[: len(old)], values[: len(old)]
    whole, some = fit(as_matrix(*first), **params), fit(*first, **params)
    assert not whole.user_factors_[30:].any()
    whole.fit(as_matrix(both, values))
    some.fit(both, values)
    assert whole.item_factors_[20:40].any()
    np.testing.assert_array_equal(whole.user_factors_[:60], some.user_factors_)
    np.testing.assert_array_equal(whole.item_factors_[:40], some.item_factors_)
