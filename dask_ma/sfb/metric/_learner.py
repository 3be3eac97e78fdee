"""The estimator: distances learnt from labels, or from pairs of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from dask_ma import _config
from dask_ma._callbacks import with_callbacks
from dask_ma._sklearn import Interval, StrOptions, fit_context
from dask_ma.data import CAST_LATER, InputInfo, check_memory_labels, merge_labels
from dask_ma.engine import Identity
from dask_ma.sfb._moved_rows import most_moved
from dask_ma.sfb.exchange._settings import COMMUNICATION, Exchange, RunSettings
from dask_ma.sfb.metric._agent import train
from dask_ma.sfb.metric._cost import worthwhile_ranks
from dask_ma.sfb.metric._fitted import FittedMetric
from dask_ma.sfb.metric._inputs import INITS, checked_init, described, tuples_of
from dask_ma.sfb.metric._params import INACTIVE, MetricParams, check_combinations
from dask_ma.sfb.metric._partial import partial_changes
from dask_ma.sfb.metric._plan import GROUP_SIZE
from dask_ma.supervised import FitResult


class SFBMetricLearner(FittedMetric):
    """Distances learnt from labels or pairs, by sufficient factor broadcasting.

    Learns a linear projection of rows, `components_`, such that rows of one class are
    near each other and others are not. Euclidean distances of projected rows are the
    Mahalanobis distances of ``components_.T @ components_``. Neighbours tell more then,
    and distances whether two rows, perhaps of classes not seen, are of the same kind.

    The rows of a batch lie on all ranks, and all their pairs count: a rank gets the
    projections of the others' rows, works out what each pair wants, and sends a pair of
    vectors for each of its rows, from which the others rebuild its update [1]_.

    Parameters
    ----------
    n_components : int or None, default=None
        Length of projected rows, at least 1 and at most the number of features, which
        None stands for.
    metric_form : {"low_rank", "diagonal"}, default="low_rank"
        Whether features are mixed by a projection, or only weighed: "diagonal" learns a
        factor for each, for features too many for a matrix, or that are to stay what
        they are.
    loss : {"nca", "hinge", "logistic", "triplet"}, default="nca"
        What is to be small; `D` is the squared distance of a pair. "nca", from labels
        only: minus the logarithm of the probability that a neighbour is of the same
        class, where neighbours are drawn with ``exp(-D)`` [2]_. "hinge" [1]_: the mean
        `D` of similar pairs, and `push_weight` times the mean of ``max(0, margin - D)``
        of others. "logistic": ``log(1 + exp(3 * s * (D - margin))) / 3``, where `s` is
        1 for similar pairs and -1 for others. "triplet": ``max(0, margin + D_similar -
        D_other)`` of a row with each similar and each other one.
    margin : float, default=1.0
        Squared distance, above 0.
    push_weight : float, default=5.0
        Weight of dissimilar pairs in "hinge", above 0.
    init : {"auto", "pca", "lda", "identity", "random"} or array-like of shape \
            (n_components, n_features), default="auto"
        Components to start from: the first principal components, the directions that
        tell classes apart best, of which there are one fewer than classes, the first
        features, or numbers drawn at random, all of a length that suits the loss.
        "auto" is "pca" with fewer components than features, else "identity". For a
        diagonal "identity", which is "auto", "random", or one number for each feature.
    penalty : {"l2", "l1", "trace"}, default="l2"
        Penalty of the components: half the sum of their squares, the sum of their
        absolute values, or that of their singular values, which makes for a low rank.
        The last two need ``optimizer="sgd"``, and are the same for a diagonal.
    alpha : float, default=0.0
        Weight of the penalty, at least 0.
    max_iter : int or "auto", default="auto"
        Most passes over the rows or pairs, at least 1. "auto": as many as 120 batches,
        or groups of batches, take, at least 3, so few of many rows and many of few.
    tol : float or None, default=1e-4
        The fit ends when `n_iter_no_change` passes in a row have not lowered the
        objective by this times itself; with `early_stopping`, when they have not raised
        the score on held-out rows by this. None makes `max_iter` passes.
    batch_size : int or "auto", default="auto"
        Rows, or pairs, of a batch of all ranks, at least 2. Each class has its share of
        each batch. With labels all pairs of the batch count. "auto": 256; of many
        labelled rows, from 4,096 on, a batch is made of as many groups of about 256
        rows as leave some 60 steps, pairs are those within groups, and each rank has
        groups of its own, so that several ranks send each other little.
    optimizer : {"adam", "sgd"}, default="adam"
        How steps are made: in units of the root mean square of the gradient, for ranks
        that are in step; or proportional to it, also with `staleness` and `broadcast`
        of an exchange. The pairs of a batch are then those of the rows of each rank.
    eta0 : float or "auto", default="auto"
        Length of the first step, above 0. "auto": in "adam" in proportion to the
        components, in "sgd" to the variance of rows.
    learning_rate : {"cosine", "constant"}, default="cosine"
        How steps become shorter until `max_iter`: as half a wave of the cosine, or not.
    early_stopping : bool, default=False
        Whether rows or pairs are held out, and the components of the pass that is best
        for them are taken. The score is the part of rows whose three nearest neighbours
        name their class; for pairs, the area under the receiver operating
        characteristic curve; for triplets, the part in the right order.
    validation_fraction : float, default=0.1
        Share to hold out, between 0 and 1.
    n_iter_no_change : int, default=5
        Passes without improvement before the fit ends, at least 1.
    communication : {"auto", "factors", "full_matrix", "server", "outputs"} or \
            Exchange, default="auto"
        Whether factors are sent, or whole update matrices, which are smaller where
        batches are large against the numbers of features and components; or, with
        components shared out over ranks, rows, which takes at most as many ranks as
        components. "auto" takes what is quickest by the sizes; but where the steps are
        so short that all ranks together would take longer than one, rank 0 gets the
        rows, up to ``dask-ma.sfb.moved-rows``, and makes them. See
        :class:`~dask_ma.sfb.Exchange`.
    warm_start : bool, default=False
        Whether `fit` starts from the components of the fit before.
    random_state : int, RandomState instance or None, default=None
        Seed of the batches and of the start. They are the same on any number of ranks.
    verbose : int, default=0
        1 shows a progress bar, in a terminal or notebook and with rich installed; a
        higher value, or 1 elsewhere, prints a line per pass.
    n_ranks : int or None, default=None
        Number of ranks. None means one per worker thread of the current client, or one
        where these would take longer (:ref:`ranks_that_pay`) or there is no client.
        Without a client the ranks are threads of this process.

    Attributes
    ----------
    components_ : ndarray of float32 of shape (n_components, n_features)
        The projection. For ``metric_form="diagonal"`` of shape (n_features,), not
        negative: what features are multiplied by, the roots of their weights.
    threshold_ : float
        Distance up to which pairs are similar: after a fit to pairs, the one that names
        most of them rightly; else missing until it is set.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels; missing after a fit to pairs.
    eta0_ : float
        Length of the first step.
    communication_ : str
        What was sent: "factors", "full_matrix", "server" or "outputs"; or "alone", if
        rank 0 got all rows.
    n_iter_ : int
        Passes made.
    n_steps_ : int
        Steps made.
    history_ : list of dict
        One record per pass: `round`, the number of the pass; `time`, in seconds since
        rank 0 started; `objective`, the mean loss of the batches of the pass, as they
        were met, plus the penalty; with `early_stopping`, `validation_score`; over all
        ranks the sums `n_samples`, `bytes_sent`, `messages_sent` and `bytes_shared`;
        and the means `seconds_computing` and `seconds_waiting`. `restarts` counts how
        often the ranks have had to start again until then.
    timeline_ : ndarray of shape (n_spans,)
        What each rank has done when; see :class:`~dask_ma.plotting.GanttDisplay`.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if X had names that are all strings.

    See Also
    --------
    sklearn.neighbors.NeighborhoodComponentsAnalysis : The loss "nca" on one machine, of
        all pairs of rows at once.
    dask_ma.sfb.run : Models of your own.

    References
    ----------
    .. [1] P. Xie, J. K. Kim, Y. Zhou, Q. Ho, A. Kumar, Y. Yu, E. Xing.
       "Lighter-communication distributed machine learning via sufficient factor
       broadcasting." UAI, 2016.
    .. [2] J. Goldberger, S. Roweis, G. Hinton, R. Salakhutdinov. "Neighbourhood
       components analysis." Advances in Neural Information Processing Systems 17, 2004.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dask_ma import SFBMetricLearner
    >>> X, y = load_iris(return_X_y=True)
    >>> learner = SFBMetricLearner(2, random_state=0).fit(X, y)
    >>> learner.transform(X).shape
    (150, 2)
    >>> same = [[0, 1], [60, 61], [120, 121], [0, 60], [60, 120], [0, 120]]
    >>> pairs = SFBMetricLearner(2, loss="logistic", random_state=0)
    >>> pairs.fit(X, pairs=same, pair_labels=[1, 1, 1, -1, -1, -1]).predict([[1, 2]], X)
    array([1])
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "metric_form": [StrOptions({"low_rank", "diagonal"})],
        "loss": [StrOptions({"nca", "hinge", "logistic", "triplet"})],
        "margin": [Interval(Real, 0, None, closed="neither")],
        "push_weight": [Interval(Real, 0, None, closed="neither")],
        "init": [StrOptions(INITS), "array-like"],
        "penalty": [StrOptions({"l2", "l1", "trace"})],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "tol": [Interval(Real, 0, None, closed="left"), None],
        "batch_size": [
            Interval(Integral, 2, None, closed="left"),
            StrOptions({"auto"}),
        ],
        "optimizer": [StrOptions({"adam", "sgd"})],
        "eta0": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "learning_rate": [StrOptions({"cosine", "constant"})],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "communication": [COMMUNICATION.to_sklearn()],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "n_ranks": [Interval(Integral, 1, None, closed="left"), None],
    }
    _to_object = {"communication": COMMUNICATION.as_object}
    _inactive = INACTIVE
    # With another number of passes the steps are others.
    _free_to_change = FittedMetric._free_to_change - {"max_iter"}

    def __init__(
        self,
        n_components: int | None = None,
        *,
        metric_form: str = "low_rank",
        loss: str = "nca",
        margin: float = 1.0,
        push_weight: float = 5.0,
        init: Any = "auto",
        penalty: str = "l2",
        alpha: float = 0.0,
        max_iter: int | str = "auto",
        tol: float | None = 1e-4,
        batch_size: int | str = "auto",
        optimizer: str = "adam",
        eta0: float | str = "auto",
        learning_rate: str = "cosine",
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        communication: str | Exchange = "auto",
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
        n_ranks: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.metric_form = metric_form
        self.loss = loss
        self.margin = margin
        self.push_weight = push_weight
        self.init = init
        self.penalty = penalty
        self.alpha = alpha
        self.max_iter = max_iter
        self.tol = tol
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.eta0 = eta0
        self.learning_rate = learning_rate
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.communication = communication
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.n_ranks = n_ranks

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        pairs: Any = None,
        pair_labels: Any = None,
    ) -> SFBMetricLearner:
        """Learn the components.

        Parameters
        ----------
        X : array-like, sparse, DataFrame, dask.array or dask.dataframe, of shape \
                (n_samples, n_features)
            Rows.
        y : array-like or Dask collection of shape (n_samples,), default=None
            Labels: int, bool or str. Rows with the same label are similar.
        sample_weight : array-like or Dask column of shape (n_samples,), or array-like \
                of shape (n_pairs,), default=None
            What the losses of rows, or of pairs or triplets, are multiplied by, not
            negative; the mean is 1 after all. Rows of weight 0 are no rows, also to
            others.
        pairs : array-like of int of shape (n_pairs, 2) or (n_pairs, 3), default=None
            Numbers of rows of `X`, from 0, instead of labels. With ``loss="triplet"``
            three: a row, one that is similar to it, and one that is less so.
        pair_labels : array-like of shape (n_pairs,), default=None
            1 for similar pairs, -1 for others; both are needed. None for triplets.

        Returns
        -------
        self : SFBMetricLearner

        Raises
        ------
        ValueError
            For data or parameters that cannot be used; for labels that are all equal or
            all different, and pairs of rows that do not exist, or without a dissimilar
            one; for an `alpha` with which all components vanish; and for an objective
            that grows without bound, as with a large `eta0`.
        FitFailedError
            If a worker is lost or a wait takes longer than configured.
        """
        data = X, y, sample_weight
        sample_weight, tuples = tuples_of(self, *data, pairs, pair_labels)
        return self._fit(X, y, sample_weight, tuples=tuples)

    @with_callbacks
    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        pairs: Any = None,
        pair_labels: Any = None,
    ) -> SFBMetricLearner:
        """Go over rows or pairs once, starting from the components so far.

        Steps are shortened by their number, and not towards `max_iter`.

        Parameters
        ----------
        X, y, sample_weight, pairs, pair_labels
            As in :meth:`fit`, which is about rows, or pairs, at hand: weights have mean
            1 in each call. Calls may have rows of other classes.

        Returns
        -------
        self : SFBMetricLearner

        Raises
        ------
        ValueError
            As in :meth:`fit`, for another number of columns, or of components, than
            before, and for `early_stopping`.
        """
        data = X, y, sample_weight
        sample_weight, tuples = tuples_of(self, *data, pairs, pair_labels)
        return self._fit(X, y, sample_weight, is_partial=True, tuples=tuples)

    # The way through a fit ------------------------------------------------------------

    @property
    def _agent(self) -> Any:
        return train

    _worthwhile_ranks = staticmethod(worthwhile_ranks)

    @property
    def _row_dtypes(self) -> tuple[Any, ...]:
        return (np.float32,)

    def _check_combinations(self) -> None:
        check_combinations(self)

    def _peer_type(self) -> type:
        return NeighborhoodComponentsAnalysis

    def _validate_memory(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, Any]:
        options: dict[str, Any] = {
            "accept_sparse": "csr",
            "dtype": [*self._row_dtypes, *CAST_LATER],
            "order": "C",
            "reset": reset,
            "ensure_min_samples": 2,
        }
        if y is None:
            return validate_data(self, X, **options), None
        check_memory_labels(y)
        X, y = validate_data(self, X, y, **options)
        check_classification_targets(y)
        return X, y

    def _make_params(self, info: InputInfo, **changes: Any) -> MetricParams:
        n_features = self.n_features_in_
        is_diagonal = self.metric_form == "diagonal"
        n_components = 1 if is_diagonal else self.n_components or n_features
        if n_components > n_features > 0:  # of none, the ranks say so
            raise ValueError(
                f"n_components={n_components} is larger than the number of features, "
                f"{n_features}"
            )
        shape = (n_features,) if is_diagonal else (n_components, n_features)
        if not isinstance(self.init, str):
            changes["init"] = checked_init(self.init, shape)
        start = changes.get("start")
        if start is not None:
            if start.shape != shape:
                raise ValueError(
                    f"the components to go on from have the shape {start.shape}, "
                    f"expected {shape}; set n_components back, and metric_form, or "
                    "set warm_start=False"
                )
            changes["start"] = np.atleast_2d(start)
        is_auto = isinstance(self.batch_size, str)
        settings = self._params_of(
            RunSettings,
            exchange=self._objects()["communication"],
            batch_size=GROUP_SIZE if is_auto else self.batch_size,
        )
        return self._params_of(
            MetricParams,
            **{
                "is_classifier": True,
                "n_components": n_components,
                "is_grouped": is_auto,
                "link_bandwidth": _config.get_bytes("comm.link-bandwidth"),
                "most_moved": most_moved(info),
                "settings": settings,
                **changes,
            },
        )

    def _max_rounds(
        self, params: MetricParams, info: InputInfo, n_ranks: int
    ) -> int | None:
        return None if isinstance(params.max_iter, str) else params.max_iter

    def _warm_changes(self) -> dict[str, Any]:
        is_warm = self.warm_start and hasattr(self, "components_")
        return {"start": self.components_} if is_warm else {}

    def _partial_changes(self) -> dict[str, Any]:
        return partial_changes(self)

    def _identity(self, params: MetricParams, seed: int) -> Identity:
        identity = super()._identity(params, seed)
        tuples = getattr(params, "tuples", None)
        if tuples is None:
            return identity
        parameters = {**identity.parameters, **described(tuples)}
        return replace(identity, parameters=parameters)

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        attributes = {
            "components_": fitted["components"],
            "n_iter_": fitted["n_iter"],
            "n_steps_": fitted["n_steps"],
            "eta0_": fitted["eta0"],
            "communication_": fitted["communication"],
        }
        if fitted["classes"] is not None:
            attributes["classes_"] = fitted["classes"]
        if "threshold" in fitted:
            attributes["threshold_"] = fitted["threshold"]
        return attributes

    def _take_over(self, result: FitResult, params: MetricParams) -> None:
        before = self.__dict__.get("classes_") if params.is_partial else None
        # The fit before may have been to the other kind of input.
        for name in ("classes_", "threshold_"):
            self.__dict__.pop(name, None)
        super()._take_over(result, params)
        found = result.fitted["classes"]
        if before is not None and found is not None:
            self.classes_ = merge_labels([before, found])
        # A fit after partial ones does not go on from their steps.
        self._steps = result.fitted.get("steps")

    def _warnings(
        self, result: FitResult, *, is_partial: bool
    ) -> Iterator[tuple[str, type[Warning]]]:
        yield from super()._warnings(result, is_partial=is_partial)
        records = result.history[result.fitted["first_record"] :]
        objectives = [record["objective"] for record in records]
        if len(objectives) > 1 and not min(objectives[1:]) < objectives[0]:
            yield (
                f"the objective has not fallen in {len(objectives)} passes; lower "
                "eta0, or give more rows or pairs",
                ConvergenceWarning,
            )
