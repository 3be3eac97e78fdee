"""Counts of how often a parameter of an estimator is written in the package.

A parameter is written where its name declares it, or hands its value on under the same
name into a record. Functions and objects that work with a value use it, which does not
count.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

import dask_ma

ESTIMATORS = [
    found
    for name in dask_ma.__all__
    if inspect.isclass(found := getattr(dask_ma, name))
]
_SECTION = re.compile(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", re.S | re.M)


def places(estimator: type) -> dict[str, list[str]]:
    """Where each parameter of a class is written."""
    found: dict[str, list[str]] = {name: [] for name in _parameters(estimator)}
    for cls in _own(estimator):
        for name, place in _declared(cls):
            if name in found:
                found[name].append(f"{place} of {cls.__name__}")
    for cls in _records(estimator):
        for name in inspect.get_annotations(cls):
            if name in found:
                found[name].append(f"field of {cls.__name__}")
    modules = {cls.__module__ for cls in (*_own(estimator), *_records(estimator))}
    package = estimator.__module__.rpartition(".")[0]
    modules |= {name for name in sys.modules if name.startswith(f"{package}.")}
    for module in sorted(modules):
        for name, place in _handed_on(module):
            if name in found:
                found[name].append(place)
    return found


def _parameters(estimator: type) -> list[str]:
    return list(inspect.signature(estimator).parameters)


def _own(cls: type) -> list[type]:
    """Classes of the package that a class consists of."""
    return [base for base in cls.__mro__ if base.__module__.startswith("dask_ma.")]


@cache
def _declared(cls: type) -> list[tuple[str, str]]:
    """What a class says of parameters, by signature, docstring and its body."""
    return list(_written_in(cls))


def _written_in(cls: type) -> Iterator[tuple[str, str]]:
    """As above, one by one."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    section = _SECTION.search(ast.get_docstring(tree) or "")
    for line in section[1].splitlines() if section else ():
        if line and not line[0].isspace():
            for name in line.partition(" : ")[0].split(","):
                yield name.strip(), "docstring"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            yield from _constructed(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            yield getattr(target, "id", ""), "attribute"
            if getattr(target, "id", "") == "_parameter_constraints":
                for name in _ranges(cls, node.value):
                    yield name, "range"


def _constructed(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Signature and assignments of a constructor, and what it passes to another."""
    for argument in (*function.args.args, *function.args.kwonlyargs):
        yield argument.arg, "signature"
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, "assignment"
        if isinstance(node, ast.keyword) and getattr(node.value, "id", "") == node.arg:
            yield str(node.arg), "argument"


def _ranges(cls: type, value: ast.expr | None) -> Iterator[str]:
    """Names in a dictionary of ranges, also in one of the module that it contains."""
    if not isinstance(value, ast.Dict):
        return
    for key, inner in zip(value.keys, value.values, strict=True):
        if isinstance(key, ast.Constant):
            yield str(key.value)
        elif isinstance(inner, ast.Name):  # those of classes are theirs
            yield from getattr(sys.modules[cls.__module__], inner.id)


def _is_record(kind: Any) -> bool:
    """Whether a class of the package only holds values."""
    if not inspect.isclass(kind) or not kind.__module__.startswith("dask_ma."):
        return False
    # What kernels are given is used there.
    is_used = kind.__module__.startswith("dask_ma.kernels.")
    return not is_used and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))


@cache
def _records(estimator: type) -> list[type]:
    """What ranks are sent as the parameters of a fit, with the records in it."""
    seen: dict[type, None] = {}
    wanted = []
    for cls in _own(estimator):
        for name in ("_make_params", "_params"):
            if name in vars(cls):
                wanted += _named(vars(cls)[name].__annotations__.get("return"), cls)
    while wanted:
        kind = wanted.pop()
        for cls in _own(kind):
            if cls not in seen:
                seen[cls] = None
                for annotation in inspect.get_annotations(cls).values():
                    wanted += _named(annotation, cls)
    return list(seen)


def _named(annotation: Any, cls: type) -> list[type]:
    """Records in an annotation."""
    scope = vars(sys.modules[cls.__module__])
    found = [scope.get(word) for word in re.findall(r"\w+", str(annotation))]
    return [kind for kind in found if _is_record(kind)]


@cache
def _handed_on(module: str) -> list[tuple[str, str]]:
    """Values that the functions of a module put into records under their names."""
    loaded = sys.modules[module]
    found = []
    for node in ast.walk(ast.parse(inspect.getsource(loaded))):
        name = getattr(getattr(node, "func", None), "id", "")
        if isinstance(node, ast.Call) and _is_record(getattr(loaded, name, None)):
            for keyword in node.keywords:
                if getattr(keyword.value, "attr", "") == keyword.arg:
                    place = f"argument of {name} in {module}"
                    found.append((str(keyword.arg), place))
    return found
