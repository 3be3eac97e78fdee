"""A fit on a SLURM cluster that talks TLS and lets nobody else in.

The options are those of slurm_refilling.py, and a folder for the keys that all nodes
can read and nobody else::

    python slurm_tls.py --keys /shared/private --queue debug --interface ib0 --jobs 4 \
        --data /shared/rows --checkpoint /shared/run-7
"""

from __future__ import annotations

import argparse
from pathlib import Path

import fit
from dask.distributed import Client, Security
from slurm_refilling import add_arguments, make_cluster


def show_refusal(address: str) -> None:
    """Print what comes of a client that has no certificate."""
    try:
        Client(address.replace("tls://", "tcp://"), timeout="5s").close()
    except OSError as error:
        print(f"A plain client is refused: {type(error).__name__}", flush=True)
    else:
        raise RuntimeError(f"{address} let a client in that has no certificate")


def main(options: argparse.Namespace) -> None:
    """Fit with certificates that are made for this cluster alone."""
    Path(options.keys).mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        make_cluster(
            options,
            protocol="tls://",
            security=Security.temporary(),
            shared_temp_directory=options.keys,
        ) as cluster,
        Client(cluster) as client,  # the cluster hands it the certificate
    ):
        cluster.scale(jobs=options.jobs)
        client.wait_for_workers(options.jobs, timeout=3600)
        show_refusal(cluster.scheduler_address)
        fit.main(client, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fit on a cluster with TLS.")
    parser.add_argument("--keys", required=True, help="folder that all nodes can read")
    add_arguments(parser)
    fit.add_arguments(parser)
    main(parser.parse_args())
