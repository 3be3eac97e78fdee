"""Rounds by the paradigms of the paper (Algorithms 2 and 3), and their mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from dask_ma.engine import RankContext
from dask_ma.kernels import gradient_sums
from dask_ma.linear import LinearModel
from dask_ma.ma._paradigm import Gradients, aggregate
from dask_ma.ma.sgd._params import FitParams, penalty_weights
from dask_ma.ma.sgd._solver import LocalSGD, soft_threshold
from dask_ma.ma.sgd._steps import Steps, steps_of
from dask_ma.supervised import Problem

Timer = Callable[[], AbstractContextManager[None]]

_ROUNDING = 1e-9  # of the sum of the local epochs
_SAMPLE = 2  # what the random numbers are for; 0 and 1 are those of LocalSGD
_ROUNDED_ROWS = 1e-6


class RunningMean:
    """Mean of the merged models with polynomially growing weights.

    The models of late rounds are better, so the weight of round `t` of the mean grows
    like ``t**3`` (polynomial-decay averaging, O. Shamir and T. Zhang, "Stochastic
    gradient descent for non-smooth optimization", ICML 2013, section 4).

    Parameters
    ----------
    average : bool or int
        False: no mean, the last model counts. Otherwise the mean begins with the round
        in which the ranks together have seen this many rows.
    total_rows : int
        Rows of all ranks.
    """

    _DEGREE = 3

    def __init__(self, average: bool | int, total_rows: int) -> None:
        self._start = float(average) if average else np.inf
        self._total_rows = total_rows
        self._rows = 0.0
        self._rounds = 0
        self._mean: LinearModel | None = None

    @property
    def counts(self) -> tuple[float, float]:
        """Rows that the ranks have seen, and rounds in the mean."""
        return self._rows, float(self._rounds)

    def state_dict(self) -> dict[str, Any]:
        """What another mean needs to go on from here."""
        mean = self._mean
        return {
            "coef": None if mean is None else mean.coef,
            "intercept": None if mean is None else mean.intercept,
            "counts": np.array(self.counts),
        }

    def load_state_dict(
        self, coef: np.ndarray | None, intercept: np.ndarray | None, counts: np.ndarray
    ) -> None:
        """Take over the state of another mean."""
        self._rows, self._rounds = float(counts[0]), int(counts[1])
        if self._rounds and coef is not None and intercept is not None:
            self._mean = LinearModel(coef, intercept)

    def current(self, model: LinearModel) -> LinearModel:
        """The mean so far, `model` before it begins."""
        return model if self._mean is None else self._mean

    def update(self, model: LinearModel, epochs: float) -> LinearModel:
        """Take the model of a round; return the mean so far, or the model itself."""
        self._rows += epochs * self._total_rows
        if self._rows < self._start - _ROUNDED_ROWS:
            return model
        self._rounds += 1
        if self._mean is None:
            self._mean = model
        share = (self._DEGREE + 1) / (self._rounds + self._DEGREE)
        self._mean = LinearModel(
            *(a + (b - a) * share for a, b in zip(self._mean, model, strict=True))
        )
        return self._mean


class Due(NamedTuple):
    """Penalty that is still due at the common model.

    Attributes
    ----------
    threshold : float
        How far coefficients have yet to move towards 0.
    epochs : float
        Passes that it comes from.
    """

    threshold: float = 0.0
    epochs: float = 0.0


class Start(NamedTuple):
    """Where all ranks were at one place in the schedule of the learning rate.

    Attributes
    ----------
    round : int
        Rounds before.
    t : float
        The place.
    n_ranks : int
        How many ranks have gone on from there.
    """

    round: int
    t: float
    n_ranks: int


class Paradigm(ABC):
    """A round of the fit, which takes all ranks from one common model to the next.

    Attributes
    ----------
    epochs : float
        How often a round goes over the rows.
    t : float
        Place in the schedule of the learning rate.
    due : Due
        The L1 penalty of steps since the last soft threshold; the same on all ranks.
    """

    epochs: float
    t: float
    due: Due

    @abstractmethod
    def round(
        self, model: LinearModel, computing: Timer, *, is_last: bool
    ) -> tuple[LinearModel, int]:
        """Make a round; a collective call.

        Parameters
        ----------
        model : LinearModel
            The common model; it is not changed.
        computing : callable
            Context in which the work that is not communication is done.
        is_last : bool
            Whether no other round can follow.

        Returns
        -------
        model : LinearModel
            The next common model, the same on all ranks.
        n_rows : int
            Rows that this rank has gone over.
        """

    @abstractmethod
    def set_steps(self, steps: Steps) -> None:
        """Make these steps from now on."""

    @abstractmethod
    def state_dict(self) -> dict[str, float]:
        """What another rank with these rows needs to go on from here."""

    @abstractmethod
    def state_after(self, n_rounds: int, start: Start) -> dict[str, float]:
        """State after so many rounds, in place of one that was lost."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take over the state of another."""


class SendModel(Paradigm):
    """Every rank trains a model of its own; the models are averaged (Algorithm 3).

    Parameters
    ----------
    context : RankContext
        This rank.
    problem : Problem
        What is to be trained.
    params : FitParams
        Parameters of the fit.
    solver : LocalSGD
        What trains the rank's own model.
    epochs : float
        How often it goes over the rank's rows before the models are averaged.
    """

    def __init__(
        self,
        context: RankContext,
        problem: Problem,
        params: FitParams,
        solver: LocalSGD,
        epochs: float,
    ) -> None:
        self.epochs = epochs
        self.due = Due()
        self._group = context.group
        self._problem = problem
        self._aggregation = params.paradigm.aggregation
        self._has_l1 = penalty_weights(params)[1] > 0
        self._solver = solver

    @property
    def t(self) -> float:  # type: ignore[override]
        """Place in the schedule of the learning rate."""
        return self._solver.t

    def round(
        self, model: LinearModel, computing: Timer, *, is_last: bool
    ) -> tuple[LinearModel, int]:
        """Train on the rank's rows, then average, weighted by the ranks' weights."""
        with computing():
            own, n_rows, threshold = self._solver.run(model, self.epochs)
            # The L1 penalty of a pass, or of a longer round, is due at the mean: only
            # there are zeros that all ranks agree on.
            share = self._problem.weight / self._problem.total_weight
            merged = [*own, np.array(threshold)] if self._has_l1 else list(own)
            if self._group.size > 1:
                merged = [array * share for array in merged]
        if self._group.size > 1:
            merged = aggregate(self._group, merged, self._aggregation)
        if self._has_l1:
            threshold = self.due.threshold + float(merged.pop())
            self.due = Due(threshold, self.due.epochs + self.epochs)
            if is_last or self.due.epochs >= 1 - _ROUNDING:
                with computing():
                    merged[0] = np.require(merged[0], requirements="W")
                    soft_threshold(merged[0], self.due.threshold)
                self.due = Due()
        return LinearModel(*merged), n_rows

    def set_steps(self, steps: Steps) -> None:
        """Make these steps from now on."""
        self._solver.set_steps(steps)

    def state_dict(self) -> dict[str, float]:
        """What another rank with these rows needs to go on from here."""
        return self._solver.state_dict()

    def state_after(self, n_rounds: int, start: Start) -> dict[str, float]:
        """State after so many rounds, in place of one that was lost."""
        n_rows = self._solver.rows_of_run(self.epochs)
        # By this rank's rows: others may have more, which makes their steps shorter.
        t = self._solver.t_after(start.t, n_rounds - start.round, n_rows)
        return {"t": t, "n_runs": n_rounds, "n_rows": n_rounds * n_rows}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take over the state of another."""
        self._solver.load_state_dict(state)


class SendGradient(Paradigm):
    """Gradients at the common model are added up for one update (Algorithm 2).

    As in Spark's MLlib, each row is part of a round's sample with probability
    `batch_fraction`, whatever becomes of the others, and the sum of the gradients is
    divided by what the sample weighs.

    Parameters
    ----------
    context : RankContext
        This rank.
    problem : Problem
        What is to be trained.
    params : FitParams
        Parameters of the fit.
    gradients : Gradients
        Its paradigm.
    """

    def __init__(
        self,
        context: RankContext,
        problem: Problem,
        params: FitParams,
        gradients: Gradients,
    ) -> None:
        self.epochs = gradients.batch_fraction
        self._gradients = gradients
        self.due = Due()  # a proximal step ends each round
        self.t = params.t
        self._group = context.group
        self._seed = context.seed
        self._problem = problem
        self._params = params
        self._n_runs = 0
        self._step_size = steps_of(params).at

    def round(
        self, model: LinearModel, computing: Timer, *, is_last: bool
    ) -> tuple[LinearModel, int]:
        """Sum the gradients of a sample over all ranks, then update the model."""
        with computing():
            *own, n_rows = self._sample_gradient(model)
        coef, intercept, weight = aggregate(
            self._group, own, self._gradients.aggregation
        )
        with computing():
            if weight > 0:
                gradient = LinearModel(coef / weight, intercept / weight)
                model = update(model, gradient, self._step_size(self.t), self._params)
        self.t += 1
        self._n_runs += 1
        return model, n_rows

    def set_steps(self, steps: Steps) -> None:
        """Make these steps from now on."""
        self._step_size = steps.at

    def state_dict(self) -> dict[str, float]:
        """What another rank with these rows needs to go on from here."""
        return {"t": self.t, "n_runs": self._n_runs}

    def state_after(self, n_rounds: int, start: Start) -> dict[str, float]:
        """State after so many rounds, in place of one that was lost."""
        return {"t": start.t + n_rounds - start.round, "n_runs": n_rounds}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Take over the state of another."""
        self.t = state["t"]
        self._n_runs = int(state["n_runs"])

    def _sample_gradient(
        self, model: LinearModel
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Sums of the gradients and of the weights of a sample, and its rows."""
        coef, intercept = np.zeros(model.coef.shape), np.zeros(model.intercept.shape)
        weight, n_rows = 0.0, 0
        rng = np.random.default_rng(self._sample_seed())
        for block in self._problem.shard.read():
            rows = self._draw(len(block.y), rng)
            sums = gradient_sums(
                block.X,
                block.y,
                block.sample_weight,
                *model,
                loss=self._params.loss,
                epsilon=self._params.epsilon,
                one_vs_rest=self._params.is_classifier,
                positive_weight=self._problem.positive_weight,
                rows=rows,
            )
            coef += sums.coef
            intercept += sums.intercept
            weight += sums.weight
            n_rows += len(block.y) if rows is None else len(rows)
        return coef, intercept, np.array(weight), n_rows

    def _draw(self, n_rows: int, rng: np.random.Generator) -> np.ndarray | None:
        """Positions of the sampled rows of a block; None for all of them."""
        fraction = self._gradients.batch_fraction
        return None if fraction == 1 else np.flatnonzero(rng.random(n_rows) < fraction)

    def _sample_seed(self) -> np.random.SeedSequence:
        """Seed of a round's sample."""
        key = (*self._seed.spawn_key, _SAMPLE, self._n_runs)
        return np.random.SeedSequence(self._seed.entropy, spawn_key=key)


def update(
    model: LinearModel, gradient: LinearModel, step_size: float, params: FitParams
) -> LinearModel:
    """A step against the gradient of the loss and of the penalty.

    Parameters
    ----------
    model, gradient : LinearModel
        The common model and the mean gradient of the loss.
    step_size : float
        Length of the step.
    params : FitParams
        Penalty and dtype.

    Returns
    -------
    model : LinearModel
        In the dtype of the old one. L2 is a part of the gradient; L1 is a proximal step
        after it, which puts small coefficients to exactly 0.
    """
    l2, l1 = penalty_weights(params)
    coef = model.coef - step_size * (gradient.coef + l2 * model.coef)
    if l1:
        soft_threshold(coef, step_size * l1)
    intercept = model.intercept
    if params.fit_intercept:
        intercept = intercept - step_size * gradient.intercept
    return LinearModel(
        coef.astype(model.coef.dtype, copy=False),
        intercept.astype(model.intercept.dtype, copy=False),
    )
