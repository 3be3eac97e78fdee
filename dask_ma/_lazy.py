"""Names of a folder that are imported when they are asked for.

A worker needs the part of a folder that its fit is in, and new workers import it at the
beginning of their first fit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def importer(
    package: str, module_of: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """What a package has as its ``__getattr__`` and ``__dir__``.

    Parameters
    ----------
    package : str
        Its name.
    module_of : dict of str to str
        Module that each name lies in, seen from the package; a module that is a name
        itself has its own.
    """

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = import_module(f"{package}.{module_of[name]}")
        if module_of[name] != name:
            value = getattr(value, name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return get, names
