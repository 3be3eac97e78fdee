"""Hosts on one machine, with links of a given rate, for a study on a cluster.

Each host is a network namespace of Linux; a bridge in one more joins them. A scheduler
and the study are on the first host, a Dask worker of one thread on each of the others.
What a host sends and what it gets are held to the rate by a token bucket each. Needs
root and the commands ``ip`` and ``tc``; nothing is left behind.

    python shaped_hosts.py --rate 100mbit mpca_lead.py --data FOLDER --link "100 Mbit/s"

Hosts share the cores of the machine, which flatters one worker beside many. ``--cores``
gives each worker the same share of a core, however many are at work, by a control group
(version 1 or 2). What Dask looks at so many times a second is looked at as much less
often. Half a core each and links of half the rate are hosts of a core each on which
time goes by half as fast:

    python shaped_hosts.py --cores 0.5 --rate 500mbit schmp_rounds.py --processes 1 4

All that follows the name of the study goes to the study, and ``--scheduler`` with the
address of the scheduler.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_BURST, _QUEUE = "128kb", "1mb"
_PATIENCE = 60  # seconds for processes to start or to end
_SCHEDULER = "distributed.cli.dask_scheduler"
_WORKER = "distributed.cli.dask_worker"
_GROUPS = Path("/sys/fs/cgroup")
_PERIOD = 10_000  # microseconds, within which a worker gets its share of a core
# What a worker of Dask does by the clock, in milliseconds.
_CLOCKS = {
    "ADMIN__TICK__INTERVAL": 20,
    "ADMIN__SYSTEM_MONITOR__INTERVAL": 500,
    "WORKER__PROFILE__INTERVAL": 10,
    "WORKER__MEMORY__MONITOR_INTERVAL": 100,
}


def ip(*arguments: str) -> None:
    """Run the command ``ip``; what it says of an error is the exception's."""
    subprocess.run(["ip", *arguments], check=True, timeout=_PATIENCE)


def shape(host: str, device: str, rate: str) -> None:
    """Hold what a device sends to a rate, as "100mbit"."""
    bucket = ["tbf", "rate", rate, "burst", _BURST, "limit", _QUEUE]
    command = ["tc", "-n", host, "qdisc", "add", "dev", device, "root", *bucket]
    subprocess.run(command, check=True, timeout=_PATIENCE)


def address(number: int) -> str:
    """Of a host."""
    return f"10.97.0.{number + 1}"


@contextmanager
def hosts(n_hosts: int, rate: str) -> Iterator[list[str]]:
    """Names of hosts that a switch joins; "none" for links without a limit."""
    prefix = f"dask-ma-{os.getpid()}"
    switch, names = f"{prefix}-switch", [f"{prefix}-{n}" for n in range(n_hosts)]
    with ExitStack() as stack:
        for name in (switch, *names):
            ip("netns", "add", name)
            stack.callback(ip, "netns", "delete", name)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(names):
            end = f"host{number}"
            peer = ["peer", "name", "eth0", "netns", name]
            ip("-n", switch, "link", "add", end, "type", "veth", *peer)
            ip("-n", switch, "link", "set", end, "master", "bridge", "up")
            own = f"{address(number)}/24"
            ip("-n", name, "address", "add", own, "dev", "eth0")
            for device in ("eth0", "lo"):
                ip("-n", name, "link", "set", device, "up")
            if rate != "none":
                shape(name, "eth0", rate)
                shape(switch, end, rate)
        yield names


@contextmanager
def share(name: str, cores: float | None) -> Iterator[Path | None]:
    """File of a control group, to which the number of a process is written."""
    if cores is None:
        yield None
        return
    older, quota = _GROUPS / "cpu", int(cores * _PERIOD)
    group = (older if older.is_dir() else _GROUPS) / name
    group.mkdir()
    try:
        if older.is_dir():
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {_PERIOD}")
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def slower(cores: float | None) -> dict[str, str]:
    """The environment of a worker whose time goes by more slowly."""
    times = {} if cores is None else _CLOCKS
    return {f"DASK_DISTRIBUTED__{k}": f"{v / cores:.0f}ms" for k, v in times.items()}


@contextmanager
def running(
    host: str, command: Sequence[str], log: Path, cores: float | None = None
) -> Iterator[None]:
    """A program of Python on a host, for as long as it is needed."""
    with share(host, cores) as group, log.open("w") as file:
        process = subprocess.Popen(
            ["ip", "netns", "exec", host, sys.executable, *command],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | slower(cores),
        )
        try:
            if group is not None:
                group.write_text(str(process.pid))
            yield
        finally:
            process.terminate()
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def cluster(names: Sequence[str], folder: Path, cores: float | None) -> Iterator[str]:
    """Address of a scheduler on the first host, with a worker on each other one."""
    scheduler = f"tcp://{address(0)}:8786"
    common = ["--no-dashboard"]
    with ExitStack() as stack:
        own = ["-m", _SCHEDULER, "--host", address(0), "--port", "8786", *common]
        stack.enter_context(running(names[0], own, folder / "scheduler.log"))
        for number, name in enumerate(names[1:], start=1):
            own = ["-m", _WORKER, scheduler, "--host", address(number), "--nthreads"]
            own += ["1", "--no-nanny", "--local-directory", str(folder), *common]
            log = folder / f"worker-{number}.log"
            stack.enter_context(running(name, own, log, cores))
        yield scheduler


def main() -> int:
    """Make hosts and a cluster, and run the study there."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--hosts", type=int, default=4, help="with a worker each")
    add("--rate", default="1gbit", help="of each link, as tc has it; none: no limit")
    add("--cores", type=float, help="share of a core, for each worker")
    add("study", help="a program that takes --scheduler")
    add("rest", nargs=argparse.REMAINDER, help="what else the study gets")
    args = parser.parse_args()
    # So that hosts go away with a study that is ended from outside, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with (
        TemporaryDirectory() as folder,
        hosts(args.hosts + 1, args.rate) as names,
        cluster(names, Path(folder), args.cores) as scheduler,
    ):
        command = [sys.executable, args.study, *args.rest, "--scheduler", scheduler]
        return subprocess.run(["ip", "netns", "exec", names[0], *command]).returncode


if __name__ == "__main__":
    sys.exit(main())
