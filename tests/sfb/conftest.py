"""A small model, rows on ranks, and the slow loop that runs are set against."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import dask
import numpy as np
import pytest
from scipy import special
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import normalize

from dask_ma.comm import Group, LocalGroup
from dask_ma.data import Block, Shard
from dask_ma.engine import RankContext, RoundLog
from dask_ma.engine.recovery import _states
from dask_ma.sfb import FactorModel
from dask_ma.sfb._engine import BroadcastEngine
from dask_ma.sfb.exchange._settings import Exchange, RunSettings
from dask_ma.sfb.prox import NoPenalty
from dask_ma.supervised import pass_batches, pass_generator

N_ROWS, N_FEATURES, N_OUTPUTS = 23, 7, 3
SIZES = {
    1: [[20, 3]],
    2: [[9], [4, 10]],
    3: [[12], [3, 2], [6]],
    4: [[7], [6], [4, 1], [5]],
    5: [[8], [], [1], [3, 4], [7]],
}


class Rows(NamedTuple):
    """What the models learn from."""

    X: Any
    y: np.ndarray
    weight: np.ndarray


@pytest.fixture(scope="session")
def rows() -> Rows:
    """23 dense rows of 7 features, 0 at two places of five, and codes of 3 targets."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, N_FEATURES))
    X[rng.random(X.shape) < 0.4] = 0
    return Rows(X, rng.integers(0, 3, N_ROWS), rng.integers(1, 4, N_ROWS) / 2)


@pytest.fixture(scope="session")
def make_model() -> Callable[..., FactorModel]:
    """``make_model(prox=..., learning_rate=..., **replaced)``."""
    return _make_model


def _make_model(**replaced: Any) -> FactorModel:
    """Least squares; the class is defined here so that it is pickled by value."""
    table = np.array([[1.0, -1.0, 0.0], [0.0, 2.0, 1.0], [-1.0, 0.5, 3.0]])

    class LeastSquares(FactorModel):
        prox = NoPenalty()
        learning_rate = 0.3

        def initial_matrix(self, n_features):
            return 0.3 * np.cos(np.arange(3.0 * n_features)).reshape(3, n_features)

        def factors(self, matrix, batch):
            u = matrix.product(batch.X) - table[batch.y]
            if batch.sample_weight is not None:
                u *= batch.sample_weight[:, np.newaxis]
            return u, batch.X

        def loss(self, matrix, batch):
            return ((matrix.product(batch.X) - table[batch.y]) ** 2).sum() / 2

    for name, value in replaced.items():
        setattr(LeastSquares, name, value)
    return LeastSquares()


@pytest.fixture(scope="session")
def make_shards() -> Callable[..., list[Shard]]:
    """``make_shards(n_ranks, X, y, weight)``: unequal shards of consecutive rows."""
    return _make_shards


def _make_shards(n_ranks: int, X: Any, y: Any = None, weight: Any = None) -> list:
    shards, start = [], 0
    for sizes in SIZES[n_ranks]:
        blocks = []
        for size in sizes:
            rows = slice(start, start + size)
            parts = [None if a is None else a[rows] for a in (X, y, weight)]
            blocks.append(Block(*parts, len(blocks), start))
            start += size
        shards.append(Shard(blocks, X.shape[1], X.dtype))
    return shards


@pytest.fixture
def run_engines(run_ranks: Callable[..., Any]) -> Callable[..., list[BroadcastEngine]]:
    """``run_engines(model, shards, n_passes, per_node=None, seed=0, **settings)``."""

    def run(
        model: FactorModel,
        shards: list[Shard],
        n_passes: int = 2,
        *,
        per_node: int | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> list[BroadcastEngine]:
        own = {k: settings.pop(k) for k in ("batch_size", "shuffle") if k in settings}
        exchange = Exchange(**{"content": "factors", **settings})
        chosen = RunSettings(exchange=exchange, **{"batch_size": 3, **own})

        def agent(group: Group) -> BroadcastEngine:
            context = RankContext(group, seed)
            shard, log = shards[group.rank], RoundLog(context)
            engine = BroadcastEngine(context, model, shard, chosen, log)
            for _ in range(n_passes):
                engine.run_pass()
            return engine

        results: list[BroadcastEngine] = run_ranks(agent, len(shards), per_node)
        return results

    return run


class Eager:
    """The matrix of a model in the slow loop, as a model sees it."""

    def __init__(self, model: FactorModel, n_features: int) -> None:
        self.W = model.initial_matrix(n_features)
        self.b = np.zeros(len(self.W))

    def product(self, X: Any) -> np.ndarray:
        return np.asarray(X @ self.W.T) + self.b


@pytest.fixture(scope="session")
def slow_loop() -> Callable[..., Eager]:
    """``slow_loop(model, shards, n_passes=2, ...)``: one process, dense, eager."""

    def run(
        model: FactorModel,
        shards: list[Shard],
        n_passes: int = 2,
        *,
        batch_size: int = 3,
        shuffle: bool = True,
    ) -> Eager:
        contexts = [RankContext(group, 0) for group in LocalGroup.create(len(shards))]
        n_steps = -(-max(shard.n_rows for shard in shards) // batch_size)
        n_rows = sum(shard.n_rows for shard in shards)
        matrix, iteration = Eager(model, shards[0].n_features), 0
        for n_done in range(n_passes):
            rngs = [pass_generator(c, n_done) if shuffle else None for c in contexts]
            ranks = [
                pass_batches(shard, n_steps, rng)
                for shard, rng in zip(shards, rngs, strict=True)
            ]
            for batches in zip(*ranks, strict=True):
                pieces = [piece for batch in batches for piece in batch]
                pairs = [model.factors(matrix, piece) for piece in pieces]
                step = model.step_size(iteration)
                scale = step * n_steps / n_rows if model.averages else step
                update = sum(np.asarray((v.T @ u).T) for u, v in pairs)
                matrix.W = model.prox(matrix.W - scale * update, step)
                if model.fit_intercept:
                    total = sum(u.sum(axis=0) for u, _ in pairs)
                    matrix.b = matrix.b - scale * model.intercept_scale * total
                iteration += 1
        return matrix

    return run


# Logistic regression ------------------------------------------------------------------

Labelled = dict[int, tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="session")
def labelled() -> Labelled:
    """For 2, 3, 10 classes, 120 rows of length 1 with 8 features, and their labels."""
    found = {}
    for n_classes in (2, 3, 10):
        rng = np.random.default_rng(n_classes)
        y = np.minimum(rng.geometric(min(0.6, 2 / n_classes), 120) - 1, n_classes - 1)
        y[:n_classes] = np.arange(n_classes)
        X = rng.normal(size=(120, 8)) + rng.normal(size=(n_classes, 8))[y] + 0.3
        X[rng.random(X.shape) < 0.3] = 0
        found[n_classes] = normalize(X), y
    return found


@pytest.fixture(scope="session")
def value() -> Callable[..., float]:
    """``value(model, X, y, weight=None, alpha, penalty, l1_ratio)``, by formulas."""
    return _value


def _value(
    model: Any,
    X: Any,
    y: np.ndarray,
    weight: np.ndarray | None = None,
    *,
    alpha: float | None = None,
    penalty: str | None = "l2",
    l1_ratio: float = 0.5,
) -> float:
    coef = model.coef_.astype(np.float64)
    margins = np.asarray(X @ coef.T) + model.intercept_
    if margins.shape[1] == 1:
        margins = np.hstack([0 * margins, margins])
    own = margins[np.arange(len(y)), np.searchsorted(model.classes_, y)]
    losses = special.logsumexp(margins, axis=1) - own
    amounts = {
        None: 0.0,
        "l1": np.abs(coef).sum(),
        "l2": (coef**2).sum() / 2,
        "trace": np.linalg.norm(coef, "nuc"),
    }
    amounts["elasticnet"] = l1_ratio * amounts["l1"] + (1 - l1_ratio) * amounts["l2"]
    alpha = model.alpha if alpha is None else alpha
    return float(np.average(losses, weights=weight) + alpha * amounts[penalty])


@pytest.fixture(scope="session")
def best() -> Callable[..., float]:
    """``best(X, y, alpha, weight, penalty, l1_ratio, **params)`` of scikit-learn."""

    def find(
        X: Any,
        y: np.ndarray,
        alpha: float,
        weight: np.ndarray | None = None,
        *,
        penalty: str | None = "l2",
        l1_ratio: float = 0.5,
        **params: Any,
    ) -> float:
        total = len(y) if weight is None else weight.sum()
        C = 1 / (alpha * total) if alpha else np.inf
        model = LogisticRegression(C=C, tol=1e-10, max_iter=10**4, **params)
        if penalty in ("l1", "elasticnet"):
            l1_ratio = 1.0 if penalty == "l1" else l1_ratio
            model.set_params(l1_ratio=l1_ratio, solver="saga", tol=1e-7, random_state=0)
            # Versions before 1.8 take the kind of penalty apart from the ratio.
            if model.get_params()["penalty"] == "l2":
                model.set_params(penalty="elasticnet")
        model.fit(X, y, sample_weight=weight)
        of_penalty = {"penalty": penalty, "l1_ratio": l1_ratio}
        return _value(model, X, y, weight, alpha=alpha, **of_penalty)

    return find


@pytest.fixture
def regrouped(monkeypatch, inproc_client):
    """``regrouped(estimator, number, *rows)``: a fit whose ranks start again in order.

    They do after the round of that number, for which rank 0 is asked.
    """
    keep = RankContext.save_state

    def fit(estimator, number, *rows):
        times = []

        def asked(context, n_rounds, *args, **kwargs):
            if n_rounds == number and context.group.rank == 0 and not times:
                times.append(n_rounds)  # once, or a fit that begins anew has no end
                _states._regroup_wanted.add(context.group.run_id)
            keep(context, n_rounds, *args, **kwargs)

        monkeypatch.setattr(RankContext, "save_state", asked)
        with inproc_client.as_current(), dask.config.set({"dask-ma.elastic": True}):
            return estimator.fit(*rows)

    return fit


@pytest.fixture
def check_there_and_back():
    """See that a point in some units is the coefficients that it was made of."""

    def check(units, shape, has_intercept):
        rng = np.random.default_rng(5)
        values, intercept = rng.normal(size=shape), rng.normal(size=shape[1])
        point = units.point_of(values, intercept if has_intercept else None)
        before = point.copy()
        found = units.values_of(point)
        np.testing.assert_array_equal(point, before)
        np.testing.assert_allclose(found[0], values, atol=1e-10)
        expected = intercept if has_intercept else np.zeros(0)
        np.testing.assert_allclose(found[1], expected, atol=1e-10)

    return check


@pytest.fixture
def check_gradient():
    """Compare gradients in some units with differences of a loss and the penalty."""

    def check(units, shape, l2, tol=1e-6):
        rng = np.random.default_rng(7)
        slopes, curvature, values = rng.normal(size=(3, *shape))
        drift = rng.normal(size=shape[1])

        def objective(point):
            values, intercept = units.values_of(point)
            loss = (slopes * values + curvature * values**2).sum() + drift @ intercept
            return loss + l2 / 2 * (values**2).sum()

        point = units.point_of(values, np.ones(shape[1]))
        gradient = slopes + 2 * curvature * values
        found = units.gradient_of(gradient, drift, values) + units.l2 * point
        steps = 1e-5 * np.eye(len(point))
        expected = [(objective(point + s) - objective(point - s)) / 2e-5 for s in steps]
        np.testing.assert_allclose(found, expected, rtol=tol, atol=tol)

    return check
