"""Objects of schedulers, which belong to an optimiser, moved to that of a rank."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch.optim.lr_scheduler import ConstantLR, CyclicLR, LRScheduler, OneCycleLR

from dask_ma.mpca.torch._optimizer import OWN_KERNELS

_FORM = (
    "or give a function that makes the scheduler, as in "
    "lr_scheduler=lambda optimizer: StepLR(optimizer, 30)"
)
# What schedulers keep in the groups of an optimiser, besides the step size.
_NOTES = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"}
_MOMENTA = {"momentum", "betas"}


def is_scheduler(value: Any) -> bool:
    """Whether a value is a scheduler that has been made."""
    return isinstance(value, LRScheduler)


def without_parameters(scheduler: Any) -> Any:
    """A copy of a scheduler whose optimiser holds no values of a module.

    Parameters
    ----------
    scheduler : LRScheduler

    Returns
    -------
    scheduler : LRScheduler
        Of an optimiser of the same class, with the same options.
    """
    theirs = scheduler.optimizer
    light = object.__new__(type(theirs))
    groups = [{**group, "params": []} for group in theirs.param_groups]
    light.__setstate__({**theirs.__getstate__(), "state": {}, "param_groups": groups})
    return _moved(scheduler, light)


def bind(scheduler: Any, optimizer: Any) -> Any:
    """A scheduler that does to another optimiser what one would do to its own.

    Parameters
    ----------
    scheduler : LRScheduler
        It does not change.
    optimizer : torch.optim.Optimizer
        New; its step sizes become those that the scheduler has come to.

    Returns
    -------
    scheduler : LRScheduler
        At the same step.

    Raises
    ------
    ValueError
        If the two optimisers differ by more than what the scheduler sets.
    """
    _check_alike(scheduler, optimizer)
    groups = zip(optimizer.param_groups, scheduler.optimizer.param_groups, strict=True)
    # Schedulers have optimisers count their steps, and warn where one does not.
    ConstantLR(optimizer, factor=1.0, total_iters=0)
    for group, theirs in groups:
        left = OWN_KERNELS | {"params"}
        group.update({k: v for k, v in theirs.items() if k not in left})
    return _moved(scheduler, optimizer)


def _moved(scheduler: Any, optimizer: Any) -> Any:
    """A copy, with the parts that it may have, that belongs to another optimiser."""
    return copy.deepcopy(scheduler, {id(scheduler.optimizer): optimizer})


def _check_alike(scheduler: Any, optimizer: Any) -> None:
    """Refuse a scheduler that was made for an optimiser of another kind."""
    name = f"lr_scheduler={type(scheduler).__name__}(...)"
    theirs = scheduler.optimizer
    if type(theirs) is not type(optimizer):
        kinds = type(theirs).__name__, type(optimizer).__name__
        raise ValueError(
            f"{name} is an object that was made for an optimiser {kinds[0]}, expected "
            f"one for {kinds[1]}: set optimizer={kinds[0]!r}, {_FORM}"
        )
    n_theirs, n_ours = len(theirs.param_groups), len(optimizer.param_groups)
    if n_theirs != n_ours:
        raise ValueError(
            f"{name} is an object that was made for an optimiser with {n_theirs} "
            f"groups of parameters, expected {n_ours}: set "
            f"optimizer_params={{'param_groups': ...}}, {_FORM}"
        )
    for their, our in zip(theirs.param_groups, optimizer.param_groups, strict=True):
        given = {k: v for k, v in their.items() if k not in _driven(scheduler)}
        if "lr" in given:
            given["lr"] = their.get("initial_lr", given["lr"])
        for key, value in given.items():
            if key in our and our[key] != value:
                raise ValueError(
                    f"{name} is an object that was made for an optimiser with {key}="
                    f"{value!r}, expected {our[key]!r} as here: set "
                    f"optimizer_params={{{key!r}: {value!r}}}, {_FORM}"
                )


def _driven(scheduler: Any) -> set[str]:
    """Options that an optimiser may have otherwise than it was made with."""
    driven = {"params", "param_names", *_NOTES, *OWN_KERNELS}
    for part in _parts(scheduler):
        if isinstance(part, (OneCycleLR, CyclicLR)):
            driven |= {"lr", *_MOMENTA}
    is_new = not getattr(scheduler, "last_epoch", 0)
    has_base = all("initial_lr" in g for g in scheduler.optimizer.param_groups)
    # One that has come down already does not tell from where.
    return driven if has_base or is_new else driven | {"lr"}


def _parts(scheduler: Any) -> Iterator[Any]:
    """A scheduler and those that it is made of."""
    yield scheduler
    for part in getattr(scheduler, "_schedulers", ()):
        yield from _parts(part)
