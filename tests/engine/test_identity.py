"""Parameters and objects as text, the same in every process."""

import json
import os
import subprocess
import sys

import numpy as np
from sklearn import config_context
from sklearn.base import BaseEstimator

from dask_ma.engine.recovery._identity import as_text

FUNCTION = """
import json
from dask_ma.engine.recovery._identity import as_text
names = {"one", "two", "three", "four"}
def function(x):
    return x in {"one", "two", "three", "four"}
print(json.dumps([as_text(function), as_text(names), as_text([frozenset(names)])]))
"""


def test_a_function_that_is_not_complete_yet():
    def function():
        return later()

    assert as_text(function).startswith(f"{__name__}.test_a_function")

    def later():
        return 1

    assert function() == 1


def test_sets_are_the_same_in_every_process():
    texts = set()
    for seed in ("1", "3"):  # which order the four words differently
        found = subprocess.run(
            [sys.executable, "-c", FUNCTION],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=120,
            text=True,
        ).stdout
        texts.add(tuple(json.loads(found)))
    assert len(texts) == 1


class Choice(BaseEstimator):
    """A parameter with parameters of its own."""

    def __init__(self, values=None, name=""):
        self.values = values
        self.name = name


def test_an_object_is_its_parameters():
    """All of them, whatever the configuration shows of them."""
    text = as_text(Choice(np.arange(2000)))
    with config_context(print_changed_only=False):
        assert as_text(Choice(np.arange(2000))) == text
    values = np.arange(2000)
    values[1000] = 0
    others = [Choice(values), Choice(np.arange(2000), name="b"), Choice()]
    assert len({text, *map(as_text, others)}) == 4
    assert as_text(Choice(Choice("a" * 1000))) != as_text(Choice(Choice("a" * 1001)))


def test_a_dict_has_no_order():
    assert as_text({"a": 1, "b": [2]}) == as_text({"b": [2], "a": 1})
    assert as_text({"a": 1, "b": [2]}) != as_text({"a": [2], "b": 1})
