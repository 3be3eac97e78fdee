"""Features and targets far from zero or of other scales: networks learn of them."""

import pickle
import warnings

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor

from dask_ma import MPCAClassifier, MPCARegressor
from dask_ma.data import Block, Shard
from dask_ma.mpca.networks._mlp import MLPSpec
from dask_ma.mpca.networks._network import Scaling
from dask_ma.mpca.training import _targets
from dask_ma.mpca.training._features import agree_on_scaling, kept_scaling

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
    params = {"max_iter": 25, "learning_rate_init": 0.015, "tol": None, **params}
    return cls((16,), random_state=0, **params).fit(*rows)


def peer(**params):
    return MLPRegressor(hidden_layer_sizes=(16,), random_state=0, **params)


def scaling_of(rows, weight, n_ranks, run_ranks, is_classifier=False, variance=1.0):
    """What ranks with a part of the rows each agree on."""
    of_targets = None if is_classifier else np.array([variance])
    parts = np.array_split(np.arange(rows.shape[0]), n_ranks)

    def program(group):
        mine = parts[group.rank]
        given = None if weight is None else weight[mine]
        blocks = [Block(rows[mine], np.zeros(len(mine)), given, 0, None)]
        shard = Shard(blocks, rows.shape[1], rows.dtype)
        return agree_on_scaling(group, shard, of_targets)

    first, *others = run_ranks(program, n_ranks)
    for other in others:
        for own, theirs in zip(other or (), first or (), strict=True):
            np.testing.assert_array_equal(own, theirs)
    return first


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("weighted", [False, True])
def test_means_of_what_is_far(rows, run_ranks, n_ranks, container, weighted):
    X = rows[0]
    weight = np.random.default_rng(0).uniform(0, 2, N_ROWS) if weighted else None
    found = scaling_of(container(X), weight, n_ranks, run_ranks)
    mean = np.average(X, axis=0, weights=weight)
    far = np.where([0, 1, 1, 0, 1], mean, 0)
    np.testing.assert_allclose(found.center, far, rtol=1e-12)
    assert (found.scale == 1).all()


@pytest.mark.pairs
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("factor", [20.0, 1e-3])
def test_scales_of_a_classifier(rows, run_ranks, n_ranks, container, weighted, factor):
    """One large feature, or a far one, and all are centred; small ones stay small."""
    X = rows[0] - np.where(factor > 1, SHIFT, 0)
    X = X * [1.0, 1.0, 1.0, factor, 1.0]
    weight = np.random.default_rng(0).uniform(0, 2, N_ROWS) if weighted else None
    found = scaling_of(container(X), weight, n_ranks, run_ranks, is_classifier=True)
    mean = np.average(X, axis=0, weights=weight)
    scale = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=weight))
    np.testing.assert_allclose(found.center, mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.scale, np.maximum(scale, 1), rtol=1e-6)


def test_large_features_of_a_regression(rows, run_ranks):
    X = (rows[0] - SHIFT) * [1.0, 1.0, 11.0, 1.0, 1.0]
    found = scaling_of(X, None, 2, run_ranks)
    of_classes = scaling_of(X, None, 2, run_ranks, is_classifier=True)
    for own, other in zip(found, of_classes, strict=True):
        np.testing.assert_array_equal(own, other)


@pytest.mark.parametrize("variance", [0.0, np.inf])
def test_large_features_and_targets_without_a_unit(rows, run_ranks, variance):
    X = (rows[0] - SHIFT) * [1.0, 1.0, 11.0, 1.0, 1.0]
    found = scaling_of(X, None, 2, run_ranks, variance=variance)
    of_others = scaling_of(X, None, 2, run_ranks)
    for own, other in zip(found, of_others, strict=True):
        np.testing.assert_array_equal(own, other)


def test_nothing_is_far(rows, run_ranks):
    X = rows[0] - SHIFT
    for is_classifier in (False, True):
        # Nor is what cannot be told.
        for factor in (1.0, 1e200):
            assert scaling_of(X * factor, None, 2, run_ranks, is_classifier) is None


@pytest.mark.each
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


@pytest.mark.pairs
@pytest.mark.parametrize("cls", [MPCAClassifier, MPCARegressor])
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("factor", [0.3, 1e-7])
def test_features_of_a_tiny_unit(rows, cls, n_ranks, container, dtype, factor):
    """Their network is that of the rows divided by their distance from the mean."""
    X, y = rows[0] - np.where(SHIFT == 60, 0, SHIFT), rows[1]
    X[:, 2] += 8  # far from zero, next to a constant
    y = (y > 0).astype(int) if cls is MPCAClassifier else y
    params = {"n_ranks": n_ranks, "strategy": "synchronous", "max_iter": 20}
    unit = np.sqrt(X.var(axis=0).sum())
    tiny = fit((container((X * factor).astype(dtype)), y), cls, **params)
    plain = fit((container((X / unit).astype(dtype)), y), cls, **params)
    exact = 1e-7 if dtype == np.float64 else 1e-2
    np.testing.assert_allclose(tiny.loss_curve_, plain.loss_curve_, rtol=exact)
    told, expected = tiny.coefs_[0] * factor * unit, plain.coefs_[0]
    # What rounding leaves of a constant moves its own weights.
    np.testing.assert_allclose(told[:4], expected[:4], rtol=0, atol=exact)
    assert tiny.score(container((X * factor).astype(dtype)), y) > 0.7
    tiny.set_params(warm_start=True, max_iter=1, learning_rate_init=1e-12)
    before = tiny.coefs_[0] * factor
    after = tiny.fit(container((X * factor).astype(dtype)), y).coefs_[0] * factor
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


def test_tiny_features_beside_others_and_constants(rows, run_ranks):
    X = rows[0] - SHIFT
    for others in (2 * X[:, :1], np.full((N_ROWS, 1), 1e6)):
        wide = np.hstack([X * 1e-9, others])
        found = scaling_of(wide, None, 2, run_ranks, is_classifier=True)
        assert found is None or found.unit == 1
    found = scaling_of(np.full(X.shape, 7.1), None, 2, run_ranks, is_classifier=True)
    assert found is None or found.unit == 1
    assert scaling_of(0 * X, None, 2, run_ranks, is_classifier=True) is None
    ones = np.hstack([X * 1e-6, np.ones((N_ROWS, 1))])
    found = scaling_of(ones, None, 2, run_ranks, is_classifier=True)
    assert found.unit == pytest.approx(1e-6 * np.sqrt(X.var(axis=0).sum()), rel=0.1)


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_a_large_feature_does_not_drown_the_others(rows, n_ranks, container):
    X, y = rows[0] - SHIFT, rows[1]
    X = X * [1.0, 1.0, 1.0, 3000.0, 1.0]
    labels = (y > 0).astype(int)
    theirs = MLPClassifier((16,), random_state=0, max_iter=40, learning_rate_init=0.01)
    with pytest.warns(ConvergenceWarning):
        assert theirs.fit(X, labels).score(X, labels) < 0.9
    model = fit((container(X), labels), MPCAClassifier, n_ranks=n_ranks)
    assert model.score(X, labels) > 0.95


@pytest.mark.parametrize("solver", ["adam", "sgd"])
def test_it_is_the_network_of_scaled_rows(rows, solver):
    """But for the penalty, which is that of the weights as they are told."""
    X, labels = rows[0] * [1.0, 1.0, 30.0, 1.0, 1.0], (rows[1] > 0).astype(int)
    scale = np.maximum(X.std(axis=0), 1)
    Z = (X - X.mean(axis=0)) / scale
    params = {"cls": MPCAClassifier, "solver": solver, "alpha": 0.0}
    model, scaled = fit((X, labels), **params), fit((Z, labels), **params)
    np.testing.assert_allclose(
        model.coefs_[0] * scale[:, np.newaxis], scaled.coefs_[0], rtol=1e-5, atol=1e-7
    )
    np.testing.assert_allclose(
        model.predict_proba(X), scaled.predict_proba(Z), rtol=1e-5, atol=1e-8
    )
    np.testing.assert_allclose(
        model.to_sklearn().predict_proba(X), model.predict_proba(X), rtol=1e-10
    )
    model.set_params(warm_start=True, max_iter=1, learning_rate_init=1e-9)
    before = model.predict_proba(X)
    np.testing.assert_allclose(model.fit(X, labels).predict_proba(X), before, atol=1e-6)


def test_the_penalty_is_that_of_the_weights_as_they_are_told(rows):
    """The gradient next to differences of loss and penalty of unscaled weights."""
    X, labels = rows[0] * [1.0, 1.0, 30.0, 1.0, 1.0], (rows[1] > 0).astype(int)
    spec, random_state = MLPSpec((3,), "tanh", alpha=50.0), np.random.RandomState(0)
    network = spec.build(5, 2, np.dtype(float), random_state)
    scaling = Scaling(X.mean(axis=0), np.maximum(X.std(axis=0), 1))
    network.set_scaling(scaling)
    start = network.read(0, network.n_values)
    gradient = network.gradient(X, labels, None)[1].copy()

    def value(vector):
        told = network.unscaled(vector)
        attributes = spec.attributes(told, 5, 2)
        squares = sum((coef**2).sum() for coef in attributes["coefs_"])
        chances = spec.forward(told, X, 2)[np.arange(N_ROWS), labels]
        return -np.log(chances).mean() + 50.0 / 2 * squares / N_ROWS

    np.testing.assert_allclose(network.unscaled(network.unscaled(start), -1), start)
    for at in range(0, len(start), 3):
        step = np.zeros_like(start)
        step[at] = 1e-6
        slope = (value(start + step) - value(start - step)) / 2e-6
        assert slope == pytest.approx(gradient[at], rel=1e-5, abs=1e-7)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("strategy", ["synchronous", "gradients"])
@pytest.mark.parametrize("n_targets", [None, 2])
def test_targets_of_all_units_give_one_network(rows, dtype, strategy, n_targets):
    """The model, its losses, and when it ends."""
    X, y = rows
    X = (X - SHIFT).astype(dtype)
    y = y if n_targets is None else np.column_stack([y, y**2])
    spread = np.sqrt(y.var(axis=0).mean())
    params = {"strategy": strategy, "tol": 1e-3, "max_iter": 100}
    params |= {"n_iter_no_change": 4, "n_ranks": 2}
    tens = fit((X, y / spread * 10), **params)
    assert tens.n_iter_ < 100
    assert tens.score(X, y / spread * 10) > 0.7
    for factor in (1e-7, 1e7):
        model = fit((X, y * factor), **params)
        size, far = factor * spread, 1e-3 if dtype == np.float32 else 1e-7
        assert model.n_iter_ == tens.n_iter_
        losses = model.loss_curve_ / size**2 * 100
        np.testing.assert_allclose(losses, tens.loss_curve_, rtol=far)
        told = model.predict(X) / size * 10
        np.testing.assert_allclose(told, tens.predict(X), rtol=0, atol=10 * far)
        np.testing.assert_allclose(
            model.to_sklearn().predict(X), model.predict(X), rtol=1e-4, atol=1e-5 * size
        )


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_targets_of_any_unit_are_learned(rows, factor):
    X, y = rows[0] - SHIFT, rows[1] * factor
    with pytest.warns(ConvergenceWarning):
        theirs = peer(max_iter=40, learning_rate_init=0.01, tol=0, n_iter_no_change=99)
        assert theirs.fit(X, y).score(X, y) < 0.1
    for far in (0.0, 1e3 * factor):
        model = fit((X, y + far))
        assert model.score(X, y + far) > 0.7
        model.set_params(warm_start=True, max_iter=1, learning_rate_init=1e-9)
        before = model.predict(X)
        after = model.fit(X, y + far).predict(X)
        np.testing.assert_allclose(after, before, atol=1e-5 * factor)


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


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_resumed_fit_scales_as_before(rows, tmp_path, check_same, n_ranks):
    X, labels = rows[0] * [1.0, 1.0, 30.0, 1.0, 1.0], (rows[1] > 0).astype(int)
    params = {"cls": MPCAClassifier, "n_ranks": n_ranks, "strategy": "synchronous"}
    whole = fit((X, labels), **params, max_iter=6)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        fit((X, labels), **params, max_iter=3)
        check_same(fit((X, labels), **params, max_iter=6), whole)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_resumed_fit_scales_targets_as_before(rows, tmp_path, check_same, n_ranks):
    rows = rows[0], rows[1] * 1e4
    params = {"n_ranks": n_ranks, "strategy": "synchronous"}
    whole = fit(rows, **params, max_iter=6)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        fit(rows, **params, max_iter=3)
        check_same(fit(rows, **params, max_iter=6), whole)


@pytest.mark.parametrize("factor", [1.0, 1e4])
def test_held_out_rows_are_scored_by_the_same_network(rows, factor):
    rows = rows[0], rows[1] * factor
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


@pytest.mark.each
@pytest.mark.parametrize("solver", ["adam", "sgd"])
@pytest.mark.parametrize("factor", [1e-6, 1e5])
def test_partial_fit_goes_on_with_the_scaling_of_a_fit(rows, solver, factor):
    X, y = rows[0] - SHIFT, rows[1] * factor
    model = fit((X, y), solver=solver, max_iter=100)
    before = model.score(X, y)
    for _ in range(3):
        model.partial_fit(X, y)
    assert before > 0.5
    assert model.score(X, y) > before - 0.05


def test_columns_of_other_units_are_no_worse_for_it(rows):
    """One scale for both would leave the small one where it begins, far off."""
    X, y = rows[0] - SHIFT, rows[1]
    Y = np.column_stack([1e5 * y, X[:, 1]])
    model = fit((X, Y), max_iter=100)
    assert np.square(model.predict(X) - Y)[:, 1].mean() < Y[:, 1].var()


def test_state_of_features_alone():
    shared = {"center": np.ones(3), "scale": np.full(3, 2.0)}
    assert kept_scaling(shared).outputs == 1


def test_moments_are_those_of_all_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    y, weight = rng.integers(0, 255, (50, 2), dtype=np.uint8), rng.random(50)
    blocks = [
        Block(np.zeros((len(part), 1)), y[part], weight[part], number, None)
        for number, part in enumerate(np.array_split(np.arange(50), 3))
    ]
    monkeypatch.setattr(_targets, "_AT_ONCE", 8)
    found = _targets.moments_of(Shard(blocks, 1, np.dtype(float)), 2)
    mean = np.average(y, axis=0, weights=weight)
    np.testing.assert_allclose(found.mean, mean)
    np.testing.assert_allclose(found.variation, weight @ (y - mean) ** 2)
    assert (found.n_rows, found.weight) == (50, pytest.approx(weight.sum()))


# Outliers -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spoilt(rows):
    """Rows of five columns near 0, of which one row holds a million in each."""
    X = rows[0] - SHIFT
    X[:, 4] = np.linspace(-1, 1, N_ROWS)
    X[7] = 1e6
    return X, X[:, 0] + X[:, 1] > 0


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("weighted", [False, True])
def test_scales_of_classes_leave_outliers_out(
    spoilt, run_ranks, n_ranks, container, weighted
):
    weight = np.random.default_rng(0).uniform(0.1, 2, N_ROWS) if weighted else None
    X = spoilt[0] * [20.0, 1.0, 20.0, 1.0, 1.0] + [0.0, 0.0, 100.0, 0.0, 0.0]
    X[8, 2] = 1e9  # which hides the million of the same column
    X[9, 3] = 0.0
    found = scaling_of(container(X), weight, n_ranks, run_ranks, is_classifier=True)
    inner = np.delete(np.arange(N_ROWS), [7, 8])
    own = None if weight is None else weight[inner]
    scale = np.sqrt(np.cov(X[inner].T, aweights=own, bias=True).diagonal())
    np.testing.assert_allclose(found.scale, np.maximum(scale, 1), rtol=0.02)
    mean = np.average(X[inner], axis=0, weights=own)
    np.testing.assert_allclose(found.center, mean, atol=0.02 * scale.max())


def test_values_that_are_no_outliers(run_ranks):
    """Too many, or all that differs in the column, or not so far off."""
    rng = np.random.default_rng(0)
    X = np.zeros((200, 3))
    X[:, 0], X[:, 1] = rng.normal(size=200), 0.0
    X[:20, 0] = 1e6
    X[:4, 1] = 1e6
    X[:, 2] = rng.standard_t(2, size=200) * 50
    found = scaling_of(X, None, 2, run_ranks, is_classifier=True)
    np.testing.assert_allclose(found.scale, X.std(axis=0), rtol=1e-9)


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_what_each_row_has_in_one_of_many_columns(run_ranks, container, n_ranks):
    """Few rows in each of them, but it tells all rows from each other."""
    rng = np.random.default_rng(0)
    X = (rng.random((400, 40)) < 0.06).astype(float)
    X[np.arange(400), rng.integers(0, 40, 400)] = 2000.0
    found = scaling_of(container(X), None, n_ranks, run_ranks, is_classifier=True)
    np.testing.assert_allclose(found.scale, X.std(axis=0), rtol=1e-9)


def score_without_row_7(X, y, n_ranks):
    """Accuracy on the other rows of a classifier fitted to all."""
    model = MPCAClassifier((16,), random_state=0, n_ranks=n_ranks, max_iter=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    return model.score(np.delete(X, 7, axis=0), np.delete(y, 7))


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_row_of_a_million_leaves_a_classifier_what_it_learns(spoilt, n_ranks):
    """It was the most frequent class for all rows, without a word."""
    assert score_without_row_7(*spoilt, n_ranks) > 0.9


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_regression_says_which_column_has_outliers(spoilt, n_ranks):
    X = spoilt[0].copy()
    X[7, :3] = 0.0
    y = X[:, 0] + X[:, 1]
    with pytest.warns(
        UserWarning, match=r"column 3 of X, and 1 more, holds a few"
    ) as w:
        fit((X, y), n_ranks=n_ranks)
    assert len([one for one in w if "holds a few values" in str(one.message)]) == 1


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("place", [(7, 2), (7,)], ids=["value", "row"])
@pytest.mark.parametrize("size", [1.0, 100.0])
def test_a_small_unit_is_that_of_most_rows(run_ranks, n_ranks, container, place, size):
    """Of a value, or of a row, that makes up the distance of rows by itself."""
    rng = np.random.default_rng(0)
    X = 1e-6 * rng.normal(size=(N_ROWS, 6)) * (np.arange(6) != 3)
    expected = np.sqrt(X.var(axis=0).sum())
    X[place] = size
    found = scaling_of(container(X), None, n_ranks, run_ranks, is_classifier=True)
    assert found.unit == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("n_rows", "n_far"), [(12, 1), (60, 1), (101, 1), (200, 2)])
def test_one_row_makes_no_unit_nor_a_hundredth_of_many(run_ranks, n_rows, n_far):
    """However far these draw the mean of all rows from the others."""
    X = 1e-6 * np.random.default_rng(0).normal(size=(n_rows, 5))
    X[:n_far, 2] = 1.0
    expected = np.sqrt(X[n_far:].var(axis=0).sum())
    found = scaling_of(X, None, 2, run_ranks, is_classifier=True)
    assert found.unit == pytest.approx(expected)


@pytest.mark.parametrize("cls", [MPCAClassifier, MPCARegressor])
def test_rows_that_others_vanish_beside_are_told_of(rows, cls):
    """Too many to leave out; others that are seen beside them are no matter."""
    X, y = rows[0] - SHIFT, rows[1] > 0
    for size, is_told in [(1e-6, True), (0.05, False)]:
        near = size * X
        near[:10, 2] += 1.0
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit((near, y), cls, max_iter=2, n_ranks=2)
        found = [one for one in caught if "a few rows of X" in str(one.message)]
        assert len(found) == is_told


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_value_of_one_leaves_a_classifier_what_it_learns(rows, n_ranks):
    """Rows of a millionth were all alike beside it, without a word."""
    X = 1e-6 * (rows[0] - SHIFT)
    y = X[:, 0] + X[:, 1] > 0
    X[7, 2] = 1.0
    assert score_without_row_7(X, y, n_ranks) > 0.9


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_regression_says_that_few_rows_make_its_unit(rows, n_ranks):
    X, y = 1e-6 * (rows[0] - SHIFT), rows[1]
    X[7, 2] = 1.0
    with pytest.warns(UserWarning, match=r"a few rows of X .* leave the few out"):
        fit((X, y), n_ranks=n_ranks, max_iter=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit((np.delete(X, 7, axis=0), np.delete(y, 7)), n_ranks=n_ranks, max_iter=2)
        X = 0.4 * (rows[0] - SHIFT)  # which a network learns of as they are
        X[7] = 1e3
        with pytest.warns(UserWarning, match="a few values so far from the rest"):
            fit((X, y), n_ranks=n_ranks, max_iter=2)


def test_a_column_that_is_scaled_hides_no_others(rows):
    """It is told of as a column, and not as rows whose unit would be another."""
    X, y = rows[0] - SHIFT, rows[1]
    X[7, 2] = 1e4
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit((0.1 * X, y), max_iter=2)
    texts = [str(one.message) for one in caught]
    assert [text[:8] for text in texts if "so far from" in text] == ["column 2"]


def test_rows_that_are_too_many_to_leave_out(run_ranks):
    """Or those of which there are none others, or whose distance is rounding."""
    X = 1e-6 * np.random.default_rng(0).normal(size=(100, 2))
    X[:2] += 1
    found = scaling_of(X, None, 2, run_ranks, is_classifier=True)
    assert found.unit == pytest.approx(np.sqrt(X.var(axis=0).sum()))
    X = np.full((100, 2), 1e3)
    X[7] = 1e3 + 1e-2
    found = scaling_of(X, None, 2, run_ranks, is_classifier=True)
    assert found is None or found.unit == pytest.approx(1e-3 * np.sqrt(2), rel=0.01)


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("spread", [0.0, 6e10])
def test_nanoseconds_since_1970_do_not_drown_the_others(rows, n_ranks, spread):
    """Squares of 1.7e18 hide minutes, and rounding made a scale of its own."""
    X, y = rows
    times = 1.7e18 + spread * np.random.default_rng(0).random((len(X), 1))
    far = np.hstack([X, times])
    model = MPCAClassifier((16,), random_state=0, n_ranks=n_ranks, max_iter=100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(far, y > 0)
    assert model.score(far, y > 0) > 0.9


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_matrix])
def test_a_variance_that_squares_hide_is_found(rows, run_ranks, n_ranks, container):
    X, y = rows
    times = 1.7e18 + 1e9 * np.random.default_rng(0).random((len(X), 1))
    X = np.hstack([X, times])
    found = scaling_of(container(X), None, n_ranks, run_ranks, is_classifier=True)
    assert found.scale[-1] == pytest.approx((X[:, -1] - 1.7e18).std(), rel=1e-6)
