"""Lasso and elastic net with the penalty chosen by cross-validation."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn import get_config
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, ElasticNetCV, Lasso
from sklearn.model_selection import KFold, check_cv
from sklearn.utils.metadata_routing import (
    MetadataRouter,
    MethodMapping,
    process_routing,
)

from dask_ma._callbacks import with_callbacks
from dask_ma._settings import Inactive
from dask_ma._sklearn import Interval, fit_context
from dask_ma.data import InputInfo, InputSize, Kept
from dask_ma.engine import worthwhile_ranks
from dask_ma.linear import LinearRegressorMixin
from dask_ma.schmp.l1._cost import cost_of_paths
from dask_ma.schmp.l1._estimator import L1Estimator, path_params, slow_models
from dask_ma.schmp.l1._path import PathParams, cross_validate
from dask_ma.supervised import FitResult


class SchMPLassoCV(LinearRegressorMixin, L1Estimator):
    """Lasso and elastic net with `alpha` chosen by cross-validation.

    For each fold, and each `l1_ratio`, a path of models with falling `alpha` is fitted,
    each starting from the last. The rows are laid out once: those that a fold is tested
    with have the weight 0 meanwhile. The `alpha` with the least mean squared error is
    used for the final model, on all rows. As in scikit-learn, that error is the mean
    over the folds, however many rows each has.

    What a fit says of parameters that cannot act beside others is in the
    :ref:`User Guide <parameters>`.

    Parameters
    ----------
    l1_ratio : float or array-like of float, default=1.0
        Share of L1 in the penalty, from 0 to 1; of several the best one is chosen.
    eps : float, default=1e-3
        The smallest `alpha` over the largest one, where `alphas` is a number.
    alphas : array-like of shape (n_alphas,) or int, default=100
        Values of `alpha`, above 0, or how many there are to be, evenly spaced on a
        logarithmic scale. The largest one is the smallest that gives zeros.
    fit_intercept : bool, default=True
        Whether to fit an intercept.
    positive : bool, default=False
        Whether coefficients must not be negative. It needs an L1 penalty on each.
    max_iter : int, default=1000
        Most rounds of each model.
    tol : float, default=1e-6
        A model is done when its duality gap is at most this fraction of the objective
        without coefficients, and at most its root of its own objective. Models of
        small `alpha` leave little of the former, and which of them is the best is seen
        only between models that are nearly exact.
    feature_weights : array-like of shape (n_features,), default=None
        Weight of each feature in the penalty, not negative; None weights all alike.
    cv : int, cross-validation generator, iterable or None, default=None
        Folds, as in scikit-learn; None stands for 5. An int makes folds of consecutive
        rows, and works where the number of rows is not known; rows sorted by their
        target want a generator that shuffles.
    layout : {"auto", "rows", "columns"}, default="auto"
        Whether rows or columns of the data are shared out over the ranks; see
        :class:`SchMPLasso`.
    verbose : int, default=0
        1 shows a progress bar, in a terminal or notebook and with rich installed; a
        higher value, or 1 elsewhere, prints a line per path.
    n_ranks : int or None, default=None
        Number of ranks. None means one per worker thread of the current client, or
        fewer where more would take longer (:ref:`ranks_that_pay`), and one without a
        client. Without a client the ranks are threads of this process.

    Attributes
    ----------
    alpha_ : float
        The best weight of the penalty.
    l1_ratio_ : float
        The best share of L1.
    alphas_ : ndarray of shape (n_alphas,) or (n_l1_ratios, n_alphas)
        Values of `alpha` that were tried, the largest first.
    mse_path_ : ndarray of shape (n_alphas, n_folds) or (n_l1_ratios, n_alphas, n_folds)
        Mean squared error of each fold's test rows.
    coef_ : ndarray of shape (n_features,)
        Coefficients.
    sparse_coef_ : CSR matrix of shape (1, n_features)
        The same, without the zeros.
    intercept_ : float
        Intercept.
    dual_gap_ : float
        Duality gap of the final model, in units of the objective.
    n_iter_ : int
        Rounds of the final model.
    history_ : list of dict
        One record per path: `round`; `time`, in seconds since rank 0 started;
        `l1_ratio`; `fold`; `mean_squared_error`, the least of the path; `objective`,
        `dual_gap`, `n_nonzero` and `working_set` of its last model; `n_touched`, stored
        elements of the data read in it by all ranks; and the sums and means that
        :class:`SchMPLasso` has.
        `restarts` counts how often the ranks have had to start again until then.
    timeline_ : ndarray of shape (n_spans,)
        What each rank has done when; see :class:`~dask_ma.plotting.GanttDisplay`.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X had names that are all strings.

    See Also
    --------
    SchMPLasso : One model with a given `alpha`.
    sklearn.linear_model.ElasticNetCV : The same on one machine.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_ma import SchMPLassoCV
    >>> X = np.random.default_rng(0).standard_normal((60, 8))
    >>> lasso = SchMPLassoCV(cv=3, alphas=20).fit(X, 2 * X[:, 0] - X[:, 3])
    >>> np.flatnonzero(lasso.coef_).tolist()
    [0, 3]
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **L1Estimator._parameter_constraints,
        "l1_ratio": [Interval(Real, 0, 1, closed="both"), "array-like"],
        "eps": [Interval(Real, 0, 1, closed="right")],
        "alphas": [Interval(Integral, 1, None, closed="left"), "array-like"],
        "positive": ["boolean"],
        "cv": ["cv_object"],
    }
    _sklearn_class = Lasso
    _to_object = {}  # paths are made by working sets
    _inactive = (
        Inactive(
            ("eps",),
            lambda estimator: (
                () if isinstance(estimator.alphas, Integral) else ("alphas",)
            ),
            "give the number of values as alphas",
        ),
    )
    # The errors of the folds depend on these.
    _free_to_change = L1Estimator._free_to_change - {"max_iter", "tol"}

    def __init__(
        self,
        *,
        l1_ratio: Any = 1.0,
        eps: float = 1e-3,
        alphas: Any = 100,
        fit_intercept: bool = True,
        positive: bool = False,
        max_iter: int = 1000,
        tol: float = 1e-6,
        feature_weights: Any = None,
        cv: Any = None,
        layout: str = "auto",
        verbose: int = 0,
        n_ranks: int | None = None,
    ) -> None:
        self.l1_ratio = l1_ratio
        self.eps = eps
        self.alphas = alphas
        self.fit_intercept = fit_intercept
        self.positive = positive
        self.max_iter = max_iter
        self.tol = tol
        self.feature_weights = feature_weights
        self.cv = cv
        self.layout = layout
        self.verbose = verbose
        self.n_ranks = n_ranks

    def _peer_type(self) -> type:
        return ElasticNetCV

    def _sklearn_type(self) -> type:
        """scikit-learn's estimator of the final model."""
        return Lasso if getattr(self, "l1_ratio_", 1.0) == 1 else ElasticNet

    def _worthwhile_ranks(
        self, params: PathParams, size: InputSize, n_threads: int
    ) -> int:
        """As many as gain more by sharing the columns' work than messages take."""
        splits, alphas = params.splits, params.alphas
        n_folds = len(splits) if isinstance(splits, list) else splits or 1
        n_alphas = len(alphas) if isinstance(alphas, np.ndarray) else alphas
        n_models = n_folds * n_alphas * len(params.l1_ratios)
        cost = cost_of_paths(size, n_models)
        return worthwhile_ranks(size, n_threads, **cost._asdict())

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, **params: Any
    ) -> SchMPLassoCV:
        """Choose `alpha`, and fit the model with it.

        Parameters
        ----------
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features)
            Training rows; see :meth:`SchMPLasso.fit`.
        y : array-like or Dask collection of shape (n_samples,)
            Target values.
        sample_weight : array-like or Dask collection, shape (n_samples,), or float, \
                default=None
            Weights of the rows, not negative, in training and in testing; a number
            weights all alike.
        **params : dict
            What the splitter `cv` is to get, such as `groups`, with scikit-learn's
            ``set_config(enable_metadata_routing=True)``.

        Returns
        -------
        self : SchMPLassoCV

        Raises
        ------
        ValueError
            For data or parameters that cannot be used; the message names the block. For
            `params` while metadata are not routed.
        FitFailedError
            If a worker is lost or a wait takes longer than configured.
        """
        routed = self._routed(sample_weight, params)
        return self._fit(X, y, sample_weight, split_params=routed)

    def get_metadata_routing(self) -> MetadataRouter:
        """What of the metadata goes where; see scikit-learn's user guide.

        Returns
        -------
        routing : MetadataRouter
            `fit` passes to ``cv.split`` what the splitter asks for.
        """
        mapping = MethodMapping().add(caller="fit", callee="split")
        router = MetadataRouter(owner=self).add_self_request(self)
        # Folds that are there already ask for nothing, and may be there only once.
        is_number = self.cv is None or isinstance(self.cv, Integral)
        splitter = KFold() if is_number else self.cv
        if hasattr(splitter, "split"):
            router.add(splitter=splitter, method_mapping=mapping)
        return router

    def _routed(self, sample_weight: Any, params: dict[str, Any]) -> dict[str, Any]:
        """What the splitter gets."""
        if not get_config()["enable_metadata_routing"]:
            if params:
                raise ValueError(
                    f"fit got {', '.join(sorted(params))}, which only metadata routing "
                    "passes on to cv: call "
                    "sklearn.set_config(enable_metadata_routing=True)"
                )
            return {}
        routed = process_routing(self, "fit", sample_weight=sample_weight, **params)
        return dict(routed.splitter.split) if "splitter" in routed else {}

    def _copies(self, params: Any) -> Kept:
        """The columns of each fold are laid out anew."""
        remedy = "fit SchMPLasso, which reads rows from disks, to each fold"
        kept = super()._copies(params)._replace(spills=False)
        return kept._replace(what="columns of each fold", remedy=remedy)

    @property
    def _agent(self) -> Any:
        return cross_validate

    def _make_params(self, info: InputInfo, **changes: Any) -> PathParams:
        ratios = _ratios(self.l1_ratio)
        splits = _splits(self.cv, info.n_rows, changes.get("split_params") or {})
        return path_params(self, self.alphas, self.eps, ratios, splits)

    def _max_rounds(self, params: Any, info: InputInfo, n_ranks: int) -> int | None:
        return params.n_paths  # each of them is a round

    def _warm_changes(self) -> dict[str, Any]:
        return {}

    def _warnings(
        self, result: FitResult, *, is_partial: bool
    ) -> Iterator[tuple[str, type[Warning]]]:
        yield from super()._warnings(result, is_partial=is_partial)
        slow, n_models = result.fitted["slow"], int(np.size(self.mse_path_))
        message = slow_models(slow, n_models, self.max_iter, self.tol)
        if message is not None:
            yield message, ConvergenceWarning

    def _to_peer(self) -> Any:
        """A fitted estimator of scikit-learn, with what that has besides."""
        peer = super()._to_peer()
        peer.set_params(alpha=self.alpha_)
        if isinstance(peer, ElasticNet) and not isinstance(peer, Lasso):
            peer.set_params(l1_ratio=self.l1_ratio_)
        if hasattr(peer.coef_, "toarray"):
            peer.coef_ = peer.coef_.toarray().ravel()
        peer.dual_gap_ = self.dual_gap_
        return peer

    def _sklearn_parameters(self) -> dict[str, Any]:
        parameters: dict[str, Any] = super()._sklearn_parameters()
        parameters.pop("l1_ratio", None)
        return parameters

    def _take_over(self, result: FitResult, params: PathParams) -> None:
        super()._take_over(result, params)
        fitted = result.fitted  # with what the folds have said
        several = np.ndim(self.l1_ratio) > 0
        self.alphas_ = fitted["alphas"] if several else fitted["alphas"][0]
        self.mse_path_ = fitted["mse_path"] if several else fitted["mse_path"][0]

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        attributes = super()._to_attributes(fitted)
        coef, intercept = attributes["coef_"], attributes["intercept_"]
        chosen = {f"{name}_": fitted[name] for name in ("alpha", "l1_ratio")}
        one = {"coef_": coef[0], "intercept_": intercept[0].item()}
        return {**attributes, **chosen, **one}


def _ratios(l1_ratio: Any) -> tuple[float, ...]:
    """Shares of L1 to try."""
    ratios = np.atleast_1d(np.asarray(l1_ratio, dtype=np.float64))
    if ratios.ndim != 1 or not len(ratios) or ratios.min() < 0 or ratios.max() > 1:
        raise ValueError(
            f"l1_ratio must be a number from 0 to 1, or several, got {l1_ratio!r}"
        )
    return tuple(ratios.tolist())


def _splits(cv: Any, n_rows: int | None, params: dict[str, Any]) -> Any:
    """Folds in the words of the ranks."""
    if cv is None or isinstance(cv, Integral):
        n_folds = 5 if cv is None else int(cv)
        if n_folds < 2 or (n_rows is not None and n_folds > n_rows):
            raise ValueError(
                "cv must be at least 2 and at most the number of rows, "
                f"n_samples={n_rows}, got cv={cv}{', which means 5' * (cv is None)}"
            )
        return n_folds
    if n_rows is None:
        raise ValueError(
            "X has an unknown number of rows, for which cv must be an int; or call "
            "X.compute_chunk_sizes() first"
        )
    folds = check_cv(cv).split(np.empty((n_rows, 0)), **params)
    return [(np.sort(train), np.sort(test)) for train, test in folds]
