"""Models of the objective with an L1 penalty, by some of its second derivatives.

A model is found at a point, on rank 0. Where it is least, a step leads, which decides
what coefficients are zero. Among points of the same signs its inverse then is about
that of all second derivatives, for conjugate gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from dask_ma.kernels import block_point
from dask_ma.sfb.logistic._face import Face
from dask_ma.sfb.logistic._objective import Objective
from dask_ma.sfb.logistic._penalty import Penalty
from dask_ma.sfb.logistic._totals import Totals
from dask_ma.sfb.model._matrix import ParameterMatrix

# Second derivatives within outputs, at most, and rows for each feature that they are
# found from.
_MOST_IN_BLOCKS, _ROWS_PER_FEATURE = 2**25, 10
# What these are multiplied by: outputs that change against each other have up to twice
# as much, but most have less.
_COUPLING = 1.5
# Products that conjugate gradients take with them, at least and at most.
_PRODUCTS = 5, 60
# What those by single variables are multiplied by, at least and at most: features that
# are in the same rows add up. Less is tried after a whole step.
_LEAST_FACTOR, _MOST_FACTOR, _EASED = 1.0, 1e4, 0.7
# Products that conjugate gradients take with these, to begin with, at least and at
# most, and the share of a step that says that they were too many.
_FIRST_PRODUCTS, _FEWEST_PRODUCTS, _MOST_PRODUCTS, _SHORT = 4, 2, 60, 0.5
_JITTER = 1e-6  # of the largest second derivative


class LocalModel(ABC):
    """Second derivatives by which steps are found, on rank 0.

    Parameters
    ----------
    objective : Objective
        The objective of all ranks.
    shape : tuple of int
        Outputs and features.
    scales : ndarray of shape (n_variables,)
        Units of the variables, feature by feature.
    """

    def __init__(
        self, objective: Objective, shape: tuple[int, int], scales: np.ndarray
    ) -> None:
        self._objective = objective
        self._n_outputs, self._n_features = shape
        self._scales = scales
        self._found: Any = None

    @property
    @abstractmethod
    def most_products(self) -> int:
        """Most products with all second derivatives, for a step among signs."""

    @abstractmethod
    def find(self, matrix: ParameterMatrix) -> None:
        """Find them at a point; a collective call."""

    def forget(self) -> None:
        """Take no memory between steps."""
        self._found = None

    @abstractmethod
    def target(
        self, point: np.ndarray, gradient: np.ndarray, l1: np.ndarray, l2: np.ndarray
    ) -> np.ndarray:
        """Where the model is least, with the penalties of these weights."""

    @abstractmethod
    def inverse(self, face: Face) -> Callable[[np.ndarray], np.ndarray]:
        """Inverse of the second derivatives among points of some signs, nearly."""

    def note_step(self, share: float) -> None:
        """Take note of the share of the way to the target that was made."""

    def note_step_on_face(self, share: float) -> None:
        """Take note of the share that was made of a step among points of signs."""

    def state_dict(self) -> dict[str, np.ndarray]:
        """What it has learnt of steps."""
        return {}

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        """Know what another one has learnt."""


class BlockModel(LocalModel):
    """Those within each output, by all pairs of features, where rows are dense."""

    @property
    def most_products(self) -> int:
        """Most products, so that they take no longer than what comes before them."""
        most = self._n_wanted * self._n_features // max(1, self._objective.n_rows)
        return int(np.clip(most, *_PRODUCTS))

    def find(self, matrix: ParameterMatrix) -> None:
        """Find them at a point; a collective call."""
        stride = max(1, self._objective.n_rows // self._n_wanted)
        blocks = self._objective.moments_of_outputs(matrix, stride)
        if blocks is not None:
            scales = self._scales[:: self._n_outputs]
            blocks *= blocks.dtype.type(_COUPLING if self._n_outputs > 1 else 1)
            blocks /= scales[:, np.newaxis, np.newaxis].astype(blocks.dtype)
            blocks /= scales.astype(blocks.dtype)
        self._found = blocks

    def target(
        self, point: np.ndarray, gradient: np.ndarray, l1: np.ndarray, l2: np.ndarray
    ) -> np.ndarray:
        """Where the model is least, with the penalties of these weights."""
        n_outputs = self._n_outputs
        found = block_point(
            self._found,
            gradient.reshape(-1, n_outputs),
            point.reshape(-1, n_outputs),
            l1[::n_outputs],
            l2[::n_outputs],
            has_shifts=n_outputs > 1,
        )
        return found.ravel()

    def inverse(self, face: Face) -> Callable[[np.ndarray], np.ndarray]:
        """Inverse of the second derivatives among points of some signs, nearly."""
        return face.inverse(self._found)

    @property
    def _n_wanted(self) -> int:
        """Rows that second derivatives are found from, of all."""
        return max(10**4, _ROWS_PER_FEATURE * self._n_features)


class DiagonalModel(LocalModel):
    """Those by single variables, where rows are sparse and features seldom alike.

    Far from the minimum, most signs of a point are not those of the minimum, and the
    way to what is least among them is soon too long: few products are enough there.
    """

    def __init__(
        self, objective: Objective, shape: tuple[int, int], scales: np.ndarray
    ) -> None:
        super().__init__(objective, shape, scales)
        self._factor, self._n_products = _LEAST_FACTOR, _FIRST_PRODUCTS

    @property
    def most_products(self) -> int:
        """As many as have led somewhere so far."""
        return self._n_products

    def find(self, matrix: ParameterMatrix) -> None:
        """Find them at a point; a collective call."""
        found = self._objective.diagonal(matrix)
        if found is not None:
            found /= self._scales**2
            found += _JITTER * (float(found.max(initial=0.0)) or 1.0)
        self._found = found

    def target(
        self, point: np.ndarray, gradient: np.ndarray, l1: np.ndarray, l2: np.ndarray
    ) -> np.ndarray:
        """Where the model is least, with the penalties of these weights."""
        curvature = self._factor * self._found
        target = curvature * point
        target -= gradient
        target -= np.clip(target, -l1, l1)
        target /= curvature + l2
        return np.asarray(target)

    def inverse(self, face: Face) -> Callable[[np.ndarray], np.ndarray]:
        """Inverse of the second derivatives among points of some signs, nearly."""
        return face.inverse_of_diagonal(self._found)

    def note_step(self, share: float) -> None:
        """Take note of the share of the way to the target that was made."""
        factor = self._factor * (_EASED if share == 1 else 1 / share)
        self._factor = float(np.clip(factor, _LEAST_FACTOR, _MOST_FACTOR))

    def note_step_on_face(self, share: float) -> None:
        """Take note of the share that was made of a step among points of signs."""
        if share == 1:
            self._n_products = min(_MOST_PRODUCTS, 2 * self._n_products)
        elif share < _SHORT:
            self._n_products = max(_FEWEST_PRODUCTS, self._n_products // 2)

    def state_dict(self) -> dict[str, np.ndarray]:
        """What it has learnt of steps."""
        return {"learnt": np.array([self._factor, self._n_products])}

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        """Know what another one has learnt."""
        if "learnt" in kept:
            self._factor, n_products = (float(one) for one in kept["learnt"])
            self._n_products = int(n_products)


def has_blocks(penalty: Penalty, totals: Totals, shape: tuple[int, int]) -> bool:
    """Whether second derivatives within outputs lead steps on many coefficients."""
    n_outputs, n_features = shape
    is_small = n_outputs * n_features**2 <= _MOST_IN_BLOCKS
    return penalty.l1 > 0 and not totals.is_sparse and is_small


def make_model(
    objective: Objective,
    penalty: Penalty,
    totals: Totals,
    shape: tuple[int, int],
    scales: np.ndarray,
    *,
    has_room: bool,
) -> LocalModel | None:
    """The model that leads steps on many coefficients, if one does.

    Parameters
    ----------
    objective, shape, scales
        As in :class:`LocalModel`.
    penalty : Penalty
    totals : Totals
        Sums over the rows of all ranks.
    has_room : bool
        Whether there is memory for second derivatives within outputs.

    Returns
    -------
    model : LocalModel or None
        None without an L1 penalty, and where rows are dense and features too many.
    """
    place = objective, shape, scales
    if penalty.l1 > 0 and totals.is_sparse:
        return DiagonalModel(*place)
    if has_room and has_blocks(penalty, totals, shape):
        return BlockModel(*place)
    return None
