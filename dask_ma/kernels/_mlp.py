"""Multi-layer perceptrons whose parameters are one flat vector.

The vector holds, layer by layer, the weights of shape (fan_in, fan_out) in C order and
then the intercepts. Hidden units have one activation; the last layer is linear, and the
loss belongs to what its outputs mean:

- ``"log_loss"``: one output for each of at least two classes, log odds but for a
  constant in each row; the loss is that of their softmax.
- ``"binary_log_loss"``: an output for each label, the log odds of class 1 against
  class 0; the losses of several are added up.
- ``"squared_error"``: an output for each target, the prediction; the loss is half the
  square. Of several targets the mean is told, as by scikit-learn, whose steps follow
  the gradient of the sum, too.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from dask_ma.kernels._mlp_functions import (
    ACTIVATIONS,
    DERIVATIVES,
    output_losses,
)
from dask_ma.kernels._mlp_inputs import InputWeights, standardized_rows
from dask_ma.kernels._optimizers import BLOCK, blocks
from dask_ma.kernels._rows import row_slice

# The values of a layer, for some rows, that stay in the cache with a few temporaries.
_CHUNK_VALUES = 2**18
# Values of dense rows that are copied at a time, as they are standardised.
_COPIED_VALUES = 2**22


class MLPLayout(NamedTuple):
    """What a multi-layer perceptron is made of.

    Attributes
    ----------
    units : tuple of int
        Features, units of each hidden layer, output units.
    activation : {"identity", "logistic", "tanh", "relu"}
        Of the hidden units.
    loss : {"log_loss", "binary_log_loss", "squared_error"}
        See the module.
    """

    units: tuple[int, ...]
    activation: str
    loss: str

    @property
    def n_values(self) -> int:
        """Length of the flat vector."""
        return sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(self.units))


class MLPWorkspace:
    """Buffers that stay from step to step; they grow with the largest batch.

    Parameters
    ----------
    layout : MLPLayout
        The network.
    dtype : numpy.dtype
        Of its parameters.
    """

    def __init__(self, layout: MLPLayout, dtype: Any) -> None:
        self._widths = layout.units[1:]
        self._dtype = np.dtype(dtype)
        self._n_rows = 0
        self._layers: list[np.ndarray] = []
        self._slopes: list[np.ndarray] = []
        # A part of any weights, or those of one input.
        self.scratch = np.empty(max(BLOCK, *self._widths), self._dtype)

    def layers(self, n_rows: int) -> list[np.ndarray]:
        """Arrays of shape (n_rows, n_units) for all layers but the inputs."""
        self._reserve(n_rows)
        return [buffer[:n_rows] for buffer in self._layers]

    def slopes(self, n_rows: int) -> list[np.ndarray]:
        """As :meth:`layers`, for the hidden layers."""
        self._reserve(n_rows)
        if not self._slopes:
            self._slopes = self._arrays(self._widths[:-1])
        return [buffer[:n_rows] for buffer in self._slopes]

    def _reserve(self, n_rows: int) -> None:
        if n_rows > self._n_rows:
            self._n_rows = n_rows
            self._layers = self._arrays(self._widths)
            self._slopes = []

    def _arrays(self, widths: tuple[int, ...]) -> list[np.ndarray]:
        return [np.empty((self._n_rows, width), self._dtype) for width in widths]


def mlp_unpack(
    layout: MLPLayout, vector: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Weights and intercepts of the layers, as views of a flat vector.

    Parameters
    ----------
    layout : MLPLayout
        The network.
    vector : ndarray of shape (n_values,), contiguous
        Parameters, or a gradient.

    Returns
    -------
    coefs : list of ndarray of shape (fan_in, fan_out)
    intercepts : list of ndarray of shape (fan_out,)
    """
    coefs, intercepts, start = [], [], 0
    for fan_in, fan_out in pairwise(layout.units):
        middle = start + fan_in * fan_out
        coefs.append(vector[start:middle].reshape(fan_in, fan_out))
        start = middle + fan_out
        intercepts.append(vector[middle:start])
    return coefs, intercepts


def mlp_initial_values(
    layout: MLPLayout, dtype: Any, random_state: np.random.RandomState
) -> np.ndarray:
    """Random parameters, drawn layer by layer as scikit-learn's networks do.

    Those of a layer are uniform in ``+-sqrt(6 / (fan_in + fan_out))``, for the logistic
    activation with 2 in place of 6.

    Parameters
    ----------
    layout : MLPLayout
        The network.
    dtype : numpy.dtype
        float32 or float64; the numbers are drawn in float64.
    random_state : RandomState
        Where they come from.

    Returns
    -------
    vector : ndarray of shape (n_values,)
    """
    vector = np.empty(layout.n_values, dtype)
    factor = 2.0 if layout.activation == "logistic" else 6.0
    for coef, intercept in zip(*mlp_unpack(layout, vector), strict=True):
        bound = np.sqrt(factor / sum(coef.shape))
        coef[...] = random_state.uniform(-bound, bound, coef.shape)
        intercept[...] = random_state.uniform(-bound, bound, intercept.shape)
    return vector


def mlp_uncentred(
    layout: MLPLayout, vector: np.ndarray, center: np.ndarray
) -> np.ndarray:
    """Parameters of the same network for rows that no center is taken from.

    With the center negated, the way back.

    Parameters
    ----------
    layout : MLPLayout
        The network.
    vector : ndarray of float32 or float64, shape (n_values,)
        Its parameters for rows minus `center`.
    center : ndarray of shape (n_features,)
        What is taken from each row.

    Returns
    -------
    vector : ndarray of shape (n_values,)
        A copy; only the intercepts of the first layer are others.
    """
    vector = vector.copy()
    coefs, intercepts = mlp_unpack(layout, vector)
    intercepts[0] -= (center @ coefs[0]).astype(vector.dtype, copy=False)
    return vector


def mlp_outputs(
    layout: MLPLayout,
    vector: np.ndarray,
    X: Any,
    center: np.ndarray | None = None,
    scale: np.ndarray | None = None,
) -> np.ndarray:
    """Values of the output units.

    Parameters
    ----------
    layout : MLPLayout
        The network.
    vector : ndarray of float32 or float64, shape (n_values,)
        Its parameters.
    X : ndarray, csr_matrix or csr_array of shape (n_rows, n_features)
        Rows, of the dtype of `vector` for best speed; worked on in chunks.
    center : ndarray of shape (n_features,) or None, default=None
        Taken from each row, which stays sparse.
    scale : ndarray of shape (n_features,) or None, default=None
        What rows are divided by then, above 0.

    Returns
    -------
    outputs : ndarray of shape (n_rows, n_outputs), of the dtype of `vector`
        As the loss of the network takes them.
    """
    n_rows = X.shape[0]
    outputs = np.empty((n_rows, layout.units[-1]), vector.dtype)
    workspace = MLPWorkspace(layout, vector.dtype)
    views = mlp_unpack(layout, vector)
    size = max(64, _CHUNK_VALUES // max(layout.units[1:]))
    if not (sparse.issparse(X) or center is scale is None):
        size = max(1, min(size, _COPIED_VALUES // layout.units[0]))
    for start in range(0, n_rows, size):
        stop = min(start + size, n_rows)
        rows = standardized_rows(row_slice(X, start, stop), center, scale)
        outputs[start:stop] = _propagate(layout, views, *rows, workspace)[-1]
    return outputs


def mlp_loss_and_gradient(
    layout: MLPLayout,
    vector: np.ndarray,
    X: Any,
    y: np.ndarray,
    sample_weight: np.ndarray | None,
    gradient: np.ndarray,
    workspace: MLPWorkspace,
    *,
    alpha: float,
    center: np.ndarray | None = None,
    scale: np.ndarray | None = None,
) -> float:
    """Penalised mean loss of a batch, and its gradient by back-propagation.

    It is ``(sum_i s_i * loss_i + alpha / 2 * ||W||^2) / sum_i s_i``, where `W` are the
    weights without the intercepts, as in scikit-learn's networks. Those of the inputs
    count divided by `scale`: as they are for rows that nothing has been done to.

    Parameters
    ----------
    layout : MLPLayout
        The network.
    vector : ndarray of float32 or float64, shape (n_values,), contiguous
        Its parameters.
    X : ndarray, csr_matrix or csr_array of shape (n_rows, n_features)
        Rows of the batch, of the dtype of `vector`.
    y : ndarray of shape (n_rows,) or (n_rows, n_outputs)
        Codes of the classes, integers from 0, or targets; several columns of labels
        hold 0 and 1.
    sample_weight : ndarray of shape (n_rows,) or None
        Weights of the rows, not negative; None weighs each by 1.
    gradient : ndarray of shape (n_values,), contiguous
        Where the gradient goes, of the dtype of `vector`.
    workspace : MLPWorkspace
        Of the same layout and dtype.
    alpha : float
        Weight of the penalty, not negative.
    center : ndarray of shape (n_features,) or None, default=None
        Taken from each row, of the dtype of `vector`; sparse rows stay sparse.
    scale : ndarray of shape (n_features,) or None, default=None
        What rows are divided by then, above 0, of the dtype of `vector`.

    Returns
    -------
    loss : float
        Summed over the rows in float64. Loss and gradient are 0 where all rows weigh
        nothing.
    """
    total = weight_of(X, sample_weight)
    if total == 0:
        gradient[...] = 0
        return 0.0
    views, slots = mlp_unpack(layout, vector), mlp_unpack(layout, gradient)
    rows, shift = standardized_rows(X, center, scale)
    loss, slopes = loss_and_slopes(
        layout, views, rows, shift, y, sample_weight, slots, workspace
    )
    weight, (coefs, (coef_slots, (sums, *_))) = alpha / total, (views[0], slots)
    pull = weight if scale is None else (weight / scale / scale)[:, np.newaxis]
    inputs = InputWeights(coefs[0], coef_slots[0], pull, workspace.scratch)
    loss += inputs.gradient(rows, slopes, shift, sums)
    if alpha > 0:
        loss += add_penalty(coefs[1:], coef_slots[1:], weight, workspace.scratch)
    return loss


def weight_of(X: Any, sample_weight: np.ndarray | None) -> float:
    """Sum of the weights of the rows of a batch.

    Parameters
    ----------
    X : ndarray or CSR of shape (n_rows, n_features)
    sample_weight : ndarray of shape (n_rows,) or None

    Returns
    -------
    weight : float
    """
    if sample_weight is None:
        return float(X.shape[0])
    return float(np.sum(sample_weight, dtype=np.float64))


#: Weights and intercepts of the layers, or where their gradient goes.
Layers = tuple[list[np.ndarray], list[np.ndarray]]


def loss_and_slopes(
    layout: MLPLayout,
    views: Layers,
    X: Any,
    shift: np.ndarray | None,
    y: np.ndarray,
    sample_weight: np.ndarray | None,
    slots: Layers,
    workspace: MLPWorkspace,
) -> tuple[float, np.ndarray]:
    """Mean loss of a batch, and its gradient but for the weights of the inputs.

    Parameters
    ----------
    layout : MLPLayout
        The network; its number of inputs does not count.
    views : tuple of lists of ndarray
        Its weights and intercepts, as :func:`mlp_unpack` gives them.
    X : ndarray or CSR of shape (n_rows, n_inputs)
        Standardised rows, whose weights have a sum above 0.
    shift : ndarray of shape (n_inputs,) or None
        What is still to be taken from each row.
    y, sample_weight
        As in :func:`mlp_loss_and_gradient`.
    slots : tuple of lists of ndarray
        Where the gradient goes, shaped as `views`; the first array of weights is left
        alone.
    workspace : MLPWorkspace
        Of the same layout.

    Returns
    -------
    loss : float
        Without the penalty, summed in float64.
    slopes : ndarray of shape (n_rows, n_units)
        By what is put into the first units; a buffer of the workspace.
    """
    total = weight_of(X, sample_weight)
    layers = _propagate(layout, views, X, shift, workspace)
    losses = output_losses(layout.loss, layers[-1], y)
    if sample_weight is None:
        loss = float(np.sum(losses, dtype=np.float64)) / total
        layers[-1] *= 1 / total
    else:
        loss = float(np.dot(losses.astype(np.float64), sample_weight)) / total
        shares = (sample_weight / total).astype(layers[-1].dtype, copy=False)
        layers[-1] *= shares[:, np.newaxis]
    return loss, _propagate_back(layout, views[0], layers, slots, workspace)


def _propagate(
    layout: MLPLayout,
    views: Layers,
    X: Any,
    shift: np.ndarray | None,
    workspace: MLPWorkspace,
) -> list[np.ndarray]:
    """Values of the units of all layers but the inputs."""
    activate = ACTIVATIONS[layout.activation]
    layers = workspace.layers(X.shape[0])
    below, last = X, len(layers) - 1
    for i, (coef, intercept) in enumerate(zip(*views, strict=True)):
        if sparse.issparse(below):
            layers[i][...] = below @ coef
        else:
            np.matmul(below, coef, out=layers[i])
        if i == 0 and shift is not None:
            intercept = intercept - shift @ coef
        layers[i] += intercept
        if i < last:
            activate(layers[i])
        below = layers[i]
    return layers


def _propagate_back(
    layout: MLPLayout,
    coefs: list[np.ndarray],
    layers: list[np.ndarray],
    slots: Layers,
    workspace: MLPWorkspace,
) -> np.ndarray:
    """Gradient but for the weights of the inputs; slopes by sums of the first units."""
    coef_slots, intercept_slots = slots
    buffers = workspace.slopes(len(layers[0]))
    slopes = layers[-1]
    for i in range(len(coefs) - 1, 0, -1):
        np.add.reduce(slopes, axis=0, out=intercept_slots[i])
        np.matmul(layers[i - 1].T, slopes, out=coef_slots[i])
        np.matmul(slopes, coefs[i].T, out=buffers[i - 1])
        slopes = buffers[i - 1]
        # The values of the hidden layers are lost.
        DERIVATIVES[layout.activation](layers[i - 1], slopes)
    np.add.reduce(slopes, axis=0, out=intercept_slots[0])
    return slopes


def add_penalty(
    coefs: list[np.ndarray],
    slots: list[np.ndarray],
    weight: float,
    scratch: np.ndarray,
) -> float:
    """Value of ``weight / 2 * ||W||^2``; its gradient is added to that of the loss.

    Parameters
    ----------
    coefs, slots : list of ndarray, contiguous
        Weights, and the gradient.
    weight : float
        Not negative.
    scratch : ndarray of shape (n_scratch,)
        For as many weights as are worked on at a time.

    Returns
    -------
    penalty : float
    """
    squares = 0.0
    for coef, slot in zip(coefs, slots, strict=True):
        coef, slot = coef.reshape(-1), slot.reshape(-1)
        for part in blocks(len(coef)):
            values, change = coef[part], scratch[: part.stop - part.start]
            squares += float(np.dot(values, values))
            np.multiply(values, weight, out=change)
            slot[part] += change
    return weight / 2 * squares
