"""Several targets, and several labels of a row, against scikit-learn's networks."""

import warnings

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.metrics import accuracy_score, r2_score
from sklearn.neural_network import MLPClassifier, MLPRegressor

from dask_ma import MASGDRegressor, MPCAClassifier, MPCARegressor
from dask_ma.comm import LocalGroup
from dask_ma.data import Block, Shard
from dask_ma.mpca import Torch
from dask_ma.mpca.networks._evaluation import score_sums
from dask_ma.mpca.networks._mlp import MLPSpec
from dask_ma.supervised import spread_of

QUICK = {"hidden_layer_sizes": (7, 5), "batch_size": 16, "max_iter": 6}
QUICK |= {"random_state": 0, "learning_rate_init": 0.01}
PAIRS = {MPCARegressor: MLPRegressor, MPCAClassifier: MLPClassifier}
BOTH = pytest.mark.parametrize("cls", [MPCARegressor, MPCAClassifier])


@pytest.fixture(scope="module")
def rows():
    """120 rows of 6 features, with three targets of different sizes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 6))
    noise = 0.1 * rng.normal(size=(120, 3))
    return X, (X @ rng.normal(size=(6, 3)) + noise) * [0.05, 0.25, 0.75]


def targets_of(cls, Y):
    """Numbers for the regressor; 1 for each label that a row has for the other."""
    return Y if cls is MPCARegressor else (Y > 0).astype(int)


def fit(cls, X, Y, weight=None, **params):
    return cls(**{**QUICK, "tol": None, **params}).fit(X, Y, sample_weight=weight)


def fit_theirs(cls, X, Y, weight=None):
    """Numbers are predicted from their means on, which the intercepts get back."""
    model = PAIRS[cls](**QUICK, tol=0.0, n_iter_no_change=1000)
    means = np.zeros(Y.shape[1])
    if cls is MPCARegressor:
        means = np.average(Y, axis=0, weights=weight)
    with pytest.warns(UserWarning, match="Maximum iterations"):
        model.fit(X, Y - means if means.any() else Y, sample_weight=weight)
    model.intercepts_[-1] += means
    return model


@pytest.mark.pairs
@BOTH
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_one_rank_is_scikit_learn(rows, check_same, cls, weighted, container):
    X, Y = container(rows[0]), targets_of(cls, rows[1])
    weight = None
    if weighted:
        weight = np.random.default_rng(1).uniform(0.2, 3, 120)
        weight /= weight.mean()
    ours, theirs = fit(cls, X, Y, weight), fit_theirs(cls, X, Y, weight)
    check_same(ours, theirs, 1e-10)
    np.testing.assert_allclose(ours.loss_curve_, theirs.loss_curve_, rtol=1e-10)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-9)
    assert ours.predict(X).shape == (120, 3)
    assert ours.score(X, Y) == pytest.approx(theirs.score(X, Y))
    for name in ("out_activation_", "n_outputs_", "n_layers_"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.n_targets_ == 3
    second = ours.to_sklearn()
    np.testing.assert_array_equal(second.predict(X), ours.predict(X))
    second.partial_fit(X, Y)
    if cls is MPCAClassifier:
        np.testing.assert_array_equal(ours.classes_, theirs.classes_)
        assert ours.predict(X).dtype == theirs.predict(X).dtype
        for method in ("predict_proba", "predict_log_proba"):
            found, expected = (getattr(m, method)(X) for m in (ours, theirs))
            np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("strategy", "cls"),
    [
        ("mpca", MPCARegressor),
        ("gradients", MPCAClassifier),
        ("easgd", MPCAClassifier),
        ("parameter_server", MPCARegressor),
    ],
)
def test_every_kind_of_step_learns(rows, strategy, cls):
    X, Y = rows[0], targets_of(cls, rows[1])
    # How stale gradients are at a server depends on the clock: less so with two ranks.
    n_ranks, max_iter = (2, 80) if strategy == "parameter_server" else (3, 40)
    model = fit(
        cls, X, Y, strategy=strategy, n_ranks=n_ranks, max_iter=max_iter,
        hidden_layer_sizes=(20,), learning_rate_init=0.01, batch_size=8,
    )  # fmt: skip
    assert model.score(X, Y) > (0.5 if strategy == "parameter_server" else 0.7)


@pytest.mark.each
@BOTH
@pytest.mark.parametrize("kind", ["array", "frame"])
@pytest.mark.usefixtures("undealt")
def test_collections_are_as_arrays(rows, cluster, check_same, cls, kind):
    X, Y = rows[0], targets_of(cls, rows[1])
    params = {"strategy": "synchronous", "n_ranks": 4, "max_iter": 2}
    expected = fit(cls, X, Y, **params)
    if kind == "array":
        # Columns of y in several chunks, and in other blocks than X.
        lazy = da.from_array(X, chunks=(30, 6)), da.from_array(Y, chunks=(40, 2))
    else:
        frame = pd.DataFrame(np.hstack([X, Y]), columns=list("abcdefuvw"))
        whole = dd.from_pandas(frame, npartitions=4, sort=False)
        lazy = whole[list("abcdef")], whole[list("uvw")]
    model = fit(cls, *lazy, **params)
    check_same(model, expected)
    methods = ["predict"] + ["predict_proba"] * (cls is MPCAClassifier)
    for method in methods:
        found = getattr(model, method)(lazy[0])
        assert isinstance(found, da.Array) and found.shape[1] == 3
        values = getattr(expected, method)(X)
        assert found.dtype == values.dtype
        np.testing.assert_allclose(found.compute(), values, rtol=1e-9)
    weight = np.random.default_rng(1).uniform(0.2, 3, 120)
    for given in (None, weight):
        there = model.score(*lazy, sample_weight=given)
        assert there == pytest.approx(expected.score(X, Y, sample_weight=given))


@pytest.mark.each
@BOTH
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_early_stopping_keeps_the_best_model(rows, cls, n_ranks):
    X, Y = rows[0], targets_of(cls, rows[1])
    params = {"early_stopping": True, "validation_fraction": 0.3, "n_ranks": n_ranks}
    params |= {"strategy": "local", "learning_rate_init": 0.02}
    model = fit(cls, X, Y, max_iter=40, **params)
    best = int(np.argmax(model.validation_scores_)) + 1
    assert model.validation_scores_[0] < model.best_validation_score_ <= 1
    again = fit(cls, X, Y, max_iter=best, **params)
    np.testing.assert_array_equal(model.coefs_[0], again.coefs_[0])


@pytest.mark.parametrize("is_classifier", [False, True])
def test_scores_are_those_of_scikit_learn(rows, run_ranks, is_classifier):
    """Of rows on several ranks, with weights."""
    X, Y = rows
    Y = (Y > 0).astype(float) if is_classifier else Y
    weight = np.random.default_rng(1).uniform(0.2, 3, 120)
    spec = MLPSpec((5,), n_targets=3)
    n_classes = 3 if is_classifier else None

    def program(group):
        network = spec.build(6, n_classes, X.dtype, np.random.RandomState(0))
        vector = network.read(0, network.n_values)
        part = slice(0, 50) if group.rank == 0 else slice(50, 120)
        block = Block(X[part], Y[part], weight[part], 0, 0)
        shard = Shard([block], 6, X.dtype)
        spread = None if is_classifier else spread_of(group, shard, 3)
        options = {"is_classifier": is_classifier, "spread": spread}
        return score_sums(network, vector, shard, **options), vector

    (first, vector), (second, _) = run_ranks(program, 2)
    total, value, mean, squares = first + second
    predicted = spec.forward(vector, X, n_classes)
    if is_classifier:
        expected = accuracy_score(Y, predicted > 0.5, sample_weight=weight)
        assert value / total == pytest.approx(expected)
    else:
        expected = r2_score(Y, predicted, sample_weight=weight)
        found = 1 - value / (squares - mean**2 / total)
        assert found == pytest.approx(expected)


@BOTH
def test_resumed_and_continued_fits(rows, check_same, tmp_path, cls):
    X, Y = rows[0], targets_of(cls, rows[1])
    whole = fit(cls, X, Y)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        fit(cls, X, Y, max_iter=2)
        check_same(fit(cls, X, Y), whole)
        # The third column alone tells these data from the others.
        other = Y.copy()
        other[:, 2] = Y[::-1, 2]
        plain = fit(cls, X, Y, max_iter=2)
        assert not np.array_equal(fit(cls, X, other).coefs_[0], whole.coefs_[0])
    parts = cls(**QUICK)
    for _ in range(2):
        parts.partial_fit(X, Y)
    assert parts.predict(X).shape == (120, 3)
    np.testing.assert_allclose(parts.loss_curve_[-1], plain.loss_curve_[-1], rtol=0.5)
    with pytest.raises(ValueError, match="y has no columns, expected 3"):
        parts.partial_fit(X, Y[:, 0])


def test_what_is_refused(rows, cluster):
    X, Y = rows
    lazy = da.from_array(X, chunks=(30, 6))
    with pytest.raises(ValueError, match="must hold 0 and 1.*as in a segmentation"):
        fit(MPCAClassifier, lazy, da.from_array(np.rint(Y).astype(int), chunks=(30, 3)))
    with pytest.raises(ValueError, match="class_weight needs a y of one dimension"):
        fit(MPCAClassifier, X, (Y > 0).astype(int), class_weight="balanced")
    bad = Y.copy()
    bad[70, 1] = np.nan
    for given in [(X, bad), (lazy, da.from_array(bad, chunks=(30, 3)))]:
        with pytest.raises(ValueError, match="NaN"):
            fit(MPCARegressor, *given)
    with pytest.raises(ValueError, match="y should be a 1d array"):
        MASGDRegressor().fit(lazy, da.from_array(Y, chunks=(30, 3)))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fit(MPCARegressor, lazy, da.from_array(Y[:90], chunks=(30, 3)))


def test_one_column_is_a_vector(rows, check_same):
    X, Y = rows
    expected = fit(MPCARegressor, X, Y[:, 0])
    with pytest.warns(UserWarning, match="column-vector y"):
        model = fit(MPCARegressor, X, Y[:, :1])
    check_same(model, expected)
    assert model.predict(X).shape == (120,)
    assert model.n_targets_ is None


def test_modules_have_an_output_for_each_target(rows):
    torch = pytest.importorskip("torch", reason="torch modules need torch")
    X, Y = rows
    params = {"n_ranks": 2, "strategy": "synchronous"}
    params |= {"max_iter": 20, "learning_rate_init": 0.04, "hidden_layer_sizes": (100,)}

    def make(n_outputs=3):
        return torch.nn.Sequential(
            torch.nn.Linear(6, 20), torch.nn.ReLU(), torch.nn.Linear(20, n_outputs)
        )

    params["module"] = Torch(make, device="cpu")
    model = fit(MPCARegressor, X, Y, **params)
    assert model.predict(X).shape == (120, 3)
    assert model.score(X, Y) > 0.8
    outputs = model.to_module()(torch.tensor(X, dtype=torch.float32)).detach()
    np.testing.assert_allclose(model.predict(X), outputs.numpy(), rtol=1e-5)
    labels = (Y > 0).astype(int)
    model = fit(MPCAClassifier, X, labels, early_stopping=True, **params)
    assert model.score(X, labels) > 0.7
    outputs = model.to_module()(torch.tensor(X, dtype=torch.float32)).detach()
    expected = 1 / (1 + np.exp(-outputs.numpy()))
    np.testing.assert_allclose(model.predict_proba(X), expected, rtol=1e-4)
    np.testing.assert_array_equal(model.predict(X), model.predict_proba(X) > 0.5)
    with pytest.raises(ValueError, match="output has shape .*2.*, not .*3"):
        model.set_params(module__module__n_outputs=2).fit(X, labels)


def test_a_group_of_one_has_the_spread_of_its_rows(rows):
    (group,) = LocalGroup.create(1)
    Y = rows[1]
    shard = Shard([Block(rows[0], Y, None, 0, 0)], 6, Y.dtype)
    spread = spread_of(group, shard, 3)
    assert spread.weight == 120
    np.testing.assert_allclose(spread.variation, 120 * Y.var(axis=0), rtol=1e-10)


def test_a_target_that_does_not_vary_scores_nothing():
    """As r2_score has it, unless it is predicted without any error."""
    (group,) = LocalGroup.create(1)
    rng = np.random.default_rng(0)
    Y = np.c_[rng.normal(size=50), np.full(50, 0.1)]
    shard = Shard([Block(Y, Y, None, 0, 0)], 2, Y.dtype)
    spread = spread_of(group, shard, 2)
    assert spread.variation[1] == 0
    outputs = rng.normal(size=Y.shape)
    expected = r2_score(Y[:, 0], outputs[:, 0]) / 2
    assert 1 - spread.parts_of(outputs, Y).sum() == pytest.approx(expected)


@pytest.mark.each
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("n_targets", [None, 2])
def test_targets_that_few_rows_make_up(n_ranks, n_targets):
    """As lognormal ones: the user is told, and how to have the others count."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5))
    z = X @ [1.0, -1.0, 1.0, 0.5, 0.0] + 0.1 * rng.normal(size=400)
    y = np.exp(2 * z)
    if n_targets is not None:
        y = np.column_stack([z, y])
    model = MPCARegressor((8,), random_state=0, n_ranks=n_ranks, max_iter=2, tol=None)
    name = "y has" if n_targets is None else "column 1 of y has"
    with pytest.warns(UserWarning, match=f"{name} values far out.*func=np.log"):
        model.fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, np.log(y) if n_targets is None else z)
        model.fit(X, np.exp(z / 3))
        model.fit(X, np.full(400, 1e9))
        model.partial_fit(X, y[:, 1] if n_targets else y)


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_a_rare_yes_is_not_far_out(n_ranks):
    """It has no logarithm, and is all that there is to learn."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 3))
    rare = (np.arange(900) % 300 == 7) * 1.0
    model = MPCARegressor((4,), random_state=0, n_ranks=n_ranks, max_iter=2, tol=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, rare)
        model.fit(X, np.column_stack([5 - 2 * rare, X[:, 0]]))
    for others in (0.001 * X[:, 0], 0.01 * (np.arange(900) == 8)):
        with pytest.warns(UserWarning, match="column 1 of y has values far out"):
            model.fit(X, np.column_stack([rare, rare + others]))
