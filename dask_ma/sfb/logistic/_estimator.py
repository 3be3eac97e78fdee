"""The estimator's side of a fit: parameters, their checks, and what comes back."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn.linear_model import SGDClassifier

from dask_ma import _config
from dask_ma._sklearn import Interval, StrOptions
from dask_ma.data import InputInfo, InputSize
from dask_ma.engine import worthwhile_ranks
from dask_ma.linear import LinearEstimator
from dask_ma.sfb._moved_rows import most_moved
from dask_ma.sfb.exchange._settings import COMMUNICATION, RunSettings
from dask_ma.sfb.logistic._agent import join, train
from dask_ma.sfb.logistic._combinations import (
    INACTIVE,
    check_combinations,
    chosen_solver,
    may_open_with_steps,
)
from dask_ma.sfb.logistic._params import SFBParams
from dask_ma.supervised import FitResult

# Of a fit: seconds for a stored element, and for each of its classes, and collective
# operations.
_SECONDS_PER_STORED, _SECONDS_PER_CLASS, _EXCHANGES = 400e-9, 15e-9, 130
_FAR = 0.01  # of the objective: a gap that is worth a word
# What other estimators of linear models leave to the user.
_FIXED = {
    "loss": "log_loss",
    "epsilon": 0.0,
}


class SFBEstimator(LinearEstimator):
    """Base of SFBLogisticRegression."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "penalty": [StrOptions({"l2", "l1", "elasticnet", "trace"}), None],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "l1_ratio": [Interval(Real, 0, 1, closed="both")],
        "solver": [StrOptions({"auto", "sgd", "sdca"})],
        "fit_intercept": ["boolean"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left"), None],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "eta0": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "learning_rate": [
            StrOptions({"adaptive", "optimal", "invscaling", "constant"})
        ],
        "power_t": [Interval(Real, 0, None, closed="left")],
        "refine": [StrOptions({"auto"}), "boolean"],
        "communication": [COMMUNICATION.to_sklearn()],
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
    _to_object = {"communication": COMMUNICATION.as_object}
    _inactive = INACTIVE

    def _check_combinations(self) -> None:
        check_combinations(self)

    def _peer_type(self) -> type:
        # LogisticRegression has no steps, which most parameters are about.
        return SGDClassifier

    @property
    def _agent(self) -> Any:
        return train

    @property
    def _join(self) -> Any:  # type: ignore[override]
        shares = self._objects()["communication"].content == "outputs"
        return join if shares else None

    def _make_params(self, info: InputInfo, **changes: Any) -> SFBParams:
        chosen: dict[str, Any] = {
            "solver": chosen_solver(self),
            "refine": self.refine is not False,
            "must_refine": self.refine is True,
            "may_open_with_steps": may_open_with_steps(self),
            "centre": self.fit_intercept,
            "link_bandwidth": _config.get_bytes("comm.link-bandwidth"),
            "most_moved": most_moved(info),
            "settings": self._params_of(
                RunSettings, exchange=self._objects()["communication"]
            ),
        }
        if self.alpha == 0:
            chosen["penalty"] = None
        return self._params_of(SFBParams, **{**_FIXED, **chosen, **changes})

    def _worthwhile_ranks(
        self, params: SFBParams, size: InputSize, n_threads: int
    ) -> int:
        """As many as gain more by sharing the rows than exchanges take."""
        exchange = params.settings.exchange
        known = size.n_classes if params.classes is None else len(params.classes)
        # Two classes, also where nobody knows, cannot be shared out.
        if exchange.content == "outputs" and known > 2:
            return min(n_threads, known)
        if exchange.content != "auto" or exchange._wants_factors:
            return n_threads
        per_stored = _SECONDS_PER_STORED + _SECONDS_PER_CLASS * size.n_classes
        shared = size.n_stored * per_stored
        return worthwhile_ranks(size, n_threads, shared=shared, exchanges=_EXCHANGES)

    def _partial_changes(self) -> dict[str, Any]:
        """Parameters of the one pass of `partial_fit`."""
        if self.early_stopping:
            raise ValueError(
                "early_stopping cannot be used with partial_fit, which makes one pass; "
                "set early_stopping=False"
            )
        changes = {
            **self._warm_model(),
            "t": getattr(self, "t_", 1.0),
            "max_iter": 1,
            "tol": None,
            "solver": "sgd",
            "refine": False,
            "must_refine": False,
            "may_open_with_steps": False,
            # Rows of one class, centred, would say nothing of the features.
            "centre": False,
        }
        if self.learning_rate == "adaptive":
            # A single pass cannot tell when steps should become shorter.
            changes["learning_rate"] = "optimal"
        return changes

    def _take_over(self, result: FitResult, params: SFBParams) -> None:
        super()._take_over(result, params)
        self.solver_ = params.solver
        self.communication_ = result.fitted["communication"]
        # The solver before may have been the other one.
        for name in {"dual_gap", "eta0"} - set(result.fitted):
            self.__dict__.pop(f"{name}_", None)

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        attributes = super()._to_attributes(fitted)
        for name in ("dual_gap", "eta0"):
            if name in fitted:
                attributes[f"{name}_"] = fitted[name]
        return attributes

    def _unconverged(self, result: FitResult) -> str | None:
        """What scikit-learn warns of if the model may be far from the optimum."""
        gap, objective = result.fitted.get("dual_gap"), result.fitted["objective"]
        if result.fitted["is_wanted"]:
            return None  # whoever follows the fit knows how far it is
        if result.fitted["is_endless"]:
            return self._endless(objective)
        if self.early_stopping or self.tol is None:
            return super()._unconverged(result)
        if gap is None:
            return self._unknown(result)
        allowed = self.tol
        if result.converged and not self._certifies(result):
            allowed = max(self.tol, _FAR)  # the steps have settled, by their own rule
        if gap <= allowed * objective:
            return None
        ended = (
            f"the fit ended after {result.fitted['n_iter']} passes, which no longer "
            "lowered the objective,"
            if result.converged
            else f"the maximum of {self.max_iter} passes was reached"
        )
        # More passes change nothing where they had come to their end.
        means = ["raise tol" if result.converged else "raise max_iter or tol"]
        means += ["scale the features", *filter(None, [self._better(result)])]
        return (
            f"{ended} with a duality gap of {gap:.3e}, {gap / objective:.2%} of the "
            f"objective; asked was {allowed:.2%} (tol={self.tol}). "
            f"{', '.join(means[:-1]).capitalize()}, or {means[-1]}"
            + self._advice_on_start()
        )

    def _endless(self, objective: float) -> str:
        """What there is to say of an objective without a minimum."""
        cure = "alpha" if self.penalty is not None else "penalty='l2' and alpha"
        return (
            "the classes are linearly separable: without a penalty the objective has "
            "no minimum, but falls towards 0 as the coefficients grow without end. The "
            f"fit ended at {objective:.3e}, which is next to nothing (tol={self.tol}); "
            f"set {cure} above 0, with which there is one optimum"
        )

    def _better(self, result: FitResult) -> str:
        """What else ends nearer to the optimum; empty if it was done."""
        cure, has_room = _cure(result), result.fitted.get("has_room", True)
        if cure or self.refine is not False or self.penalty == "trace" or not has_room:
            return cure
        return "leave refine at 'auto'"

    def _unknown(self, result: FitResult) -> str | None:
        """The same where there is no duality gap."""
        found, cure = super()._unconverged(result), _cure(result)
        if not cure:
            return found
        found = found or (
            f"the fit ended after {result.fitted['n_iter']} passes, which no longer "
            "lowered the objective; how far it is from the optimum is not known"
        )
        return f"{found}. Scale the features, or {cure}"

    def _certifies(self, result: FitResult) -> bool:
        """Whether each pass has found a duality gap."""
        return "dual_gap" in result.history[-1]

    def _sklearn_parameters(self) -> dict[str, Any]:
        # What the peer would be fitted with has no part in its predictions.
        chosen = super()._sklearn_parameters()
        return {k: v for k, v in chosen.items() if k not in ("penalty", "solver")}


def _cure(result: FitResult) -> str:
    """What to do where memory was lacking; empty where it was not."""
    lacks = result.fitted.get("lacks")
    return f"take larger workers, or fewer threads of each: {lacks}" if lacks else ""
