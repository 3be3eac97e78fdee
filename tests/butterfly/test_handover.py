"""When the passes of butterfly mixing hand over to the refinement."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_diabetes, load_digits, make_classification

from dask_ma import ButterflySGDClassifier, ButterflySGDRegressor
from dask_ma.linear.refine import _choice


@pytest.fixture(scope="module")
def noisy():
    return make_classification(200, 12, n_informative=6, flip_y=0.2, random_state=0)


def passes(model):
    return [r["objective"] for r in model.history_ if "refined" not in r]


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_newton_begins_after_the_first_pass_that_brings_little(noisy, n_ranks):
    X, y = noisy
    params = {"tol": 0.05**3, "eta0": 0.1, "random_state": 0, "n_ranks": n_ranks}
    hasty = ButterflySGDClassifier(**params).fit(X, y)
    patient = ButterflySGDClassifier(**params, n_iter_no_change=5).fit(X, y)
    values = passes(hasty)
    assert values == passes(patient)[: len(values)]
    gains = 1 - np.array(values[1:]) / np.minimum.accumulate(values)[:-1]
    assert (gains < 0.05).tolist() == [False] * (len(gains) - 1) + [True]
    assert len(passes(patient)) >= len(values) + 4
    best = [model.history_[-1]["objective"] for model in (hasty, patient)]
    assert best[0] == pytest.approx(best[1], rel=1e-3)


@pytest.mark.parametrize(
    "params",
    [
        {"refine": "lbfgs"},
        {"refine_max_iter": 63},
        {"refine": None},
        {"learning_rate": "invscaling", "max_iter": 30},
        {"mixing": "none", "refine": "newton", "max_iter": 30},
        {"early_stopping": True},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_others_have_their_patience(noisy, params):
    params = {**params, "random_state": 0, "n_ranks": 2}
    own = ButterflySGDClassifier(**params).fit(*noisy)
    patient = ButterflySGDClassifier(**params, n_iter_no_change=5).fit(*noisy)
    assert own.history_[-1]["objective"] == patient.history_[-1]["objective"]
    assert passes(own) == passes(patient)


def test_a_few_passes_are_enough_for_digits_on_eight_ranks():
    """They took 221, and as many exchanges by seven."""
    X, y = load_digits(return_X_y=True)
    order = np.argsort(y, kind="stable")
    X = (X - X.mean(axis=0)) / np.maximum(X.std(axis=0), 1e-9)
    model = ButterflySGDClassifier(random_state=0, n_ranks=8, refine_tol=1e-4)
    model.fit(X[order], y[order])
    one = ButterflySGDClassifier(random_state=0, n_ranks=1, refine_tol=1e-4).fit(X, y)
    assert len(model.history_) <= 30
    ends = [m.history_[-1]["objective"] for m in (model, one)]
    assert ends[0] == pytest.approx(ends[1], rel=1e-4)


def test_scikit_learn_is_told_a_number(noisy):
    model = ButterflySGDClassifier(n_ranks=1).fit(*noisy)
    assert model.to_sklearn().n_iter_no_change == 5
    model.set_params(n_iter_no_change=7)
    assert model.to_sklearn().n_iter_no_change == 7


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_partial_fit_stays_near_the_optimum_of_a_fit(n_ranks):
    """Steps of the first passes led to an R2 of 0.28."""
    X, y = load_diabetes(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    order = np.random.default_rng(0).permutation(len(y))
    first, *others = np.array_split(order, [len(y) // 2, *range(265, 442, 44)])
    model = ButterflySGDRegressor(random_state=0, n_ranks=n_ranks).fit(
        X[first], y[first]
    )
    assert model.score(X, y) > 0.49
    scores = []
    for part in others:
        scores.append(model.partial_fit(X[part], y[part]).score(X, y))
    assert min(scores) > 0.45


def test_only_the_model_says_so(noisy):
    params = {"random_state": 0, "n_ranks": 1}
    model = ButterflySGDClassifier(**params).fit(*noisy)
    n_steps, found = model.history_[0]["n_steps"], model.history_[-1]
    n_passes = len(passes(model))
    assert n_passes < 20
    assert model.t_ == 1 + 20 * n_steps
    last = model.history_[n_passes - 1]
    assert model.eta_ < 0.5 * last["eta"]
    assert "refined" in found
    # Where the passes have ended by themselves, their steps are what they are.
    for changes in ({"n_iter_no_change": 5}, {"refine": None}):
        model = ButterflySGDClassifier(**params, tol=0.1, **changes).fit(*noisy)
        n_passes = len(passes(model))
        assert n_passes < 20
        assert model.t_ == 1 + n_passes * n_steps
        assert model.eta_ >= 0.5 * model.history_[n_passes - 1]["eta"]


@pytest.fixture(scope="module")
def classes():
    """64 classes of five rows, of more columns than Newton's method can have."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(64), 5)
    X = rng.normal(size=(64, 130))[y] + 2 * rng.normal(size=(320, 130))
    return X, y


# Products of so few rows would take one round.
MANY = {"random_state": 0, "alpha": 1e-3}


@pytest.fixture
def no_products(monkeypatch):
    monkeypatch.setattr(_choice, "few_rows_round", lambda params, problem: None)


@pytest.mark.usefixtures("no_products")
@pytest.mark.parametrize("n_ranks", [1, 3])
def test_many_classes_do_not_wait_for_passes(classes, n_ranks):
    X, y = classes
    hasty = ButterflySGDClassifier(**MANY, n_ranks=n_ranks).fit(X, y)
    patient = ButterflySGDClassifier(**MANY, n_ranks=n_ranks, n_iter_no_change=5)
    patient.set_params(max_iter=40).fit(X, y)
    values = passes(hasty)
    gains = 1 - np.array(values[1:]) / np.minimum.accumulate(values)[:-1]
    assert (gains < 0.1).tolist() == [False] * (len(gains) - 1) + [True]
    assert len(passes(patient)) >= len(values) + 4
    assert hasty.history_[-1]["excess"] <= hasty.refine_tol
    ends = [model.history_[-1]["objective"] for model in (hasty, patient)]
    assert ends[0] == pytest.approx(ends[1], rel=hasty.refine_tol)


@pytest.mark.usefixtures("no_products")
@pytest.mark.parametrize(
    ("n_classes", "loss"), [(63, "log_loss"), (64, "hinge")], ids=str
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fewer_classes_of_dense_rows_and_kinks_wait(classes, n_classes, loss):
    X, y = (array[: 5 * n_classes] for array in classes)
    params = {**MANY, "loss": loss, "refine_max_iter": 64, "n_ranks": 1, "max_iter": 40}
    own = ButterflySGDClassifier(**params).fit(X, y)
    patient = ButterflySGDClassifier(**params, n_iter_no_change=5).fit(X, y)
    assert passes(own) == passes(patient)


@pytest.fixture(scope="module")
def words():
    """Sparse rows of more columns than Newton's method can have, and values."""
    rng = np.random.default_rng(0)
    X = sparse.random_array((600, 800), density=0.02, format="csr", rng=rng)
    values = X @ rng.normal(size=800) + 0.1 * rng.normal(size=600)
    return X, values


@pytest.mark.usefixtures("no_products")
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize(
    ("loss", "n_classes"),
    [
        ("log_loss", 2),
        ("log_loss", 5),
        ("hinge", 2),
        ("hinge", 5),
        ("hinge", 64),
        ("squared_error", 0),
    ],
    ids=str,
)
def test_sparse_rows_do_not_wait_for_passes(words, loss, n_classes, n_ranks):
    """Each step of a pass moves weights of columns that few rows have."""
    X, y = words
    if n_classes:
        y = np.searchsorted(np.quantile(y, np.arange(1, n_classes) / n_classes), y)
    kind = ButterflySGDClassifier if n_classes else ButterflySGDRegressor
    params = {"loss": loss, "alpha": 1e-3, "random_state": 0, "n_ranks": n_ranks}
    hasty = kind(**params).fit(X, y)
    patient = kind(**params, n_iter_no_change=5).fit(X, y)
    values = passes(hasty)
    gains = 1 - np.array(values[1:]) / np.minimum.accumulate(values)[:-1]
    assert (gains < 0.1).tolist() == [False] * (len(gains) - 1) + [True]
    assert len(passes(patient)) >= len(values) + 4
    ends = [model.history_[-1]["objective"] for model in (hasty, patient)]
    assert ends[0] == pytest.approx(ends[1], rel=hasty.refine_tol)


@pytest.mark.usefixtures("no_products")
@pytest.mark.parametrize("n_classes", [3, 63])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_kinks_of_several_classes_wait_for_passes(words, n_classes, monkeypatch):
    """Where rows are too many to be sent, and L-BFGS is to find those that matter."""
    monkeypatch.setattr(_choice, "_MOST_ELEMENTS", 0)
    X, y = words
    y = np.searchsorted(np.quantile(y, np.arange(1, n_classes) / n_classes), y)
    params = {"loss": "hinge", "alpha": 1e-3, "random_state": 0, "n_ranks": 1}
    own = ButterflySGDClassifier(**params, max_iter=40).fit(X, y)
    patient = ButterflySGDClassifier(**params, max_iter=40, n_iter_no_change=5)
    assert passes(own) == passes(patient.fit(X, y))
