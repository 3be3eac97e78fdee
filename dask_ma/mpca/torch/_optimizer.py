"""Optimisers of torch, with a step size for each step and a state that travels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from numbers import Integral
from typing import Any

import numpy as np
import torch

from dask_ma.kernels import Optimizer
from dask_ma.mpca.torch._names import find_class

# Makes an optimiser for some parameters, or for groups of them.
OptimizerBuilder = Callable[[list[Any]], Any]
#: Options that tell by which kernels of torch an optimiser makes its steps.
OWN_KERNELS = frozenset({"foreach", "fused", "differentiable"})
#: Patterns of names, and what is different for the parameters that have such names.
ParamGroups = Sequence[tuple[str, Mapping[str, Any]]]


def group_parameters(
    parameters: Sequence[Any], names: Sequence[str], groups: ParamGroups
) -> list[dict[str, Any]]:
    """Groups of parameters as optimisers of torch take them.

    Parameters
    ----------
    parameters : sequence of Parameter
    names : sequence of str
        Their names in the module.
    groups : sequence of (str, mapping)
        Patterns as in a shell; the first one that a name fits counts.

    Returns
    -------
    groups : list of dict
        One for each pattern, and one for what fits none, if there is any.

    Raises
    ------
    ValueError
        If a pattern fits no parameter that another one before it does not fit.
    """
    made = [{"params": [], **options} for _, options in groups]
    others: list[Any] = []
    for parameter, name in zip(parameters, names, strict=True):
        fitting = (i for i, (key, _) in enumerate(groups) if fnmatchcase(name, key))
        place = next(fitting, None)
        (others if place is None else made[place]["params"]).append(parameter)
    for (pattern, _), group in zip(groups, made, strict=True):
        if not group["params"]:
            raise ValueError(
                f"the pattern {pattern!r} in param_groups fits none of the parameters, "
                f"which are {', '.join(names)}"
            )
    return [*made, {"params": others}] if others else made


def find_builder(chosen: Any) -> Any:
    """What makes optimisers, of what a user has chosen.

    Parameters
    ----------
    chosen : type, callable or str
        A name in `torch.optim` stands for the class, "auto" for Adam.

    Returns
    -------
    found : type or callable

    Raises
    ------
    TypeError
        If it is no class or function; of an optimiser that has been made it says what
        to give in its place.
    ValueError
        For an unknown name.
    """
    name = "Adam" if isinstance(chosen, str) and chosen == "auto" else chosen
    found = find_class(name, torch.optim, "optimizer", "torch.optim")
    if isinstance(found, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer is an object of {type(found).__name__}, which is for "
            f"parameters of its own, while each rank makes one: give "
            f"{_call_that_made(found)}"
        )
    if not callable(found):
        raise TypeError(f"optimizer={found!r} must be a class, or a name")
    return found


def _call_that_made(optimizer: Any) -> str:
    """An optimiser in the words of the user's parameter."""
    kind = type(optimizer)
    is_known = getattr(torch.optim, kind.__name__, None) is kind
    name = repr(kind.__name__) if is_known else kind.__name__
    known = inspect.signature(kind).parameters
    options = {
        key: value
        for key, value in optimizer.defaults.items()
        if key in known and value != known[key].default
    }
    call = f"Torch(..., optimizer={name}, optimizer_params={options!r})"
    if len(optimizer.param_groups) == 1:
        return call
    groups = '[("*.bias", {...}), ...]'
    return f'{call}, with "param_groups": {groups} among them for groups by names'


class PacedOptimizer:
    """An optimiser of torch whose step size is set anew for each step.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        With its step sizes as given.
    base : float
        The `learning_rate` at which it takes its step sizes as given; at another one
        they are larger or smaller in the same proportion.

    Raises
    ------
    ValueError
        If the optimiser needs to evaluate the loss by itself, as LBFGS does.
    """

    def __init__(self, optimizer: Any, base: float) -> None:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise ValueError(
                f"optimizer={type(optimizer).__name__} evaluates the loss several "
                "times a step; choose one that makes a step with a gradient"
            )
        self._optimizer = optimizer
        self._given = [group["lr"] for group in optimizer.param_groups]
        self._base = base

    @property
    def optimizer(self) -> Any:
        """The optimiser of torch itself."""
        return self._optimizer

    def set_rate(self, learning_rate: float) -> None:
        """Set the size of the steps from here on."""
        scale = learning_rate / self._base
        for group, given in zip(self._optimizer.param_groups, self._given, strict=True):
            group["lr"] = given * scale

    def step(self, learning_rate: float) -> None:
        """Make a step with the gradients that the parameters have."""
        self.set_rate(learning_rate)
        self._optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """What the optimiser remembers.

        Returns
        -------
        state : dict
            Under `"0.exp_avg"` what belongs to the first parameter, and so on: arrays,
            floats where torch has tensors without dimensions, and ints.
        """
        remembered = self._optimizer.state_dict()["state"]
        return {
            f"{index}.{name}": _to_plain(value)
            for index, values in remembered.items()
            for name, value in values.items()
            if value is not None
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` has given."""
        remembered: dict[int, dict[str, Any]] = {}
        for key, value in state.items():
            index, name = key.split(".", 1)
            remembered.setdefault(int(index), {})[name] = _to_torch(value)
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": remembered, "param_groups": groups})


class SliceOptimizer(Optimizer):
    """An optimiser of torch for a part of a vector that lies in an array.

    Parameters
    ----------
    build : callable
        From a list of parameters to an optimiser of torch.
    n_values : int
        Length of the part.
    base : float
        As for :class:`PacedOptimizer`.

    Notes
    -----
    It equals the optimiser of the whole network as long as that one treats each value
    by itself. One that looks at the shape of a weight, as Muon or Adafactor do, sees a
    vector here.
    """

    def __init__(self, build: OptimizerBuilder, n_values: int, base: float) -> None:
        self._values = torch.nn.Parameter(torch.zeros(n_values, dtype=torch.float32))
        self._values.grad = torch.zeros_like(self._values)
        self._optimizer = PacedOptimizer(build([self._values]), base)

    def step(
        self, values: np.ndarray, gradient: np.ndarray, learning_rate: float
    ) -> None:
        expected = tuple(self._values.shape)
        if values.shape != expected or gradient.shape != expected:
            raise ValueError(
                f"the optimiser is for vectors of shape {expected}, got {values.shape} "
                f"and {gradient.shape}"
            )
        ours = self._values.detach().numpy()
        ours[...] = values
        assert self._values.grad is not None  # set once, and never taken away
        self._values.grad.numpy()[...] = gradient
        self._optimizer.step(learning_rate)
        values[...] = ours

    def state_dict(self) -> dict[str, Any]:
        """Copies of what it remembers, as :meth:`PacedOptimizer.state`."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` has given."""
        self._optimizer.load_state_dict(state)


def _to_plain(value: Any) -> Any:
    """A copy that needs no torch: array, float or int."""
    if not torch.is_tensor(value):
        return value
    return value.cpu().numpy().copy() if value.dim() else float(value)


def _to_torch(value: Any) -> Any:
    """Undo :func:`_to_plain`; torch itself puts tensors on the right device."""
    if isinstance(value, Integral):
        return int(value)
    return torch.tensor(value)
