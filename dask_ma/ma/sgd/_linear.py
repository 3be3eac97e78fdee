"""Base of the two linear estimators by model averaging."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn.linear_model import SGDClassifier

from dask_ma import _config
from dask_ma._sklearn import Interval, StrOptions
from dask_ma.data import Deal, InputInfo, InputSize, join_limit
from dask_ma.kernels import Loss
from dask_ma.linear import LinearEstimator, as_named, patience_of
from dask_ma.ma._paradigm import PARADIGM, is_gradient
from dask_ma.ma.sgd._agent import train
from dask_ma.ma.sgd._params import (
    INACTIVE,
    FitParams,
    check_combinations,
    is_refined,
)
from dask_ma.ma.sgd._steps import Course, Sizes, quickest_ranks


class LinearMA(LinearEstimator):
    """Base of MASGDClassifier and MASGDRegressor."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "penalty": [StrOptions({"l2", "l1", "elasticnet"}), None],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "l1_ratio": [Interval(Real, 0, 1, closed="both")],
        "fit_intercept": ["boolean"],
        "max_iter": [Interval(Integral, 0, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left"), None],
        "shuffle": [StrOptions({"ranks"}), "boolean"],
        "verbose": ["verbose"],
        "epsilon": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
        "learning_rate": [
            StrOptions(
                {
                    "auto",
                    "constant",
                    "optimal",
                    "invscaling",
                    "adaptive",
                    "pa1",
                    "pa2",
                }
            )
        ],
        "eta0": [Interval(Real, 0, None, closed="neither")],
        "power_t": [Interval(Real, 0, None, closed="left")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [
            StrOptions({"auto"}),
            Interval(Integral, 1, None, closed="left"),
        ],
        "warm_start": ["boolean"],
        "average": [Interval(Integral, 0, None, closed="left"), "boolean"],
        "local_epochs": [
            StrOptions({"auto"}),
            Interval(Real, 0, None, closed="neither"),
        ],
        "paradigm": [PARADIGM.to_sklearn()],
        "refine": [StrOptions({"auto", "newton", "lbfgs"}), None],
        "refine_max_iter": [Interval(Integral, 1, None, closed="left")],
        "refine_tol": [Interval(Real, 0, None, closed="left")],
        "n_ranks": [Interval(Integral, 1, None, closed="left"), None],
    }
    _to_object = {"paradigm": PARADIGM.as_object}
    _inactive = INACTIVE
    _passive_loss: ClassVar[str]  # the loss that passive-aggressive steps are made for

    @property
    def _agent(self) -> Any:
        return train

    @property
    def _loads(self) -> tuple[Any, ...]:
        """What ranks load for their first step, as large as some blocks of rows."""
        is_summed = is_gradient(PARADIGM.as_object(self.paradigm))
        has_steps = self.max_iter and not (is_summed or isinstance(self.loss, Loss))
        return (SGDClassifier,) if has_steps else ()

    def _make_params(self, info: InputInfo, **changes: Any) -> FitParams:
        chosen = {
            **patience_of(self),
            "join_limit": join_limit(info),
            "link_bandwidth": _config.get_bytes("comm.link-bandwidth"),
            **as_named(self.loss, self.epsilon),
        }
        return self._params_of(FitParams, **{**chosen, **changes})

    def _max_rounds(self, params: FitParams, info: InputInfo, n_ranks: int) -> int:
        """Each pass of the refinement is a round, too."""
        return params.max_iter + (params.refine_max_iter if is_refined(params) else 0)

    def _worthwhile_ranks(
        self, params: FitParams, size: InputSize, n_threads: int
    ) -> int:
        """As many as gain more than they lose by working alone and by messages."""
        if is_gradient(params.paradigm):
            return n_threads
        has_many = params.is_classifier and size.n_classes > 2
        sizes = Sizes(
            n_ranks=1,
            n_rows=size.n_rows,
            n_stored=size.n_stored,
            n_problems=size.n_classes if has_many else 1,
            n_features=size.n_features,
            link_bandwidth=_config.get_bytes("comm.link-bandwidth"),
        )
        course = Course.of(params)
        return quickest_ranks(params.local_epochs, sizes, n_threads, course, size.moved)

    @property
    def _deal(self) -> Deal:
        """Sorted rows do no harm then; blocks of Dask move only if that is wanted."""
        return "always" if self.shuffle == "ranks" else "memory"

    def _check_combinations(self) -> None:
        check_combinations(self, self._passive_loss)

    def _partial_changes(self) -> dict[str, Any]:
        """Parameters of the one round of `partial_fit`."""
        if self.early_stopping:
            raise ValueError(
                "early_stopping should be False with partial_fit, which is one round "
                "and cannot look back; got early_stopping=True"
            )
        if self.refine not in ("auto", None):
            raise ValueError(
                "refine should be 'auto' or None with partial_fit, which is one round; "
                f"got refine={self.refine!r}"
            )
        return {
            **self._warm_model(),
            **self._warm_mean(),
            "t": getattr(self, "t_", 1.0),
            "eta": getattr(self, "eta_", None),
            "max_iter": 1,
            "local_epochs": 1.0,
            "refine": None,
        }

    def _warm_mean(self) -> dict[str, Any]:
        """Model behind the mean, and the mean, for `partial_fit` with `average`."""
        behind = getattr(self, "_mean_of", None)
        if not self.average or behind is None:
            return {}
        coef, intercept, n_rows, n_rounds = behind
        mean = self._warm_model()
        return {
            "coef": coef,
            "intercept": intercept,
            "mean": (mean["coef"], mean["intercept"], n_rows, n_rounds),
        }

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        """Fitted attributes, with the step size that was found."""
        attributes = super()._to_attributes(fitted)
        attributes["_mean_of"] = fitted.get("mean_of")
        if "eta" in fitted:
            attributes["eta_"] = fitted["eta"]
        return attributes

    def _sklearn_parameters(self) -> dict[str, Any]:
        """Parameters of scikit-learn's estimator, which knows no "auto"."""
        known = {**super()._sklearn_parameters(), "shuffle": bool(self.shuffle)}
        if self.learning_rate == "auto":
            known["learning_rate"] = "adaptive"
            known["eta0"] = getattr(self, "eta_", self.eta0)
        return known
