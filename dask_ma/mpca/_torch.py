"""A module of PyTorch, its loss and its optimiser, as one parameter."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Self

from dask_ma._settings import Settings

_MADE = ("module", "criterion", "optimizer")  # each with a dict of arguments
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class AddressFreeRepr:
    """Text of an estimator that is the same in every process, also with functions."""

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        # scikit-learn passes the number where there is not much space.
        text: str = super().__repr__(N_CHAR_MAX)  # type: ignore[call-arg]
        return _ADDRESS.sub("", text)


class Torch(AddressFreeRepr, Settings):
    """A module of PyTorch with its arguments, its loss, its optimiser and its device.

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
    criterion_params : dict or None, default=None
        Arguments of the criterion's class.
    optimizer : class, callable or str, default="auto"
        Optimiser: a class or a name in `torch.optim`. "auto" is Adam.
    optimizer_params : dict or None, default=None
        Arguments of the optimiser's class. Without ``lr``, the step size is the
        estimator's `learning_rate_init`.
    device : str or torch.device, default="auto"
        Where the module is trained; "auto" is a GPU where there is one.

    Notes
    -----
    The entries of the three dicts are parameters, too, named as skorch names them:
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
        "optimizer": [str, callable],
        "optimizer_params": [dict, None],
        "device": "no_validation",  # only torch knows
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
        device: Any = "auto",
    ) -> None:
        self.module = module
        self.module_params = module_params
        self.criterion = criterion
        self.criterion_params = criterion_params
        self.optimizer = optimizer
        self.optimizer_params = optimizer_params
        self.device = device

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name.

        Parameters
        ----------
        deep : bool, default=True
            Whether entries of the dicts are parameters, too.

        Returns
        -------
        params : dict
            Entries begin with ``module__``, ``criterion__`` or ``optimizer__``.
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
        """Arguments of the module, the criterion or the optimiser."""
        return getattr(self, f"{kind}_params") or {}


def _is_entry(name: str) -> bool:
    """Whether a name is that of an entry of one of the dicts."""
    kind, delimiter, _ = name.partition("__")
    return bool(delimiter) and kind in _MADE


def as_torch(module: Any) -> Torch | None:
    """A bare module with all the rest by default; None is no module."""
    return module if module is None or isinstance(module, Torch) else Torch(module)
