"""The estimators' side of a fit: parameters, the network, and what comes back."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy, deepcopy
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import get_scorer_names
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from dask_ma._sklearn import Interval, StrOptions
from dask_ma.base import DistributedEstimator
from dask_ma.data import (
    Deal,
    InputInfo,
    is_dask_collection,
    join_limit,
    refuse_unfinished,
)
from dask_ma.engine import Identity, as_text
from dask_ma.linear import UsedColumns, used_columns_of
from dask_ma.mpca._combinations import (
    INACTIVE,
    OF_MLP,
    check_class_weight,
    check_partial,
    check_rate,
    check_server,
    is_planned,
)
from dask_ma.mpca._convergence import unconverged
from dask_ma.mpca._module import ModuleMixin, has_no_module
from dask_ma.mpca.inputs._rows import flat_rows, n_targets_of
from dask_ma.mpca.inputs._sources import (
    as_source,
    has_items,
    is_stream,
    validation_rows,
)
from dask_ma.mpca.networks._columns import (
    FEWEST_COLUMNS,
    places_of,
    used_part,
    widened_weights,
)
from dask_ma.mpca.networks._mlp import MLPSpec, pack
from dask_ma.mpca.networks._network import NetworkSpec
from dask_ma.mpca.networks._peer import fitted_sklearn
from dask_ma.mpca.strategies._parameters import STRATEGY
from dask_ma.mpca.torch._parameter import as_torch
from dask_ma.mpca.training._agent import train
from dask_ma.mpca.training._cost import ranks_for_network
from dask_ma.mpca.training._params import MPCAParams, MPCAResult
from dask_ma.mpca.training._validation import ValidationRows


class Predictor(NamedTuple):
    """What predictions need of a fitted estimator.

    Attributes
    ----------
    spec : NetworkSpec
    vector : ndarray of shape (n_values,)
    classes : ndarray of shape (n_classes,) or None
    columns : UsedColumns or None
        Those that `vector` has weights of, if the others have none; None for all.
    """

    spec: NetworkSpec
    vector: np.ndarray
    classes: np.ndarray | None
    columns: UsedColumns | None = None

    def forward(self, X: Any) -> np.ndarray:
        """Probabilities of the classes or labels, or predicted values."""
        n_classes = None if self.classes is None else len(self.classes)
        rows = X
        if self.columns is not None:
            rows = used_part(X, self.columns, places_of(self.columns))
        predicted = self.spec.forward(self.vector, rows, n_classes)
        if not np.isfinite(predicted).all():
            is_finite = np.isfinite(predicted).reshape(X.shape[0], -1).all(axis=1)
            raise ValueError(
                f"the network gives NaN or infinity for row {int(is_finite.argmin())} "
                f"of {X.shape[0]} rows of X, whose values are beyond what it can work "
                "with; scale them as those that it was trained on"
            )
        return predicted


class MPCAEstimator(ModuleMixin, DistributedEstimator):
    """Base of MPCAClassifier and MPCARegressor."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden_layer_sizes": [
            "array-like",
            Interval(Integral, 1, None, closed="left"),
        ],
        "activation": [StrOptions({"identity", "logistic", "tanh", "relu"})],
        "solver": [StrOptions({"adam", "sgd"})],
        "alpha": [Interval(Real, 0, None, closed="left")],
        "batch_size": [
            StrOptions({"auto"}),
            Interval(Integral, 1, None, closed="left"),
        ],
        "learning_rate": [StrOptions({"constant", "invscaling", "adaptive", "cosine"})],
        "learning_rate_init": [Interval(Real, 0, None, closed="neither")],
        "power_t": [Interval(Real, 0, None, closed="left")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "shuffle": [StrOptions({"ranks"}), "boolean"],
        "random_state": ["random_state"],
        "tol": [Interval(Real, 0, None, closed="left"), None],
        "verbose": ["verbose"],
        "warm_start": ["boolean"],
        "momentum": [Interval(Real, 0, 1, closed="both")],
        "nesterovs_momentum": ["boolean"],
        "early_stopping": ["boolean", StrOptions(set(get_scorer_names())), callable],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "beta_1": [Interval(Real, 0, 1, closed="left")],
        "beta_2": [Interval(Real, 0, 1, closed="left")],
        "epsilon": [Interval(Real, 0, None, closed="neither")],
        "n_iter_no_change": [Interval(Integral, 1, None, closed="left")],
        "strategy": [STRATEGY.to_sklearn()],
        **ModuleMixin._parameter_constraints,
        "n_ranks": [Interval(Integral, 1, None, closed="left"), None],
    }
    _to_object = {"strategy": STRATEGY.as_object, "module": as_torch}
    _inactive = INACTIVE

    n_targets_: int | None

    # A fit ----------------------------------------------------------------------------

    def _check_combinations(self) -> None:
        check_rate(self)
        check_server(self)

    def _peer_type(self) -> type:
        return MLPClassifier if is_classifier(self) else MLPRegressor

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = self.module is None
        tags.input_tags.three_d_array = self.module is not None
        tags.target_tags.multi_output = True
        return tags

    _worthwhile_ranks = staticmethod(ranks_for_network)

    @property
    def _agent(self) -> Any:
        return train

    @property
    def _is_planned(self) -> bool:
        return is_planned(self)

    def _make_params(self, info: InputInfo, **changes: Any) -> MPCAParams:
        check_class_weight(self)
        self._check_module()
        self._find_codes(info)
        given = changes.get("validation")
        spec = self._training_spec(has_validation=given is not None)
        if given is not None:
            changes["validation"] = self._check_validation(*given)
        if self._dataset is not None:
            held_out, self._dataset = self._dataset, None
            spec = replace(spec, held_out=held_out)
        if getattr(spec, "dataset", None) is not None:
            spec.digest_dataset()  # refuses what cannot travel
        chosen = {
            "n_targets": self.n_targets_,
            "n_codes": spec.n_codes,
            "no_code": spec.no_code,
            "spec": spec,
            "random_state": deepcopy(check_random_state(self.random_state)),
            "join_limit": join_limit(info),
        }
        return self._params_of(MPCAParams, **{**chosen, **changes})

    def _take_over(self, result: MPCAResult, params: MPCAParams) -> None:
        super()._take_over(result, params)
        self._optimizer_state = result.optimizer_state
        self._scaling = result.scaling

    def _warnings(
        self, result: MPCAResult, *, is_partial: bool
    ) -> Iterator[tuple[str, type[Warning]]]:
        for note in result.notes:
            yield note, ConvergenceWarning
        message = None if is_partial else unconverged(self, result)
        if message is not None:
            yield message, ConvergenceWarning

    @property
    def _deal(self) -> Deal:
        """Ranks whose rows differ drift apart, and `shuffle` changes orders anyway."""
        if self.shuffle == "ranks":
            return "always"
        return "memory" if self.shuffle else "never"

    def _make_spec(self) -> NetworkSpec:
        """What the network is built from."""
        if self.module is None:
            sizes = np.atleast_1d(self.hidden_layer_sizes)
            are_counts = sizes.ndim == 1 and (
                sizes.dtype.kind in "iu" or not len(sizes)
            )
            if not are_counts or (sizes < 1).any():
                raise ValueError(
                    "hidden_layer_sizes must be > 0, one int for each layer, got "
                    f"{self.hidden_layer_sizes}."
                )
            chosen = {name: getattr(self, name) for name in OF_MLP}
            chosen["hidden_layer_sizes"] = tuple(int(size) for size in sizes)
            return MLPSpec(**chosen, n_targets=getattr(self, "n_targets_", None))
        return self._make_torch_spec()

    def _validate_rows(
        self, X: Any, y: Any, *, reset: bool
    ) -> tuple[Any, Any, InputInfo]:
        """Check the input; a module's may have more than two dimensions."""
        refuse_unfinished(X, "X")
        if self.module is not None:
            X, y = self._module_rows(X, y, reset=reset)
        n_targets = n_targets_of(y)
        if not reset and n_targets != self.n_targets_:
            raise ValueError(
                f"y has {n_targets or 'no'} columns, expected "
                f"{self.n_targets_ or 'no'} as in the first call to partial_fit"
            )
        self.n_targets_ = n_targets
        X, y, info = self._validate_input(X, y, reset=reset)
        if reset and self.module is not None:
            self.row_dtype_ = info.dtype
        return X, y, info

    def _check_validation(self, X: Any, y: Any, sample_weight: Any) -> ValidationRows:
        """Rows that models are to be scored on, once those of the fit are known."""
        if not self.early_stopping:
            raise ValueError(
                "X_val and y_val have no effect with early_stopping=False; set it to "
                "True, or to the name of a score"
            )
        if X is None or (y is None and not has_items(X)):
            raise ValueError("X_val and y_val belong together; give both, or none")
        X, y = validation_rows(X, y, as_items=self._has_items)
        y = as_source(X, y).y if y is None else y
        if n_targets_of(flat_rows(y)[0]) != self.n_targets_:
            raise ValueError("y_val must have as many columns as y")
        X, y, _ = self._validate_rows(X, y, reset=False)
        X = X if hasattr(X, "indptr") else np.asarray(X)
        weight = None
        if is_dask_collection(sample_weight):
            sample_weight = sample_weight.compute()
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, X, ensure_non_negative=True)
        return ValidationRows(X, np.asarray(y), weight)

    def _identity(self, params: MPCAParams, seed: int) -> Identity:
        """A fit that is scored on other rows may end with another model."""
        identity = super()._identity(params, seed)
        rows = getattr(params, "validation", None)
        if rows is not None:
            identity.parameters["X_val, y_val"] = as_text(
                [part.data if hasattr(part, "indptr") else part for part in rows]
            )
        return identity

    def _training_spec(self, *, has_validation: bool) -> Any:
        """What the network of a fit is built from, with what it reads rows from."""
        if self.module is None:
            return self._make_spec()
        dataset, self._dataset = self._dataset, None
        if self.early_stopping and is_stream(dataset) and not has_validation:
            raise ValueError(
                "early_stopping holds rows out, which an IterableDataset has none of; "
                "give X_val and y_val, or set it to False"
            )
        return replace(self._make_torch_spec(), dataset=dataset)

    def _partial_changes(self) -> dict[str, Any]:
        """What is different in an epoch of `partial_fit`."""
        check_partial(self)
        changes: dict[str, Any] = {"max_iter": 1, "tol": None, "keep_optimizer": True}
        if hasattr(self, "n_iter_"):
            changes["vector"] = self._vector()
            changes["optimizer_state"] = getattr(self, "_optimizer_state", None)
            changes["scaling"] = getattr(self, "_scaling", None)
        return changes

    def _warm_changes(self) -> dict[str, Any]:
        """The model that `fit` starts from."""
        if not self.warm_start or not hasattr(self, "n_iter_"):
            return {}
        known = None if self.module is not None else self.coefs_[0].any(axis=1)
        return {"vector": self._vector(), "known": known, "is_warm": True}

    def _to_attributes(self, fitted: dict[str, Any]) -> dict[str, Any]:
        curve = np.asarray(fitted["loss_curve"]).tolist()
        scores = np.asarray(fitted["scores"]).tolist()
        best = fitted["best_score"]
        attributes = {
            "n_iter_": fitted["n_iter"],
            "n_targets_": self.n_targets_,
            "loss_curve_": curve,
            "loss_": curve[-1] if curve else np.nan,
            "best_loss_": min(curve, default=np.nan),
            "validation_scores_": scores or None,
            "best_validation_score_": best if np.isfinite(best) else None,
            "strategy_": fitted["strategy"],
        }
        if fitted["classes"] is not None:
            attributes["classes_"] = fitted["classes"]
        n_classes = None if fitted["classes"] is None else len(fitted["classes"])
        columns, n_features = fitted["columns"], self.n_features_in_
        numbers = columns.numbers
        n_inputs = n_features if numbers is None else len(numbers)
        attributes |= self._make_spec().attributes(
            fitted["vector"], n_inputs, n_classes
        )
        if numbers is not None:
            first, *others = attributes["coefs_"]
            attributes["coefs_"] = [widened_weights(columns, first), *others]
        return attributes

    # The model ------------------------------------------------------------------------

    def _vector(self) -> np.ndarray:
        """Values of the fitted network."""
        if self.module is not None:
            return self.vector_
        return pack(self.coefs_, self.intercepts_)

    def _predictor(self, spec: NetworkSpec | None = None) -> Predictor:
        classes, spec = getattr(self, "classes_", None), spec or self._make_spec()
        if self.module is None and self.n_features_in_ >= FEWEST_COLUMNS:
            first, *others = self.coefs_
            columns = used_columns_of(first.any(axis=1))
            if columns.numbers is not None:
                coefs = [first[columns.numbers], *others]
                vector = pack(coefs, self.intercepts_)
                return Predictor(spec, vector, classes, columns)
        return Predictor(spec, self._vector(), classes)

    def _float_dtype(self) -> np.dtype:
        """Type of what the network predicts."""
        return self._vector().dtype

    @available_if(has_no_module)
    def to_sklearn(self) -> Any:
        """A fitted scikit-learn estimator with the same network.

        Returns
        -------
        peer : MLPClassifier or MLPRegressor
            It shares no memory with this estimator and does not need Dask.
        """
        check_is_fitted(self)
        known = self._peer_type()().get_params()
        given = {k: v for k, v in self.get_params().items() if k in known}
        given["tol"] = self.tol or 0.0
        given["shuffle"] = bool(self.shuffle)
        given["early_stopping"] = bool(self.early_stopping)
        if self.learning_rate == "cosine":
            del given["learning_rate"]
        classes = getattr(self, "classes_", None)
        peer = fitted_sklearn(
            given, self._vector(), classes, self.n_features_in_, self.n_targets_
        )
        for name in ("feature_names_in_", "n_iter_", "loss_", "loss_curve_"):
            if hasattr(self, name):
                setattr(peer, name, copy(getattr(self, name)))
        return peer

    def _forward_rows(
        self, X: Any, function: Any, *, by_class: bool = False, **options: Any
    ) -> Any:
        """Apply the network to rows, lazily where they are a Dask collection."""
        check_is_fitted(self)
        refuse_unfinished(X, "X")
        if self.module is None:
            return self._apply(X, function, **options)
        X, model = self._rows_to_predict(X)
        if is_dask_collection(X) and not is_classifier(self):
            function = partial(_as_declared, function, options.get("n_outputs"))
        predicted = self._apply(X, function, model=model, **options)
        return self._in_target_shape(predicted, by_class=by_class)


def _as_declared(
    function: Any, n_outputs: int | None, model: Any, block: Any
) -> np.ndarray:
    """Predictions for a block, if they have the shape that is known beforehand."""
    predicted: np.ndarray = function(model, block)
    if predicted.shape[1:] != (() if n_outputs is None else (n_outputs,)):
        raise ValueError(
            f"the module gives values of shape {predicted.shape[1:]} for a row, and "
            "not of that of y, which is what Dask is told beforehand; predict rows in "
            "memory, or take to_module() to the blocks"
        )
    return predicted
