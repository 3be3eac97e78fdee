"""Hosts that a cut link takes away in the middle of a fit.

Each host is a network namespace of this machine; a bridge in one more joins them.
"""

import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import urlsplit
from uuid import uuid4

import dask
import numpy as np
import pytest
from distributed import Client
from distributed.utils import get_mp_context

from dask_ma import MASGDClassifier

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="hosts are made as on Linux"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="there is no command ip"),
]

N_WORKERS = 3
N_ROUNDS = 8
PARAMS = {
    "loss": "log_loss",
    "alpha": 0.01,
    "max_iter": N_ROUNDS,
    "tol": None,
    "random_state": 0,
    "local_epochs": 1.0,
}
IMPATIENT = {
    "dask-ma.launch.worker-timeout": "3 s",
    "dask-ma.launch.heartbeat-interval": "250 ms",
    "dask-ma.launch.abort-timeout": "1 s",
    "dask-ma.recovery.wait": "500 ms",
}


class Hosts:
    """Hosts on one switch; the scheduler and the client are for number 0."""

    def __init__(self):
        # So that two runs of the tests do not get in each other's way.
        self._prefix = f"dask-ma-{uuid4().hex[:8]}"
        self._switch = f"{self._prefix}-switch"
        self._names = []
        self._processes = []

    def open(self, n_hosts):
        self._names.append(self._switch)
        ip("netns", "add", self._switch)
        ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self._switch, "link", "set", "bridge", "up")
        for number in range(n_hosts):
            self._add_host(number)

    def _add_host(self, number):
        name, end = f"{self._prefix}-{number}", f"host{number}"
        self._names.append(name)
        ip("netns", "add", name)
        peer = ["peer", "name", "eth0", "netns", name]
        ip("-n", self._switch, "link", "add", end, "type", "veth", *peer)
        ip("-n", self._switch, "link", "set", end, "master", "bridge", "up")
        address = f"{self.address(number)}/24"
        ip("-n", name, "address", "add", address, "dev", "eth0")
        for interface in ("eth0", "lo"):
            ip("-n", name, "link", "set", interface, "up")

    def close(self):
        for process in self._processes:
            process.kill()
            process.join(30)
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def address(self, number):
        return f"10.99.0.{number + 1}"

    def set_link(self, number, state):
        """Cut a host off with "down"; "up" joins it again."""
        ip("-n", self._switch, "link", "set", f"host{number}", state)

    def entry(self, number):
        """Code that takes the thread that runs it, and its children, to a host."""
        return f"""
import ctypes
with open("/run/netns/{self._prefix}-{number}") as namespace:
    assert ctypes.CDLL(None).setns(namespace.fileno(), 0) == 0
"""

    def start(self, number, command, *options):
        """Run a command of Dask on a host."""
        options = [*options, "--host", self.address(number), "--no-dashboard"]
        code = f"from distributed.cli.{command} import main; main({options})"
        arguments = self.entry(number) + code, {}
        process = get_mp_context().Process(target=exec, args=arguments)
        process.start()
        self._processes.append(process)
        return process

    @contextmanager
    def thread(self, number):
        """A thread on a host."""
        with ThreadPoolExecutor(1) as pool:
            pool.submit(exec, self.entry(number), {}).result()
            yield pool


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def hosts():
    """A host for the scheduler and the client, and one for each worker."""
    hosts = Hosts()
    try:
        try:
            hosts.open(N_WORKERS + 1)
        except subprocess.CalledProcessError as error:
            reason = error.stderr.strip()
            pytest.skip(f"network namespaces cannot be made here: {reason}")
        yield hosts
    finally:
        hosts.close()


@pytest.fixture
def workers(hosts, tmp_path):
    """Process of the worker on each host but the first."""
    scheduler = f"tcp://{hosts.address(0)}:8786"
    hosts.start(0, "dask_scheduler", "--port", "8786")
    return {
        number: hosts.start(
            number,
            "dask_worker",
            scheduler,
            *("--no-nanny", "--nthreads", "1"),
            *("--local-directory", str(tmp_path)),
        )
        for number in range(1, N_WORKERS + 1)
    }


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 10))
    return X, (X @ np.arange(10) + rng.normal(size=2000) > 0).astype(int)


@pytest.fixture(scope="module")
def undisturbed(rows):
    return MASGDClassifier(n_ranks=N_WORKERS, **PARAMS).fit(*rows)


@pytest.fixture
def halfway(monkeypatch, tmp_path):
    """Files: the ranks make the first in the fifth round, and wait for the second."""
    reached, go = tmp_path / "reached", tmp_path / "go"

    def agent(context, arguments, params):
        from dask_ma.ma.sgd import _agent

        keep = context.save_state

        def waiting_keep(n_rounds, *args, **kwargs):
            keep(n_rounds, *args, **kwargs)
            if n_rounds == 5:
                reached.touch()
                while not go.exists():
                    time.sleep(0.01)

        context.save_state = waiting_keep
        return _agent.train(context, arguments, params)

    monkeypatch.setattr("dask_ma.ma.sgd._linear.train", agent)
    return reached, go


@contextmanager
def fitting(hosts, rows, settings, halfway):
    """A fit that has come halfway, as the future of what `fit` returns."""
    reached, go = halfway
    with hosts.thread(0) as thread:
        future = thread.submit(fit, hosts.address(0), rows, settings)
        while not reached.exists() and not future.done():
            time.sleep(0.01)
        try:
            yield future
        finally:
            go.touch()  # the thread ends only after the fit


def fit(scheduler, rows, settings):
    """Return the model, and the hosts whose workers are there at the end."""
    with (
        dask.config.set(settings),
        Client(f"tcp://{scheduler}:8786", set_as_default=False) as client,
        client.as_current(),
    ):
        client.wait_for_workers(N_WORKERS, timeout=60)
        model = MASGDClassifier(**PARAMS).fit(*rows)
        return model, {urlsplit(address).hostname for address in client.nthreads()}


@pytest.mark.parametrize("lost", [1, 3])
def test_a_link_that_is_cut(hosts, workers, rows, undisturbed, halfway, lost):
    """The others take over the rows of the host behind it."""
    _, go = halfway
    with fitting(hosts, rows, IMPATIENT, halfway) as future:
        hosts.set_link(lost, "down")
        start = time.monotonic()
        go.touch()
        model, left = future.result(60)
    assert time.monotonic() - start < 25
    assert workers[lost].is_alive()
    assert left == {hosts.address(number) for number in workers if number != lost}
    rounds = [record["round"] for record in model.history_]
    assert rounds == list(range(1, N_ROUNDS + 1))
    assert model.history_[-1]["n_samples"] == 2000
    wanted = undisturbed.history_[-1]["objective"]
    assert model.history_[-1]["objective"] == pytest.approx(wanted, rel=0.01)


def test_a_link_that_comes_back(hosts, workers, rows, undisturbed, halfway):
    """The fit waits, and nothing has changed."""
    _, go = halfway
    with fitting(hosts, rows, {}, halfway) as future:
        hosts.set_link(2, "down")
        go.touch()
        time.sleep(1)
        assert not future.done()
        hosts.set_link(2, "up")
        model, left = future.result(60)
    assert left == {hosts.address(number) for number in workers}
    np.testing.assert_array_equal(model.coef_, undisturbed.coef_)
