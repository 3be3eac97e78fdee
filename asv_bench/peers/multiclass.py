"""Time to an objective: SFBLogisticRegression next to scikit-learn's solvers.

To be run in the folder asv_bench:

    python -m peers.multiclass --data FOLDER                all problems, one process
    python -m peers.multiclass --problems synthetic --peers none --pairs 5
                                                            two processes against one

All minimise the mean multinomial log loss plus ``alpha / 2`` times the squared norm of
the coefficients, with intercepts that are not penalised. A solver's time is that of the
fit with the fewest iterations, or passes, that end within the given excess of the best
objective known; each has one thread. The folder (or ``$DASK_MA_DATA``) holds `clinc150`
and `newsgroups20`. The synthetic problem is made, with labels that a model drawn first
has given.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse, special
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfTransformer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from benchmarks._data import persist
from dask_ma import SFBLogisticRegression
from dask_ma.datasets import load_clinc150, make_sparse_classification

from ._solvers import local_cluster

PROBLEMS = ("clinc150", "newsgroups20", "synthetic")
PEERS = ("saga", "newton-cg", "lbfgs")
OURS = ("sgd", "sdca")


class Multiclass(NamedTuple):
    """A problem of many classes.

    Attributes
    ----------
    name : str
    features : csr_matrix of shape (n_rows, n_columns)
    labels : ndarray of int of shape (n_rows,)
    alpha : float
    """

    name: str
    features: sparse.csr_matrix
    labels: np.ndarray
    alpha: float

    def objective_of(self, model: Any) -> float:
        """Objective of a fitted estimator, some rows at a time."""
        total = 0.0
        for start in range(0, len(self.labels), 4096):
            rows = slice(start, start + 4096)
            margins = self.features[rows] @ model.coef_.T + model.intercept_
            labels = self.labels[rows]
            own = margins[np.arange(len(labels)), labels]
            total += float((special.logsumexp(margins, axis=1) - own).sum())
        norm = float(np.vdot(model.coef_, model.coef_))
        return total / len(self.labels) + self.alpha / 2 * norm


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--problems", nargs="+", choices=PROBLEMS, default=PROBLEMS[:2])
    add("--peers", nargs="+", choices=[*PEERS, "none"], default=PEERS)
    add("--ours", nargs="+", choices=OURS, default=OURS)
    add("--alpha", type=float, default=1e-4)
    add("--excess", type=float, default=0.01, help="over the best objective known")
    add("--repeats", type=int, default=3, help="of each timed fit")
    add("--pairs", type=int, default=0, help="fits by one process and by two")
    add("--shape", type=int, nargs=4, default=[200_000, 50_000, 1000, 30])
    add("--batch-size", type=int, default=64, help="of one process; two halve it")
    add("--best", type=float, help="best objective of a single problem, if known")
    add("--output", type=Path, default=Path(__file__).with_name("results"))
    return parser.parse_args()


def load_problem(name: str, options: argparse.Namespace) -> Multiclass:
    """Rows and labels of a problem."""
    if name == "synthetic":
        n_rows, n_columns, n_classes, n_nonzero = options.shape
        X, y, _ = make_sparse_classification(
            n_rows,
            n_columns,
            n_nonzero=n_nonzero,
            n_classes=n_classes,
            random_state=0,
        )
        return Multiclass(name, X, y, options.alpha)
    if name == "clinc150":
        texts, labels = load_clinc150()
        X = TfidfVectorizer(ngram_range=(1, 2), min_df=2).fit_transform(texts)
    elif options.data is None:
        raise SystemExit(f"{name} needs --data, or DASK_MA_DATA")
    else:
        folder = Path(options.data) / name
        counts = sparse.load_npz(folder / "X_train.npz").astype(np.float64)
        X = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
        labels = np.load(folder / "y_train.npy")
    codes = np.unique(labels, return_inverse=True)[1]
    # The rows come sorted by class.
    order = np.random.default_rng(0).permutation(len(codes))
    return Multiclass(name, X.tocsr()[order], codes[order], options.alpha)


def fit_peer(problem: Multiclass, solver: str, n_iter: int) -> tuple[float, Any]:
    """Seconds of a fit by scikit-learn, and its model."""
    model = LogisticRegression(
        C=1 / (problem.alpha * len(problem.labels)),
        solver=solver,
        max_iter=n_iter,
        tol=1e-12,
        random_state=0,
    )
    return _timed(model, problem.features, problem.labels)


def fit_ours(
    problem: Multiclass, solver: str, n_iter: int, data: Any = None, **settings: Any
) -> tuple[float, Any]:
    """Seconds of a fit by SFBLogisticRegression, and its model."""
    model = SFBLogisticRegression(
        alpha=problem.alpha,
        solver=solver,
        max_iter=n_iter,
        tol=None,
        random_state=0,
        **settings,
    )
    return _timed(model, *(data or (problem.features, problem.labels)))


def _timed(model: Any, X: Any, y: Any) -> tuple[float, Any]:
    """Fit a model and time it."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    return time.perf_counter() - start, model


def fewest(fit: Any, problem: Multiclass, target: float, most: int = 200) -> int | None:
    """Fewest iterations of a solver that reach an objective."""
    for n_iter in range(1, most + 1):
        if problem.objective_of(fit(n_iter)[1]) <= target:
            return n_iter
    return None


def best_known(problem: Multiclass) -> float:
    """Objective of a fit by scikit-learn that goes on for long."""
    model = LogisticRegression(
        C=1 / (problem.alpha * len(problem.labels)),
        solver="newton-cg",
        tol=1e-9,
        max_iter=1000,
    )
    model.fit(problem.features, problem.labels)
    return problem.objective_of(model)


def compare(problem: Multiclass, options: argparse.Namespace) -> dict[str, Any]:
    """Times of all solvers on a problem, printed as they come."""
    best = options.best or best_known(problem)
    target = (1 + options.excess) * best
    row: dict[str, Any] = {"problem": problem.name, "best": best}
    print(f"{problem.name}: best objective {best:.6f}", flush=True)
    solvers = dict.fromkeys(options.ours, fit_ours)
    solvers |= {name: fit_peer for name in options.peers if name != "none"}
    for name, function in solvers.items():

        def fit(n_iter: int, name: str = name, function: Any = function) -> Any:
            return function(problem, name, n_iter)

        n_iter = fewest(fit, problem, target)
        if n_iter is None:
            print(f"  {name:<10} does not reach it", flush=True)
            continue
        seconds = [fit(n_iter)[0] for _ in range(options.repeats)]
        row[name] = {"n_iter": n_iter, "seconds": statistics.median(seconds)}
        print(f"  {name:<10}{n_iter:>4} {row[name]['seconds']:>9.3f} s", flush=True)
    return row


def compare_processes(
    problem: Multiclass, solver: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Fit by one and by two worker processes in turn, the data lying with them."""
    with local_cluster(1) as one, local_cluster(2) as two:
        clusters = {1: one, 2: two}
        data = {
            n: persist(problem.features, problem.labels, client)
            for n, client in clusters.items()
        }
        passes: dict[int, int] = {}
        best = options.best
        for n, client in clusters.items():
            with client.as_current():
                _, model = fit_ours(problem, solver, 12, data[n], **sized(n, options))
            curve = [record["objective"] for record in model.history_]
            best = min(curve) if best is None else best
            reached = [
                i for i, v in enumerate(curve) if v <= (1 + options.excess) * best
            ]
            passes[n] = reached[0] + 1 if reached else len(curve)
            shown = ", ".join(f"{value:.5f}" for value in curve)
            print(f"  {n} process(es): {shown}", flush=True)
        pairs, histories = [], {}
        for _ in range(options.pairs):
            times = {}
            for n, client in clusters.items():
                settings = sized(n, options)
                with client.as_current():
                    times[n], model = fit_ours(
                        problem, solver, passes[n], data[n], **settings
                    )
                histories[n] = model.history_[-1]
            pairs.append((times[1], times[2]))
    median = statistics.median(second / first for first, second in pairs)
    print(f"{problem.name}, {solver}: two processes / one: {median:.2f}", flush=True)
    for n, last in histories.items():
        seconds = statistics.median(pair[n - 1] for pair in pairs)
        computing, waiting = last["seconds_computing"], last["seconds_waiting"]
        print(
            f"  {n}: {passes[n]} passes, {seconds:.2f} s; last pass: computing "
            f"{computing:.2f} s, waiting {waiting:.2f} s, "
            f"{last['bytes_sent'] / 1e6:.0f} MB",
            flush=True,
        )
    return {"problem": problem.name, "solver": solver, "pairs": pairs, "passes": passes}


def sized(n_processes: int, options: argparse.Namespace) -> dict[str, Any]:
    """The same union of batches for any number of processes."""
    return {"batch_size": max(1, options.batch_size // n_processes)}


def main() -> None:
    """Run what the command line asks for; print tables and write the figures."""
    options = parse_arguments()
    rows, processes = [], []
    with threadpool_limits(1):
        for name in options.problems:
            problem = load_problem(name, options)
            if "none" not in options.peers:
                rows.append(compare(problem, options))
            if options.pairs:
                for solver in options.ours:
                    processes.append(compare_processes(problem, solver, options))
    options.output.mkdir(parents=True, exist_ok=True)
    report = {"excess": options.excess, "rows": rows, "processes": processes}
    (options.output / "multiclass.json").write_text(json.dumps(report, indent=1))


# Worker processes import this file again.
if __name__ == "__main__":
    main()
