"""Benchmarks, peers and studies, read and not run: each asks for what there is.

They reach into private modules and take minutes, so that no run of theirs would notice
a function that was renamed or a parameter that went away.
"""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "asv_bench"
FILES = sorted(FOLDER.rglob("*.py"))


def names_of(tree):
    """What a module imports from the package, by the name that it has there."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "dask_ma"
        ):
            for alias in node.names:
                found[alias.asname or alias.name] = thing(node.module, alias.name)
    return found


def thing(module, name):
    """A name of a module, or a module of a package."""
    owner = importlib.import_module(module)
    if hasattr(owner, name):
        return getattr(owner, name)
    return importlib.import_module(f"{module}.{name}")


def called(node, names):
    """What a call calls, if it is of the package; None otherwise."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = called(node.value, names)
        if inspect.ismodule(owner) or inspect.isclass(owner):
            return getattr(owner, node.attr)
    return None


def check_call(call, function):
    """Raise TypeError if a function does not take what a call gives it."""
    args = [None for arg in call.args if not isinstance(arg, ast.Starred)]
    keywords = {keyword.arg: None for keyword in call.keywords}
    is_open = len(args) < len(call.args) or keywords.pop(None, 0) is None
    signature = inspect.signature(function)
    bind = signature.bind_partial if is_open else signature.bind
    bind(*args, **keywords)


def check_calls(source):
    """Raise if a module imports or calls what the package does not have."""
    tree = ast.parse(source)
    names = names_of(tree)
    n_calls = 0
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = called(node.func, names)
        if callable(function):
            try:
                check_call(node, function)
            except TypeError as error:
                raise TypeError(f"line {node.lineno}: {error}") from None
            n_calls += 1
    return n_calls


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_calls(path):
    source = path.read_text()
    if "dask_ma.mpca.torch" in source or "import torch" in source:
        pytest.importorskip("torch")
    check_calls(source)


def test_most_calls_are_seen():
    total = sum(check_calls(path.read_text()) for path in FILES if path.stem == "fits")
    assert total >= 10


@pytest.mark.parametrize(
    "source, error",
    [
        ("from dask_ma.comm import NoGroup", ImportError),
        ("from dask_ma.comm import LocalGroup\nLocalGroup.made(2)", AttributeError),
        ("from dask_ma.comm import LocalGroup\nLocalGroup.create(2, n=3)", TypeError),
        ("from dask_ma.comm import LocalGroup\nLocalGroup.create()", TypeError),
    ],
    ids=["import", "method", "keyword", "missing"],
)
def test_what_is_not_there(source, error):
    with pytest.raises(error):
        check_calls(source)
