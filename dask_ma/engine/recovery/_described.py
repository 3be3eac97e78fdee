"""A user's object as text: the same in every process, another one if it is not equal.

What counts is what a pickle of the object would hold. The pickle itself will not do:
the order of sets, and which parts are the same object, would show in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from dask_ma.engine.recovery._code import cells_of, code_of, name_of
from dask_ma.engine.recovery._text import as_text

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype)
_DEEPEST = 50  # levels of objects within objects
_MOST_PARTS = 1_000_000
_LONGEST = 1000  # characters; of a longer text there is a checksum


class IndescribableError(TypeError):
    """An object, or part of it, cannot be told from others."""


def describe_value(value: Any) -> str:
    """An attribute of a user's object as text.

    Raises
    ------
    IndescribableError
        If it cannot be told from others; the message says why.
    """
    text = _Describing().text(value)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:100]}..., {hashlib.sha256(text.encode()).hexdigest()}"


class _Describing:
    """The way to a description."""

    def __init__(self) -> None:
        self._above: list[Any] = []  # what the part at hand is within
        self._n_parts = 0

    def text(self, value: Any) -> str:
        """Description of one part."""
        self._n_parts += 1
        if self._n_parts > _MOST_PARTS:
            raise IndescribableError(f"it has more than {_MOST_PARTS} parts")
        if isinstance(value, _PLAIN):
            kind = type(value)
            own = "" if kind in _PLAIN else f"{kind.__module__}.{kind.__qualname__} "
            return f"{own}{as_text(value)}"
        if type(value) is np.ndarray and not value.dtype.hasobject:
            return as_text(value)
        if isinstance(value, type):
            return name_of(value)
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        for level, other in enumerate(reversed(self._above)):
            if other is value:
                return f"the one {level} levels above"
        if len(self._above) >= _DEEPEST:
            raise IndescribableError(f"it is nested more than {_DEEPEST} levels deep")
        self._above.append(value)
        try:
            return self._within(value)
        finally:
            self._above.pop()

    def _within(self, value: Any) -> str:
        """Description of what has parts itself."""
        kind = type(value)
        if kind in (list, tuple):
            return f"{kind.__name__}({self._all(value)})"
        if kind in (set, frozenset):
            return f"{kind.__name__}({', '.join(sorted(map(self.text, value)))})"
        if kind is dict:
            return f"dict({self._pairs(value.items())})"
        if kind is np.ndarray:
            return f"array of shape {value.shape}, {self._all(value.ravel().tolist())}"
        if isinstance(value, FunctionType):
            outside = (cells_of(value), value.__defaults__, value.__kwdefaults__)
            return f"{name_of(value)} {code_of(value)} {self._all(outside)}"
        if isinstance(value, BuiltinFunctionType) and value.__self__ is None:
            return f"{value.__module__}.{value.__qualname__}"
        return self._reduced(value)

    def _reduced(self, value: Any) -> str:
        """Description of an object, as it says itself how it is pickled."""
        name = f"{type(value).__module__}.{type(value).__qualname__}"
        try:
            parts = value.__reduce_ex__(4)
        except IndescribableError:
            raise
        except Exception as error:  # whatever users' objects may raise
            raise IndescribableError(
                f"an object of {name} in it cannot be pickled: {error}"
            ) from error
        if isinstance(parts, str):
            return f"{name} {parts}"
        make, args, state, items, pairs = (list(parts) + [None] * 3)[:5]
        more = [self._all([make, args, state])]
        more += [] if items is None else [self._all(items)]
        more += [] if pairs is None else [self._pairs(pairs)]
        return f"{name}({'; '.join(more)})"

    def _all(self, values: Iterable[Any]) -> str:
        return ", ".join(map(self.text, values))

    def _pairs(self, pairs: Iterable[tuple[Any, Any]]) -> str:
        return ", ".join(f"{self.text(k)}: {self.text(v)}" for k, v in pairs)
