"""What does the loss of a worker cost a fit?

A fit is made again and again, and each time the process of one worker is killed at a
random moment of it, from the placing of the rows to the last round. Its nanny starts
the worker again. Printed are the moment, the time that the fit took more than an
undisturbed one, and its objective over that of the undisturbed one; and at the end what
was left on the cluster.

Run ``python lost_workers.py --help``; the defaults take a few minutes.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import threading
import time
import warnings
from typing import Any

import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

from dask_ma import ButterflySGDClassifier, MASGDClassifier
from dask_ma.exceptions import RowsLostWarning


def make_data(n_rows: int, n_blocks: int) -> tuple[Any, Any]:
    """Lazy rows: what is lost with a worker can be computed again."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 50))
    y = (X @ rng.normal(size=50) + rng.normal(size=n_rows) > 0).astype(int)
    size = n_rows // n_blocks
    return da.from_array(X, chunks=(size, 50)), da.from_array(y, chunks=size)


def make_estimator(name: str, n_rounds: int) -> Any:
    """An estimator that makes just so many rounds."""
    common = {"loss": "log_loss", "alpha": 1e-3, "tol": None, "random_state": 0}
    if name == "butterfly":
        return ButterflySGDClassifier(max_iter=n_rounds, batch_size=256, **common)
    return MASGDClassifier(max_iter=n_rounds, local_epochs=1.0, **common)


def timed_fit(estimator: Any, data: tuple[Any, Any]) -> tuple[float, float]:
    """Seconds that a fit takes, and its objective."""
    start = time.perf_counter()
    history = estimator.fit(*data).history_
    return time.perf_counter() - start, history[-1]["objective"]


def kill_one(client: Client, rng: np.random.Generator, delay: float) -> threading.Timer:
    """Have the process of a worker die after `delay` seconds."""
    pids = list(client.run(os.getpid).values())
    pid = int(rng.choice(pids))
    timer = threading.Timer(delay, os.kill, (pid, signal.SIGKILL))
    timer.start()
    return timer


def left_behind(client: Client) -> list[str]:
    """What fits have left on the cluster; should be nothing."""

    def on_worker() -> list[str]:
        from dask_ma.comm._plugin import registry
        from dask_ma.engine.recovery._memory import state_memory

        return [*map(str, registry.open_ranks()), *state_memory.fits()]

    def on_scheduler(dask_scheduler: Any) -> list[str]:
        return [str(k) for k in dask_scheduler.tasks if str(k).startswith("dask_ma")]

    time.sleep(1)
    states = [item for items in client.run(on_worker).values() for item in items]
    return states + list(client.run_on_scheduler(on_scheduler))


def main() -> None:
    """Print a line per fit, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--estimator", choices=["ma", "butterfly"], default="ma")
    parser.add_argument("--fits", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    data = make_data(args.rows, 16)
    warnings.simplefilter("error", RowsLostWarning)
    with (
        # LocalCluster would give a worker up that dies more than once.
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"}),
        LocalCluster(
            n_workers=4, threads_per_worker=1, dashboard_address=":0", silence_logs=50
        ) as cluster,
        Client(cluster) as client,
    ):
        estimator = make_estimator(args.estimator, args.rounds)
        timed_fit(estimator, data)  # the first one loads modules on the workers
        usual = [timed_fit(estimator, data) for _ in range(3)]
        seconds = statistics.median(s for s, _ in usual)
        wanted = usual[0][1]
        print(f"undisturbed: {seconds:.2f} s, objective {wanted:.6f}")
        costs: list[float] = []
        ratios: list[float] = []
        while len(costs) < args.fits:
            client.wait_for_workers(4, timeout=120)
            delay = float(rng.uniform(0, seconds))
            timer = kill_one(client, rng, delay)
            took, objective = timed_fit(estimator, data)
            if timer.is_alive():  # the fit was over before
                timer.cancel()
                continue
            costs.append(took - seconds)
            ratios.append(objective / wanted)
            print(
                f"{len(costs):3d}: killed after {delay:5.2f} s, "
                f"{took - seconds:+6.2f} s, objective {ratios[-1]:.6f} of the "
                "undisturbed",
                flush=True,
            )
        print(
            f"{len(costs)} of {args.fits} fits came to an end; time lost per kill: "
            f"median {statistics.median(costs):.2f} s, most {max(costs):.2f} s; "
            f"objective at most {max(ratios):.6f} of the undisturbed"
        )
        print(f"left behind: {left_behind(client) or 'nothing'}")


if __name__ == "__main__":
    main()
