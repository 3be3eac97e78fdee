"""A fitted dictionary: codes of rows, and rows of codes."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_array, check_is_fitted

from dask_ma._transformers import DistributedTransformerMixin
from dask_ma.base import DistributedEstimator
from dask_ma.data import (
    apply_blockwise,
    describe,
    is_dask_collection,
    refuse_unfinished,
)
from dask_ma.sfb.dictionary._block import Accuracy
from dask_ma.sfb.dictionary._codes import SYNONYMS, lasso_codes
from dask_ma.sfb.dictionary._pursuit import pursued_codes, threshold_codes

_STEP, _GAP = 1e-3, 1e-4


class DictionaryModel(NamedTuple):
    """What is needed to find codes.

    Attributes
    ----------
    components : ndarray of shape (n_components, n_features)
    alpha : float
    positive_code, split_sign : bool
    algorithm : str
    max_iter : int
    n_nonzero : int
    """

    components: np.ndarray
    alpha: float
    positive_code: bool
    split_sign: bool
    algorithm: str
    max_iter: int
    n_nonzero: int


def codes_of(model: DictionaryModel, X: Any) -> np.ndarray:
    """Codes of a block of rows.

    Parameters
    ----------
    model : DictionaryModel
    X : ndarray or CSR of shape (n_rows, n_features)

    Returns
    -------
    codes : ndarray of shape (n_rows, n_components), or twice as many columns
    """
    X = X.astype(np.result_type(X.dtype, model.components.dtype), copy=False)
    if model.algorithm == "omp":
        codes = pursued_codes(X, model.components, model.n_nonzero)
    elif model.algorithm == "threshold":
        codes = threshold_codes(
            X, model.components, model.alpha, positive=model.positive_code
        )
    else:
        codes = _codes_of_lasso(model, X)
    if not model.split_sign:
        return codes
    return np.hstack([np.maximum(codes, 0), np.maximum(-codes, 0)])


def _codes_of_lasso(model: DictionaryModel, X: Any) -> np.ndarray:
    """Codes by the penalty of the fit, or another one."""
    accuracy = Accuracy(_STEP, _GAP, model.max_iter)
    found = lasso_codes(
        X,
        model.components,
        model.alpha,
        accuracy,
        positive=model.positive_code,
        algorithm=model.algorithm,
    )
    if found.n_unsettled:
        warnings.warn(
            f"the codes of {found.n_unsettled} of {X.shape[0]} rows have not reached a "
            f"duality gap of {_GAP} of the row's objective; raise transform_max_iter "
            "or transform_alpha, or give rows as float64",
            ConvergenceWarning,
            stacklevel=3,
        )
    return found.values


def rows_of_codes(components: np.ndarray, codes: Any) -> np.ndarray:
    """Rows that codes stand for.

    Parameters
    ----------
    components : ndarray of shape (n_components, n_features)
    codes : ndarray or CSR of shape (n_rows, n_components), or twice as many columns
        In the second half are the sizes of negative codes.

    Returns
    -------
    rows : ndarray of shape (n_rows, n_features)
    """
    half = len(components)
    rows = codes[:, :half] @ components
    if codes.shape[1] > half:
        rows -= codes[:, half:] @ components
    return np.asarray(rows)


class FittedDictionary(DistributedTransformerMixin, DistributedEstimator):
    """Base of SFBDictionaryLearning: what can be done with atoms."""

    @property
    def _is_planned(self) -> bool:
        solver = getattr(self, "solver", "online")  # SFBDictionaryLearning chooses it
        return bool(solver == "sgd")  # whose steps become shorter

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return len(self.components_) * (2 if self.split_sign else 1)

    @property
    def _n_nonzero(self) -> int:
        """Most atoms of a row by "omp"; scikit-learn's without a number."""
        wanted = self.transform_n_nonzero_coefs
        n_components, n_features = self.components_.shape
        if wanted is None:
            wanted = max(1, n_features // 10)
        return int(min(wanted, n_components))

    def transform(self, X: Any) -> Any:
        """Codes of rows: the lasso on the atoms, or as `transform_algorithm` says.

        Parameters
        ----------
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features)
            Rows.

        Returns
        -------
        codes : ndarray or dask.array of shape (n_samples, n_components)
            Twice as many columns with `split_sign`. Lazy for a Dask collection. Each
            code of the lasso has a duality gap of at most 1e-4 times the objective of
            its row, or of what rounding leaves of the row's square.

        Warns
        -----
        ConvergenceWarning
            If some codes would have needed more iterations than `transform_max_iter`.
        """
        check_is_fitted(self)
        alpha = self.alpha if self.transform_alpha is None else self.transform_alpha
        algorithm: str = self.transform_algorithm or self.fit_algorithm
        model = DictionaryModel(
            self.components_,
            float(alpha),
            self.positive_code,
            self.split_sign,
            SYNONYMS.get(algorithm, algorithm),
            self.transform_max_iter,
            self._n_nonzero,
        )
        return self._transformed(
            X,
            codes_of,
            model=model,
            n_outputs=self._n_features_out,
            dtype=self._dtype_beside(X),
        )

    def inverse_transform(self, X: Any) -> Any:
        """Rows that codes stand for.

        Parameters
        ----------
        X : array-like, sparse, dask.array or dask.dataframe, of shape (n_samples, \
                n_components)
            Codes as :meth:`transform` gives them.

        Returns
        -------
        rows : ndarray or dask.array of shape (n_samples, n_features)
            Sums of atoms, each times its code. Lazy for a Dask collection.

        Raises
        ------
        ValueError
            For another number of columns.
        """
        check_is_fitted(self)
        refuse_unfinished(X, "X")
        if not is_dask_collection(X):
            X = check_array(X, accept_sparse="csr", dtype=[np.float64, np.float32])
        expected = self._n_features_out
        if X.shape[1] != expected:
            raise ValueError(
                f"X has {X.shape[1]} columns, but codes of "
                f"{type(self).__name__} have {expected}"
            )
        if not is_dask_collection(X):
            return rows_of_codes(self.components_, X)
        return apply_blockwise(
            X,
            rows_of_codes,
            model=self.components_,
            n_outputs=self.components_.shape[1],
            dtype=self._dtype_beside(X),
        )

    def _dtype_beside(self, X: Any) -> np.dtype | None:
        """Type of what atoms and lazy rows give; None for rows in memory."""
        refuse_unfinished(X, "X")
        if not is_dask_collection(X):
            return None
        rows = describe(X).dtype
        is_float = np.issubdtype(rows, np.floating)
        return np.result_type(rows if is_float else np.float64, self.components_.dtype)
