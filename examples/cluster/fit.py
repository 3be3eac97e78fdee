"""A fit that is saved after every round and goes on where it was saved.

What the examples of this folder have in common. By itself it uses a scheduler that is
there already, as in slurm_allocation.sh::

    python fit.py --scheduler-file scheduler.json --workers 3 \
        --data /shared/rows --checkpoint /shared/run-7

The same line, once more, goes on after the last round that was saved.
"""

from __future__ import annotations

import argparse

import dask
import joblib
from dask.distributed import Client
from rows import open_rows

from dask_ma import MASGDClassifier


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What every example of this folder wants to know."""
    parser.add_argument("--data", required=True, help="folder that rows.py has written")
    parser.add_argument("--checkpoint", required=True, help="folder all nodes can see")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--model", default="model.joblib", help="where the model goes")


def main(client: Client, options: argparse.Namespace) -> None:
    """Fit on all workers of the client and write the model for scikit-learn."""
    X, y = open_rows(options.data)
    classifier = MASGDClassifier(
        loss="log_loss",
        alpha=1e-4,
        max_iter=options.rounds,
        tol=None,
        random_state=0,
        verbose=2,  # a line per round
    )
    saved = dask.config.set({"dask-ma.checkpoint.path": options.checkpoint})
    with client.as_current(), saved:
        classifier.fit(X, y)
    joblib.dump(classifier.to_sklearn(), options.model)
    print(f"Accuracy {classifier.score(X, y):.4f} on the rows of the fit", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fit on the workers of a scheduler.")
    parser.add_argument("--scheduler-file", required=True)
    parser.add_argument("--workers", type=int, required=True, help="how many there are")
    add_arguments(parser)
    arguments = parser.parse_args()
    with Client(scheduler_file=arguments.scheduler_file) as current:
        current.wait_for_workers(arguments.workers, timeout=600)
        main(current, arguments)
