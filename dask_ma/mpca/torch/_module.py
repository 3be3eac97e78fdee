"""Torch modules as users give them: made, checked and pickled."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from itertools import chain
from typing import Any

import cloudpickle
import torch
from torch import nn

from dask_ma.mpca.torch._values import value_tensors

# Building draws from random numbers that all threads of a process share.
_building = threading.Lock()


def make_module(module: Any, params: Mapping[str, Any] | None, seed: int) -> nn.Module:
    """A module of its own, on the CPU and in float32.

    Parameters
    ----------
    module : type, callable or nn.Module
        As for :class:`TorchSpec`; a module is copied.
    params : mapping or None
        Arguments of a class or function.
    seed : int
        What random values come from. Those of other code are left alone.

    Returns
    -------
    module : nn.Module

    Raises
    ------
    TypeError
        If there is no module to be had, or if it has complex values.
    ValueError
        If it has no parameter that can be trained, if parameters have no shape yet, or
        if there are arguments for a module that is made already.
    """
    if isinstance(module, nn.Module):
        if params:
            raise ValueError("module_params need a class, not an instance")
        made = copy.deepcopy(module)
    elif callable(module):
        # Only the CPU's numbers are drawn from: nothing is built on a GPU.
        with _building, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(seed))
            made = module(**(params or {}))
    else:
        made = module
    if not isinstance(made, nn.Module):
        raise TypeError(
            f"module={_name(module)} must be a torch.nn.Module, a class of one, or a "
            f"function that returns one; got a {type(made).__name__}"
        )
    _check_values(made)
    return made.cpu().float()


def pack_module(module: Any, params: Mapping[str, Any] | None = None) -> bytes:
    """A module pickled for the workers, once it is known to be of use there.

    Parameters
    ----------
    module : type, callable or nn.Module
        As for :class:`TorchSpec`. A class or function is called once.
    params : mapping or None, default=None
        Arguments of a class or function.

    Returns
    -------
    packed : bytes
        For ``cloudpickle.loads``.

    Raises
    ------
    TypeError, ValueError
        If it cannot be pickled; and as :func:`make_module`.
    """
    pickled = packed("module", module)
    make_module(module, params, seed=0)
    return pickled


def _check_values(module: nn.Module) -> None:
    """Raise unless a module has parameters that can be trained in float32."""
    name = type(module).__name__
    tensors = list(chain(module.parameters(), module.buffers()))
    if any(nn.parameter.is_lazy(t) for t in tensors):
        raise ValueError(
            f"module {name} has lazy layers, whose parameters have no shape yet; give "
            "the numbers of their inputs"
        )
    if any(tensor.is_complex() for tensor in tensors):
        raise TypeError(f"module {name} has complex values; only real ones are trained")
    if not sum(tensor.numel() for tensor in value_tensors(module)[0]):
        raise ValueError(
            f"module {name} has no parameters to train; layers must be attributes of "
            "the module, or in an nn.ModuleList, and need requires_grad"
        )


def packed(name: str, value: Any) -> bytes:
    """Anything pickled for the workers.

    Parameters
    ----------
    name : str
        Parameter that it is given as, for messages.
    value : object
        A module is moved to the CPU first.

    Returns
    -------
    packed : bytes
        For ``cloudpickle.loads``.

    Raises
    ------
    TypeError
        If it cannot be pickled.
    """
    if isinstance(value, nn.Module):
        tensors = chain(value.parameters(), value.buffers())
        if any(tensor.device.type != "cpu" for tensor in tensors):
            # A worker may have no such device.
            value = copy.deepcopy(value).cpu()
    try:
        return cloudpickle.dumps(value)
    except Exception as error:
        raise TypeError(
            f"{name}={_name(value)} cannot be pickled, so it cannot be sent to the "
            f"workers ({error}); keep locks, open files and generators out of it"
        ) from error


def _name(value: Any) -> str:
    """What to call a module in a message: its own text can fill pages."""
    if isinstance(value, nn.Module):
        return f"<{type(value).__qualname__} instance>"
    return str(getattr(value, "__qualname__", repr(value)))
