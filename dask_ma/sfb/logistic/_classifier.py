"""Multinomial logistic regression by sufficient factor broadcasting."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.utils.metaestimators import available_if

from dask_ma._callbacks import with_callbacks
from dask_ma._sklearn import fit_context
from dask_ma.linear import LinearClassifierMixin
from dask_ma.sfb.exchange._settings import Exchange
from dask_ma.sfb.logistic._estimator import SFBEstimator


def _makes_steps(estimator: Any) -> bool:
    """Whether the solver can go on with other rows."""
    if estimator.solver != "sdca":
        return True
    raise AttributeError(
        "partial_fit needs solver='sgd' or 'auto': dual variables belong to the rows "
        f"of one fit; got solver={estimator.solver!r}"
    )


class SFBLogisticRegression(LinearClassifierMixin, SFBEstimator):
    """Multinomial logistic regression, by sufficient factor broadcasting.

    Every rank keeps all coefficients. In an iteration each rank looks at a batch of its
    rows, and sends a pair of vectors per row, from which the others rebuild its update:
    slopes of the losses, of the length of the classes, and the row itself. Where there
    are many classes and features, that is much less than the update. The objective is
    ``sum_i s_i loss_i / sum_i s_i + alpha * penalty``, where `s_i` is the sample weight
    times the class weight; with more than two classes the loss is the multinomial one,
    over all classes at once. The intercepts are never penalised, and sparse data stay
    sparse.

    What a fit says of parameters that cannot act beside others is in the
    :ref:`User Guide <parameters>`.

    Parameters
    ----------
    penalty : {"l2", "l1", "elasticnet", "trace"} or None, default="l2"
        "l2" is ``||W||_F^2 / 2``; "l1" is the sum of the absolute coefficients;
        "elasticnet" is `l1_ratio` times "l1" plus ``1 - l1_ratio`` times "l2"; "trace"
        is the sum of the singular values of W, which makes for a low rank, and needs a
        singular value decomposition in each iteration.
    alpha : float, default=0.0001
        Weight of the penalty, at least 0. scikit-learn's `C` is ``1 / (alpha *
        n_samples)``.
    l1_ratio : float, default=0.15
        Share of "l1" in "elasticnet", from 0 to 1.
    solver : {"auto", "sgd", "sdca"}, default="auto"
        "sgd": proximal stochastic gradient descent, for all penalties. "sdca":
        stochastic dual coordinate ascent, for "l2", and for "elasticnet" with
        `l1_ratio` below 1, with `alpha` above 0; it has no step size, and each rank
        keeps a probability vector for each of its rows. The weaker the L2 part, the
        more passes it takes. "auto": "sdca" where it is possible, with "elasticnet" for
        an `l1_ratio` below 0.99, unless a parameter asks for "sgd": `eta0`,
        `learning_rate`, `n_iter_no_change` without `early_stopping`, or `staleness`,
        `compression`, `wire_dtype` or ``relay=False`` of an exchange. `solver_` says
        which. Where a step of `refine` takes less than a pass, as with short rows or
        few classes, "auto" begins with such steps and makes no pass: for "l2", and for
        "elasticnet" and "l1" with up to 1200 coefficients, unless `batch_size`,
        `shuffle`, `communication` or a parameter of "sgd" is set; see the
        :ref:`User Guide <sfb_opening>`.
    fit_intercept : bool, default=True
        Whether to fit intercepts. Dense rows are then centred as :meth:`fit` looks at
        them: features that are far from the origin are no harder than others.
    max_iter : int, default=200
        Most passes over the rows, at least 1; a step of the refinement counts as one.
    tol : float or None, default=1e-3
        The fit ends when the duality gap is at most this times the objective, so that
        the objective is no more than that above its minimum. Where no gap is looked for
        (``penalty=None``, or "sgd" with ``refine=False`` or without the memory for
        the steps of `refine`), it ends when passes no
        longer improve the objective by this times itself, and with `early_stopping`,
        when `n_iter_no_change` passes in a row have not improved the validation score
        by this. Without a penalty, classes that a linear model separates have no
        optimum: the fit ends, and warns, once each row is in its class and the
        objective at most this times that of equal probabilities. None makes `max_iter`
        passes. In any case the model of the best pass is taken.
    refine : {"auto"} or bool, default="auto"
        Whether the fit goes on with steps on the objective of all rows at once where
        the passes so far show that their like would take long: proximal Newton steps,
        with second derivatives where up to 1200 coefficients matter (300 for "l2", and
        more once others take long), else by conjugate gradients for "l2", with those of
        single coefficients for an L1 part and sparse rows, with those within each class
        for dense ones, and otherwise with limited-memory BFGS. Without passes before
        them where `solver` says so. A step, and each product of conjugate
        gradients, sends a matrix or two per rank, or second derivatives, where False
        sends none with full broadcasts. "auto" is True where it is possible, which is
        not with ``penalty="trace"``, `early_stopping` or ``tol=None``, nor where steps
        would take more than half of the memory of a worker, which True raises an error
        for.
    batch_size : int, default=64
        Rows of a batch, on the rank that has most rows, at least 1; in the paper, `K`.
        With "sdca", larger batches do not change the length of steps.
    eta0 : float or "auto", default="auto"
        Length of the first step of "sgd", above 0. "auto" takes about the longest that
        is stable, by the largest eigenvalue of the second moments of a sample of rows.
    learning_rate : {"adaptive", "optimal", "invscaling", "constant"}, \
            default="adaptive"
        How long the steps of "sgd" are. "adaptive": `eta0`, and a fifth of that, from
        the best model so far, whenever `n_iter_no_change` passes in a row have not
        improved the objective by `tol` times itself; as "optimal" in
        :meth:`partial_fit`. "optimal": step `t` has the length ``eta0 / (1 + eta0 *
        alpha * t)``, which suits the penalty "l2"; for the other penalties, as
        "invscaling". "invscaling": ``eta0 / (1 + passes)^power_t``. "constant": `eta0`.
    power_t : float, default=0.5
        Exponent of "invscaling", at least 0.
    communication : {"auto", "factors", "full_matrix", "server", "outputs"} or \
            Exchange, default="auto"
        Whether factors are sent, or whole update matrices, added up by all ranks or by
        rank 0, or, for "sgd" and penalties but "trace", rows and small sums, each rank
        having some of the classes for a pass ("outputs"), so that no work is done
        twice. These give the same but for rounding. "auto" takes factors or matrices
        for "sdca", by bytes, after several batches of each rank where batches are
        short; for "sgd" what takes least time by the sizes, never by the clock, or rank
        0 makes all steps where they are too short for several ranks; see
        :ref:`sfb_apart`. An
        :class:`~dask_ma.sfb.Exchange` also says to whom factors are sent, how late they
        may come, and with which precision.
    shuffle : bool, default=True
        Whether each rank goes over its rows in a new order in each pass.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes; "balanced" weights them by the inverse of their
        frequency. They multiply the sample weights. With 0 the optimum is that of the
        other classes, from which the intercept of this one moves away.
    early_stopping : bool, default=False
        Whether rows are held out, and the fit ends when the score on them does not
        improve.
    validation_fraction : float, default=0.1
        Share of the rows to hold out, between 0 and 1.
    n_iter_no_change : int, default=3
        Passes without improvement before the fit ends, or before the steps of "sgd"
        become shorter; refused with "sdca" without `early_stopping`, which looks at its
        duality gap alone.
    warm_start : bool, default=False
        Whether `fit` starts from the model of the fit before, unless its loss on the
        rows is more than that of classes that are all as likely.
    random_state : int, RandomState instance or None, default=None
        Seed of the shuffles.
    verbose : int, default=0
        1 shows a progress bar, in a terminal or notebook and with rich installed; a
        higher value, or 1 elsewhere, prints a line per pass.
    n_ranks : int or None, default=None
        Number of ranks. None means one per worker thread of the current client, or
        fewer where more would take longer (:ref:`ranks_that_pay`), and one without a
        client. Without a client the ranks are threads of this process.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients; with two classes those of the second one.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels.
    dual_gap_ : float
        How far the objective is from its minimum at most; missing where there is no
        penalty, and for "sgd" with ``tol=None``, `early_stopping` or without memory for
        a gradient of all rows.
    solver_ : str
        "sgd" or "sdca", also where no pass has been made.
    eta0_ : float
        With "sgd", length of the first step; missing where no pass has been made.
    communication_ : str
        What was sent: "factors", "full_matrix", "server" or "outputs"; or "alone",
        where rank 0 has made all steps.
    n_iter_ : int
        Passes made.
    t_ : float
        Number of the next iteration, from 1.
    history_ : list of dict
        One record per pass: `round`, the number of the pass; `time`, in seconds since
        rank 0 started; `objective`; `dual_gap`, where there is one; with
        `early_stopping`, `validation_score`; over all ranks the sums of the pass
        `n_samples`, `bytes_sent` and `messages_sent` between processes, and
        `bytes_shared` within processes; and the means over ranks `seconds_computing`
        and `seconds_waiting`. `restarts` counts how often the ranks have had to start
        again until then.
    timeline_ : ndarray of shape (n_spans,)
        What each rank has done when; see :class:`~dask_ma.plotting.GanttDisplay`.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X had names that are all strings.

    See Also
    --------
    SchMPLogisticRegression : Sparse models, for an L1 penalty.
    MASGDClassifier : One class against the rest, with long local passes.
    dask_ma.sfb.run : Models of your own.
    sklearn.linear_model.LogisticRegression : Logistic regression on one machine.

    References
    ----------
    P. Xie, J. K. Kim, Y. Zhou, Q. Ho, A. Kumar, Y. Yu, E. Xing. "Lighter-communication
    distributed machine learning via sufficient factor broadcasting." UAI, 2016.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_ma import SFBLogisticRegression
    >>> X = np.array([[-1.0, 0.0], [-2.0, 0.1], [1.0, 2.0], [1.0, 3.0], [2.0, -1.0]])
    >>> y = np.array(["left", "left", "up", "up", "down"])
    >>> classifier = SFBLogisticRegression(solver="sdca", alpha=0.01, random_state=0)
    >>> classifier.fit(X, y).predict([[-0.8, 0.2], [1.0, 2.5]]).tolist()
    ['left', 'up']
    """

    _sklearn_class = LogisticRegression

    def __init__(
        self,
        penalty: str | None = "l2",
        *,
        alpha: float = 1e-4,
        l1_ratio: float = 0.15,
        solver: str = "auto",
        fit_intercept: bool = True,
        max_iter: int = 200,
        tol: float | None = 1e-3,
        refine: bool | str = "auto",
        batch_size: int = 64,
        eta0: float | str = "auto",
        learning_rate: str = "adaptive",
        power_t: float = 0.5,
        communication: str | Exchange = "auto",
        shuffle: bool = True,
        class_weight: Any = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 3,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
        n_ranks: int | None = None,
    ) -> None:
        self.penalty = penalty
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.solver = solver
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.refine = refine
        self.batch_size = batch_size
        self.eta0 = eta0
        self.learning_rate = learning_rate
        self.power_t = power_t
        self.communication = communication
        self.shuffle = shuffle
        self.class_weight = class_weight
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.n_ranks = n_ranks

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> SFBLogisticRegression:
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
        self : SFBLogisticRegression

        Raises
        ------
        ValueError
            For data or parameters that cannot be used, the message names the block; and
            for an objective that grows without bound, as with a large `eta0`.
        FitFailedError
            If a worker is lost or a wait takes longer than configured.
        """
        return self._fit(X, y, sample_weight)

    @available_if(_makes_steps)
    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> SFBLogisticRegression:
        """Go over the rows once on all ranks, with steps as long as they have become.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.
        classes : array-like of shape (n_classes,), default=None
            All labels that there will be; needed in the first call.

        Returns
        -------
        self : SFBLogisticRegression

        Raises
        ------
        ValueError
            As in :meth:`fit`, and for labels that are not among the classes.
        """
        return self._fit(X, y, sample_weight, is_partial=True, classes=classes)

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
