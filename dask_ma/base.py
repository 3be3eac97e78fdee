"""Base of the estimators: the way through a fit, and block-wise prediction."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    RegressorMixin,
    is_classifier,
)
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import validate_data

from dask_ma._callbacks import N_WRAPPERS, CallbackSupportMixin, fit_listener
from dask_ma._scores import blockwise_accuracy, blockwise_r2
from dask_ma._settings import Inactive, SettingsMixin, check_inactive, plain
from dask_ma.data import (
    CAST_LATER,
    Deal,
    InputInfo,
    Kept,
    apply_blockwise,
    check_memory_labels,
    checked_rows,
    checked_vector,
    describe,
    is_dask_collection,
    refuse_unfinished,
    rows_like,
    weight_per_row,
)
from dask_ma.engine import Identity, Job, as_plain, as_text, fit_client, run_fit

_MAX_SEED = np.iinfo(np.int32).max
# Parts of the agents' parameters that hold a model to start from.
_STARTS = ("coef", "intercept", "start", "vector")
_Params = TypeVar("_Params")
_SPLIT = Kept(1.0, "rows that early stopping has split", "set early_stopping=False")
_WITHOUT_EFFECT = frozenset({"verbose", "warm_start"})  # on the model of one fit


class DistributedEstimator(CallbackSupportMixin, SettingsMixin, BaseEstimator):
    """Base of all estimators: rows go to ranks, an agent runs on each.

    A subclass has the parameters `n_ranks` and `verbose`. It gives the agent
    (:attr:`_agent`), its parameters (:meth:`_make_params`), and the fitted attributes
    (:meth:`_to_attributes`); :meth:`_fit` is the way through all fits.
    """

    _blas_threads = 1
    # Parameters that may differ between a checkpoint and the fit that goes on from it.
    _free_to_change = frozenset(
        {"max_iter", "n_iter_no_change", "n_ranks", "tol", "verbose", "warm_start"}
    )
    _inactive: ClassVar[tuple[Inactive, ...]] = ()  # when parameters cannot act
    _join: ClassVar[Callable[..., Any] | None] = None  # what all ranks return
    _sent_as: ClassVar[Callable[..., Any] | None] = None  # to the ranks, X in memory

    def _fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        is_partial: bool = False,
        **changes: Any,
    ) -> Self:
        """Check what was given, run the agent on all ranks, take over the result."""
        self._check_parameters(is_partial=is_partial)
        with self._keep_fitted_state():
            start = self._partial_changes() if is_partial else self._warm_changes()
            is_first = not is_partial or not hasattr(self, "n_features_in_")
            X, y, info = self._validate_rows(X, y, reset=is_first)
            # `changes` are parameters of the agent that are not those of the estimator.
            params = self._make_params(info, **{**start, **changes})
            data = X, y, weight_per_row(sample_weight)
            # No step of `partial_fit` is saved: the second is not the first resumed.
            result = self._run(self._agent, params, data, info, is_saved=not is_partial)
            self._take_over(result, params)
        for message, category in self._warnings(result, is_partial=is_partial):
            warnings.warn(message, category, stacklevel=3 + N_WRAPPERS)
        return self

    # What a subclass gives ------------------------------------------------------------

    @property
    def _agent(self) -> Callable[..., Any]:
        """``agent(context, shard arguments, params)``, which every rank runs."""
        raise NotImplementedError(f"{type(self).__name__} has no agent")

    def _validate_rows(
        self, X: Any, y: Any, *, reset: bool
    ) -> tuple[Any, Any, InputInfo]:
        """Check rows to fit to, with what a subclass makes of their shape."""
        return self._validate_input(X, y, reset=reset)

    def _make_params(self, info: InputInfo, **changes: Any) -> Any:
        """Parameters of the agent for rows that are validated."""
        raise NotImplementedError(f"{type(self).__name__} has no parameters")

    def _params_of(self, kind: type[_Params], **changes: Any) -> _Params:
        """Those parameters of the estimator that a kind has, but for changes."""
        known = {"is_classifier": is_classifier(self), **self.get_params(deep=False)}
        known |= self._objects() | changes
        names = {f.name for f in fields(kind)} | {*changes}  # type: ignore[arg-type]
        return kind(**{n: plain(v) for n, v in known.items() if n in names})

    def _max_rounds(self, params: Any, info: InputInfo, n_ranks: int) -> int | None:
        """Most rounds that there can be, for progress bars; None if nobody knows."""
        return int(params.max_iter)

    def _warm_changes(self) -> dict[str, Any]:
        """The model that `fit` starts from, in parameters of the agent."""
        return {}

    def _partial_changes(self) -> dict[str, Any]:
        """Parameters of the agent in a step of `partial_fit`."""
        raise NotImplementedError(f"{type(self).__name__} has no partial_fit")

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        """Fitted attributes of a model of the agent, also for callbacks."""
        raise NotImplementedError(f"{type(self).__name__} has no attributes")

    def _take_over(self, result: Any, params: Any) -> None:
        """Set the fitted attributes."""
        for name, value in self._to_attributes(result.fitted).items():
            setattr(self, name, value)
        self.history_ = result.history
        self.timeline_ = result.timeline

    def _warnings(
        self, result: Any, *, is_partial: bool
    ) -> Iterator[tuple[str, type[Warning]]]:
        """What the user is to be told after a fit."""
        for note in getattr(result, "notes", ()):
            yield note, UserWarning

    def _rules(self, *, is_partial: bool) -> tuple[Inactive, ...]:
        """When parameters cannot act."""
        return self._inactive

    def _check_combinations(self) -> None:
        """Refuse parameters that contradict each other; some estimators have such."""

    def _peer_type(self) -> type:
        """scikit-learn's estimator whose parameters this one has."""
        raise NotImplementedError(f"{type(self).__name__} has no peer")

    # Its parts ------------------------------------------------------------------------

    def _check_parameters(self, *, is_partial: bool) -> None:
        """Look at all parameters together; the first thing that a fit does."""
        for held in self._objects().values():
            held.check()
        self._check_combinations()
        rules = self._rules(is_partial=is_partial)
        check_inactive(self, rules, self._peer_type(), stacklevel=4 + N_WRAPPERS)

    def _run(
        self,
        agent: Callable[..., Any],
        params: Any,
        data: tuple[Any, Any, Any],
        info: InputInfo,
        *,
        is_saved: bool = True,
    ) -> Any:
        """Share out rows, run the agent on all ranks, and return rank 0's result."""
        seed = check_random_state(self._seed).randint(_MAX_SEED)
        tags = get_tags(self).target_tags
        worthwhile = getattr(self, "_worthwhile_ranks", None)
        job = Job(
            agent=agent,
            params=params,
            data=data,
            name=type(self).__name__,
            identity=partial(self._identity, params, seed) if is_saved else None,
            n_ranks=self.n_ranks,
            worthwhile_ranks=worthwhile and partial(worthwhile, params),
            info=info,
            seed=seed,
            blas_threads=self._blas_threads,
            is_labelled=tags.required,
            is_multi_output=tags.multi_output,
            deal=self._deal,
            row_dtypes=self._row_dtypes,
            sent_as=self._sent_as,
            loads=getattr(self, "_loads", ()),
            copies=self._copies(params),
            join=None if self._join is None else partial(self._join, params=params),
        )
        most = partial(self._max_rounds, params, info)
        follow = partial(fit_listener, self, most, data, self._to_attributes)
        with fit_client() as client:
            return run_fit(job, client, follow)

    @property
    def _seed(self) -> Any:
        """`random_state`; an estimator without one draws nothing."""
        return getattr(self, "random_state", 0)

    @property
    def _row_dtypes(self) -> tuple[Any, ...]:
        """Types that rows in memory may have; any other becomes the first."""
        return np.float64, np.float32

    @property
    def _deal(self) -> Deal:
        """Which rows are dealt out to the ranks in short runs."""
        return "never"

    def _copies(self, params: Any) -> Kept:
        """What a fit keeps in memory beside its rows."""
        return _SPLIT if getattr(self, "early_stopping", False) else Kept()

    @property
    def _may_end_early(self) -> bool:
        """Whether a fit can make fewer rounds than it may."""
        return self.tol is not None

    @property
    def _is_planned(self) -> bool:
        """Whether rounds depend on how many of them there may be."""
        return False

    def _identity(self, params: Any, seed: int) -> Identity:
        """What tells this fit from others that are saved in the same directory."""
        free = self._free_to_change - ({"max_iter"} if self._is_planned else set())
        chosen = {**self.get_params(deep=False), **self._objects()}
        parameters = {
            name: as_text(value)
            for name, value in chosen.items()
            if name not in free and not isinstance(value, np.random.RandomState)
        }
        for name in _STARTS:
            if getattr(params, name, None) is not None:
                parameters[f"start: {name}"] = as_text(getattr(params, name))
        if isinstance(self._seed, np.random.RandomState):
            parameters["seed"] = str(seed)
        options = {
            name: as_plain(chosen[name])
            for name in free - _WITHOUT_EFFECT
            if name in chosen
        }
        callbacks = getattr(self, "_skl_callbacks", None) or ()
        options["callbacks"] = ", ".join(type(c).__qualname__ for c in callbacks)
        return Identity(
            type(self).__name__, parameters, options, is_random=self._seed is None
        )

    def _validate_input(
        self, X: Any, y: Any = None, *, reset: bool
    ) -> tuple[Any, Any, InputInfo]:
        """Check what can be known on the client; a Dask collection is not computed."""
        refuse_unfinished(X, "X")
        if y is not None:
            checked_vector(y, "y")
        if not is_dask_collection(X):
            X, y = self._validate_memory(checked_rows(X), y, reset=reset)
            return X, y, describe(X)
        _check_two_dimensional(X)
        info = describe(X)
        validate_data(self, rows_like(info), reset=reset, skip_check_array=True)
        return X, y, info

    def _validate_memory(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, Any]:
        """scikit-learn's checks of data in memory."""
        raise NotImplementedError(f"{type(self).__name__} takes no data")

    def _predictor(self) -> Any:
        """What the functions of :meth:`_apply` get as the model."""
        raise NotImplementedError(f"{type(self).__name__} predicts nothing")

    def _apply(
        self,
        X: Any,
        function: Callable[[Any, Any], np.ndarray],
        *,
        model: Any = None,
        n_outputs: int | None = None,
        dtype: Any = None,
        keeps_sparse: bool = False,
    ) -> Any:
        """Apply the fitted model to rows: lazily to a Dask collection, else at once.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows.
        function : callable
            ``function(model, block)`` gives the values of the rows of a block.
        model : object, default=None
            What the function gets; None for what predictions are made with.
        n_outputs : int or None, default=None
            Columns of the result; None for a vector.
        dtype : dtype, default=None
            Of a lazy result; None for the floating type that model and rows give.
        keeps_sparse : bool, default=False
            Whether the function makes a CSR of a CSR.
        """
        refuse_unfinished(X, "X")
        model = self._predictor() if model is None else model
        if is_dask_collection(X):
            *_, info = self._validate_input(X, reset=False)
            if dtype is None:
                dtype = _float_dtype(info.dtype, self.coef_.dtype)
            kind = {"dtype": dtype, "keeps_sparse": keeps_sparse}
            return apply_blockwise(
                X, function, model=model, n_outputs=n_outputs, **kind
            )
        X = validate_data(
            self,
            checked_rows(X),
            accept_sparse="csr",
            dtype=[*dict.fromkeys([np.float64, np.float32, *self._row_dtypes])],
            reset=False,
        )
        return function(model, X)

    @contextmanager
    def _keep_fitted_state(self) -> Iterator[None]:
        """Put the fitted attributes back if the body fails."""
        before = self._fitted_state()
        try:
            yield
        except BaseException:
            for name in self._fitted_state():
                delattr(self, name)
            for name, value in before.items():
                setattr(self, name, value)
            raise

    def _fitted_state(self) -> dict[str, Any]:
        """Attributes that a fit sets."""
        return {
            name: value
            for name, value in vars(self).items()
            if name.endswith("_") and not name.startswith("_")
        }


class DistributedClassifierMixin(ClassifierMixin):
    """Checks of labels, and the score, at once or block by block.

    Goes before :class:`DistributedEstimator`; needs `class_weight`.
    """

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy on the rows given.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows.
        y : array-like or Dask collection of shape (n_samples,)
            True labels.
        sample_weight : array-like or Dask collection, shape (n_samples,), or float, \
                default=None
            Weights of the rows; a number weights all alike.

        Returns
        -------
        accuracy : float
            For Dask input it is worked out where the rows are.
        """
        sample_weight = weight_per_row(sample_weight)
        if is_dask_collection(X):
            return blockwise_accuracy(self.predict(X), y, sample_weight)
        return super().score(X, y, sample_weight)

    def _validate_memory(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, Any]:
        """scikit-learn's checks of data in memory."""
        if y is not None:
            check_memory_labels(y)
        X, y = validate_data(
            self,
            X,
            y,
            accept_sparse="csr" if get_tags(self).input_tags.sparse else False,
            dtype=[*self._row_dtypes, *CAST_LATER],
            order=None if reset else "C",  # ranks copy their part
            multi_output=_has_columns(self, y),
            reset=reset,
        )
        check_classification_targets(y)
        return X, y

    def _warm_changes(self) -> dict[str, Any]:
        start = super()._warm_changes()
        return start and {**start, "warm_classes": getattr(self, "classes_", None)}

    def _make_params(self, info: InputInfo, **changes: Any) -> Any:
        if "classes" in changes:
            changes["classes"] = self._check_classes(changes["classes"])
        return super()._make_params(info, **changes)

    def _check_classes(self, classes: Any) -> np.ndarray:
        """Labels that `partial_fit` is to know."""
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' cannot be used with partial_fit, which does "
                "not know how frequent the classes will be; pass a dict"
            )
        known = getattr(self, "classes_", None)
        if classes is None and known is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        if classes is None:
            return np.asarray(known)
        classes = unique_labels(classes)
        if known is not None and not np.array_equal(classes, known):
            raise ValueError(
                f"classes={classes.tolist()} is not the same as on last call to "
                f"partial_fit, was: {known.tolist()}"
            )
        return classes


class DistributedRegressorMixin(RegressorMixin):
    """Checks of targets, and the score, at once or block by block.

    Goes before :class:`DistributedEstimator`.
    """

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Coefficient of determination on the rows given.

        Parameters
        ----------
        X : array-like, sparse or Dask collection of shape (n_samples, n_features)
            Rows.
        y : array-like or Dask collection of shape (n_samples,)
            True values.
        sample_weight : array-like or Dask collection, shape (n_samples,), or float, \
                default=None
            Weights of the rows; a number weights all alike.

        Returns
        -------
        r2 : float
            For Dask input it is worked out where the rows are.
        """
        sample_weight = weight_per_row(sample_weight)
        if is_dask_collection(X):
            return blockwise_r2(self.predict(X), y, sample_weight)
        return super().score(X, y, sample_weight)

    def _validate_memory(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, Any]:
        """scikit-learn's checks of data in memory."""
        return validate_data(
            self,
            X,
            y,
            accept_sparse="csr" if get_tags(self).input_tags.sparse else False,
            dtype=[*self._row_dtypes, *CAST_LATER],
            order=None if reset else "C",  # ranks copy their part
            # Ranks refuse what is not finite, and name its rows: one pass is enough.
            ensure_all_finite=not reset,
            y_numeric=True,
            multi_output=_has_columns(self, y),
            reset=reset,
        )


def _has_columns(estimator: Any, y: Any) -> bool:
    """Whether y has several columns, and an estimator takes them."""
    if y is None or not get_tags(estimator).target_tags.multi_output:
        return False
    try:
        shape = np.asarray(y).shape
    except ValueError:  # lists of several lengths; scikit-learn says what is wrong
        return False
    return len(shape) == 2 and shape[1] > 1


def _check_two_dimensional(X: Any) -> None:
    """Refuse a Dask Series, Index or array of another number of dimensions."""
    if getattr(X, "ndim", 2) != 2:
        raise ValueError(
            f"Expected 2D array, got {X.ndim}D array instead: X must have the shape "
            "(n_samples, n_features); reshape it"
        )


def _float_dtype(rows: Any, model: Any) -> np.dtype:
    """Floating type of the product of rows and model."""
    return np.result_type(
        rows if np.issubdtype(rows, np.floating) else np.float64, model
    )
