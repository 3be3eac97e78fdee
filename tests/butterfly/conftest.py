"""A slow reference that shares no code with the package."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import binom

SLOPES = {
    "log_loss": lambda y, p: -y / (1 + math.exp(y * p)),
    "hinge": lambda y, p: -y if y * p <= 1 else 0.0,
    "squared_hinge": lambda y, p: -2 * y * max(0.0, 1 - y * p),
    "modified_huber": lambda y, p: -2 * y * min(2.0, max(0.0, 1 - y * p)),
    "squared_error": lambda y, p: p - y,
    "huber": lambda y, p: min(0.1, max(-0.1, p - y)),
    "epsilon_insensitive": lambda y, p: float(np.sign(p - y)) * (abs(p - y) > 0.1),
    "squared_epsilon_insensitive": lambda y, p: (
        2 * float(np.sign(p - y)) * max(0.0, abs(p - y) - 0.1)
    ),
}
LOSSES = {
    "log_loss": lambda y, p: math.log1p(math.exp(-y * p)),
    "squared_error": lambda y, p: (p - y) ** 2 / 2,
}


class Simulation:
    """Algorithm 2 of the paper for all ranks in turn, row by row, without shuffling.

    `shards` holds X and y of each rank, and weights whose mean over all rows is 1;
    `targets` turns a label into -1 or 1 for each problem. A `class_weight` is for more
    than two classes: it multiplies the weights of a class in its own problem.
    """

    def __init__(self, shards, targets, **params):
        self.shards = shards
        self.targets = targets
        self.params = params
        self.size = len(shards)
        self.n_rows = sum(len(y) for _, y, _ in shards)
        self.most = max(len(y) for _, y, _ in shards)
        self.batch = min(params["batch_size"], self.most)
        self.n_steps = math.ceil(self.most / self.batch)
        n_features, n_problems = shards[0][0].shape[1], len(targets(shards[0][1][0]))
        self.coef = [np.zeros((n_problems, n_features)) for _ in shards]
        self.intercept = [np.zeros(n_problems) for _ in shards]
        self.t = 1
        self.n_exchanges = 0
        depth = math.ceil(math.log2(self.size)) if self.size > 1 else 1
        least = self.n_mixings() * depth
        enough = [
            period
            for period in range(1, self.n_steps + 1)
            if math.ceil(self.n_steps / period) >= least
        ]
        # Not one after which the last exchange follows another one at once.
        exact = math.ceil(self.n_steps / least)
        usual = exact if exact in enough else max(1, self.n_steps // least)
        self.period = params.get("mixing_period", usual)
        self.eta = params["eta0"]
        self.averaged = []  # mean models after the steps that the mean is made of

    def n_mixings(self) -> int:
        """How often in a pass all ranks hear of each other."""
        labels = [list(y) for _, y, _ in self.shards if len(y)]
        every = [label for some in labels for label in some]
        classes = set(every)
        if isinstance(every[0], float):
            return 4
        for some in labels:
            distance = 0.0
            for label in classes:
                own, all_ = some.count(label), every.count(label)
                distance += abs(own / len(some) - all_ / len(every)) / 2
            if distance > max(0.2, 1.5 * math.sqrt(len(classes) / len(some))):
                return 4
        return 1

    def run(self, n_passes: int) -> tuple[np.ndarray, np.ndarray]:
        """Make some passes, and the next steps shorter where one has failed."""
        model, has_gained = self._model(), False
        self.objectives = []
        for _ in range(n_passes):
            self._pass()
            if self.params.get("learning_rate", "invscaling") == "invscaling":
                model = self._model()
                continue
            best = self._objective(model)
            if self._objective(self._model()) < best:
                model, has_gained = self._model(), True
                self.eta *= 1.2
            else:
                self.eta *= 0.5 if has_gained else 0.125
                self.coef = [model[0].copy() for _ in self.shards]
                self.intercept = [model[1].copy() for _ in self.shards]
                self.averaged = []
            self.objectives.append(self._objective(model))
        return model

    def _pass(self):
        for step in range(self.n_steps):
            for rank in range(self.size):
                self._update(rank, step)
            if (step + 1) % self.period == 0 or step == self.n_steps - 1:
                self._mix()
                self.n_exchanges += 1
            seen = self.t * self.n_rows / self.n_steps
            if self.params.get("average") and seen >= self.params["average"]:
                self.averaged.append(self._mean_over_ranks())
            self.t += 1

    def _mean_over_ranks(self):
        shares = np.ones(self.size)
        if self.params["mixing"] == "none":
            shares = [sum(s) for _, _, s in self.shards]
        return (
            np.average(self.coef, axis=0, weights=shares),
            np.average(self.intercept, axis=0, weights=shares),
        )

    def _model(self):
        if not self.averaged:
            return self._mean_over_ranks()
        shares = binom(np.arange(len(self.averaged)) + 8, 8)  # like (k + 1)^8
        return tuple(
            np.average(values, axis=0, weights=shares)
            for values in zip(*self.averaged, strict=True)
        )

    def _objective(self, model):
        coef, intercept = model
        loss = sum(
            weight
            * self._factor(label, target)
            * LOSSES[self.params["loss"]](target, x @ coef[k] + intercept[k])
            for X, y, s in self.shards
            for x, label, weight in zip(X, y, s, strict=True)
            for k, target in enumerate(self.targets(label))
        )
        penalty = self.params["alpha"] * (coef**2).sum() / 2
        return (loss / self.n_rows + penalty) / len(coef)

    def _update(self, rank, step):
        X, y, s = self.shards[rank]
        first, last = (len(y) * i // self.n_steps for i in (step, step + 1))
        coef_gradient = np.zeros_like(self.coef[rank])
        intercept_gradient = np.zeros_like(self.intercept[rank])
        for x, label, weight in zip(
            X[first:last], y[first:last], s[first:last], strict=True
        ):
            for k, target in enumerate(self.targets(label)):
                p = x @ self.coef[rank][k] + self.intercept[rank][k]
                slope = weight * self._factor(label, target) * self._slope(target, p)
                coef_gradient[k] += slope * x
                intercept_gradient[k] += slope
        if self.params["mixing"] == "none":
            scale = self.n_steps / max(1e-300, sum(s))
        else:
            scale = self.n_steps * self.size / self.n_rows
        step_size = self.eta / math.sqrt(self.t)
        H, alpha = self._preconditioner(), self.params["alpha"]
        coef = self.coef[rank] - step_size * scale * H * coef_gradient
        coef /= 1 + step_size * alpha * H
        if self.params["loss"] == "hinge" and alpha:
            for k, w in enumerate(coef):
                coef[k] = w * min(1, 1 / max(1e-300, math.sqrt(alpha * (w @ w))))
        self.coef[rank] = coef
        if self.params["fit_intercept"]:
            self.intercept[rank] = (
                self.intercept[rank] - step_size * scale * intercept_gradient
            )

    def _factor(self, label, target):
        factors = self.params.get("class_weight", {})
        return factors.get(label, 1) if target > 0 else 1

    def _slope(self, y, p):
        return SLOPES[self.params["loss"]](y, p)

    def _preconditioner(self):
        kind = self.params["preconditioner"]
        if kind is None:
            return 1.0
        X = np.vstack([X for X, _, _ in self.shards])
        s = np.concatenate([s for _, _, s in self.shards])
        count, square = s @ (X != 0), s @ X**2
        frequency = count / s.sum()
        if kind == "frequency":
            return 1 / frequency
        if kind == "bounded":
            frequency = np.maximum(frequency, 1 / self.batch)
        return count / (frequency * square)

    def _mix(self):
        for values in (self.coef, self.intercept):
            values[:] = [self._mixed(values, rank) for rank in range(self.size)]

    def _mixed(self, values, rank):
        depth = math.ceil(math.log2(self.size)) if self.size > 1 else 1
        step, mixing = self.n_exchanges, self.params["mixing"]
        is_due = mixing == "allreduce" or (
            mixing == "periodic" and (step + 1) % depth == 0
        )
        if is_due:
            return np.mean(values, axis=0)
        if mixing != "butterfly" or self.size == 1:
            return values[rank]
        distance = 2 ** (step % depth)
        partner = (rank - distance) % self.size
        if 2**depth == self.size:
            # Blocks of 2 * distance ranks, whose halves exchange.
            is_low = rank % (2 * distance) < distance
            partner = rank + distance if is_low else rank - distance
        return (values[rank] + values[partner]) / 2


@pytest.fixture(scope="session")
def simulation() -> Callable[..., Simulation]:
    """``simulation(X, y, n_ranks, sample_weight=None, **params)``."""

    def make(
        X: np.ndarray, y: np.ndarray, n_ranks: int, weight: Any = None, **params: Any
    ) -> Simulation:
        if y.dtype.kind == "f":
            positive = None
        else:
            classes = np.unique(y)
            positive = classes[1:] if len(classes) == 2 else classes
        s = np.ones(len(y)) if weight is None else weight * len(y) / weight.sum()
        bounds = [len(y) * rank // n_ranks for rank in range(n_ranks + 1)]
        shards = [
            (X[a:b], y[a:b], s[a:b])
            for a, b in zip(bounds[:-1], bounds[1:], strict=True)
        ]
        return Simulation(
            shards,
            lambda label: (
                [label]
                if positive is None
                else [1.0 if label == c else -1.0 for c in positive]
            ),
            **params,
        )

    return make
