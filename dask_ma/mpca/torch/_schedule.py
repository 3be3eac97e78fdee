"""Learning-rate schedulers of torch, which steps of a rank or epochs of all drive."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import ChainedScheduler, ReduceLROnPlateau

from dask_ma.mpca.networks._network import FitOutlook
from dask_ma.mpca.torch._bound import bind, is_scheduler
from dask_ma.mpca.torch._names import find_class

# Filters of warnings belong to all threads of a process.
_quiet = threading.Lock()


@dataclass(frozen=True)
class ScheduleSpec:
    """How to make a scheduler.

    Parameters
    ----------
    scheduler : type, callable, str or LRScheduler
        Class or name in `torch.optim.lr_scheduler`, or a function of an optimiser, or
        an object, which is copied for an optimiser like its own.
    params : mapping
        Arguments besides the optimiser; "auto" is the number of steps in the fit. Those
        named "schedulers" may be all that `scheduler` may be but objects.
    interval : {"epoch", "batch"}
        What each step of the scheduler follows.
    """

    scheduler: Any
    params: Mapping[str, Any] = field(default_factory=dict)
    interval: str = "epoch"

    def find(self) -> Callable[..., Any]:
        """The class or function.

        Raises
        ------
        TypeError, ValueError
            If it is neither, or no name in `torch.optim.lr_scheduler`; or if there are
            arguments for an object.
        """
        if is_scheduler(self.scheduler) and self.params:
            raise ValueError(
                "lr_scheduler_params need a class, a name or a function, not a "
                f"{type(self.scheduler).__name__} that has been made"
            )
        for part in self.params.get("schedulers", ()):
            if is_scheduler(part):
                raise ValueError(
                    f"lr_scheduler_params['schedulers'] has a {type(part).__name__} "
                    "that has been made, expected classes, names or functions; give "
                    "the whole scheduler as lr_scheduler if it has been made"
                )
            _maker(part)
        return _maker(self.scheduler)

    def make(self, optimizer: Any, outlook: FitOutlook) -> Schedule:
        """The scheduler of a rank for its optimiser.

        Parameters
        ----------
        optimizer : torch.optim.Optimizer
        outlook : FitOutlook
            How long the fit may be.

        Returns
        -------
        schedule : Schedule

        Raises
        ------
        TypeError
            If a function has made something else.
        ValueError
            If ReduceLROnPlateau is to follow batches, if a scheduler ends before the
            fit may, or if an object was made for another kind of optimiser.
        """
        by_batch = self.interval == "batch"
        most = outlook.n_epochs * (outlook.n_steps if by_batch else 1)
        params = {k: most if _is_auto(v) else v for k, v in self.params.items()}
        made = self._call(optimizer, params)
        if not callable(getattr(made, "step", None)):
            raise TypeError(
                f"lr_scheduler={self.scheduler!r} has made a {type(made).__name__}, "
                "which has no step()"
            )
        if by_batch and isinstance(made, ReduceLROnPlateau):
            raise ValueError(
                "lr_scheduler_step='batch' cannot be used with ReduceLROnPlateau: it "
                "looks at the loss of epochs; set it to 'epoch'"
            )
        self._check_end(made, most)
        return Schedule(made, outlook, by_batch=by_batch, most=most)

    def _call(self, optimizer: Any, params: dict[str, Any]) -> Any:
        """What the class or function makes, of parts of the same optimiser if any."""
        found = self.find()
        if "schedulers" in params:
            parts = [_maker(part)(optimizer) for part in params["schedulers"]]
            params = {**params, "schedulers": parts}
        if found is ChainedScheduler:  # which takes the optimiser last
            return found(optimizer=optimizer, **params)
        return found(optimizer, **params)

    def _check_end(self, made: Any, most: int) -> None:
        """Refuse a scheduler that would raise in the middle of a fit."""
        total = getattr(made, "total_steps", None)
        left = most if total is None else total - made.last_epoch
        if left < most:
            raise ValueError(
                f"lr_scheduler={type(made).__name__} ends after total_steps={total}, "
                f"of which {left} are left, expected {most} or more: so many steps "
                f"the fit may make with lr_scheduler_step={self.interval!r}; "
                "lr_scheduler_params={'total_steps': 'auto'} counts them"
            )


class Schedule:
    """A scheduler of torch, and how many steps it has made.

    Parameters
    ----------
    scheduler : LRScheduler
    outlook : FitOutlook
        Of the fit.
    by_batch : bool
        Whether it makes a step after each one of the rank.
    most : int
        Steps in the fit. A rank that makes more of its own than others do keeps the
        rate of the last one: schedulers that know their end go up again or refuse.
    """

    def __init__(
        self, scheduler: Any, outlook: FitOutlook, *, by_batch: bool, most: int
    ) -> None:
        self._scheduler = scheduler
        self._n_steps = outlook.n_steps
        self._by_batch = by_batch
        self._left = most - 1  # the first step has the rate that it begins with
        self._sees_loss = isinstance(scheduler, ReduceLROnPlateau)

    def go_on_after(self, losses: Sequence[float]) -> None:
        """Come to where the scheduler was after some epochs."""
        with _quiet, warnings.catch_warnings():
            # The optimiser has made its steps before it was built anew.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
            for loss in losses:
                self.end_epoch(loss)
                for _ in range(self._n_steps):
                    self.end_batch()

    def end_batch(self) -> None:
        """Follow a step of the rank."""
        if self._by_batch and self._left > 0:
            self._left -= 1
            self._scheduler.step()

    def end_epoch(self, loss: float) -> None:
        """Follow an epoch of all ranks with its mean loss."""
        if not self._by_batch:
            self._scheduler.step(*([loss] if self._sees_loss else []))


def _maker(value: Any) -> Callable[..., Any]:
    """What makes a scheduler for an optimiser; refuses what cannot."""
    if is_scheduler(value):
        return partial(bind, value)
    where = "torch.optim.lr_scheduler"
    found = find_class(value, lr_scheduler, "lr_scheduler", where)
    if not callable(found):
        raise TypeError(
            f"lr_scheduler={found!r} must be a class, a name, an object, or a function "
            "that makes a scheduler for an optimiser"
        )
    return cast(Callable[..., Any], found)


def _is_auto(value: Any) -> bool:
    """Whether an argument stands for the number of steps."""
    return isinstance(value, str) and value == "auto"
