"""Lasso and elastic net by scheduled model parallelism."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet, Lasso

from dask_ma._callbacks import with_callbacks
from dask_ma._sklearn import fit_context
from dask_ma.data import InputSize, weight_per_row
from dask_ma.engine import worthwhile_ranks
from dask_ma.linear import LinearRegressorMixin
from dask_ma.schmp.l1._cost import cost_of_lasso
from dask_ma.schmp.l1._estimator import (
    OF_ONE_MODEL,
    PENALTY,
    L1Estimator,
    path_params,
    slow_models,
)
from dask_ma.schmp.l1._params import SchMPParams
from dask_ma.schmp.l1._path import trace_path
from dask_ma.schmp.schedules._schedules import CandidateSchedule


class SchMPLasso(LinearRegressorMixin, L1Estimator):
    """Lasso and elastic net, by scheduled model parallelism.

    The objective is ``sum_i s_i (y_i - x_i w - b)^2 / (2 sum_i s_i) + alpha * (l1_ratio
    * sum_j f_j |w_j| + (1 - l1_ratio) / 2 * sum_j f_j w_j^2)``, where `s_i` are the
    sample weights and `f_j` the feature weights: that of scikit-learn's Lasso and
    ElasticNet. The intercept `b` is never penalised, and sparse data stay sparse.

    What a fit says of parameters that cannot act beside others is in the
    :ref:`User Guide <parameters>`.

    Parameters
    ----------
    alpha : float, default=1.0
        Weight of the penalty, at least 0.
    l1_ratio : float, default=1.0
        Share of L1 in the penalty, from 0 to 1.
    fit_intercept : bool, default=True
        Whether to fit an intercept.
    positive : bool, default=False
        Whether coefficients must not be negative. It needs an L1 penalty on each.
    max_iter : int, default=1000
        Most rounds. A round solves for one working set; with the other schedules it
        updates about as many coefficients as there are features.
    tol : float, default=1e-4
        The fit ends when the duality gap, a bound for the distance of the objective
        from its minimum, is at most this fraction of the objective without
        coefficients, and at most its root, 1 % by default, of the objective reached.
    feature_weights : array-like of shape (n_features,), default=None
        Weight of each feature in the penalty, not negative; None weights all alike.
    warm_start : bool, default=False
        Whether `fit` starts from the model of the fit before.
    schedule : {"working_set", "dynamic", "priority", "random", "cyclic"} or an \
            object of :mod:`dask_ma.schmp.schedules`, default="working_set"
        Which coefficients are updated next. "working_set": those that violate
        optimality most are solved for together before the next gradient. The others
        make steps of coordinate descent on some coefficients at a time: "random" draws
        them evenly (Shotgun), "cyclic" takes them in order, "priority" draws those that
        changed most the last time, and "dynamic" leaves out those that are correlated
        with one chosen before. An object, such as ``schedules.Dynamic(n_candidates=16,
        pipeline_depth=3)``, says how many, and more. See `polish` for how these four
        come to the same optimum.
    layout : {"auto", "rows", "columns"}, default="auto"
        Whether rows or columns of the data are shared out over the ranks. Columns are
        copied, and sent from rank to rank once; "auto" takes them where that is less to
        send than the gradients of some rounds: with few rows, or elements, per rank and
        feature.
    polish : bool, default=True
        With schedules other than "working_set": whether, after a round that leaves more
        than half of the gap, the coefficients other than zero are solved for together
        on rank 0. These rounds have ``polished`` set in `history_`. With False the
        schedule has to come to the optimum on its own, which may take very many rounds,
        or never happen where it makes steps too long.
    random_state : int, RandomState instance or None, default=None
        Seed of the schedules "dynamic", "priority" and "random"; "working_set" and
        "cyclic" use no random numbers.
    verbose : int, default=0
        1 shows a progress bar, in a terminal or notebook and with rich installed; a
        higher value, or 1 elsewhere, prints a line per round.
    n_ranks : int or None, default=None
        Number of ranks. None means one per worker thread of the current client, or
        fewer where more would take longer (:ref:`ranks_that_pay`), and one without a
        client. Without a client the ranks are threads of this process.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients.
    sparse_coef_ : CSR matrix of shape (1, n_features)
        The same, without the zeros.
    intercept_ : float
        Intercept.
    dual_gap_ : float
        Duality gap, in units of the objective.
    n_iter_ : int
        Rounds made.
    history_ : list of dict
        One record per round: `round`; `time`, in seconds since rank 0 started;
        `objective`; `dual_gap`; `n_nonzero`, coefficients other than zero;
        `working_set`, coefficients at hand; `polished`, with schedules other than
        "working_set" only, whether coefficients were solved for together; over all
        ranks the sums of the round `n_touched`, stored elements of the data read, as
        often as they are,
        `n_samples`, rows gone over, `bytes_sent` and `messages_sent` between processes,
        and `bytes_shared` within processes; and the means over ranks
        `seconds_computing` and `seconds_waiting`. `restarts` counts how often the ranks
        have had to start again until then.
    timeline_ : ndarray of shape (n_spans,)
        What each rank has done when; see :class:`~dask_ma.plotting.GanttDisplay`.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X had names that are all strings.

    See Also
    --------
    SchMPLassoCV : Chooses `alpha` by cross-validation.
    SchMPLogisticRegression : The same penalties for classification.
    sklearn.linear_model.Lasso : Lasso on one machine.

    References
    ----------
    J. K. Kim et al. "STRADS: a distributed framework for scheduled model parallel
    machine learning." EuroSys, 2016; section 4.1.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_ma import SchMPLasso
    >>> X = np.array([[1.0, 0.0], [2.0, 1.0], [3.0, 0.0], [4.0, 1.0]])
    >>> lasso = SchMPLasso(alpha=0.1).fit(X, [1.0, 2.0, 3.0, 4.0])
    >>> lasso.coef_.round(2).tolist()
    [0.92, 0.0]
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **L1Estimator._parameter_constraints,
        **OF_ONE_MODEL,
        "alpha": [PENALTY],
        "positive": ["boolean"],
    }
    _sklearn_class = Lasso

    def __init__(
        self,
        alpha: float = 1.0,
        *,
        l1_ratio: float = 1.0,
        fit_intercept: bool = True,
        positive: bool = False,
        max_iter: int = 1000,
        tol: float = 1e-4,
        feature_weights: Any = None,
        warm_start: bool = False,
        schedule: str | CandidateSchedule = "working_set",
        layout: str = "auto",
        polish: bool = True,
        random_state: Any = None,
        verbose: int = 0,
        n_ranks: int | None = None,
    ) -> None:
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.positive = positive
        self.max_iter = max_iter
        self.tol = tol
        self.feature_weights = feature_weights
        self.warm_start = warm_start
        self.schedule = schedule
        self.layout = layout
        self.polish = polish
        self.random_state = random_state
        self.verbose = verbose
        self.n_ranks = n_ranks

    def _sklearn_type(self) -> type:
        """scikit-learn's estimator of the same model."""
        return Lasso if self.l1_ratio == 1 else ElasticNet

    def _worthwhile_ranks(
        self, params: SchMPParams, size: InputSize, n_threads: int
    ) -> int:
        """As many as gain more by sharing the columns' work than messages take."""
        if params.schedule is not None:
            return n_threads
        return worthwhile_ranks(size, n_threads, **cost_of_lasso(size)._asdict())

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> SchMPLasso:
        """Fit the model.

        Parameters
        ----------
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features)
            Training rows. The blocks of a dask.array may be NumPy arrays, SciPy sparse
            matrices or arrays, or COO and GCXS arrays of `sparse`. Blocks already in
            worker memory stay there.
        y : array-like or Dask collection of shape (n_samples,)
            Target values.
        sample_weight : array-like or Dask collection, shape (n_samples,), or float, \
                default=None
            Weights of the rows, not negative; a number weights all alike. A weight of 2
            counts like the row twice, a weight of 0 like no row.

        Returns
        -------
        self : SchMPLasso

        Raises
        ------
        ValueError
            For data or parameters that cannot be used; the message names the block.
        FitFailedError
            If a worker is lost or a wait takes longer than configured.
        """
        return self._fit(X, y, sample_weight)

    @classmethod
    def path(
        cls,
        X: Any,
        y: Any,
        *,
        l1_ratio: float = 1.0,
        eps: float = 1e-3,
        alphas: Any = 100,
        fit_intercept: bool = True,
        positive: bool = False,
        max_iter: int = 1000,
        tol: float = 1e-4,
        feature_weights: Any = None,
        layout: str = "auto",
        n_ranks: int | None = None,
        sample_weight: Any = None,
        return_n_iter: bool = False,
        return_intercept: bool = False,
    ) -> tuple[Any, ...]:
        """Models for falling weights of the penalty, each starting from the last.

        The rows are laid out once for all of them. The models are found by working
        sets. A ConvergenceWarning says how many of them are not as near to the optimum
        as asked.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.
        l1_ratio : float, default=1.0
            Share of L1 in the penalty.
        eps : float, default=1e-3
            The smallest weight over the largest one, where `alphas` is a number.
        alphas : array-like of shape (n_alphas,) or int, default=100
            Weights of the penalty, above 0, or how many there are to be, evenly spaced
            on a logarithmic scale. The largest one is the smallest that gives zeros.
        fit_intercept, positive, feature_weights, layout, n_ranks
            As in the estimator.
        max_iter : int, default=1000
            Most rounds of each model.
        tol : float, default=1e-4
            A model is done when its duality gap is at most this fraction of the
            objective without coefficients, and at most its root of its own objective.
        return_n_iter : bool, default=False
            Whether the rounds of each model are returned.
        return_intercept : bool, default=False
            Whether the intercepts are returned.

        Returns
        -------
        alphas : ndarray of shape (n_alphas,)
            Weights of the penalty, the largest first.
        coefs : ndarray of shape (n_features, n_alphas)
            Coefficients.
        dual_gaps : ndarray of shape (n_alphas,)
            Duality gaps, in units of the objective.
        n_iters : list of int
            Rounds, if `return_n_iter` is true.
        intercepts : ndarray of shape (n_alphas,)
            Intercepts, if `return_intercept` is true.
        """
        estimator = cls(
            l1_ratio=l1_ratio,
            fit_intercept=fit_intercept,
            positive=positive,
            max_iter=max_iter,
            tol=tol,
            feature_weights=feature_weights,
            layout=layout,
            n_ranks=n_ranks,
        )
        estimator._validate_params()
        params = path_params(estimator, alphas, eps, (l1_ratio,), None)
        X, y, info = estimator._validate_input(X, y, reset=True)
        data = X, y, weight_per_row(sample_weight)
        result = estimator._run(trace_path, params, data, info)
        points = result.fitted["points"]
        shape = result.fitted["n_features"], len(points)
        coefs = np.zeros(shape, dtype=result.fitted["dtype"])
        for number, point in enumerate(points):
            coefs[point.coordinates, number] = point.coef
        gaps = np.array([point.gap for point in points])
        message = slow_models(result.fitted["slow"], len(points), max_iter, tol)
        if message is not None:
            warnings.warn(message, ConvergenceWarning, stacklevel=2)
        found: list[Any] = [result.fitted["alphas"], coefs, gaps]
        if return_n_iter:
            found.append([point.n_iter for point in points])
        if return_intercept:
            found.append(np.array([float(point.intercept[0]) for point in points]))
        return tuple(found)

    def _to_peer(self) -> Any:
        """A fitted estimator of scikit-learn, with what that has besides."""
        peer = super()._to_peer()
        if hasattr(peer.coef_, "toarray"):
            peer.coef_ = peer.coef_.toarray().ravel()
        peer.dual_gap_ = self.dual_gap_
        return peer

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        attributes = super()._to_attributes(fitted)
        coef, intercept = attributes["coef_"], attributes["intercept_"]
        return {**attributes, "coef_": coef[0], "intercept_": intercept[0].item()}
