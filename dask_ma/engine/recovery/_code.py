"""Code of functions and classes, as far as the user has written them, as text."""

from __future__ import annotations

import dis
import enum
import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import cache, lru_cache, partial
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

import numpy as np

__all__ = [
    "PLAIN",
    "Written",
    "attributes_of",
    "cells_of",
    "code_of",
    "is_of_user",
    "name_of",
]

#: Types of values that are told by what they are printed as.
PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, slice)
# Of what a class or a module has under a name, what counts as a value.
_VALUES = (*PLAIN, list, tuple, dict, set, frozenset, np.ndarray, partial)
_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_WRITES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
# Where a function is that something else is made of, as a property.
_WITHIN = ("fget", "fset", "fdel", "__func__", "__wrapped__", "func")


class Written:
    """Checksums of functions and classes, with those of the user's that they name.

    Parameters
    ----------
    text_of : callable
        Text of a value.
    """

    def __init__(self, text_of: Callable[[Any], str]) -> None:
        self._text_of = text_of

    def checksum(self, value: FunctionType | type) -> str:
        """Behind a comma; empty for a class of a library."""
        # Functions are few and asked for by name, whoever has written them.
        if isinstance(value, type) and not is_of_user(value):
            return ""
        digest = hashlib.sha256()
        for one in _reached(value):
            digest.update(self._own(one).encode(errors="backslashreplace"))
        return f", {digest.hexdigest()}"

    def _own(self, value: FunctionType | type) -> str:
        """What a function or class is by itself."""
        if isinstance(value, FunctionType):
            plain = [each for each in cells_of(value) if not _has_code(each)]
            outside = [plain, value.__defaults__, value.__kwdefaults__, _read(value)]
            return f"{name_of(value)} {code_of(value)} {self._text_of(outside)}"
        if issubclass(value, enum.Enum):
            members = value.__members__.items()
            values = {name: repr(member.value) for name, member in members}
        else:
            parts = vars(value).items()
            values = _values({k: part for k, part in parts if not k.startswith("__")})
        methods = " ".join(map(self._own, _methods(value)))
        return f"{name_of(value)} {self._text_of(values)} {methods}"


def name_of(value: FunctionType | type) -> str:
    """Where a function or a class is to be found."""
    return f"{value.__module__}.{value.__qualname__}"


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


def attributes_of(value: Any) -> dict[str, Any]:
    """What an object holds, in its dict or in slots."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def is_of_user(value: FunctionType | type) -> bool:
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


def _reached(value: FunctionType | type) -> Iterator[FunctionType | type]:
    """A function or class, and those of the user that it names, in a fixed order."""
    waiting: list[FunctionType | type] = [value]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        named = list(_named(one)) if isinstance(one, FunctionType) else []
        if isinstance(one, type):
            named = [*one.__mro__[1:], type(one), *vars(one).values()]
            named += [each for method in _methods(one) for each in _named(method)]
        waiting += [each for each in named if _has_code(each) and is_of_user(each)]


def _named(function: FunctionType) -> Iterator[Any]:
    """What a function names, of its module and of the functions around it."""
    for name in sorted(_global_names(function.__code__, _READS)):
        value = function.__globals__.get(name)
        yield from (value,) if isinstance(value, type) else _functions_in(value)
    yield from cells_of(function)


def _read(function: FunctionType) -> dict[str, Any]:
    """Values of the module that a function reads, and does not set itself."""
    code = function.__code__
    names = _global_names(code, _READS) - _global_names(code, _WRITES)
    return _values({name: function.__globals__.get(name) for name in sorted(names)})


@lru_cache(maxsize=1024)
def _global_names(code: CodeType, operations: frozenset[str]) -> set[str]:
    """Names of the module that a function reads or sets, or one within it."""
    found = {
        str(each.argval)
        for each in dis.get_instructions(code)
        if each.opname in operations
    }
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return found.union(*(_global_names(each, operations) for each in inner))


def _methods(kind: type) -> list[FunctionType]:
    """Functions that a class has itself, as methods, properties and the like."""
    return [each for part in vars(kind).values() for each in _functions_in(part)]


def _functions_in(part: Any) -> Iterator[FunctionType]:
    """A function itself, or those that a property or the like is made of."""
    if isinstance(part, FunctionType):
        yield part
        return
    for name in () if isinstance(part, type) else _WITHIN:
        inner = getattr(part, name, None)
        if isinstance(inner, FunctionType):
            yield inner


def _values(parts: dict[str, Any]) -> dict[str, Any]:
    """What counts with what it is, and of what libraries do the name."""
    found = {name: part for name, part in parts.items() if _is_value(part)}
    for name, part in parts.items():
        if isinstance(part, BuiltinFunctionType):
            found[name] = f"{part.__module__}.{part.__qualname__}"
        elif isinstance(part, FunctionType | type) and not is_of_user(part):
            found[name] = name_of(part)
    return found


def _is_value(part: Any) -> bool:
    """Whether it counts with what it is, as objects of the user's do."""
    if _has_code(part):
        return False
    is_plain = type(part) in _VALUES or isinstance(part, np.generic)
    # Tensors and modules of PyTorch are what a criterion of the user's is made of.
    is_torch = hasattr(type(part), "detach") or hasattr(type(part), "state_dict")
    return is_plain or is_torch or is_of_user(type(part))


def _has_code(value: Any) -> bool:
    return isinstance(value, FunctionType | type)


def _constant(item: Any) -> str:
    """Code, or a constant of some, as text; a set has no order of its own."""
    if isinstance(item, CodeType):
        constants = [_constant(inner) for inner in item.co_consts]
        signature = item.co_argcount, item.co_flags, item.co_varnames
        return f"{item.co_code.hex()} {item.co_names} {signature} {constants}"
    if isinstance(item, frozenset):
        return f"frozenset({sorted(map(_constant, item))})"
    if isinstance(item, tuple):
        return f"tuple({[_constant(inner) for inner in item]})"
    return repr(item)
