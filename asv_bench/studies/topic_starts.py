"""Held-out perplexity of SchMPLDA as rotations go by, by the way in which a fit begins.

    python topic_starts.py --data FOLDER
    python topic_starts.py --components 1000 --held-out 800

FOLDER (or ``$DASK_MA_DATA``) holds the corpus. Fits are on one rank of this process,
two for each start: one shows the perplexity of held-out documents by completion after
those rotations that are asked for, the other, which nothing interrupts, the seconds of
the processor of all rotations. Needs scikit-learn 1.9 or newer.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # for what peers reads

from peers.gibbs import CORPORA, load, perplexity  # noqa: E402

from dask_ma import SchMPLDA  # noqa: E402

STARTS = "random", "progressive"


class Curve:
    """Callback of scikit-learn's kind: judges the topics after some rotations."""

    def __init__(
        self, rotations: list[int], judge: Callable[[np.ndarray], float]
    ) -> None:
        self.points: dict[int, float] = {}
        self._rotations, self._judge, self._n_done = rotations, judge, 0

    def setup(self, estimator: Any, context: Any) -> None:
        """Nothing is to be done."""

    def teardown(self, estimator: Any, context: Any) -> None:
        """Nothing is to be done."""

    def on_fit_task_begin(self, estimator: Any, context: Any, **others: Any) -> None:
        """Nothing is to be done."""

    def on_fit_task_end(
        self, estimator: Any, context: Any, *, fitted_estimator: Any = None
    ) -> bool:
        """Judge the topics, if it is time to."""
        if fitted_estimator is not None:  # the end of a rotation, and not of the fit
            # Tokens get their first topics in rotation 0.
            if self._n_done in self._rotations:
                self.points[self._n_done] = self._judge(fitted_estimator.components_)
            self._n_done += 1
        return False


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--corpus", choices=CORPORA, default="newsgroups20")
    add("--documents", type=int, help="the first ones only")
    add("--held-out", type=int, default=1500, help="documents of the perplexity")
    add("--components", type=int, default=100)
    add("--alpha", type=float, default=0.1)
    add("--beta", type=float, default=0.01)
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
        curve = Curve(args.rotations, lambda topics: perplexity(topics, test, args))
        model.set_callbacks(curve).fit(rows)
        for rotation, value in curve.points.items():
            print(f"  {rotation} rotations: perplexity {value:.0f}", flush=True)


if __name__ == "__main__":
    main()
