"""The penalties of a logistic regression: parts of them, and their conjugates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dask_ma.kernels.prox import L1, L2, ElasticNet, NoPenalty, Prox, TraceNorm


class Penalty(NamedTuple):
    """Penalty of a logistic regression.

    Attributes
    ----------
    l1, l2, trace : float
        Weights of the sum of the absolute coefficients, of half the sum of their
        squares, and of the sum of the singular values.
    """

    l1: float = 0.0
    l2: float = 0.0
    trace: float = 0.0

    @classmethod
    def of(cls, name: str | None, alpha: float, l1_ratio: float) -> Penalty:
        """The penalty that an estimator's parameters mean."""
        if name is None:
            return cls()
        if name == "trace":
            return cls(trace=alpha)
        ratio = {"l1": 1.0, "l2": 0.0}.get(name, l1_ratio)
        return cls(alpha * ratio, alpha * (1 - ratio))

    @property
    def prox(self) -> Prox:
        """Its prox operator."""
        if self.trace:
            return TraceNorm(self.trace)
        if self.l1 and self.l2:
            return ElasticNet(self.l1, self.l2)
        if self.l1:
            return L1(self.l1)
        return L2(self.l2) if self.l2 else NoPenalty()

    @property
    def has_bound(self) -> bool:
        """Whether a dual point bounds the objective from below."""
        return any(self)

    def shrinkage(self, values: np.ndarray) -> float:
        """By which a dual point must be multiplied to be feasible.

        Parameters
        ----------
        values : ndarray of shape (n_features, n_outputs)
            Sum of the products of dual variables and rows.

        Returns
        -------
        factor : float
            From 0 to 1.
        """
        if self.l2:
            return 1.0
        if self.trace:
            largest, most = float(np.linalg.norm(values, 2)), self.trace
        else:
            largest, most = float(np.abs(values).max(initial=0.0)), self.l1
        return min(1.0, most / largest) if largest > 0 else 1.0

    def conjugate(self, values: np.ndarray) -> float:
        """Conjugate of the penalty at a feasible point.

        Parameters
        ----------
        values : ndarray of shape (n_features, n_outputs)

        Returns
        -------
        value : float
        """
        if not self.l2:
            return 0.0
        beyond = np.abs(values)
        beyond -= self.l1
        np.maximum(beyond, 0, out=beyond)
        return float(np.vdot(beyond, beyond)) / (2 * self.l2)

    def conjugate_along(self, sizes: np.ndarray, factor: float) -> np.ndarray:
        """How the conjugate changes as a dual point is multiplied by a factor.

        Parameters
        ----------
        sizes : ndarray
            Absolute values of the dual point; those that the L1 part takes at the
            factor may be missing.
        factor : float
            Above 0.

        Returns
        -------
        parts : ndarray of shape (3,)
            The conjugate at ``factor`` times the point, its first and its second
            derivative by the factor, all times the weight of the L2 part, which may be
            next to nothing.
        """
        beyond = sizes * factor
        beyond -= self.l1
        np.maximum(beyond, 0, out=beyond)
        square, total = float(np.vdot(beyond, beyond)), self.l1 * float(beyond.sum())
        # Of the sizes where they are beyond: nothing is looked for.
        sizes_square = square + 2 * total + self.l1**2 * np.count_nonzero(beyond)
        return np.array(
            [square / 2, (square + total) / factor, sizes_square / factor**2]
        )
