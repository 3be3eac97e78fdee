"""What happens in a round: the paradigms of the paper (Algorithms 2 and 3)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from dask_ma.engine import RankContext
from dask_ma.kernels import gradient_sums, loss_slopes
from dask_ma.linear import LinearModel, Problem
from dask_ma.ma._aggregation import aggregate
from dask_ma.ma._params import FitParams
from dask_ma.ma._solver import LocalSGD

Timer = Callable[[], AbstractContextManager[None]]

_SAMPLE = 2  # what the random numbers are for; 0 and 1 are those of LocalSGD


class Paradigm(ABC):
    """A round of the fit, which takes all ranks from one common model to the next.

    Attributes
    ----------
    epochs : float
        How often a round goes over the rows.
    t : float
        Place in the schedule of the learning rate.
    """

    epochs: float
    t: float

    @abstractmethod
    def round(self, model: LinearModel, computing: Timer) -> tuple[LinearModel, int]:
        """Make a round; a collective call.

        Parameters
        ----------
        model : LinearModel
            The common model; it is not changed.
        computing : callable
            Context in which the work that is not communication is done.

        Returns
        -------
        model : LinearModel
            The next common model, the same on all ranks.
        n_rows : int
            Rows that this rank has gone over.
        """

    @abstractmethod
    def set_step_size(self, eta: float) -> None:
        """Take `eta` as the constant step size from now on."""

    @abstractmethod
    def state(self) -> dict[str, float]:
        """What another rank with these rows needs to go on from here."""

    @abstractmethod
    def state_after(self, n_rounds: int, t: float) -> dict[str, float]:
        """State after so many rounds, in place of one that was lost."""

    @abstractmethod
    def go_on(self, state: dict[str, float]) -> None:
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
        self._group = context.group
        self._problem = problem
        self._aggregation = params.aggregation
        self._solver = solver

    @property
    def t(self) -> float:  # type: ignore[override]
        """Place in the schedule of the learning rate."""
        return self._solver.t

    def round(self, model: LinearModel, computing: Timer) -> tuple[LinearModel, int]:
        """Train on the rank's rows, then average, weighted by the ranks' weights."""
        with computing():
            own, n_rows = self._solver.run(model, self.epochs)
            share = self._problem.weight / self._problem.total_weight
            shares = [array * share for array in own]
        return LinearModel(*aggregate(self._group, shares, self._aggregation)), n_rows

    def set_step_size(self, eta: float) -> None:
        """Take `eta` as the constant step size from now on."""
        self._solver.set_step_size(eta)

    def state(self) -> dict[str, float]:
        """What another rank with these rows needs to go on from here."""
        return self._solver.state()

    def state_after(self, n_rounds: int, t: float) -> dict[str, float]:
        """State after so many rounds, in place of one that was lost."""
        n_rows = n_rounds * self._solver.rows_of_run(self.epochs)
        return {"t": t, "n_runs": n_rounds, "n_rows": n_rows}

    def go_on(self, state: dict[str, float]) -> None:
        """Take over the state of another."""
        self._solver.go_on(state)


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
    """

    def __init__(
        self, context: RankContext, problem: Problem, params: FitParams
    ) -> None:
        self.epochs = params.batch_fraction
        self.t = params.t
        self._group = context.group
        self._seed = context.seed
        self._problem = problem
        self._params = params
        self._n_runs = 0
        self._step_size = step_size_rule(params)

    def round(self, model: LinearModel, computing: Timer) -> tuple[LinearModel, int]:
        """Sum the gradients of a sample over all ranks, then update the model."""
        with computing():
            *own, n_rows = self._sample_gradient(model)
        coef, intercept, weight = aggregate(self._group, own, self._params.aggregation)
        with computing():
            if weight > 0:
                gradient = LinearModel(coef / weight, intercept / weight)
                model = update(model, gradient, self._step_size(self.t), self._params)
        self.t += 1
        self._n_runs += 1
        return model, n_rows

    def set_step_size(self, eta: float) -> None:
        """Take `eta` as the constant step size from now on."""
        self._step_size = lambda t: eta

    def state(self) -> dict[str, float]:
        """What another rank with these rows needs to go on from here."""
        return self.state_after(self._n_runs, self.t)

    def state_after(self, n_rounds: int, t: float) -> dict[str, float]:
        """State after so many rounds, in place of one that was lost."""
        return {"t": t, "n_runs": n_rounds}

    def go_on(self, state: dict[str, float]) -> None:
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
        for block in self._problem.shard.blocks:
            rows = self._draw(len(block.y), rng)
            sums = gradient_sums(
                block.X,
                block.y,
                block.sample_weight,
                *model,
                loss=self._params.loss,
                epsilon=self._params.epsilon,
                one_vs_rest=self._params.is_classifier,
                rows=rows,
            )
            coef += sums.coef
            intercept += sums.intercept
            weight += sums.weight
            n_rows += len(block.y) if rows is None else len(rows)
        return coef, intercept, np.array(weight), n_rows

    def _draw(self, n_rows: int, rng: np.random.Generator) -> np.ndarray | None:
        """Positions of the sampled rows of a block; None for all of them."""
        fraction = self._params.batch_fraction
        return None if fraction == 1 else np.flatnonzero(rng.random(n_rows) < fraction)

    def _sample_seed(self) -> np.random.SeedSequence:
        """Seed of a round's sample."""
        key = (*self._seed.spawn_key, _SAMPLE, self._n_runs)
        return np.random.SeedSequence(self._seed.entropy, spawn_key=key)


def step_size_rule(params: FitParams) -> Callable[[float], float]:
    """Step size of the global updates by their number, from 1.

    "optimal" is that of scikit-learn's SGD: ``1 / (alpha (t0 + t - 1))``, where `t0`
    makes the first step what a weight of typical size may move at most.
    """
    eta0, power, alpha = params.eta0, params.power_t, params.alpha
    if params.learning_rate == "invscaling":
        return lambda t: eta0 / t**power
    if params.learning_rate == "optimal":
        typical = np.sqrt(1 / np.sqrt(alpha))
        slope = loss_slopes(
            params.loss, np.array([1.0]), np.array([-typical]), params.epsilon
        )
        t0 = max(1.0, float(slope[0])) / (typical * alpha)
        return lambda t: 1 / (alpha * (t0 + t - 1))
    return lambda t: eta0


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
        coef = np.sign(coef) * np.maximum(np.abs(coef) - step_size * l1, 0)
    intercept = model.intercept
    if params.fit_intercept:
        intercept = intercept - step_size * gradient.intercept
    return LinearModel(
        coef.astype(model.coef.dtype, copy=False),
        intercept.astype(model.intercept.dtype, copy=False),
    )


def penalty_weights(params: FitParams) -> tuple[float, float]:
    """Weights of ``||w||^2 / 2`` and of ``||w||_1``."""
    l1_ratio = {"l1": 1.0, "elasticnet": params.l1_ratio}.get(params.penalty or "", 0.0)
    alpha = params.alpha if params.penalty else 0.0
    return alpha * (1 - l1_ratio), alpha * l1_ratio
