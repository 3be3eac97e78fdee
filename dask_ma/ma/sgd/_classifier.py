"""Linear classifiers by model averaging."""

from __future__ import annotations

from typing import Any, ClassVar

from sklearn.linear_model import SGDClassifier

from dask_ma._callbacks import with_callbacks
from dask_ma._sklearn import StrOptions, fit_context
from dask_ma.kernels import Loss
from dask_ma.linear import LinearClassifierMixin, given_model
from dask_ma.ma._paradigm import Gradients, Models
from dask_ma.ma.sgd._linear import LinearMA

_LOSSES = {
    "hinge",
    "log_loss",
    "modified_huber",
    "squared_hinge",
    "perceptron",
    "squared_error",
    "huber",
    "epsilon_insensitive",
    "squared_epsilon_insensitive",
}


class MASGDClassifier(LinearClassifierMixin, LinearMA):
    """Linear classifier trained by SGD with model averaging.

    Every rank runs SGD over its own rows; after each local pass the ranks' models are
    averaged by an allreduce from worker to worker, weighted by rows. The objective is
    ``sum_i s_i loss(y_i, x_i w + b) / sum_i s_i + alpha * penalty(w)``, where `s_i` is
    the sample weight times the class weight. With more than two classes each class is
    set against the rest, and the objective is the mean over these problems. In that of
    a class its weight multiplies the losses of its own rows, and `s_i` is the sample
    weight alone, as in SGDClassifier.

    What a fit says of parameters that cannot act beside others is in the
    :ref:`User Guide <parameters>`.

    Parameters
    ----------
    loss : str or Loss, default="hinge"
        "hinge" (linear SVM), "log_loss" (logistic regression), "modified_huber",
        "squared_hinge", "perceptron", or one of the regression losses "squared_error",
        "huber", "epsilon_insensitive", "squared_epsilon_insensitive" on targets -1 and
        1. An object of :mod:`dask_ma.losses` may be a loss of your own; its steps of
        SGD take 16 rows each, in NumPy.
    penalty : {"l2", "l1", "elasticnet"} or None, default="l2"
        Regularisation term; the intercept is never part of it.
    alpha : float, default=0.0001
        Weight of the penalty, at least 0. It also sets the step size of
        ``learning_rate="optimal"``, which needs it to be above 0.
    l1_ratio : float, default=0.15
        Share of L1 in the elastic net, from 0 to 1; used with
        ``penalty="elasticnet"``.
    fit_intercept : bool, default=True
        Whether to fit an intercept.
    max_iter : int, default=1000
        Most communication rounds before the refinement. With ``refine="newton"`` or
        "lbfgs", 0 starts it from zero, or from the model given.
    tol : float or None, default=1e-3
        The rounds end when `n_iter_no_change` passes in a row have not improved the
        objective by more than this part of it (with `early_stopping`, the validation
        score by this much); for `n_iter_no_change` of "auto" its cube root counts at
        times. None makes `max_iter` rounds.
    shuffle : bool or "ranks", default=True
        Whether each rank goes over its blocks, and over the rows of a block, in a new
        order each time. "ranks" also deals out the rows of Dask collections, as those
        in memory always are, so that each rank gets some from everywhere: with P ranks
        all but one part in P of the rows go to another worker once.
    verbose : int, default=0
        1 shows a progress bar, in a terminal or notebook and with rich installed; a
        higher value, or 1 elsewhere, prints a line per round.
    epsilon : float, default=0.1
        Threshold of the losses "huber", "epsilon_insensitive" and
        "squared_epsilon_insensitive".
    random_state : int, RandomState instance or None, default=None
        Seed of the shuffles, of the validation rows and of the samples of
        ``paradigm="gradient"``.
    learning_rate : {"auto", "constant", "optimal", "invscaling", "adaptive", "pa1", \
            "pa2"}, default="auto"
        Step size of each rank's SGD. "auto" tries some on a sample of the rows, takes
        the best, and halves it whenever passes cease to improve the objective; with
        ``paradigm="gradient"`` it is "optimal". Sparse rows with 32 classes or more
        make steps of 16 rows then. The others are as in SGDClassifier:
        "adaptive" divides `eta0` by 5 whenever the rounds stop to improve the
        objective. "pa1" and "pa2" need ``loss="hinge"``.
    eta0 : float, default=0.01
        Initial step size of "constant", "invscaling" and "adaptive", and the
        aggressiveness of "pa1" and "pa2".
    power_t : float, default=0.5
        Exponent of "invscaling".
    early_stopping : bool, default=False
        Whether each rank holds out part of its rows, and the fit ends when the score on
        them stops to improve. The rows kept for training are copied.
    validation_fraction : float, default=0.1
        Part of the rows held out, between 0 and 1.
    n_iter_no_change : int or "auto", default="auto"
        Passes over the rows without improvement before the rounds end; a round of
        `local_epochs` above 1 counts as one. "auto" is 5, as in scikit-learn, but one
        pass that improves the objective by less than the cube root of `tol`, 10 % by
        default, is enough where a refinement goes on from there faster: with
        ``learning_rate="auto"``, without an L1 penalty, and with a `refine_max_iter` of
        64 or more.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes; "balanced" weights them by the inverse of their
        frequency, to which rows contribute by their sample weights. With two classes
        they multiply the sample weights. With more, the weight of a class multiplies
        the losses of its own rows in its problem against the rest, and those of no row
        in the others. With 0 nothing speaks for a class, which is still predicted where
        more speaks against all others; to leave it out, weigh its rows by 0.
    warm_start : bool, default=False
        Whether `fit` starts from the model of the fit before. Where that serves the
        rows, and a refinement follows, no steps of SGD come before it; one that is
        worse on them than none is forgotten.
    average : bool or int, default=False
        Whether the result is the mean of the merged models of the rounds, with weights
        that grow with the third power of the round. An int begins with the round in
        which this many rows have been seen.
    local_epochs : float or "auto", default="auto"
        How often each rank goes over its rows between two merges. "auto" decides by the
        number of rows and ranks, the size of the model and the configuration
        ``dask-ma.comm.link-bandwidth``, never by the clock: from 1/16 to 4. A fraction
        merges within a pass.
    paradigm : {"model", "gradient"}, Models or Gradients, default="model"
        What the ranks send: models that each has trained, which are averaged, or the
        sums of the gradients of samples of their rows, for one step in a round, as
        Spark's MLlib does it. That is there to compare with: its rounds are the steps
        of `learning_rate`, "pa1" and "pa2" are refused, `local_epochs` must be "auto",
        and ``shuffle=False`` is refused. An object of
        :class:`~dask_ma.ma.Models` or :class:`~dask_ma.ma.Gradients` also says who adds
        up what is sent, and how large the samples are.
    refine : {"auto", "newton", "lbfgs"} or None, default="auto"
        Whether second-order steps go on from where the rounds have ended to the optimum
        of the objective. "newton" needs passes that cost each row the square of the
        number of features; "lbfgs" is for many features. "auto" finds the optimum from
        the products of all pairs of rows where they are few against the features and
        the penalty is L2, or with "hinge" of those within their margins where they are
        few, else takes what the number of features allows, or of those that L1 leaves
        where L-BFGS is slow, ends after a few passes where the rounds have come near
        enough, and begins early where they bring little (`tol`) or worsen the model
        (`n_iter_no_change`). It leaves a fit alone with ``tol=None``,
        `early_stopping`, ``learning_rate="pa1"`` or "pa2",
        ``paradigm="gradient"`` or ``loss="perceptron"``, whose optimum is zero. None
        ends with the rounds.
    refine_max_iter : int, default=500
        Most rounds of the refinement, each of which evaluates the objective and its
        derivatives in one pass over the rows.
    refine_tol : float, default=1e-3
        The refinement ends when the objective is estimated to be no further above its
        optimum, relative to itself.
    n_ranks : int or None, default=None
        Number of ranks. None means one per worker thread of the current client, or
        fewer where more would take longer (:ref:`model_averaging_ranks`), and one
        without a client. Without a client the ranks are threads of this process.

    Attributes
    ----------
    coef_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Coefficients.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Intercepts.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels.
    n_iter_ : int
        Rounds made, those of the refinement among them.
    eta_ : float
        Size of the next step of ``learning_rate="auto"``; there is none with others,
        and before a round of SGD has been made.
    t_ : float
        Place in the schedule of the learning rate: 1 plus the rows that a rank has gone
        over, times 1.5 with several ranks unless `learning_rate` is "auto"; with
        ``paradigm="gradient"``, 1 plus the rounds.
    history_ : list of dict
        One record per round: `round`; `time`, in seconds since rank 0 started;
        `objective`, and `validation_score` with `early_stopping`, which are NaN in
        rounds within a pass that nobody follows; `local_epochs`, the passes over the
        rows in the round; in rounds of the refinement, `refined`, which is True, and
        `excess`, an estimate of how far the objective is above its optimum, relative to
        itself; over all ranks the
        sums `n_samples` (rows gone over in the round), `bytes_sent` and `messages_sent`
        between processes, and `bytes_shared` within processes; and the means over ranks
        `seconds_computing` and `seconds_waiting`.
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
    MASGDRegressor : The same for regression.
    sklearn.linear_model.SGDClassifier : The same on one machine.

    References
    ----------
    Y. Guo, Z. Zhang, J. Jiang, W. Wu, C. Zhang, B. Cui, J. Li. "Model averaging in
    distributed machine learning: a case study with Apache Spark." The VLDB Journal,
    2021; sections 2.2, 3 and 5.2.2.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_ma import MASGDClassifier
    >>> X = np.array([[-1.0, -1.0], [-2.0, -1.0], [1.0, 1.0], [2.0, 1.0]])
    >>> y = np.array(["no", "no", "yes", "yes"])
    >>> classifier = MASGDClassifier(max_iter=20, tol=None, random_state=0)
    >>> classifier.fit(X, y).predict([[-0.8, -1.0]]).tolist()
    ['no']
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **LinearMA._parameter_constraints,
        "loss": [StrOptions(_LOSSES), Loss],
        "class_weight": [StrOptions({"balanced"}), dict, None],
    }
    _sklearn_class = SGDClassifier
    _passive_loss = "hinge"

    def __init__(
        self,
        loss: str | Loss = "hinge",
        *,
        penalty: str | None = "l2",
        alpha: float = 0.0001,
        l1_ratio: float = 0.15,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float | None = 1e-3,
        shuffle: bool = True,
        verbose: int = 0,
        epsilon: float = 0.1,
        random_state: Any = None,
        learning_rate: str = "auto",
        eta0: float = 0.01,
        power_t: float = 0.5,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int | str = "auto",
        class_weight: Any = None,
        warm_start: bool = False,
        average: bool | int = False,
        local_epochs: float | str = "auto",
        paradigm: str | Models | Gradients = "model",
        refine: str | None = "auto",
        refine_max_iter: int = 500,
        refine_tol: float = 1e-3,
        n_ranks: int | None = None,
    ) -> None:
        self.loss = loss
        self.penalty = penalty
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.shuffle = shuffle
        self.verbose = verbose
        self.epsilon = epsilon
        self.random_state = random_state
        self.learning_rate = learning_rate
        self.eta0 = eta0
        self.power_t = power_t
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.average = average
        self.local_epochs = local_epochs
        self.paradigm = paradigm
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
    ) -> MASGDClassifier:
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
            Weights of the rows, not negative; a number weights all alike. A weight of 2
            counts like the row twice, a weight of 0 like no row.

        Returns
        -------
        self : MASGDClassifier

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
    ) -> MASGDClassifier:
        """Go over the rows once on all ranks and merge, or make one gradient step.

        Parameters
        ----------
        X, y, sample_weight
            As in :meth:`fit`.
        classes : array-like of shape (n_classes,), default=None
            All labels that there will be; needed in the first call.

        Returns
        -------
        self : MASGDClassifier

        Raises
        ------
        ValueError
            As in :meth:`fit`, and for labels that are not among the classes.
        """
        return self._fit(X, y, sample_weight, is_partial=True, classes=classes)
