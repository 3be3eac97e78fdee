"""Linear classifiers by butterfly mixing."""

from __future__ import annotations

from typing import Any, ClassVar

from sklearn.linear_model import SGDClassifier

from dask_ma._callbacks import with_callbacks
from dask_ma._sklearn import StrOptions, fit_context
from dask_ma.butterfly._linear import LinearButterfly
from dask_ma.kernels import Loss
from dask_ma.linear import LinearClassifierMixin, given_model

# Not the perceptron: no weights have a lower objective than zeros.
_LOSSES = {
    "hinge",
    "log_loss",
    "modified_huber",
    "squared_hinge",
    "squared_error",
    "huber",
    "epsilon_insensitive",
    "squared_epsilon_insensitive",
}


class ButterflySGDClassifier(LinearClassifierMixin, LinearButterfly):
    """Linear classifier by mini-batch SGD with butterfly mixing.

    In each step every rank moves its weights along the gradient of a batch of its own
    rows. After every step, or every few, it averages them with those of one other rank.
    The partner changes from time to time, so that after log2(ranks) exchanges each rank
    has heard of all others; the cost of an exchange does not grow with the number of
    ranks. The model is the mean over
    ranks. The objective is ``sum_i s_i loss(y_i, x_i w + b) / sum_i s_i + alpha *
    ||w||^2 / 2``, where `s_i` is the sample weight times the class weight. With more
    than two classes each class is set against the rest, and the objective is the mean
    over these problems. In that of a class its weight multiplies the losses of its own
    rows, and `s_i` is the sample weight alone, as in SGDClassifier.

    What a fit says of parameters that cannot act beside others is in the
    :ref:`User Guide <parameters>`.

    Parameters
    ----------
    loss : str or Loss, default="log_loss"
        "log_loss" (logistic regression), "hinge" (linear SVM), "squared_hinge",
        "modified_huber", or one of the regression losses "squared_error", "huber",
        "epsilon_insensitive", "squared_epsilon_insensitive" on targets -1 and 1. With
        "hinge" each step ends with the projection of `w` onto the ball of radius
        ``1 / sqrt(alpha)``, which holds the solution, as in Pegasos. An object of
        :mod:`dask_ma.losses` may be a loss of your own.
    alpha : float, default=0.0001
        Weight of the L2 penalty, at least 0. The intercept is never penalised.
    fit_intercept : bool, default=True
        Whether to fit an intercept.
    max_iter : int, default=1000
        Most passes over the rows before the refinement.
    tol : float or None, default=1e-3
        The passes end when `n_iter_no_change` of them in a row have not improved the
        objective by more than this part of it; with `early_stopping`, the score by more
        than this. None makes `max_iter` passes.
    shuffle : bool, default=True
        Whether each rank goes over its blocks, and over the rows of a block, in a new
        order in each pass.
    verbose : int, default=0
        1 shows a progress bar, in a terminal or notebook and with rich installed; a
        higher value, or 1 elsewhere, prints a line per pass.
    epsilon : float, default=0.1
        Threshold of the losses "huber", "epsilon_insensitive" and
        "squared_epsilon_insensitive".
    batch_size : int, "auto" or "timed", default="auto"
        Rows of a batch, on each rank, at least 1. "auto" is 64; of sparse rows 64, 128
        or 256, by what steps cost with so many features, classes, elements and ranks,
        where ``learning_rate="adaptive"`` takes back what was too long, which is with
        any `mixing` but "none"; and fewer if the ranks have so few rows that a pass
        would have less than 16 steps. "timed" times some steps, estimates the noise of
        the gradients, and takes the size that promises to reach a loss first. It is the
        one setting whose result depends on the clock: the same fit may give another
        model the next time. With one rank it is "auto", and ``mixing="none"``, which
        exchanges nothing, refuses it.
    mixing : {"butterfly", "allreduce", "periodic", "none"}, default="butterfly"
        What the ranks average in an exchange: "butterfly", the weights of two ranks;
        "allreduce", those of all ranks, which takes log2(ranks) times the messages;
        "periodic", those of all ranks in every log2(ranks)-th exchange, which takes as
        many messages as "butterfly"; "none", nothing before the end of a pass, for the
        record alone.
    mixing_period : int or "auto", default="auto"
        Steps from one exchange to the next, at least 1; the last step of a pass is
        followed by one in any case. With 1, as in the paper, each step is. "auto"
        leaves a pass at least ``log2(ranks)`` exchanges, by which all ranks hear of
        each other, and four times as many where the ranks have rows of different
        classes; 1 where it has fewer steps than that, or with ``batch_size="timed"``.
    random_state : int, RandomState instance or None, default=None
        Seed of the shuffles and of the validation rows.
    learning_rate : {"adaptive", "invscaling"}, default="adaptive"
        Step `t` has the length ``eta / sqrt(t)``. "invscaling", the rule of the paper,
        leaves `eta` at `eta0`. "adaptive" begins with `eta0` and goes by the objective,
        which is evaluated after each pass: a pass that lowers it makes `eta` 1.2 times
        as long, and one that does not is taken back and halves `eta`. Nothing is taken
        back with ``mixing="none"``, where the ranks have no model in common.
    eta0 : float, default=1.0
        What `eta` begins with, above 0.
    preconditioner : {"bounded", "jacobi", "frequency"} or None, default="bounded"
        How much longer the steps of each feature are, with `f` the fraction of the rows
        in which it is not zero and `s` the mean of its square over those rows.
        "frequency", that of the paper: ``1 / f``, so that rare features learn as fast
        as frequent ones. "jacobi": ``1 / (f s)``, so that the steps do not depend on
        the scale of a feature either. "bounded": the same with an `f` of at least one
        row in a batch, since rarer features leap. None makes all steps alike. With
        "frequency" and None, `eta0` has the units of the features.
    early_stopping : bool, default=False
        Whether each rank holds out part of its rows, and the fit ends when the score on
        them stops to improve. The rows kept for training are copied.
    validation_fraction : float, default=0.1
        Part of the rows held out, between 0 and 1.
    n_iter_no_change : int or "auto", default="auto"
        Passes without improvement before the fit ends. "auto" is 5, as in scikit-learn,
        but one pass that improves the objective by less than the cube root of `tol`,
        10 % by default, is enough where Newton's method goes on from there, or L-BFGS
        with a smooth loss and sparse rows (a tenth of the elements at most) or 64
        classes or more, or any loss, sparse rows and two classes, or 64 or more: see
        `refine`, with a `refine_max_iter` of 64 or more, ``learning_rate="adaptive"``,
        and any `mixing` but "none".
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes; "balanced" weights them by the inverse of their
        frequency, to which rows contribute by their sample weights. With two classes
        they multiply the sample weights. With more, the weight of a class multiplies
        the losses of its own rows in its problem against the rest, and those of no row
        in the others. With 0 nothing speaks for a class, which is still predicted where
        more speaks against all others; to leave it out, weigh its rows by 0.
    warm_start : bool, default=False
        Whether `fit` starts from the model of the fit before.
    average : bool or int, default=False
        Whether the model is the mean of the weights after all steps, in which late
        steps count most; it begins anew where a pass is taken back. An int begins when
        this many rows have been seen. Noisy gradients need about half as many passes
        then; a rank holds one array more of the size of the model.
    refine : {"auto", "newton", "lbfgs"} or None, default="auto"
        Whether second-order steps go on from where the passes have ended to the optimum
        of the objective. "newton" needs passes that cost each row the square of the
        number of features; "lbfgs" is for many features. "auto" finds the optimum from
        the products of all pairs of rows where they are few against the features, or
        with "hinge" of those within their margins where they are few, else takes what
        the number of features allows, ends after one look at the gradient if the passes
        have come near enough, and leaves a fit alone with ``tol=None``,
        `early_stopping` or ``mixing="none"``. None ends with the passes.
    refine_max_iter : int, default=500
        Most rounds of the refinement, each of which evaluates the objective and its
        derivatives in one pass over the rows.
    refine_tol : float, default=1e-3
        The refinement ends when the objective is estimated to be no further above its
        optimum, relative to itself.
    n_ranks : int or None, default=None
        Number of ranks. None means one per worker thread of the current client, or
        fewer where more would take longer (:ref:`ranks_that_pay`), and one without a
        client. Without a client the ranks are threads of this process. A power of two
        is best.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels.
    n_iter_ : int
        Passes made, and rounds of the refinement.
    t_ : float
        Number of the next step: 1 plus the steps made, those of 20 passes at least
        where Newton's method, or L-BFGS as said of `n_iter_no_change`, has begun after
        one that brought little.
    eta_ : float
        What ``learning_rate="adaptive"`` has made of `eta0`, a quarter of it where `t_`
        is that of 20 passes for this reason. `partial_fit` goes on with it.
    moments_ : Moments or None
        What the preconditioner has been made from, a named tuple: `sums`, of shape (2,
        n_features), the weight of the rows in which a feature is not zero and the
        weighted sum of its squares, with the weighted sum of the feature in a third row
        where the rows are dense; and `total`, the weight of all rows. `partial_fit`
        adds those of its rows. None without a preconditioner.
    history_ : list of dict
        One record per pass: `round`, the number of the pass; `time`, in seconds since
        rank 0 started; `objective` of the model after it, which is the one before if
        the pass has been taken back, and its `validation_score` with `early_stopping`;
        `eta`, the length of the steps times ``sqrt(t)``; `batch_size`; `n_steps`, the
        steps of the pass, and `mixing_period`, those from one exchange to the next;
        over all ranks the sums `n_samples` (rows gone over in the pass), `bytes_sent`
        and `messages_sent` between processes, and `bytes_shared` within processes; and
        the means over ranks `seconds_computing` and `seconds_waiting`. Where
        ``batch_size="timed"`` has measured, also what it has found: `seconds_per_row`
        and `seconds_per_exchange`, on each rank, and `noise_scale`, the rows of all
        ranks' batches together at which twice as many rows are needed as with small
        batches.
        Rounds of the refinement have `refined`, which is True, `local_epochs`, their
        passes over the rows, and `excess`, an estimate of how far the objective is
        above its optimum, relative to itself, in place of what tells of steps.
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
    ButterflySGDRegressor : The same for regression.
    MASGDClassifier : Long local passes between two exchanges.
    sklearn.linear_model.SGDClassifier : SGD on one machine.

    References
    ----------
    H. Zhao, J. Canny. "Butterfly mixing: accelerating incremental-update algorithms on
    clusters." SIAM International Conference on Data Mining, 2013; sections 3 and 4.

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
        **LinearButterfly._parameter_constraints,
        "loss": [StrOptions(_LOSSES), Loss],
        "class_weight": [StrOptions({"balanced"}), dict, None],
    }
    _sklearn_class = SGDClassifier

    def __init__(
        self,
        loss: str | Loss = "log_loss",
        *,
        alpha: float = 0.0001,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float | None = 1e-3,
        shuffle: bool = True,
        verbose: int = 0,
        epsilon: float = 0.1,
        batch_size: int | str = "auto",
        mixing: str = "butterfly",
        mixing_period: int | str = "auto",
        random_state: Any = None,
        learning_rate: str = "adaptive",
        eta0: float = 1.0,
        preconditioner: str | None = "bounded",
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int | str = "auto",
        class_weight: Any = None,
        warm_start: bool = False,
        average: bool | int = False,
        refine: str | None = "auto",
        refine_max_iter: int = 500,
        refine_tol: float = 1e-3,
        n_ranks: int | None = None,
    ) -> None:
        self.loss = loss
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.shuffle = shuffle
        self.verbose = verbose
        self.epsilon = epsilon
        self.batch_size = batch_size
        self.mixing = mixing
        self.mixing_period = mixing_period
        self.random_state = random_state
        self.learning_rate = learning_rate
        self.eta0 = eta0
        self.preconditioner = preconditioner
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.average = average
        self.refine = refine
        self.refine_max_iter = refine_max_iter
        self.refine_tol = refine_tol
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
        return self._fit(X, y, sample_weight, **given_model(coef_init, intercept_init))

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> ButterflySGDClassifier:
        """Go over the rows once on all ranks, with the step size where it was.

        The preconditioner is made from the rows of all calls so far, and of the `fit`
        before them.

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
            As in :meth:`fit`, for labels that are not among the classes, and with
            `early_stopping` or `average`.
        """
        return self._fit(X, y, sample_weight, is_partial=True, classes=classes)
