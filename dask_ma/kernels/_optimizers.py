"""Optimisers on flat vectors, worked out block by block.

A vector that does not fit the processor's cache goes through memory once for a step,
not once for every operation of the formula, and no step needs a second vector of its
length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

# Values of a block. The parts of all vectors that a formula reads stay in the cache,
# and the cost of a call from Python is still small beside the work.
BLOCK = 2**15


def blocks(n_values: int) -> Iterator[slice]:
    """Parts of a vector, in order, of at most ``BLOCK`` values.

    Parameters
    ----------
    n_values : int
        Length of the vector.

    Yields
    ------
    part : slice
    """
    for start in range(0, n_values, BLOCK):
        yield slice(start, min(start + BLOCK, n_values))


def shift_towards(values: np.ndarray, anchor: np.ndarray, strength: float) -> None:
    """Move values a part of the way to an anchor, in place: x -= strength * (x - a).

    Parameters
    ----------
    values : ndarray of float32 or float64, shape (n_values,)
        Changed in place.
    anchor : ndarray of shape (n_values,)
        Where 1 as `strength` would take them.
    strength : float
        Not negative.
    """
    scratch = np.empty(min(BLOCK, len(values)), dtype=values.dtype)
    for part in blocks(len(values)):
        change = scratch[: part.stop - part.start]
        np.subtract(values[part], anchor[part], out=change)
        change *= float(strength)
        values[part] -= change


def add_distance(
    gradient: np.ndarray, values: np.ndarray, anchor: np.ndarray, strength: float
) -> None:
    """Add the gradient of ``strength / 2 * ||x - a||^2``, in place.

    Parameters
    ----------
    gradient : ndarray of float32 or float64, shape (n_values,)
        Changed in place.
    values, anchor : ndarray of shape (n_values,)
        `x` and `a`.
    strength : float
        Not negative.
    """
    scratch = np.empty(min(BLOCK, len(values)), dtype=gradient.dtype)
    for part in blocks(len(values)):
        change = scratch[: part.stop - part.start]
        np.subtract(values[part], anchor[part], out=change)
        change *= float(strength)
        gradient[part] += change


class Optimizer(ABC):
    """What turns gradients into steps, and may remember earlier ones."""

    @abstractmethod
    def step(
        self, values: np.ndarray, gradient: np.ndarray, learning_rate: float
    ) -> None:
        """Make a step, in place.

        Parameters
        ----------
        values : ndarray of shape (n_values,)
            Changed in place.
        gradient : ndarray of shape (n_values,)
            Read only.
        learning_rate : float
            Step size, above 0. It may differ from step to step.

        Raises
        ------
        ValueError
            If the vectors do not have the length that the optimiser is made for.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Copies of all that is remembered: arrays, and plain numbers."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` has given; it is copied.

        Raises
        ------
        ValueError
            If it is that of another kind of optimiser, or of another length.
        """


class BlockwiseOptimizer(Optimizer):
    """Works block by block, and remembers some vectors and the number of steps."""

    def __init__(
        self, n_values: int, dtype: Any, remembered: Sequence[str], n_scratch: int
    ) -> None:
        self._n_values = n_values
        self._n_steps = 0
        self._vectors = {name: np.zeros(n_values, dtype) for name in remembered}
        self._scratch = np.empty((n_scratch, min(BLOCK, n_values)), dtype)

    def step(
        self, values: np.ndarray, gradient: np.ndarray, learning_rate: float
    ) -> None:
        if not len(values) == len(gradient) == self._n_values:
            raise ValueError(
                f"the optimiser is made for {self._n_values} values, got "
                f"{len(values)} values and a gradient of {len(gradient)}"
            )
        self.advance(learning_rate)
        self.step_from(0, values, gradient)

    def advance(self, learning_rate: float) -> None:
        """Begin a step, whose parts are made next.

        Parameters
        ----------
        learning_rate : float
            Step size, above 0.
        """
        self._n_steps += 1
        self._prepare(float(learning_rate))

    def step_from(self, start: int, values: np.ndarray, gradient: np.ndarray) -> None:
        """Make the part of a step that concerns the last values, in place.

        Parameters
        ----------
        start : int
            The first of them.
        values, gradient : ndarray of shape (n_values - start,)
            The gradient is read only.
        """
        for part in blocks(len(values)):
            scratch = self._scratch[:, : part.stop - part.start]
            place = slice(start + part.start, start + part.stop)
            memories = [vector[place] for vector in self._vectors.values()]
            self.step_block(values[part], gradient[part], memories, scratch)

    @abstractmethod
    def _prepare(self, learning_rate: float) -> None:
        """Work out what all blocks share."""

    @abstractmethod
    def step_block(
        self,
        values: np.ndarray,
        gradient: np.ndarray,
        memories: list[np.ndarray],
        scratch: np.ndarray,
    ) -> None:
        """Make the part of a step that concerns some values, in place.

        Parameters
        ----------
        values, gradient : ndarray
            Of any values; the gradient is read only.
        memories : list of ndarray
            What is remembered of them, changed in place.
        scratch : ndarray of shape (n_scratch, ...)
            For each vector that it takes, an array like `values`.
        """

    def state_dict(self) -> dict[str, Any]:
        vectors = {name: vector.copy() for name, vector in self._vectors.items()}
        return {"n_steps": self._n_steps, **vectors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        expected = {"n_steps", *self._vectors}
        if set(state) != expected:
            raise ValueError(
                f"the state of {type(self).__name__} holds {sorted(expected)}, "
                f"got {sorted(state)}"
            )
        for name in self._vectors:
            if np.shape(state[name]) != (self._n_values,):
                raise ValueError(
                    f"{name} must have the shape {(self._n_values,)}, "
                    f"got {np.shape(state[name])}"
                )
        self._n_steps = int(state["n_steps"])
        for name, vector in self._vectors.items():
            vector[...] = state[name]


class SGD(BlockwiseOptimizer):
    """Gradient descent with momentum.

    ``v = momentum * v - learning_rate * g``, then ``x += v``, or with Nesterov's
    momentum ``x += momentum * v - learning_rate * g``.

    Parameters
    ----------
    n_values : int
        Length of the vectors.
    dtype : numpy.dtype
        Of the vectors, float32 or float64.
    momentum : float, default=0.9
        In [0, 1].
    nesterov : bool, default=True
        Whether the step looks ahead along the velocity.
    """

    def __init__(
        self, n_values: int, dtype: Any, momentum: float = 0.9, nesterov: bool = True
    ) -> None:
        super().__init__(n_values, dtype, ["velocity"], 2)
        self._momentum = float(momentum)
        self._nesterov = nesterov
        self._rate = 0.0

    def _prepare(self, learning_rate: float) -> None:
        self._rate = learning_rate

    def step_block(
        self,
        values: np.ndarray,
        gradient: np.ndarray,
        memories: list[np.ndarray],
        scratch: np.ndarray,
    ) -> None:
        velocity, (descent, ahead) = memories[0], scratch
        np.multiply(gradient, self._rate, out=descent)
        velocity *= self._momentum
        velocity -= descent
        if not self._nesterov:
            values += velocity
            return
        np.multiply(velocity, self._momentum, out=ahead)
        ahead -= descent
        values += ahead


class Adam(BlockwiseOptimizer):
    """Steps in units of the root mean square of the gradient.

    ``m = beta_1 * m + (1 - beta_1) * g`` and ``v = beta_2 * v + (1 - beta_2) * g^2``,
    then ``x -= rate * m / (sqrt(v) + epsilon)``, where in step `t` the rate is
    ``learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t)``.

    Parameters
    ----------
    n_values : int
        Length of the vectors.
    dtype : numpy.dtype
        Of the vectors, float32 or float64.
    beta_1, beta_2 : float, default=0.9 and 0.999
        How much of the moments stays from step to step, in [0, 1).
    epsilon : float, default=1e-8
        Above 0; it keeps steps small where the gradient has been about 0.

    Attributes
    ----------
    beta_1, beta_2, epsilon : float
    rate, unbiased : float
        Of the latest step, and by how much it differs from the learning rate.
    """

    def __init__(
        self,
        n_values: int,
        dtype: Any,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
    ) -> None:
        super().__init__(n_values, dtype, ["first_moment", "second_moment"], 1)
        self.beta_1 = float(beta_1)
        self.beta_2 = float(beta_2)
        self.epsilon = float(epsilon)
        self.rate, self.unbiased = 0.0, 1.0

    @property
    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Both moments, of shape (n_values,); they are the optimiser's own."""
        first, second = self._vectors.values()
        return first, second

    def _prepare(self, learning_rate: float) -> None:
        unbiased = np.sqrt(1 - self.beta_2**self._n_steps)
        unbiased /= 1 - self.beta_1**self._n_steps
        self.unbiased = float(unbiased)
        self.rate = learning_rate * self.unbiased

    def step_block(
        self,
        values: np.ndarray,
        gradient: np.ndarray,
        memories: list[np.ndarray],
        scratch: np.ndarray,
    ) -> None:
        (first, second), change = memories, scratch[0]
        np.multiply(gradient, 1 - self.beta_1, out=change)
        first *= self.beta_1
        first += change
        np.multiply(gradient, gradient, out=change)
        change *= 1 - self.beta_2
        second *= self.beta_2
        second += change
        np.sqrt(second, out=change)
        change += self.epsilon
        np.divide(first, change, out=change)
        change *= self.rate
        values -= change
