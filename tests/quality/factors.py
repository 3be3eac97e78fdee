"""Learnt distances and dictionaries next to scikit-learn's, on rows held out."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.decomposition import MiniBatchDictionaryLearning, sparse_encode
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis

from dask_ma import SFBDictionaryLearning, SFBMetricLearner

from .cells import RANKS, Cell, arrange
from .rule import Result, classify
from .sets import Rows, load

_LAYOUTS = ("one block", "20 blocks", "sorted", "sorted blocks")
_SEEDS = range(3)  # of the peer: the bar is the worst of its models
_FOLDS = StratifiedKFold(3, shuffle=True, random_state=0)
_OF_DISTANCES = (
    "iris standardised",
    "wine",
    "wine standardised",
    "cancer standardised",
    "digits",
    "digits standardised",
    "three classes",
    "counts",
)
_OF_ATOMS = (
    "iris standardised",
    "wine standardised",
    "cancer standardised",
    "digits",
    "three classes",
    "counts",
)


@dataclass(frozen=True)
class Distances:
    """SFBMetricLearner, with its defaults."""

    name: str = "SFBMetricLearner"
    penalty: str = "-"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Atoms:
    """SFBDictionaryLearning, with its defaults."""

    name: str = "SFBDictionaryLearning"
    penalty: str = "-"

    def __str__(self) -> str:
        return self.name


def every_distance_cell() -> list[Cell]:
    """All cells of distances; the peer has no weights."""
    return _cells(_OF_DISTANCES)


def every_atom_cell() -> list[Cell]:
    """All cells of dictionaries."""
    return _cells(_OF_ATOMS)


def judge_distances(distances: Distances, cell: Cell) -> Result:
    """Fit a cell; as many rows must be named rightly as by the peer's distances.

    The excess is what is beyond two standard errors of the difference, as a part of the
    rows, each of which is held out once.
    """
    X, y = load("classification", cell.rows)
    told, hits, seconds = [], np.zeros(len(y), dtype=bool), 0.0
    for train, test in _FOLDS.split(y, y):
        rows, labels, _ = arrange(Rows(X[train], y[train]), cell.layout)
        model = SFBMetricLearner(n_ranks=cell.n_ranks, random_state=0)
        start = time.perf_counter()
        told += _warnings_of(lambda m=model, r=rows, t=labels: m.fit(r, t))
        seconds += time.perf_counter() - start
        hits[test] = _hits(model, X, y, train, test)
    peer = _peer_hits(cell.rows)
    n_behind = int(peer.sum()) - int(hits.sum())
    noise = 2 * np.sqrt(np.count_nonzero(peer != hits))
    excess = max(0.0, n_behind - noise) / len(y)
    verdict = classify(excess, 0.0, told, model.get_params())
    text = f"{hits.mean():.3f} of the rows, the peer's {peer.mean():.3f}. "
    text += " ".join(told)
    return Result(distances, cell, verdict, excess, 0.0, seconds, text)


def judge_atoms(atoms: Atoms, cell: Cell) -> Result:
    """Fit a cell; the objective of held-out rows must be as low as by peer's atoms."""
    train, test = _halves(cell.rows)
    bar = _bar(cell.rows)
    rows, _, _ = arrange(train, cell.layout)
    model = SFBDictionaryLearning(n_ranks=cell.n_ranks, random_state=0)
    start = time.perf_counter()
    told = _warnings_of(lambda: model.fit(rows))
    seconds = time.perf_counter() - start
    excess = _objective(test, model.components_) / bar - 1
    verdict = classify(excess, 0.0, told, model.get_params())
    return Result(atoms, cell, verdict, excess, 0.0, seconds, " ".join(told))


def _cells(names: tuple[str, ...]) -> list[Cell]:
    """All of some sets."""
    return [
        Cell(name, layout, n_ranks)
        for name in names
        for layout in _LAYOUTS
        for n_ranks in RANKS
    ]


def _warnings_of(fit: Any) -> list[str]:
    """What a fit says of its convergence."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit()
    return [
        str(one.message)
        for one in caught
        if issubclass(one.category, ConvergenceWarning)
    ]


def _dense(X: Any) -> np.ndarray:
    """Rows as the peers take them."""
    return X.toarray() if sparse.issparse(X) else X


def _hits(
    model: Any, X: Any, y: np.ndarray, train: np.ndarray, test: np.ndarray
) -> np.ndarray:
    """Which held-out rows three neighbours name rightly."""
    Z = model.transform(X)
    return KNeighborsClassifier(3).fit(Z[train], y[train]).predict(Z[test]) == y[test]


@cache
def _peer_hits(name: str) -> np.ndarray:
    """Those of the peer, which draws nothing with its defaults."""
    X, y = load("classification", name)
    X, hits = _dense(X), np.zeros(len(y), dtype=bool)
    for train, test in _FOLDS.split(y, y):
        model = NeighborhoodComponentsAnalysis(random_state=0)
        model.fit(X[train], y[train])
        hits[test] = _hits(model, X, y, train, test)
    return hits


@cache
def _halves(name: str) -> tuple[Rows, np.ndarray]:
    """Three quarters of the rows to learn from, and the others."""
    X, y = load("classification", name)
    cut = 3 * len(y) // 4
    return Rows(X[:cut], y[:cut]), _dense(X[cut:])


def _objective(rows: np.ndarray, atoms: np.ndarray) -> float:
    """Mean objective of the best codes, which scikit-learn finds."""
    rows, atoms = rows.astype(np.float64), atoms.astype(np.float64)
    alpha = SFBDictionaryLearning().alpha
    options = {"algorithm": "lasso_cd", "alpha": alpha, "max_iter": 10_000}
    codes = sparse_encode(rows, atoms, **options)
    rest = rows - codes @ atoms
    return float(((rest**2).sum(axis=1) / 2 + alpha * np.abs(codes).sum(axis=1)).mean())


@cache
def _bar(name: str) -> float:
    """The worst objective of the peer's models."""
    train, test = _halves(name)
    values = []
    for seed in _SEEDS:
        model = MiniBatchDictionaryLearning(random_state=seed)
        values.append(_objective(test, model.fit(_dense(train.X)).components_))
    return max(values)
