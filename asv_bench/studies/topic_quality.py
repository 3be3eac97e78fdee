"""Held-out perplexity of SchMPLDA after the same rotations on one rank and on more.

    python topic_quality.py --data FOLDER
    python topic_quality.py --samplers metropolis --ranks 1 8 --rotations 10

FOLDER (or ``$DASK_MA_DATA``) holds the corpus. Ranks are threads of this process, which
draw what processes would. Each line is of fits that differ in their seeds: mean and
standard deviation of the perplexity of held-out documents by completion, and mean
likelihood of words and topics per token.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # for what peers reads

from peers.gibbs import corpus_parser, load  # noqa: E402

from dask_ma import SchMPLDA  # noqa: E402


def main() -> None:
    """Run the study."""
    parser = corpus_parser(__doc__)
    parser.set_defaults(corpus="ap", components=50)
    add = parser.add_argument
    add("--samplers", nargs="+", default=["exact", "metropolis"])
    add("--init", choices=("progressive", "random"), default="progressive")
    add("--rotations", type=int, default=40)
    add("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    add("--seeds", type=int, default=3)
    args = parser.parse_args()
    X, test = load(args)
    X, test = X.astype(np.float32), test[: args.held_out].astype(np.float32)
    for sampler in args.samplers:
        for n_ranks in args.ranks:
            found = []
            for seed in range(args.seeds):
                model = SchMPLDA(
                    args.components,
                    doc_topic_prior=args.alpha,
                    topic_word_prior=args.beta,
                    sampler=sampler,
                    init=args.init,
                    max_iter=args.rotations,
                    n_ranks=n_ranks,
                    random_state=seed,
                ).fit(X)
                found.append((model.perplexity(test), model.log_likelihood_))
            (value, likelihood), (spread, _) = np.mean(found, 0), np.std(found, 0)
            print(
                f"{sampler}, {n_ranks} ranks: perplexity {value:.0f} +- {spread:.0f}, "
                f"likelihood {likelihood:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
