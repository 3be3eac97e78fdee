"""Estimators whose network is a module of PyTorch: parameters and results."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dask_ma.engine import Identity, as_text

_PREFIXES = ("module__", "criterion__", "optimizer__")
_NEED_MODULE = ("criterion", "optimizer")


def has_module(estimator: Any) -> bool:
    """Whether the network is a module of PyTorch."""
    if estimator.module is not None:
        return True
    raise AttributeError("this needs the parameter module, a torch.nn.Module")


def has_no_module(estimator: Any) -> bool:
    """Whether the network is the built-in one."""
    if estimator.module is None:
        return True
    raise AttributeError("scikit-learn has no estimator of a module; use to_module()")


class ModuleMixin:
    """Parameters of modules, and modules out; goes before the estimator's base."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "module": "no_validation",
        "criterion": "no_validation",
        "optimizer": "no_validation",
        "device": "no_validation",
    }
    module: Any
    criterion: Any
    optimizer: Any
    device: Any
    learning_rate_init: float
    vector_: Any

    @property
    def _row_dtypes(self) -> tuple[Any, ...]:
        """A module has values of 32 bits, so its rows need no more."""
        return (np.float32,) if self.module is not None else (np.float64, np.float32)

    def _identity(self, params: Any, seed: int) -> Identity:
        """What tells this fit from others; training starts from a module's values."""
        identity: Identity = super()._identity(params, seed)  # type: ignore[misc]
        if self.module is None or isinstance(self.module, type):
            return identity
        if hasattr(self.module, "state_dict"):
            values = self.module.state_dict()
            text = as_text({k: v.detach().cpu().numpy() for k, v in values.items()})
            identity.parameters["start: module"] = text
        return identity

    def _set_extra(self, extra: dict[str, Any]) -> None:
        """Take over parameters of the module, the criterion and the optimiser."""
        for name, value in extra.items():
            if not name.startswith(_PREFIXES):
                raise TypeError(
                    f"{type(self).__name__}.__init__() got an unexpected keyword "
                    f"argument {name!r}; those of the module, the criterion and the "
                    f"optimizer begin with {', '.join(_PREFIXES)}"
                )
            setattr(self, name, value)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters of this estimator.

        Parameters
        ----------
        deep : bool, default=True
            As in scikit-learn; there are no estimators inside.

        Returns
        -------
        params : dict
            Also those that begin with ``module__``, ``criterion__`` or ``optimizer__``.
        """
        return {**super().get_params(deep=False), **self._extra()}  # type: ignore[misc]

    def set_params(self, **params: Any) -> Self:
        """Set parameters of this estimator.

        Parameters
        ----------
        **params
            By name, as :meth:`get_params` gives them.

        Returns
        -------
        self : estimator
        """
        extra = {k: v for k, v in params.items() if k.startswith(_PREFIXES)}
        self._set_extra(extra)
        own = {k: v for k, v in params.items() if k not in extra}
        super().set_params(**own)  # type: ignore[misc]
        return self

    def _extra(self) -> dict[str, Any]:
        """Parameters with two underscores."""
        return {k: v for k, v in vars(self).items() if k.startswith(_PREFIXES)}

    def _extra_of(self, kind: str) -> dict[str, Any]:
        """Those of the module, the criterion or the optimiser, by their own names."""
        prefix = f"{kind}__"
        return {
            name.removeprefix(prefix): value
            for name, value in self._extra().items()
            if name.startswith(prefix)
        }

    def _check_module(self) -> None:
        """Refuse a module that cannot travel, and parameters of none."""
        if self.module is not None:
            self._make_torch_spec().check_module()
            return
        for name in (*_NEED_MODULE, *self._extra()):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is given, but module is None; it needs one")

    def _make_torch_spec(self) -> Any:
        """What the network is built from."""
        # The one module that needs torch; it says so where torch is missing.
        from dask_ma.mpca.torch._spec import TorchSpec

        return TorchSpec(
            module=self.module,
            module_params=self._extra_of("module"),
            criterion=self.criterion,
            criterion_params=self._extra_of("criterion"),
            optimizer=self.optimizer,
            optimizer_params=self._extra_of("optimizer"),
            learning_rate_init=self.learning_rate_init,
            device=self.device,
            input_shape=getattr(self, "input_shape_", None),
            n_targets=getattr(self, "n_targets_", None),
        )

    @available_if(has_module)
    def to_module(self) -> Any:
        """The trained module, on the CPU.

        Returns
        -------
        module : torch.nn.Module
            In the mode for evaluation. It shares no memory with this estimator.
        """
        check_is_fitted(self)
        return self._make_torch_spec().load(self.vector_)

    @available_if(has_module)
    def state_dict(self) -> Any:
        """The trained values by the names that the module gives them.

        Returns
        -------
        state : dict of str to torch.Tensor
            For ``torch.save``, ``safetensors.torch.save_file`` or ``load_state_dict``.
        """
        check_is_fitted(self)
        return self._make_torch_spec().state_dict(self.vector_)

    @available_if(has_module)
    def save_safetensors(self, path: Any) -> None:
        """Write :meth:`state_dict` to a file that is read without running any code.

        Parameters
        ----------
        path : str or path-like
            Where to; an existing file is replaced. Needs the package safetensors, which
            the extra `torch` brings.
        """
        check_is_fitted(self)
        self._make_torch_spec().save_safetensors(self.vector_, path)
