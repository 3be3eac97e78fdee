"""Codes and atoms of rows whose columns are alike, or of unequal scales."""

import warnings
from copy import copy

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.decomposition import MiniBatchDictionaryLearning, sparse_encode
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import scale

from dask_ma import SFBDictionaryLearning
from dask_ma.sfb.dictionary._codes import ALGORITHMS, ROUGH, lasso_codes
from dask_ma.sfb.dictionary._progress import Progress, last_fall

DIABETES = load_diabetes(scaled=False).data


def objectives(X, atoms, alpha, codes=None):
    if codes is None:
        codes = sparse_encode(X, atoms, algorithm="lasso_lars", alpha=alpha)
    return 0.5 * ((X - codes @ atoms) ** 2).sum(axis=1) + alpha * abs(codes).sum(axis=1)


@pytest.fixture(scope="module")
def cells():
    """Rows, atoms that are alike, and what a fit makes of them."""
    X = load_breast_cancer().data[::5]
    atoms = X[:30] / np.linalg.norm(X[:30], axis=1, keepdims=True)
    return X, atoms, SFBDictionaryLearning(30, dict_init=atoms).fit(X)


@pytest.fixture(scope="module")
def least(cells):
    """Least objectives of the rows, on the learned atoms and on the first ones."""
    X, atoms, learner = cells
    return objectives(X, learner.components_, 1.0), objectives(X, atoms, 1.0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_codes_where_little_is_left_of_rows(cells, least, algorithm):
    """Objectives are a thousandth of the squares of rows, on atoms that are alike."""
    (X, _, learner), (best, _) = cells, least
    learner = copy(learner).set_params(transform_algorithm=algorithm)
    assert best.mean() < 2e-3 * (X**2).sum(axis=1).mean()
    found = objectives(X, learner.components_, 1.0, learner.transform(X))
    assert (found <= (1 + 1e-4) * best).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_rough_codes_where_little_is_left_of_rows(cells, least, algorithm):
    (X, atoms, _), (_, best) = cells, least
    found = lasso_codes(X, atoms, 1.0, ROUGH, algorithm=algorithm)
    assert found.n_unsettled == 0
    assert (found.objectives <= best / (1 - 0.4)).all()
    assert found.objectives.mean() <= 1.2 * best.mean()


@pytest.mark.each
@pytest.mark.filterwarnings("ignore:Objective did not converge")
@pytest.mark.parametrize("is_scaled", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_defaults_are_as_good_as_those_of_scikit_learn(is_scaled, seed):
    """Columns of unequal scales, and ten atoms for ten columns with a small penalty."""
    X, alpha = (scale(DIABETES), 0.01) if is_scaled else (DIABETES, 1.0)
    options = {"alpha": alpha, "random_state": seed}
    # Least angles are those of the default, and take ten times as long.
    peer = MiniBatchDictionaryLearning(fit_algorithm="cd", **options).fit(X)
    model = SFBDictionaryLearning(**options).fit(X)
    ours, theirs = (objectives(X[::3], m.components_, alpha) for m in (model, peer))
    assert ours.mean() <= 1.001 * theirs.mean()


def lying_close(n_rows=60, n_features=100, n_directions=5):
    """Rows far from zero that differ in a few directions, fewer than features."""
    rng = np.random.default_rng(0)
    directions = 20 * rng.random((n_directions, n_features))
    return 100 + rng.random((n_rows, n_directions)) @ directions


@pytest.mark.filterwarnings("ignore:Objective did not converge")
@pytest.mark.parametrize(
    ("X", "n_components", "alpha", "most"),
    [(load_breast_cancer().data, 8, 1.0, 0.03), (lying_close(), 5, 0.1, 0.06)],
    ids=["units of all kinds", "few rows"],
)
def test_few_rows_in_their_own_units(X, n_components, alpha, most):
    """Of few batches, and from rows as the first atoms, they were 7 and 18 % worse."""
    excess = []
    for seed in range(2):
        options = {"alpha": alpha, "random_state": seed}
        model = SFBDictionaryLearning(n_components, **options).fit(X)
        options["fit_algorithm"] = "cd"
        peer = MiniBatchDictionaryLearning(n_components, **options).fit(X)
        ours, theirs = (objectives(X[::2], m.components_, alpha) for m in (model, peer))
        excess.append(ours.mean() / theirs.mean() - 1)
    assert np.mean(excess) < most


def test_few_rows_make_small_batches():
    """Some tens of batches, as one pass of many rows has; others stay whole."""
    X = load_breast_cancer().data
    options = {"max_iter": 1, "random_state": 0}
    n_batches = {
        n: len(SFBDictionaryLearning(4, **options).fit(X[:n]).history_)
        for n in (20, 64, 320, 569)
    }
    assert n_batches == {20: 1, 64: 2, 320: 10, 569: 18}
    whole = SFBDictionaryLearning(4, batch_size=256, **options).fit(X)
    assert len(whole.history_) == 3
    assert SFBDictionaryLearning(4).partial_fit(X[:200]).n_steps_ == 1


def test_one_batch_that_changes_little_is_no_end():
    """Ten in a row are, whose atoms hardly move."""
    progress = Progress()
    changes = [0.0, 1.0, *[0.0] * 9, 1.0, *[0.0] * 10]
    ends = []
    for change in changes:
        limits = {"share": 1.0, "tol": 1e-3, "patience": None}
        progress = progress.after(5.0, change, **limits)
        ends.append(progress.is_settled)
    assert ends == [False] * (len(changes) - 1) + [True]


def test_a_start_does_not_depend_on_the_ranks():
    """Singular vectors are those of rows that are drawn alike."""
    X = scale(DIABETES)
    options = {"alpha": 0.01, "random_state": 0, "max_iter": 1, "batch_size": 442}
    one, three = (SFBDictionaryLearning(n_ranks=n, **options).fit(X) for n in (1, 3))
    np.testing.assert_allclose(one.components_, three.components_, atol=1e-6)
    rows = SFBDictionaryLearning(dict_init=X[:10], **options).fit(X)
    ours, theirs = (m.history_[0]["objective"] for m in (one, rows))
    assert ours < 0.5 * theirs


def test_positive_atoms_begin_as_rows():
    X = np.abs(scale(DIABETES))
    options = {"alpha": 0.01, "random_state": 0, "positive_dict": True}
    assert SFBDictionaryLearning(**options).fit(X).components_.min() >= 0


def test_a_fit_that_is_cut_short_warns():
    X, options = scale(DIABETES), {"alpha": 0.1, "random_state": 0, "batch_size": 256}
    with pytest.warns(ConvergenceWarning, match="last of 3 passes; raise max_iter"):
        SFBDictionaryLearning(max_iter=3, **options).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # So many passes are what was wanted.
        wanted = {"tol": 0, "max_no_improvement": None}
        SFBDictionaryLearning(max_iter=3, **wanted, **options).fit(X)
        SFBDictionaryLearning(**options).fit(X)


def test_the_fall_of_the_last_pass():
    passes = [0, 1, 1, 2, 2, 3]
    values = [9.0, 9.0, 5.0, 3.0, 4.0, 2.0]
    history = [
        {"n_iter": n, "objective": value}
        for n, value in zip(passes, values, strict=True)
    ]
    assert last_fall(history) == pytest.approx(0.25)
    assert last_fall(history[:4]) == 0
    history[4]["objective"] = float("nan")
    assert last_fall(history) == pytest.approx(0.5)
