"""The programs in examples/cluster, on a SLURM of the tests' own.

The environment variable DASK_MA_SLURM_TESTBED names a folder with two scripts, which
root runs: ``slurm_up.sh DIR N`` starts a SLURM of N nodes on this host, with its
``slurm.conf`` in DIR and a partition "debug", and ``slurm_down.sh DIR`` ends it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path

import joblib
import numpy as np
import psutil
import pytest

from dask_ma import MASGDClassifier

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
N_NODES = 4
N_ROUNDS = 8
_BOUND = 120.0  # seconds that anything may take on a busy host
_SLOW = 1000  # bytes a second, so that rounds take long enough to be met
_OPTIONS = ["--queue=debug", "--interface=lo", "--memory=1GB", "--lost-after=1s"]


class Slurm:
    """A SLURM and a folder to work in, with the examples, rows, and what comes out."""

    def __init__(self, scripts: Path, folder: Path) -> None:
        self._scripts = scripts
        self._daemons = folder / "slurm"
        self._daemons.mkdir()
        self.work = folder / "work"
        shutil.copytree(ROOT / "examples" / "cluster", self.work)
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self._environment = {
            **os.environ,
            "SLURM_CONF": str(self._daemons / "slurm.conf"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(filter(None, paths)),
            "INTERFACE": "lo",
        }
        self._clients: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Slurm:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for client in self._clients:
            client.kill()
            client.wait(_BOUND)
        try:
            self.call("scancel", "--partition=debug")
            self.wait_for_empty_queue()
        finally:
            self.call("bash", self._scripts / "slurm_down.sh", self._daemons)
            left = psutil.wait_procs(self._processes(), timeout=30)[1]
            for process in left:
                process.kill()
        assert not left, f"jobs have left behind {left}"

    def bring_up(self) -> None:
        """Start the daemons and write rows for the examples."""
        self.call("bash", self._scripts / "slurm_up.sh", self._daemons, N_NODES)
        self.call(sys.executable, "rows.py", "rows")

    def call(self, *command: object, pace: int = 0) -> str:
        """Run a command; return what it prints."""
        result = subprocess.run(
            list(map(str, command)),
            cwd=self.work,
            env=self._paced(pace),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_BOUND,
            check=False,
        )
        assert result.returncode == 0, result.stdout
        return result.stdout.strip()

    def start(self, name: str, *arguments: object, pace: int = 0) -> Path:
        """Start a program as on a login node; return the file that it writes to."""
        output = self.work / f"{name}.out"
        with output.open("wb") as file:
            self._clients.append(
                subprocess.Popen(
                    [sys.executable, "-u", name, *map(str, arguments)],
                    cwd=self.work,
                    env=self._paced(pace),
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            )
        return output

    def finish(self, output: Path) -> str:
        """Wait until the program that was started last has ended well."""
        code = self._clients[-1].wait(_BOUND)
        assert code == 0, output.read_text()
        return output.read_text()

    def submit(self, *arguments: object, pace: int = 0) -> tuple[str, Path]:
        """Submit a batch job; return its number and the file that it writes to."""
        job = self.call("sbatch", "--parsable", *arguments, pace=pace)
        return job, self.work / f"slurm-{job}.out"

    def jobs(self) -> list[str]:
        """Numbers of the jobs that wait or run, oldest first."""
        return self.call("squeue", "--noheader", "--format=%i", "--sort=i").split()

    def wait_until(self, condition, what: str, output: Path | None = None) -> None:
        """Look until something holds, but not for ever."""
        deadline = time.monotonic() + _BOUND
        while not condition():
            said = output.read_text() if output and output.exists() else ""
            assert time.monotonic() < deadline, f"not in time: {what}\n{said}"
            time.sleep(0.2)

    def wait_for_empty_queue(self, output: Path | None = None) -> None:
        """Wait until no job runs any more."""
        self.wait_until(lambda: not self.jobs(), "all jobs have ended", output)

    def wait_for_round(self, number: int, output: Path) -> None:
        """Wait until a fit has told of a round."""

        def is_told() -> bool:
            return output.exists() and number in rounds(output.read_text())

        self.wait_until(is_told, f"round {number}", output)

    def _paced(self, pace: int) -> dict[str, str]:
        """Environment in which ranks send so many bytes a second; 0 sets no limit."""
        return {**self._environment, "DASK_DASK_MA__COMM__MAX_BANDWIDTH": str(pace)}

    def _processes(self) -> list[psutil.Process]:
        """What has been started with this SLURM in its environment."""
        found = []
        for process in psutil.process_iter():
            try:
                conf = process.environ().get("SLURM_CONF")
            except psutil.Error:
                continue
            if conf == self._environment["SLURM_CONF"]:
                found.append(process)
        return found


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A SLURM for the tests of this module."""
    scripts = os.environ.get("DASK_MA_SLURM_TESTBED")
    if not scripts:
        pytest.skip(
            "the environment variable DASK_MA_SLURM_TESTBED names no folder with "
            "slurm_up.sh and slurm_down.sh"
        )
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can start the daemons of SLURM")
    if importlib.util.find_spec("dask_jobqueue") is None:
        pytest.skip("dask-jobqueue is not installed")
    with Slurm(Path(scripts).resolve(), tmp_path_factory.mktemp("slurm")) as slurm:
        slurm.bring_up()
        yield slurm


def rounds(text: str) -> list[int]:
    """The rounds that a fit has told of, in this order."""
    return [int(number) for number in re.findall(r"^-- Round (\d+):", text, re.M)]


def undisturbed(work: Path, n_ranks: int) -> np.ndarray:
    """Coefficients of the fit of the examples, without a cluster."""
    X, y = runpy.run_path(str(work / "rows.py"))["open_rows"](work / "rows")
    classifier = MASGDClassifier(
        loss="log_loss",
        alpha=1e-4,
        max_iter=N_ROUNDS,
        tol=None,
        random_state=0,
        n_ranks=n_ranks,
    )
    return classifier.fit(X, y).coef_


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_job_that_is_lost_is_replaced_and_the_fit_is_the_same(slurm):
    output = slurm.start(
        "slurm_refilling.py",
        *_OPTIONS,
        *("--jobs=2", "--data=rows", "--checkpoint=refilling"),
        *(f"--rounds={N_ROUNDS}", "--model=refilling.joblib"),
        pace=_SLOW,
    )
    slurm.wait_for_round(2, output)
    first, second = slurm.jobs()
    slurm.call("scancel", first)
    slurm.wait_until(
        lambda: len(slurm.jobs()) == 2 and first not in slurm.jobs(),
        "another job in place of the one that was lost",
        output,
    )
    said = slurm.finish(output)
    assert rounds(said) == list(range(1, N_ROUNDS + 1))
    model = joblib.load(slurm.work / "refilling.joblib")
    np.testing.assert_allclose(model.coef_, undisturbed(slurm.work, 2), rtol=1e-7)
    slurm.wait_for_empty_queue()


def test_a_client_in_a_batch_job_goes_on_with_another_number_of_ranks(slurm):
    """Of two that are submitted at once, as a chain."""
    arguments = ["slurm_batch_client.sh", *_OPTIONS, "--data=rows", "--checkpoint=job"]
    model = slurm.work / "job.joblib"
    arguments += [f"--rounds={5 * N_ROUNDS}", f"--model={model}"]
    job, output = slurm.submit(*arguments, "--jobs=2", pace=_SLOW)
    slurm.wait_for_round(2, output)
    _, following = slurm.submit(*arguments, "--jobs=1")
    # What #SBATCH --signal=B:TERM@... does before the time is up.
    slurm.call("scancel", "--batch", "--signal=TERM", job)
    slurm.wait_until(lambda: job not in slurm.jobs(), "the job ends", output)
    assert not model.exists()
    last = max(
        int(path.stem.split("-")[1]) for path in slurm.work.glob("job/**/round-*.json")
    )
    slurm.wait_for_empty_queue(following)
    said = following.read_text()
    assert rounds(said) == list(range(last + 1, 5 * N_ROUNDS + 1))
    assert "written by 2 ranks and goes on with 1" in said
    assert model.exists()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scheduler_workers_and_client_in_one_allocation(slurm):
    job, output = slurm.submit(
        "--nodes=2",
        "slurm_allocation.sh",
        *("--data=rows", "--checkpoint=allocation"),
        *(f"--rounds={N_ROUNDS}", "--model=allocation.joblib"),
    )
    slurm.wait_for_empty_queue(output)
    assert rounds(output.read_text()) == list(range(1, N_ROUNDS + 1))
    model = joblib.load(slurm.work / "allocation.joblib")
    np.testing.assert_allclose(model.coef_, undisturbed(slurm.work, 2), rtol=1e-7)
    workers = (slurm.work / f"workers-{job}.log").read_text()
    assert workers.count("Registered to:") == 2
    assert "killed" not in workers
    assert "End scheduler" in (slurm.work / f"scheduler-{job}.log").read_text()
    assert not (slurm.work / f"scheduler-{job}.json").exists()


def test_a_plain_client_is_refused_by_a_cluster_with_tls(slurm):
    keys = slurm.work / "private"
    output = slurm.start(
        "slurm_tls.py",
        *(f"--keys={keys}", *_OPTIONS, "--jobs=1", "--data=rows"),
        *("--checkpoint=tls", "--rounds=3", "--model=tls.joblib"),
    )
    said = slurm.finish(output)
    assert "A plain client is refused" in said
    assert rounds(said) == [1, 2, 3]
    assert (slurm.work / "tls.joblib").exists()
    assert keys.stat().st_mode & 0o077 == 0
    assert list(keys.iterdir()) == []
    slurm.wait_for_empty_queue()
