"""Units in which neither features nor outputs have anything in common."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from dask_ma.sfb.logistic._coupling import Lens
from dask_ma.sfb.logistic._objective import Objective
from dask_ma.sfb.logistic._units import UncorrelatedUnits, factor_of
from dask_ma.sfb.model._matrix import ParameterMatrix

# Of the largest second derivative by outputs: what is added to all of them before they
# are inverted, and the least one, since nothing changes where all outputs do.
_DAMPING, _LEAST = 1e-3, 1e-3
# What sums over the rows, and what is made of them, take in products: by features for
# an output, and by the features for a row; and the same the other way round.
_SUMS, _FACTORS = 0.3, 1.5
# What steps leave of a gradient: few products come far, and the last ones are worth
# less than a step.
_LEFT = 0.2
_TINY = 1e-12


class CoupledUnits(UncorrelatedUnits):
    """Units for several outputs, in which those that change together do not any more.

    Classes that are alike change against each other, and hardly against the others:
    some sums of outputs then have second derivatives that are a small part of those of
    others, whatever the features. Where steps have taken many products, units take
    second derivatives as a product of those by outputs and by features
    (:class:`~dask_ma.sfb.logistic._coupling.Coupling`), to which the penalty adds.

    Parameters
    ----------
    scales, n_outputs, l2, has_intercept, moments
        As in :class:`UncorrelatedUnits`.
    n_rows : int
        Rows of all ranks.
    """

    def __init__(
        self,
        scales: np.ndarray,
        n_outputs: int,
        l2: float,
        *,
        has_intercept: bool,
        moments: np.ndarray | None,
        n_rows: int,
    ) -> None:
        n_features = len(scales)
        sizes = (n_features, n_outputs), (n_outputs, n_features)
        self._least = sum(
            size / other * (_SUMS + _FACTORS * size / n_rows) for size, other in sizes
        )
        # Whether the last step was, and whether there are couplings; on all ranks.
        self._is_long = self._knows = False
        self._couplings: np.ndarray | None = None  # on rank 0, once they are known
        self._mean, self._weight = np.zeros(len(scales)), 1.0
        super().__init__(
            scales, n_outputs, l2, has_intercept=has_intercept, moments=moments
        )

    @property
    def wants_double(self) -> bool:  # type: ignore[override]
        """Whether rounding in single precision would be in the way."""
        # Products that many are needed of are of directions that hardly change losses.
        return self._knows

    @property
    def left(self) -> float:  # type: ignore[override]
        """Share of a gradient that is left by a step."""
        return _LEFT if self._knows else super().left

    def find(self, objective: Objective, matrix: ParameterMatrix) -> Any:
        """Second moments and couplings at a point, on rank 0; a collective call."""
        self._knows = self._is_long
        if not self._knows:
            return super().find(objective, matrix)
        is_root = self._moments is not None
        coupling = objective.coupling(matrix, self._inverse() if is_root else None)
        found, lens = coupling.features(), None
        if found is not None:
            system = self._of_points(found.moments)
            system[np.diag_indices_from(system)] += self._ridge
            scales = self.scales[: self._n_values : self._n_outputs]
            place = factor_of(system), found.mean, scales
            has_intercept = len(self.scales) > self._n_values
            lens = Lens(*place, has_intercept / max(found.weight, _TINY))
        couplings = coupling.outputs(lens)
        return None if found is None else (found, couplings)

    def note(self, n_products: int) -> None:
        """Take note of how many products a step has taken; on all ranks."""
        super().note(n_products)
        self._is_long = n_products > self._least
        if self._knows:
            self.is_due = self._is_long

    def renew(self) -> None:
        """Find other second moments before the next step; on all ranks."""
        super().renew()
        self._is_long = False

    def meet(self, curvature: float, moments: Any = None) -> bool:
        """Become right for a mean second derivative; return whether points change.

        Parameters
        ----------
        curvature : float
            Mean second derivative of the losses.
        moments : tuple or ndarray, default=None
            What :meth:`find` gives, or second moments alone.

        Returns
        -------
        has_changed : bool
        """
        if isinstance(moments, tuple):
            found, self._couplings = moments
            # As for second moments, in parts of the mean second derivative.
            self._mean = found.mean
            self._weight = max(found.weight, _TINY) / max(curvature, _TINY)
            moments = found.moments
        elif moments is not None:
            self._couplings = None
        return super().meet(curvature, moments)

    def state_dict(self) -> dict[str, np.ndarray]:
        """What they have become, for others to become the same."""
        kept = super().state_dict()
        kept["is_long"], kept["knows"] = np.array(self._is_long), np.array(self._knows)
        if self._couplings is not None:
            kept.update(couplings=self._couplings, mean=self._mean)
            kept["weight"] = np.array(self._weight)
        return kept

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        """Become what others were."""
        self._is_long = bool(kept.get("is_long", False))
        self._knows = bool(kept.get("knows", False))
        if self._moments is not None and "couplings" in kept:
            self._couplings, self._mean = kept["couplings"], kept["mean"]
            self._weight = float(kept["weight"])
        super().load_state_dict(kept)

    def point_of(self, values: np.ndarray, intercept: np.ndarray | None) -> np.ndarray:
        """A point from coefficients of shape (n_features, n_outputs)."""
        if self._couplings is None:
            return super().point_of(values, intercept)
        if intercept is not None:
            intercept = (intercept + self._mean @ values) @ self._turn
        point = self._joined(values @ self._turn, intercept) * self.scales
        part = self._part(point)
        part[...] = self._basis.T @ (self._factor @ (self._factor.T @ part))
        part *= self._stretch
        return point

    def values_of(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and intercepts, of which there may be none."""
        if self._couplings is None:
            return super().values_of(point)
        part = self._basis @ (self._part(point) / self._stretch)
        plain = np.append(part.ravel(), point[self._n_values :]) / self.scales
        values = plain[: self._n_values].reshape(part.shape) @ self._turn.T
        intercept = plain[self._n_values :]
        if len(intercept):
            intercept = self._turn @ intercept - self._mean @ values
        return values, intercept

    def gradient_of(
        self, gradient: np.ndarray, slopes: np.ndarray | None, values: np.ndarray
    ) -> np.ndarray:
        """What a point has as a gradient, from that by coefficients and intercepts."""
        if self._couplings is None:
            return super().gradient_of(gradient, slopes, values)
        whole = gradient + self._penalty * values
        if slopes is not None:
            whole -= np.outer(self._mean, slopes)
            slopes = slopes @ self._turn
        found = self._joined(whole @ self._turn, slopes) / self.scales
        part = self._part(found)
        part[...] = (self._basis.T @ part) / self._stretch
        return found

    def without_drift(self, direction: np.ndarray) -> np.ndarray:
        """A step that leaves the mean intercept of several outputs where it is."""
        if self._couplings is None:
            return super().without_drift(direction)
        scales = self.scales[self._n_values :]
        if len(scales):
            step = self._turn @ (direction[self._n_values :] / scales)
            step -= step.mean()
            direction[self._n_values :] = (step @ self._turn) * scales
        return direction

    def _inverse(self) -> np.ndarray:
        """Inverse of the second derivatives by outputs, as far as they are known."""
        if self._couplings is None:
            return np.eye(self._n_outputs)
        system = self._couplings.copy()
        largest = float(np.linalg.norm(system, 2)) or 1.0
        system[np.diag_indices_from(system)] += _DAMPING * largest
        return np.asarray(linalg.inv(system))

    def _take(self, share: float) -> None:
        """Have second derivatives be a share of the second moments."""
        super()._take(share)
        if self._couplings is None:
            return
        assert self._moments is not None
        # Where features with the penalty are the identity, the penalty is the rest of
        # it: both are diagonal in what the features have as directions.
        factor = self._factor
        self._basis = factor[:0]  # none meanwhile, which is as large
        system = linalg.solve_triangular(factor, share * self._moments, lower=True)
        system = linalg.solve_triangular(factor, system.T, lower=True)
        parts, directions = linalg.eigh(system, driver="evd", overwrite_a=True)
        levels, self._turn = linalg.eigh(self._couplings)
        levels = np.maximum(levels, _LEAST * (levels[-1] or 1.0))
        parts = np.clip(parts, 0, 1)[:, np.newaxis]
        self._stretch = np.sqrt(1 - parts + parts * levels)
        self._basis = linalg.solve_triangular(factor, directions, trans=1, lower=True)
        # Intercepts have no penalty.
        if len(self.scales) > self._n_values:
            self.scales[self._n_values :] = np.sqrt(levels * share * self._weight)
