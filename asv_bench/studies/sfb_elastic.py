"""Which solver comes to the optimum of an elastic net sooner, sgd or sdca?

Logistic regression on the 20 newsgroups and IMDB (tf-idf) and on Fashion-MNIST (pixels
from 0 to 1, the first rows), by default parameters but for the solver, one rank. The
reference is scikit-learn's LogisticRegression(solver="saga") to a tight tolerance; the
optimum lies between the best objective and the best lower bound of all. For each fit:
seconds, passes, how far the objective is above the best one known, and the duality gap,
both relative to the objective.

Run ``python sfb_elastic.py --data FOLDER``. The folder (or ``$DASK_MA_DATA``) holds
`newsgroups20`, `imdb` and `fashion_mnist`. scikit-learn takes most of the time.
"""

from __future__ import annotations

import argparse
import gzip
import os
import time
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse, special
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression

from dask_ma import SFBLogisticRegression

SETS = ("newsgroups20", "imdb", "fashion_mnist")


def load(name: str, folder: Path, n_rows: int) -> tuple[Any, np.ndarray]:
    """Rows in random order, and codes of their classes."""
    if name == "fashion_mnist":
        with gzip.open(folder / name / "train-images-idx3-ubyte.gz") as file:
            X = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784) / 255
        with gzip.open(folder / name / "train-labels-idx1-ubyte.gz") as file:
            y = np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64)
    else:
        counts = sparse.load_npz(folder / name / "X_train.npz").astype(np.float64)
        X = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
        y = np.load(folder / name / "y_train.npy")
    y = np.unique(y, return_inverse=True)[1]
    order = np.random.default_rng(0).permutation(len(y))[:n_rows]
    return X[order], y[order]


def objective(model: Any, X: Any, y: np.ndarray, l1: float, l2: float) -> float:
    """Mean loss plus penalty."""
    coef = model.coef_
    margins = np.asarray(X @ coef.T) + model.intercept_
    if margins.shape[1] == 1:
        margins = np.hstack([np.zeros_like(margins), margins])
    losses = special.logsumexp(margins, axis=1) - margins[np.arange(len(y)), y]
    penalty = l1 * np.abs(coef).sum() + l2 / 2 * np.vdot(coef, coef)
    return float(losses.mean() + penalty)


def timed(model: Any, X: Any, y: np.ndarray) -> tuple[float, list[str]]:
    """Seconds of a fit, and the warnings that it gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        start = time.perf_counter()
        model.fit(X, y)
        return time.perf_counter() - start, [str(each.message) for each in caught]


def study(name: str, alpha: float, ratio: float, args: argparse.Namespace) -> None:
    """Print a line for each solver."""
    X, y = load(name, args.data, args.rows)
    l1, l2 = alpha * ratio, alpha * (1 - ratio)
    found: dict[str, tuple[Any, float, float, str]] = {}
    for solver, refine in product(args.solvers, args.refine):
        model = SFBLogisticRegression(
            "elasticnet",
            alpha=alpha,
            l1_ratio=ratio,
            solver=solver,
            refine=refine,
            random_state=0,
        )
        seconds, said = timed(model, X, y)
        value = objective(model, X, y, l1, l2)
        label = solver if refine == "auto" else f"{solver}, refine={refine}"
        found[label] = model, seconds, value, "  WARNS" if said else ""
    if args.saga:
        model = LogisticRegression(
            C=1 / (alpha * len(y)),
            l1_ratio=ratio,
            penalty="elasticnet",
            solver="saga",
            tol=args.saga_tol,
            max_iter=args.saga_passes,
            random_state=0,
        )
        seconds, said = timed(model, X, y)
        is_short = any("max_iter" in text for text in said)
        note = "  max_iter" if is_short else ""
        found["saga"] = model, seconds, objective(model, X, y, l1, l2), note
    best = min(value for _, _, value, _ in found.values())
    print(f"\n{name} {X.shape} alpha={alpha:g} l1_ratio={ratio:g}: best {best:.9f}")
    for label, (model, seconds, value, note) in found.items():
        gap = getattr(model, "dual_gap_", np.nan) / value
        n_iter = int(np.max(model.n_iter_))
        share = np.mean(model.coef_ != 0)
        print(
            f"  {label:<22}{seconds:>8.2f} s {n_iter:>5} passes  "
            f"above {value / best - 1:>9.2e}  gap {gap:>9.2e}  "
            f"not zero {share:.4f}{note}",
            flush=True,
        )


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--sets", nargs="+", choices=SETS, default=SETS)
    add("--alpha", type=float, nargs="+", default=[1e-5, 1e-4, 1e-3])
    add("--ratio", type=float, nargs="+", default=[0.15, 0.5, 0.9])
    add("--rows", type=int, default=10_000, help="of each set, at most")
    add("--solvers", nargs="+", default=["sgd", "sdca"])
    add("--refine", nargs="+", type=_refine, default=["auto"])
    add("--saga", action=argparse.BooleanOptionalAction, default=True)
    add("--saga-tol", type=float, default=1e-6)
    add("--saga-passes", type=int, default=1000)
    args = parser.parse_args()
    if args.data is None:
        parser.error("--data or DASK_MA_DATA must name the folder with the sets")
    args.data = Path(args.data)
    return args


def _refine(text: str) -> Any:
    """A value of the parameter `refine`."""
    return {"true": True, "false": False}.get(text.lower(), text)


def main() -> None:
    """Run the study."""
    args = parse()
    for name, alpha, ratio in product(args.sets, args.alpha, args.ratio):
        study(name, alpha, ratio, args)


if __name__ == "__main__":
    main()
