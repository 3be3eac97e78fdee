"""Specification of a network by a user's torch module; it needs torch."""

from __future__ import annotations

import copy
import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import cloudpickle
import numpy as np

try:
    import torch
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "module= needs PyTorch, which is not installed: pip install torch, or "
        'pip install ".[torch]" in the sources of dask_ma',
        name="torch",
    ) from error

from torch import nn

from dask_ma.mpca.inputs._fields import Fields
from dask_ma.mpca.inputs._rows import MODULE_DTYPES
from dask_ma.mpca.inputs._sources import as_source, rows_as_items
from dask_ma.mpca.networks._network import NetworkSpec
from dask_ma.mpca.torch._bound import is_scheduler, without_parameters
from dask_ma.mpca.torch._devices import (
    Sight,
    find_device,
    is_shared_out,
    look_around,
    share_out,
)
from dask_ma.mpca.torch._export import export_onnx, export_safetensors
from dask_ma.mpca.torch._gradients import StepOptions
from dask_ma.mpca.torch._inputs import Inputs, call
from dask_ma.mpca.torch._module import make_module, pack_module, packed
from dask_ma.mpca.torch._names import is_auto
from dask_ma.mpca.torch._objective import Objective, make_criterion
from dask_ma.mpca.torch._optimizer import (
    OWN_KERNELS,
    OptimizerBuilder,
    find_builder,
    group_parameters,
)
from dask_ma.mpca.torch._schedule import ScheduleSpec
from dask_ma.mpca.torch._solver import TorchNetwork, run, to_array
from dask_ma.mpca.torch._values import fill


@dataclass(frozen=True, eq=False)
class TorchSpec(NetworkSpec):
    """A torch module, with what it is trained for and how.

    It travels by cloudpickle, so the module's class may come from a notebook.

    Parameters
    ----------
    module : type, callable or nn.Module
        Class or function that makes the module, or a module, whose values are then
        where training starts. Its floating-point values become float32.
    module_params : dict or None, default=None
        Arguments of the class or function.
    criterion : type, callable or str, default="auto"
        Class, instance or name in `torch.nn`; "auto" for CrossEntropyLoss, or MSELoss
        in a regression, or BCEWithLogitsLoss for labels in several columns that are no
        numbers of classes. Parameters that it has are not trained.
    criterion_params : dict or None, default=None
        Arguments of the criterion's class.
    optimizer : type, callable or str, default="auto"
        Class or name in `torch.optim`; "auto" for Adam.
    optimizer_params : dict or None, default=None
        Arguments of the optimiser's class. `lr` is the step size where a step is asked
        for with `learning_rate_init`; without it, the `learning_rate` of each step is.
    lr_scheduler, lr_scheduler_params, lr_scheduler_step, clip_grad_norm, \
            clip_grad_value, precision, microbatch_size, compile, callbacks, \
            train_transform, eval_transform, transform_scope, prefetch, device, \
            ranks_per_gpu
        As for :class:`~dask_ma.mpca.Torch`.
    input_shape : tuple of int or None, default=None
        Shape of one row for the module, such as (1, 28, 28); None for rows as they are.
    fields : Fields or None, default=None
        What lies packed in a row, where the module gets several inputs.
    dataset : Dataset or None, default=None
        What the rows are numbers of the items of.
    held_out : Dataset or None, default=None
        The same of rows that models are scored on, where it is another one.
    learning_rate_init : float, default=0.001
        The `learning_rate` at which steps have the size that `lr` tells.
    n_targets : int or None, default=None
        Columns of y; None for a y of one dimension.
    target_shape : tuple of int or None, default=None
        Shape of a row of y for the criterion; None for that which it has.
    n_codes : int or None, default=None
        Classes of which y holds a number in each place; None if it does not.
    row_dtype : dtype or None, default=None
        Of the rows of the fit: where these were no integers, others become none. None
        leaves rows as they are.
    n_threads : int, default=1
        Threads that torch may use on the processor.

    Notes
    -----
    Probabilities are a softmax of the output, but for NLLLoss (exponential of the
    output), BCEWithLogitsLoss (sigmoid) and BCELoss (the output). The last two take
    one output unit and two classes, or a unit for each of several labels.

    Buffers of integers, such as the number of batches that a batch normalisation has
    seen, stay with each rank; they are new in a module that is given out.
    """

    dtypes: ClassVar[tuple[Any, ...]] = MODULE_DTYPES
    small_targets: ClassVar[bool] = True

    module: Any
    module_params: Mapping[str, Any] | None = None
    criterion: Any = "auto"
    criterion_params: Mapping[str, Any] | None = None
    optimizer: Any = "auto"
    optimizer_params: Mapping[str, Any] | None = None
    lr_scheduler: Any = None
    lr_scheduler_params: Mapping[str, Any] | None = None
    lr_scheduler_step: str = "epoch"
    clip_grad_norm: float | None = None
    clip_grad_value: float | None = None
    precision: str = "float32"
    microbatch_size: int | None = None
    compile: bool | Mapping[str, Any] = False
    callbacks: Sequence[Any] | None = None
    train_transform: Any = None
    eval_transform: Any = None
    transform_scope: str = "batch"
    prefetch: int = 0
    device: Any = "auto"
    ranks_per_gpu: int = 1
    input_shape: tuple[int, ...] | None = None
    fields: Fields | None = None
    dataset: Any = None
    held_out: Any = None
    learning_rate_init: float = 0.001
    n_targets: int | None = None
    target_shape: tuple[int, ...] | None = None
    n_codes: int | None = None
    row_dtype: Any = None
    n_threads: int = 1

    def __getstate__(self) -> dict[str, bytes]:
        state = dict(self.__dict__)
        if is_scheduler(self.lr_scheduler):
            state["lr_scheduler"] = without_parameters(self.lr_scheduler)
        return {name: packed(name, value) for name, value in state.items()}

    def __setstate__(self, state: dict[str, bytes]) -> None:
        # The dataclass is frozen, its dictionary is not.
        self.__dict__.update((name, cloudpickle.loads(b)) for name, b in state.items())

    def check_module(self) -> None:
        """Refuse a module that cannot be pickled, or is of no use.

        Raises
        ------
        TypeError, ValueError
            As :func:`~dask_ma.mpca.torch._module.pack_module`, or if the optimiser is
            no class or name of one.
        """
        pack_module(self.module, self.module_params)
        find_builder(self.optimizer)

    def digest_dataset(self) -> str:
        """What tells data sets from others.

        Returns
        -------
        digest : str
            Of their pickled forms.

        Raises
        ------
        TypeError
            If it cannot be pickled.
        """
        digest = hashlib.sha256(packed("dataset", self.dataset))
        if self.held_out is not None:
            digest.update(packed("X_val", self.held_out))
        return digest.hexdigest()

    def check(self, n_features: int, n_classes: int | None) -> None:
        """Find out whether a network can be built and sent, before anything is.

        Parameters
        ----------
        n_features : int
            Columns of X.
        n_classes : int or None
            Number of classes, at least 2; None for regression.

        Raises
        ------
        TypeError
            If something cannot be pickled, or is no module, criterion or optimiser.
        ValueError
            If the module has no parameters or none that is trained, if a name is
            unknown, or if a shape or a number of classes does not fit.
        """
        self.__getstate__()
        random_state = np.random.RandomState(0)
        self._network(n_features, n_classes, random_state, torch.device("cpu"))
        find_device(self.device)

    def placed(
        self, gather: Callable[[Any], list[Any]], rank: int, n_threads: int
    ) -> TorchSpec:
        """The same with a GPU of the rank's own; see :meth:`NetworkSpec.placed`."""
        device = self.device
        if is_shared_out(device):
            sights = [Sight(*each) for each in gather(tuple(look_around()))]
            named = str(device) == "cuda"
            number = share_out(sights, self.ranks_per_gpu, needs_gpu=named)[rank]
            device = torch.device("cpu" if number is None else f"cuda:{number}")
        return replace(self, device=device, n_threads=n_threads)

    def build(
        self,
        n_features: int,
        n_classes: int | None,
        dtype: np.dtype,
        random_state: np.random.RandomState,
    ) -> TorchNetwork:
        """A network with random values; see :meth:`NetworkSpec.build`.

        Parameters
        ----------
        n_features : int
            Columns of X.
        n_classes : int or None
            Number of classes, at least 2; None for regression.
        dtype : numpy.dtype
            Type of the rows. The network is of float32 in any case.
        random_state : RandomState
            Gives the seed: values are those after
            ``torch.manual_seed(random_state.randint(2**31 - 1))``.

        Returns
        -------
        network : TorchNetwork

        Raises
        ------
        TypeError, ValueError
            As :meth:`check`.
        """
        # For all of the process, as limits of BLAS; it stays when the network has gone.
        if torch.get_num_threads() != self.n_threads:
            torch.set_num_threads(self.n_threads)
        device = find_device(self.device)
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # of this thread, for modules that ask
        return self._network(n_features, n_classes, random_state, device)

    def forward(self, vector: np.ndarray, X: Any, n_classes: int | None) -> np.ndarray:
        """Predictions of a trained network, of float32."""
        device = find_device(self.device)
        module = self.load(vector).to(device)
        objective = self._objective(n_classes, device)
        width = n_classes if self.n_targets is None else self.n_targets
        if self.n_codes is not None and width is not None:
            width *= self.n_codes
        none = np.empty((0,) if width is None else (0, width), np.float32)
        outputs = run(module, objective, X, self._inputs(), device)
        parts = [to_array(objective.predictions(output)) for output in outputs]
        if parts and parts[0].size != len(parts[0]) * math.prod(none.shape[1:]):
            return np.concatenate(parts)  # of a criterion that takes any shape
        flat = [part.reshape(len(part), *none.shape[1:]) for part in parts]
        return np.concatenate([none, *flat])

    def find_codes(self, X: np.ndarray) -> int | None:
        """Classes of the places of y, where the module has an output for each of them.

        Parameters
        ----------
        X : ndarray of shape (n_rows, n_features)
            Rows that the module is tried with, one or more; their values do not matter.

        Returns
        -------
        n_codes : int or None
            None unless outputs have a dimension more than y, which no criterion that
            compares values one by one could do anything with.
        """
        if self.n_targets is None:
            return None
        module = make_module(self.module, self.module_params, seed=0).eval()
        value = self._inputs().for_rank(0, 1).load(X, training=False).value
        with torch.no_grad():
            output = call(module, value)
        shape = tuple(output.shape) if torch.is_tensor(output) else ()
        places = self.target_shape or (self.n_targets,)
        has_classes = len(shape) == len(places) + 2 and shape[1] > 1
        return shape[1] if has_classes else None

    @property
    def no_code(self) -> int:  # type: ignore[override]
        """What y holds in places that no class counts in."""
        criterion = None if self.n_codes is None else self._criterion(self.n_targets)
        return int(getattr(criterion, "ignore_index", NetworkSpec.no_code))

    def as_given(self, X: np.ndarray) -> Any:
        """Rows in their shape, or items; see :meth:`NetworkSpec.as_given`."""
        return self._inputs().as_given(X)

    def taking(self, X: Any) -> tuple[TorchSpec, Any]:
        """Rows of one dimension; see :meth:`NetworkSpec.taking`."""
        X = X if self.dataset is None else rows_as_items(X)
        source = as_source(X, None, needs_target=False)
        return replace(self, dataset=source.dataset, held_out=None), source.rows

    def attributes(
        self, vector: np.ndarray, n_features: int, n_classes: int | None
    ) -> dict[str, Any]:
        """The values as they are; see :meth:`NetworkSpec.attributes`."""
        return {"vector_": vector}

    def load(self, vector: np.ndarray) -> nn.Module:
        """A plain module with the values of a vector.

        Parameters
        ----------
        vector : ndarray of shape (n_values,)
            Values of a network that was built from this.

        Returns
        -------
        module : nn.Module
            On the CPU, in its evaluation mode.
        """
        module = make_module(self.module, self.module_params, seed=0)
        fill(module, vector)
        return module.eval()

    def state_dict(self, vector: np.ndarray) -> dict[str, torch.Tensor]:
        """Values of a vector under the module's own names.

        Parameters
        ----------
        vector : ndarray of shape (n_values,)
            Values of a network that was built from this.

        Returns
        -------
        state_dict : OrderedDict of Tensor
            As the module's `load_state_dict` takes it; on the CPU.
        """
        return self.load(vector).state_dict()

    def save_safetensors(
        self, vector: np.ndarray, path: str | os.PathLike[str]
    ) -> None:
        """Write the values of a vector to a file, under the module's own names.

        Parameters
        ----------
        vector : ndarray of shape (n_values,)
            Values of a network that was built from this.
        path : str or path-like
            File to write; ``safetensors.torch.load_model`` reads it.

        Raises
        ------
        ImportError
            If safetensors is not installed.
        """
        export_safetensors(self.load(vector), path)

    def save_onnx(
        self, vector: np.ndarray, path: str | os.PathLike[str], X: np.ndarray
    ) -> None:
        """Write a module with the values of a vector to a file for other runtimes.

        Parameters
        ----------
        vector : ndarray of shape (n_values,)
            Values of a network that was built from this.
        path : str or path-like
            File to write.
        X : ndarray of shape (n_rows, n_features)
            Rows to follow the module with.

        Raises
        ------
        ImportError
            If onnx or onnxscript is not installed.
        """
        value = self._inputs().load(np.asarray(X), training=False).value
        export_onnx(self.load(vector), value, path)

    def _network(
        self,
        n_features: int,
        n_classes: int | None,
        random_state: np.random.RandomState,
        device: torch.device,
    ) -> TorchNetwork:
        if self.input_shape is not None and math.prod(self.input_shape) != n_features:
            raise ValueError(
                f"input_shape={self.input_shape} has {math.prod(self.input_shape)} "
                f"values, a row of X has {n_features}"
            )
        seed = random_state.randint(2**31 - 1)
        module = make_module(self.module, self.module_params, seed).to(device)
        return TorchNetwork(
            module,
            self._objective(n_classes, device),
            self._optimizer_builder(module),
            self.learning_rate_init,
            device,
            self._inputs(),
            options=self._step_options(device),
            schedule=self._schedule(),
            compile_params=self._compile_params(),
            callbacks=copy.deepcopy(list(self.callbacks or ())),
        )

    def _inputs(self) -> Inputs:
        """What modules get of rows."""
        return Inputs(
            self.input_shape,
            self.fields,
            self.dataset,
            self.held_out,
            self.train_transform,
            self.eval_transform,
            self.transform_scope,
            self.row_dtype,
        )

    def _step_options(self, device: torch.device) -> StepOptions:
        """What is done to batches and gradients."""
        if self.precision == "fp16" and device.type == "cpu":
            raise ValueError(
                "precision='fp16' needs a GPU, and the network is trained on the CPU; "
                "use 'bf16' there"
            )
        return StepOptions(
            self.clip_grad_norm,
            self.clip_grad_value,
            self.precision,
            self.microbatch_size,
        )

    def _compile_params(self) -> dict[str, Any] | None:
        """Arguments of the compiler; None where it has nothing to do."""
        if isinstance(self.compile, bool):
            return {} if self.compile else None
        return dict(self.compile)

    def _schedule(self) -> ScheduleSpec | None:
        """How the step sizes change, if a scheduler of torch changes them."""
        if self.lr_scheduler is None:
            return None
        params = dict(self.lr_scheduler_params or {})
        schedule = ScheduleSpec(self.lr_scheduler, params, self.lr_scheduler_step)
        schedule.find()
        return schedule

    def _objective(self, n_classes: int | None, device: torch.device) -> Objective:
        criterion = self._criterion(n_classes)
        return Objective(
            criterion,
            n_classes,
            device,
            self.n_targets,
            self.target_shape,
            self.n_codes,
        )

    def _criterion(self, n_classes: int | None) -> Any:
        has_labels = self.n_targets is not None and self.n_codes is None
        return make_criterion(
            self.criterion, self.criterion_params, n_classes, has_labels=has_labels
        )

    def _optimizer_builder(self, module: nn.Module) -> OptimizerBuilder:
        """What makes optimisers: that of the module's own parameters has groups."""
        found = find_builder(self.optimizer)
        params = {"lr": self.learning_rate_init, **(self.optimizer_params or {})}
        if is_auto(self.optimizer) and not {*params} & OWN_KERNELS:
            params["fused"] = True  # the same steps in a quarter of the time
        groups = params.pop("param_groups", None)
        if groups is None:
            return lambda parameters: found(parameters, **params)
        names = [name for name, p in module.named_parameters() if p.requires_grad]
        return lambda parameters: found(
            group_parameters(parameters, names, groups), **params
        )
