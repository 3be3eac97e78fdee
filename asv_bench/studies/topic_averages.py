"""How many updates from one average of the ranks' topics to the next?

MALDA on several ranks, which are threads of one process. Each fit has the same passes
and the updates of the default; only the documents of a round differ, and so how often
the topics are averaged. Test documents are evaluated by completion, training documents
by the bound.

Run ``python topic_averages.py --data FOLDER --ranks 1 2 8 --between 1 4 8 16``; the
folder (or ``$DASK_MA_DATA``) holds ``newsgroups20`` or ``imdb`` with ``X_train.npz``,
``X_test.npz`` and ``vocab.txt.gz``. English stop words and documents without words are
left out.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from time import perf_counter
from typing import Any

from topic_batches import load

from dask_ma import MALDA
from dask_ma.ma.lda._sizes import round_size


def fit(X: Any, n_ranks: int, between: int, args: argparse.Namespace) -> MALDA:
    """A fit whose ranks make so many updates from one average to the next."""
    model = MALDA(
        args.components,
        max_iter=args.passes,
        n_ranks=n_ranks,
        batch_size=between * round_size(X.shape[0]),
        random_state=args.seed,
    )
    return model.fit(X)


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--corpus", choices=["newsgroups20", "imdb"], default="newsgroups20")
    add("--documents", type=int, help="the first ones of each part only")
    add("--components", type=int, default=50)
    add("--passes", type=int, default=5)
    add("--ranks", type=int, nargs="+", default=[1, 2, 8])
    add("--between", type=int, nargs="+", default=[1, 4, 8, 16])
    add("--tested", type=int, default=2000, help="test documents")
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.data is None:
        parser.error("--data or DASK_MA_DATA must name the folder with the corpus")
    return args


def main() -> None:
    """Fit, and print a line for each."""
    args = parse()
    X, X_test = load(args.data / args.corpus, args.documents)
    X_test = X_test[: args.tested]
    print(f"{'ranks':>6}{'between':>9}{'updates':>9}{'held out':>10}{'training':>10}")
    for n_ranks in args.ranks:
        # One rank has nothing to average.
        for between in args.between if n_ranks > 1 else [1]:
            start = perf_counter()
            model = fit(X, n_ranks, between, args)
            seconds = perf_counter() - start
            held_out = model.perplexity(X_test, method="completion")
            print(
                f"{n_ranks:>6}{between:>9}{model.n_batch_iter_ - 1:>9}"
                f"{held_out:>10.1f}{model.bound_:>10.1f}{seconds:>9.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
