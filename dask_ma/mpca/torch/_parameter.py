"""A module of PyTorch, its loss and its optimiser, as one parameter."""

from __future__ import annotations

import re
from numbers import Integral, Real
from typing import Any, ClassVar, Self

from dask_ma._settings import Settings
from dask_ma._sklearn import HasMethods, Interval, StrOptions

# Each with a dict of arguments.
_MADE = ("module", "criterion", "optimizer", "lr_scheduler")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class AddressFreeRepr:
    """Text of an estimator that is the same in every process, also with functions."""

    def __repr__(self, *args: Any, **kwargs: Any) -> str:
        # scikit-learn tells its estimators how much space there is.
        text: str = super().__repr__(*args, **kwargs)
        return _ADDRESS.sub("", text)


class Torch(AddressFreeRepr, Settings):
    """A module of PyTorch with its arguments, its loss, and how it is trained.

    For the parameter `module` of :class:`~dask_ma.MPCAClassifier` and
    :class:`~dask_ma.MPCARegressor`. It does not need PyTorch before a fit does.

    Parameters
    ----------
    module : torch.nn.Module, class or callable
        A module, whose values are where training starts, or what makes one.
    module_params : dict or None, default=None
        Arguments of the class or function.
    criterion : class, callable or str, default="auto"
        Loss: a class, an instance or a name in `torch.nn`. "auto" is CrossEntropyLoss,
        or MSELoss in a regression, or BCEWithLogitsLoss for labels in several columns.
        A function or a class of your own may get more than those: of a module that
        returns a tuple all of it, whose first part is predicted; and in a regression
        outputs of any shape, as of quantiles or of a mean and a variance.
    criterion_params : dict or None, default=None
        Arguments of the criterion's class.
    optimizer : class, callable or str, default="auto"
        Optimiser: a class or a name in `torch.optim`. "auto" is Adam with its fused
        kernel.
    optimizer_params : dict or None, default=None
        Arguments of the optimiser's class. Without ``lr``, the step size is the
        estimator's `learning_rate_init`. ``param_groups`` is a list of pairs of a
        pattern and a dict: parameters whose names fit the pattern, as in
        ``("*.bias", {"weight_decay": 0})``, have these arguments; the first pattern
        that fits counts, and each has to fit some.
    lr_scheduler : class, callable, str or scheduler, default=None
        What changes the step sizes: a class or a name in `torch.optim.lr_scheduler`, or
        a function that makes a scheduler for an optimiser. An object is copied to the
        optimiser of each rank, at the step at which it is; that optimiser has to be
        like its own. None leaves the step sizes to the estimator's `learning_rate`.
        ReduceLROnPlateau looks at the mean loss of epochs.
    lr_scheduler_params : dict or None, default=None
        Arguments of the scheduler's class. The value "auto", as in
        ``{"T_max": "auto"}``, stands for the steps that the scheduler makes in a fit of
        `max_iter` epochs. ``"schedulers"``, of SequentialLR and ChainedScheduler, holds
        classes, names or functions, such as ``partial(LinearLR, total_iters=5)``.
    lr_scheduler_step : {"epoch", "batch"}, default="epoch"
        When the scheduler makes a step: after each epoch of all ranks together, or
        after each step of the rank.
    clip_grad_norm : float or None, default=None
        Largest norm that the gradient of a step keeps, above 0; a longer one is
        shortened.
    clip_grad_value : float or None, default=None
        Largest size that an element of the gradient keeps, above 0.
    precision : {"float32", "bf16", "fp16"}, default="float32"
        What the module computes in. With the last two, torch chooses for each operation
        between this type and float32, and values, gradients and the optimiser stay in
        float32; "fp16" scales the loss, and needs a GPU.
    microbatch_size : int or None, default=None
        Most rows that go through the module at once, at least 1. The gradients of the
        parts of a batch add up to that of the batch, which needs less memory. None is
        the batch.
    compile : bool or dict, default=False
        Whether the module is compiled by ``torch.compile`` for training; a dict holds
        its arguments, such as ``{"mode": "max-autotune"}``.
    callbacks : list of object or None, default=None
        Each rank has a copy of each, and calls those of its methods ``on_fit_begin``,
        ``on_batch_end`` and ``on_epoch_end`` that there are with a
        :class:`~dask_ma.mpca.TrainingState`.
    train_transform, eval_transform : callable or None, default=None
        What is done to rows on the rank before they reach the module, in steps and in
        predictions, as to crop images or to divide them by 255: from a tensor, or a
        dict of tensors, to another. It sees the type that rows have; uint8 becomes
        float32 after it. A Dataset may as well have transforms of its own.
    transform_scope : {"batch", "sample"}, default="batch"
        Whether the transforms get batches, or one row at a time.
    prefetch : int, default=0
        Batches that a thread of the rank reads, transforms and, for a GPU, pins in
        advance, at least 0; 0 leaves that to the rank itself, between steps.
    device : str or torch.device, default="auto"
        Where the module is trained. "cuda" gives each rank a GPU of its own, of those
        that its process sees, and "auto" does so where there are any. A number, as in
        "cuda:1", is that of a GPU in the process of each rank, whoever else uses it.
    ranks_per_gpu : int, default=1
        Most ranks that share a GPU, at least 1, where there are not enough; more ranks
        than that are refused.

    Notes
    -----
    The entries of the dicts are parameters, too, named as skorch names them:
    ``set_params(optimizer__lr=0.1)`` sets ``optimizer_params["lr"]``, in a copy of the
    dict. In a search over an estimator that is ``module__optimizer__lr``.

    Examples
    --------
    >>> from dask_ma import MPCAClassifier
    >>> from dask_ma.mpca import Torch
    >>> def make_network(n_hidden=16):
    ...     from torch import nn
    ...     return nn.Sequential(
    ...         nn.Linear(4, n_hidden), nn.ReLU(), nn.Linear(n_hidden, 3)
    ...     )
    >>> network = Torch(
    ...     make_network, module_params={"n_hidden": 32},
    ...     optimizer="AdamW", optimizer_params={"weight_decay": 1e-2},
    ... )
    >>> classifier = MPCAClassifier(module=network)
    >>> classifier.set_params(module__optimizer__lr=0.1).module.optimizer_params
    {'weight_decay': 0.01, 'lr': 0.1}
    """

    _parameter_constraints: ClassVar[dict[str, list[Any] | str]] = {
        "module": "no_validation",  # what is made of it is looked at
        "module_params": [dict, None],
        "criterion": [str, callable],
        "criterion_params": [dict, None],
        "optimizer": [str, callable, HasMethods("step")],  # its class is asked for
        "optimizer_params": [dict, None],
        "lr_scheduler": [str, callable, HasMethods("step"), None],
        "lr_scheduler_params": [dict, None],
        "lr_scheduler_step": [StrOptions({"epoch", "batch"})],
        "clip_grad_norm": [Interval(Real, 0, None, closed="neither"), None],
        "clip_grad_value": [Interval(Real, 0, None, closed="neither"), None],
        "precision": [StrOptions({"float32", "bf16", "fp16"})],
        "microbatch_size": [Interval(Integral, 1, None, closed="left"), None],
        "compile": ["boolean", dict],
        "callbacks": [list, tuple, None],
        "train_transform": [callable, None],
        "eval_transform": [callable, None],
        "transform_scope": [StrOptions({"batch", "sample"})],
        "prefetch": [Interval(Integral, 0, None, closed="left")],
        "device": "no_validation",  # only torch knows
        "ranks_per_gpu": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        module: Any,
        *,
        module_params: dict[str, Any] | None = None,
        criterion: Any = "auto",
        criterion_params: dict[str, Any] | None = None,
        optimizer: Any = "auto",
        optimizer_params: dict[str, Any] | None = None,
        lr_scheduler: Any = None,
        lr_scheduler_params: dict[str, Any] | None = None,
        lr_scheduler_step: str = "epoch",
        clip_grad_norm: float | None = None,
        clip_grad_value: float | None = None,
        precision: str = "float32",
        microbatch_size: int | None = None,
        compile: bool | dict[str, Any] = False,
        callbacks: Any = None,
        train_transform: Any = None,
        eval_transform: Any = None,
        transform_scope: str = "batch",
        prefetch: int = 0,
        device: Any = "auto",
        ranks_per_gpu: int = 1,
    ) -> None:
        self.module = module
        self.module_params = module_params
        self.criterion = criterion
        self.criterion_params = criterion_params
        self.optimizer = optimizer
        self.optimizer_params = optimizer_params
        self.lr_scheduler = lr_scheduler
        self.lr_scheduler_params = lr_scheduler_params
        self.lr_scheduler_step = lr_scheduler_step
        self.clip_grad_norm = clip_grad_norm
        self.clip_grad_value = clip_grad_value
        self.precision = precision
        self.microbatch_size = microbatch_size
        self.compile = compile
        self.callbacks = callbacks
        self.train_transform = train_transform
        self.eval_transform = eval_transform
        self.transform_scope = transform_scope
        self.prefetch = prefetch
        self.device = device
        self.ranks_per_gpu = ranks_per_gpu

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name.

        Parameters
        ----------
        deep : bool, default=True
            Whether entries of the dicts are parameters, too.

        Returns
        -------
        params : dict
            Entries begin with ``module__``, ``criterion__``, ``optimizer__`` or
            ``lr_scheduler__``.
        """
        # A module may have methods of any name, and is no estimator.
        params: dict[str, Any] = super().get_params(deep=False)
        if deep:
            for kind in _MADE:
                params |= {f"{kind}__{k}": v for k, v in self._entries(kind).items()}
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters.

        Parameters
        ----------
        **params
            By name, as :meth:`get_params` gives them; entries of the dicts may be new.

        Returns
        -------
        self : Torch

        Raises
        ------
        ValueError
            For names that there are not.
        """
        entries = {k: v for k, v in params.items() if _is_entry(k)}
        super().set_params(**{k: v for k, v in params.items() if k not in entries})
        for name, value in entries.items():
            kind, _, entry = name.partition("__")
            setattr(self, f"{kind}_params", {**self._entries(kind), entry: value})
        return self

    def _entries(self, kind: str) -> dict[str, Any]:
        """Arguments of what is made of a class."""
        return getattr(self, f"{kind}_params") or {}


def _is_entry(name: str) -> bool:
    """Whether a name is that of an entry of one of the dicts."""
    kind, delimiter, _ = name.partition("__")
    return bool(delimiter) and kind in _MADE


def as_torch(module: Any) -> Torch | None:
    """A bare module with all the rest by default; None is no module."""
    return module if module is None or isinstance(module, Torch) else Torch(module)
