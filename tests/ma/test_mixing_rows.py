"""Sorted rows: dealt out to the ranks, or noticed."""

import warnings

import dask.array as da
import numpy as np
import pytest
from sklearn.datasets import make_classification

from dask_ma import MASGDClassifier, MASGDRegressor

PARAMS = {"loss": "log_loss", "n_ranks": 4, "random_state": 0, "max_iter": 5}
PARAMS |= {"learning_rate": "optimal", "alpha": 1e-3, "tol": None, "local_epochs": 1}


@pytest.fixture(scope="module")
def rows():
    """Rows sorted by class."""
    X, y = make_classification(2000, 20, n_informative=10, random_state=0)
    order = np.argsort(y, kind="stable")
    return X[order], y[order]


def blocks_of(X, y, n_rows=250):
    return da.from_array(X, chunks=(n_rows, -1)), da.from_array(y, chunks=n_rows)


def fit(X, y, **params):
    model = MASGDClassifier(**{**PARAMS, "refine": None, **params}).fit(X, y)
    return model, model.history_[-1]["objective"]


def test_sorted_rows_in_memory_do_no_harm(rows):
    X, y = rows
    mixed = np.random.default_rng(0).permutation(len(y))
    _, of_sorted = fit(X, y)
    _, of_mixed = fit(X[mixed], y[mixed])
    assert of_sorted < 1.2 * of_mixed


def test_sorted_blocks_are_noticed(rows):
    with pytest.warns(UserWarning, match="100% are of class .*shuffle='ranks'") as seen:
        fit(*blocks_of(*rows))
    assert seen[0].filename == __file__


@pytest.mark.parametrize("shuffle", [True, "ranks"])
def test_mixed_blocks_are_not_spoken_of(rows, shuffle):
    X, y = rows
    mixed = np.random.default_rng(0).permutation(len(y))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(*blocks_of(X[mixed], y[mixed]), shuffle=shuffle)
        fit(*blocks_of(X, y), shuffle="ranks")
        fit(*blocks_of(X, y), n_ranks=1)


def test_ranks_of_a_dask_collection_get_the_same_rows_as_from_memory(rows):
    X, y = rows
    dealt, _ = fit(*blocks_of(X, y), shuffle="ranks")
    here, _ = fit(X, y)
    np.testing.assert_array_equal(dealt.coef_, here.coef_)


def test_dealt_rows_keep_their_labels_and_weights(rows):
    """Weights of 0 take away the rows that they belong to, and no others."""
    X, y = rows
    weights = (np.arange(len(y)) % 3 > 0).astype(float)
    broken = np.where(weights > 0, y, 1 - y)
    model, _ = fit(X, broken, refine=None)
    clean = MASGDClassifier(**{**PARAMS, "refine": None})
    clean.fit(X, broken, sample_weight=weights)
    assert clean.score(X, y) > model.score(X, y) + 0.02


def test_rows_are_dealt_out_on_workers(rows, inproc_client):
    X, y = rows
    here, _ = fit(X, y, n_ranks=3)
    with inproc_client.as_current():
        there, _ = fit(X, y, n_ranks=3)
        lazy, _ = fit(*blocks_of(X, y), n_ranks=3, shuffle="ranks")
    np.testing.assert_array_equal(there.coef_, here.coef_)
    np.testing.assert_array_equal(lazy.coef_, here.coef_)


# -- The mean over calls of partial_fit ----------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("cls", [MASGDClassifier, MASGDRegressor])
@pytest.mark.parametrize("average", [True, 3000])
def test_partial_fit_goes_on_with_the_mean(rows, cls, average):
    """Call j of those that count has the weight j (j + 1) (j + 2)."""
    X, y = rows
    steps = {"learning_rate": "constant", "eta0": 1e-3, "random_state": 0, "n_ranks": 2}
    classes = {"classes": [0, 1]} if cls is MASGDClassifier else {}
    plain, averaged = cls(**steps), cls(average=average, **steps)
    models = []
    for call in range(4):
        seed = {"random_state": call}
        plain.set_params(**seed).partial_fit(X, y, **classes)
        averaged.set_params(**seed).partial_fit(X, y, **classes)
        models.append(plain.coef_)
    first = 0 if average is True else 1
    j = np.arange(1, 5 - first)
    expected = np.average(models[first:], axis=0, weights=j * (j + 1) * (j + 2))
    np.testing.assert_allclose(averaged.coef_, expected, rtol=1e-10)
