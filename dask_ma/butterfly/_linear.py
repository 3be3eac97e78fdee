"""Base of the two estimators by butterfly mixing."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

from dask_ma._sklearn import Interval, StrOptions
from dask_ma.butterfly._agent import train
from dask_ma.butterfly._params import (
    INACTIVE,
    ButterflyParams,
    check_combinations,
    is_refined,
)
from dask_ma.data import InputInfo, InputSize
from dask_ma.engine import worthwhile_ranks
from dask_ma.kernels import PRECONDITIONERS
from dask_ma.linear import LinearEstimator, as_named, patience_of

_FIXED = {"penalty": "l2", "l1_ratio": 0.0}
# Of a fit: seconds for a stored element of sparse rows and of dense ones, and for each
# of its classes if there are several; collective operations with two and with more.
_SECONDS_PER_STORED = {True: 230e-9, False: 140e-9}
_SECONDS_PER_CLASS = 40e-9
_EXCHANGES, _OF_CLASSES = 90, 300


class LinearButterfly(LinearEstimator):
    """Base of ButterflySGDClassifier and ButterflySGDRegressor."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "alpha": [Interval(Real, 0, None, closed="left")],
        "fit_intercept": ["boolean"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left"), None],
        "shuffle": ["boolean"],
        "verbose": ["verbose"],
        "epsilon": [Interval(Real, 0, None, closed="left")],
        "batch_size": [
            StrOptions({"auto", "timed"}),
            Interval(Integral, 1, None, closed="left"),
        ],
        "mixing": [StrOptions({"butterfly", "allreduce", "periodic", "none"})],
        "mixing_period": [
            StrOptions({"auto"}),
            Interval(Integral, 1, None, closed="left"),
        ],
        "learning_rate": [StrOptions({"adaptive", "invscaling"})],
        "eta0": [Interval(Real, 0, None, closed="neither")],
        "preconditioner": [StrOptions(set(PRECONDITIONERS)), None],
        "random_state": ["random_state"],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [
            StrOptions({"auto"}),
            Interval(Integral, 1, None, closed="left"),
        ],
        "average": [Interval(Integral, 0, None, closed="left"), "boolean"],
        "warm_start": ["boolean"],
        "refine": [StrOptions({"auto", "newton", "lbfgs"}), None],
        "refine_max_iter": [Interval(Integral, 1, None, closed="left")],
        "refine_tol": [Interval(Real, 0, None, closed="left")],
        "n_ranks": [Interval(Integral, 1, None, closed="left"), None],
    }
    _inactive = INACTIVE

    @property
    def _agent(self) -> Any:
        return train

    def _make_params(self, info: InputInfo, **changes: Any) -> ButterflyParams:
        fixed = {**_FIXED, **patience_of(self), **as_named(self.loss, self.epsilon)}
        return self._params_of(ButterflyParams, **{**fixed, **changes})

    def _max_rounds(
        self, params: ButterflyParams, info: InputInfo, n_ranks: int
    ) -> int:
        """Each pass of the refinement is a round, too."""
        return params.max_iter + (params.refine_max_iter if is_refined(params) else 0)

    def _worthwhile_ranks(
        self, params: ButterflyParams, size: InputSize, n_threads: int
    ) -> int:
        """As many as gain more by sharing the rows than mixing takes."""
        if params.mixing != "butterfly":
            return n_threads
        per_stored, exchanges = _SECONDS_PER_STORED[size.is_sparse], _EXCHANGES
        if params.is_classifier and size.n_classes > 2:
            per_stored += _SECONDS_PER_CLASS * size.n_classes
            exchanges = _OF_CLASSES
        shared = size.n_stored * per_stored
        return worthwhile_ranks(size, n_threads, shared=shared, exchanges=exchanges)

    def _check_combinations(self) -> None:
        check_combinations(self)

    def _partial_changes(self) -> dict[str, Any]:
        """Parameters of the one pass of `partial_fit`."""
        for name in ("early_stopping", "average"):
            if getattr(self, name):
                raise ValueError(
                    f"{name} should be False with partial_fit, which is one pass and "
                    f"cannot look back; got {name}={getattr(self, name)!r}"
                )
        if self.refine not in ("auto", None):
            raise ValueError(
                "refine should be 'auto' or None with partial_fit, which is one pass; "
                f"got refine={self.refine!r}"
            )
        return {
            **self._warm_model(),
            "t": getattr(self, "t_", 1.0),
            # Objectives of other rows say nothing about steps: they keep their length.
            "learning_rate": "invscaling",
            "eta0": getattr(self, "eta_", self.eta0),
            "limits_steps": True,
            "moments": getattr(self, "moments_", None),
            "max_iter": 1,
            "refine": None,
        }

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        # Rounds of the refinement describe the model alone.
        own = {f"{k}_": fitted[k] for k in ("eta", "moments") if k in fitted}
        return {**super()._to_attributes(fitted), **own}
