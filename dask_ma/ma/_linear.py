"""What the two linear estimators share."""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from dask_ma._callbacks import N_WRAPPERS
from dask_ma._sklearn import Interval, StrOptions
from dask_ma.base import DistributedEstimator
from dask_ma.ma._agent import train
from dask_ma.ma._params import FitParams, FitResult

_PASSED_ON = (
    "loss",
    "penalty",
    "alpha",
    "l1_ratio",
    "fit_intercept",
    "max_iter",
    "tol",
    "shuffle",
    "epsilon",
    "learning_rate",
    "eta0",
    "power_t",
    "early_stopping",
    "validation_fraction",
    "n_iter_no_change",
    "average",
    "local_epochs",
)
_ONLY_DISTRIBUTED = ("local_epochs", "n_ranks")


class LinearMA(DistributedEstimator):
    """Base of MASGDClassifier and MASGDRegressor."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "penalty": [StrOptions({"l2", "l1", "elasticnet"}), None],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "l1_ratio": [Interval(Real, 0, 1, closed="both")],
        "fit_intercept": ["boolean"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left"), None],
        "shuffle": ["boolean"],
        "verbose": ["verbose"],
        "epsilon": [Interval(Real, 0, None, closed="left")],
        "random_state": ["random_state"],
        "learning_rate": [
            StrOptions({"constant", "optimal", "invscaling", "adaptive", "pa1", "pa2"})
        ],
        "eta0": [Interval(Real, 0, None, closed="neither")],
        "power_t": [Interval(Real, 0, None, closed="left")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "warm_start": ["boolean"],
        "average": [Interval(Integral, 0, None, closed="left"), "boolean"],
        "local_epochs": [
            StrOptions({"auto"}),
            Interval(Real, 0, None, closed="neither"),
        ],
        "n_ranks": [Interval(Integral, 1, None, closed="left"), None],
    }
    _twin: ClassVar[type]  # scikit-learn's estimator of the same model
    _passive_loss: ClassVar[str]  # the loss that passive-aggressive steps are made for

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def sparsify(self) -> Any:
        """Turn `coef_` into a CSR matrix, which saves memory after an L1 penalty.

        Returns
        -------
        self : estimator
        """
        from scipy.sparse import csr_matrix

        check_is_fitted(self)
        self.coef_: Any = csr_matrix(self.coef_)
        return self

    def densify(self) -> Any:
        """Turn `coef_` back into an array, which `fit` and `partial_fit` need.

        Returns
        -------
        self : estimator
        """
        check_is_fitted(self)
        coef = _dense(self.coef_)  # a matrix, whatever it was before `sparsify`
        self.coef_ = coef if is_classifier(self) else coef.ravel()
        return self

    def to_sklearn(self) -> Any:
        """A fitted scikit-learn estimator with the same model.

        Returns
        -------
        twin : SGDClassifier or SGDRegressor
            It shares no memory with this estimator and does not need Dask.
        """
        check_is_fitted(self)
        params = {
            name: value
            for name, value in self.get_params().items()
            if name not in _ONLY_DISTRIBUTED
        }
        twin = self._twin(**params)
        for name in ("coef_", "intercept_", "classes_", "feature_names_in_"):
            if hasattr(self, name):
                setattr(twin, name, getattr(self, name).copy())
        twin.n_features_in_ = self.n_features_in_
        twin.n_iter_ = self.n_iter_
        twin.t_ = self.t_
        return twin

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        """Fitted attributes in scikit-learn's names and shapes."""
        return {
            "coef_": fitted["coef"],
            "intercept_": fitted["intercept"],
            "n_iter_": fitted["n_iter"],
            "t_": fitted["t"],
        }

    def _fit_rounds(
        self, X: Any, y: Any, sample_weight: Any, **changes: Any
    ) -> FitResult:
        """Fit on all ranks and take over the result."""
        self._check_parameters()
        names = {name: getattr(self, name) for name in _PASSED_ON}
        names["class_weight"] = getattr(self, "class_weight", None)
        params = FitParams(**{**names, **changes}, is_classifier=is_classifier(self))
        result: FitResult = self._run(
            train,
            params,
            X,
            y,
            sample_weight,
            max_rounds=params.max_iter,
            to_attributes=self._to_attributes,
        )
        for name, value in self._to_attributes(result.fitted).items():
            setattr(self, name, value)
        self.history_ = result.history
        return result

    def _predictor(self) -> Any:
        twin = self.to_sklearn()
        if hasattr(twin, "feature_names_in_"):
            del twin.feature_names_in_  # blocks have been checked and lost their names
        return twin

    def _warm_model(self) -> dict[str, Any]:
        """Model to go on from, in the words of the agent."""
        if not hasattr(self, "coef_"):
            return {}
        coef = np.atleast_2d(_dense(self.coef_))
        return {"coef": coef, "intercept": np.atleast_1d(self.intercept_)}

    def _warn_unless_converged(self, result: FitResult) -> None:
        """Warn as scikit-learn does if `tol` was not reached."""
        if self.tol is not None and not result.converged:
            warnings.warn(
                f"the maximum of {self.max_iter} rounds was reached before the "
                "objective settled; raise max_iter, or set tol=None if this is wanted",
                ConvergenceWarning,
                stacklevel=3 + N_WRAPPERS,
            )

    def _check_parameters(self) -> None:
        """Refuse combinations of parameters that do not go together."""
        if self.learning_rate == "optimal" and self.alpha == 0:
            raise ValueError(
                "alpha must be > 0 since learning_rate is 'optimal', which is "
                "1 / (alpha * t); got alpha=0"
            )
        if self.learning_rate in ("pa1", "pa2") and self.loss != self._passive_loss:
            raise ValueError(
                f"learning_rate={self.learning_rate!r} only works with "
                f"loss={self._passive_loss!r}, got loss={self.loss!r}"
            )

    def _partial_changes(self) -> dict[str, Any]:
        """Parameters of the one round of `partial_fit`."""
        for name in ("early_stopping", "average"):
            if getattr(self, name):
                raise ValueError(
                    f"{name} should be False with partial_fit, which is one round and "
                    f"cannot look back; got {name}={getattr(self, name)!r}"
                )
        return {
            **self._warm_model(),
            "t": getattr(self, "t_", 1.0),
            "max_iter": 1,
            "local_epochs": 1.0,
        }

    def _initial_changes(self, coef_init: Any, intercept_init: Any) -> dict[str, Any]:
        """The model that `fit` starts from."""
        changes = self._warm_model() if self.warm_start else {}
        given = {"coef": coef_init, "intercept": intercept_init}
        changes.update({k: np.asarray(v) for k, v in given.items() if v is not None})
        return changes


def _dense(coef: Any) -> np.ndarray:
    """Coefficients as an array."""
    return coef.toarray() if hasattr(coef, "toarray") else np.asarray(coef)
