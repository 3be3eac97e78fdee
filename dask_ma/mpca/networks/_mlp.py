"""The built-in network: a multi-layer perceptron like scikit-learn's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import special

from dask_ma.kernels import (
    SGD,
    Adam,
    FewInputSteps,
    MLPLayout,
    MLPWorkspace,
    Optimizer,
    add_distance,
    may_wait,
    mlp_initial_values,
    mlp_loss_and_gradient,
    mlp_outputs,
    mlp_uncentred,
    mlp_unpack,
    shift_towards,
    softmax,
    weight_of,
)
from dask_ma.linear import UsedColumns
from dask_ma.mpca.networks._anchors import Anchors, ProximalTerm
from dask_ma.mpca.networks._columns import (
    places_of,
    used_part,
    widened_weights,
)
from dask_ma.mpca.networks._few_inputs import FewInputs
from dask_ma.mpca.networks._network import (
    GradientPart,
    Network,
    NetworkSpec,
    Scaling,
)

#: scikit-learn's names of what the output units compute, by loss.
_OUT_ACTIVATIONS = {
    "squared_error": "identity",
    "binary_log_loss": "logistic",
    "log_loss": "softmax",
}


@dataclass(frozen=True)
class MLPSpec(NetworkSpec):
    """A multi-layer perceptron and its optimiser; the names are scikit-learn's.

    Parameters
    ----------
    hidden_layer_sizes : tuple of int, default=(100,)
        Units of each hidden layer, each at least 1; there may be none.
    activation : {"identity", "logistic", "tanh", "relu"}, default="relu"
        Of the hidden units.
    alpha : float, default=1e-4
        Weight of the L2 penalty, at least 0. The penalty of a batch is
        ``alpha / 2 * ||W||^2`` by the weight of its rows; intercepts are free.
    solver : {"adam", "sgd"}, default="adam"
        The optimiser.
    momentum : float, default=0.9
        Of "sgd", in [0, 1].
    nesterovs_momentum : bool, default=True
        Whether "sgd" looks ahead along the momentum.
    beta_1, beta_2 : float, default=0.9 and 0.999
        Of "adam", in [0, 1).
    epsilon : float, default=1e-8
        Of "adam", above 0.
    n_targets : int or None, default=None
        Columns of y; None for a y of one dimension.
    """

    has_scaling: ClassVar[bool] = True

    hidden_layer_sizes: tuple[int, ...] = (100,)
    activation: str = "relu"
    alpha: float = 1e-4
    solver: str = "adam"
    momentum: float = 0.9
    nesterovs_momentum: bool = True
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    n_targets: int | None = None

    def layout(self, n_features: int, n_classes: int | None) -> MLPLayout:
        """Units and loss of the network; two classes share an output unit.

        Where y has several columns, there is a unit for each.

        Parameters
        ----------
        n_features : int
            Columns of X.
        n_classes : int or None
            Number of classes, at least 2; None for regression.

        Returns
        -------
        layout : MLPLayout
        """
        if n_classes is None:
            n_outputs, loss = self.n_targets or 1, "squared_error"
        elif self.n_targets is not None:
            n_outputs, loss = self.n_targets, "binary_log_loss"
        elif n_classes == 2:
            n_outputs, loss = 1, "binary_log_loss"
        else:
            n_outputs, loss = n_classes, "log_loss"
        units = (n_features, *self.hidden_layer_sizes, n_outputs)
        return MLPLayout(units, self.activation, loss)

    @property
    def skips_inputs(self) -> bool:
        """Whether its optimiser can; see :class:`NetworkSpec`."""
        return may_wait(self.optimizer(0, np.dtype(np.float32)))

    def optimizer(self, n_values: int, dtype: np.dtype) -> Optimizer:
        """An optimiser without history for a vector.

        Parameters
        ----------
        n_values : int
            Length of the vector.
        dtype : numpy.dtype
            Of the vector.

        Returns
        -------
        optimizer : Optimizer
        """
        if self.solver == "sgd":
            return SGD(n_values, dtype, self.momentum, self.nesterovs_momentum)
        return Adam(n_values, dtype, self.beta_1, self.beta_2, self.epsilon)

    def build(
        self,
        n_features: int,
        n_classes: int | None,
        dtype: np.dtype,
        random_state: np.random.RandomState,
    ) -> MLPNetwork:
        layout = self.layout(n_features, n_classes)
        values = mlp_initial_values(layout, dtype, random_state)
        return MLPNetwork(self, layout, values)

    def forward(self, vector: np.ndarray, X: Any, n_classes: int | None) -> np.ndarray:
        layout = self.layout(X.shape[1], n_classes)
        with _quiet():
            outputs = mlp_outputs(layout, vector, X)
            if n_classes is None:
                return outputs if self.n_targets else outputs[:, 0]
            if self.n_targets is not None:
                return special.expit(outputs)
            probabilities = softmax(outputs)
        if n_classes > 2:
            return probabilities
        return np.hstack([1 - probabilities, probabilities])

    def attributes(
        self, vector: np.ndarray, n_features: int, n_classes: int | None
    ) -> dict[str, Any]:
        """Parameters and shape of the network, as scikit-learn names them."""
        layout = self.layout(n_features, n_classes)
        coefs, intercepts = mlp_unpack(layout, vector.copy())
        return {
            "coefs_": coefs,
            "intercepts_": intercepts,
            "n_layers_": len(layout.units),
            "n_outputs_": layout.units[-1],
            "out_activation_": _OUT_ACTIVATIONS[layout.loss],
        }


def pack(coefs: Sequence[np.ndarray], intercepts: Sequence[np.ndarray]) -> np.ndarray:
    """The vector of a network with these parameters; see `MLPSpec.attributes`.

    Parameters
    ----------
    coefs : sequence of ndarray of shape (fan_in, fan_out)
    intercepts : sequence of ndarray of shape (fan_out,)

    Returns
    -------
    vector : ndarray of shape (n_values,)
    """
    layers = zip(coefs, intercepts, strict=True)
    return np.concatenate([part.ravel() for layer in layers for part in layer])


# Of the first outputs beside scaled targets: what no row says is left as it begins, and
# the first steps of large outputs go past the targets of many features.
_FIRST = 0.1


class MLPNetwork(Network):
    """A multi-layer perceptron in training.

    Parameters
    ----------
    spec : MLPSpec
        What it has been built from.
    layout : MLPLayout
        Units and loss.
    values : ndarray of float32 or float64, shape (n_values,)
        The vector; the network keeps it and changes it.
    """

    log_loss = "sum"
    squared_error = 0.5

    def __init__(self, spec: MLPSpec, layout: MLPLayout, values: np.ndarray) -> None:
        self._scaling: Scaling | None = None
        self._columns = UsedColumns(None, layout.units[0])
        self._places = np.zeros(0, dtype=np.int32)
        self.n_values = self.n_parameters = len(values)
        self.dtype = values.dtype
        self._spec = spec
        self._layout = layout
        self._values = values
        self._gradient = np.zeros_like(values)
        self._workspace = MLPWorkspace(layout, values.dtype)
        self._optimizer = self.slice_optimizer(len(values))
        self._few: FewInputs | None = None
        self._was_drawn = False
        self._anchors = Anchors()

    def read(self, start: int, stop: int) -> np.ndarray:
        if self._few is None:
            return self._values[start:stop].copy()
        with _quiet():
            return self._few.steps.read(start, stop)

    def write(self, start: int, values: np.ndarray) -> None:
        self._settle()
        self._values[start : start + len(values)] = values

    def set_anchor(self, start: int, values: np.ndarray) -> None:
        self._anchors.set(start, values)

    def step(
        self,
        X: Any,
        y: np.ndarray,
        sample_weight: np.ndarray | None,
        *,
        learning_rate: float,
        proximal_terms: Sequence[ProximalTerm] = (),
        form: str = "shift",
    ) -> float:
        if form not in ("shift", "loss"):
            raise ValueError(f'form must be "shift" or "loss", got {form!r}')
        batch = X, y, sample_weight
        with _quiet():
            drawn = list(self._anchors.drawn(proximal_terms))
            # Who is drawn in each step goes through all weights anyway. Where that is
            # now and then, the steps that wait may as well come after it.
            goes_on, self._was_drawn = self._was_drawn and bool(drawn), bool(drawn)
            if drawn and self._few is not None:
                self._few.steps.note_change()
            if form == "shift":
                for part, anchor, strength in drawn:
                    shift_towards(self._values[part], anchor, strength)
            if not goes_on and (form == "shift" or not drawn):
                few = self.few_inputs
                loss = None if few is None else few.step(*batch, learning_rate)
                if loss is not None:
                    return loss
            loss = self._back_propagate(*batch)
            if form == "loss":
                for part, anchor, strength in drawn:
                    values, gradient = self._values[part], self._gradient[part]
                    add_distance(gradient, values, anchor, strength)
            self._optimizer.step(self._values, self._gradient, learning_rate)
        return loss

    def gradient(
        self, X: Any, y: np.ndarray, sample_weight: np.ndarray | None
    ) -> tuple[float, np.ndarray]:
        with _quiet():
            return self._back_propagate(X, y, sample_weight), self._gradient

    def gradient_part(
        self, X: Any, y: np.ndarray, sample_weight: np.ndarray | None, n_ranks: float
    ) -> GradientPart:
        with _quiet():
            loss = self._back_propagate(X, y, sample_weight, n_ranks)
        return GradientPart(loss, self._gradient, weight_of(X, sample_weight))

    def descend(self, gradient: np.ndarray, learning_rate: float) -> None:
        self._settle()
        with _quiet():
            self._optimizer.step(self._values, gradient, learning_rate)

    @property
    def few_inputs(self) -> FewInputs | None:
        center, scale = self._standard
        if self._few is None and center is None and may_wait(self._optimizer):
            parts = self._layout, self._values, self._optimizer, self._workspace
            steps = FewInputSteps(*parts, scale)
            if steps.is_worth_it(0):
                how = self._used, self._scaled_targets, self._spec.alpha
                self._few = FewInputs(steps, *how, self._layout.units)
        return self._few

    def outputs(self, X: Any) -> np.ndarray:
        self._settle()
        with _quiet():
            rows = self._used(X)
            outputs = mlp_outputs(self._layout, self._values, rows, *self._standard)
        if self._scaling is not None:
            outputs *= self._scaling.outputs
        return (
            outputs if self._spec.n_targets or outputs.shape[1] > 1 else outputs[:, 0]
        )

    def shift_outputs(self, shift: np.ndarray) -> None:
        self._settle()
        coefs, intercepts = mlp_unpack(self._layout, self._values)
        if self._scaling is not None and self._scaling.outputs != 1:
            shift = shift / self._scaling.outputs
            coefs[-1][...] *= _FIRST
        intercepts[-1] += shift.astype(self.dtype)

    def set_scaling(self, scaling: Scaling) -> None:
        self._settle()
        self._few = None
        self._scaling = Scaling(*(part.astype(self.dtype) for part in scaling))

    def unscaled(self, vector: np.ndarray, sign: int = 1) -> np.ndarray:
        if self._scaling is None:
            return vector
        center, scale, outputs, unit = self._scaling
        units = np.full_like(scale, unit)
        if sign > 0:
            vector = mlp_uncentred(self._layout, self._divide(vector, scale), center)
            return self._multiply_last(self._divide(vector, units), outputs)
        vector = self._divide(vector, 1 / units)
        vector = mlp_uncentred(self._layout, vector, -center)
        return self._multiply_last(self._divide(vector, 1 / scale), 1 / outputs)

    def set_columns(self, columns: UsedColumns) -> None:
        self._columns, self._places = columns, places_of(columns)

    def widened(self, vector: np.ndarray) -> np.ndarray:
        if self._columns.numbers is None:
            return vector
        weights = widened_weights(self._columns, first := self._first(vector))
        return np.concatenate([weights.ravel(), vector[first.size :]])

    @property
    def n_widened(self) -> int:
        n_inputs, n_units = self._layout.units[:2]
        return self.n_values + (self._columns.n_features - n_inputs) * n_units

    def taken(self, vector: np.ndarray) -> np.ndarray:
        columns, n_units = self._columns, self._layout.units[1]
        if columns.numbers is None:
            return vector
        n_weights = columns.n_features * n_units
        first = vector[:n_weights].reshape(columns.n_features, n_units)
        return np.concatenate([first[columns.numbers].ravel(), vector[n_weights:]])

    def slice_optimizer(self, n_values: int) -> Optimizer:
        return self._spec.optimizer(n_values, self.dtype)

    def optimizer_state(self) -> dict[str, Any]:
        self._settle()
        return self._optimizer.state_dict()

    def set_optimizer_state(self, state: dict[str, Any]) -> None:
        self._settle()
        self._optimizer.load_state_dict(state)

    def _back_propagate(
        self,
        X: Any,
        y: np.ndarray,
        sample_weight: np.ndarray | None,
        n_ranks: float = 1,
    ) -> float:
        """Loss of a batch; its gradient lies in the network's own array."""
        self._settle()
        y, square = self._scaled_targets(y)
        center, scale = self._standard
        loss = mlp_loss_and_gradient(
            self._layout,
            self._values,
            self._used(X),
            y,
            sample_weight,
            self._gradient,
            self._workspace,
            alpha=self._spec.alpha / n_ranks,
            center=center,
            scale=scale,
        )
        return loss * square

    def _settle(self) -> None:
        """Let the values be what the steps have made them."""
        if self._few is not None:
            with _quiet():
                self._few.steps.settle()

    def _scaled_targets(self, y: np.ndarray) -> tuple[np.ndarray, float]:
        """Targets as the last layer gives them, and by how much losses are larger."""
        if self._scaling is None or self._scaling.outputs == 1:
            return y, 1.0
        outputs = self._scaling.outputs
        return y / outputs, float(outputs) ** 2

    def _used(self, X: Any) -> Any:
        """The columns of rows that the network has inputs for, in its unit."""
        if self._columns.numbers is not None:
            X = used_part(X, self._columns, self._places)
        if self._scaling is None or self._scaling.unit == 1:
            return X
        return X * (1 / self._scaling.unit)

    @property
    def _standard(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """What is taken from each row, and what it is divided by then."""
        if self._scaling is None:
            return None, None
        center, scale, *_ = self._scaling
        return center if center.any() else None, scale if (scale != 1).any() else None

    def _divide(self, vector: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """A copy whose weights of each feature are divided by its scale."""
        vector = vector.copy()
        self._first(vector)[...] /= scale[:, np.newaxis]
        return vector

    def _multiply_last(self, vector: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """A copy whose outputs are so many times as large."""
        vector = vector.copy()
        for parts in mlp_unpack(self._layout, vector):
            parts[-1][...] *= factor
        return vector

    def _first(self, vector: np.ndarray) -> np.ndarray:
        """View of the weights of the first layer, of shape (n_features, n_units)."""
        return mlp_unpack(self._layout, vector)[0][0]


def _quiet() -> np.errstate:
    """No warnings where training diverges: the loss shows it."""
    return np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore")
