"""The loss of the rows of a rank, with what duality gaps and Newton steps need."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dask_ma.kernels import Loss, softmax

Curvatures = Callable[[int], np.ndarray]


class WeightedLoss:
    """A loss over some rows, with weights that add up to 1 over the rows of all ranks.

    Parameters
    ----------
    of_row : Loss
        Loss of a row; it needs a curvature and a conjugate.
    y : ndarray of shape (n_rows,)
        Targets, or codes of classes.
    weight : ndarray of shape (n_rows,)
        Weights of the rows.

    Attributes
    ----------
    y : ndarray of shape (n_rows,)
        Targets as the loss takes them.
    n_outputs : int
        Number `K` of linear functions.
    smoothness : float
        Largest curvature of the loss of a row.
    is_quadratic : bool
        Whether it is half the squared error; then the caller centres margins and
        targets.
    """

    def __init__(self, of_row: Loss, y: np.ndarray, weight: np.ndarray) -> None:
        self.of_row = of_row
        self.y = of_row.targets(y)
        self.weight = weight
        self.n_outputs = of_row.n_outputs
        self.smoothness = of_row.smoothness
        self.is_quadratic = of_row.is_quadratic

    def value(self, margins: np.ndarray) -> float:
        """Weighted sum of the losses for margins of shape (n_rows, K)."""
        return float(self.weight @ self.of_row.value(self.y, self._shaped(margins)))

    def negative_slopes(self, margins: np.ndarray) -> np.ndarray:
        """Weighted negative derivatives by the margins, of shape (n_rows, K)."""
        slopes = self.of_row.slope(self.y, self._shaped(margins)).reshape(margins.shape)
        return np.asarray(slopes * -self.weight[:, np.newaxis])

    def dual(self, margins: np.ndarray, scale: float) -> float:
        """This rank's part of the dual objective.

        Its point are the negative slopes at some margins, of shape (n_rows, K), times
        `scale`, a number from 0 to 1.
        """
        slopes = self.of_row.slope(self.y, self._shaped(margins))
        slopes *= scale
        return -float(self.weight @ self.of_row.conjugate(self.y, slopes))

    def curvatures(self, margins: np.ndarray) -> Curvatures:
        """Weighted second derivatives by the margins.

        ``curvatures(k)`` gives those by the margin of output `k` and of each output, of
        shape (n_rows, K).
        """
        by = self.of_row.curvatures(self.y, self._shaped(margins))
        weight = self.weight[:, np.newaxis]
        return lambda output: weight * by(output)

    def summed_curvatures(self, margins: np.ndarray) -> np.ndarray:
        """Sums over the rows of what :meth:`curvatures` gives, of shape (K, K)."""
        if self.n_outputs == 1:
            return self.curvatures(margins)(0).sum(axis=0, keepdims=True)
        q = softmax(margins)
        sums = -(q * self.weight[:, np.newaxis]).T @ q
        # Each row of the sums adds up to 0. Where a class is all but certain, the
        # difference of q and its square would be rounding.
        np.fill_diagonal(sums, 0.0)
        np.fill_diagonal(sums, -sums.sum(axis=1))
        return np.asarray(sums)

    def norm(self, margins: np.ndarray) -> float:
        """Bound for the constant term of the quadratic model around the margins.

        It is ``sum_i v_i' D_i v_i``, where `D_i` holds the second derivatives of a row
        and ``v_i = m_i + D_i^+ (negative slopes)`` is the target of the weighted least
        squares problem that the model is.
        """
        squares = self.of_row.working_squares(self.y, self._shaped(margins))
        return float(self.weight @ squares)

    def _shaped(self, margins: np.ndarray) -> np.ndarray:
        """Margins as the loss takes them."""
        return margins[:, 0] if self.n_outputs == 1 else margins
