"""Methods of a fitted metric: rows projected, distances of pairs, thresholds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Self

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dask_ma._transformers import DistributedTransformerMixin
from dask_ma.base import DistributedEstimator
from dask_ma.data import describe, is_dask_collection, refuse_unfinished
from dask_ma.kernels import scale_columns
from dask_ma.sfb.metric._sides import distance, distances_of
from dask_ma.sfb.metric._validation import area_under_curve, cut_counts

_NO_THRESHOLD = (
    "there is no threshold yet: fit to pairs, or call set_threshold or "
    "calibrate_threshold"
)
_STRATEGIES = ("accuracy", "f_beta", "max_tpr", "max_tnr")


def _can_tell(estimator: Any) -> bool:
    """Whether pairs can be told apart, or triplets put in order."""
    if hasattr(estimator, "threshold_") or estimator.loss == "triplet":
        return True
    raise AttributeError(_NO_THRESHOLD)


class FittedMetric(DistributedTransformerMixin, DistributedEstimator):
    """Base of SFBMetricLearner: what can be done with components."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.target_tags.one_d_labels = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def transform(self, X: Any) -> Any:
        """Project rows, so that Euclidean distances are the learnt ones.

        Parameters
        ----------
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features)
            Rows.

        Returns
        -------
        Z : ndarray or dask.array of shape (n_samples, n_components)
            ``X @ components_.T``; lazy for a Dask collection. Of a diagonal metric
            ``X * components_``, of shape (n_samples, n_features): a CSR for sparse
            rows, of which a Dask collection has blocks of CSR.
        """
        check_is_fitted(self)
        refuse_unfinished(X, "X")
        lazy: dict[str, Any] = {"keeps_sparse": self._is_diagonal}
        if is_dask_collection(X):
            rows = describe(X).dtype
            is_float = np.issubdtype(rows, np.floating)
            kept = rows if is_float else np.float64
            lazy["dtype"] = np.result_type(kept, self.components_.dtype)
        n_outputs = len(self.components_)
        return self._transformed(X, project, n_outputs=n_outputs, **lazy)

    @property
    def _is_diagonal(self) -> bool:
        """Whether features are weighed, and not mixed."""
        return self.components_.ndim == 1

    def _predictor(self) -> np.ndarray:
        return self.components_

    # Distances of pairs ---------------------------------------------------------------

    def pair_distance(self, pairs: Any, X: Any = None) -> np.ndarray:
        """Learnt distances of pairs of rows.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features), or of int of shape \
                (n_pairs, 2)
            The rows themselves, or numbers of rows of `X`.
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features), default=None
            Rows that the numbers name. Workers project those of a Dask collection.

        Returns
        -------
        distances : ndarray of float64 of shape (n_pairs,)
            Of a row with itself 0.

        Raises
        ------
        ValueError
            For pairs of another shape, and numbers of rows that `X` does not have.
        """
        distances = self._distances(pairs, X)
        if distances.shape[1] != 1:
            raise ValueError(
                f"pairs has the shape {np.shape(pairs)}, expected (n_pairs, 2), or "
                "(n_pairs, 2, n_features): triplets are for predict, "
                "decision_function and score"
            )
        return np.ravel(distances)

    def pair_score(self, pairs: Any, X: Any = None) -> np.ndarray:
        """How similar pairs are: minus their distances.

        Parameters
        ----------
        pairs, X
            As in :meth:`pair_distance`.

        Returns
        -------
        scores : ndarray of shape (n_pairs,)
        """
        return -self.pair_distance(pairs, X)

    def get_metric(self) -> Callable[..., float]:
        """The learnt distance of two rows, as a function.

        It shares nothing with this estimator, can be pickled, and can be the `metric`
        of scikit-learn's estimators of neighbours; these are faster on rows that are
        projected.

        Returns
        -------
        metric : callable
            ``metric(u, v, squared=False)``.
        """
        check_is_fitted(self)
        return partial(distance, self.components_.copy())

    def get_mahalanobis_matrix(self) -> np.ndarray:
        """The matrix of the learnt distance.

        Returns
        -------
        M : ndarray of shape (n_features, n_features)
            ``components_.T @ components_``: the square of the distance of `x` and `y`
            is ``(x - y) @ M @ (x - y)``. Of a diagonal metric
            ``np.diag(components_**2)``, which is much larger than `components_`.
        """
        check_is_fitted(self)
        if self._is_diagonal:
            return np.diag(self.components_**2)
        matrix: np.ndarray = self.components_.T @ self.components_
        return matrix

    # Whether pairs are similar --------------------------------------------------------

    @available_if(_can_tell)
    def predict(self, pairs: Any, X: Any = None) -> np.ndarray:
        """Tell which pairs are similar, by the threshold, or which triplets are true.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features) or (n_pairs, 3, \
                n_features), or of int of shape (n_pairs, 2) or (n_pairs, 3)
            The rows themselves, or numbers of rows of `X`. Triplets need no threshold.
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features), default=None
            Rows that the numbers name.

        Returns
        -------
        labels : ndarray of int of shape (n_pairs,)
            1 for distances up to `threshold_`, else -1. Of triplets 1 if the second row
            is nearer to the first than the third is.
        """
        distances = self._distances(pairs, X)
        if distances.shape[1] == 2:
            return np.where(distances[:, 0] < distances[:, 1], 1, -1)
        self._need_threshold()
        return np.where(distances[:, 0] <= self.threshold_, 1, -1)

    @available_if(_can_tell)
    def decision_function(self, pairs: Any, X: Any = None) -> np.ndarray:
        """How similar pairs are, as by :meth:`pair_score`, or how true triplets are.

        Parameters
        ----------
        pairs, X
            As in :meth:`predict`.

        Returns
        -------
        scores : ndarray of shape (n_pairs,)
            Above ``-threshold_`` for similar pairs. Of triplets the distance to the
            third row less that to the second, above 0 if that is nearer.
        """
        distances = self._distances(pairs, X)
        if distances.shape[1] == 2:
            return np.asarray(distances[:, 1] - distances[:, 0])
        self._need_threshold()
        return -np.ravel(distances)

    @available_if(_can_tell)
    def score(self, pairs: Any, pair_labels: Any = None, X: Any = None) -> float:
        """Area under the receiver operating characteristic curve; see below.

        Parameters
        ----------
        pairs, X
            As in :meth:`predict`.
        pair_labels : array-like of shape (n_pairs,), default=None
            1 for similar pairs, -1 for others; None for triplets.

        Returns
        -------
        score : float
            Part of the pairs of a similar and another pair in which the similar one is
            the nearer. Of triplets the part that is true.
        """
        distances = self._distances(pairs, X)
        if distances.shape[1] == 2:
            if pair_labels is not None:
                raise ValueError("pair_labels are for pairs of two rows, not triplets")
            return float((distances[:, 0] < distances[:, 1]).mean())
        self._need_threshold()
        labels = check_labels(pair_labels, len(distances))
        return area_under_curve(-np.ravel(distances), labels > 0)

    def _need_threshold(self) -> None:
        """Refuse pairs after a fit to triplets, until there is a threshold."""
        if not hasattr(self, "threshold_"):
            raise AttributeError(_NO_THRESHOLD)

    def set_threshold(self, threshold: float) -> Self:
        """Choose the distance up to which pairs are similar.

        Parameters
        ----------
        threshold : float
            Not negative.

        Returns
        -------
        self : SFBMetricLearner
        """
        check_is_fitted(self)
        value = float(threshold)
        if not value >= 0:
            raise ValueError(f"threshold must be at least 0, got {threshold!r}")
        self.threshold_ = value
        return self

    def calibrate_threshold(
        self,
        pairs: Any,
        pair_labels: Any,
        X: Any = None,
        *,
        strategy: str = "accuracy",
        min_rate: float | None = None,
        beta: float = 1.0,
    ) -> Self:
        """Find the distance that tells pairs apart best; other pairs than those of fit.

        Parameters
        ----------
        pairs, X
            As in :meth:`pair_distance`.
        pair_labels : array-like of shape (n_pairs,)
            1 for similar pairs, -1 for others.
        strategy : {"accuracy", "f_beta", "max_tpr", "max_tnr"}, default="accuracy"
            What is to be large: the part of the pairs that is named rightly; the
            weighted mean of precision and recall; the part of the similar pairs that is
            found, with at least `min_rate` of the others told rightly ("max_tpr"), or
            the other way round.
        min_rate : float, default=None
            From 0 to 1, for "max_tpr" and "max_tnr".
        beta : float, default=1.0
            How much more recall counts than precision, above 0, for "f_beta".

        Returns
        -------
        self : SFBMetricLearner
        """
        distances = self.pair_distance(pairs, X)
        similar = check_labels(pair_labels, len(distances)) > 0
        if strategy not in _STRATEGIES:
            raise ValueError(f"strategy must be one of {_STRATEGIES}, got {strategy!r}")
        needs_rate = strategy in ("max_tpr", "max_tnr")
        if needs_rate != (min_rate is not None):
            raise ValueError(
                "min_rate is for the strategies 'max_tpr' and 'max_tnr', which need "
                f"it; got strategy={strategy!r} and min_rate={min_rate!r}"
            )
        if min_rate is not None and not 0 <= min_rate <= 1:
            raise ValueError(f"min_rate must be from 0 to 1, got {min_rate!r}")
        if not beta > 0:
            raise ValueError(f"beta must be above 0, got {beta!r}")
        cuts, hits, misses = cut_counts(distances, similar)
        value = _values(strategy, hits, misses, similar, min_rate or 0.0, beta)
        self.threshold_ = float(cuts[np.argmax(value)])
        return self

    def _distances(self, tuples: Any, X: Any) -> np.ndarray:
        """Distances of pairs, in one column, or those of triplets in two."""
        check_is_fitted(self)
        refuse_unfinished(X, "X")
        return distances_of(tuples, X, self._exact)

    def _exact(self, X: Any) -> Any:
        """Rows between which distances are the learnt ones, in double precision."""
        return self._apply(
            X,
            project_exactly,
            n_outputs=len(self.components_),
            dtype=np.float64,
            keeps_sparse=self._is_diagonal,
        )


def project(components: np.ndarray, X: Any) -> Any:
    """Rows times components; those of a diagonal metric stay sparse."""
    if components.ndim > 1:
        return np.asarray(X @ components.T)
    return scale_columns(X, components)


def project_exactly(components: np.ndarray, X: Any) -> Any:
    """The same in double precision: differences are small beside rows far from 0."""
    return project(
        components.astype(np.float64, copy=False), X.astype(np.float64, copy=False)
    )


def check_labels(labels: Any, n_pairs: int) -> np.ndarray:
    """Labels of pairs, or an error: 1 and -1, and both of them."""
    labels = np.asarray(labels)
    if labels.shape != (n_pairs,):
        raise ValueError(
            f"pair_labels has the shape {labels.shape}, expected ({n_pairs},), one "
            "label for each pair"
        )
    found = sorted(set(labels.tolist()), key=repr)
    if not set(found) <= {1, -1}:
        raise ValueError(
            "pair_labels must be 1 for similar pairs and -1 for others, got "
            f"{found[:5]}"
        )
    if len(found) < 2:
        missing = "dissimilar" if found == [1] else "similar"
        raise ValueError(
            f"pair_labels are all {found[0]}: there is no {missing} pair, and a "
            "distance is learnt from the difference"
        )
    return labels.astype(np.int64)


def _values(
    strategy: str,
    hits: np.ndarray,
    misses: np.ndarray,
    similar: np.ndarray,
    min_rate: float,
    beta: float,
) -> np.ndarray:
    """What each threshold is worth."""
    n_similar = int(similar.sum())
    if strategy == "accuracy":
        return hits - misses
    if strategy == "f_beta":
        square = beta**2
        return (1 + square) * hits / (hits + misses + square * n_similar)
    found = hits / n_similar
    spared = 1 - misses / (len(similar) - n_similar)
    if strategy == "max_tpr":
        return np.where(spared >= min_rate, found, -1)
    return np.where(found >= min_rate, spared, -1)
