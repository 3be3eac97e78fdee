"""Rows of very many columns, most of which are in no row, as of hashed words."""

import pickle

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from dask_ma import MPCAClassifier, MPCARegressor
from dask_ma.data import Shard
from dask_ma.kernels import Adam
from dask_ma.mpca.networks._columns import FEWEST_COLUMNS
from dask_ma.mpca.training import _agent

N_FEATURES = 2 * FEWEST_COLUMNS
USED = np.sort(np.random.default_rng(1).choice(N_FEATURES, 40, replace=False))


def wide(narrow):
    """Rows whose columns are `USED`, and some stored zeros beside them."""
    X = sparse.csr_array(narrow).tocoo()
    zeros = np.setdiff1d(np.arange(30), USED)
    data = np.concatenate([X.data, np.zeros(len(zeros))])
    row = np.concatenate([X.row, np.zeros(len(zeros), dtype=X.row.dtype)])
    column = np.concatenate([USED[X.col], zeros])
    return sparse.csr_array((data, (row, column)), shape=(X.shape[0], N_FEATURES))


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.poisson(0.3, size=(120, 40)) * 1.0
    X[:, 3] *= 100  # which is scaled
    return X, (X[:, :3] @ [1.0, 2.0, -2.0] > 0).astype(int)


def fit(X, y, cls=MPCAClassifier, **params):
    params = {"max_iter": 4, "tol": None, "learning_rate_init": 0.01} | params
    return cls((8,), random_state=0, batch_size=16, **params).fit(X, y)


@pytest.mark.pairs
@pytest.mark.parametrize("cls", [MPCAClassifier, MPCARegressor])
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("strategy", ["gradients", "synchronous"])
@pytest.mark.parametrize("early_stopping", [False, True])
def test_the_network_is_that_of_the_columns_used(
    rows, cls, n_ranks, strategy, early_stopping
):
    """To the bit, with weights of 0 for the others."""
    X, y = rows
    params = {"n_ranks": n_ranks, "strategy": strategy, "cls": cls}
    params["early_stopping"] = early_stopping
    whole = fit(wide(X), y, **params)
    part = fit(sparse.csr_array(X), y, **params)
    np.testing.assert_array_equal(whole.coefs_[0][USED], part.coefs_[0])
    assert np.count_nonzero(whole.coefs_[0].any(axis=1)) == len(USED)
    np.testing.assert_array_equal(whole.coefs_[1], part.coefs_[1])
    assert whole.loss_curve_ == part.loss_curve_
    assert whole.validation_scores_ == part.validation_scores_
    for container in (wide(X), wide(X).toarray()):
        np.testing.assert_allclose(whole.predict(container), part.predict(X))
    other = sparse.csr_array(([5.0], ([0], [USED[0] + 1])), shape=(1, N_FEATURES))
    assert USED[0] + 1 not in USED
    np.testing.assert_array_equal(
        whole.predict(other), whole.predict(sparse.csr_array(other.shape))
    )
    np.testing.assert_allclose(whole.to_sklearn().predict(wide(X)), part.predict(X))


def test_no_step_goes_over_the_others(rows, monkeypatch):
    lengths = set()
    step = Adam.step

    def counted(self, values, *others):
        lengths.add(len(values))
        step(self, values, *others)

    monkeypatch.setattr(Adam, "step", counted)
    X, y = rows
    model = fit(wide(X), y, n_ranks=2, strategy="synchronous")
    assert lengths == {(len(USED) + 1) * 8 + 8 + 1}
    predictor = pickle.dumps(model._predictor())
    assert len(predictor) < 8 * N_FEATURES
    assert fit(wide(X).toarray(), y, max_iter=1).coefs_[0].all()
    assert max(lengths) == (N_FEATURES + 1) * 8 + 8 + 1


def test_rows_are_not_looked_through_again(rows, monkeypatch):
    """Sums by which features are scaled tell which columns have something."""
    X, y = rows
    n_read = []
    read = Shard.read

    def counted(self):
        n_read.append(self.n_rows)
        return read(self)

    monkeypatch.setattr(Shard, "read", counted)
    counts = []
    for each in (wide(X), sparse.csr_array(X)):
        n_read.clear()
        model = fit(each, y, max_iter=1)
        counts.append(len(n_read))
    assert counts[0] == counts[1] > 0
    assert model.coefs_[0].shape == (40, 8)


def test_rows_held_out_have_other_columns(rows):
    """What is in them does not count, neither to scorers of users."""
    X, y = rows
    other = wide(X).tolil()
    other[:, USED[0] + 1] = 7.0
    given = {"X_val": other.tocsr(), "y_val": y}
    seen = []

    def scorer(estimator, X, y):
        seen.append(X.shape[1])
        # Those of all columns would take a gigabyte where there are a million.
        assert estimator.vector.size == (len(USED) + 1) * 8 + 8 + 1
        return estimator.score(X, y)

    for chosen in (True, scorer):
        model = MPCAClassifier(
            (8,), random_state=0, max_iter=6, tol=None, early_stopping=chosen
        ).fit(wide(X), y, **given)
        assert model.best_validation_score_ == model.score(wide(X), y)
    assert set(seen) == {N_FEATURES}


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_fit_goes_on(rows, tmp_path, n_ranks):
    X, y = rows
    params = {"n_ranks": n_ranks, "strategy": "synchronous"}
    expected = fit(wide(X), y, **params)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        fit(wide(X), y, max_iter=3, **params)
        model = fit(wide(X), y, **params)
    np.testing.assert_allclose(model.coefs_[0], expected.coefs_[0], atol=1e-12)
    np.testing.assert_allclose(model.loss_curve_, expected.loss_curve_)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_warm_start_goes_on_with_all_that_is_known(rows, n_ranks):
    """As if the rows had no other columns: those of the fit before are in the loss."""
    X, y = rows
    params = {"n_ranks": n_ranks, "strategy": "synchronous"}
    whole = fit(wide(X[:, :30]), y, **params, warm_start=True)
    part = fit(sparse.csr_array(X[:, :30]), y, **params, warm_start=True)
    other = X.copy()
    other[:, :10] = 0
    whole.fit(wide(other[:, :30]), y)
    part.fit(sparse.csr_array(other[:, :30]), y)
    np.testing.assert_array_equal(whole.coefs_[0][USED[:30]], part.coefs_[0])
    assert np.count_nonzero(whole.coefs_[0].any(axis=1)) == 30
    assert whole.loss_curve_ == part.loss_curve_
    whole.fit(wide(other), y)
    assert np.count_nonzero(whole.coefs_[0].any(axis=1)) == len(USED)
    whole.set_params(warm_start=False).fit(wide(other), y)
    assert np.count_nonzero(whole.coefs_[0].any(axis=1)) == len(USED) - 10


@pytest.mark.parametrize("by_score", [True, False])
def test_a_warm_start_is_scored_by_the_model_that_it_gives(rows, by_score):
    """Rows held out have what the fit before has learned, and these rows do not."""
    X, y = rows
    left = X.copy()
    left[:, :10] = 0
    model = fit(wide(X), y, warm_start=True)
    chosen = True if by_score else (lambda estimator, X, y: estimator.score(X, y))
    model.set_params(early_stopping=chosen, learning_rate_init=1e-6)
    before = model.score(wide(X), y)
    model.fit(wide(left), y, X_val=wide(X), y_val=y)
    assert model.best_validation_score_ == model.score(wide(X), y) == before


def test_a_warm_start_from_another_shape(rows):
    """Also where as many columns are used as the model has."""
    X, y = rows
    narrow = fit(X, y, warm_start=True)
    n_others = 8 + 8 + 1
    expected = N_FEATURES * 8 + n_others
    with pytest.raises(ValueError, match=f"{40 * 8 + n_others} .* expected {expected}"):
        narrow.fit(wide(X), y)
    model = fit(wide(X), y, warm_start=True)
    model.hidden_layer_sizes = (9,)
    wanted = f"{expected} .* expected {N_FEATURES * 9 + 9 + 9 + 1} "
    with pytest.raises(ValueError, match=wanted):
        model.fit(wide(X), y)


def test_blocks_of_a_collection(rows, cluster):
    X, y = rows
    dX = da.concatenate(
        [
            da.from_delayed(part, (40, N_FEATURES), meta=sparse.csr_array((0, 0)))
            for part in map(_delayed, np.split(np.arange(120), 3), [X] * 3)
        ]
    )
    model = fit(dX, da.from_array(y, chunks=40), n_ranks=3, strategy="synchronous")
    assert np.count_nonzero(model.coefs_[0].any(axis=1)) == len(USED)
    predicted = model.predict(dX).compute()
    np.testing.assert_array_equal(predicted, model.predict(wide(X)))


def _delayed(places, X):
    return dask.delayed(wide(X[places]))


def few_words(n_rows, n_features):
    """Ten elements in each row; and labels."""
    rng = np.random.default_rng(0)
    first = rng.integers(n_features // 10, size=(n_rows, 1))
    columns = (first + n_features // 10 * np.arange(10)).ravel()
    pointers = 10 * np.arange(n_rows + 1)
    parts = np.ones(10 * n_rows), columns, pointers
    return sparse.csr_array(parts, shape=(n_rows, n_features)), np.arange(n_rows) % 2


@pytest.mark.parametrize(
    ("n_features", "n_rows"), [(300, 100), (1_500, 150), (9_000, 187)]
)
def test_batches_grow_with_the_weights_that_they_have_no_use_for(n_features, n_rows):
    """Two ranks share out batches of 200 rows, unless steps are for all inputs."""
    X, y = few_words(6_000, n_features)
    model = MPCAClassifier((2,), n_ranks=2, strategy="local", max_iter=1, tol=None)
    for solver, most in (("sgd", n_rows), ("adam", 100)):
        model.set_params(solver=solver, random_state=0).fit(X, y)
        n_steps = sum(record["n_steps"] for record in model.history_)
        assert n_steps == 2 * -(-3_000 // most)


@pytest.mark.parametrize(
    ("batch_size", "at_once"), [("auto", True), (149, True), (150, False)]
)
def test_ranks_are_drawn_at_once_where_a_batch_uses_few_weights(
    monkeypatch, batch_size, at_once
):
    seen = []
    make = _agent.make_strategy

    def made(*args, pulls_at_once, **options):
        seen.append(pulls_at_once)
        return make(*args, pulls_at_once=pulls_at_once, **options)

    monkeypatch.setattr(_agent, "make_strategy", made)
    X, y = few_words(600, 1_500)
    MPCAClassifier(
        (2,), n_ranks=2, strategy="mpca", batch_size=batch_size, max_iter=1, tol=None
    ).fit(X, y)
    assert seen == [at_once, at_once]
