"""Base of the L1-regularised estimators."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from dask_ma import _config
from dask_ma._settings import Inactive, Named, unless
from dask_ma._sklearn import Interval, StrOptions
from dask_ma.data import InputInfo, Kept
from dask_ma.layouts._read_columns import COPIES
from dask_ma.linear import LinearEstimator
from dask_ma.schmp.l1._agent import train
from dask_ma.schmp.l1._params import SchMPParams
from dask_ma.schmp.l1._path import PathParams
from dask_ma.schmp.schedules import Cyclic, Dynamic, Priority, Random
from dask_ma.schmp.schedules._schedules import CandidateSchedule
from dask_ma.supervised import FitResult

#: What the parameter `schedule` can be. Working sets have no candidates to choose.
SCHEDULE: Named[CandidateSchedule | None] = Named(
    "schedule",
    {
        "working_set": lambda: None,
        "dynamic": Dynamic,
        "priority": Priority,
        "random": Random,
        "cyclic": Cyclic,
    },
    "dask_ma.schmp.schedules",
)


def _by_working_sets(estimator: Any) -> tuple[str, ...]:
    """All coefficients of a round are solved for together anyway."""
    return ("schedule",) if estimator.schedule == "working_set" else ()


INACTIVE = (
    Inactive(
        ("polish",), _by_working_sets, "choose another schedule, such as 'dynamic'"
    ),
    Inactive(
        ("schedule__n_schedulers",),
        unless("layout", "auto", "rows"),
        "every rank schedules its own columns there",
    ),
)


#: Range of the weight of a penalty.
PENALTY = Interval(Real, 0, None, closed="left")
#: Ranges of the other parameters of estimators that fit a model for one penalty.
OF_ONE_MODEL: dict[str, list[Any]] = {
    "l1_ratio": [Interval(Real, 0, 1, closed="both")],
    "warm_start": ["boolean"],
    "schedule": [SCHEDULE.to_sklearn()],
    "polish": ["boolean"],
    "random_state": ["random_state"],
}


class L1Estimator(LinearEstimator):
    """Base of the estimators with an L1 or elastic-net penalty."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "fit_intercept": ["boolean"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "feature_weights": ["array-like", None],
        "layout": [StrOptions({"auto", "rows", "columns"})],
        "verbose": ["verbose"],
        "n_ranks": [Interval(Integral, 1, None, closed="left"), None],
    }
    _to_object = {"schedule": SCHEDULE.as_object}
    _inactive: ClassVar[tuple[Inactive, ...]] = INACTIVE

    def _copies(self, params: Any) -> Kept:
        """The columns, and those that working sets take."""
        remedy = (
            "set schedule=None and layout='auto', with which working sets read rows "
            "from disks"
        )
        # Working sets read their columns from rows on a disk, schedules do not.
        has_schedule = self._objects().get("schedule") is not None
        spills = not has_schedule and self.layout != "columns"
        return Kept(COPIES, "its columns", remedy, spills)

    @property
    def _agent(self) -> Any:
        return train

    def _make_params(self, info: InputInfo, **changes: Any) -> SchMPParams:
        if "start" in changes and self.coef_.shape[-1] != self.n_features_in_:
            raise ValueError(
                "the model to start from has other features than the data: "
                f"{self.coef_.shape[-1]}, not {self.n_features_in_}; set "
                "warm_start=False"
            )
        chosen = {
            "schedule": self._objects().get("schedule"),
            "feature_weights": _checked_weights(self.feature_weights),
            "link_bandwidth": _config.get_bytes("comm.link-bandwidth"),
        }
        return self._params_of(SchMPParams, **{**chosen, **changes})

    def _warm_changes(self) -> dict[str, Any]:
        if not (self.warm_start and hasattr(self, "coef_")):
            return {}
        positive = getattr(self, "positive", False)
        return {"start": _as_start(self.coef_, self.intercept_, positive)}

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        """Fitted attributes in scikit-learn's names and shapes."""
        n_outputs = len(fitted["intercept"])
        coef = np.zeros((fitted["n_features"], n_outputs), dtype=fitted["dtype"])
        coef.ravel()[fitted["coordinates"]] = fitted["coef"]
        return {
            "coef_": coef.T,
            "intercept_": fitted["intercept"].astype(fitted["dtype"]),
            "dual_gap_": fitted["dual_gap"],
            "n_iter_": fitted["n_iter"],
        }

    @property
    def sparse_coef_(self) -> Any:
        """Coefficients as a CSR matrix of shape (n_outputs, n_features)."""
        return sparse.csr_matrix(self.coef_)

    def _unconverged(self, result: FitResult) -> str | None:
        """What scikit-learn warns of if the gap is not small enough."""
        gap, asked = result.fitted["dual_gap"], result.fitted["gap_asked"]
        if result.converged:
            return None
        n_iter = result.fitted["n_iter"]
        if n_iter < self.max_iter:
            return (
                f"rounds change nothing any more after {n_iter}, with a duality gap of "
                f"{gap:.3e}, asked was {asked:.3e} (tol={self.tol}): rounding keeps it "
                "open, as with features far from zero; take their means from them, for "
                "example with StandardScaler, or raise tol"
            )
        return (
            f"the maximum of {self.max_iter} rounds was reached with a duality gap of "
            f"{gap:.3e}, asked was {asked:.3e} (tol={self.tol} times the objective "
            "without coefficients, or its root times that reached); raise max_iter, "
            "tol or alpha, or scale the features" + self._advice_on_start()
        )


def path_params(
    estimator: L1Estimator,
    alphas: Any,
    eps: float,
    l1_ratios: tuple[float, ...],
    splits: Any,
) -> PathParams:
    """Parameters of the ranks for paths of an estimator."""
    if isinstance(alphas, Integral):
        if alphas < 1:
            raise ValueError(f"alphas must be at least 1 as a number, got {alphas}")
    else:
        alphas = np.asarray(alphas, dtype=np.float64)
        if alphas.ndim != 1 or not (len(alphas) and (alphas > 0).all()):
            raise ValueError(
                "alphas must be a number, or a vector of numbers above 0, got "
                f"{alphas!r}"
            )
    if not 0 < eps <= 1:
        raise ValueError(f"eps must be above 0 and at most 1, got {eps}")
    return estimator._params_of(
        PathParams,
        alpha=1.0,
        l1_ratio=1.0,
        feature_weights=_checked_weights(estimator.feature_weights),
        link_bandwidth=_config.get_bytes("comm.link-bandwidth"),
        schedule=None,  # paths are made by working sets
        l1_ratios=l1_ratios,
        alphas=alphas,
        eps=eps,
        splits=splits,
    )


def slow_models(
    slow: list[float], n_models: int, max_iter: int, tol: float
) -> str | None:
    """What to warn of if models of paths are not as near to the optimum as asked.

    Parameters
    ----------
    slow : list of float
        Their gaps over the objective without coefficients.
    n_models : int
        Models of the paths.
    max_iter, tol
        Of the estimator.
    """
    if not slow:
        return None
    return (
        f"{len(slow)} of {n_models} models of the path had not converged (max_iter="
        f"{max_iter}): duality gaps of up to {max(slow):.1e} of the objective without "
        f"coefficients, asked was tol={tol}, or its root of what is reached; raise "
        "tol, the smallest alpha or max_iter, or scale the features"
    )


def _checked_weights(weights: Any) -> np.ndarray | None:
    """Weights of the features as an array."""
    if weights is None:
        return None
    weights = np.asarray(weights, dtype=np.float64)
    if weights.ndim != 1 or not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError(
            "feature_weights must be a vector of finite numbers, none of them "
            f"negative, got an array of shape {weights.shape}"
        )
    return weights


def _as_start(coef: Any, intercept: Any, positive: bool) -> dict[str, Any]:
    """A fitted model in the words of the ranks, without signs it must not have."""
    coef = coef.toarray() if sparse.issparse(coef) else np.asarray(coef)
    values = np.atleast_2d(coef).T.astype(np.float64).ravel()
    coordinates = np.flatnonzero(values > 0 if positive else values)
    return {
        "coordinates": coordinates,
        "coef": values[coordinates],
        "intercept": np.atleast_1d(intercept).astype(np.float64),
    }
