"""Linear classifier by butterfly mixing."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn.linear_model import SGDClassifier

from dask_ma._callbacks import with_callbacks
from dask_ma._sklearn import Interval, StrOptions, fit_context
from dask_ma.butterfly._agent import train
from dask_ma.butterfly._params import ButterflyParams
from dask_ma.linear import FitResult, LinearClassifierMixin, LinearEstimator

_PASSED_ON = (
    "loss",
    "alpha",
    "fit_intercept",
    "max_iter",
    "tol",
    "shuffle",
    "batch_size",
    "mixing",
    "eta0",
    "preconditioner",
    "n_iter_no_change",
    "class_weight",
)
# What other estimators of linear models leave to the user.
_FIXED = {
    "is_classifier": True,
    "penalty": "l2",
    "l1_ratio": 0.0,
    "epsilon": 0.0,
    "early_stopping": False,
    "validation_fraction": 0.1,
}


class ButterflySGDClassifier(LinearClassifierMixin, LinearEstimator):
    """Linear classifier by mini-batch SGD with butterfly mixing.

    In each step every rank moves its weights along the gradient of a batch of its own
    rows, and averages them with those of one other rank. The partner changes from step
    to step, so that after log2(ranks) steps each rank has heard of all others; the cost
    of an exchange does not grow with the number of ranks. The model is the mean over
    ranks. The objective is ``sum_i s_i loss(y_i, x_i w + b) / sum_i s_i + alpha *
    ||w||^2 / 2``, where `s_i` is the sample weight times the class weight. With more
    than two classes each class is set against the rest, and the objective is the mean
    over these problems.

    Parameters
    ----------
    loss : {"log_loss", "hinge"}, default="log_loss"
        "log_loss" is logistic regression. "hinge" is the linear SVM; as in Pegasos,
        each step then ends with the projection of `w` onto the ball of radius
        ``1 / sqrt(alpha)``, which holds the solution.
    alpha : float, default=0.0001
        Weight of the L2 penalty, at least 0. The intercept is never penalised.
    fit_intercept : bool, default=True
        Whether to fit an intercept.
    max_iter : int, default=1000
        Most passes over the rows.
    tol : float or None, default=1e-3
        The fit ends when `n_iter_no_change` passes in a row have not improved the
        objective by more than this, in the units of the objective. None makes
        `max_iter` passes.
    shuffle : bool, default=True
        Whether each rank goes over its blocks, and over the rows of a block, in a new
        order in each pass.
    verbose : int, default=0
        1 shows a progress bar, in a terminal or notebook and with rich installed; a
        higher value, or 1 elsewhere, prints a line per pass.
    batch_size : int or "auto", default=64
        Rows of a batch, on each rank, at least 1. "auto" times some steps, estimates
        the noise of the gradients, and takes the size that promises to reach a loss
        first. It is the one setting whose result depends on the clock: the same fit
        may give another model the next time. Where nothing is exchanged, with one rank
        or ``mixing="none"``, it is 64.
    mixing : {"butterfly", "allreduce", "periodic", "none"}, default="butterfly"
        What the ranks average after a step: "butterfly", the weights of two ranks;
        "allreduce", those of all ranks, which takes log2(ranks) times the messages;
        "periodic", those of all ranks in every log2(ranks)-th step, which takes as many
        messages as "butterfly"; "none", nothing before the end of a pass, for the
        record alone.
    eta0 : float, default=1.0
        Length of the first step, above 0; step `t` has the length ``eta0 / sqrt(t)``.
    preconditioner : {"jacobi"} or None, default="jacobi"
        "jacobi" divides the step of each feature by the fraction of the rows in which
        it is not zero, but at least one row in a batch, and by the mean of its square
        over those rows. Rare features learn as fast as frequent ones then, and the
        steps do not depend on the scale of a feature. None makes plain steps, and wants
        another `eta0`.
    random_state : int, RandomState instance or None, default=None
        Seed of the shuffles.
    n_iter_no_change : int, default=5
        Passes without improvement before the fit ends.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes; "balanced" weights them by the inverse of their
        frequency. They multiply the sample weights, also in the problems of one class
        against the rest.
    warm_start : bool, default=False
        Whether `fit` starts from the model of the fit before.
    n_ranks : int or None, default=None
        Number of ranks. None means one per worker thread of the current client, and one
        without a client. Without a client the ranks are threads of this process. A
        power of two is best.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels.
    n_iter_ : int
        Passes made.
    t_ : float
        Number of the next step: 1 plus the steps made.
    history_ : list of dict
        One record per pass: `round`, the number of the pass; `time`, in seconds since
        rank 0 started; `objective` of the mean model; `batch_size`; `n_steps`, the
        steps of the pass; over all ranks the sums `n_samples` (rows gone over in the
        pass), `bytes_sent` and `messages_sent` between processes, and `bytes_shared`
        within processes; and the means over ranks `seconds_computing` and
        `seconds_waiting`. Where ``batch_size="auto"`` has measured, also what it has
        found: `seconds_per_row` and `seconds_per_exchange`, on each rank, and
        `noise_scale`, the rows of all ranks' batches together at which twice as many
        rows are needed as with small batches.
        `restarts` counts how often the ranks have had to start again until then.
    timeline_ : ndarray of shape (n_spans,)
        What each rank has done when: a structured array, sorted by start, with the
        fields `rank`; `kind`, one of "compute", "evaluate", "aggregate", "send" and
        "wait"; `start` and `stop`, in seconds on the clock of `history_`; `peer`, the
        rank at the other end or -1; and `nbytes`, bytes of the arrays in a message.
        The most recent ``dask-ma.trace.max-spans`` of each rank; see
        :class:`~dask_ma.plotting.GanttDisplay`.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X had names that are all strings.

    See Also
    --------
    MASGDClassifier : Long local passes between two exchanges.
    sklearn.linear_model.SGDClassifier : SGD on one machine.

    References
    ----------
    H. Zhao, J. Canny. "Butterfly mixing: accelerating incremental-update algorithms on
    clusters." SIAM International Conference on Data Mining, 2013; section 4.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_ma import ButterflySGDClassifier
    >>> X = np.array([[-1.0, -1.0], [-2.0, -1.0], [1.0, 1.0], [2.0, 1.0]])
    >>> y = np.array(["no", "no", "yes", "yes"])
    >>> classifier = ButterflySGDClassifier(max_iter=20, tol=None, random_state=0)
    >>> classifier.fit(X, y).predict([[-0.8, -1.0]]).tolist()
    ['no']
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "loss": [StrOptions({"log_loss", "hinge"})],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "fit_intercept": ["boolean"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left"), None],
        "shuffle": ["boolean"],
        "verbose": ["verbose"],
        "batch_size": [
            StrOptions({"auto"}),
            Interval(Integral, 1, None, closed="left"),
        ],
        "mixing": [StrOptions({"butterfly", "allreduce", "periodic", "none"})],
        "eta0": [Interval(Real, 0, None, closed="neither")],
        "preconditioner": [StrOptions({"jacobi"}), None],
        "random_state": ["random_state"],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "class_weight": [StrOptions({"balanced"}), dict, None],
        "warm_start": ["boolean"],
        "n_ranks": [Interval(Integral, 1, None, closed="left"), None],
    }
    _twin = SGDClassifier

    def __init__(
        self,
        loss: str = "log_loss",
        *,
        alpha: float = 0.0001,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float | None = 1e-3,
        shuffle: bool = True,
        verbose: int = 0,
        batch_size: int | str = 64,
        mixing: str = "butterfly",
        eta0: float = 1.0,
        preconditioner: str | None = "jacobi",
        random_state: Any = None,
        n_iter_no_change: int = 5,
        class_weight: Any = None,
        warm_start: bool = False,
        n_ranks: int | None = None,
    ) -> None:
        self.loss = loss
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.shuffle = shuffle
        self.verbose = verbose
        self.batch_size = batch_size
        self.mixing = mixing
        self.eta0 = eta0
        self.preconditioner = preconditioner
        self.random_state = random_state
        self.n_iter_no_change = n_iter_no_change
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.n_ranks = n_ranks

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: Any,
        y: Any,
        coef_init: Any = None,
        intercept_init: Any = None,
        sample_weight: Any = None,
    ) -> ButterflySGDClassifier:
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
        coef_init : array-like of shape (1, n_features) or (n_classes, n_features), \
                default=None
            Coefficients to start from.
        intercept_init : array-like of shape (1,) or (n_classes,), default=None
            Intercepts to start from.
        sample_weight : array-like or Dask collection, shape (n_samples,), or float, \
                default=None
            Weights of the rows, not negative; a number weights all alike. A weight
            multiplies the gradient of the row; 0 counts like no row.

        Returns
        -------
        self : ButterflySGDClassifier

        Raises
        ------
        ValueError
            For data or parameters that cannot be used; the message names the block.
        FitFailedError
            If a worker is lost or a wait takes longer than configured.
        """
        with self._keep_fitted_state():
            X, y = self._validate_input(X, y, reset=True)
            changes = self._initial_changes(coef_init, intercept_init)
            result = self._fit_passes(X, y, sample_weight, **changes)
        self._warn_unless_converged(result)
        return self

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> ButterflySGDClassifier:
        """Go over the rows once on all ranks, with the step size where it was.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.
        classes : array-like of shape (n_classes,), default=None
            All labels that there will be; needed in the first call.

        Returns
        -------
        self : ButterflySGDClassifier

        Raises
        ------
        ValueError
            As in :meth:`fit`, and for labels that are not among the classes.
        """
        with self._keep_fitted_state():
            changes = {
                **self._warm_model(),
                "t": getattr(self, "t_", 1.0),
                "max_iter": 1,
                "classes": self._check_classes(classes),
                "is_saved": False,
            }
            first = not hasattr(self, "coef_")
            X, y = self._validate_input(X, y, reset=first)
            self._fit_passes(X, y, sample_weight, **changes)
        return self

    def _fit_passes(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        *,
        is_saved: bool = True,
        **changes: Any,
    ) -> FitResult:
        """Fit on all ranks and take over the result."""
        chosen = {name: getattr(self, name) for name in _PASSED_ON}
        params = ButterflyParams(**{**_FIXED, **chosen, **changes})
        return self._fit_agent(train, params, X, y, sample_weight, is_saved=is_saved)
