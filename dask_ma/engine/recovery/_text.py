"""Parameters of a fit as text, which tells one from another in every process.

What the user has written is told apart by what it does: a function or a class that has
been edited is another one, under the same name.
"""

from __future__ import annotations

import hashlib
import re
import sys
import uuid
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from reprlib import recursive_repr
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
from dask.base import is_dask_collection, tokenize

from dask_ma._settings import has_parameters
from dask_ma.kernels import Loss

__all__ = ["as_plain", "as_text", "cells_of", "code_of", "name_of"]

_PLAIN = (bool, int, float, complex, str, bytes, tuple, type(None))
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def as_text(value: Any) -> str:
    """A parameter as text, the same in every process.

    The `repr` of a large array leaves most of it out, that of a function or of many an
    object holds an address, and that of an estimator shows what is not a default.
    """
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return f"array of {as_text(value.tolist())}"
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"array of shape {value.shape}, {value.dtype}, {digest}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(as_text, value))})"
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}({', '.join(sorted(map(as_text, value)))})"
    if isinstance(value, dict):
        pairs = (f"{as_text(key)}: {as_text(item)}" for key, item in value.items())
        return f"dict({', '.join(sorted(pairs))})"
    if isinstance(value, FunctionType | type):
        return f"{name_of(value)}{_written(value)}"
    if has_parameters(value):
        # Its `repr` leaves out what is long, and what the configuration says.
        chosen = value.get_params(deep=False).items()
        shown = ", ".join(f"{name}={as_text(item)}" for name, item in chosen)
        return f"{as_text(type(value))}({shown})"
    if isinstance(value, Loss):
        return f"{as_text(type(value))}({as_text(vars(value))})"
    if isinstance(value, partial):
        return f"partial({as_text([value.func, value.args, value.keywords])})"
    if isinstance(value, MethodType):
        return f"method({as_text([value.__func__, value.__self__])})"
    if isinstance(value, Iterator):
        # What it would yield nobody knows without taking it away: no other is alike.
        return f"{name_of(type(value))} {uuid.uuid4().hex}"
    if is_dask_collection(value):
        return f"{name_of(type(value))} {tokenize(value)}"
    if hasattr(value, "__array__") and not isinstance(value, np.generic):
        return _table_text(value)
    return f"{_shown(value)} {_object_text(value)}".rstrip()


def _shown(value: Any) -> str:
    """What an object is printed as, without its address."""
    return _ADDRESS.sub("", repr(value))


def _table_text(value: Any) -> str:
    """A DataFrame, a Series, a tensor, of which `repr` shows a part."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # as of a tensor on a GPU
        return _shown(value)
    columns = as_text(list(map(str, getattr(value, "columns", ()))))
    return f"{name_of(type(value))} of {as_text(array)} {columns}"


@recursive_repr("an object around this one")
def _object_text(value: Any) -> str:
    """What an object holds; of one of the user's class also what it does."""
    # What a module of PyTorch holds is told apart by those who train it.
    holds = {} if hasattr(value, "state_dict") else getattr(value, "__dict__", {})
    if _is_of_user(type(value)):
        return f"{as_text(type(value))}({as_text(holds)})"
    # Others may hold whatever belongs to this process alone.
    kinds = (*_PLAIN, list, dict, np.ndarray)
    holds = {key: part for key, part in holds.items() if isinstance(part, kinds)}
    return as_text(holds) if holds else ""


def as_plain(value: Any) -> Any:
    """An option as JSON knows it."""
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, bool | int | float | None) else as_text(value)


# -- What a function or a class does -------------------------------------------------


def code_of(function: FunctionType) -> str:
    """Checksum of the code of a function."""
    return hashlib.sha256(_constant(function.__code__).encode()).hexdigest()


def cells_of(function: FunctionType) -> list[Any]:
    """What a function has of the functions around it, but for names not yet bound."""
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # it is empty
            found.append("not yet bound")
    return found


def _written(value: FunctionType | type) -> str:
    """Checksum of what a function or a class does, where the user has written it."""
    # Functions are few and asked for by name, whoever has written them.
    if isinstance(value, type) and not _is_of_user(value):
        return ""
    parts = [_own(one) for one in _reached(value)]
    return f", {hashlib.sha256(' '.join(parts).encode()).hexdigest()}"


def _reached(value: FunctionType | type) -> Iterator[FunctionType | type]:
    """A function or class, and those of the user that it names, in a fixed order."""
    waiting, seen = [value], set()
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, type):
            waiting += [kind for kind in one.__mro__[1:] if _is_of_user(kind)]
            named = [name for each in _methods(one) for name in _named(each)]
        else:
            named = _named(one)
        waiting += [each for each in named if _is_of_user(each)]


def _named(function: FunctionType) -> list[Any]:
    """Functions and classes that a function names, from its module and around it."""
    found, codes = [], [function.__code__]
    while codes:
        code = codes.pop(0)
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        found += [function.__globals__.get(name) for name in code.co_names]
    return [each for each in found + cells_of(function) if _has_code(each)]


def _own(value: FunctionType | type) -> str:
    """What a function or class is by itself."""
    if isinstance(value, FunctionType):
        plain = [each for each in cells_of(value) if not _has_code(each)]
        outside = as_text([plain, value.__defaults__, value.__kwdefaults__])
        return f"{name_of(value)} {code_of(value)} {outside}"
    own = {key: part for key, part in vars(value).items() if not key.startswith("__")}
    values = {key: part for key, part in own.items() if isinstance(part, _PLAIN)}
    return " ".join([name_of(value), as_text(values), *map(_own, _methods(value))])


def _methods(kind: type) -> list[FunctionType]:
    """Functions that a class has itself, as methods or properties."""
    found = []
    for part in vars(kind).values():
        accessors = [getattr(part, name, None) for name in ("fget", "fset", "fdel")]
        part = getattr(part, "__func__", part)  # of static methods and those of classes
        found += [each for each in (part, *accessors) if isinstance(each, FunctionType)]
    return found


def _has_code(value: Any) -> bool:
    return isinstance(value, FunctionType | type)


def name_of(value: FunctionType | type) -> str:
    """Where a function or a class is to be found."""
    return f"{value.__module__}.{value.__qualname__}"


def _is_of_user(value: FunctionType | type) -> bool:
    """Whether it comes from no library, whose versions are not told apart."""
    top = str(value.__module__).partition(".")[0]
    if top == "__main__":
        return True
    if top in sys.stdlib_module_names or top == __name__.partition(".")[0]:
        return False
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is None or not _is_installed(str(Path(file).parent))


@cache
def _is_installed(folder: str) -> bool:
    """Whether a package or module that lies in a folder was installed there."""
    # Beside what was installed lies what pip knows of it.
    places = Path(folder), Path(folder).parent
    return any(any(place.glob("*.dist-info")) for place in places)


def _constant(item: Any) -> str:
    """Code, or a constant of some, as text; a set has no order of its own."""
    if isinstance(item, CodeType):
        constants = [_constant(inner) for inner in item.co_consts]
        return f"{item.co_code.hex()} {item.co_names} {constants}"
    if isinstance(item, frozenset):
        return f"frozenset({sorted(map(_constant, item))})"
    if isinstance(item, tuple):
        return f"tuple({[_constant(inner) for inner in item]})"
    return repr(item)
