"""What does each schedule of SchMPLasso need to come near the optimum?

Fits with one rank on gene expressions, which have many more columns than rows, and on
word counts: the data touched, in passes over all of it, and the processor time until
the duality gap is small, for each schedule. The gap is that of `history_`, over the
objective without coefficients. The schedules are on their own: what they leave is not
solved for on one rank, unless ``--polish`` asks for it.

Run ``python schmp_schedules.py --data FOLDER``, which takes some minutes. The folder
(or ``$DASK_MA_DATA``) holds ``gene_expression`` and ``imdb``.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path
from time import process_time

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from dask_ma import SchMPLasso
from dask_ma.schmp import schedules

sys.path.append(str(Path(__file__).parent.parent))

from peers._sparse_solvers import NAMES, SparseProblem, load_problem  # noqa: E402

SCHEDULES = {
    "working_set": None,
    "dynamic": schedules.Dynamic,
    "priority": schedules.Priority,
    "random": schedules.Random,
    "cyclic": schedules.Cyclic,
}
GAPS = (1e-1, 1e-2, 1e-3, 1e-4)
_DIVERGED = 1e3  # times the objective without coefficients


def study(
    problem: SparseProblem, schedule: str, divisor: float, args: argparse.Namespace
) -> None:
    """Fit with a schedule, and print the line of the table."""
    model = SchMPLasso(
        problem.alpha_max / divisor,
        tol=GAPS[-1],
        max_iter=args.rounds,
        random_state=0,
    )
    kind = SCHEDULES[schedule]
    if kind is not None:
        model.set_params(schedule=kind(args.candidates), polish=args.polish)
    if schedule == "dynamic" and args.threshold is not None:
        model.set_params(schedule__dependency_threshold=args.threshold)
    begin = process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", RuntimeWarning)  # of a fit that diverges
            model.fit(problem.features, problem.targets)
    except ValueError as error:
        if "finite" not in str(error):
            raise
        print(f"{schedule:<13}diverged", flush=True)
        return
    seconds = process_time() - begin
    null = float(np.var(problem.targets)) / 2
    n_stored = getattr(problem.features, "nnz", problem.features.size)
    passes = np.cumsum([r["n_touched"] for r in model.history_]) / n_stored
    gaps = np.array([r["dual_gap"] for r in model.history_])
    cells = ""
    for gap in GAPS:
        reached = np.flatnonzero(gaps <= gap * null)
        cells += f"{passes[reached[0]] if len(reached) else np.inf:>9.1f}"
    last = model.history_[-1]["dual_gap"] / null
    if not last < _DIVERGED:
        print(f"{schedule:<13}diverged", flush=True)
        return
    print(
        f"{schedule:<13}{cells}{last:>10.1e}{model.n_iter_:>8}{seconds:>9.2f}",
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
    add("--problems", nargs="+", choices=NAMES, default=NAMES[:-1])
    add("--schedules", nargs="+", choices=SCHEDULES, default=SCHEDULES)
    add("--divisors", type=float, nargs="+", default=[10], help="of alpha_max")
    add("--candidates", type=int, default=16)
    add("--threshold", type=float, help="of dependence; that of the estimator if none")
    add(
        "--polish", action="store_true", help="solve for coefficients after slow rounds"
    )
    add("--rounds", type=int, default=100, help="at most")
    args = parser.parse_args()
    folder = None if args.data is None else Path(args.data)
    with threadpool_limits(1):
        for name in args.problems:
            problem = load_problem(name, folder)
            for divisor in args.divisors:
                print(f"\n{name}, alpha_max / {divisor:g}; passes until the gap is")
                heads = "".join(f"{gap:>9g}" for gap in GAPS)
                print(f"{'':<13}{heads}{'last gap':>10}{'rounds':>8}{'cpu [s]':>9}")
                for schedule in args.schedules:
                    study(problem, schedule, divisor, args)


if __name__ == "__main__":
    main()
