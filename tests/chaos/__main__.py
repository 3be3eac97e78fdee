"""Strike fits from the command line."""

from __future__ import annotations

import argparse
import logging
import random
import sys
import warnings
from functools import partial

from chaos.cluster import fork_quickly
from chaos.runner import Runner, choices, choose


def main() -> int:
    """Run, and return the exit status: 0 if all fits were as they should be."""
    parser = argparse.ArgumentParser(
        prog="chaos",
        description="Strike random fits by random faults. A fit is right if it ends "
        "with the objective of an undisturbed one, or with the error that the user "
        "guide promises, leaves nothing behind, and the next fit works.",
    )
    parser.add_argument("--fits", type=int, default=200, help="fits to be struck")
    parser.add_argument("--seed", type=int, help="seed of the first fit")
    for name, values in choices().items():
        text = f"only those that hold one of these words: {', '.join(values)}"
        parser.add_argument(f"--{name}", metavar="WORD,...", help=text)
    args = parser.parse_args()
    seed = random.randrange(10**6) if args.seed is None else args.seed
    drawn_from = {
        name: choose(values, getattr(args, name)) for name, values in choices().items()
    }
    # What Dask says of workers that go is what this is about.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    logging.getLogger("dask_ma.engine").setLevel(logging.INFO)
    logging.getLogger("dask_ma.engine").propagate = False
    warnings.simplefilter("ignore")
    say = partial(print, flush=True)
    say(f"{args.fits} fits from seed {seed}")
    fork_quickly()
    runner = Runner(seed, **drawn_from, say=say)
    try:
        return 1 if runner.run(args.fits) else 0
    finally:
        runner.close()


if __name__ == "__main__":
    sys.exit(main())
