"""Units of coefficients, in which steps on the whole objective are made."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

from dask_ma.sfb.logistic._objective import Objective
from dask_ma.sfb.model._matrix import ParameterMatrix

# Share of the second moments that second derivatives are taken for to begin with: that
# of a fit that has not come far. By how many times they are another one before units
# are made anew, and the least one, as where rounding has left no rows in doubt.
_CURVATURE, _OTHER, _LEAST = 0.2, 4.0, 1e-12
_HALF = 0.5  # unit of an intercept, whose feature is 1 throughout
_JITTER = 1e-7  # of the mean second derivative
# Second moments of as many outputs as a product is of take as long.
_PRODUCT = 4


class Place(NamedTuple):
    """A point, in units in which the features are alike, and what is known there.

    Attributes
    ----------
    point : ndarray of shape (n_variables,)
        Coefficients feature by feature, then the intercepts.
    gradient : ndarray of shape (n_variables,)
        Of the loss; with the penalty, where the units have it in them.
    """

    point: np.ndarray
    gradient: np.ndarray


class Units:
    """Units in which features have the same spread.

    Parameters
    ----------
    scales : ndarray of shape (n_features,)
        What coefficients of features are multiplied by, above 0.
    n_outputs : int
    has_intercept : bool
    l2 : float
        Weight of the L2 penalty.

    Attributes
    ----------
    scales : ndarray of shape (n_variables,)
        What a point is of coefficients feature by feature, then intercepts.
    l2 : ndarray of shape (n_variables,)
        Weights of the penalty on a point.
    """

    def __init__(
        self, scales: np.ndarray, n_outputs: int, l2: float, *, has_intercept: bool
    ) -> None:
        self._n_outputs = n_outputs
        self._n_values = len(scales) * n_outputs
        n_intercepts = n_outputs * has_intercept
        repeated = np.repeat(scales, n_outputs)
        self.scales = np.append(repeated, np.full(n_intercepts, _HALF))
        self.l2 = np.append(l2 / repeated**2, np.zeros(n_intercepts))

    is_due = False  # whether other second moments would do better
    wants_double = False  # whether rounding in single precision would be in the way
    left = 0.1  # of a gradient, after a step by conjugate gradients

    def meet(self, curvature: float, moments: np.ndarray | None = None) -> bool:
        """Become right for a mean second derivative; return whether points change."""
        return False

    def find(self, objective: Objective, matrix: ParameterMatrix) -> Any:
        """What :meth:`meet` takes as second moments, on rank 0; a collective call."""
        return objective.second_moments(matrix)

    def note(self, n_products: int) -> None:
        """Take note of how many products a step has taken; on all ranks."""

    def renew(self) -> None:
        """Find other second moments before the next step; on all ranks."""

    def without_drift(self, direction: np.ndarray) -> np.ndarray:
        """A step that leaves the mean intercept of several outputs where it is."""
        if len(direction) > self._n_values and self._n_outputs > 1:
            # The loss does not depend on it: what rounding makes of its slope, divided
            # by no more than the damping, would soon outweigh the margins.
            direction[self._n_values :] -= direction[self._n_values :].mean()
        return direction

    def state_dict(self) -> dict[str, np.ndarray]:
        """What they have become, for others to become the same."""
        return {}

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        """Become what others were."""

    def point_of(self, values: np.ndarray, intercept: np.ndarray | None) -> np.ndarray:
        """A point from coefficients of shape (n_features, n_outputs)."""
        return self._joined(values, intercept) * self.scales

    def values_of(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and intercepts, of which there may be none."""
        plain = point / self.scales
        values = plain[: self._n_values].reshape(-1, self._n_outputs)
        return values, plain[self._n_values :]

    def gradient_of(
        self, gradient: np.ndarray, slopes: np.ndarray | None, values: np.ndarray
    ) -> np.ndarray:
        """What a point has as a gradient, from that by coefficients and intercepts.

        Parameters
        ----------
        gradient : ndarray of shape (n_features, n_outputs)
            Of the loss.
        slopes : ndarray of shape (n_outputs,) or None
        values : ndarray of shape (n_features, n_outputs)
            The coefficients.

        Returns
        -------
        gradient : ndarray of shape (n_variables,)
        """
        return self._joined(gradient, slopes) / self.scales

    @staticmethod
    def _joined(values: np.ndarray, intercept: Any) -> np.ndarray:
        """Coefficients feature by feature, then intercepts."""
        parts = [values.ravel()] if intercept is None else [values.ravel(), intercept]
        return np.concatenate(parts).astype(np.float64)


class UncorrelatedUnits(Units):
    """Units in which features have nothing in common either, and the penalty a part.

    Second derivatives by the coefficients of an output are about a share of the second
    moments of the features, plus those of the penalty. Where that is a multiple of the
    identity, few steps are enough however much features are alike. The share becomes
    less by orders of magnitude where classes can be told apart, and units follow it:
    else the penalty would be far too small a part. Penalties are in the gradient, since
    they are no sum over variables any more.

    Parameters
    ----------
    scales, n_outputs, l2, has_intercept
        As in :class:`Units`.
    moments : ndarray of shape (n_features, n_features) or None
        Second moments of the features, on rank 0, which finds points.
    """

    def __init__(
        self,
        scales: np.ndarray,
        n_outputs: int,
        l2: float,
        *,
        has_intercept: bool,
        moments: np.ndarray | None,
    ) -> None:
        super().__init__(scales, n_outputs, l2, has_intercept=has_intercept)
        self._penalty = l2
        self.l2 = np.zeros_like(self.l2)
        self._ridge = l2 / scales**2
        self._moments: np.ndarray | None = None
        if moments is not None:
            self._moments = self._of_points(moments)
            self._take(_CURVATURE)

    def meet(self, curvature: float, moments: np.ndarray | None = None) -> bool:
        """Become right for a mean second derivative; return whether points change.

        Parameters
        ----------
        curvature : float
            Mean second derivative of the losses.
        moments : ndarray of shape (n_features, n_features), default=None
            Second moments of the features weighted by them, on rank 0.

        Returns
        -------
        has_changed : bool
        """
        share = max(curvature, _LEAST)
        if moments is not None:
            self._moments = self._of_points(moments) / share
        elif (
            self._moments is None
            or self._share / _OTHER <= share <= _OTHER * self._share
        ):
            return False
        self._take(share)
        return True

    def note(self, n_products: int) -> None:
        """Take note of how many products a step has taken; on all ranks."""
        n_features = self._n_values // self._n_outputs
        self.is_due = _PRODUCT * self._n_outputs * n_products > n_features

    def renew(self) -> None:
        """Find other second moments before the next step; on all ranks."""
        self.is_due = True

    def state_dict(self) -> dict[str, np.ndarray]:
        """What they have become, for others to become the same."""
        kept = {"is_due": np.array(self.is_due)}
        if self._moments is not None:
            kept.update(share=np.array(self._share), moments=self._moments)
        return kept

    def load_state_dict(self, kept: dict[str, Any]) -> None:
        """Become what others were."""
        self.is_due = bool(kept.get("is_due", False))
        if self._moments is not None and "share" in kept:
            self._moments = kept["moments"]
            self._take(float(kept["share"]))

    def point_of(self, values: np.ndarray, intercept: np.ndarray | None) -> np.ndarray:
        """A point from coefficients of shape (n_features, n_outputs)."""
        point = super().point_of(values, intercept)
        self._part(point)[...] = self._factor.T @ self._part(point)
        return point

    def values_of(self, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and intercepts, of which there may be none."""
        point, factor = point.copy(), self._factor
        part = self._part(point)
        part[...] = linalg.solve_triangular(
            factor, part, trans=1, lower=True, check_finite=False
        )
        return super().values_of(point)

    def gradient_of(
        self, gradient: np.ndarray, slopes: np.ndarray | None, values: np.ndarray
    ) -> np.ndarray:
        """What a point has as a gradient, from that by coefficients and intercepts."""
        whole = gradient + self._penalty * values
        found = super().gradient_of(whole, slopes, values)
        part = self._part(found)
        part[...] = linalg.solve_triangular(
            self._factor, part, lower=True, check_finite=False
        )
        return found

    def _take(self, share: float) -> None:
        """Have second derivatives be a share of the second moments."""
        assert self._moments is not None
        self._share = share
        system = share * self._moments
        system[np.diag_indices_from(system)] += self._ridge
        self._factor = factor_of(system)
        # Intercepts are to have the second derivatives that coefficients have.
        self.scales[self._n_values :] = _HALF * np.sqrt(share / _CURVATURE)

    def _of_points(self, moments: np.ndarray) -> np.ndarray:
        """Second moments in units of the spread of the features."""
        scales = self.scales[: self._n_values : self._n_outputs]
        return np.asarray(moments / scales / scales[:, np.newaxis])

    def _part(self, point: np.ndarray) -> np.ndarray:
        """A view of what a point has for features, of shape (n_features, n_outputs)."""
        return point[: self._n_values].reshape(-1, self._n_outputs)


def factor_of(system: np.ndarray) -> np.ndarray:
    """Lower factor of second derivatives, with as much on the diagonal as it takes.

    Parameters
    ----------
    system : ndarray of shape (n_features, n_features)
        Its diagonal is changed.

    Returns
    -------
    factor : ndarray of shape (n_features, n_features)
    """
    least = _JITTER * (np.trace(system) / len(system) or 1.0)
    while True:
        system[np.diag_indices_from(system)] += least
        try:
            return linalg.cholesky(system, lower=True)
        except linalg.LinAlgError:
            least *= 10
