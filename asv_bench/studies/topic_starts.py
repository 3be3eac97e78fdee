"""Held-out perplexity of SchMPLDA as rotations go by, by the way in which a fit begins.

    python topic_starts.py --data FOLDER
    python topic_starts.py --components 1000 --held-out 800

FOLDER (or ``$DASK_MA_DATA``) holds the corpus. Fits are on one rank of this process,
two for each start: one shows the perplexity of held-out documents by completion after
those rotations that are asked for, the other, which nothing interrupts, the seconds of
the processor of all rotations. Needs scikit-learn 1.9 or newer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from after_tasks import AfterTasks

sys.path.insert(0, str(Path(__file__).parents[1]))  # for what peers reads

from peers.gibbs import corpus_parser, load, perplexity  # noqa: E402

from dask_ma import SchMPLDA  # noqa: E402

STARTS = "random", "progressive"


def curve(
    model: SchMPLDA,
    rows: Any,
    rotations: list[int],
    judge: Callable[[np.ndarray], float],
) -> dict[int, float]:
    """What is said of the topics after some rotations of a fit."""
    points: dict[int, float] = {}
    done = count()

    def note(fitted: Any) -> None:
        if fitted is None:
            return  # the end of the fit, and not of a rotation
        # Tokens get their first topics in rotation 0.
        rotation = next(done)
        if rotation in rotations:
            points[rotation] = judge(fitted.components_)

    model.set_callbacks(AfterTasks(note)).fit(rows)
    return points


def main() -> None:
    """Run the study."""
    parser = corpus_parser(__doc__)
    add = parser.add_argument
    add("--sampler", choices=("exact", "metropolis", "auto"), default="auto")
    add("--starts", nargs="+", choices=STARTS, default=STARTS)
    add("--rotations", type=int, nargs="+", default=[8, 12, 16, 20, 24, 36, 60])
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    X, test = load(args)
    rows = X.astype(np.float32)
    for start in args.starts:
        model = SchMPLDA(
            args.components,
            doc_topic_prior=args.alpha,
            topic_word_prior=args.beta,
            sampler=args.sampler,
            init=start,
            max_iter=max(args.rotations),
            n_ranks=1,
            random_state=args.seed,
        )
        before = time.process_time()
        model.fit(rows)
        spent = time.process_time() - before
        print(f"{start}, {model.max_iter} rotations: {spent:.1f} s", flush=True)
        judge = partial(perplexity, X=test, options=args)
        for rotation, value in curve(model, rows, args.rotations, judge).items():
            print(f"  {rotation} rotations: perplexity {value:.0f}", flush=True)


if __name__ == "__main__":
    main()
