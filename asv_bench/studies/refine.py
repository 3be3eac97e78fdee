"""How many passes over the data does L-BFGS save by a start from model averaging?

Logistic regression on a9a (32,561 rows, 123 one-hot columns), four ranks: L-BFGS from
zero, and the hybrid of section 5.2.2 of the paper, which begins with one epoch of
model averaging. A pass over the rows is the unit: one for an epoch of SGD, one for each
evaluation of objective and gradient. The optimum is scikit-learn's by Newton's method.

Run ``python refine.py --data FOLDER``, which takes about a minute. The folder (or
``$DASK_MA_DATA``) holds ``a9a/X_train.npz`` and ``a9a/y_train.npy``.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from dask_ma import MASGDClassifier
from dask_ma.kernels import loss_sums, penalty_value

EXCESSES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
STARTS: dict[str, dict[str, Any]] = {
    "zero": {"max_iter": 0},
    "1 epoch, optimal": {"max_iter": 1, "local_epochs": 1},
    "1 epoch, invscaling": {
        "max_iter": 1,
        "local_epochs": 1,
        "learning_rate": "invscaling",
        "eta0": 1.0,
    },
    "1 epoch in 4 rounds, invscaling, average": {
        "max_iter": 4,
        "local_epochs": 1 / 4,
        "learning_rate": "invscaling",
        "eta0": 1.0,
        "average": True,
    },
}


def optimum(X: Any, y: np.ndarray, alpha: float) -> float:
    """Objective of scikit-learn's solution."""
    model = LogisticRegression(
        C=1 / (alpha * len(y)), solver="newton-cholesky", tol=1e-12
    ).fit(X, y)
    losses = loss_sums(
        X, y, None, model.coef_, model.intercept_, loss="log_loss", one_vs_rest=True
    )
    return float(losses[0] / len(y) + alpha * penalty_value("l2", model.coef_))


def passes_to(history: list[dict[str, Any]], n_rows: int, target: float) -> float:
    """Passes until the objective is at the target for the first time."""
    passes = np.cumsum([record["n_samples"] for record in history]) / n_rows
    reached = [record["objective"] <= target for record in history]
    return float(passes[reached.index(True)]) if any(reached) else np.inf


def study(X: Any, y: np.ndarray, alpha: float, args: argparse.Namespace) -> None:
    """Print the passes to each excess over the optimum, start by start."""
    best = optimum(X, y, alpha)
    print(f"\nalpha={alpha:g}: optimum {best:.9f}; passes (medians over seeds)")
    print(f"{'start':<44}" + "".join(f"{excess:>8g}" for excess in EXCESSES))
    for name, start in STARTS.items():
        needed = []
        for seed in range(1 if start["max_iter"] == 0 else args.seeds):
            model = MASGDClassifier(
                loss="log_loss",
                alpha=alpha,
                tol=None,
                n_ranks=4,
                random_state=seed,
                refine="lbfgs",
                refine_max_iter=args.most_passes,
                refine_tol=EXCESSES[-1] / 10,
                **{"power_t": 0.5, **start},
            ).fit(X, y)
            needed.append(
                [
                    passes_to(model.history_, len(y), best * (1 + excess))
                    for excess in EXCESSES
                ]
            )
        cells = "".join(f"{value:>8.0f}" for value in np.median(needed, axis=0))
        print(f"{name:<44}{cells}", flush=True)


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--alpha", type=float, nargs="+", default=[1e-5, 1e-4, 1e-3, 1e-2])
    add("--seeds", type=int, default=5)
    add("--most-passes", type=int, default=600)
    args = parser.parse_args()
    if args.data is None:
        parser.error("--data or DASK_MA_DATA must name the folder with a9a")
    return args


def main() -> None:
    """Run the study."""
    args = parse()
    warnings.simplefilter("ignore", ConvergenceWarning)
    folder = Path(args.data) / "a9a"
    X = sparse.load_npz(folder / "X_train.npz").astype(np.float64)
    y = (np.load(folder / "y_train.npy") > 0).astype(int)
    for alpha in args.alpha:
        study(X, y, alpha, args)


if __name__ == "__main__":
    main()
