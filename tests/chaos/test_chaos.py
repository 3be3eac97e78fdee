"""A handful of struck fits; ``make chaos`` strikes more of them."""

import contextlib
import io
import logging
import multiprocessing.forkserver
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import dask
import pytest

from chaos.cases import CASES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked"),
]

TESTS = Path(__file__).parents[1]
CHOSEN = "MASGDClassifier refine", "ButterflySGDClassifier periodic"
CASE = ["--cases", ",".join(CHOSEN), "--seed", "0"]
FAULTS = ["--kinds", "numpy,lazy", "--faults", "kill,join elastic"]
KILLED = ["--kinds", "numpy", "--faults", "kill"]
RUNS = {
    "struck": (["--fits", "2", *CASE, *FAULTS], "restart"),
    "fewer rows": (["--fits", "1", *CASE, *KILLED], "continue"),
}


def smaller(case):
    """The same case with some of its rows and rounds."""
    rows = tuple(part[:2400] for part in case.rows())
    return replace(case, rows=lambda: rows, params={**case.params, "max_iter": 16})


def unhurried_agent():
    """The agent of model averaging, in whose fits there is time for workers to join."""

    def agent(context, arguments, params):
        import time

        from dask_ma.ma.sgd import _agent

        keep = context.save_state

        def keep_later(*args, **kwargs):
            time.sleep(0.05)
            keep(*args, **kwargs)

        context.save_state = keep_later
        return _agent.train(context, arguments, params)

    return agent


@pytest.fixture(scope="module")
def patch():
    """What is changed for these fits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TESTS)  # where processes find the modules of chaos
        patch.setenv("PYTHONWARNINGS", "")  # else chaos would set it
        for name in CHOSEN:
            patch.setitem(CASES, name, smaller(CASES[name]))
        patch.setattr("dask_ma.ma.sgd._linear.train", unhurried_agent())
        yield patch


@pytest.fixture(scope="module")
def done(patch):
    """Exit status and output of each run, as ``make chaos`` makes them."""
    # It is the server of all tests, and not to load what chaos would have it load.
    multiprocessing.forkserver.ensure_running()
    loggers = [logging.getLogger(name) for name in ("distributed", "dask_ma.engine")]
    before = [(logger.level, logger.propagate) for logger in loggers]
    try:
        return {name: run(patch, *how) for name, how in RUNS.items()}
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.setLevel(level)
            logger.propagate = propagate


def run(patch, options, policy):
    """Call the program with some options, where losses are met by a policy."""
    patch.setattr(sys, "argv", ["chaos", *options])
    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        dask.config.set({"dask-ma.on-worker-loss": policy}),
        pytest.raises(SystemExit) as end,
    ):
        runpy.run_module("chaos", run_name="__main__")
    return end.value.code, printed.getvalue()


def test_struck_fits_are_right(done):
    status, printed = done["struck"]
    assert status == 0, printed
    assert "2 struck fits, 0 of them not as they should be" in printed


def test_a_fit_without_some_of_its_rows_is_wrong(done):
    status, printed = done["fewer rows"]
    assert status == 1, printed
    assert "rows were lost (1 warnings)" in printed
    assert "make chaos N=1 SEED=0 CHAOS_ARGS=" in printed
