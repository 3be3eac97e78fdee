"""Weights of rows and pairs, steps on parts of the data, and discriminants."""

import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits, load_iris
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.neighbors import KNeighborsClassifier

from dask_ma import SFBMetricLearner

X, y = load_iris(return_X_y=True)
RNG = np.random.default_rng(0)
WEIGHT = RNG.exponential(size=150)
PAIRS = RNG.integers(0, 75, size=(120, 2)) * 2 + [0, 1]
PAIR_LABELS = np.where(y[PAIRS[:, 0]] == y[PAIRS[:, 1]], 1, -1)
PAIR_WEIGHT = RNG.exponential(size=120)
START = RNG.normal(size=(2, 4)) / 2


def slow_losses(components, loss):
    """Losses of the rows of iris among all of them, row by row."""
    Z = X @ components.T
    D = ((Z[:, None] - Z[None]) ** 2).sum(axis=2)
    values = np.zeros(len(X))
    for i, d in enumerate(D):
        others = np.arange(len(X)) != i
        near, far = d[others & (y == y[i])], d[y != y[i]]
        if loss == "nca":
            values[i] = -np.log(np.exp(-near).sum() / np.exp(-d[others]).sum())
        elif loss == "hinge":
            values[i] = near.mean() + 5 * np.maximum(0, 1 - far).mean()
        elif loss == "logistic":
            values[i] = np.log1p(np.exp(3 * (near - 1))).mean() / 3
            values[i] += np.log1p(np.exp(-3 * (far - 1))).mean() / 3
        else:
            values[i] = np.maximum(0, 1 + near[:, None] - far).mean()
    return values


def weighted(loss, weight, **params):
    """A learner after one step from known components, on all rows."""
    given = {"init": START, "max_iter": 1, "batch_size": 150, "random_state": 0}
    learner = SFBMetricLearner(2, loss=loss, **{**given, **params})
    return learner.fit(X, y, weight)


@pytest.mark.pairs
@pytest.mark.parametrize("communication", ["factors", "outputs"])
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("loss", ["nca", "hinge", "logistic", "triplet"])
def test_objective_of_weighted_rows(loss, n_ranks, communication):
    learner = weighted(loss, WEIGHT, n_ranks=n_ranks, communication=communication)
    expected = np.average(slow_losses(START, loss), weights=WEIGHT)
    assert learner.history_[0]["objective"] == pytest.approx(expected, rel=1e-4)


def test_steps_of_weighted_rows():
    """One step of plain descent against finite differences."""
    step = {"optimizer": "sgd", "eta0": 0.1, "n_ranks": 3}
    learner = weighted("nca", WEIGHT, **step)
    gradient = np.zeros_like(START)
    for place in np.ndindex(START.shape):
        ends = []
        for sign in (1, -1):
            moved = START.copy()
            moved[place] += sign * 1e-5
            ends.append(np.average(slow_losses(moved, "nca"), weights=WEIGHT))
        gradient[place] = (ends[0] - ends[1]) / 2e-5
    np.testing.assert_allclose(learner.components_, START - 0.1 * gradient, atol=1e-4)


@pytest.mark.parametrize("kind", ["memory", "dask"])
def test_rows_without_weight_are_no_rows(kind):
    weight = (np.arange(150) % 3 > 0).astype(float)
    rows, labels = X, y
    if kind == "dask":
        rows, labels = (da.from_array(a, chunks=40) for a in (X, y))
        rows = rows.rechunk((40, -1))
        weight = da.from_array(weight, chunks=40)
    learner = SFBMetricLearner(2, random_state=0, n_ranks=2).fit(rows, labels, weight)
    kept = np.arange(150) % 3 > 0
    plain = SFBMetricLearner(2, random_state=0, n_ranks=2).fit(X[kept], y[kept])
    np.testing.assert_allclose(learner.components_, plain.components_, atol=1e-4)


@pytest.mark.parametrize("communication", ["factors", "outputs"])
def test_objective_of_weighted_pairs(communication):
    params = {"init": START, "max_iter": 1, "batch_size": 200, "random_state": 0}
    params |= {"n_ranks": 2, "communication": communication}
    learner = SFBMetricLearner(2, loss="logistic", **params)
    learner.fit(X, None, PAIR_WEIGHT, pairs=PAIRS, pair_labels=PAIR_LABELS)
    d = (((X[PAIRS[:, 0]] - X[PAIRS[:, 1]]) @ START.T) ** 2).sum(axis=1)
    losses = np.log1p(np.exp(3 * PAIR_LABELS * (d - 1))) / 3
    expected = np.average(losses, weights=PAIR_WEIGHT)
    assert learner.history_[0]["objective"] == pytest.approx(expected, rel=1e-4)


def test_pairs_without_weight_are_left_out():
    kept = np.arange(120) % 3 > 0
    learner = SFBMetricLearner(2, loss="logistic", random_state=0)
    learner.fit(X, None, kept * 2.0, pairs=PAIRS, pair_labels=PAIR_LABELS)
    plain = SFBMetricLearner(2, loss="logistic", random_state=0)
    plain.fit(X, pairs=PAIRS[kept], pair_labels=PAIR_LABELS[kept])
    np.testing.assert_array_equal(learner.components_, plain.components_)


@pytest.mark.parametrize(
    ("weight", "message"),
    [(np.ones(3), "for each of the pairs"), (-np.ones(120), "not negative")],
)
def test_bad_weights_of_pairs(weight, message):
    learner = SFBMetricLearner(2, loss="logistic")
    with pytest.raises(ValueError, match=message):
        learner.fit(X, None, weight, pairs=PAIRS, pair_labels=PAIR_LABELS)


# Steps on parts -----------------------------------------------------------------------


@pytest.mark.each
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("communication", ["factors", "outputs"])
def test_partial_fits_do_not_depend_on_the_ranks(communication, optimizer):
    found = []
    for n_ranks in (1, 3):
        learner = SFBMetricLearner(
            3, communication=communication, optimizer=optimizer, batch_size=20,
            random_state=0, n_ranks=n_ranks,
        )  # fmt: skip
        for part in range(3):
            learner.partial_fit(X[part::3], y[part::3])
        found.append(learner)
    one, three = found
    np.testing.assert_allclose(one.components_, three.components_, atol=1e-5)
    assert three.n_iter_ == 3 and three.n_steps_ == 9
    assert three.classes_.tolist() == [0, 1, 2]


def test_moments_are_kept_between_partial_fits():
    """The second call makes other steps than it would without the first."""
    learner = SFBMetricLearner(2, random_state=0).partial_fit(X, y)
    other = SFBMetricLearner(2, random_state=0).partial_fit(X, y)
    other._steps = None
    one, two = (each.partial_fit(X, y).components_ for each in (learner, other))
    assert np.abs(one - two).max() > 1e-4


def test_partial_fits_do_not_stop_early():
    with pytest.raises(ValueError, match="early_stopping cannot be used with partial"):
        SFBMetricLearner(2, early_stopping=True).partial_fit(X, y)


def test_partial_fits_with_other_classes():
    learner = SFBMetricLearner(2, random_state=0).partial_fit(X[:100], y[:100])
    learner.partial_fit(X[50:], y[50:])
    assert learner.classes_.tolist() == [0, 1, 2]
    learner.fit(X[:100], y[:100])
    assert learner.classes_.tolist() == [0, 1] and learner.n_iter_ > 2


def test_partial_fits_are_as_good_as_one_fit():
    rows, labels = load_digits(return_X_y=True)
    rows = rows / 16
    learner = SFBMetricLearner(9, random_state=0)
    for _ in range(4):
        for part in range(4):
            learner.partial_fit(rows[part:1200:4], labels[part:1200:4])
    whole = SFBMetricLearner(9, random_state=0).fit(rows[:1200], labels[:1200])
    scores = []
    for each in (learner, whole):
        model = KNeighborsClassifier(3)
        model.fit(each.transform(rows[:1200]), labels[:1200])
        scores.append(model.score(each.transform(rows[1200:]), labels[1200:]))
    assert scores[0] > scores[1] - 0.015


def test_partial_fits_of_pairs_and_other_components():
    learner = SFBMetricLearner(2, loss="logistic", random_state=0)
    for _ in range(20):
        learner.partial_fit(X, pairs=PAIRS, pair_labels=PAIR_LABELS)
    assert learner.score(PAIRS, PAIR_LABELS, X) > 0.9
    with pytest.raises(ValueError, match="set n_components back"):
        learner.set_params(n_components=3).partial_fit(
            X, pairs=PAIRS, pair_labels=PAIR_LABELS
        )
    assert learner.components_.shape == (2, 4)


# Discriminants ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_discriminants_of_the_peer(kind, n_ranks):
    """The same directions, but for their lengths."""
    learner = SFBMetricLearner(
        2, init="lda", max_iter=1, eta0=1e-12, n_ranks=n_ranks, random_state=0
    ).fit(kind(X), y)
    peer = LinearDiscriminantAnalysis(n_components=2).fit(X, y).scalings_.T[:2]
    ours, theirs = (
        each / np.linalg.norm(each, axis=1, keepdims=True)
        for each in (learner.components_, peer)
    )
    assert np.abs(np.einsum("ij,ij->i", ours, theirs)).min() > 0.98


def test_too_few_classes_for_discriminants():
    with pytest.raises(ValueError, match="at most 2 components for 3 classes"):
        SFBMetricLearner(3, init="lda").fit(X, y)
    with pytest.raises(ValueError, match="init='lda' needs labels"):
        SFBMetricLearner(2, init="lda", loss="logistic").fit(
            X, pairs=PAIRS, pair_labels=PAIR_LABELS
        )
