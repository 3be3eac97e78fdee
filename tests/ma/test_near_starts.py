"""Warm starts from a model that serves the rows already."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.preprocessing import StandardScaler

from dask_ma import MASGDClassifier, MASGDRegressor
from dask_ma.comm import LocalGroup
from dask_ma.data import Block, Shard
from dask_ma.linear.refine import NEAR, _refinement, start_ratio

CANCER = StandardScaler().fit_transform(load_breast_cancer().data)
LABELS = load_breast_cancer().target
DIGITS, FIGURES = load_digits(return_X_y=True)
DIABETES, PROGRESS = load_diabetes(return_X_y=True)


def begins_refined(model):
    return bool(model.history_[0].get("refined", False))


def objective(model):
    return model.history_[-1]["objective"]


@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
@pytest.mark.parametrize("X, y", [(CANCER, LABELS), (DIGITS, FIGURES)], ids=len)
def test_the_same_rows_once_more(X, y, loss, n_ranks):
    """Steps of SGD are not made, and where no more is to be gained hardly any other."""
    model = MASGDClassifier(loss, random_state=0, n_ranks=n_ranks, warm_start=True)
    model.fit(X, y)
    first, best = model.n_iter_, objective(model)
    assert not begins_refined(model)
    model.fit(X, y)
    assert begins_refined(model)
    assert objective(model) <= best * (1 + 1e-6)
    if loss == "log_loss":
        assert model.n_iter_ == 1
    assert model.n_iter_ < first


@pytest.mark.parametrize("alpha", [1e-2, 1e-5])
def test_a_path_of_penalties(alpha):
    params = {"loss": "log_loss", "random_state": 0, "n_ranks": 2}
    model = MASGDClassifier(**params, alpha=1e-3, warm_start=True).fit(CANCER, LABELS)
    model.set_params(alpha=alpha).fit(CANCER, LABELS)
    assert begins_refined(model)
    alone = MASGDClassifier(**params, alpha=alpha).fit(CANCER, LABELS)
    assert objective(model) <= objective(alone) * (1 + 2e-3)


@pytest.mark.parametrize(
    "changes",
    [{"penalty": "elasticnet"}, {"refine": None}, {"learning_rate": "optimal"}],
    ids=str,
)
def test_what_is_not_handed_over_goes_on_by_sgd(changes):
    model = MASGDClassifier(random_state=0, warm_start=True, **changes)
    assert not begins_refined(model.fit(CANCER, LABELS).fit(CANCER, LABELS))


@pytest.mark.parametrize("loss", ["squared_hinge", "hinge"])
@pytest.mark.parametrize("spoil", ["other labels", "noise", "overflow"])
def test_a_model_that_is_worse_than_none(loss, spoil):
    """The fit is that of no model, from zero."""
    labels = 1 - LABELS if spoil == "other labels" else LABELS
    params = {"loss": loss, "random_state": 0, "n_ranks": 2}
    model = MASGDClassifier(**params, warm_start=True).fit(CANCER, labels)
    if spoil == "noise":
        rng = np.random.default_rng(0)
        model.coef_ = model.coef_ + 1e4 * rng.standard_normal(model.coef_.shape)
    elif spoil == "overflow":
        model.coef_ = model.coef_ * 1e200
    model.fit(CANCER, LABELS)
    alone = MASGDClassifier(**params).fit(CANCER, LABELS)
    assert objective(model) == objective(alone)
    np.testing.assert_array_equal(model.coef_, alone.coef_)


@pytest.mark.parametrize("kind", [MASGDClassifier, MASGDRegressor])
def test_an_intercept_that_is_not_fitted_stays(kind):
    """Whatever becomes of the coefficients, of which those of the start are worse."""
    is_classifier = kind is MASGDClassifier
    X, y = (CANCER, LABELS) if is_classifier else (DIABETES, PROGRESS + 100)
    given = {"intercept_init": [2.0 if is_classifier else 250.0]}
    params = {"fit_intercept": False, "random_state": 0, "alpha": 1e-3}
    params |= {"loss": "log_loss"} if is_classifier else {}
    alone = kind(**params).fit(X, y, **given)
    model = kind(**params, warm_start=True).fit(X, y, **given)
    for again in (given, {}):
        model.coef_ = model.coef_ * -30
        model.fit(X, y, **again)
        np.testing.assert_array_equal(model.intercept_, alone.intercept_)
        assert objective(model) == pytest.approx(objective(alone), rel=2e-3)


def test_a_model_of_other_targets():
    model = MASGDRegressor("huber", random_state=0, warm_start=True, n_ranks=2)
    X, y = DIABETES * 20, PROGRESS / PROGRESS.std()
    model.fit(X, y + 1e4).fit(X, y)
    alone = MASGDRegressor("huber", random_state=0, n_ranks=2).fit(X, y)
    assert objective(model) == pytest.approx(objective(alone), rel=2e-3)


def test_a_model_that_says_little():
    """Steps of SGD go on from it."""
    model = MASGDClassifier("log_loss", random_state=0, n_ranks=2, warm_start=True)
    model.fit(CANCER, LABELS)
    model.coef_ = model.coef_ * 1e-2
    model.intercept_ = np.log([LABELS.mean() / (1 - LABELS.mean())])
    model.fit(CANCER, LABELS)
    assert not begins_refined(model)
    alone = MASGDClassifier("log_loss", random_state=0, n_ranks=2).fit(CANCER, LABELS)
    assert objective(model) <= objective(alone) * (1 + 2e-3)
    assert (model.coef_ != alone.coef_).any()


@pytest.mark.parametrize("loss", ["squared_error", "huber"])
def test_targets_that_are_far_from_zero(loss):
    """What the mean of them costs is what a model has to be better than."""
    y = PROGRESS + 1e4
    params = {"loss": loss, "alpha": 1e-6, "random_state": 0, "n_ranks": 2}
    model = MASGDRegressor(**params, warm_start=True).fit(DIABETES, y)
    assert begins_refined(model.fit(DIABETES, y))
    model.coef_ = np.zeros_like(model.coef_)  # and the intercept is near the mean
    assert not begins_refined(model.fit(DIABETES, y))


def ratio(coef, intercept=0.0, y=None, n_ranks=1, **changes):
    """Of a model of rows with one feature; the same on all ranks."""
    X = sparse.csr_array(np.linspace(-1, 1, 40)[:, np.newaxis])
    y = np.sign(X.toarray()[:, 0]) if y is None else np.asarray(y, dtype=float)
    names = {"loss": "squared_error", "epsilon": 0.1, "penalty": "l2", "alpha": 0.0}
    names |= {"l1_ratio": 0.5, "fit_intercept": True, "is_classifier": False}
    names |= {"coef": None if coef is None else np.array([[coef]])}
    names |= {"is_warm": True, "intercept": np.array([intercept]), **changes}
    cuts = np.array_split(np.arange(40), n_ranks)
    common = {"n_problems": 1, "dtype": np.float64, "total_weight": 40.0}
    common |= {"positive_weight": None, "shares": None, "level": 0.0}

    def ask(group):
        rows = cuts[group.rank]
        shard = Shard([Block(X[rows], y[rows], None, group.rank, 0)], 1, X.dtype)
        problem = SimpleNamespace(shard=shard, **common)
        return start_ratio(group, problem, SimpleNamespace(**names))

    with ThreadPoolExecutor(n_ranks) as pool:
        found = set(pool.map(ask, LocalGroup.create(n_ranks)))
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_what_a_model_leaves(n_ranks):
    x = np.linspace(-1, 1, 40)
    rows = {"n_ranks": n_ranks}
    expected = np.mean((np.sign(x) - x) ** 2)
    assert ratio(1.0, **rows) == pytest.approx(expected)
    assert ratio(0.0, **rows) == pytest.approx(1)
    assert ratio(-1.0, **rows) == pytest.approx(np.mean((np.sign(x) + x) ** 2))
    assert ratio(np.nan, **rows) == ratio(1e300, **rows) == np.inf
    # The penalty counts: an objective has half of squares.
    assert ratio(1.0, alpha=0.3, **rows) == pytest.approx(expected + 0.3)
    # Models that are not those of a warm start do not.
    assert ratio(-1.0, is_warm=False, **rows) == NEAR
    assert ratio(None, **rows) == NEAR
    # What one value leaves is that of the mean, if models have an intercept.
    assert ratio(1.0, 100.0, x + 100, **rows) == pytest.approx(0, abs=1e-9)
    assert ratio(0.0, 100.0, x + 100, **rows) == pytest.approx(1)
    # One that is not fitted stays, with any coefficients.
    alone = ratio(0.5, 99.0, x + 100, fit_intercept=False, **rows)
    expected = np.mean((0.5 * x + 1) ** 2) / np.mean((x + 1) ** 2)
    assert alone == pytest.approx(expected)


def test_what_a_search_knows(monkeypatch):
    """With a model that serves the rows it begins with narrow kinks."""
    seen, plain = [], _refinement.Search

    def search(*args, is_warm):
        seen.append(is_warm)
        return plain(*args, is_warm=is_warm)

    model = MASGDClassifier("log_loss", random_state=0, n_ranks=1, warm_start=True)
    model.fit(CANCER, LABELS)
    monkeypatch.setattr(_refinement, "Search", search)
    # No steps of SGD come before it, which would say so too.
    assert begins_refined(model.fit(CANCER, LABELS))
    assert seen == [True]
