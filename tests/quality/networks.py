"""Networks by MPCA SGD next to scikit-learn's: there is no optimum to compare with."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier, MLPRegressor

from dask_ma import MPCAClassifier, MPCARegressor

from .cells import LAYOUTS, RANKS, Cell, arrange
from .rule import Result, classify
from .sets import SETS, Rows, load

_SEEDS = range(3)  # of the peer: the bar is the worst of its models
# Of the score, as few rows are held out; more than an excess that is let pass.
_SCORE = 0.02
_FEWEST = 10  # rows held out that tell anything of a score


@dataclass(frozen=True)
class Network:
    """An estimator of networks and its peer."""

    name: str
    task: str
    make: Any
    peer: Any
    penalty: str = "l2"

    def __str__(self) -> str:
        return self.name


NETWORKS = [
    Network("MPCAClassifier", "classification", MPCAClassifier, MLPClassifier),
    Network("MPCARegressor", "regression", MPCARegressor, MLPRegressor),
]


class Bar(NamedTuple):
    """What a model of the peer's defaults has.

    Attributes
    ----------
    loss : float
        Of the rows that it was trained on.
    errors : ndarray of shape (n_test,)
        Of each row held out, whose mean is 1 less the score.
    """

    loss: float
    errors: np.ndarray

    @property
    def score(self) -> float:
        """Accuracy or coefficient of determination."""
        return 1 - float(self.errors.mean())


def every_network_cell(network: Network) -> list[Cell]:
    """All cells of a network."""
    return [
        Cell(rows, layout, n_ranks)
        for rows in SETS[network.task]
        for layout in LAYOUTS
        for n_ranks in RANKS
    ]


def judge_network(network: Network, cell: Cell) -> Result:
    """Fit a cell; it has to be as good as the peer, on both halves of the rows."""
    train, test = _halves(network.task, cell.rows)
    bar = _bar(network, cell.rows, cell.layout == "weighted")
    X, y, weight = arrange(train, cell.layout)
    model = network.make(n_ranks=cell.n_ranks, random_state=0)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit(X, y, sample_weight=weight)
        except Exception as error:  # any kind of it is a failed cell
            text, seconds = f"{type(error).__name__}: {error}", 0.0
            return Result(network, cell, "failed", np.inf, 0.0, seconds, text)
    seconds = time.perf_counter() - start
    loss = training_loss(model, train, None if weight is None else train.sample_weight)
    # Both end after one epoch more than `n_iter_no_change`, none of which has lowered
    # the loss by `tol`.
    left_open = model.tol * (model.n_iter_no_change + 1)
    excess = loss / bar.loss - 1
    if loss <= bar.loss + left_open:
        excess = min(excess, 0.0)
    errors = errors_of(model, test)
    excess = max(excess, points_behind(errors, bar.errors))
    said = [
        str(one.message)
        for one in caught
        if issubclass(one.category, ConvergenceWarning)
    ]
    verdict = classify(excess, 0.0, said, model.get_params())
    score = 1 - errors.mean()
    text = f"score {score:.3f}, peer's {bar.score:.3f}. " + " ".join(said)
    return Result(network, cell, verdict, excess, 0.0, seconds, text)


def training_loss(
    model: Any, rows: Rows, sample_weight: np.ndarray | None = None
) -> float:
    """Log loss or half of the squared error, with the penalty of MLPClassifier."""
    if is_classifier(model):
        number = np.searchsorted(model.classes_, rows.y)
        chances = model.predict_proba(rows.X)[np.arange(len(number)), number]
        losses = -np.log(np.maximum(chances, 1e-300))
    else:
        losses = np.square(rows.y - model.predict(rows.X)) / 2
    squares = sum(np.square(weights).sum() for weights in model.coefs_)
    penalty = model.alpha * squares / 2 / len(rows.y)
    return float(np.average(losses, weights=sample_weight) + penalty)


def errors_of(model: Any, rows: Rows) -> np.ndarray:
    """Of each row, with 1 less the score as their mean."""
    predicted = model.predict(rows.X)
    if is_classifier(model):
        return (predicted != rows.y).astype(float)
    return np.square(rows.y - predicted) / rows.y.var()


def points_behind(errors: np.ndarray, bar: np.ndarray) -> float:
    """How much lower a score is, if by more than few rows differ by chance."""
    n, differences = len(errors), errors - bar
    if n < _FEWEST or bar.mean() > 1:  # the peer's model is worse than a constant
        return 0.0
    noise = 2 * differences.std(ddof=1) / np.sqrt(n)
    behind = float(differences.mean())
    return behind if behind > max(_SCORE, noise) else 0.0


def _halves(task: str, name: str) -> tuple[Rows, Rows]:
    """Three quarters of the rows to train with, and the others."""
    X, y = load(task, name)
    cut = 3 * len(y) // 4
    return Rows(X[:cut], y[:cut]), Rows(X[cut:], y[cut:])


@cache
def _bar(network: Network, name: str, weighted: bool) -> Bar:
    """The worst of the peer's models."""
    train, test = _halves(network.task, name)
    weight = train.sample_weight if weighted else None
    kept = np.ones(len(train.y), bool) if weight is None else weight > 0
    # Here such rows are no rows. The peer has them in its batches, which are others.
    own_weight = None if weight is None else weight[kept]
    losses, errors = [], []
    for seed in _SEEDS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            peer = network.peer(random_state=seed)
            peer.fit(train.X[kept], train.y[kept], sample_weight=own_weight)
        losses.append(training_loss(peer, train, weight))
        errors.append(errors_of(peer, test))
    return Bar(max(losses), max(errors, key=np.mean))
