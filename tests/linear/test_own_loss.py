"""Losses of one's own, and those of the library as objects."""

import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import optimize, sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from traced import traced

from dask_ma import (
    ButterflySGDClassifier,
    ButterflySGDRegressor,
    MASGDClassifier,
    MASGDRegressor,
)
from dask_ma.engine.recovery._text import as_text
from dask_ma.losses import (
    Hinge,
    Huber,
    LogLoss,
    Loss,
    MarginLoss,
    MultinomialLogLoss,
    Perceptron,
)
from dask_ma.ma.sgd._loss_sgd import LossSGD
from dask_ma.ma.sgd._steps import Steps

REGRESSORS = [MASGDRegressor, ButterflySGDRegressor]
CLASSIFIERS = [MASGDClassifier, ButterflySGDClassifier]


@dataclass
class Slopes(Loss):
    """Expectiles: squares that weigh more below than above; without a curvature."""

    share: float = 0.8

    def value(self, y, p):
        return np.where(p < y, self.share, 1 - self.share) * (p - y) ** 2

    def slope(self, y, p):
        return 2 * np.where(p < y, self.share, 1 - self.share) * (p - y)


class Expectiles(Slopes):
    """The same with a curvature."""

    def curvature(self, y, p):
        return 2 * np.where(p < y, self.share, 1 - self.share)


class Exponential(MarginLoss):
    """That of boosting."""

    def value(self, y, p):
        return np.exp(-y * p)

    def slope(self, y, p):
        return -y * np.exp(-y * p)

    def curvature(self, y, p):
        return np.exp(-y * p)


class Poisson(Loss):
    """Of counts, up to a constant: negative where they are large."""

    def value(self, y, p):
        return np.exp(p) - y * p

    def slope(self, y, p):
        return np.exp(p) - y

    def curvature(self, y, p):
        return np.exp(p + 0 * y)


@pytest.fixture(scope="module")
def numbers():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 5)) * [1, 10, 0.1, 1, 1] + [0, 3, 0, 0, 0]
    return X, X @ [1, 0.2, 3, 0, 0] + rng.exponential(size=240)


def least(X, y, value, alpha):
    """The least mean loss with L2, and the weights there, by SciPy's BFGS."""

    def objective(w):
        return value(y, X @ w[:-1] + w[-1]).mean() + alpha / 2 * w[:-1] @ w[:-1]

    found = optimize.minimize(objective, np.zeros(X.shape[1] + 1), tol=1e-12)
    return found.fun, objective


@pytest.mark.pairs
@pytest.mark.parametrize("kind", [Slopes, Expectiles])
@pytest.mark.parametrize("estimator", REGRESSORS)
@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_regressors_come_to_its_optimum(numbers, kind, estimator, container):
    X, y = numbers
    model = estimator(loss=kind(0.9), alpha=1e-3, n_ranks=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model.fit(container(X), y)
    optimum, objective = least(X, y, kind(0.9).value, 1e-3)
    assert objective(np.append(model.coef_, model.intercept_)) <= 1.001 * optimum
    # What an asymmetric loss is for: most of the targets are below.
    assert np.mean(y <= model.predict(X)) > 0.7


@pytest.mark.parametrize("estimator", CLASSIFIERS)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_classifiers_come_to_its_optimum(estimator, n_classes):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 4))
    y = np.digitize(X[:, 0] + rng.normal(size=200), [0.0, 1.0][: n_classes - 1])
    weight = rng.integers(1, 4, 200)
    model = estimator(loss=Exponential(), alpha=1e-2, n_ranks=2, random_state=0)
    model.fit(X, y, sample_weight=weight)
    rows = np.repeat(np.arange(200), weight)
    for k, (coef, intercept) in enumerate(
        zip(model.coef_, model.intercept_, strict=True)
    ):
        signs = np.where(y == (1 if n_classes == 2 else k), 1, -1)
        optimum, objective = least(
            X[rows], signs[rows], lambda s, p: np.exp(-s * p), 1e-2
        )
        assert objective(np.append(coef, intercept)) <= 1.001 * optimum


@pytest.mark.parametrize("estimator", [MASGDRegressor, ButterflySGDRegressor])
def test_the_rounds_of_sgd_alone_come_near(numbers, estimator):
    X, y = numbers
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    model = estimator(
        loss=Slopes(0.6), refine=None, alpha=1e-3, n_ranks=2, random_state=0
    ).fit(X, y)
    optimum, objective = least(X, y, Slopes(0.6).value, 1e-3)
    assert objective(np.append(model.coef_, model.intercept_)) <= 1.05 * optimum


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_steps_of_some_rows(numbers, container, is_shuffled):
    """Next to a loop over the same rows with dense weights."""
    X, y = numbers
    weight = np.linspace(0.5, 2, len(y))
    steps, alpha, t = Steps(0.003, 10.0, 0.5, "invscaling"), 0.05, 7.0
    sgd = LossSGD(
        Slopes(0.7),
        alpha,
        is_classifier=False,
        fit_intercept=True,
        shuffle=is_shuffled,
    )
    sgd.coef_, sgd.intercept_ = np.full(5, 0.1), np.array([0.2])
    sgd.random_state = np.random.RandomState(3)
    steps.set_on(sgd, t)
    sgd.partial_fit(container(X), y, sample_weight=weight)
    order = np.arange(len(y))
    if is_shuffled:
        order = np.random.RandomState(3).permutation(len(y))
    w, b = np.full(5, 0.1), 0.2
    for start in range(0, len(y), 16):
        rows = order[start : start + 16]
        eta = steps.at(t + start + (len(rows) - 1) / 2)
        slopes = weight[rows] * Slopes(0.7).slope(y[rows], X[rows] @ w + b)
        w = w / (1 + eta * alpha * len(rows)) - eta * X[rows].T @ slopes
        b -= eta * slopes.sum()
    np.testing.assert_allclose(sgd.coef_, w, rtol=1e-10)
    np.testing.assert_allclose(sgd.intercept_, b, rtol=1e-10)
    assert sgd.t_ == t + len(y)


@pytest.mark.parametrize("container", [np.asarray, sparse.csr_array])
def test_shuffles_copy_few_rows_at_a_time(container):
    rng = np.random.default_rng(0)
    X, y = container(rng.normal(size=(20_000, 20))), rng.normal(size=20_000)
    sgd = LossSGD(
        Slopes(0.7), 0.1, is_classifier=False, fit_intercept=True, shuffle=True
    )
    sgd.coef_, sgd.intercept_ = np.zeros(20), np.zeros(1)
    Steps(1e-4).set_on(sgd, 1.0)
    with traced() as memory:
        sgd.partial_fit(X, y)
    # Other threads of the process allocate a little, too.
    assert memory.peak < 1_500_000 < 10 * y.nbytes
    assert sgd.t_ == 1.0 + len(y)


def test_steps_that_are_too_long_are_told(numbers):
    X, y = numbers
    model = MASGDRegressor(
        loss=Slopes(), learning_rate="constant", eta0=1e3, refine=None, max_iter=50
    )
    with pytest.raises(ValueError, match="scale the features, or lower eta0"):
        model.fit(X, y)


@pytest.mark.parametrize("estimator", [*REGRESSORS, *CLASSIFIERS])
def test_an_object_of_the_library_is_its_name(numbers, estimator):
    X, y = numbers
    is_classifier = estimator in CLASSIFIERS
    if is_classifier:
        y = y > np.median(y)
    loss, named = (
        (LogLoss(), {"loss": "log_loss"})
        if is_classifier
        else (Huber(0.5), {"loss": "huber", "epsilon": 0.5})
    )
    a = clone(estimator(loss=loss, random_state=0)).fit(X, y)
    b = estimator(**named, random_state=0).fit(X, y)
    np.testing.assert_array_equal(a.coef_, b.coef_)
    np.testing.assert_array_equal(a.to_sklearn().predict(X), b.predict(X))
    if is_classifier:
        np.testing.assert_array_equal(a.predict_proba(X), b.predict_proba(X))


@pytest.mark.parametrize(
    ("estimator", "params", "words"),
    [
        (MASGDRegressor, {"loss": Hinge()}, "must be for numbers"),
        (ButterflySGDRegressor, {"loss": Exponential()}, "must be for numbers"),
        (MASGDClassifier, {"loss": MultinomialLogLoss(3)}, "must be of one output"),
        (MASGDRegressor, {"loss": Slopes(), "refine": "newton"}, "no method curvature"),
        (MASGDClassifier, {"loss": Perceptron(), "refine": "newton"}, "curvature"),
        (ButterflySGDClassifier, {"loss": Perceptron(), "refine": "lbfgs"}, "smooth"),
        (MASGDRegressor, {"loss": Slopes}, "loss"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_what_it_lacks_is_named(numbers, estimator, params, words):
    X, y = numbers
    if estimator in CLASSIFIERS:
        y = np.digitize(y, [0, 1])
    with pytest.raises(ValueError, match=words):
        estimator(**params).fit(X, y)


def test_no_probabilities_without_a_name(numbers):
    X, y = numbers
    model = MASGDClassifier(loss=Exponential(), random_state=0).fit(X, y > 0)
    assert not hasattr(model, "predict_proba")
    with pytest.raises(AttributeError, match="no attribute 'predict_proba'"):
        model.predict_proba(X)


def test_checkpoints_tell_losses_apart():
    assert as_text(Slopes(0.5)) == as_text(Slopes(0.5))
    assert as_text(Slopes(0.5)) != as_text(Slopes(0.6))
    assert as_text(Slopes(0.5)) != as_text(Expectiles(0.5))
    inherited = as_text(Expectiles(0.5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Slopes, "value", lambda self, y, p: (p - y) ** 2)
        assert as_text(Expectiles(0.5)) != inherited
    changed = type("Exponential", (MarginLoss,), {**vars(Exponential)})
    assert as_text(changed()) == as_text(Exponential())
    changed.slope = lambda self, y, p: -y * np.exp(-y * p) * 2
    assert as_text(changed()) != as_text(Exponential())


def test_a_cluster_takes_it(process_client, numbers):
    X, y = numbers
    params = {"loss": Expectiles(0.9), "n_ranks": 2, "random_state": 0}
    there = MASGDRegressor(**params).fit(X, y)
    optimum, objective = least(X, y, Expectiles(0.9).value, 1e-4)
    assert objective(np.append(there.coef_, there.intercept_)) <= 1.001 * optimum


@pytest.mark.parametrize("penalty", ["l1", "l2"])
@pytest.mark.parametrize("refine", ["newton", "lbfgs"])
def test_a_loss_may_be_negative(penalty, refine):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = rng.poisson(np.exp(1.5 + X @ [0.3, -0.2, 0])).astype(float)
    params = {"penalty": penalty, "alpha": 1e-2, "refine": refine, "refine_tol": 1e-4}
    model = MASGDRegressor(Poisson(), **params, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        model.fit(X, y)
    slopes = np.exp(model.predict(X)) - y
    assert Poisson().value(y, model.predict(X)).mean() < -1
    gradient = X.T @ slopes / len(y)
    if penalty == "l2":
        gradient += 1e-2 * model.coef_
    else:
        is_zero = model.coef_ == 0
        gradient += 1e-2 * np.sign(model.coef_)
        gradient[is_zero] = np.maximum(np.abs(gradient[is_zero]) - 1e-2, 0)
    assert np.abs(np.append(gradient, slopes.mean())).max() < 5e-2
    assert 0 <= model.history_[-1]["excess"] < 1e-4


def test_passive_aggressive_steps_take_their_loss_as_an_object(numbers):
    X, y = numbers[0], numbers[1] > np.median(numbers[1])
    params = {"learning_rate": "pa1", "max_iter": 3, "tol": None, "random_state": 0}
    model = MASGDClassifier(Hinge(), **params).fit(X, y)
    peer = MASGDClassifier("hinge", **params).fit(X, y)
    np.testing.assert_array_equal(model.coef_, peer.coef_)
