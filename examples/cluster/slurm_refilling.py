"""A fit on a SLURM cluster that asks for a new job in place of each that ends.

On a login node, with a queue and a network interface of that cluster::

    python slurm_refilling.py --queue debug --interface ib0 --jobs 4 \
        --data /shared/rows --checkpoint /shared/run-7

slurm_batch_client.sh runs it as a batch job.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import dask
import fit
from dask.distributed import Client
from dask_jobqueue import SLURMCluster

HERE = Path(__file__).resolve().parent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is asked of SLURM."""
    parser.add_argument("--queue", required=True, help="partition of the jobs")
    parser.add_argument("--interface", required=True, help="network, such as ib0")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--lost-after", default="10s", help="then a job is replaced")
    parser.add_argument("--memory", default="2GB", help="of each job")
    parser.add_argument("--walltime", default="01:00:00", help="of each job")
    parser.add_argument(
        "--local-directory", default="/tmp", help="on a node's own disk"
    )


def make_cluster(options: argparse.Namespace, **more: object) -> SLURMCluster:
    """Jobs of one process with one thread, which is one rank."""
    return SLURMCluster(
        queue=options.queue,
        interface=options.interface,
        cores=1,
        processes=1,
        memory=options.memory,
        walltime=options.walltime,
        local_directory=options.local_directory,
        log_directory="logs",
        # Workers have to find the module that reads rows.
        job_script_prologue=[f"export PYTHONPATH={HERE}:$PYTHONPATH"],
        scheduler_options={"dashboard_address": ":0"},
        **more,
    )


def main(options: argparse.Namespace) -> None:
    """Keep so many jobs, and fit."""
    settings = {
        # How long a worker may be gone before its job is replaced.
        "distributed.deploy.lost-worker-timeout": options.lost_after,
        # How long the fit waits for another job, or for the first one if all are lost.
        "dask-ma.recovery.wait": "10 minutes",
        "dask-ma.recovery.wait-for-any": "1 hour",
        # With how many it begins, and how long it waits for them.
        "dask-ma.launch.min-workers": options.jobs,
        "dask-ma.launch.min-workers-timeout": "1 hour",
    }
    with (
        dask.config.set(settings),
        make_cluster(options) as cluster,
        Client(cluster) as client,
    ):
        # Unlike scale(), this asks for another job when one has ended.
        cluster.adapt(minimum_jobs=options.jobs, maximum_jobs=options.jobs)
        fit.main(client, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fit on jobs that are replaced.")
    add_arguments(parser)
    fit.add_arguments(parser)
    main(parser.parse_args())
