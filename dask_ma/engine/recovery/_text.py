"""Parameters of a fit as text, which tells one from another in every process.

What the user has written is told apart by what it does: a function, a class or an
object whose code or values have been edited is another one, under the same name. What
cannot be told from others is like no other.
"""

from __future__ import annotations

import enum
import hashlib
import io
import logging
import os
import re
import uuid
import warnings
from collections.abc import Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
from dask.base import is_dask_collection, tokenize

from dask_ma import _config
from dask_ma._settings import has_parameters
from dask_ma.engine.recovery._code import (
    PLAIN,
    Written,
    attributes_of,
    is_of_user,
    name_of,
)

__all__ = ["as_plain", "as_text"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_LONGEST = 200  # characters; of a longer text there is a checksum
_MOST_PARTS = 1_000_000
# Of NumPy's own functions, as far as it says so.
_GLOBAL_STATE = getattr(np.random.normal, "__self__", None)


def as_text(value: Any) -> str:
    """A parameter as text, the same in every process.

    The `repr` of a large array leaves most of it out, that of a function or of many an
    object holds an address, and that of an estimator shows what is not a default.
    """
    texts = _Texts()
    try:
        text = texts.of(value)
    except Exception:  # whatever users' objects may raise, and parts without an end
        text = texts.like_no_other(value)
    if texts.unknown is not None and _config.get("checkpoint.path") is not None:
        warnings.warn(
            f"a {texts.unknown} among the parameters cannot be told from others, so "
            "that no later fit goes on from the checkpoints of this one",
            UserWarning,
            stacklevel=2,
        )
    return text


def as_plain(value: Any) -> Any:
    """An option as JSON knows it."""
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, bool | int | float | None) else as_text(value)


def _plain_attributes(value: Any) -> dict[str, Any]:
    """Attributes that are numbers or text, and not for the object's own use."""
    return {
        name: part
        for name, part in attributes_of(value).items()
        if type(part) in PLAIN and not name.startswith("_")
    }


def _short(text: str) -> str:
    """The text, or how it begins with a checksum."""
    if len(text) <= _LONGEST:
        return text
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
    return f"{text[: _LONGEST // 2]}..., {digest}"


class _Texts:
    """Texts of a value and of all that it holds, each worked out once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}  # with what must not go meanwhile
        self._above: list[Any] = []
        self._n_objects = 0  # of those above
        self._written = Written(self.of)
        self.unknown: str | None = None  # type of what cannot be told from others

    def like_no_other(self, value: Any) -> str:
        """Text of what cannot be told from others."""
        self.unknown = name_of(type(value))
        return f"{self.unknown} {uuid.uuid4().hex}"

    def of(self, value: Any) -> str:
        """Text of one part."""
        if type(value) in PLAIN:
            return repr(value)
        if id(value) in self._known:
            return self._known[id(value)][1]
        for level, other in enumerate(reversed(self._above)):
            if other is value:
                return f"the one {level} levels above"
        if len(self._known) > _MOST_PARTS:
            raise ValueError("too many parts")
        self._above.append(value)
        try:
            text = _short(self._within(value))
        finally:
            self._above.pop()
        self._known[id(value)] = value, text
        return text

    def _within(self, value: Any) -> str:
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, list | tuple | set | frozenset | dict):
            return self._container(value)
        if isinstance(value, FunctionType | type):
            return f"{name_of(value)}{self._written.checksum(value)}"
        if isinstance(value, partial):
            return f"partial{self.of([value.func, value.args, value.keywords])}"
        if isinstance(value, MethodType):
            return f"method{self.of([value.__func__, value.__self__])}"
        if isinstance(wrapped := getattr(value, "__wrapped__", None), FunctionType):
            return f"{name_of(type(value))} of {self.of(wrapped)}"  # as a cache
        if isinstance(value, enum.Enum):
            return f"{name_of(type(value))}.{value.name} {value.value!r}"
        if isinstance(value, os.PathLike):
            return f"{name_of(type(value))} {os.fspath(value)!r}"
        if isinstance(value, logging.Logger):
            return f"Logger {value.name!r}"
        if value is _GLOBAL_STATE:  # None is plain
            return "the RandomState of numpy.random"
        if isinstance(value, np.random.RandomState):
            return f"RandomState{self.of(value.get_state(legacy=False))}"
        if isinstance(value, np.random.Generator):
            return f"Generator{self.of(value.bit_generator.state)}"
        if has_parameters(value):
            # Its `repr` leaves out what is long, and what the configuration says.
            chosen = value.get_params(deep=False).items()
            shown = ", ".join(f"{name}={self.of(item)}" for name, item in chosen)
            return f"{self.of(type(value))}({shown})"
        return self._other(value)

    def _array(self, value: np.ndarray) -> str:
        if isinstance(value, np.ma.MaskedArray):
            return f"masked {self.of([value.data, np.ma.getmaskarray(value)])}"
        if type(value) is not np.ndarray:
            return f"{self.of(np.asarray(value))} {self._object(value)}"
        if value.dtype.hasobject:
            return f"array of shape {value.shape} of {self.of(value.ravel().tolist())}"
        digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return f"array of shape {value.shape}, {value.dtype}, {digest}"

    def _container(self, value: Any) -> str:
        """A list or the like, and what a class of its own adds."""
        if isinstance(value, dict):
            pairs = (f"{self.of(key)}: {self.of(item)}" for key, item in value.items())
            text = f"dict({', '.join(sorted(pairs))})"
        elif isinstance(value, set | frozenset):
            text = f"{type(value).__name__}({', '.join(sorted(map(self.of, value)))})"
        elif all(type(part) in PLAIN for part in value):
            text = f"{type(value).__name__}({', '.join(map(repr, value))})"
        else:
            text = f"{type(value).__name__}({', '.join(map(self.of, value))})"
        is_own = type(value) in (list, tuple, set, frozenset, dict)
        return text if is_own else f"{text} {self._object(value)}"

    def _other(self, value: Any) -> str:
        """What is no value of Python's or NumPy's own."""
        kind = type(value)
        if isinstance(value, Iterator) and not is_of_user(kind):
            # What it would yield nobody knows without taking it away. Within objects
            # iterators come and go, and what tells these apart is the rest.
            is_file = isinstance(value, io.IOBase) or self._n_objects
            return name_of(kind) if is_file else self.like_no_other(value)
        if is_dask_collection(value):
            return f"{name_of(kind)} {tokenize(value)}"
        if hasattr(value, "detach") and hasattr(value, "cpu"):
            return f"{name_of(kind)} {value.dtype} {self._tensor(value)}"
        if hasattr(value, "__array__") and not isinstance(value, np.generic):
            names = [getattr(value, part, ()) for part in ("columns", "index")]
            found = self.of([np.asarray(each) for each in (value, *names)])
            return f"{name_of(kind)} of {found}"
        shown = ""
        if hasattr(value, "state_dict") or not is_of_user(kind):
            shown = _ADDRESS.sub("", repr(value))  # what Python does not know of it
        return f"{shown} {self._object(value)}".strip()

    def _tensor(self, value: Any) -> str:
        """Values of a tensor, wherever it is."""
        dense = value.detach().cpu()
        if str(dense.layout) != "torch.strided":
            dense = dense.to_dense()
        try:
            return self.of(dense.numpy())
        except TypeError:  # NumPy has no bfloat16
            return self.of(dense.float().numpy())

    def _object(self, value: Any) -> str:
        """What an object holds; of one of the user's class also what it does."""
        is_own, holds = is_of_user(type(value)), attributes_of(value)
        if hasattr(value, "state_dict"):
            # A module of PyTorch, whose attributes hold all that it is made of. A fit
            # sets the mode by itself.
            holds = {**_plain_attributes(value), "state_dict": value.state_dict()}
            holds.pop("training", None)
        elif not is_own:
            # Others may hold whatever belongs to this process alone.
            kinds = (*PLAIN, list, dict, tuple, np.ndarray, np.random.RandomState)
            holds = {
                name: part
                for name, part in holds.items()
                if type(part) in kinds and not name.startswith("_")
            }
        self._n_objects += 1
        try:
            of_class = self.of(type(value)) if is_own else ""
            return f"{of_class}{self.of(holds) if holds else ''}"
        finally:
            self._n_objects -= 1
