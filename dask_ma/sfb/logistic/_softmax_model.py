"""Logistic regression by proximal stochastic gradient descent."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import Group, allreduce
from dask_ma.data import Shard, is_on_disk
from dask_ma.kernels import (
    PartOfLogLoss,
    log_loss_sum,
    part_of_log_losses,
    softmax_slopes,
)
from dask_ma.sfb.logistic._params import SFBParams
from dask_ma.sfb.logistic._penalty import Penalty
from dask_ma.sfb.logistic._totals import Totals
from dask_ma.sfb.model._matrix import ParameterMatrix
from dask_ma.sfb.model._model import Batch, FactorModel
from dask_ma.supervised import Problem

_MOST_SAMPLED = 512  # rows whose Gram matrix is looked at
_SAMPLED_AT_A_TIME = 2**19  # elements of them
_SHORTER = 5.0


class LogisticModel(FactorModel):
    """What both solvers share.

    Parameters
    ----------
    problem : Problem
        Rows and classes.
    params : SFBParams
        Parameters of the fit.
    totals : Totals
        Sums over all ranks; dense rows are centred before they are looked at.
    """

    def __init__(self, problem: Problem, params: SFBParams, totals: Totals) -> None:
        self.fit_intercept = params.fit_intercept
        self._n_outputs = problem.n_problems
        self._dtype = problem.dtype
        self._n_rows = problem.total_rows
        self._totals = totals

    def initial_matrix(self, n_features: int) -> np.ndarray:
        # As a rank keeps it, so that nothing need be transposed.
        return np.zeros((n_features, self._n_outputs), dtype=self._dtype).T

    def loss(self, matrix: ParameterMatrix, batch: Batch) -> float:
        margins = matrix.product(self._totals.centred(batch.X))
        return log_loss_sum(margins, batch.y, batch.sample_weight)


class StepsModel(LogisticModel):
    """Logistic regression without passes: all is left to the whole objective.

    Parameters
    ----------
    problem, params, totals
        As in :class:`LogisticModel`.
    """

    def factors(self, matrix: ParameterMatrix, batch: Batch) -> tuple[np.ndarray, Any]:
        raise NotImplementedError("there are no passes")


class GradientModel(LogisticModel):
    """Logistic regression whose factors are slopes and rows (section 2.1).

    Parameters
    ----------
    problem, params, totals
        As in :class:`LogisticModel`.

    Attributes
    ----------
    share : float
        What steps are multiplied by, 1 at first; see :meth:`shorten`.
    """

    shares_ahead = True

    def __init__(self, problem: Problem, params: SFBParams, totals: Totals) -> None:
        super().__init__(problem, params, totals)
        penalty = Penalty.of(params.penalty, params.alpha, params.l1_ratio)
        self.prox = penalty.prox
        self._eta0 = params.eta0
        decays = params.learning_rate == "optimal" and penalty.l2 and not penalty.l1
        self._alpha = penalty.l2 if decays else 0.0
        is_constant = params.learning_rate in ("adaptive", "constant")
        self._power = 0.0 if is_constant or decays else params.power_t
        self._batch_size = params.settings.batch_size
        self._is_alone = params.settings.is_alone
        self._n_steps = 1
        self.shares_outputs = self._n_outputs > 1
        self._parts: deque[tuple[np.ndarray, PartOfLogLoss]] = deque(maxlen=2)
        self.share = 1.0

    def shorten(self) -> None:
        """Make the steps shorter from here on."""
        self.share /= _SHORTER

    def prepare(self, shard: Shard, group: Group) -> None:
        most = int(allreduce(group, np.array(shard.n_rows), "max"))
        self._n_steps = max(1, -(-most // self._batch_size))
        n_ranks = 1 if self._is_alone else group.size
        wanted = -(-shard.n_rows // self._n_steps) * n_ranks
        own = np.array(_largest_eigenvalue(shard, wanted, self._totals))
        largest = float(allreduce(group, own, "max"))
        if not np.isfinite(largest):
            raise ValueError(
                "the second moments of the features are beyond the range of float64; "
                "scale the features, for example with StandardScaler"
            )
        # The intercept is a feature whose eigenvalue is 1; it gets steps of its own.
        self.intercept_scale = largest / 2 if largest > 0 else 1.0
        if self._eta0 == "auto":
            # The second derivative of the loss is at most 1/4 for two classes. For more
            # it is at most 1/2, but 1/n_classes at the start, and seldom above 1/3.
            curvature = largest / (4 if self._n_outputs == 1 else 3)
            self._eta0 = 2 / curvature if curvature > 0 else 1.0

    @property
    def eta0(self) -> float:
        """Length of the first step, once :meth:`prepare` has been called."""
        return float(self._eta0)

    def factors(self, matrix: ParameterMatrix, batch: Batch) -> tuple[np.ndarray, Any]:
        X = self._totals.centred_batch(batch)
        margins = matrix.product(X)
        if not np.isfinite(margins).all():
            raise OverflowError("the model is not finite")
        return softmax_slopes(margins, batch.y, batch.sample_weight), X

    def share_rows(self, batch: Batch) -> Any:
        return self._totals.centred(batch.X)

    def share_sums(self, values: np.ndarray) -> np.ndarray:
        if not np.isfinite(values).all():
            raise OverflowError("the model is not finite")
        part = PartOfLogLoss(values)
        self._parts.append((values, part))
        return part.sums

    def share_slopes(
        self, values: np.ndarray, sums: list[np.ndarray], batch: Batch, outputs: slice
    ) -> np.ndarray:
        part = next((part for found, part in self._parts if found is values), None)
        if part is None:
            raise RuntimeError("slopes of other values than the last sums")
        u = part.slope(batch.y, outputs.start, sums)
        if batch.sample_weight is not None:
            u *= batch.sample_weight[:, np.newaxis]
        return u

    def share_loss(
        self, values: np.ndarray, sums: list[np.ndarray], batch: Batch, outputs: slice
    ) -> float:
        losses = part_of_log_losses(values, batch.y, outputs.start, sums)
        weight = batch.sample_weight
        return float(losses.sum() if weight is None else losses @ weight)

    def step_size(self, iteration: int) -> float:
        shorter = 1 + self.eta0 * self._alpha * iteration
        shorter *= (1 + iteration / self._n_steps) ** self._power
        return self.share * self.eta0 / shorter


def _largest_eigenvalue(shard: Shard, n_wanted: int, totals: Totals) -> float:
    """Largest eigenvalue of the second moments of the features in batches of rows."""
    n_sampled = min(shard.n_rows, _MOST_SAMPLED)
    if not n_sampled:
        return 0.0
    gram = _gram_of(shard, n_sampled, totals)
    if not np.isfinite(gram).all():
        return np.inf
    # A small batch has a larger one than all rows; it decides which steps are stable.
    gram, n_batches = gram.astype(np.float64), max(1, n_sampled // n_wanted)
    # One batch alone may have none but short rows.
    batches = [gram[i::n_batches, i::n_batches] for i in range(n_batches)]
    return max(float(np.linalg.eigvalsh(b)[-1]) / len(b) for b in batches)


def _gram_of(shard: Shard, n_sampled: int, totals: Totals) -> np.ndarray:
    """Products with each other of some weighted centred rows of all of the shard."""
    # Rows of one class may lie together.
    picked = np.linspace(0, shard.n_rows - 1, n_sampled).astype(np.int64)
    parts, first = [], 0
    for block in shard.read():
        inside = picked[(picked >= first) & (picked < first + len(block.y))] - first
        first += len(block.y)
        if not len(inside):
            continue
        root = None
        if block.sample_weight is not None:
            root = np.sqrt(block.sample_weight[inside])[:, np.newaxis]
        # Of rows in memory no copy is made as a whole.
        is_there = not (sparse.issparse(block.X) or is_on_disk(block.X))
        X = block.X if is_there else block.X[inside]
        parts.append((X, inside if is_there else slice(None), root))
    if sparse.issparse(parts[0][0]):
        rows = sparse.vstack(
            [X if w is None else X.multiply(w).tocsr() for X, _, w in parts]
        )
        return np.asarray((rows @ rows.T).toarray())
    gram, size = (
        np.zeros((n_sampled, n_sampled)),
        max(1, _SAMPLED_AT_A_TIME // n_sampled),
    )
    for start in range(0, shard.n_features, size):
        features = slice(start, start + size)
        pieces = [X[inside, features] for X, inside, _ in parts]
        if totals.centre is not None:
            pieces = [X - totals.centre[features] for X in pieces]
        rows = np.vstack(
            [
                X if w is None else X * w
                for X, (*_, w) in zip(pieces, parts, strict=True)
            ]
        )
        gram += rows @ rows.T
    return gram
