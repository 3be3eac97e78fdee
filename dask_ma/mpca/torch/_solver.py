"""A torch module as a network that the strategies train."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from dask_ma.kernels import Optimizer
from dask_ma.mpca.networks._anchors import ProximalTerm
from dask_ma.mpca.networks._network import (
    FitOutlook,
    GradientPart,
    Network,
)
from dask_ma.mpca.networks._training_state import TrainingState
from dask_ma.mpca.torch._gradients import StepOptions
from dask_ma.mpca.torch._inputs import Inputs, Loaded, call
from dask_ma.mpca.torch._objective import Objective
from dask_ma.mpca.torch._optimizer import (
    OptimizerBuilder,
    PacedOptimizer,
    SliceOptimizer,
)
from dask_ma.mpca.torch._random import RandomNumbers
from dask_ma.mpca.torch._schedule import Schedule, ScheduleSpec
from dask_ma.mpca.torch._values import JointModel, Values

_MOST_ROWS = 1024  # that go through a network at once, which bounds its activations


class TorchNetwork(Network):
    """A module of torch with its criterion and its optimiser.

    Parameters
    ----------
    module : nn.Module
        In float32, on its device. It belongs to the network, and must have at least one
        trained parameter.
    objective : Objective
        On the same device.
    build_optimizer : callable
        From a list of parameters to an optimiser of torch.
    learning_rate_init : float
        The `learning_rate` at which the optimiser's step sizes are taken as given.
    device : torch.device
        Where the module is.
    inputs : Inputs, default=Inputs()
        What the module gets of rows.
    options : StepOptions, default=StepOptions()
        What is done to batches and gradients.
    schedule : ScheduleSpec or None, default=None
        How the step sizes change in a fit that :meth:`begin` has told of; with None,
        and before, it is the `learning_rate` of each step that tells them.
    compile_params : dict or None, default=None
        Arguments of the compiler; None does not compile the module.
    callbacks : sequence of object, default=()
        They belong to the network.

    Notes
    -----
    The vector holds the parameters with `requires_grad`, then the other parameters,
    then the floating-point buffers, each kind in the module's order. It is of float32.

    A batch normalisation cannot be trained on one row, so the last row of a pass goes
    with the batch before.

    A rank that is alone in its process has the random numbers of torch start from the
    seed of the fit, from :meth:`begin` to :meth:`end`. Ranks in threads of one process
    share them: a dropout is as random as ever, but not the same from run to run.
    """

    least_rows: ClassVar[int] = 2

    def __init__(
        self,
        module: nn.Module,
        objective: Objective,
        build_optimizer: OptimizerBuilder,
        learning_rate_init: float,
        device: torch.device,
        inputs: Inputs = Inputs(),
        *,
        options: StepOptions = StepOptions(),
        schedule: ScheduleSpec | None = None,
        compile_params: dict[str, Any] | None = None,
        callbacks: Sequence[Any] = (),
    ) -> None:
        self._module = module.train()  # a module's own `train` may leave parts out
        self._options = options
        self._scaler = options.make_scaler(device)
        # Each rank would leave out the steps in which its own gradient overflows.
        self.adds_gradients = self._scaler is None
        self._schedule_spec = schedule
        self._schedule: Schedule | None = None
        self._callbacks = callbacks
        self._objective = objective
        self.log_loss = objective.log_loss
        self.squared_error = objective.squared_error
        self._device = device
        self._inputs = inputs
        self._values = Values(module, device)
        # Compiled once its tensors lie where they will stay.
        self._trained: Any = module
        if compile_params is not None:
            self._trained = torch.compile(module, **compile_params)
        self._joint = JointModel(self._values)
        self._build_optimizer = build_optimizer
        self._base = learning_rate_init
        self._optimizer = PacedOptimizer(
            build_optimizer(self._values.trained), learning_rate_init
        )
        self.n_values = self._values.n_values
        self.n_parameters = self._values.n_parameters
        self.dtype = np.dtype(np.float32)
        self._state = TrainingState(module, self._optimizer.optimizer, 0, 1)
        self._class_weight: np.ndarray | None = None
        self._random: RandomNumbers | None = None

    def begin(self, outlook: FitOutlook, losses: Sequence[float]) -> None:
        """Make the scheduler, and tell the callbacks that it begins."""
        if self._schedule_spec is not None:
            optimizer = self._optimizer.optimizer
            self._schedule = self._schedule_spec.make(optimizer, outlook)
            self._schedule.go_on_after(losses)
        self._inputs = self._inputs.for_rank(outlook.rank, outlook.n_ranks)
        state = self._state
        state.rank, state.n_ranks = outlook.rank, outlook.n_ranks
        state.n_epochs = len(losses)
        self._class_weight = outlook.class_weight
        if outlook.seed is not None:
            # Calls of `partial_fit` have one seed, and values of their own.
            values = self.read(0, self.n_values)
            seed = outlook.seed ^ zlib.crc32(values.tobytes())
            self._random = RandomNumbers(self._device, seed)
        try:
            self._call("on_fit_begin")
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Give other code its random numbers back."""
        if self._random is not None:
            self._random.close()

    def end_epoch(self, loss: float) -> None:
        """Have the scheduler and the callbacks follow."""
        if self._schedule is not None:
            self._schedule.end_epoch(loss)
        self._state.n_epochs += 1
        self._state.loss = loss
        self._call("on_epoch_end")

    def read(self, start: int, stop: int) -> np.ndarray:
        """Copy of the values from `start` to `stop`."""
        return self._values.read(start, stop)

    def write(self, start: int, values: np.ndarray) -> None:
        """Replace the values from `start` on."""
        self._values.write(start, values)

    def set_anchor(self, start: int, values: np.ndarray) -> None:
        """Set the anchor of the values from `start` on: the joint model."""
        self._joint.set_anchor(start, values)

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
        """Make a step of the optimiser on a batch; see :meth:`Network.step`.

        Raises
        ------
        ValueError
            If the module's output has not the shape that the task asks for, or if the
            criterion cannot weigh rows, or for an unknown `form`.
        """
        if form == "shift":
            for term in proximal_terms:
                self._shift(term)
        elif form != "loss":
            raise ValueError(f"form must be 'shift' or 'loss', got {form!r}")
        has_terms = form == "loss" and len(proximal_terms) > 0
        flat = has_terms or self._options.clips
        loss = self._differentiate(X, y, sample_weight, flat=flat)
        if form == "loss":
            for term in proximal_terms:
                self._tilt(term)
        self._make_step(learning_rate)
        self._note_step(loss)
        return loss

    def gradient(
        self, X: Any, y: np.ndarray, sample_weight: np.ndarray | None
    ) -> tuple[float, np.ndarray]:
        """Loss of a batch and its gradient; running means take the batch in."""
        loss = self._differentiate(X, y, sample_weight)
        self._note_step(loss)
        return loss, self._values.to_numpy(self._values.gradient, 0, self.n_parameters)

    def gradient_part(
        self, X: Any, y: np.ndarray, sample_weight: np.ndarray | None, n_ranks: float
    ) -> GradientPart:
        """Gradient of this rank's rows; see :meth:`Network.gradient_part`."""
        X, y, sample_weight = self._taken(X, y, sample_weight)
        loss = self._differentiate(X, y, sample_weight, is_part=True)
        self._state.loss = loss
        gradient = self._values.to_numpy(self._values.gradient, 0, self.n_parameters)
        return GradientPart(loss, gradient, self._objective.weight(y, sample_weight))

    def descend(self, gradient: np.ndarray, learning_rate: float) -> None:
        """Make a step with the gradient of all ranks, cut to its limits."""
        self._values.take_gradient()
        self._values.from_numpy(self._values.gradient, 0, gradient)
        self._options.clip(self._values.gradient)
        self._make_step(learning_rate)
        self._note_step(self._state.loss)

    def outputs(self, X: Any) -> np.ndarray:
        """Values of the output units; see :meth:`Network.outputs`."""
        parts = run(self._module, self._objective, X, self._inputs, self._device)
        return np.concatenate([to_array(self._objective.outputs(p)) for p in parts])

    def prepare(self, X: Any) -> Loaded:
        """Make rows ready for a step; see :meth:`Network.prepare`."""
        loaded = self._inputs.load(X, training=True)
        return loaded.pinned() if self._device.type == "cuda" else loaded

    def slice_optimizer(self, n_values: int) -> Optimizer:
        """An optimiser of the same kind, without history, for a part of the vector."""
        return SliceOptimizer(self._build_optimizer, n_values, self._base)

    def optimizer_state(self) -> dict[str, Any]:
        """Copies of what the optimiser remembers; see :meth:`PacedOptimizer.state`."""
        return self._optimizer.state_dict()

    def set_optimizer_state(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`optimizer_state` has given."""
        self._optimizer.load_state_dict(state)

    @torch.no_grad()
    def _shift(self, term: ProximalTerm) -> None:
        """Move values towards the joint model (equation 7)."""
        for part, joint in self._joint.between(term.start, term.stop):
            self._values.flat[part].lerp_(joint, term.strength)

    @torch.no_grad()
    def _tilt(self, term: ProximalTerm) -> None:
        """Add the gradient of a penalty to that of the loss (equation 6)."""
        for part, joint in self._joint.between(term.start, term.stop):
            distance = self._values.flat[part] - joint
            self._values.gradient[part].add_(distance, alpha=term.strength)

    def _make_step(self, learning_rate: float) -> None:
        """Have the optimiser make a step with the gradient that there is."""
        if self._schedule is None:
            self._optimizer.set_rate(learning_rate)
        if self._scaler is None:
            self._optimizer.optimizer.step()
        else:  # which leaves out a step whose gradient has overflowed
            self._scaler.step(self._optimizer.optimizer)
            self._scaler.update()
        if self._schedule is not None:
            self._schedule.end_batch()

    def _note_step(self, loss: float) -> None:
        """Tell the callbacks of a batch."""
        self._state.n_steps += 1
        self._state.loss = loss
        self._call("on_batch_end")

    def _call(self, name: str) -> None:
        """Call a method of all callbacks that have it."""
        for callback in self._callbacks:
            method = getattr(callback, name, None)
            if method is not None:
                method(self._state)

    def _differentiate(
        self,
        X: Any,
        y: np.ndarray,
        sample_weight: np.ndarray | None,
        *,
        is_part: bool = False,
        flat: bool = True,
    ) -> float:
        """Compute the gradient, end to end or not; returns the loss."""
        if not self._module.training:  # to set it takes as long as some kernels
            self._module.train()
        self._values.begin_gradient(flat=flat)
        loaded, y, sample_weight = self._taken(X, y, sample_weight)
        parts = self._options.parts(len(y))
        shares = [1.0]
        if len(parts) > 1:
            shares = self._objective.shares(y, sample_weight, parts)
        total = torch.zeros((), device=self._device)
        for rows, share in zip(parts, shares, strict=True):
            weight = None if sample_weight is None else sample_weight[rows]
            loss = self._loss(loaded.part(rows), y[rows], weight)
            loss = loss if len(parts) == 1 else share * loss
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()
            total += loss.detach()
        self._values.complete_gradient()
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer.optimizer)
        if flat and not is_part:
            self._options.clip(self._values.gradient)
        self._values.take_in_buffers()
        return float(total)

    def _taken(
        self, X: Any, y: np.ndarray, sample_weight: np.ndarray | None
    ) -> tuple[Loaded, np.ndarray, np.ndarray | None]:
        """A batch made ready; items of a stream have targets, and thus weights."""
        loaded = X if isinstance(X, Loaded) else self.prepare(X)
        if loaded.target is None:
            return loaded, y, sample_weight
        weight = self._class_weight
        own = None if weight is None else weight[loaded.target.astype(np.intp)]
        return loaded, loaded.target, own

    def _loss(
        self, loaded: Loaded, y: np.ndarray, sample_weight: np.ndarray | None
    ) -> torch.Tensor:
        """Loss of rows that go through the module together."""
        value = loaded.on(self._device)
        with self._options.autocast(self._device):
            output = self._forward(value, loaded.n_rows)
            return self._objective.loss(output, y, sample_weight)

    def _forward(self, value: Any, n_rows: int) -> Any:
        """What the module returns for a batch."""
        try:
            return call(self._trained, value)
        except ValueError as error:
            if n_rows > 1 or "more than 1 value per channel" not in str(error):
                raise
            raise ValueError(
                "a batch normalisation cannot be trained on a batch of one row, as it "
                "is with batch_size=1 or where a rank has a single row; take larger "
                "batches, or fewer ranks or blocks"
            ) from error


def run(
    module: nn.Module,
    objective: Objective,
    X: Any,
    inputs: Inputs,
    device: torch.device,
) -> Iterator[torch.Tensor]:
    """What a module returns outside training, for some of the rows at a time.

    Parameters
    ----------
    module : nn.Module
        It is set to its evaluation mode.
    objective : Objective
        It checks the shapes.
    X : ndarray or CSR of shape (n_rows, n_features)
        Rows; nothing is returned for none.
    inputs : Inputs
        What the module gets of rows.
    device : torch.device
        Where it is.

    Yields
    ------
    output : Tensor
        For the next rows.
    """
    module.eval()
    for start in range(0, X.shape[0], _MOST_ROWS):
        loaded = inputs.load(X[start : start + _MOST_ROWS], training=False)
        with torch.no_grad():
            output = call(module, loaded.on(device))
        objective.check(output, loaded.n_rows)
        yield output


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor without gradient as an array, wherever it is."""
    return tensor.cpu().numpy()
