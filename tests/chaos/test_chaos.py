"""A handful of struck fits; ``make chaos`` strikes more of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked"),
]

TESTS = Path(__file__).parents[1]
CHOSEN = ["--cases", "MASGDClassifier refine,ButterflySGDClassifier periodic"]
FAULTS = ["--kinds", "numpy,lazy", "--faults", "kill,join elastic"]
KILLED = ["--kinds", "numpy", "--faults", "kill"]
RUNS = {
    "struck": (["--fits", "2", "--seed", "0", *CHOSEN, *FAULTS], "restart"),
    "fewer rows": (["--fits", "1", "--seed", "0", *CHOSEN, *KILLED], "continue"),
}
# As ``make chaos`` does, one after the other in a process that has loaded all modules.
PROGRAM = """
import contextlib, io, json, runpy, sys
import dask, dask_ma  # whose defaults are to stay

done = {}
for name, (options, policy) in json.loads(sys.argv[1]).items():
    sys.argv[1:], printed = options, io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        dask.config.set({"dask-ma.on-worker-loss": policy}),
    ):
        try:
            runpy.run_module("chaos", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            done[name] = end.code, printed.getvalue()
print(json.dumps(done))
"""


@pytest.fixture(scope="module")
def done():
    """Exit status and output of each run, on the sources that are tested here."""
    paths = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(RUNS)],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_struck_fits_are_right(done):
    status, printed = done["struck"]
    assert status == 0, printed
    assert "2 struck fits, 0 of them not as they should be" in printed


def test_a_fit_without_some_of_its_rows_is_wrong(done):
    status, printed = done["fewer rows"]
    assert status == 1, printed
    assert "rows were lost (1 warnings)" in printed
    assert "make chaos N=1 SEED=0 CHAOS_ARGS=" in printed
