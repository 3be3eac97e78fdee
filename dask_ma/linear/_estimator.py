"""Estimators of linear models, whatever system trains them: base, losses, mixins."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any, ClassVar

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dask_ma.base import (
    DistributedClassifierMixin,
    DistributedEstimator,
    DistributedRegressorMixin,
)
from dask_ma.kernels import Loss, transposed_copy
from dask_ma.linear import _functions
from dask_ma.linear._losses import as_named, loss_name
from dask_ma.linear._patience import PATIENCE
from dask_ma.supervised._params import FitResult

_PEER_ATTRIBUTES = (
    "classes_",
    "coef_",
    "feature_names_in_",
    "intercept_",
    "n_features_in_",
    "n_iter_",
    "t_",
)

_WIDE = 2  # rows, for each feature, up to which there are few of them


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
        peer : estimator of scikit-learn
            With the parameters that cross-validation has chosen, if there was any. It
            shares no memory with this estimator and does not need Dask.
        """
        peer = self._to_peer()
        if isinstance(peer.coef_, np.ndarray):
            # Its steps take the coefficients of a class, which have to lie together.
            peer.coef_ = np.ascontiguousarray(peer.coef_)
        return peer

    def _to_peer(self) -> Any:
        """The same with coefficients as they lie here, which is best to predict by."""
        check_is_fitted(self)
        peer = self._sklearn_type()(**self._sklearn_parameters())
        for name in _PEER_ATTRIBUTES:
            if hasattr(self, name):
                setattr(peer, name, copy(getattr(self, name)))
        return peer

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
        if own.get("n_iter_no_change") == "auto":
            own["n_iter_no_change"] = PATIENCE
        return {k: v for k, v in own.items() if k in known}

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        """Fitted attributes in scikit-learn's names and shapes."""
        return {
            "coef_": _by_features(fitted["coef"]),
            "intercept_": fitted["intercept"],
            "n_iter_": fitted["n_iter"],
            "t_": fitted["t"],
        }

    def _predictor(self) -> Any:
        peer = self._to_peer()
        if hasattr(peer, "feature_names_in_"):
            del peer.feature_names_in_  # blocks have been checked and lost their names
        return peer

    def _warm_model(self) -> dict[str, Any]:
        """Model to go on from, in the words of the agent."""
        if not hasattr(self, "coef_"):
            return {}
        coef = np.atleast_2d(_dense(self.coef_))
        return {"coef": coef, "intercept": np.atleast_1d(self.intercept_)}

    def _warm_changes(self) -> dict[str, Any]:
        model = self._warm_model() if getattr(self, "warm_start", False) else {}
        return {**model, "is_warm": True} if model else {}

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
                + self._advice_on_shape(last)
                + self._advice_on_start()
            )
        if self.tol is None or result.converged:
            return None
        return (
            f"the maximum of {self.max_iter} rounds was reached before the objective "
            "settled; raise max_iter, or set tol=None if this is wanted"
        )

    def _advice_on_start(self) -> str:
        """What else helps a fit that goes on from a model; empty where none does."""
        if not getattr(self, "warm_start", False):
            return ""
        return (
            ". If warm_start goes on from a model of other rows, such as of another "
            "scale, set warm_start=False"
        )

    def _advice_on_shape(self, record: dict[str, Any]) -> str:
        """What else helps a refinement of rows that are few beside the features."""
        if record["n_samples"] > _WIDE * self.n_features_in_:
            return ""
        return (
            ". The rows are few beside the features, and nearly all of them can be "
            "fitted: alpha may have to be a hundred times as large or more, or the "
            "features fewer, for example by sklearn.decomposition.PCA"
        )


def given_model(coef_init: Any, intercept_init: Any) -> dict[str, Any]:
    """The model that the user wants `fit` to start from, in parameters of the agent."""
    given = {"coef": coef_init, "intercept": intercept_init}
    changes = {k: np.asarray(v) for k, v in given.items() if v is not None}
    # The fitted model, if any, has no say then.
    cold = {"is_warm": False, "warm_classes": None} if "coef" in changes else {}
    return {**changes, **cold}


def _by_features(coef: np.ndarray) -> np.ndarray:
    """Coefficients with those of a feature together, which sparse rows are read by."""
    if coef.ndim < 2 or len(coef) == 1 or coef.flags.f_contiguous:
        return coef
    return transposed_copy(coef).T


def _dense(coef: Any) -> np.ndarray:
    """Coefficients as an array."""
    return coef.toarray() if hasattr(coef, "toarray") else np.asarray(coef)


def _has_probabilities(estimator: Any) -> bool:
    """Whether the loss gives probabilities."""
    # Logistic regressions have no choice of losses.
    loss = loss_name(getattr(estimator, "loss", "log_loss"))
    if loss in ("log_loss", "modified_huber"):
        return True
    raise AttributeError(
        "probability estimates need loss='log_loss' or loss='modified_huber', got "
        f"loss={estimator.loss!r}"
    )


class LinearClassifierMixin(DistributedClassifierMixin):
    """Predictions of linear classifiers, at once or lazily.

    Goes before :class:`LinearEstimator`; needs `loss` and `class_weight`.
    """

    def decision_function(self, X: Any) -> Any:
        """Values of the linear functions; the largest one decides.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        values : ndarray or dask.array of shape (n_samples,) or (n_samples, n_classes)
            Lazy for Dask input. With two classes a vector, above 0 for the second one,
            which is a Series for a dask.dataframe.
        """
        check_is_fitted(self)
        n_classes = len(self.classes_)
        n_outputs = None if n_classes == 2 else n_classes
        return self._apply(X, _functions.decision_function, n_outputs=n_outputs)

    def predict(self, X: Any) -> Any:
        """Labels with the largest value of the decision function.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        labels : ndarray, dask.array or dask Series, of shape (n_samples,)
            Lazy for Dask input; a Series for a dask.dataframe.
        """
        check_is_fitted(self)
        return self._apply(X, _functions.predict, dtype=self.classes_.dtype)

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, for the losses "log_loss" and "modified_huber".

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        probabilities : ndarray or dask.array of shape (n_samples, n_classes)
            Lazy for Dask input. With more than two classes they are normalised over the
            problems of one class against the rest, as scikit-learn does it.
        """
        check_is_fitted(self)
        return self._apply(
            X, _functions.predict_proba, n_outputs=len(self.classes_), dtype=np.float64
        )

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any) -> Any:
        """Logarithms of :meth:`predict_proba`.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        logarithms : ndarray or dask.array of shape (n_samples, n_classes)
            Lazy for Dask input.
        """
        check_is_fitted(self)
        return self._apply(
            X,
            _functions.predict_log_proba,
            n_outputs=len(self.classes_),
            dtype=np.float64,
        )

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        return {**super()._to_attributes(fitted), "classes_": fitted["classes"]}


class LinearRegressorMixin(DistributedRegressorMixin):
    """Predictions of linear regressors, at once or lazily.

    Goes before :class:`LinearEstimator`.
    """

    def predict(self, X: Any) -> Any:
        """Values of the linear function.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        values : ndarray, dask.array or dask Series, of shape (n_samples,)
            Lazy for Dask input; a Series for a dask.dataframe.
        """
        check_is_fitted(self)
        return self._apply(X, _functions.predict)
