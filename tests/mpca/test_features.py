"""Features far from zero: which they are, and that networks learn from them."""

import pickle

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor

from dask_ma import MPCAClassifier, MPCARegressor
from dask_ma.data import Block, Shard
from dask_ma.mpca.training._features import agree_on_center

N_ROWS, SHIFT = 240, np.array([0.0, 300.0, -2000.0, 4.0, 60.0])


@pytest.fixture(scope="module")
def rows():
    """Columns of deviation 1 with the means `SHIFT`, but for one of a constant."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(N_ROWS, 5))
    X -= X.mean(axis=0)
    X[:, 4] = 0
    y = np.tanh(X @ [1.0, -1.0, 1.0, 0.5, 0.0]) + 0.05 * rng.normal(size=N_ROWS)
    return X + SHIFT, y


def fit(rows, cls=MPCARegressor, **params):
    params = {"max_iter": 40, "learning_rate_init": 0.01, "tol": None, **params}
    return cls((16,), random_state=0, **params).fit(*rows)


def peer(**params):
    return MLPRegressor(hidden_layer_sizes=(16,), random_state=0, **params)


def center_of(rows, weight, n_ranks, run_ranks):
    """What ranks with a part of the rows each agree on."""
    parts = np.array_split(np.arange(rows.shape[0]), n_ranks)

    def program(group):
        mine = parts[group.rank]
        given = None if weight is None else weight[mine]
        blocks = [Block(rows[mine], np.zeros(len(mine)), given, 0, None)]
        shard = Shard(blocks, rows.shape[1], rows.dtype)
        return agree_on_center(group, shard)

    first, *others = run_ranks(program, n_ranks)
    for other in others:
        np.testing.assert_array_equal(other, first)
    return first


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("weighted", [False, True])
def test_means_of_what_is_far(rows, run_ranks, n_ranks, container, weighted):
    X = rows[0]
    weight = np.random.default_rng(0).uniform(0, 2, N_ROWS) if weighted else None
    center = center_of(container(X), weight, n_ranks, run_ranks)
    mean = np.average(X, axis=0, weights=weight)
    np.testing.assert_allclose(center, np.where([0, 1, 1, 0, 1], mean, 0), rtol=1e-12)


def test_nothing_is_far(rows, run_ranks):
    X = rows[0] - SHIFT
    assert center_of(X, None, 2, run_ranks) is None
    # Nor is what cannot be told.
    assert center_of(X * 1e200, None, 2, run_ranks) is None


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_a_network_learns_from_what_is_far(rows, n_ranks, container):
    X, y = rows
    theirs = peer(max_iter=40, learning_rate_init=0.01, tol=0.0, n_iter_no_change=100)
    with pytest.warns(ConvergenceWarning):
        assert theirs.fit(X, y).score(X, y) < 0.3
    model = fit((container(X), y), n_ranks=n_ranks, strategy="synchronous")
    assert model.score(X, y) > 0.7
    labels = (y > 0).astype(int)
    classifier = fit((container(X), labels), MPCAClassifier, n_ranks=n_ranks)
    assert classifier.score(X, labels) > 0.9


def test_it_is_the_network_of_centred_rows(rows):
    """Weights and predictions; what is fitted belongs to the rows as they are."""
    X, y = rows
    far = np.where([0, 1, 1, 0, 1], X.mean(axis=0), 0.0)
    model, centred = fit((X, y)), fit((X - far, y))
    for ours, theirs in zip(model.coefs_, centred.coefs_, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(model.predict(X), centred.predict(X - far), rtol=1e-6)
    np.testing.assert_allclose(
        model.to_sklearn().predict(X), model.predict(X), rtol=1e-12
    )
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_a_fit_goes_on_from_a_model(rows):
    X, y = rows
    model = fit(rows, max_iter=20, warm_start=True)
    before = model.predict(X)
    model.set_params(max_iter=1, learning_rate_init=1e-9).fit(X, y)
    np.testing.assert_allclose(model.predict(X), before, atol=1e-5)


def test_held_out_rows_are_scored_by_the_same_network(rows):
    model = fit(rows, early_stopping=True, max_iter=30, validation_fraction=0.3)
    assert max(model.validation_scores_) > 0.6


def test_partial_fit_takes_rows_as_they_are(rows):
    """As scikit-learn does: a part of them tells too little about the features."""
    X, y = rows
    theirs = MPCARegressor((16,), random_state=0).partial_fit(X, y).to_sklearn()
    model = MPCARegressor((16,), random_state=0, max_iter=1, tol=None)
    assert abs(model.fit(X, y).coefs_[0] - theirs.coefs_[0]).max() > 1e-4
    expected = peer().partial_fit(X, y - y.mean())
    np.testing.assert_allclose(theirs.coefs_[0], expected.coefs_[0], rtol=1e-8)
