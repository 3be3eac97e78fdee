"""What is fitted: estimators with settings that converge, their data, their objective.

The objective is worked out here from the fitted model and all rows, so that a fit that
went on without some of them, or on a model of before, is found whatever it says itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.special import log_expit, log_softmax

import dask_ma
from dask_ma.schmp import schedules
from dask_ma.sfb import Exchange

Rows = tuple[np.ndarray, "np.ndarray | None"]


@dataclass(frozen=True)
class Case:
    """An estimator with settings under which a fit takes a few seconds.

    Parameters
    ----------
    estimator : callable
        Makes the estimator.
    params : dict
        Its parameters.
    rows : callable
        Makes the rows, the same at each call.
    objective : callable
        ``objective(model, X, y)``, the smaller the better.
    rtol : float
        How far the objective of a struck fit may be from that of an undisturbed one.
        For the strategies whose ranks do not wait for each other it is some times the
        spread of undisturbed fits.
    not_kinds : sequence of str
        Kinds of input that mean something else to the estimator.
    """

    estimator: Callable[..., Any]
    params: dict[str, Any]
    rows: Callable[[], Rows]
    objective: Callable[[Any, np.ndarray, np.ndarray | None], float]
    rtol: float = 0.01
    not_kinds: Sequence[str] = ()

    def make(self, **changes: Any) -> Any:
        """The estimator, with some parameters changed."""
        return self.estimator(**{**self.params, **changes})


# Rows ------------------------------------------------------------------------------


@cache
def two_classes() -> Rows:
    """Two classes that overlap."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12000, 30))
    noise = 3 * rng.normal(size=12000)
    return X, (X @ rng.normal(size=30) + noise > 0).astype(int)


@cache
def line() -> Rows:
    """A linear target with noise."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(12000, 30))
    return X, X @ rng.normal(size=30) + 3 * rng.normal(size=12000)


@cache
def documents() -> Rows:
    """Counts of words of eight topics."""
    rng = np.random.default_rng(2)
    topics = rng.dirichlet(np.full(300, 0.05), 8)
    words = rng.dirichlet(np.full(8, 0.3), 1200) @ topics
    return rng.multinomial(60, words).astype(np.float32), None


@cache
def ratings() -> Rows:
    """Pairs of users and items, and ratings that vectors explain for the most part."""
    rng = np.random.default_rng(7)
    pairs = np.unique(rng.integers(0, (900, 300), size=(30_000, 2)), axis=0)
    users, items = rng.normal(size=(900, 4)), rng.normal(size=(300, 4))
    known = np.einsum("nf,nf->n", users[pairs[:, 0]], items[pairs[:, 1]])
    return pairs, 3 + known + 0.5 * rng.normal(size=len(pairs))


@cache
def few_features() -> Rows:
    """Correlated features, some of which make up a target with noise."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(1500, 60)) + 0.5 * rng.normal(size=(1500, 1))
    weights = rng.normal(size=60) * (np.arange(60) < 20)
    return X, X @ weights + 3 * rng.normal(size=1500)


@cache
def many_features() -> Rows:
    """More of them, so that a path of models takes its time."""
    rng = np.random.default_rng(4)
    X = rng.normal(size=(2400, 240)) + 0.7 * rng.normal(size=(2400, 1))
    weights = rng.normal(size=240) * (np.arange(240) < 80)
    return X, X @ weights + 3 * rng.normal(size=2400)


def signs(rows: Callable[[], Rows]) -> Callable[[], Rows]:
    """The same rows with the sign of the target as the class."""

    def make() -> Rows:
        X, y = rows()
        return X, (y > np.median(y)).astype(int)

    return make


@cache
def four_classes() -> Rows:
    """Four classes that overlap."""
    rng = np.random.default_rng(5)
    y = rng.integers(0, 4, 3000)
    return rng.normal(size=(3000, 20)) + 0.4 * rng.normal(size=(4, 20))[y], y


@cache
def events() -> Rows:
    """Rows of three of twelve atoms each, with noise."""
    rng = np.random.default_rng(8)
    codes = rng.normal(size=(3000, 12)) * (rng.random((3000, 12)) < 0.25)
    X = codes @ rng.normal(size=(12, 20)) / 4 + 0.1 * rng.normal(size=(3000, 20))
    return X, None


@cache
def wave() -> Rows:
    """A target that is not linear, with noise."""
    rng = np.random.default_rng(6)
    X = rng.normal(size=(3000, 10))
    return X, np.sin(X[:, 0]) + X[:, 1] ** 2 / 2 + rng.normal(size=3000)


# Objectives ------------------------------------------------------------------------


def log_loss(model: Any, X: np.ndarray, y: Any) -> float:
    """Log loss of two classes and half the square of the weights."""
    margins = np.where(y > 0, 1, -1) * (X @ model.coef_.ravel() + model.intercept_)
    return float(-log_expit(margins).mean() + model.alpha / 2 * (model.coef_**2).sum())


def squared_error(model: Any, X: np.ndarray, y: Any) -> float:
    """Half the squared error and half the square of the weights."""
    errors = X @ model.coef_ + model.intercept_ - y
    return float((errors**2).mean() / 2 + model.alpha / 2 * (model.coef_**2).sum())


def lasso(model: Any, X: np.ndarray, y: Any) -> float:
    """Half the squared error and the absolute weights."""
    alpha = getattr(model, "alpha_", None) or model.alpha
    errors = X @ model.coef_ + model.intercept_ - y
    return float((errors**2).mean() / 2 + alpha * abs(model.coef_).sum())


def sparse_log_loss(model: Any, X: np.ndarray, y: Any) -> float:
    """Log loss of two classes and the absolute weights."""
    margins = np.where(y > 0, 1, -1) * (X @ model.coef_.ravel() + model.intercept_)
    return float(-log_expit(margins).mean() + model.alpha * abs(model.coef_).sum())


def neighbour_loss(model: Any, X: np.ndarray, y: np.ndarray | None) -> float:
    """Minus the mean logarithm of the probability of a neighbour of the class."""
    assert y is not None
    Z, labels = model.transform(X[:1000]), y[:1000]
    squares = (Z**2).sum(axis=1)
    distances = squares[:, None] + squares - 2 * Z @ Z.T
    np.fill_diagonal(distances, np.inf)
    logarithms = log_softmax(-distances, axis=1)
    same = np.where(labels[:, None] == labels, logarithms, -np.inf)
    return -float(np.logaddexp.reduce(same, axis=1).mean())


def code_loss(model: Any, X: np.ndarray, y: np.ndarray | None) -> float:
    """Mean objective of the codes that a model gives rows."""
    X = X[:1000]
    codes = model.transform(X)
    rest = X - codes @ model.components_
    penalty = model.alpha * np.abs(codes).sum(axis=1)
    return float(((rest**2).sum(axis=1) / 2 + penalty).mean())


def softmax_loss(model: Any, X: np.ndarray, y: Any) -> float:
    """Log loss of several classes and half the square of the weights."""
    logs = log_softmax(X @ model.coef_.T + model.intercept_, axis=1)
    loss = -logs[np.arange(len(y)), y].mean()
    return float(loss + model.alpha / 2 * (model.coef_**2).sum())


def network_loss(model: Any, X: np.ndarray, y: Any) -> float:
    """Log loss of a network."""
    chosen = np.asarray(model.predict_proba(X))[np.arange(len(y)), y]
    return float(-np.log(np.clip(chosen, 1e-15, 1)).mean())


def network_error(model: Any, X: np.ndarray, y: Any) -> float:
    """Half the squared error of a network."""
    return float(((np.asarray(model.predict(X)) - y) ** 2).mean() / 2)


def bound(model: Any, X: np.ndarray, y: Any) -> float:
    """Logarithm of the perplexity of documents."""
    return float(np.log(model.perplexity(X)))


def completion(model: Any, X: np.ndarray, y: Any) -> float:
    """Logarithm of the perplexity of half of each document, given the other half."""
    return float(np.log(model.perplexity(X, method="completion")))


def mean_square(model: Any, X: np.ndarray, y: Any) -> float:
    """Mean squared error of ratings."""
    return float(((np.asarray(model.predict(X)) - y) ** 2).mean())


# Configurations --------------------------------------------------------------------

_COMMON = {"tol": None, "random_state": 0}
_LINEAR = {**_COMMON, "loss": "log_loss", "alpha": 1e-2}
_SFB = {**_COMMON, "alpha": 0.02, "batch_size": 100}
_NETWORK = {
    **_COMMON,
    "hidden_layer_sizes": (8,),
    "batch_size": 50,
    "alpha": 1.0,
    "learning_rate_init": 0.005,  # with which all strategies converge
}


def _make_cases() -> dict[str, Case]:
    cases = {
        "MASGDClassifier": Case(
            dask_ma.MASGDClassifier,
            {**_LINEAR, "local_epochs": 1.0, "max_iter": 60},
            two_classes,
            log_loss,
        ),
        "MASGDClassifier gradient": Case(
            dask_ma.MASGDClassifier,
            {**_LINEAR, "paradigm": "gradient", "max_iter": 60},
            two_classes,
            log_loss,
        ),
        "MASGDClassifier refine": Case(
            dask_ma.MASGDClassifier,
            {**_LINEAR, "local_epochs": 1.0, "max_iter": 40, "refine": "lbfgs"},
            two_classes,
            log_loss,
        ),
        "MASGDRegressor": Case(
            dask_ma.MASGDRegressor,
            {**_COMMON, "alpha": 1e-2, "local_epochs": 1.0, "max_iter": 60},
            line,
            squared_error,
        ),
        "MALDA online": Case(
            dask_ma.MALDA,
            {
                "n_components": 8,
                "batch_size": 300,
                "max_iter": 8,
                "total_samples": 1200,
                "random_state": 0,
            },
            documents,
            bound,
            rtol=0.02,
        ),
        "MALDA batch": Case(
            dask_ma.MALDA,
            {
                "n_components": 8,
                "learning_method": "batch",
                "max_iter": 20,
                "random_state": 0,
            },
            documents,
            bound,
            rtol=0.02,
        ),
        "SchMPLassoCV": Case(
            dask_ma.SchMPLassoCV,
            {"alphas": 10, "cv": 3, "tol": 1e-4},
            few_features,
            lasso,
        ),
    }
    for mixing in ("butterfly", "allreduce", "periodic", "none"):
        cases[f"ButterflySGDClassifier {mixing}"] = Case(
            dask_ma.ButterflySGDClassifier,
            {**_LINEAR, "batch_size": 500, "max_iter": 40, "mixing": mixing},
            two_classes,
            log_loss,
        )
    _add_schmp(cases)
    _add_rotations(cases)
    _add_sfb(cases)
    _add_mpca(cases)
    return cases


def _add_schmp(cases: dict[str, Case]) -> None:
    for layout in ("rows", "columns"):
        cases[f"SchMPLasso {layout}"] = Case(
            dask_ma.SchMPLasso,
            {"alpha": 0.02, "tol": 1e-9, "layout": layout, "random_state": 0},
            many_features,
            lasso,
        )
    cases["SchMPLogisticRegression"] = Case(
        dask_ma.SchMPLogisticRegression,
        {"alpha": 0.005, "tol": 1e-7, "random_state": 0},
        signs(many_features),
        sparse_log_loss,
    )
    dynamic = {"schedule": schedules.Dynamic(24), "random_state": 0}
    cases["SchMPLasso dynamic"] = Case(
        dask_ma.SchMPLasso,
        {**dynamic, "alpha": 0.1, "tol": 1e-4},
        few_features,
        lasso,
    )
    cases["SchMPLogisticRegression dynamic"] = Case(
        dask_ma.SchMPLogisticRegression,
        {**dynamic, "alpha": 0.02, "tol": 1e-3},
        signs(few_features),
        sparse_log_loss,
    )


def _add_rotations(cases: dict[str, Case]) -> None:
    for sampler in ("exact", "metropolis"):
        cases[f"SchMPLDA {sampler}"] = Case(
            dask_ma.SchMPLDA,
            {
                "n_components": 8,
                "doc_topic_prior": 0.3,
                "topic_word_prior": 0.05,
                "sampler": sampler,
                "max_iter": 60,
                "random_state": 0,
            },
            documents,
            completion,
            rtol=0.02,
        )
    ways: dict[str, dict[str, Any]] = {
        "cholesky": {"als_solver": "cholesky", "max_iter": 30},
        "cg": {"als_solver": "cg", "max_iter": 30},
        "sgd": {"solver": "sgd", "max_iter": 60},
    }
    for way, params in ways.items():
        cases[f"SchMPMatrixFactorization {way}"] = Case(
            dask_ma.SchMPMatrixFactorization,
            {**params, "n_components": 4, "tol": 1e-6, "random_state": 0},
            ratings,
            mean_square,
            rtol=0.02,
            not_kinds=("csr",),  # a matrix of users and items
        )


def _add_sfb(cases: dict[str, Case]) -> None:
    ways = {
        "bsp": Exchange("factors"),
        "staleness": Exchange("factors", staleness=2),
        "partial": Exchange("factors", broadcast=1),
    }
    for solver in ("sgd", "sdca"):
        for way, exchange in ways.items():
            cases[f"SFBLogisticRegression {solver} {way}"] = Case(
                dask_ma.SFBLogisticRegression,
                {
                    **_SFB,
                    "communication": exchange,
                    "solver": solver,
                    "max_iter": 12,
                },
                four_classes,
                softmax_loss,
                rtol=0.02,
            )
    cases["SFBLogisticRegression sgd outputs"] = Case(
        dask_ma.SFBLogisticRegression,
        {
            **_SFB,
            "communication": "outputs",
            "solver": "sgd",
            "max_iter": 12,
            "n_ranks": 3,
        },
        four_classes,
        softmax_loss,
        rtol=0.02,
    )
    cases["SFBMetricLearner diagonal"] = Case(
        dask_ma.SFBMetricLearner,
        {
            "metric_form": "diagonal",
            "max_iter": 12,
            "tol": None,
            "random_state": 0,
        },
        four_classes,
        neighbour_loss,
        rtol=0.03,
    )
    for content in ("factors", "outputs"):
        cases[f"SFBMetricLearner {content}"] = Case(
            dask_ma.SFBMetricLearner,
            {
                "n_components": 10,
                "communication": content,
                "max_iter": 12,
                "tol": None,
                "random_state": 0,
            },
            four_classes,
            neighbour_loss,
            rtol=0.03,
        )
    for name, merge_every in (("together", 1), ("apart", 3)):
        cases[f"SFBDictionaryLearning {name}"] = Case(
            dask_ma.SFBDictionaryLearning,
            {
                "n_components": 12,
                "alpha": 0.5,
                "max_iter": 8,
                "batch_size": 100,
                "merge_every": merge_every,
                "tol": 0,
                "max_no_improvement": None,
                "random_state": 0,
            },
            events,
            code_loss,
            rtol=0.02,
        )


def _add_mpca(cases: dict[str, Case]) -> None:
    waiting = "gradients", "synchronous", "easgd", "parameter_server", "local"
    for strategy in ("mpca", *waiting):
        is_free = strategy == "mpca"
        cases[f"MPCAClassifier {strategy}"] = Case(
            dask_ma.MPCAClassifier,
            # On a busy machine, or while one rank stands still, the others go through
            # many epochs without a joint model; it takes as many to make up for that.
            {**_NETWORK, "strategy": strategy, "max_iter": 120 if is_free else 40},
            four_classes,
            network_loss,
            rtol=0.1 if is_free else 0.05,
        )
    cases["MPCARegressor"] = Case(
        dask_ma.MPCARegressor,
        {
            **_NETWORK,
            "hidden_layer_sizes": (32,),  # few units may all die, and do now and then
            "max_iter": 100,
            "learning_rate_init": 0.01,
        },
        wave,
        network_error,
        rtol=0.05,
    )


CASES = _make_cases()
