"""The estimators' side of a linear model, whatever system trains it."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any, ClassVar

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from dask_ma.base import DistributedEstimator
from dask_ma.kernels import Loss
from dask_ma.linear._loss import as_named
from dask_ma.supervised._params import FitResult

_TWIN_ATTRIBUTES = (
    "classes_",
    "coef_",
    "feature_names_in_",
    "intercept_",
    "n_features_in_",
    "n_iter_",
    "t_",
)


class LinearEstimator(DistributedEstimator):
    """Base of the linear estimators; a subclass says what trains the model.

    A subclass has the parameters `max_iter`, `tol` and `warm_start`, and sets
    `_sklearn_class`.
    """

    _sklearn_class: ClassVar[type]  # scikit-learn's estimator of the same model

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
        twin : estimator of scikit-learn
            It shares no memory with this estimator and does not need Dask.
        """
        check_is_fitted(self)
        twin = self._sklearn_type()(**self._sklearn_parameters())
        for name in _TWIN_ATTRIBUTES:
            if hasattr(self, name):
                setattr(twin, name, copy(getattr(self, name)))
        return twin

    def _sklearn_type(self) -> type:
        """scikit-learn's class of the same model."""
        return self._sklearn_class

    def _peer_type(self) -> type:
        return self._sklearn_class

    def _sklearn_parameters(self) -> dict[str, Any]:
        """Parameters of scikit-learn's estimator: those that it has, too."""
        known = self._sklearn_type()().get_params()
        own = self.get_params()
        if isinstance(own.get("loss"), Loss):
            own |= as_named(own["loss"], own["epsilon"])
        return {k: v for k, v in own.items() if k in known}

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        """Fitted attributes in scikit-learn's names and shapes."""
        return {
            "coef_": fitted["coef"],
            "intercept_": fitted["intercept"],
            "n_iter_": fitted["n_iter"],
            "t_": fitted["t"],
        }

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

    def _warm_changes(self) -> dict[str, Any]:
        return self._warm_model() if getattr(self, "warm_start", False) else {}

    def _warnings(
        self, result: FitResult, *, is_partial: bool
    ) -> Iterator[tuple[str, type[Warning]]]:
        yield from super()._warnings(result, is_partial=is_partial)
        message = None if is_partial else self._unconverged(result)
        if message is not None:
            yield message, ConvergenceWarning

    def _unconverged(self, result: FitResult) -> str | None:
        """What scikit-learn warns of if `tol`, or `refine_tol`, was not reached."""
        last = result.history[-1] if result.history else {}
        if last.get("refined", False):
            if result.converged:
                return None
            return (
                f"the refinement ended after {self.n_iter_} rounds with an objective "
                f"about {last['excess']:.1g} times its value above the optimum, which "
                f"is more than refine_tol={self.refine_tol}; raise refine_max_iter or "
                "alpha, or scale the features"
            )
        if self.tol is None or result.converged:
            return None
        return (
            f"the maximum of {self.max_iter} rounds was reached before the objective "
            "settled; raise max_iter, or set tol=None if this is wanted"
        )


def given_model(coef_init: Any, intercept_init: Any) -> dict[str, Any]:
    """The model that the user wants `fit` to start from, in parameters of the agent."""
    given = {"coef": coef_init, "intercept": intercept_init}
    return {k: np.asarray(v) for k, v in given.items() if v is not None}


def _dense(coef: Any) -> np.ndarray:
    """Coefficients as an array."""
    return coef.toarray() if hasattr(coef, "toarray") else np.asarray(coef)
