"""Estimators whose network is a module of PyTorch: parameters and results."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, ClassVar

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dask_ma._settings import SettingsMixin
from dask_ma.data import InputInfo
from dask_ma.engine import Identity, as_text
from dask_ma.mpca.inputs._fields import integers_as_floats
from dask_ma.mpca.inputs._rows import MODULE_DTYPES, flat_rows
from dask_ma.mpca.inputs._sources import as_source, rows_as_items
from dask_ma.mpca.torch._parameter import AddressFreeRepr


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
    vector_: Any
    n_targets_: int | None
    n_codes_: int | None

    _dataset: Any = None  # what the rows of the fit that begins are numbers of
    _has_items: bool = False  # whether rows are items of a data set

    @property
    def _row_dtypes(self) -> tuple[Any, ...]:
        """A module has values of 32 bits; integers stay what they are."""
        return MODULE_DTYPES if self.module is not None else (np.float64, np.float32)

    def _module_rows(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, Any]:
        """Rows of one dimension, whatever a module gets, and their targets."""
        source = as_source(X, y)
        if reset:
            self._has_items = source.dataset is not None
            self.input_shape_, self.input_fields_ = source.shape, source.fields
        elif self._has_items != (source.dataset is not None):
            raise TypeError("X must be a Dataset if, and only if, it was one before")
        elif source.fields != self.input_fields_:
            raise ValueError(
                f"X has the inputs {source.fields}, expected {self.input_fields_}"
            )
        self._dataset = source.dataset
        y, shape = (source.y, None) if source.y is None else flat_rows(source.y)
        if reset:
            self.target_shape_ = shape
        return source.rows, y

    def _rows_to_predict(self, X: Any) -> tuple[Any, Any]:
        """Rows of one dimension, and what predicts them."""
        spec = self._make_torch_spec()
        if self._has_items:
            X = rows_as_items(X)
        X = integers_as_floats(X, self.input_fields_)
        source = as_source(X, None, needs_target=False)
        if source.fields != self.input_fields_:
            raise ValueError(
                f"X has the inputs {source.fields}, expected {self.input_fields_}"
            )
        spec = replace(spec, dataset=source.dataset)
        return source.rows, self._predictor(spec)  # type: ignore[attr-defined]

    def _in_target_shape(self, predicted: Any, *, by_class: bool = False) -> Any:
        """Predictions in the shape that rows of y had, maybe for each class."""
        shape = getattr(self, "target_shape_", None)
        if by_class and self._n_codes is not None:
            shape = (self._n_codes, *(shape or (self.n_targets_,)))
        if shape is None:
            return predicted
        if isinstance(predicted, np.ndarray):
            # With a criterion of the user's, outputs may have another shape.
            is_alike = predicted.size == len(predicted) * prod(shape)
            return predicted.reshape(len(predicted), *shape) if is_alike else predicted
        return predicted.map_blocks(
            lambda block: block.reshape(len(block), *shape),
            chunks=(predicted.chunks[0], *((n,) for n in shape)),
            new_axis=list(range(2, len(shape) + 1)),
            dtype=predicted.dtype,
        )

    def _identity(self, params: Any, seed: int) -> Identity:
        """What tells this fit from others; training starts from a module's values."""
        identity: Identity = super()._identity(params, seed)  # type: ignore[misc]
        if self.module is None:
            return identity
        chosen = self._objects()["module"]
        for name, made in (("module", chosen.module), ("criterion", chosen.criterion)):
            if hasattr(made, "state_dict") and not isinstance(made, type):
                values = made.state_dict()
                identity.parameters[f"start: {name}"] = as_text(dict(values))
                if hasattr(made, "named_modules"):  # it is printed with their names
                    parts = {place: _held(part) for place, part in made.named_modules()}
                    identity.parameters[f"parts: {name}"] = as_text(parts)
        scheduler = chosen.lr_scheduler
        if hasattr(scheduler, "state_dict") and not isinstance(scheduler, type):
            text = as_text(scheduler.state_dict())
            identity.parameters["start: lr_scheduler"] = text
        if params is not None and params.spec.dataset is not None:
            # Its rows are but numbers to the fit.
            identity.parameters["dataset"] = params.spec.digest_dataset()
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
            learning_rate_init=self.learning_rate_init,  # type: ignore[attr-defined]
            input_shape=getattr(self, "input_shape_", None),
            fields=getattr(self, "input_fields_", None),
            target_shape=getattr(self, "target_shape_", None),
            n_targets=getattr(self, "n_targets_", None),
            n_codes=getattr(self, "n_codes_", None),
            row_dtype=getattr(self, "row_dtype_", None),
        )

    @property
    def _n_codes(self) -> int | None:
        """Classes of which y held numbers, column by column; None for none."""
        return getattr(self, "n_codes_", None) if self.module is not None else None

    def _find_codes(self, info: InputInfo) -> None:
        """Note of how many classes y holds numbers, column by column; None for none."""
        if self.module is None:
            return
        self.n_codes_ = None
        if not is_classifier(self):
            return
        spec = replace(self._make_torch_spec(), dataset=self._dataset)
        # A byte, a word or an item of number 0 is as good as any.
        rows = np.zeros((1, info.n_features or 0), info.dtype)
        self.n_codes_ = spec.find_codes(rows)

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

    @available_if(has_module)
    def save_onnx(self, path: Any, X: Any) -> None:
        """Write the trained module to a file that other runtimes read, by torch.

        Parameters
        ----------
        path : str or path-like
            Where to; an existing file is replaced. Needs the packages onnx and
            onnxscript.
        X : array-like of shape (n_samples, ...) or dict of such
            Some rows, in the shape that they had in :meth:`fit`, which the module is
            followed with; the file takes any number of them. Transforms of the rank are
            no part of it.

        Raises
        ------
        ImportError
            If one of the packages is not installed.
        """
        check_is_fitted(self)
        rows, predictor = self._rows_to_predict(X)
        predictor.spec.save_onnx(self.vector_, path, rows)


def _held(part: Any) -> list[Any]:
    """What a module of PyTorch has by itself, beside its parameters."""
    own_name = "torch.nn.modules.module"
    bases = [kind for kind in type(part).__mro__ if kind.__module__ == own_name]
    names = {name for base in bases for name in vars(base())}  # what each module has
    holds = {name: each for name, each in vars(part).items() if name not in names}
    parameters = part.named_parameters(recurse=False)
    trained = {name: each.requires_grad for name, each in parameters}
    buffers = dict(part.named_buffers(recurse=False))
    return [type(part), holds, buffers, trained]
