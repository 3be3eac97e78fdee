"""Which preconditioner, and which rule for the steps, come down to the optimum first?

``ButterflySGDClassifier`` is fitted with each choice; its objective is set against that
of scikit-learn's L-BFGS. Results are counted in passes, so they do not depend on the
machine.

Run ``python butterfly_preconditioners.py --help``; the defaults take some minutes.
imdb is read from ``--data`` or ``$DASK_MA_DATA`` and left out without it.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from dask_ma import ButterflySGDClassifier
from dask_ma.datasets import make_sparse_classification

PRECONDITIONERS = ("bounded", "jacobi", "frequency", None)
RULES = {
    "adaptive": {"learning_rate": "adaptive"},
    "adaptive, average": {"learning_rate": "adaptive", "average": True},
    "invscaling": {"learning_rate": "invscaling"},
}


def sets(data: str | None, n_rows: int) -> Iterator[tuple[str, Any, np.ndarray]]:
    """Names, rows and labels -1 and 1."""
    for name, load in (("cancer", load_breast_cancer), ("digits", load_digits)):
        X, y = load(return_X_y=True)
        yield name, StandardScaler().fit_transform(X), np.where(y % 2, 1, -1)
    X, y, _ = make_sparse_classification(n_rows, 10_000, random_state=0)
    yield "generated text", sparse.csr_array(X), np.where(y == y.max(), 1, -1)
    if data:
        folder = Path(data) / "imdb"
        counts = sparse.load_npz(folder / "X_train.npz").astype(np.float64)
        y = np.load(folder / "y_train.npy")
        chosen = np.random.default_rng(0).permutation(len(y))[:n_rows]
        X = TfidfTransformer(sublinear_tf=True).fit_transform(counts)[chosen]
        yield "imdb", X.tocsr(), np.where(y[chosen] > 0, 1, -1)


def objective(X: Any, y: np.ndarray, w: np.ndarray, b: float, alpha: float) -> float:
    """Mean log loss plus penalty."""
    return float(np.logaddexp(0, -y * (X @ w + b)).mean() + alpha * w @ w / 2)


def optimum(X: Any, y: np.ndarray, alpha: float) -> float:
    """Least objective."""
    best = LogisticRegression(C=1 / (alpha * len(y)), tol=1e-9, max_iter=10_000)
    best.fit(X, y)
    return objective(X, y, best.coef_[0], best.intercept_[0], alpha)


def excesses(
    X: Any, y: np.ndarray, least: float, marks: list[int], **params: Any
) -> list[float]:
    """How far above the optimum the fit is after some passes, in percent."""
    model = ButterflySGDClassifier(
        max_iter=marks[-1], tol=None, random_state=0, **params
    )
    try:
        model.fit(X, y)
    except ValueError:  # it has diverged
        return [np.inf] * len(marks)
    values = np.minimum.accumulate([r["objective"] for r in model.history_])
    return [100 * (values[mark - 1] / least - 1) for mark in marks]


def main() -> None:
    """Read the arguments and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("DASK_MA_DATA"))
    parser.add_argument("--rows", type=int, default=4096, help="of the texts")
    parser.add_argument("--ranks", type=int, nargs="+", default=[4])
    parser.add_argument("--alphas", type=float, nargs="+", default=[1e-3, 1e-5])
    parser.add_argument("--marks", type=int, nargs="+", default=[1, 3, 10, 30])
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=RULES)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"percent above the optimum after {arguments.marks} passes")
    for name, X, y in sets(arguments.data, arguments.rows):
        for alpha in arguments.alphas:
            least = optimum(X, y, alpha)
            for n_ranks in arguments.ranks:
                for rule in arguments.rules:
                    for preconditioner in PRECONDITIONERS:
                        found = excesses(
                            X,
                            y,
                            least,
                            arguments.marks,
                            alpha=alpha,
                            n_ranks=n_ranks,
                            preconditioner=preconditioner,
                            **RULES[rule],
                        )
                        cells = " ".join(f"{value:9.2f}" for value in found)
                        print(
                            f"{name:15s} {alpha:g} {n_ranks} ranks {rule:17s} "
                            f"{preconditioner!s:10s} | {cells}",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
