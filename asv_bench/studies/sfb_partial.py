"""What does partial broadcasting cost in passes over the data?

Multinomial logistic regression on the queries of CLINC150, or on newsgroups, over
ranks that are threads of one process. Each rank sends its factors to Q others; these
pass them on until all ranks have them (relayed), or they do not, and only what they
have learnt from them goes on. For each Q: the objective over the optimum after some
passes, and the iterations until it is below a bound. Nothing printed depends on the
speed of the machine (figure 9 of the paper).

Run ``python sfb_partial.py --help``; the defaults take some minutes. The queries come
with the package; newsgroups are read from ``newsgroups20`` in ``--data`` or
``$DASK_MA_DATA``.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfTransformer, TfidfVectorizer

from dask_ma import SFBLogisticRegression
from dask_ma.datasets import load_clinc150
from dask_ma.sfb import Exchange
from dask_ma.sfb.topology import Topology

SHOWN = (1, 2, 5, 10, 16)


def load(problem: str, folder: str | None) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Tf-idf rows in random order, and labels."""
    if problem == "clinc150":
        texts, y = load_clinc150("train")
        X = TfidfVectorizer(sublinear_tf=True, min_df=2).fit_transform(texts)
    else:
        path = Path(str(folder)) / problem
        counts = sparse.load_npz(path / "X_train.npz").astype(np.float64)
        X = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
        y = np.load(path / "y_train.npy")
    order = np.random.default_rng(0).permutation(len(y))
    return X[order], y[order]


def optimum(X: Any, y: np.ndarray, alpha: float) -> float:
    """The least objective, from below."""
    model = SFBLogisticRegression(alpha=alpha, solver="sdca", tol=1e-6, max_iter=500)
    model.fit(X, y)
    last = model.history_[-1]
    return float(last["objective"] - last["dual_gap"])


def excesses(X: Any, y: np.ndarray, best: float, args: Any, **how: Any) -> np.ndarray:
    """Objective after each pass, over the optimum, less 1."""
    model = SFBLogisticRegression(
        alpha=args.alpha,
        solver="sgd",
        batch_size=args.batch,
        learning_rate=args.learning_rate,
        eta0=args.eta0 or "auto",
        max_iter=args.passes,
        tol=None,
        communication=Exchange("factors", **how),
        n_ranks=args.ranks,
        random_state=args.seed,
    )
    history = model.fit(X, y).history_
    return np.array([record["objective"] for record in history]) / best - 1


def passes_to(curve: np.ndarray, bound: float) -> float:
    """Passes until the excess is that small, between two passes by its logarithm."""
    below = np.flatnonzero(curve <= bound)
    if not len(below):
        return np.inf
    last = int(below[0])
    if last == 0:
        return 1.0
    steps = np.log(curve[last - 1 : last + 1])
    return float(last + (steps[0] - np.log(bound)) / (steps[0] - steps[1]))


def report(curve: np.ndarray, n_steps: int, name: str, bounds: list[float]) -> None:
    """Print the line of a fit."""
    shown = [n for n in SHOWN if n <= len(curve)]
    cells = "".join(f"{curve[n - 1]:>10.1e}" for n in shown)
    for bound in bounds:
        cells += f"{passes_to(curve, bound) * n_steps:>14.0f}"
    print(f"{name:<18}{cells}", flush=True)


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--problem", default="clinc150", choices=["clinc150", "newsgroups20"])
    add("--data", default=os.environ.get("DASK_MA_DATA"))
    add("--rows", type=int, default=None, help="the first of them alone")
    add("--sorted", action="store_true", help="rows lie sorted by class")
    add("--alpha", type=float, default=1e-4)
    add("--ranks", type=int, default=12)
    add("--peers", type=int, nargs="+", default=[1, 2, 4, 11])
    add("--batch", type=int, default=64, help="rows of a rank")
    add("--learning-rate", default="constant", help="of the estimator")
    add("--eta0", type=float, default=80.0, help="0 for the one of the estimator")
    add("--passes", type=int, default=16)
    add("--bounds", type=float, nargs="+", default=[1e-2, 1e-3], help="above 1")
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.problem != "clinc150" and not args.data:
        parser.error("give --data, or set DASK_MA_DATA")
    X, y = load(args.problem, args.data)
    X, y = X[: args.rows], y[: args.rows]
    if args.sorted:
        order = np.argsort(y, kind="stable")
        X, y = X[order], y[order]
    best = optimum(X, y, args.alpha)
    n_steps = -(-(-(-len(y) // args.ranks)) // args.batch)
    print(
        f"{args.problem}, {X.shape[0]} x {X.shape[1]}, {len(set(y))} classes, "
        f"{args.ranks} ranks, {n_steps} iterations a pass; objective / {best:.6f} - 1"
    )
    heads = "".join(f"{f'pass {n}':>10}" for n in SHOWN if n <= args.passes)
    heads += "".join(f"{f'its to {1 + bound:g}':>14}" for bound in args.bounds)
    print(f"{'':<18}{heads}")
    for n_peers in args.peers:
        topology = Topology.optimal(args.ranks, n_peers)
        for relay in (True, False) if topology.diameter > 1 else (True,):
            curve = excesses(X, y, best, args, broadcast=topology, relay=relay)
            name = f"Q = {n_peers}" + ("" if topology.diameter == 1 else ", relayed")
            report(curve, n_steps, name if relay else f"Q = {n_peers}", args.bounds)


if __name__ == "__main__":
    main()
