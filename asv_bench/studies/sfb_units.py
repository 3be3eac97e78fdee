"""What do features in units of their own cost a logistic regression?

SFBLogisticRegression with its defaults, on one rank, next to scikit-learn's
LogisticRegression with its own, on rows as they are: levels of gene expression, counts
of words, toy sets, one-hot columns, and tf-idf rows beside. The objective is the same:
``C = 1 / (alpha n)``. For each fit: seconds and seconds of the processor (medians),
passes, the objective, and the duality gap in parts of it, or whether scikit-learn's
solver says that it has not converged. ``--exact`` adds a scikit-learn fit with a
tolerance of 1e-6 and as many steps as that takes.

Run ``python sfb_units.py --data FOLDER``. The folder (or ``$DASK_MA_DATA``) holds
`gene_expression`, `newsgroups20`, `imdb` and `a9a`.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse, special
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import (
    CountVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)
from sklearn.linear_model import LogisticRegression

from dask_ma import SFBLogisticRegression
from dask_ma.datasets import load_clinc150

TOYS = ("breast_cancer", "wine", "digits")
GENES = ("golub", "gordon", "nakayama", "riboflavin")
SETS = (
    *GENES,
    "newsgroups20 600",
    "newsgroups20",
    "newsgroups20 tfidf",
    "imdb",
    "imdb tfidf",
    "clinc150",
    "clinc150 tfidf",
    "a9a",
    *TOYS,
)


def load(name: str, folder: Path) -> tuple[Any, np.ndarray]:
    """Rows, and codes of their classes."""
    kind = name.split()[0]
    if kind in TOYS:
        X, y = getattr(datasets, f"load_{kind}")(return_X_y=True)
    elif kind in GENES:
        with np.load(folder / "gene_expression" / f"{kind}.npz") as data:
            X, y = data["X"], data["y"]
        y = y > np.median(y) if kind == "riboflavin" else y
    elif kind == "clinc150":
        texts, y = load_clinc150("train")
        how = TfidfVectorizer if name.endswith("tfidf") else CountVectorizer
        X = how(dtype=np.float64).fit_transform(texts)
    else:
        X = sparse.load_npz(folder / kind / "X_train.npz").astype(np.float64)
        y = np.load(folder / kind / "y_train.npy")
        if name.endswith("tfidf"):
            X = TfidfTransformer(sublinear_tf=True).fit_transform(X)
        if name.endswith("600"):
            X, y = X[:600], y[:600]
            X = X[:, np.asarray(X.sum(axis=0)).ravel().argsort()[-1500:]]
    return X, np.unique(y, return_inverse=True)[1]


def objective(model: Any, X: Any, y: np.ndarray, alpha: float) -> float:
    """Mean loss plus penalty."""
    coef = model.coef_.astype(np.float64)
    margins = np.asarray(X @ coef.T) + model.intercept_
    if margins.shape[1] == 1:
        margins = np.hstack([np.zeros_like(margins), margins])
    losses = special.logsumexp(margins, axis=1) - margins[np.arange(len(y)), y]
    return float(losses.mean() + alpha / 2 * np.vdot(coef, coef))


def timed(model: Any, X: Any, y: np.ndarray, n_fits: int) -> tuple[float, float, bool]:
    """Seconds of a fit, those of the processor, and whether it gives a warning."""
    seconds = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        for _ in range(n_fits):
            start = time.perf_counter(), time.process_time()
            model.fit(X, y)
            ended = time.perf_counter(), time.process_time()
            seconds.append(np.subtract(ended, start))
    wall, processor = np.median(seconds, axis=0).tolist()
    return wall, processor, bool(caught)


def study(name: str, alpha: float, args: argparse.Namespace) -> None:
    """Print a line for each estimator."""
    X, y = load(name, args.data)
    C = 1 / (alpha * len(y))
    models: dict[str, Any] = {
        "SFB": SFBLogisticRegression(alpha=alpha, random_state=0, n_ranks=1),
        "LogisticRegression": LogisticRegression(C=C),
    }
    if args.exact:
        models["the same, exact"] = LogisticRegression(C=C, tol=1e-6, max_iter=10**5)
    print(f"\n{name} {X.shape}, {y.max() + 1} classes, alpha={alpha:g}")
    for label, model in models.items():
        wall, processor, has_warned = timed(model, X, y, args.fits)
        value = objective(model, X, y, alpha)
        gap = getattr(model, "dual_gap_", np.nan) / value
        print(
            f"  {label:<20}{wall:>7.2f} s {processor:>7.2f} s of the processor "
            f"{np.max(model.n_iter_):>5} passes  objective {value:.6g}  "
            f"gap {gap:.1e}{'  WARNS' if has_warned else ''}",
            flush=True,
        )


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    add("--sets", nargs="+", choices=SETS, default=SETS)
    add("--alpha", type=float, nargs="+", default=[1e-4])
    add("--fits", type=int, default=3)
    add("--exact", action="store_true")
    args = parser.parse_args()
    if args.data is None:
        parser.error("--data or DASK_MA_DATA must name the folder with the sets")
    args.data = Path(args.data)
    warm = datasets.load_iris(return_X_y=True)
    for model in (SFBLogisticRegression(n_ranks=1), LogisticRegression(max_iter=1000)):
        model.fit(*warm)
    for name in args.sets:
        for alpha in args.alpha:
            study(name, alpha, args)


if __name__ == "__main__":
    main()
