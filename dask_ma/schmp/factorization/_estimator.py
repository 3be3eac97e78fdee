"""The estimator: users and items as vectors, whose products are ratings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from dask_ma._callbacks import with_callbacks
from dask_ma._settings import Inactive, unless
from dask_ma._sklearn import Interval, StrOptions, fit_context
from dask_ma.data import (
    InputInfo,
    Kept,
    describe,
    is_dask_collection,
    refuse_unfinished,
)
from dask_ma.schmp.factorization._agent import FactorizationResult, join, train
from dask_ma.schmp.factorization._columns import columns_of, warn_of_order
from dask_ma.schmp.factorization._cost import ranks_for_factors
from dask_ma.schmp.factorization._fitted import (
    FittedFactorization,
    merged_ratings,
)
from dask_ma.schmp.factorization._held_out import shortfall_of
from dask_ma.schmp.factorization._ids import find_ids
from dask_ma.schmp.factorization._inputs import (
    COPIES,
    NO_RATINGS,
    are_pairs,
    encode,
    is_matrix,
    pairs_and_ratings,
    pairs_of,
    triples_of,
)
from dask_ma.schmp.factorization._params import FactorizationParams
from dask_ma.schmp.factorization._rated import KnownVectors, known_vectors

_MAX_SEED = np.iinfo(np.int32).max


def _without_steps(estimator: Any) -> tuple[str, ...]:
    """Why there are no conjugate gradients; nothing where there may be some."""
    if estimator.solver == "sgd":
        return ("solver",)
    if estimator.positive:
        return ("positive",)
    return ("als_solver",) if estimator.als_solver == "cholesky" else ()


class SchMPMatrixFactorization(FittedFactorization):
    """Matrix factorization by rotation of items past users [1]_.

    A rating is the mean, the bias of the user, that of the item, and the product of
    their vectors. Each rank has some of the users and of the items; the others travel
    past them in blocks, so no rank ever has all. The objective is the sum of squared
    errors and ``alpha`` times the squared lengths of biases and vectors.

    With implicit feedback, such as plays or purchases, every pair counts: those that
    have happened should be 1, with the weight ``1 + confidence * abs(value)``, all
    others 0 with the weight 1 [2]_. Negative values should be 0 with that weight.

    Parameters
    ----------
    n_components : int, default=32
        Length of the vectors, at least 1.
    feedback : {"explicit", "implicit"}, default="explicit"
        Whether values are ratings, or how often something has happened.
    solver : {"als", "sgd"}, default="als"
        Alternating least squares: users are solved for with the items fixed, then items
        with the users fixed. Or stochastic gradient descent, for ratings only.
    als_solver : {"auto", "cholesky", "cg"}, default="auto"
        How "als" solves: exactly, by normal equations and their Cholesky factors, or by
        steps of conjugate gradients, which take less time where there are many
        components and few ratings of each user and item. "auto" takes these where they
        take less than 0.4 of the time, by an estimate.
    cg_steps : int, default=3
        Steps of conjugate gradients, at least 1. They begin where the last ones ended.
    alpha : float, default=0.09
        Penalty, not negative.
    weighted_alpha : bool, default=True
        Whether the penalty of a user or item is multiplied by the sum of the weights of
        its ratings.
    standardize : bool, default=True
        Whether ratings are divided by their deviation for the fit, so that the same
        `alpha` and `eta0` serve whatever their units are. Factors and biases are then
        brought back to the units of the ratings. For ratings only.
    confidence : float, default=1.0
        Weight of implicit feedback, not negative.
    fit_bias : bool, default=True
        Whether users and items have biases, and the mean is taken from ratings.
    positive : bool, default=False
        Whether vectors have no negative components. Biases may be negative.
    eta0 : float, default=0.1
        Length of steps of "sgd", above 0; each user and item has a rate of its own,
        which falls (AdaGrad).
    batch_size : int, default=2048
        Ratings that make a step of "sgd" together, at least 1.
    max_iter : int, default=100
        Most rounds, at least 1. In a round every rating is gone over, with "als" twice.
    tol : float, default=1e-4
        The fit ends when the objective falls by less than this part of itself, in the
        first five rounds twice in a row, and not by more than in the round before; or
        when nothing but rounding is left of it.
    early_stopping : bool, default=False
        Whether to hold ratings out and to end when their error does not fall any more
        by the part `tol`, but not while they are predicted no better than by a
        constant. The factors are then those of the round with the least error. For
        ratings only.
    validation_fraction : float, default=0.1
        Part of the ratings that is held out, above 0 and below 1. Which ones depends on
        `random_state` and on the pairs alone.
    n_iter_no_change : int, default=3
        Rounds without an improvement after which the fit ends, at least 1.
    cold_start : {"mean", "nan", "raise"}, default="mean"
        What is predicted for users and items that the fit has not seen: the mean and
        what biases are known, NaN, or an error.
    clip : bool, default=True
        Whether predictions are kept between the least and the largest rating.
    dtype : {"float32", "float64"}, default="float32"
        Type of the factors.
    warm_start : bool, default=False
        Whether another fit begins with the vectors and biases of the one before, by
        ids, and draws those of new users and items only, and of those that have had
        no ratings yet. Each rank is sent all of them once. "als" begins by the users,
        and uses those of the items.
    random_state : int, RandomState instance or None, default=None
        Seed of the vectors to begin with, which do not depend on the number of ranks.
    verbose : int, default=0
        1 shows a progress bar, more a line for each round.
    n_ranks : int, default=None
        Number of ranks. None means one per worker thread, or fewer where more would
        take longer (:ref:`ranks_that_pay`), and one without a client.

    Attributes
    ----------
    user_factors_, item_factors_ : ndarray of shape (n, n_components)
        Vectors, in the order of the ids.
    user_bias_, item_bias_ : ndarray of shape (n,)
        Zeros without biases.
    user_ids_, item_ids_ : ndarray
        Sorted ids.
    mean_ : float
        Mean of the ratings; 0 with implicit feedback.
    scale_ : float
        Deviation of the ratings, by which they were divided; 1 without `standardize`.
    rating_range_ : tuple of float
        Least and largest rating; infinite with implicit feedback.
    seen_ : csr_array of shape (n_users, n_items)
        Ratings, which :meth:`recommend` leaves out; their mean where a pair is rated
        twice, with implicit feedback their sum.
    n_iter_ : int
        Rounds made.
    history_ : list of dict
        One record for each round, with the `objective`, bytes, times and `imbalance`,
        and with `early_stopping` the `validation_rmse` and, beside the error of a
        constant for all ratings, the `validation_r2`.
        With "sgd" the objective is the sum of squared errors that the steps have met.
    timeline_ : ndarray
        What each rank has done when.
    feature_names_in_ : ndarray of str of shape (2,)
        Names of the columns of users and items, after a fit to a frame.

    See Also
    --------
    dask_ma.schmp.RotationProgram : Programs of this kind.

    References
    ----------
    .. [1] J. K. Kim, Q. Ho, S. Lee, X. Zheng, W. Dai, G. A. Gibson, E. P. Xing,
       "STRADS: A distributed framework for scheduled model parallel machine learning",
       EuroSys 2016.
    .. [2] Y. Hu, Y. Koren, C. Volinsky, "Collaborative filtering for implicit feedback
       datasets", ICDM 2008.

    Examples
    --------
    >>> from dask_ma import SchMPMatrixFactorization
    >>> pairs = [("ann", "tea"), ("ann", "milk"), ("bob", "tea"), ("cy", "milk")]
    >>> model = SchMPMatrixFactorization(2, max_iter=50, random_state=0)
    >>> model.fit(pairs, [5, 1, 4, 2]).predict([("cy", "tea")]).shape
    (1,)
    >>> model.recommend(["bob"], n=1).items.tolist()
    [['milk']]
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "feedback": [StrOptions({"explicit", "implicit"})],
        "solver": [StrOptions({"als", "sgd"})],
        "als_solver": [StrOptions({"auto", "cholesky", "cg"})],
        "cg_steps": [Interval(Integral, 1, None, closed="left")],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "weighted_alpha": ["boolean"],
        "standardize": ["boolean"],
        "confidence": [Interval(Real, 0, None, closed="left")],
        "fit_bias": ["boolean"],
        "positive": ["boolean"],
        "eta0": [Interval(Real, 0, None, closed="neither")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "cold_start": [StrOptions({"mean", "nan", "raise"})],
        "clip": ["boolean"],
        "dtype": [StrOptions({"float32", "float64"})],
        "warm_start": ["boolean"],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
        "n_ranks": [Interval(Integral, 1, None, closed="left"), None],
    }
    _inactive: ClassVar[tuple[Inactive, ...]] = (
        Inactive(("eta0", "batch_size"), unless("solver", "sgd"), "set solver='sgd'"),
        Inactive(("als_solver",), unless("solver", "als"), "set solver='als'"),
        Inactive(("cg_steps",), _without_steps, "set als_solver='cg'"),
        Inactive(
            ("validation_fraction", "n_iter_no_change"),
            unless("early_stopping", True),
            "set early_stopping=True",
        ),
        Inactive(
            ("confidence",), unless("feedback", "implicit"), "set feedback='implicit'"
        ),
        Inactive(
            ("standardize", "fit_bias", "clip"),
            unless("feedback", "explicit"),
            "set feedback='explicit'",
        ),
    )

    def __init__(
        self,
        n_components: int = 32,
        *,
        feedback: str = "explicit",
        solver: str = "als",
        als_solver: str = "auto",
        cg_steps: int = 3,
        alpha: float = 0.09,
        weighted_alpha: bool = True,
        standardize: bool = True,
        confidence: float = 1.0,
        fit_bias: bool = True,
        positive: bool = False,
        eta0: float = 0.1,
        batch_size: int = 2048,
        max_iter: int = 100,
        tol: float = 1e-4,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 3,
        cold_start: str = "mean",
        clip: bool = True,
        dtype: str = "float32",
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
        n_ranks: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.feedback = feedback
        self.solver = solver
        self.als_solver = als_solver
        self.cg_steps = cg_steps
        self.alpha = alpha
        self.weighted_alpha = weighted_alpha
        self.standardize = standardize
        self.confidence = confidence
        self.fit_bias = fit_bias
        self.positive = positive
        self.eta0 = eta0
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.cold_start = cold_start
        self.clip = clip
        self.dtype = dtype
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.n_ranks = n_ranks

    @fit_context(prefer_skip_nested_validation=True)
    @with_callbacks
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the factors.

        Parameters
        ----------
        X : array-like, DataFrame or Dask collection of shape (n, 2), or sparse matrix \
                or dask.array of sparse blocks of shape (n_users, n_items)
            Pairs of user and item, whose ids may be numbers, texts, dates or integers
            of any size. Or all ratings as a matrix, whose rows are users and whose
            columns are items, numbered from 0: stored zeros are ratings, what is not
            stored is missing. Or a frame of users, items and ratings, without `y`.
            Columns are taken by their places, in this order; a warning tells where
            names such as "userId", "item" or "rating" say otherwise.
        y : array-like or Dask column of shape (n,), default=None
            Ratings of the pairs; None for a matrix, for a frame with a column of
            ratings, and for pairs that have happened once. A pair that is rated twice
            has two ratings; with implicit feedback they are added up.
        sample_weight : array-like or Dask column of shape (n,), default=None
            Weights of the ratings, not negative; not with a matrix.

        Returns
        -------
        self : SchMPMatrixFactorization

        Raises
        ------
        ValueError
            For ratings that are not finite, ids that are missing, no ratings at all, or
            steps of "sgd" that diverge.
        TypeError
            For masked ratings, and ids that cannot be compared.
        """
        refuse_unfinished(X, "X")
        if sample_weight is not None and is_matrix(X, y):
            raise ValueError(
                "sample_weight cannot be used with a users x items matrix; pass "
                "pairs and ratings"
            )
        return self._fit(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add users and items that are new; those that are known stay as they are.

        First the vectors of new items follow from the ratings of known users, then
        those of new users from their ratings of all items. What is rated counts as seen
        from then on. Without a fit before, this is :meth:`fit`.

        Parameters
        ----------
        X : array-like or DataFrame of shape (n, 2)
            Pairs of user and item, in memory.
        y : array-like of shape (n,), default=None
            Ratings, as in :meth:`fit`.
        sample_weight : array-like of shape (n,), default=None
            Weights of the ratings.

        Returns
        -------
        self : SchMPMatrixFactorization
        """
        if not hasattr(self, "item_factors_"):
            return self.fit(X, y, sample_weight)
        if is_dask_collection(X) or not are_pairs(X):
            raise ValueError("partial_fit takes pairs of user and item in memory")
        X, y = pairs_and_ratings(X, y)
        self._check_names(X)
        triples = triples_of(X, y)
        weights = np.ones(len(triples.values))
        if sample_weight is not None:
            weights = np.asarray(sample_weight, dtype=np.float64)
        for side in (1, 0):
            self._add_new(side, triples, weights)
        users = find_ids(self.user_ids_, triples.users, "users")
        items = find_ids(self.item_ids_, triples.items, "items")
        self.seen_ = merged_ratings(self.seen_, users, items, triples.values)
        return self

    _join = staticmethod(join)
    _worthwhile_ranks = staticmethod(ranks_for_factors)

    def _copies(self, params: Any) -> Kept:
        """Ratings as columns, and by users and by items."""
        return COPIES

    @property
    def _agent(self) -> Callable[..., Any]:
        return train

    def _validate_rows(
        self, X: Any, y: Any, *, reset: bool
    ) -> tuple[Any, Any, InputInfo]:
        columns = columns_of(X)
        X, y = pairs_and_ratings(X, y)
        if columns is not None:
            warn_of_order(columns)
        holds_matrix = is_matrix(X, y)
        if y is None and not holds_matrix and self.feedback == "explicit":
            if not is_dask_collection(X):
                pairs_of(X)  # says what else is wrong
            raise ValueError(
                "explicit feedback requires y to be passed, the ratings of the "
                "pairs in X; set feedback='implicit' for pairs that have happened"
            )
        encoded = encode(X, y, self.dtype, adds_up=self.feedback == "implicit")
        if not encoded.n_ratings:
            raise ValueError(NO_RATINGS)
        self._check_names(None if holds_matrix else X, reset=reset)
        self.user_ids_, self.item_ids_ = encoded.user_ids, encoded.item_ids
        self.seen_, self._rated = encoded.seen, encoded.rated
        return encoded.table, None, describe(encoded.table)

    def _make_params(
        self, info: InputInfo, *, before: tuple[KnownVectors, ...] = (), **changes: Any
    ) -> FactorizationParams:
        if before:
            ids = self.user_ids_[self._rated.users], self.item_ids_[self._rated.items]
            changes["start"] = np.concatenate(
                [side.of(own) for side, own in zip(before, ids, strict=True)]
            )
        return self._params_of(
            FactorizationParams,
            n_users=len(self._rated.users),
            n_items=len(self._rated.items),
            n_ratings=info.n_rows,
            dtype=np.dtype(self.dtype).type,
            seed=int(check_random_state(self.random_state).randint(_MAX_SEED)),
            **changes,
        )

    def _warm_changes(self) -> dict[str, Any]:
        if not self.warm_start or not hasattr(self, "item_factors_"):
            return {}
        if self.item_factors_.shape[1] != self.n_components:
            raise ValueError(
                f"n_components is {self.n_components}, but the vectors to go on from "
                f"have {self.item_factors_.shape[1]}; set it back, or set "
                "warm_start=False"
            )
        return {"before": known_vectors(self)}

    def _take_over(
        self, result: FactorizationResult, params: FactorizationParams
    ) -> None:
        super()._take_over(result, params)
        del self._rated
        self.n_iter_ = len(result.history)

    def _warnings(
        self, result: FactorizationResult, *, is_partial: bool
    ) -> Iterator[tuple[str, type[Warning]]]:
        shortfall = shortfall_of(self, result.converged)
        if shortfall is not None:
            yield shortfall, ConvergenceWarning

    def _check_combinations(self) -> None:
        if self.solver == "sgd" and self.feedback == "implicit":
            raise ValueError(
                "solver='sgd' cannot be used with feedback='implicit', for which every "
                "pair counts; use solver='als'"
            )
        if self.early_stopping and self.feedback == "implicit":
            raise ValueError(
                "early_stopping cannot be used with feedback='implicit', where pairs "
                "that are held out would be trained as 0; choose max_iter by "
                "ranking_metrics on pairs that were left out"
            )
        if self.positive and self.solver == "als" and self.als_solver == "cg":
            raise ValueError(
                "als_solver='cg' cannot be used with positive=True, since conjugate "
                "gradients know no bounds; use als_solver='cholesky'"
            )

    def _peer_type(self) -> type:
        return BaseEstimator  # scikit-learn has no model of ratings

    def _to_attributes(self, fitted: dict[str, np.ndarray]) -> dict[str, Any]:
        """Fitted attributes of a model of the ranks."""
        is_last = not self.early_stopping or fitted["is_best"]
        factors = fitted["factors" if is_last else "best"]
        users, items = self._rated.spread(factors, self.seen_.shape)
        explicit = self.feedback == "explicit"
        has_bias, n = explicit and self.fit_bias, self.n_components
        ends = (float(fitted["low"]), float(fitted["high"]))
        scale = float(fitted["scale"])
        attributes = {
            "scale_": scale,
            "user_factors_": users[:, -n:] * math.sqrt(scale),
            "item_factors_": items[:, -n:] * math.sqrt(scale),
            "user_bias_": np.zeros(len(users), users.dtype),
            "item_bias_": np.zeros(len(items), items.dtype),
            "mean_": float(fitted["mean"]) if has_bias else 0.0,
            "rating_range_": ends if explicit else (-np.inf, np.inf),
        }
        if has_bias:
            attributes |= {"user_bias_": users[:, 0] * scale}
            attributes |= {"item_bias_": items[:, 1] * scale}
        return attributes
