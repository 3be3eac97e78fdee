"""Sparse logistic regression by scheduled model parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from sklearn.linear_model import LogisticRegression

from dask_ma._callbacks import with_callbacks
from dask_ma._sklearn import StrOptions, fit_context
from dask_ma.data import InputInfo, InputSize
from dask_ma.engine import worthwhile_ranks
from dask_ma.linear import LinearClassifierMixin
from dask_ma.schmp.l1._cost import cost_of_logistic
from dask_ma.schmp.l1._estimator import OF_ONE_MODEL, PENALTY, L1Estimator
from dask_ma.schmp.l1._params import SchMPParams
from dask_ma.schmp.schedules._schedules import CandidateSchedule
from dask_ma.supervised import FitResult

_LARGEST = 1.001  # gradient over alpha: with more, the fit has ended early by `tol`
_SETTLED = 1e-4  # objective: the classes of nearly all rows are told by their frequency


class SchMPLogisticRegression(LinearClassifierMixin, L1Estimator):
    """Sparse logistic regression, by scheduled model parallelism.

    The objective is ``sum_i s_i loss_i / sum_i s_i + alpha * (l1_ratio * sum_j f_j
    |w_j| + (1 - l1_ratio) / 2 * sum_j f_j w_j^2)``, where the loss is the logistic one,
    `s_i` is the sample weight times the class weight, and `f_j` is the feature weight:
    that of scikit-learn's LogisticRegression with ``C = 1 / (alpha * sum_i s_i)``. With
    more than two classes the loss is the multinomial one, over all classes at once. The
    intercepts are never penalised, and sparse data stay sparse.

    What a fit says of parameters that cannot act beside others is in the
    :ref:`User Guide <parameters>`.

    Parameters
    ----------
    alpha : float or "auto", default="auto"
        Weight of the penalty, at least 0. "auto" is ``1 / sum_i s_i``, which is
        scikit-learn's ``C=1``, and ``1 / n_samples`` without weights; `alpha_` tells
        the number. A search may find a better one (:ref:`scheduled_model_parallelism`).
    l1_ratio : float, default=1.0
        Share of L1 in the penalty, from 0 to 1.
    fit_intercept : bool, default=True
        Whether to fit intercepts.
    max_iter : int, default=1000
        Most rounds. A round solves for one working set; with the other schedules it
        updates about as many coefficients as there are features.
    tol : float, default=1e-4
        The fit ends when the duality gap, a bound for the distance of the objective
        from its minimum, is at most this fraction of the objective without
        coefficients, and at most its root, 1 % by default, of the objective reached.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes; "balanced" weights them by the inverse of their
        frequency. They multiply the sample weights.
    feature_weights : array-like of shape (n_features,), default=None
        Weight of each feature in the penalty, not negative; None weights all alike.
    warm_start : bool, default=False
        Whether `fit` starts from the model of the fit before, unless that is worse on
        the rows than a model without coefficients.
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
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients; with two classes those of the second one.
    sparse_coef_ : CSR matrix of the shape of `coef_`
        The same, without the zeros.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels.
    alpha_ : float
        Weight of the penalty that the model is fitted with.
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
    SchMPLasso : The same penalties for regression.
    MASGDClassifier : Linear classifiers by SGD, for models that are not sparse.
    sklearn.linear_model.LogisticRegression : Logistic regression on one machine.

    References
    ----------
    J. K. Kim et al. "STRADS: a distributed framework for scheduled model parallel
    machine learning." EuroSys, 2016; section 4.3.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_ma import SchMPLogisticRegression
    >>> X = np.array([[-1.0, 0.1], [-2.0, -0.1], [1.0, -0.2], [2.0, 0.1]])
    >>> y = np.array(["no", "no", "yes", "yes"])
    >>> classifier = SchMPLogisticRegression(alpha=0.1).fit(X, y)
    >>> classifier.predict([[-0.8, 1.0]]).tolist()
    ['no']
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **L1Estimator._parameter_constraints,
        **OF_ONE_MODEL,
        "alpha": [PENALTY, StrOptions({"auto"})],
        "class_weight": [StrOptions({"balanced"}), dict, None],
    }
    _sklearn_class = LogisticRegression

    def __init__(
        self,
        alpha: float | str = "auto",
        *,
        l1_ratio: float = 1.0,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-4,
        class_weight: Any = None,
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
        self.max_iter = max_iter
        self.tol = tol
        self.class_weight = class_weight
        self.feature_weights = feature_weights
        self.warm_start = warm_start
        self.schedule = schedule
        self.layout = layout
        self.polish = polish
        self.random_state = random_state
        self.verbose = verbose
        self.n_ranks = n_ranks

    def _make_params(self, info: InputInfo, **changes: Any) -> SchMPParams:
        if self.alpha == "auto":
            changes |= {"alpha": 1.0, "is_alpha_of_sum": True}
        return super()._make_params(info, **changes)

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        return {**super()._to_attributes(fitted), "alpha_": fitted["alpha"]}

    def _warnings(
        self, result: FitResult, *, is_partial: bool
    ) -> Iterator[tuple[str, type[Warning]]]:
        yield from super()._warnings(result, is_partial=is_partial)
        message = _too_large(result.fitted, self.alpha)
        if message is not None:
            yield message, UserWarning

    def _worthwhile_ranks(
        self, params: SchMPParams, size: InputSize, n_threads: int
    ) -> int:
        """As many as gain more by sharing the columns' work than messages take."""
        if params.schedule is not None:
            return n_threads
        return worthwhile_ranks(size, n_threads, **cost_of_logistic(size)._asdict())

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> SchMPLogisticRegression:
        """Fit the model.

        Parameters
        ----------
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features)
            Training rows. The blocks of a dask.array may be NumPy arrays, SciPy sparse
            matrices or arrays, or COO and GCXS arrays of `sparse`. Blocks already in
            worker memory stay there.
        y : array-like or Dask collection of shape (n_samples,)
            Labels: int, bool or str.
        sample_weight : array-like or Dask collection, shape (n_samples,), or float, \
                default=None
            Weights of the rows, not negative; a number weights all alike. A weight of 2
            counts like the row twice, a weight of 0 like no row.

        Returns
        -------
        self : SchMPLogisticRegression

        Raises
        ------
        ValueError
            For data or parameters that cannot be used; the message names the block.
        FitFailedError
            If a worker is lost or a wait takes longer than configured.
        """
        return self._fit(X, y, sample_weight)

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        probabilities : ndarray or dask.array of shape (n_samples, n_classes)
            Lazy for Dask input; rows add up to 1.
        """
        return super().predict_proba(X)

    def _to_peer(self) -> Any:
        """A fitted estimator of scikit-learn, with what that has besides."""
        peer = super()._to_peer()
        peer.n_iter_ = np.array([self.n_iter_])
        return peer

    def _sklearn_parameters(self) -> dict[str, Any]:
        return {**super()._sklearn_parameters(), "solver": "saga"}


def _too_large(fitted: dict[str, Any], alpha: float | str) -> str | None:
    """What to warn of if the penalty has left no coefficient."""
    # Without coefficients, the gradient is that which alpha has to stay below.
    reach = fitted["reach"]
    if not reach or reach >= _LARGEST or fitted["objective"] < _SETTLED:
        return None
    largest = fitted["alpha"] * reach
    given = f"alpha={fitted['alpha']:.3g}"
    if alpha == "auto":
        given += ", one over the sum of the weights of the rows,"
    return (
        f"all coefficients are zero, so every row gets the same probabilities: {given} "
        f"is not below {largest:.3g}, the least that leaves none on these data; set "
        f"alpha between {largest / 100:.1g} and {largest / 3:.1g}, or bring the "
        "features to a larger scale, for example by "
        "sklearn.preprocessing.StandardScaler or MaxAbsScaler"
    )
