"""Rows to score models on, scores of one's own, and callbacks that score epochs."""

import pickle

import dask
import dask.array as da
import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score

from dask_ma import MPCAClassifier, MPCARegressor

QUICK = {"tol": None, "random_state": 0, "batch_size": 20, "max_iter": 4}
QUICK |= {"hidden_layer_sizes": (8,), "learning_rate_init": 0.01}


@pytest.fixture(scope="module")
def classes():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5))
    y = np.where(X[:, 0] + 0.5 * rng.normal(size=300) > 0, "a", "b")
    y[:30] = "c"
    return X[::2], y[::2], X[1::2], y[1::2]


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_the_score_is_that_on_the_rows_given(classes, n_ranks):
    X, y, X_val, y_val = classes
    model = MPCAClassifier(
        early_stopping=True, n_ranks=n_ranks, strategy="synchronous", **QUICK
    ).fit(X, y, X_val=X_val, y_val=y_val)
    assert len(model.validation_scores_) == 4
    expected = model.score(X_val, y_val)  # the model is that of the best score
    assert model.best_validation_score_ == pytest.approx(expected, abs=1e-12)
    # No row is held out.
    rows = sum(record["n_samples"] for record in model.history_)
    assert rows >= 4 * len(X)


@pytest.mark.parametrize("kind", ["arrays", "frames", "unknown lengths"])
def test_validation_rows_may_be_lazy(classes, kind):
    X, y, X_val, y_val = classes
    model = MPCAClassifier(
        early_stopping=True, n_ranks=2, strategy="synchronous", **QUICK
    )
    expected = model.fit(X, y, X_val=X_val, y_val=y_val).validation_scores_
    lazy = da.from_array(X_val, chunks=(40, 3)), da.from_array(y_val, chunks=70)
    if kind == "frames":
        lazy = (each.rechunk(50).to_dask_dataframe() for each in lazy)
    if kind == "unknown lengths":
        lazy = lazy[0][lazy[0][:, 0] > -np.inf], lazy[1]
    X_lazy, y_lazy = lazy
    weight = da.ones(len(y_val), chunks=30)
    model.fit(X, y, X_val=X_lazy, y_val=y_lazy, sample_weight_val=weight)
    assert model.validation_scores_ == expected


def test_weights_of_validation_rows(classes):
    X, y, X_val, y_val = classes
    weight = np.random.default_rng(0).random(len(y_val))
    model = MPCAClassifier(early_stopping=True, n_ranks=2, **QUICK)
    model.fit(X, y, X_val=X_val, y_val=y_val, sample_weight_val=weight)
    expected = model.score(X_val, y_val, weight)
    assert model.best_validation_score_ == pytest.approx(expected, abs=1e-12)
    with pytest.raises(ValueError, match="at least one non-zero|weight"):
        model.fit(X, y, X_val=X_val, y_val=y_val, sample_weight_val=0 * weight)


@pytest.mark.parametrize("n_targets", [1, 2])
def test_r2_on_the_rows_given(n_targets):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    y = np.squeeze(X @ rng.normal(size=(4, n_targets)))
    model = MPCARegressor(early_stopping=True, n_ranks=2, **QUICK)
    model.fit(X[:120], y[:120], X_val=X[120:], y_val=y[120:])
    expected = model.score(X[120:], y[120:])
    assert model.best_validation_score_ == pytest.approx(expected, rel=1e-6)


def own_score(estimator, X, y):
    return balanced_accuracy_score(y, estimator.predict(X))


@pytest.mark.each
@pytest.mark.parametrize(
    ("chosen", "function"),
    [
        ("f1_macro", lambda y, predicted: f1_score(y, predicted, average="macro")),
        ("neg_log_loss", None),
        (own_score, balanced_accuracy_score),
    ],
)
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_scores_of_ones_own(classes, chosen, function, n_ranks):
    """The mean over ranks of what they find on their rows."""
    X, y, X_val, y_val = classes
    model = MPCAClassifier(early_stopping=chosen, n_ranks=n_ranks, **QUICK)
    model.fit(X, y, X_val=X_val, y_val=y_val)
    if function is None:  # a mean over rows, which is the same on any ranks
        codes = np.searchsorted(model.classes_, y_val)
        logarithms = model.predict_log_proba(X_val)
        expected = logarithms[np.arange(len(codes)), codes].mean()
    else:
        parts = [slice(rank, None, n_ranks) for rank in range(n_ranks)]
        scores = [function(y_val[p], model.predict(X_val[p])) for p in parts]
        expected = np.average(scores, weights=[len(y_val[p]) for p in parts])
    assert model.best_validation_score_ == pytest.approx(expected, rel=1e-6)
    assert model.to_sklearn().early_stopping is True


def test_a_score_of_probabilities_on_rows_held_out():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    y = (X[:, 0] > 0).astype(int)
    model = MPCAClassifier(
        early_stopping="roc_auc", validation_fraction=0.3, n_ranks=2,
        **{**QUICK, "max_iter": 15},
    ).fit(X, y)  # fmt: skip
    assert 5 < len(model.validation_scores_) <= 15  # epochs may end together
    assert 0.7 < model.best_validation_score_ <= 1
    assert model.best_validation_score_ == max(model.validation_scores_)
    assert roc_auc_score(y, model.predict_proba(X)[:, 1]) > 0.7


def test_a_score_of_a_module(classes):
    nn = pytest.importorskip("torch", reason="modules need torch").nn
    X, y, X_val, y_val = classes
    params = {k: v for k, v in QUICK.items() if k != "hidden_layer_sizes"}
    model = MPCAClassifier(
        module=nn.Linear(5, 3), early_stopping="f1_macro", n_ranks=1, **params
    ).fit(X, y, X_val=X_val, y_val=y_val)
    expected = f1_score(y_val, model.predict(X_val), average="macro")
    assert model.best_validation_score_ == pytest.approx(expected)


class Noting:
    """A score that notes what it is called with, and predicts it."""

    def __init__(self):
        self.seen = []

    def __call__(self, estimator, X, y):
        predicted = estimator.predict(X)
        self.seen.append((X, y, predicted))
        return float((predicted == y).mean())


@pytest.mark.parametrize("is_held_out", [False, True])
def test_a_score_of_ones_own_gets_images_and_maps(is_held_out):
    """Rows and targets have the shapes that they were given in."""
    nn = pytest.importorskip("torch", reason="modules need torch").nn
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2, 4, 5)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
    noting = Noting()

    def score(estimator, X, y):
        shape = (len(X), 3, 4, 5)
        assert estimator.predict_proba(X).shape == shape
        return noting(estimator, X, y)

    params = {k: v for k, v in QUICK.items() if k != "hidden_layer_sizes"}
    model = MPCAClassifier(module=nn.Conv2d(2, 3, 1), early_stopping=score, **params)
    val = {} if is_held_out else {"X_val": X[40:], "y_val": y[40:]}
    model.set_params(n_ranks=2, strategy="synchronous").fit(X[:40], y[:40], **val)
    for rows, targets, predicted in noting.seen:
        assert rows.shape[1:] == (2, 4, 5)
        assert targets.shape == predicted.shape == (len(rows), 4, 5)
        np.testing.assert_array_equal(
            targets, (rows[:, 0] > 0).astype(int) + (rows[:, 1] > 0)
        )
    if not is_held_out:
        expected = float((model.predict(X[40:]) == y[40:]).mean())
        assert model.best_validation_score_ == pytest.approx(expected)


def test_a_score_of_ones_own_gets_dicts_and_items():
    torch = pytest.importorskip("torch", reason="modules need torch")
    from torch.utils.data import Dataset, TensorDataset

    class ByName(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(5, 2)

        def forward(self, a, b):
            return self.layer(torch.cat([a, b], 1))

    X = np.random.default_rng(0).normal(size=(80, 5)).astype(np.float32)
    y = np.where(X[:, 0] > 0, "yes", "no")
    params = {k: v for k, v in QUICK.items() if k != "hidden_layer_sizes"}
    params |= {"n_ranks": 2, "strategy": "synchronous"}
    by_name, by_item = Noting(), Noting()
    model = MPCAClassifier(module=ByName, early_stopping=by_name, **params)
    model.fit({"a": X[:, :2], "b": X[:, 2:]}, y)
    assert by_name.seen
    for rows, targets, _ in by_name.seen:
        assert list(rows) == ["a", "b"]
        assert rows["a"].shape == (len(targets), 2)
        np.testing.assert_array_equal(
            targets, np.where(rows["a"][:, 0] > 0, "yes", "no")
        )
    model = MPCAClassifier(
        module=torch.nn.Linear(5, 2), early_stopping=by_item, **params
    )
    items = TensorDataset(torch.tensor(X), torch.tensor(y == "yes").long())
    model.fit(items)
    model.fit(items, X_val=X, y_val=(y == "yes").astype(int))
    assert by_item.seen
    for rows, targets, predicted in by_item.seen:
        assert isinstance(rows, Dataset)
        assert len(rows) == len(targets) == len(predicted)
        inputs = np.stack([np.asarray(r[0] if len(r) == 2 else r) for r in rows])
        np.testing.assert_array_equal(targets, (inputs[:, 0] > 0).astype(int))


def test_named_scores_of_images():
    """Those of scikit-learn take no more than two dimensions."""
    nn = pytest.importorskip("torch", reason="modules need torch").nn
    X = np.random.default_rng(0).normal(size=(60, 2, 4, 5)).astype(np.float32)
    params = {k: v for k, v in QUICK.items() if k != "hidden_layer_sizes"}
    model = MPCARegressor(
        module=nn.Conv2d(2, 2, 3, padding=1), early_stopping="neg_mean_absolute_error",
        n_ranks=2, **params,
    ).fit(X, X, X_val=X, y_val=X)  # fmt: skip
    expected = -np.abs(model.predict(X) - X).mean()
    assert model.best_validation_score_ == pytest.approx(expected, rel=1e-5)


def test_what_cannot_be_used_is_refused(classes):
    X, y, X_val, y_val = classes
    model = MPCAClassifier(early_stopping=True, **QUICK)
    val = {"X_val": X_val, "y_val": y_val}
    with pytest.raises(ValueError, match="no effect with early_stopping=False"):
        MPCAClassifier(**QUICK).fit(X, y, **val)
    with pytest.raises(ValueError, match="X_val and y_val belong together"):
        model.fit(X, y, X_val=X_val)
    with pytest.raises(ValueError, match="5 features"):
        model.fit(X, y, X_val=X_val[:, :4], y_val=y_val)
    with pytest.raises(ValueError, match="not in"):
        model.fit(X, y, X_val=X_val, y_val=np.full(len(y_val), "z"))
    with pytest.raises(ValueError, match="'early_stopping' parameter.*Got 'f2'"):
        MPCAClassifier(early_stopping="f2", **QUICK).fit(X, y)
    with pytest.raises(ValueError, match="y_val must have as many columns as y"):
        model.fit(X, y, X_val=X_val, y_val=np.zeros((len(y_val), 2)))


def test_another_validation_set_is_another_fit(classes, tmp_path):
    X, y, X_val, y_val = classes
    model = MPCAClassifier(early_stopping=True, **QUICK)
    with dask.config.set({"dask-ma.checkpoint.path": str(tmp_path)}):
        first = model.fit(X, y, X_val=X_val, y_val=y_val).validation_scores_
        second = model.fit(X, y, X_val=X_val[:40], y_val=y_val[:40]).validation_scores_
    assert first != second


# Callbacks ----------------------------------------------------------------------------


@pytest.fixture
def callbacks():
    pytest.importorskip(
        "sklearn.callback", reason="scikit-learn has callbacks from version 1.9 on"
    )
    from dask_ma.mpca import Checkpoint, EpochScoring

    return EpochScoring, Checkpoint


def test_epochs_are_scored(callbacks, classes):
    EpochScoring, Checkpoint = callbacks
    X, y, X_val, y_val = classes
    scoring = EpochScoring(X_val, y_val, "f1_macro")
    best = Checkpoint(X_val, y_val)
    model = MPCAClassifier(n_ranks=2, strategy="synchronous", **QUICK)
    for _ in range(2):  # each fit begins anew
        model.set_callbacks(scoring, best).fit(X, y)
        assert len(scoring.scores_) == len(best.scores_) == 4
    expected = f1_score(y_val, model.predict(X_val), average="macro")
    assert scoring.scores_[-1] == pytest.approx(expected)
    assert best.best_epoch_ == 1 + np.argmax(best.scores_)
    assert best.best_score_ == best.best_estimator_.score(X_val, y_val)
    assert best.best_estimator_.n_iter_ == best.best_epoch_


def test_patience_ends_a_fit(callbacks, classes):
    EpochScoring, _ = callbacks
    X, y, *_ = classes
    same = EpochScoring(X, y, lambda estimator, X, y: 0.5, patience=2)
    model = MPCAClassifier(n_ranks=2, strategy="synchronous", **QUICK)
    model.set_callbacks(same).fit(X, y)
    assert model.n_iter_ == len(same.scores_) == 3
    with pytest.raises(ValueError, match="patience must be at least 1 or None, got 0"):
        EpochScoring(X, y, patience=0)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".pickle"])
def test_the_best_model_is_in_a_file(callbacks, classes, suffix, tmp_path):
    torch = pytest.importorskip("torch", reason="modules need torch")
    _, Checkpoint = callbacks
    X, y, X_val, y_val = classes
    path = tmp_path / f"best{suffix}"
    best = Checkpoint(X_val, y_val, path=path)
    params = {k: v for k, v in QUICK.items() if k != "hidden_layer_sizes"}
    MPCAClassifier(module=torch.nn.Linear(5, 3), **params).set_callbacks(best).fit(X, y)
    assert list(tmp_path.iterdir()) == [path]
    if suffix == ".pickle":
        found = pickle.loads(path.read_bytes()).state_dict()
    elif suffix == ".pt":
        found = torch.load(path)
    else:
        found = pytest.importorskip("safetensors.torch").load_file(path)
    for name, value in best.best_estimator_.state_dict().items():
        np.testing.assert_array_equal(found[name].numpy(), value.numpy())
