"""Codes and dictionaries of small pieces of images, next to other libraries.

To be run in the folder asv_bench:

    OMP_NUM_THREADS=1 python -m peers.dictionary codes --data DIR
    OMP_NUM_THREADS=1 python -m peers.dictionary algorithms --data DIR
    OMP_NUM_THREADS=1 python -m peers.dictionary fit --data DIR --epochs 4
    OMP_NUM_THREADS=1 python -m peers.dictionary ranks --data DIR

DIR (or ``$DASK_MA_DATA``) holds ``fashion_mnist`` and ``cifar10_subset``. Rows are
pieces of 8 x 8 pixels, less their means, of length 1. Times are of the processor,
medians of runs that take turns, because a machine may be shared; only "ranks" has to
look at the clock. SPAMS is left out where it is not installed (``pip install
spams-bin``).
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from sklearn.decomposition import MiniBatchDictionaryLearning, sparse_encode
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from dask_ma import SFBDictionaryLearning
from dask_ma.sfb.dictionary._block import Accuracy
from dask_ma.sfb.dictionary._codes import ALGORITHMS, lasso_codes
from dask_ma.sfb.dictionary._pursuit import pursued_codes

from ._solvers import local_cluster

try:
    import spams
except ImportError:
    spams = None

SIDE = 8
SETS = {"fashion": 128, "cifar": 256}  # atoms
ALPHA = 0.1
EXACT = Accuracy(step=1e-4, gap=1e-9, max_sweeps=1000)


def read_images(folder: Path, name: str) -> np.ndarray:
    """Grey values from 0 to 1, of shape (n_images, height, width)."""
    if name == "cifar":
        stored = np.load(folder / "cifar10_subset" / "train.npz")["X"]
        return np.asarray(stored.astype(np.float32).mean(axis=-1) / 255)
    path = folder / "fashion_mnist" / "train-images-idx3-ubyte.gz"
    stored = np.frombuffer(gzip.open(path).read(), np.uint8, offset=16)
    return stored.reshape(-1, 28, 28)[:10_000].astype(np.float32) / 255


def read_rows(folder: Path, name: str, n_rows: int, seed: int = 0) -> np.ndarray:
    """Pieces of images at random places, float32, of length 1."""
    images, rng = read_images(folder, name), np.random.default_rng(seed)
    size = images.shape[1] - SIDE + 1
    places = [rng.integers(0, n, 3 * n_rows) for n in (len(images), size, size)]
    windows = np.lib.stride_tricks.sliding_window_view(images, (SIDE, SIDE), (1, 2))
    pieces = windows[tuple(places)].reshape(-1, SIDE * SIDE)
    pieces = pieces - pieces.mean(axis=1, keepdims=True)
    spread = pieces.std(axis=1, keepdims=True)
    kept = np.flatnonzero(spread > 0.03)[:n_rows]  # others have nothing in them
    return np.ascontiguousarray(pieces[kept] / (SIDE * spread[kept]))


def first_atoms(rows: np.ndarray, n_atoms: int) -> np.ndarray:
    """The last rows with some noise, of length 1, as float64."""
    rng = np.random.default_rng(0)
    atoms = rows[-n_atoms:] + 0.05 * rng.normal(size=(n_atoms, rows.shape[1]))
    return np.asarray(atoms / np.linalg.norm(atoms, axis=1, keepdims=True))


def objective(rows: np.ndarray, atoms: np.ndarray, codes: np.ndarray) -> float:
    """Mean objective of rows, in float64."""
    rest = rows - codes.astype(np.float64) @ atoms
    penalty = ALPHA * np.abs(codes).sum(axis=1)
    return float((0.5 * np.einsum("ij,ij->i", rest, rest) + penalty).mean())


def best_objective(rows: np.ndarray, atoms: np.ndarray) -> float:
    """Mean objective at exact codes."""
    rows, atoms = rows.astype(np.float64), atoms.astype(np.float64)
    return float(lasso_codes(rows, atoms, ALPHA, EXACT).objectives.mean())


def take_turns(
    calls: dict[str, Callable[[], Any]], n_runs: int
) -> tuple[dict[str, float], dict[str, Any]]:
    """Median processor seconds of each call, and what it has given."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    results = {}
    for _ in range(n_runs):
        for name, call in calls.items():
            start = time.process_time()
            results[name] = call()
            seconds[name].append(time.process_time() - start)
    return {name: statistics.median(each) for name, each in seconds.items()}, results


def compare_codes(folder: Path, name: str, n_runs: int) -> None:
    """Microseconds of a row, and how far its objective is above the minimum."""
    n_rows, n_slow, n_atoms = 1024, 256, SETS[name]
    rows = read_rows(folder, name, n_rows + n_atoms)
    atoms = first_atoms(rows, n_atoms)
    single, double = rows[:n_rows], rows[:n_rows].astype(np.float64)
    few = double[:n_slow]
    learner = SFBDictionaryLearning(n_atoms, alpha=ALPHA, dict_init=atoms, max_iter=1)
    learner.fit(single[:n_atoms])
    learner.components_ = atoms.astype(np.float32)

    def peer(algorithm: str) -> np.ndarray:
        return sparse_encode(
            few, atoms, algorithm=algorithm, alpha=ALPHA, max_iter=1000
        )

    calls = {
        f"steps to {step:g}, {X.dtype}": (
            lambda X=X, step=step: (
                lasso_codes(X, atoms, ALPHA, Accuracy(step, None, 100)).values
            )
        )
        for X in (single, double)
        for step in (1e-2, 1e-3)
    }
    calls["transform, float32"] = lambda: learner.transform(single)
    calls["sklearn lasso_cd, float64"] = lambda: peer("lasso_cd")
    calls["sklearn lasso_lars, float64"] = lambda: peer("lasso_lars")
    if spams is not None:
        ours = np.asfortranarray(double.T), np.asfortranarray(atoms.T)
        calls["SPAMS lasso, float64"] = lambda: (
            spams.lasso(*ours, lambda1=ALPHA, mode=2, numThreads=1).toarray().T
        )
    seconds, results = take_turns(calls, n_runs)
    print(f"{name}: {n_atoms} atoms, alpha {ALPHA}")
    print(f"{'':34}{'us / row':>10}{'above minimum':>16}")
    for label, codes in results.items():
        part = double[: len(codes)]
        best = best_objective(part, atoms)
        above = objective(part, atoms, codes) / best - 1
        print(f"{label:34}{seconds[label] / len(codes) * 1e6:10.1f}{above:16.1e}")


def compare_algorithms(folder: Path, name: str, n_runs: int) -> None:
    """Microseconds of a row by each algorithm, to the duality gap of `transform`."""
    n_atoms = SETS[name]
    rows = read_rows(folder, name, 1024 + n_atoms)
    atoms = first_atoms(rows, n_atoms)
    goal = Accuracy(step=1e-3, gap=1e-4, max_sweeps=1000)
    for alpha in (ALPHA, ALPHA / 5):
        calls: dict[str, Callable[[], Any]] = {
            each: partial(lasso_codes, X, atoms, alpha, goal, algorithm=each)
            for each in ALGORITHMS
            # One row after the other takes long.
            for X in [rows[: 128 if each == "lars" else 512]]
        }
        seconds, results = take_turns(calls, n_runs)
        used = np.count_nonzero(results["greedy_cd"].values, axis=1).mean()
        print(f"{name}: {n_atoms} atoms, alpha {alpha:g}, {used:.0f} in use")
        for each, found in results.items():
            print(f"{each:34}{seconds[each] / len(found.values) * 1e6:10.1f}")


def compare_pursuit(folder: Path, name: str, n_runs: int) -> None:
    """Microseconds of a row by orthogonal matching pursuit, ours and scikit-learn's."""
    n_atoms = SETS[name]
    rows = read_rows(folder, name, 512 + n_atoms).astype(np.float64)
    atoms, rows = first_atoms(rows, n_atoms), rows[:512]
    for n_nonzero in (3, 6, 20):
        calls: dict[str, Callable[[], Any]] = {
            "omp": partial(pursued_codes, rows, atoms, n_nonzero),
            "sklearn omp": partial(
                sparse_encode, rows, atoms, algorithm="omp", n_nonzero_coefs=n_nonzero
            ),
        }
        seconds, _ = take_turns(calls, n_runs)
        print(f"{name}: {n_nonzero} of {n_atoms} atoms")
        for each, taken in seconds.items():
            print(f"{each:34}{taken / len(rows) * 1e6:10.1f}")


def compare_fits(
    folder: Path, name: str, n_rows: int, epochs: int, n_runs: int
) -> None:
    """Seconds of so many epochs, and the objective of 1,024 held-out rows."""
    n_atoms, batch = SETS[name], 256
    rows = read_rows(folder, name, 1024 + n_rows + n_atoms)
    atoms = first_atoms(rows, n_atoms)
    held_out, single = rows[:1024], rows[1024 : 1024 + n_rows]
    double = single.astype(np.float64)
    shared: dict[str, Any] = {
        "alpha": ALPHA,
        "max_iter": epochs,
        "batch_size": batch,
        "tol": 0,
        "max_no_improvement": None,
        "random_state": 0,
    }

    def ours(X: np.ndarray, solver: str) -> np.ndarray:
        model = SFBDictionaryLearning(
            n_atoms, solver=solver, dict_init=atoms, n_ranks=1, **shared
        )
        return np.asarray(model.fit(X).components_)

    def peer(algorithm: str) -> np.ndarray:
        model = MiniBatchDictionaryLearning(
            n_atoms, fit_algorithm=algorithm, dict_init=atoms, **shared
        )
        return np.asarray(model.fit(double).components_)

    calls: dict[str, Callable[[], Any]] = {
        "online, float32": lambda: ours(single, "online"),
        "online, float64": lambda: ours(double, "online"),
        "sgd, float32": lambda: ours(single, "sgd"),
        "sklearn cd, float64": lambda: peer("cd"),
    }
    if epochs == 1:
        calls["sklearn lars (default), float64"] = lambda: peer("lars")
    if spams is not None:
        X, D = np.asfortranarray(double.T), np.asfortranarray(atoms.T)
        options = {"K": n_atoms, "lambda1": ALPHA, "mode": 2, "batchsize": batch}
        options |= {"iter": epochs * (n_rows // batch), "numThreads": 1}
        calls["SPAMS trainDL, float64"] = lambda: np.ascontiguousarray(
            spams.trainDL(X, D=D, verbose=False, **options).T
        )
    seconds, results = take_turns(calls, n_runs)
    print(f"{name}: {n_rows} rows, {n_atoms} atoms, {epochs} epochs")
    print(f"{'':34}{'seconds':>10}{'held out':>10}")
    for label, found in results.items():
        value = best_objective(held_out, found)
        print(f"{label:34}{seconds[label]:10.2f}{value:10.4f}")


def compare_ranks(folder: Path, n_pairs: int) -> None:
    """Wall time of a fit in two processes over that in one; rows of 8 x 8 x 3."""
    rows = np.hstack([read_rows(folder, "cifar", 20_000, seed) for seed in range(3)])
    ratios = []
    for number in range(n_pairs):
        seconds = {}
        for n_processes in (1, 2):
            with local_cluster(n_processes) as client:
                X = client.persist(da.from_array(rows, chunks=(5000, rows.shape[1])))
                model = SFBDictionaryLearning(
                    256,
                    alpha=0.2,
                    max_iter=2,
                    tol=0,
                    max_no_improvement=None,
                    random_state=number,
                )
                model.fit(X[:5000])  # loads what is to be loaded
                start = time.perf_counter()
                model.fit(X)
                seconds[n_processes] = time.perf_counter() - start
        ratios.append(seconds[2] / seconds[1])
        print(f"{seconds[1]:8.2f} s{seconds[2]:8.2f} s{ratios[-1]:8.2f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.2f}")


def parse_arguments() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["codes", "algorithms", "fit", "ranks"])
    parser.add_argument("--data", default=os.environ.get("DASK_MA_DATA"))
    parser.add_argument("--set", choices=SETS, default="fashion")
    parser.add_argument("--rows", type=int, default=2560)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("give --data, or set DASK_MA_DATA")
    return arguments


def main() -> None:
    """Print the table that was asked for."""
    arguments = parse_arguments()
    folder, runs = Path(arguments.data), arguments.runs
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(1):
        if arguments.what == "codes":
            compare_codes(folder, arguments.set, runs)
        elif arguments.what == "algorithms":
            compare_algorithms(folder, arguments.set, runs)
            compare_pursuit(folder, arguments.set, runs)
        elif arguments.what == "fit":
            rows, epochs = arguments.rows, arguments.epochs
            compare_fits(folder, arguments.set, rows, epochs, runs)
        else:
            compare_ranks(folder, runs)


if __name__ == "__main__":
    main()
