"""Estimators whose network is a module of PyTorch: parameters and results."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dask_ma._settings import SettingsMixin
from dask_ma.engine import Identity, as_text
from dask_ma.mpca._torch import AddressFreeRepr


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


class ModuleMixin(AddressFreeRepr, SettingsMixin):
    """Parameters of modules, and modules out; goes before the estimator's base."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {"module": "no_validation"}
    module: Any
    learning_rate_init: float
    vector_: Any

    @property
    def _row_dtypes(self) -> tuple[Any, ...]:
        """A module has values of 32 bits, so its rows need no more."""
        return (np.float32,) if self.module is not None else (np.float64, np.float32)

    def _identity(self, params: Any, seed: int) -> Identity:
        """What tells this fit from others; training starts from a module's values."""
        identity: Identity = super()._identity(params, seed)  # type: ignore[misc]
        if self.module is None:
            return identity
        chosen = self._objects()["module"]
        for name, made in (("module", chosen.module), ("criterion", chosen.criterion)):
            if hasattr(made, "state_dict") and not isinstance(made, type):
                values = made.state_dict()
                text = as_text({k: v.detach().cpu().numpy() for k, v in values.items()})
                identity.parameters[f"start: {name}"] = text
        return identity

    def _check_module(self) -> None:
        """Refuse a module that cannot travel."""
        if self.module is not None:
            self._make_torch_spec().check_module()

    def _make_torch_spec(self) -> Any:
        """What the network is built from."""
        # The one module that needs torch; it says so where torch is missing.
        from dask_ma.mpca.torch._spec import TorchSpec

        return TorchSpec(
            **self._objects()["module"].get_params(deep=False),
            learning_rate_init=self.learning_rate_init,
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
