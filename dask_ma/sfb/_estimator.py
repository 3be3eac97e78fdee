"""The estimator's side of a fit: parameters, their checks, and what comes back."""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn.exceptions import ConvergenceWarning

from dask_ma._callbacks import N_WRAPPERS
from dask_ma._sklearn import Interval, StrOptions
from dask_ma.linear import FitResult, LinearEstimator
from dask_ma.sfb._agent import train
from dask_ma.sfb._params import SFBParams
from dask_ma.sfb._settings import COMMUNICATIONS, Settings
from dask_ma.sfb.topology import Topology

_PASSED_ON = (
    "penalty",
    "alpha",
    "solver",
    "fit_intercept",
    "max_iter",
    "tol",
    "shuffle",
    "eta0",
    "learning_rate",
    "power_t",
    "early_stopping",
    "validation_fraction",
    "n_iter_no_change",
    "class_weight",
)
_SETTINGS = (
    "batch_size",
    "staleness",
    "broadcast",
    "relay",
    "communication",
    "compression",
    "wire_dtype",
    "shuffle",
)
# What other estimators of linear models leave to the user.
_FIXED = {
    "is_classifier": True,
    "loss": "log_loss",
    "l1_ratio": 0.0,
    "epsilon": 0.0,
}


class SFBEstimator(LinearEstimator):
    """Base of SFBLogisticRegression."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "penalty": [StrOptions({"l2", "l1", "trace"}), None],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "solver": [StrOptions({"sgd", "sdca"})],
        "fit_intercept": ["boolean"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left"), None],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "eta0": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "learning_rate": [StrOptions({"optimal", "invscaling", "constant"})],
        "power_t": [Interval(Real, 0, None, closed="left")],
        "staleness": [Interval(Integral, 0, None, closed="left")],
        "broadcast": [
            Interval(Integral, 1, None, closed="left"),
            Topology,
            "array-like",
            None,
        ],
        "relay": ["boolean"],
        "communication": [StrOptions(set(COMMUNICATIONS))],
        "compression": [Interval(Real, 0, 1, closed="left"), None],
        "wire_dtype": [StrOptions({"float32", "float64"}), None],
        "shuffle": ["boolean"],
        "class_weight": [StrOptions({"balanced"}), dict, None],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "n_ranks": [Interval(Integral, 1, None, closed="left"), None],
    }

    def _fit_passes(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        *,
        is_saved: bool = True,
        **changes: Any,
    ) -> FitResult:
        """Fit on all ranks and take over the result."""
        settings = Settings(**{name: getattr(self, name) for name in _SETTINGS})
        settings.check()
        if self.solver == "sdca":
            self._check_dual()
        chosen = {name: getattr(self, name) for name in _PASSED_ON}
        params = SFBParams(**{**_FIXED, **chosen, "settings": settings, **changes})
        result = self._fit_agent(train, params, X, y, sample_weight, is_saved=is_saved)
        self.communication_ = result.fitted["communication"]
        # The solver before may have been the other one.
        for name in {"dual_gap", "eta0"} - set(result.fitted):
            self.__dict__.pop(f"{name}_", None)
        return result

    def _check_dual(self) -> None:
        """Refuse what dual ascent cannot do."""
        if self.penalty != "l2" or self.alpha == 0:
            raise ValueError(
                "solver='sdca' needs penalty='l2' and alpha above 0, got "
                f"penalty={self.penalty!r} and alpha={self.alpha}; use solver='sgd'"
            )
        # The matrix must be that of the dual variables.
        for name, is_set in (
            ("relay", not self.relay),
            ("compression", self.compression is not None),
            ("wire_dtype", self.wire_dtype is not None),
        ):
            if is_set:
                raise ValueError(
                    f"solver='sdca' needs exact factors on all ranks, but {name} is "
                    f"{getattr(self, name)!r}; leave it at its default, or use "
                    "solver='sgd'"
                )

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        attributes = super()._to_attributes(fitted)
        for name in ("dual_gap", "eta0"):
            if name in fitted:
                attributes[f"{name}_"] = fitted[name]
        return attributes

    def _warn_unless_converged(self, result: FitResult) -> None:
        """Warn as scikit-learn does if the gap is not small enough."""
        if self.solver != "sdca" or self.early_stopping:
            super()._warn_unless_converged(result)
        elif self.tol is not None and not result.converged:
            warnings.warn(
                f"the maximum of {self.max_iter} passes was reached with a duality gap "
                f"of {result.fitted['dual_gap']:.3e}, asked was "
                f"{result.fitted['gap_asked']:.3e} (tol={self.tol} times the objective "
                "of the model of zeros); raise max_iter, tol or alpha",
                ConvergenceWarning,
                stacklevel=3 + N_WRAPPERS,
            )

    def _twin_parameters(self) -> dict[str, Any]:
        # What the twin would be fitted with has no part in its predictions.
        chosen = super()._twin_parameters()
        return {k: v for k, v in chosen.items() if k not in ("penalty", "solver")}
