"""Newton's method on the active columns, where L1 leaves few of many."""

import warnings

import numpy as np
import pytest
from scipy import optimize, sparse
from sklearn.exceptions import ConvergenceWarning

from dask_ma import MASGDClassifier, MASGDRegressor
from dask_ma.linear.refine import _rules, _run
from dask_ma.linear.refine._coordinates import choose_active, count_active
from dask_ma.linear.refine._lbfgs import LBFGS
from dask_ma.linear.refine._share import Share

N_ROWS, N_FEATURES, ALPHA = 80, 300, 3e-3


@pytest.fixture(scope="module")
def text():
    """Counts of words, and two classes that some words tell apart."""
    rng = np.random.default_rng(0)
    popularity = 1 / np.arange(1, N_FEATURES + 1)
    counts = rng.poisson(40 * popularity / popularity.sum(), (N_ROWS, N_FEATURES))
    scores = counts @ rng.normal(size=N_FEATURES) + rng.normal(size=N_ROWS)
    return sparse.csr_array(counts.astype(float)), (scores > np.median(scores)) * 1


def least_hinge(X, y):
    """The least mean hinge loss with L1, by linear programming."""
    signs = np.where(y == 1, 1.0, -1.0)[:, None]
    signed = signs * np.column_stack([X.toarray(), np.ones(N_ROWS)])
    penalty = np.append(np.full(N_FEATURES, ALPHA), 0.0)
    result = optimize.linprog(
        np.concatenate([penalty, penalty, np.full(N_ROWS, 1 / N_ROWS)]),
        A_ub=-np.column_stack([signed, -signed, np.eye(N_ROWS)]),
        b_ub=-np.ones(N_ROWS),
    )
    return result.fun


def hinge(model, X, y, alpha=ALPHA):
    """Mean hinge loss with L1."""
    margins = np.where(y == 1, 1, -1) * model.decision_function(X)
    return np.maximum(0, 1 - margins).mean() + alpha * np.abs(model.coef_).sum()


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_hinge_with_l1_comes_to_the_optimum_of_many_features(text, fit_intercept):
    X, y = text
    if not fit_intercept:
        X = sparse.csr_array(sparse.hstack([X, np.ones((N_ROWS, 1))]))
    model = MASGDClassifier(
        penalty="l1", alpha=ALPHA, fit_intercept=fit_intercept, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model.fit(X, y)
    rounds = [record for record in model.history_ if record.get("refined")]
    assert len(rounds) < 400  # L-BFGS alone is 3 % above the optimum after 500
    if fit_intercept:
        assert hinge(model, X, y) <= 1.001 * least_hinge(X, y)


def test_several_classes_have_columns_of_their_own(text):
    X, y = text
    y = np.where(X.sum(axis=1) > np.median(X.sum(axis=1)), 2, y)
    params = {"penalty": "l1", "alpha": 10 * ALPHA, "random_state": 0}
    model = MASGDClassifier(**params, n_ranks=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model.fit(X, y)
    for k, label in enumerate(model.classes_):
        alone = MASGDClassifier(**params).fit(X, y == label)
        scores = model.decision_function(X)[:, k]
        margins = np.where(y == label, 1, -1) * scores
        value = np.maximum(0, 1 - margins).mean()
        value += 10 * ALPHA * np.abs(model.coef_[k]).sum()
        expected = hinge(alone, X, (y == label) * 1, 10 * ALPHA)
        assert value == pytest.approx(expected, rel=3e-3)


@pytest.mark.parametrize("most", [5, 20])
def test_too_many_active_columns_are_left_to_lbfgs(text, most, monkeypatch):
    """Whether they are from the first or become so on the way."""
    X, y = text
    target = X @ np.where(np.arange(N_FEATURES) % 7 == 0, 1.0, 0.0)
    monkeypatch.setattr(_rules, "_MOST_WEIGHTS", most)
    monkeypatch.setattr(_rules, "_PATIENCE", 3)
    monkeypatch.setattr(_rules, "_ROOM", 1.0)
    # From zero: the first columns are few, and those of the optimum are not.
    start = np.zeros(N_FEATURES)
    model = MASGDRegressor(
        penalty="l1", alpha=1e-2, max_iter=1, random_state=0, refine_max_iter=2000
    )
    model.fit(X, target, coef_init=start)
    reference = MASGDRegressor(
        penalty="l1", alpha=1e-2, refine="lbfgs", random_state=0, refine_max_iter=2000
    ).fit(X, target)
    found, expected = (
        np.square(target - one.predict(X)).mean() / 2 + 1e-2 * np.abs(one.coef_).sum()
        for one in (model, reference)
    )
    assert np.count_nonzero(reference.coef_) > most
    assert found == pytest.approx(expected, rel=2e-3)


def test_columns_that_are_used_come_first():
    point = np.array([0.0, 2.0, 0.0, -1e-9, 0.0, 5.0])
    gradient = np.array([3.0, 0.0, -4.0, 0.0, 0.5, 9.0])
    l1 = np.array([1.0, 1.0, 2.0, 1.0, 1.0, 0.0])
    share = Share(5)
    assert choose_active(point, gradient, l1, 5, 3, share).tolist() == [0, 1, 3]
    assert choose_active(point, gradient, l1, 5, 4, share).tolist() == [0, 1, 2, 3]
    assert choose_active(point, gradient, l1, 5, 9, share).tolist() == [0, 1, 2, 3, 4]
    slopes = np.array([2.0, 0.0, -2.0, 0.0, 0.0, 9.0])
    assert count_active(point, slopes, 5) == 4


def left_after(objectives):
    """What L-BFGS takes to be left by the objectives of its steps."""
    rule = LBFGS(np.zeros(1), Share(1))
    rule._lowest = list(np.minimum.accumulate(objectives))
    return rule._gain_of_all_left()


def test_what_is_left_follows_from_the_gains_of_all_steps():
    steps = np.arange(1, 201.0)
    slow, fast = 1 + 1 / steps, 1 + 0.8**steps
    assert left_after(slow) == pytest.approx(1 / 200, rel=0.1)
    assert left_after(fast) < 1e-12
    # Gains that grow again say that nobody knows.
    assert left_after(np.append(np.full(100, 2.0), np.linspace(2, 1, 50))) == np.inf
    assert left_after(slow[:10]) == 0.0  # too few to tell


@pytest.mark.parametrize(
    ("penalty", "ratio", "n_rows", "method"),
    [
        ("l1", 0.15, 150, "lbfgs"),
        ("l1", 0.15, 200, "newton"),
        ("elasticnet", 0.15, 150, "lbfgs"),
        ("elasticnet", 0.0, 150, "newton"),
        ("l2", 0.15, 150, "newton"),
        (None, 0.15, 150, "newton"),
    ],
)
def test_columns_are_sorted_out_where_they_are_more_than_rows(
    monkeypatch, penalty, ratio, n_rows, method
):
    """Of 200, with a loss that has no optimum of few rows in one round."""
    methods = []

    def noted(*args):
        methods.append(choose_method(*args))
        return methods[-1]

    choose_method = _run.choose_method
    monkeypatch.setattr(_run, "choose_method", noted)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n_rows, 200)), np.arange(n_rows) % 2
    params = {"loss": "log_loss", "penalty": penalty, "l1_ratio": ratio, "max_iter": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        MASGDClassifier(**params, refine_max_iter=1, n_ranks=1).fit(X, y)
    assert methods == [method]
