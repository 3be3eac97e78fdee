"""Parameters and objects as text, the same in every process."""

import json
import os
import subprocess
import sys

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
    for seed in ("1", "2", "3"):
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
