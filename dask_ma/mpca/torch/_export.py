"""Trained modules as files that other runtimes read."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from dask_ma.mpca.torch._inputs import Value


def export_onnx(module: nn.Module, value: Value, path: str | os.PathLike[str]) -> None:
    """Write a module in the format ONNX, all of it in one file.

    Parameters
    ----------
    module : nn.Module
        On the CPU, in its evaluation mode.
    value : Tensor, mapping, or list of Tensor
        Some rows as the module gets them; the file takes any number.
    path : str or path-like
        File to write; an existing one is replaced.

    Raises
    ------
    ImportError
        If onnx or onnxscript is not installed.
    """
    for name in ("onnx", "onnxscript"):
        if importlib.util.find_spec(name) is None:
            raise ImportError(
                f"the format needs {name}, which is not installed: "
                "pip install onnx onnxscript"
            )
    by_name = isinstance(value, Mapping)
    several = value if isinstance(value, list) else [value]
    torch.onnx.export(
        module,
        () if by_name else tuple(several),
        os.fspath(path),
        kwargs=dict(value) if by_name else None,
        dynamo=True,
        dynamic_shapes=_free_rows(value),
        external_data=False,
        verbose=False,
    )


def _free_rows(value: Value) -> Any:
    """That there may be any number of rows, in the words of ``torch.export``."""
    free = {0: torch.export.Dim("rows")}
    if isinstance(value, Mapping):
        return dict.fromkeys(value, free)
    return [free] * (len(value) if isinstance(value, list) else 1)


def export_safetensors(module: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write the values of a module under its own names.

    Parameters
    ----------
    module : nn.Module
        On the CPU.
    path : str or path-like
        File to write; ``safetensors.torch.load_model`` reads it.

    Raises
    ------
    ImportError
        If safetensors is not installed.
    """
    try:
        from safetensors.torch import save_model
    except ModuleNotFoundError as error:
        raise ImportError(
            "the format needs safetensors, which is not installed: pip install "
            'safetensors, or pip install ".[torch]" in the sources of dask_ma'
        ) from error
    save_model(module, os.fspath(path))
