"""Learnt distances: the objective, peers, ranks, inputs, and what is refused."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dask_ma import SFBMetricLearner
from dask_ma.exceptions import InsufficientMemoryError
from dask_ma.sfb import Exchange
from dask_ma.sfb.model import _pairs
from dask_ma.sfb.model._pairs import RowTable

X, y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])
RNG = np.random.default_rng(0)
PAIRS = RNG.integers(0, 75, size=(120, 2)) * 2 + [0, 1]
PAIR_LABELS = np.where(y[PAIRS[:, 0]] == y[PAIRS[:, 1]], 1, -1)
TRIPLETS = np.array([[0, 1, 60], [60, 61, 120], [120, 121, 60], [5, 9, 140]] * 5)
OF_PAIRS = {"pairs": PAIRS, "pair_labels": PAIR_LABELS}


def fit(n_components=2, *, X=X, y=None, **params):
    """A learner, fitted to labels or to what else is given."""
    data = {name: params.pop(name) for name in OF_PAIRS if name in params}
    learner = SFBMetricLearner(n_components, **{"random_state": 0, **params})
    target = LABELS if y is None and not data else y
    return learner.fit(X, target, **data)


LABELS = y


def slow_nca(components, X, y):
    """Minus the mean logarithm of the probability of a neighbour of the class."""
    Z = X @ components.T
    D = ((Z[:, None] - Z[None]) ** 2).sum(axis=2)
    np.fill_diagonal(D, np.inf)
    E = np.exp(-D)
    return -np.log((E * (y[:, None] == y)).sum(axis=1) / E.sum(axis=1)).mean()


# The objective ------------------------------------------------------------------------


def test_objective_of_labels():
    """With one batch, that of the components before the step."""
    start = RNG.normal(size=(2, 4)) / 2
    learner = fit(init=start, max_iter=1, batch_size=150, alpha=0.0)
    objective = learner.history_[0]["objective"]
    assert objective == pytest.approx(slow_nca(start, X, y), rel=1e-4)


def test_steps_are_those_of_the_gradient():
    """One step of plain descent against finite differences."""
    start = RNG.normal(size=(2, 4)) / 2
    learner = fit(
        init=start, max_iter=1, batch_size=150, optimizer="sgd", eta0=0.1, n_ranks=3
    )
    gradient = np.zeros_like(start)
    for place in np.ndindex(start.shape):
        ends = []
        for sign in (1, -1):
            moved = start.copy()
            moved[place] += sign * 1e-5
            ends.append(slow_nca(moved, X, y))
        gradient[place] = (ends[0] - ends[1]) / 2e-5
    np.testing.assert_allclose(learner.components_, start - 0.1 * gradient, atol=1e-4)


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_objective_of_pairs(loss):
    start = RNG.normal(size=(2, 4)) / 2
    params = {"loss": loss, "margin": 0.8, "init": start, "batch_size": 1000}
    penalised = {"alpha": 0.1, "penalty": "l2", "eta0": 1e-12}
    learner = fit(**params, **penalised, **OF_PAIRS, max_iter=1, n_ranks=2)
    d = (((X[PAIRS[:, 0]] - X[PAIRS[:, 1]]) @ start.T) ** 2).sum(axis=1)
    if loss == "hinge":
        losses = np.where(PAIR_LABELS > 0, d, 5 * np.maximum(0, 0.8 - d))
    else:
        losses = np.log1p(np.exp(3 * PAIR_LABELS * (d - 0.8))) / 3
    expected = losses.mean() + 0.05 * (start**2).sum()
    assert learner.history_[0]["objective"] == pytest.approx(expected, rel=1e-4)


def test_objective_of_triplets():
    start = RNG.normal(size=(2, 4)) / 2
    learner = fit(init=start, loss="triplet", margin=2.0, pairs=TRIPLETS, max_iter=1)
    a, b, c = (X[TRIPLETS[:, i]] @ start.T for i in range(3))
    expected = np.maximum(0, 2 + ((a - b) ** 2).sum(1) - ((a - c) ** 2).sum(1)).mean()
    assert learner.history_[0]["objective"] == pytest.approx(expected, rel=1e-4)
    assert not hasattr(learner, "threshold_")


@pytest.mark.parametrize(
    "load", [load_iris, load_wine, load_breast_cancer, load_digits]
)
def test_as_good_as_the_peer(load):
    """Neighbours by the learnt distance, next to scikit-learn's components."""
    rows, labels = load(return_X_y=True)
    rows, labels = rows[:240], labels[:240]
    scores = []
    for learner in (
        SFBMetricLearner(2, max_iter=60, random_state=0),
        NeighborhoodComponentsAnalysis(2, max_iter=60, random_state=0),
    ):
        model = make_pipeline(StandardScaler(), learner, KNeighborsClassifier(3))
        scores.append(cross_val_score(model, rows, labels, cv=3).mean())
    assert scores[0] > scores[1] - 0.03


@pytest.mark.each
@pytest.mark.parametrize("loss", ["nca", "hinge", "logistic", "triplet"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_every_loss_falls(loss, optimizer):
    learner = fit(loss=loss, optimizer=optimizer, max_iter=40, batch_size=50)
    objectives = [record["objective"] for record in learner.history_]
    assert objectives[-1] < 0.9 * objectives[0]


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_pairs_are_told_apart(loss):
    train, test = np.arange(120) < 80, np.arange(120) >= 80
    learner = fit(
        loss=loss,
        pairs=PAIRS[train],
        pair_labels=PAIR_LABELS[train],
        max_iter=60,
        batch_size=16,
    )
    truth, pairs = PAIR_LABELS[test], PAIRS[test]
    before = np.linalg.norm(X[pairs[:, 0]] - X[pairs[:, 1]], axis=1)
    area = learner.score(pairs, truth, X)
    assert area == pytest.approx(roc_auc_score(truth, learner.pair_score(pairs, X)))
    assert area > max(0.95, roc_auc_score(truth, -before))
    assert (learner.predict(pairs, X) == truth).mean() > 0.85


# Ranks --------------------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("content", ["factors", "full_matrix"])
@pytest.mark.parametrize("how", ["labels", "pairs"])
def test_any_number_of_ranks(how, content):
    """The batches are the same, and so are the components but for rounding."""
    params = {"max_iter": 4, "batch_size": 32, "tol": None, "communication": content}
    if how == "pairs":
        params |= {"loss": "logistic", **OF_PAIRS}
    one, *others = (fit(n_ranks=n, **params) for n in (1, 4, 5))
    for other in others:
        np.testing.assert_allclose(one.components_, other.components_, atol=1e-5)
        if how == "pairs":
            assert one.threshold_ == pytest.approx(other.threshold_, rel=1e-4)
    assert others[0].communication_ == content


@pytest.mark.filterwarnings("ignore:the objective has not fallen")
@pytest.mark.parametrize(("batch_size", "expected"), [(150, 120), (8, 7), (2, 3)])
def test_passes_by_default(batch_size, expected):
    """As many as 120 steps take, at least 3."""
    learner = fit(batch_size=batch_size, tol=None, n_ranks=2)
    assert learner.n_iter_ == expected
    same = fit(batch_size=batch_size, tol=None, max_iter=expected)
    np.testing.assert_allclose(learner.components_, same.components_, atol=1e-4)


def test_sorted_rows_are_no_harder():
    """iris is sorted by class: every rank has rows of other classes."""
    order = np.random.default_rng(3).permutation(150)
    scores = [
        slow_nca(fit(X=rows, y=labels, n_ranks=3, max_iter=20).components_, X, y)
        for rows, labels in ((X, y), (X[order], y[order]))
    ]
    assert scores[0] == pytest.approx(scores[1], abs=0.02)


@pytest.mark.parametrize("exchange", [{"staleness": 2}, {"broadcast": 1}])
def test_ranks_that_are_not_in_step(exchange):
    """Each learns from the pairs of its own rows, and gets the updates of all."""
    order = np.random.default_rng(3).permutation(150)
    learner = fit(
        X=X[order],
        y=y[order],
        optimizer="sgd",
        communication=Exchange(**exchange),
        n_ranks=3,
        max_iter=40,
        batch_size=30,
    )
    assert slow_nca(learner.components_, X, y) < 0.15
    with pytest.raises(ValueError, match="^optimizer='adam' needs the gradients"):
        fit(communication=Exchange(**exchange))


@pytest.mark.parametrize(("k", "m"), [(20, 20), (40, 20), (20, 60)])
def test_bytes_of_many_features(k, m):
    """Sparse rows of 22,000 features: those of the guide, in a pass."""
    rng = np.random.default_rng(0)
    n, d, b = 256, 22_000, 128
    rows = sparse.random_array((n, d), density=m / d, format="csr", rng=rng)
    labels = np.arange(n) % 4
    params = {"max_iter": 2, "batch_size": b, "init": "random", "tol": None}
    found = {}
    for content in ("factors", "full_matrix"):
        learner = fit(k, X=rows, y=labels, n_ranks=2, communication=content, **params)
        record = learner.history_[1]  # without what the start takes
        found[content] = record["bytes_shared"] + record["bytes_sent"]
    # Within a process, one rank gets its own projections, and labels, once more.
    projections = 1.5 * b * (4 * k + 8)
    slopes = b * 4 * k
    factors = b * (4 * k + 8 * m + 4)
    n_steps = n // b
    expected = n_steps * (projections + slopes + factors)
    assert found["factors"] == pytest.approx(expected, rel=0.01)
    assert found["full_matrix"] > n_steps * 2 * d * k * 4


# Inputs -------------------------------------------------------------------------------


def frame(rows):
    return pd.DataFrame(rows, columns=list("abcd"))


CONTAINERS = {
    "csr": sparse.csr_array,
    "float32": lambda rows: rows.astype(np.float32),
    "pandas": frame,
    "array": lambda rows: da.from_array(rows, chunks=(40, 4)),
    "frame": lambda rows: dd.from_pandas(frame(rows), npartitions=3),
}


@pytest.mark.each
@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("how", ["labels", "pairs"])
def test_any_container(kind, how, inproc_client):
    params = {"max_iter": 3, "batch_size": 32, "n_ranks": 2}
    if how == "pairs":
        params |= {"loss": "hinge", **OF_PAIRS}
    expected = fit(**params)
    rows = CONTAINERS[kind](X)
    labels = None
    if how == "labels":
        labels = NAMES[y]
        if kind == "array":
            labels = da.from_array(labels, chunks=40)
        elif kind == "frame":
            labels = dd.from_pandas(pd.Series(labels), npartitions=3)
    with inproc_client.as_current():
        learner = fit(X=rows, y=labels, **params)
        Z = learner.transform(rows)
        if kind in ("array", "frame"):
            assert isinstance(Z, da.Array)
            Z = Z.compute()
    np.testing.assert_allclose(learner.components_, expected.components_, atol=1e-5)
    assert Z.shape == (150, 2)
    np.testing.assert_allclose(Z, X @ learner.components_.T, rtol=1e-4, atol=1e-4)
    if how == "labels":
        assert learner.classes_.tolist() == NAMES.tolist()
    else:
        assert not hasattr(learner, "classes_")


def test_starts():
    first = {
        init: fit(init=init, max_iter=1, eta0=1e-12).components_
        for init in ("auto", "pca", "identity", "random")
    }
    np.testing.assert_array_equal(first["auto"], first["pca"])
    _, _, vectors = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    scale = np.linalg.norm(first["pca"], axis=1, keepdims=True)
    cosines = (first["pca"] / scale) @ vectors[:2].T
    np.testing.assert_allclose(np.abs(cosines), np.eye(2), atol=1e-5)
    for name in ("pca", "identity", "random"):
        Z = X @ first[name].T
        spread = 2 * Z.var(axis=0).sum()
        assert spread == pytest.approx(8.0, rel=1e-3)
    np.testing.assert_allclose(first["identity"][:, 2:], 0, atol=1e-6)
    whole = fit(None, max_iter=1, eta0=1e-12).components_
    np.testing.assert_allclose(whole, whole[0, 0] * np.eye(4), atol=1e-6)


def test_a_fit_that_goes_on():
    learner = SFBMetricLearner(2, warm_start=True, max_iter=5, random_state=0)
    first = learner.fit(X, y).history_[0]["objective"]
    assert learner.fit(X, y).history_[0]["objective"] < first
    with pytest.raises(ValueError, match="set warm_start=False"):
        learner.set_params(n_components=3).fit(X, y)


def test_penalties():
    """Zeros by "l1", a low rank by "trace", short components by "l2"."""
    params = {"n_components": 4, "max_iter": 60, "batch_size": 50}
    plain = fit(**params)
    assert (plain.components_ != 0).all()
    assert np.linalg.matrix_rank(plain.components_) == 4
    sparser = fit(**params, optimizer="sgd", penalty="l1", alpha=0.1)
    assert (sparser.components_ == 0).sum() >= 4
    lower = fit(**params, optimizer="sgd", penalty="trace", alpha=0.4)
    assert np.linalg.matrix_rank(lower.components_) < 4
    for penalty in ("l1", "trace"):
        with pytest.raises(ValueError, match=f"^penalty='{penalty}' needs steps in"):
            fit(penalty=penalty, alpha=0.1)


def test_both_optimisers_find_the_penalised_optimum():
    found = [
        fit(
            optimizer=optimizer,
            eta0=eta0,
            alpha=0.1,
            max_iter=150,
            batch_size=150,
            tol=None,
        )
        for optimizer, eta0 in (("adam", 0.05), ("sgd", 0.5))
    ]
    values = [learner.history_[-1]["objective"] for learner in found]
    assert values[0] == pytest.approx(values[1], rel=0.02)


@pytest.mark.parametrize("how", ["labels", "pairs", "triplets"])
def test_early_stopping(how):
    data = {
        "labels": {},
        "pairs": {"loss": "logistic", **OF_PAIRS},
        "triplets": {"loss": "triplet", "pairs": TRIPLETS},
    }[how]
    options = {"early_stopping": True, "validation_fraction": 0.3, "tol": 0.0}
    options["learning_rate"] = "constant"
    learner, other = (
        fit(max_iter=40, n_iter_no_change=4, n_ranks=n, **options, **data)
        for n in (1, 3)
    )
    scores = [record["validation_score"] for record in learner.history_]
    assert all(0 <= score <= 1 for score in scores)
    assert max(scores) > 0.8
    assert scores == pytest.approx(
        [record["validation_score"] for record in other.history_], abs=0.05
    )
    expected = {"labels": 105, "pairs": 84, "triplets": 14}[how]
    assert learner.history_[0]["n_samples"] == expected
    # The components are those of the best pass.
    best = int(np.argmax(scores)) + 1
    again = fit(max_iter=best, n_iter_no_change=99, **options, **data)
    np.testing.assert_array_equal(learner.components_, again.components_)


# Methods of pairs ---------------------------------------------------------------------


def test_distances_of_pairs():
    learner = fit()
    M = learner.get_mahalanobis_matrix()
    metric = learner.get_metric()
    expected = []
    for i, j in PAIRS[:10]:
        d = X[i] - X[j]
        expected.append(np.sqrt(d @ M @ d))
        assert metric(X[i], X[j]) == pytest.approx(expected[-1], rel=1e-5)
        assert metric(X[i], X[j], squared=True) == pytest.approx(d @ M @ d, rel=1e-5)
    for found in (
        learner.pair_distance(PAIRS[:10], X),
        learner.pair_distance(X[PAIRS[:10]]),
        learner.pair_distance(PAIRS[:10], sparse.csr_array(X)),
        -learner.pair_score(PAIRS[:10], X),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    for wrong in (X[:3], PAIRS[:3].tolist()):
        with pytest.raises(ValueError, match=r"expected \(n_pairs, 2"):
            learner.pair_distance(wrong)
    with pytest.raises(ValueError, match="out of range"):
        learner.pair_distance([[0, 150]], X)


def test_thresholds():
    learner = fit()
    for name in ("predict", "decision_function", "score"):
        with pytest.raises(AttributeError) as error:
            getattr(learner, name)
        assert "there is no threshold yet" in str(error.value.__cause__)
    assert learner.set_threshold(1.5) is learner
    distances = learner.pair_distance(PAIRS, X)
    np.testing.assert_array_equal(
        learner.predict(PAIRS, X), np.where(distances <= 1.5, 1, -1)
    )
    np.testing.assert_array_equal(learner.decision_function(PAIRS, X), -distances)
    with pytest.raises(ValueError, match="at least 0"):
        learner.set_threshold(-1)


def rates(learner):
    """Accuracy, F score, and the rates of similar and other pairs told rightly."""
    right = learner.predict(PAIRS, X) == PAIR_LABELS
    similar = PAIR_LABELS > 0
    tpr, tnr = right[similar].mean(), right[~similar].mean()
    called = (learner.predict(PAIRS, X) > 0).sum()
    precision = right[similar].sum() / called if called else 1.0
    f = 2 * precision * tpr / (precision + tpr) if tpr else 0.0
    return right.mean(), f, tpr, tnr


def test_calibration():
    """No other threshold is better."""
    learner = fit(n_components=1, max_iter=1)
    distances = learner.pair_distance(PAIRS, X)
    every = [rates(learner.set_threshold(t)) for t in [0.0, *(distances * 1.0001)]]
    cases = [
        ({}, 0, None),
        ({"strategy": "f_beta"}, 1, None),
        ({"strategy": "max_tpr", "min_rate": 0.9}, 2, 3),
        ({"strategy": "max_tnr", "min_rate": 0.9}, 3, 2),
    ]
    for options, what, bound in cases:
        learner.calibrate_threshold(PAIRS, PAIR_LABELS, X, **options)
        allowed = [r for r in every if bound is None or r[bound] >= 0.9]
        assert rates(learner)[what] >= max(r[what] for r in allowed) - 1e-12
        assert bound is None or rates(learner)[bound] >= 0.9
    for wrong in (
        {"strategy": "best"},
        {"min_rate": 0.5},
        {"strategy": "max_tpr"},
        {"strategy": "max_tpr", "min_rate": 2.0},
        {"strategy": "f_beta", "beta": 0},
    ):
        with pytest.raises(ValueError, match="must be|min_rate is for"):
            learner.calibrate_threshold(PAIRS, PAIR_LABELS, X, **wrong)


def test_the_threshold_of_pairs_is_the_best_of_the_fit():
    learner = fit(loss="hinge", **OF_PAIRS)
    accuracy = rates(learner)[0]
    learner.calibrate_threshold(PAIRS, PAIR_LABELS, X)
    assert accuracy == rates(learner)[0]


# What is refused ----------------------------------------------------------------------

OUT = {"pairs": [[0, 150]], "pair_labels": [1]}
IDS = {"loss": "hinge", **OF_PAIRS}


@pytest.mark.filterwarnings("ignore:The number of unique classes")
@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"y": np.zeros(150, int)}, "got 1 class"),
        ({"y": np.arange(150)}, "no two rows of X have the same label"),
        ({**IDS, **OUT}, r"out of range.*\[0, 150\]"),
        ({**IDS, "pair_labels": np.ones(120, int)}, "there is no dissimilar pair"),
        ({**IDS, "pair_labels": -np.ones(120, int)}, "there is no similar pair"),
        ({**IDS, "pair_labels": PAIR_LABELS > 0}, r"must be 1 for similar pairs"),
        ({**IDS, "pair_labels": PAIR_LABELS[:3]}, r"shape \(3,\)"),
        ({**IDS, "pair_labels": None}, "pairs need pair_labels"),
        ({**IDS, "loss": "nca"}, r"loss='nca' needs labels y, got pairs"),
        ({**IDS, "loss": "triplet"}, r"loss='triplet' needs pairs of three rows"),
        ({"loss": "hinge", "pairs": TRIPLETS}, "loss='hinge' needs pairs of two rows"),
        ({**IDS, "y": y}, "y and pairs cannot both"),
        (
            {"loss": "triplet", "pairs": TRIPLETS, "pair_labels": np.ones(20)},
            "not triplets",
        ),
        ({"pair_labels": PAIR_LABELS}, "^pair_labels are those of pairs"),
        ({"n_components": 5}, "n_components=5 is larger than the number of features"),
        ({"init": np.ones((3, 4))}, r"init has the shape \(3, 4\), expected"),
        ({"init": np.zeros((2, 4))}, "init has zeros alone"),
        ({"X": np.ones((150, 4))}, "all rows of X are alike"),
        (
            {"alpha": 1e6, "penalty": "l1", "optimizer": "sgd"},
            "shrunk to zero.*lower alpha",
        ),
        ({"alpha": 1e6}, "shrunk to zero.*lower alpha"),
        (
            {"early_stopping": True, "validation_fraction": 0.001},
            "of which no two can be compared",
        ),
    ],
)
def test_what_cannot_be_learnt_from(params, message):
    with pytest.raises(ValueError, match=message):
        fit(**params)
    with pytest.raises(ValueError, match=message):
        fit(**params, n_ranks=2)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_square_matrix_of_very_many_features(n_ranks):
    """The default number of outputs, for which no machine has memory."""
    rows = np.arange(30)
    X = sparse.csr_array((np.ones(30), (rows, 7 * rows)), shape=(30, 2**23))
    model = SFBMetricLearner(n_ranks=n_ranks, random_state=0)
    with pytest.raises(InsufficientMemoryError, match="n_components=8388608 outputs"):
        model.fit(X, rows % 3)


def test_steps_that_are_too_long():
    with pytest.raises(ValueError, match="lower eta0|lower the step size"):
        fit(optimizer="sgd", eta0=1e30, loss="hinge")


def test_an_objective_that_does_not_fall():
    with pytest.warns(ConvergenceWarning, match="has not fallen in"):
        fit(eta0=50.0, max_iter=2)


@pytest.mark.each
@pytest.mark.parametrize("content", ["labels", "pairs", "triplets"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_batches_that_are_taken_together(kind, content, monkeypatch):
    """The same, with a look at each block of rows in place of one in each step."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((120, 5)) * (rng.random((120, 5)) < 0.6)
    rows = da.from_array(X, (10, -1))
    if kind == "sparse":
        rows = rows.map_blocks(sparse.csr_array, meta=sparse.csr_array((0, 5)))
    params = {"batch_size": 8, "max_iter": 1, "random_state": 0, "n_ranks": 2}
    if content == "labels":
        model, data = SFBMetricLearner(2, **params), {"y": np.arange(120) % 3}
    else:
        width = {"pairs": 2, "triplets": 3}[content]
        pairs = np.array([rng.permutation(120)[:width] for _ in range(80)])
        loss = {"pairs": "hinge", "triplets": "triplet"}[content]
        model, data = SFBMetricLearner(2, loss=loss, **params), {"pairs": pairs}
        if content == "pairs":
            data["pair_labels"] = np.where(rng.random(80) < 0.5, 1, -1)
    picked = []
    original = RowTable._picked
    monkeypatch.setattr(
        RowTable,
        "_picked",
        lambda table, *places: picked.append(1) or original(table, *places),
    )
    looks, found = [], []
    for n_bytes in (2**20, 1):
        monkeypatch.setattr(_pairs, "_TOGETHER", n_bytes)
        picked.clear()
        found.append(model.fit(rows, **data).components_)
        looks.append(len(picked))
    np.testing.assert_allclose(*found, rtol=1e-6)
    assert looks[0] < looks[1] / 2


def test_rows_of_pairs_without_x_are_advised_to_be_rows():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(40, 2, 3))
    labels = np.tile([1, -1], 20)
    model = SFBMetricLearner(2, loss="logistic", random_state=0, max_iter=2)
    with pytest.raises(ValueError, match=r"X is None, .* np\.arange\(2 \* len\(A\)\)"):
        model.fit(None, pairs=A, pair_labels=labels)
    pairs = np.arange(2 * len(A)).reshape(-1, 2)
    model.fit(A.reshape(-1, A.shape[-1]), pairs=pairs, pair_labels=labels)
    assert model.predict(A).shape == (40,)
