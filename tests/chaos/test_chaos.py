"""A handful of struck fits; ``make chaos`` strikes more of them."""

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


def run_chaos(*options, **variables):
    """Run it as ``make chaos`` does, on the sources that are tested here."""
    paths = [str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-m", "chaos", *options],
        cwd=TESTS,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_struck_fits_are_right():
    faults = ["--kinds", "numpy,lazy", "--faults", "kill,join elastic"]
    done = run_chaos("--fits", "2", "--seed", "0", *CHOSEN, *faults)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 struck fits, 0 of them not as they should be" in done.stdout


def test_a_fit_without_some_of_its_rows_is_wrong():
    faults = ["--kinds", "numpy", "--faults", "kill"]
    without = {"DASK_DASK_MA__ON_WORKER_LOSS": "continue"}
    done = run_chaos("--fits", "1", "--seed", "0", *CHOSEN, *faults, **without)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "rows were lost (1 warnings)" in done.stdout
    assert "make chaos N=1 SEED=0 CHAOS_ARGS=" in done.stdout
