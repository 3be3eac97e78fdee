"""Small rows, quick parameters, and all that a user can see of fits."""

from __future__ import annotations

import inspect
import io
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from estimators import build
from sklearn.exceptions import ConvergenceWarning

import dask_ma
from dask_ma.comm import LocalGroup
from dask_ma.ma import Gradients, Models
from dask_ma.mpca import Torch, strategies
from dask_ma.mpca.strategies import _making as making
from dask_ma.mpca.training._prefetch import Prefetcher
from dask_ma.schmp import schedules
from dask_ma.sfb import Exchange

ESTIMATORS = {
    name: getattr(dask_ma, name)
    for name in dask_ma.__all__
    if isinstance(getattr(dask_ma, name), type)
}
#: Pairs of estimators of one class that reads the parameters of both.
SIBLINGS = (
    ("ButterflySGDClassifier", "ButterflySGDRegressor"),
    ("MASGDClassifier", "MASGDRegressor"),
    ("MPCAClassifier", "MPCARegressor"),
    ("SchMPLasso", "SchMPLogisticRegression"),
)
#: What objects a parameter may be that have parameters of their own.
NESTED: dict[str, list[Any]] = {
    "strategy": [getattr(strategies, name) for name in strategies.__all__],
    "module": [Torch],
    "communication": [Exchange],
    "paradigm": [Gradients, Models],
    "schedule": [
        schedules.Dynamic,
        schedules.Priority,
        schedules.Random,
        schedules.Cyclic,
    ],
}
_SGD = {"max_iter": 4, "tol": None, "random_state": 0, "n_ranks": 1}
_SCHMP = {"alpha": 0.02, "tol": 1e-6, "random_state": 0, "n_ranks": 1}
_MPCA = {**_SGD, "hidden_layer_sizes": (5,), "max_iter": 3}
#: What makes fits of small sets quick, and those of one seed equal.
BASE: dict[str, dict[str, Any]] = {
    "ButterflySGDClassifier": _SGD,
    "ButterflySGDRegressor": _SGD,
    "MALDA": {
        "n_components": 3,
        "max_iter": 3,
        "batch_size": 12,
        "local_batch_size": 4,
        "random_state": 0,
        "n_ranks": 1,
    },
    "MASGDClassifier": _SGD,
    "MASGDRegressor": _SGD,
    "MPCAClassifier": _MPCA,
    "MPCARegressor": _MPCA,
    "SFBDictionaryLearning": {
        "n_components": 3,
        "alpha": 0.2,
        "max_iter": 3,
        "batch_size": 10,
        "tol": 0,
        "max_no_improvement": None,
        "random_state": 0,
        "n_ranks": 1,
    },
    "SFBLogisticRegression": _SGD,
    "SFBMetricLearner": {**_SGD, "n_components": 3},
    "SchMPLDA": {
        "n_components": 3,
        "max_iter": 4,
        "sampler": "metropolis",
        "fractions": "round",
        "random_state": 0,
        "n_ranks": 1,
    },
    "SchMPLasso": _SCHMP,
    "SchMPLassoCV": {"cv": 3, "alphas": 3, "tol": 1e-6, "n_ranks": 1},
    "SchMPLogisticRegression": _SCHMP,
    "SchMPMatrixFactorization": {
        "n_components": 2,
        "max_iter": 3,
        "tol": 0,
        "random_state": 0,
        "n_ranks": 1,
    },
}
_CLOCK = {
    "time",
    "seconds_computing",
    "seconds_waiting",
    "seconds_exchanging",
    "bytes_sent",
    "bytes_shared",
    "messages_sent",
}


@cache
def parameters_of(name: str) -> dict[str, Any]:
    """Parameters of an estimator, and of objects that are some, with defaults."""
    declared = inspect.signature(ESTIMATORS[name]).parameters.items()
    found = {parameter: each.default for parameter, each in declared}
    # A parameter of the same name need not be an object.
    for parameter in set(found) & set(NESTED) & set(ESTIMATORS[name]._to_object):
        for kind in NESTED[parameter]:
            for inner, each in inspect.signature(kind).parameters.items():
                found[f"{parameter}__{inner}"] = each.default
    return found


class Seen(NamedTuple):
    """What fits have shown; each is compared by itself.

    Attributes
    ----------
    model : list of bytes
        Values of the fitted model.
    n_iter : int
        Rounds.
    history : list of dict
        Records without times and messages.
    messages : tuple
        Bytes in rounds, and how often each rank has sent to each.
    strategy : list
        What the ranks of networks that train without waiting have been told; the model
        depends on the clock.
    output : bool
        Whether something was printed.
    threads : set of str
        Names of threads that make batches ready.
    gpus : set of int
        Most ranks that were to share a GPU.
    """

    model: Any
    n_iter: int
    history: Any
    messages: Any
    strategy: Any
    output: bool
    threads: Any
    gpus: set[int]


def changed(before: Seen, after: Seen) -> set[str]:
    """Names of what is different."""
    return {
        name for name in Seen._fields if getattr(before, name) != getattr(after, name)
    }


def observe(
    name: str,
    params: dict[str, Any],
    *,
    n_fits: int = 1,
    method: str = "fit",
    may_warn: str | None = None,
) -> Seen:
    """Fit an estimator and look at all that can be seen.

    Parameters
    ----------
    name : str
        Of the estimator.
    params : dict
        Parameters that differ from `BASE`; those of an object as ``schedule__floor``.
    n_fits : int, default=1
        How often it is fitted.
    method : str, default="fit"
        Or "partial_fit".
    may_warn : str or None, default=None
        A regular expression of warnings that are passed over, besides those of fits
        that end too early.
    """
    estimator = build(ESTIMATORS[name], {**BASE[name], **params})
    told: list[Any] = []
    sent: Counter[tuple[int, int]] = Counter()
    output = io.StringIO()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("ignore", "partial_fit has taken")
        if may_warn is not None:
            warnings.filterwarnings("ignore", may_warn)
        stack.enter_context(redirect_stdout(output))
        stack.enter_context(_listening(told))
        stack.enter_context(_counting(sent))
        stack.enter_context(_on_nodes_of_their_own())
        threads = stack.enter_context(_watching_threads())
        gpus = stack.enter_context(_watching_gpus())
        for _ in range(n_fits):
            getattr(estimator, method)(*rows_of(name), **_classes(name, method))
    return Seen(
        model=_model(estimator),
        n_iter=getattr(estimator, "n_iter_", 0),
        history=[_plain(record) for record in estimator.history_],
        messages=_messages(estimator, sent),
        strategy=sorted(told, key=repr),
        output=bool(output.getvalue()),
        threads=threads,
        gpus=gpus,
    )


@cache
def rows_of(name: str) -> tuple[np.ndarray, ...]:
    """Rows, and targets if there are any, for an estimator."""
    rng = np.random.default_rng(0)
    if name in ("MALDA", "SchMPLDA"):
        counts = rng.poisson(1.0, (24, 8)).astype(float)
        return (20 * counts + 0.2 if name == "SchMPLDA" else counts,)
    if name == "SchMPMatrixFactorization":
        pairs = np.argwhere(rng.random((12, 8)) < 0.6)
        return pairs, rng.normal(3, 1, len(pairs))
    n_features = 60 if name.startswith("SchMP") else 6
    scale = [1, 2, 0.5, 1, 3, 1] * (n_features // 6)
    X = rng.normal(size=(40, n_features)) * scale
    X[rng.random(X.shape) < 0.3] = 0
    if name == "SFBDictionaryLearning":
        return (X,)
    number = X[:, :4] @ [1, -1, 2, 0.5] + rng.normal(size=40)
    if not name.endswith(("Classifier", "Regression", "MetricLearner")):
        return X, number
    edges = [0.0] if "SchMP" in name or "SGD" in name else [-1.0, 1.0]
    return X, np.digitize(number, edges)


def _classes(name: str, method: str) -> dict[str, Any]:
    """What `partial_fit` of classifiers has to know."""
    if method == "fit" or len(rows_of(name)) == 1:
        return {}
    y = rows_of(name)[1]
    return {"classes": np.unique(y)} if y.dtype.kind == "i" else {}


def _model(estimator: Any) -> list[Any]:
    """Bytes of the model."""
    found = []
    for name in ("coef_", "intercept_", "components_", "vector_", "alphas_"):
        found.append(np.asarray(getattr(estimator, name, 0.0)).tobytes())
    if hasattr(estimator, "inverse_transform"):
        found.append(_codes(estimator).tobytes())
    if hasattr(estimator, "recommend"):  # what its parameters act on, also later
        every = [(user, item) for user in range(13) for item in range(9)]
        found.append(estimator.predict(every).tobytes())
    for name in ("coefs_", "intercepts_"):
        found += [part.tobytes() for part in getattr(estimator, name, [])]
    if isinstance(estimator, dask_ma.SchMPLDA):  # new documents have parameters, too
        found.append(estimator.transform(rows_of("SchMPLDA")[0]).tobytes())
        found.append(hasattr(estimator, "token_topics_"))
    return found


def _codes(estimator: Any) -> np.ndarray:
    """What rows are transformed to."""
    X = 3 * np.random.default_rng(1).normal(size=(5, estimator.n_features_in_))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(estimator.transform(X))


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """A record without what depends on the clock; NaN as text, to be equal."""
    return {name: repr(value) for name, value in record.items() if name not in _CLOCK}


def _messages(estimator: Any, sent: Counter[tuple[int, int]]) -> tuple[Any, ...]:
    """Bytes in rounds, and how often each rank has sent to each."""
    n_bytes = sum(record["bytes_sent"] for record in estimator.history_)
    return n_bytes, sorted(sent.items())


def _on_nodes_of_their_own() -> Any:
    """Lay ranks out as on workers with one each, where all send as they are told."""
    create = LocalGroup.create
    return mock.patch.object(LocalGroup, "create", lambda n_ranks: create(n_ranks, 1))


def _counting(sent: Counter[tuple[int, int]]) -> Any:
    """Count the messages from rank to rank."""
    deliver = LocalGroup._deliver_local

    def counted(group: Any, payload: Any, dest: int, tag: Any) -> None:
        sent[group.rank, dest] += 1
        deliver(group, payload, dest, tag)

    return mock.patch.object(LocalGroup, "_deliver_local", counted)


@contextmanager
def _watching_threads() -> Iterator[set[str]]:
    """Names of the threads that make batches ready."""
    names: set[str] = set()
    work = Prefetcher._work

    def noted(self: Any) -> None:
        names.add(threading.current_thread().name)
        work(self)

    with mock.patch.object(Prefetcher, "_work", noted):
        yield names


@contextmanager
def _watching_gpus() -> Iterator[set[int]]:
    """How many ranks may share a GPU, whether there are any or not."""
    allowed: set[int] = set()
    try:
        from dask_ma.mpca.torch import _spec
    except ModuleNotFoundError:
        yield allowed
        return
    share_out = _spec.share_out

    def noted(sights: Any, ranks_per_gpu: int, **how: Any) -> Any:
        allowed.add(ranks_per_gpu)
        return share_out(sights, ranks_per_gpu, **how)

    with mock.patch.object(_spec, "share_out", noted):
        yield allowed


def _listening(told: list[Any]) -> Any:
    """Note what is told to ranks of networks that train without waiting."""
    stack = ExitStack()
    kinds = (making.Coordinated, making.CommonDescent, making.Elastic, making.Averaging)
    for kind in kinds:

        def make(*arguments: Any, _kind: Any = kind, **others: Any) -> Any:
            strategy = _kind(*arguments, **others)
            step = strategy.step
            values = (_kind.__name__, *arguments)

            def noted(batch: Any, rate: float) -> float:
                if (*values, strategy.form) not in told:
                    told.append((*values, strategy.form))
                return step(batch, rate)

            strategy.step = noted
            return strategy

        stack.enter_context(mock.patch.object(making, kind.__name__, make))
    return stack
