"""Tokens a second of each rank of SchMPLDA, on one rank and on more.

Every rank has as many documents of a corpus, some of them also on another rank: a rank
has the same work, and the table of words and topics travels past more of them. Where
there are more ranks than processors, ranks share them, and what one would do alone is
worked out from the seconds of a rotation and its share of a processor. Links should
then be slower by the same factor, as if time went by more slowly for all.

Processes that run side by side take caches and memory away from each other, which is a
matter of the machine. So as many fits of one rank each follow, all at the same time,
each in a process of its own that a worker starts, with the documents of one rank: what
a rank loses against them is what it is to exchange blocks, and to wait.
On hosts with links of 1 Gbit/s, with two processors, of which something is left for the
scheduler and the client, and time that goes by a quarter as fast:

    python shaped_hosts.py --hosts 8 --cores 0.24 --rate 240mbit topic_throughput.py \
        --share 0.24 --ranks 1 2 4 8

``$DASK_MA_DATA``, or ``--data``, holds the corpora. Seconds of a rotation are medians,
from the third on; they include the copies of topics that ranks make for each other
against the loss of a worker, but for ``--no-copies``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# Worker processes import the modules by this path as well.
sys.path.append(str(Path(__file__).parent.parent))

import dask  # noqa: E402
import dask.array  # noqa: E402
import numpy as np  # noqa: E402
from dask.distributed import Client  # noqa: E402
from peers._solvers import local_cluster  # noqa: E402
from scipy import sparse  # noqa: E402

from dask_ma import SchMPLDA  # noqa: E402

_OF_A_FIT = ("data", "corpus", "documents", "components", "sampler", "rotations")


def rows_of(path: Path, first: int, n_documents: int) -> Any:
    """Some documents of a corpus, again from the first one behind the last."""
    X = sparse.csr_matrix(sparse.load_npz(path)).astype(np.float32)
    X.sort_indices()
    return X[np.arange(first, first + n_documents) % X.shape[0]]


def load(client: Client, n_ranks: int, args: argparse.Namespace) -> tuple[Any, int]:
    """A block of documents on each worker, and the number of tokens of all."""
    path = args.data / args.corpus / "X_train.npz"
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])[:n_ranks]
    blocks = [
        client.submit(
            rows_of, path, n * args.documents, args.documents, workers=[worker]
        )
        for n, worker in enumerate(workers)
    ]
    n_tokens = client.gather(client.map(lambda X: int(X.sum()), blocks))
    parts = [
        dask.array.from_delayed(block, (args.documents, args.words), np.float32)
        for block in blocks
    ]
    return dask.array.concatenate(parts), sum(n_tokens)


def fit(X: Any, n_ranks: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """The history of a fit whose documents are all there, from the second rotation."""
    model = SchMPLDA(
        args.components,
        doc_topic_prior=0.1,
        topic_word_prior=0.01,
        sampler=args.sampler,
        init="random",
        max_iter=args.rotations,
        n_ranks=n_ranks,
        random_state=0,
    ).fit(X)
    return list(model.history_[2:])


def seconds_of(history: list[dict[str, Any]]) -> float:
    """Seconds of a rotation, which the median has."""
    return float(np.median(np.diff([record["time"] for record in history])))


def fit_alone(first: int, args: argparse.Namespace) -> float:
    """Seconds of a rotation of a fit on one rank, of this process."""
    path = args.data / args.corpus / "X_train.npz"
    return seconds_of(fit(rows_of(path, first, args.documents), 1, args))


def side_by_side(client: Client, n_ranks: int, args: argparse.Namespace) -> float:
    """The same of as many processes at the same time, on average."""
    given = [f"--{name}={getattr(args, name)}" for name in _OF_A_FIT]
    command = [sys.executable, str(Path(__file__).resolve()), *given]
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])[:n_ranks]
    fits = [
        client.submit(
            subprocess.check_output,
            [*command, f"--alone={n * args.documents}"],
            text=True,
            workers=[worker],
            pure=False,
        )
        for n, worker in enumerate(workers)
    ]
    return float(np.mean([float(seconds) for seconds in client.gather(fits)]))


def measure(client: Client, n_ranks: int, args: argparse.Namespace) -> None:
    """Print what the ranks of a fit do in a second."""
    X, n_tokens = load(client, n_ranks, args)
    history = fit(X, n_ranks, args)
    seconds, alone = seconds_of(history), side_by_side(client, n_ranks, args)
    waiting = np.median([record["seconds_waiting"] for record in history])
    sent = np.median([record["bytes_sent"] for record in history]) / n_ranks
    share = args.share or min(1.0, os.cpu_count() / n_ranks)
    print(
        f"{n_ranks} ranks: {n_tokens / n_ranks / 1e6:.2f} M tokens each, "
        f"{seconds:.2f} s a rotation, {waiting:.2f} of them waiting, "
        f"{sent / 1e6:.1f} MB sent by each; "
        f"{alone:.2f} s on a rank that is alone, beside as many others: throughput "
        f"{alone / seconds:.2f} of theirs; "
        f"{n_tokens / n_ranks / seconds / share / 1e6:.2f} M tokens/s of a rank with "
        "a processor of its own",
        flush=True,
    )


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--corpus", choices=("imdb", "newsgroups20"), default="imdb")
    add("--documents", type=int, default=12_500, help="of each rank")
    add("--components", type=int, default=100)
    add("--sampler", choices=("exact", "metropolis"), default="exact")
    add("--rotations", type=int, default=8)
    add("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    add("--share", type=float, help="of a processor, that each rank has")
    add("--no-copies", action="store_true", help="of topics, for a lost worker")
    add("--scheduler", help="address, instead of processes of this machine")
    add("--alone", type=int, help="seconds of one fit from this document on, no more")
    args = parser.parse_args()
    if args.data is None:
        parser.error("--data or DASK_MA_DATA must name the folder with the corpora")
    args.words = sparse.load_npz(args.data / args.corpus / "X_train.npz").shape[1]
    if args.alone is not None:
        print(fit_alone(args.alone, args))
        return
    loss = "raise" if args.no_copies else "restart"
    for n_ranks in args.ranks:
        one = Client(args.scheduler) if args.scheduler else local_cluster(n_ranks)
        with dask.config.set({"dask-ma.on-worker-loss": loss}), one as client:
            client.run(dask.config.set, {"dask-ma.on-worker-loss": loss})
            measure(client, n_ranks, args)


# Worker processes import this file again.
if __name__ == "__main__":
    main()
