"""Ways to solve for factors of implicit feedback: objective against processor time.

To be run in the folder asv_bench:

    python -m studies.factorization_blocks --data DIR --components 64

Users, then items, of ``ml_latest_small`` are changed by steps of conjugate gradients,
or, as in iALS++, one block of components after the other by Newton steps (S. Rendle,
W. Krichene, L. Zhang, Y. Koren, "iALS++: Speeding up matrix factorization with subspace
optimization", 2021). Both gather the factors of the elements once for a batch of rows.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from peers.factorization import load_ratings
from scipy import sparse
from threadpoolctl import threadpool_limits

from dask_ma.kernels import RowBatch, descend_batch, row_batches

CONFIDENCE, RIDGE = 10.0, 5.0
Step = Callable[[RowBatch, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def by_gradients(
    batch: RowBatch, near: np.ndarray, own: np.ndarray, gram: np.ndarray
) -> np.ndarray:
    """Three steps of conjugate gradients."""
    ridges = np.full(len(own), RIDGE, own.dtype)
    return descend_batch(batch, near, own, ridges, 3, gram)[0].factors


def by_blocks(width: int) -> Step:
    """One Newton step for each block of components."""

    def step(
        batch: RowBatch, near: np.ndarray, own: np.ndarray, gram: np.ndarray
    ) -> np.ndarray:
        rows, columns, values, curvatures, pulls = batch
        gathered = near.take(columns.ravel(), axis=0).reshape(*columns.shape, -1)
        x = own[rows].copy()
        predicted = np.matmul(gathered, x[:, :, np.newaxis])[:, :, 0]
        images = x @ gram
        for start in range(0, x.shape[1], width):
            part = slice(start, start + width)
            inner = gathered[:, :, part]
            weighted = (inner * curvatures[:, :, np.newaxis]).transpose(0, 2, 1)
            matrices = np.matmul(weighted, inner) + gram[part, part]
            diagonal = np.arange(matrices.shape[1])
            matrices[:, diagonal, diagonal] += RIDGE
            rest = (pulls * values - curvatures * predicted)[:, np.newaxis, :]
            up = np.matmul(rest, inner)[:, 0] - images[:, part] - RIDGE * x[:, part]
            change = np.linalg.solve(matrices, up[:, :, np.newaxis])
            x[:, part] += change[:, :, 0]
            predicted += np.matmul(inner, change)[:, :, 0]
            images += change[:, :, 0] @ gram[part]
        return x

    return step


def objective(users: np.ndarray, items: np.ndarray, taken: sparse.coo_array) -> float:
    """Weighted squared errors of all pairs, and the penalty."""
    scores = np.einsum("nf,nf->n", users[taken.row], items[taken.col])
    found = ((1 + CONFIDENCE) * (1 - scores) ** 2 - scores**2).sum()
    found += ((users.T @ users) * (items.T @ items)).sum()
    return float(found + RIDGE * ((users**2).sum() + (items**2).sum()))


def follow(matrix: sparse.csr_array, step: Step, f: int, n_rounds: int) -> list[str]:
    """Objective and seconds of the processor after each round."""
    rng, sides = np.random.default_rng(0), []
    for one in (matrix, matrix.T.tocsr()):
        more = np.full(one.nnz, CONFIDENCE, np.float32)
        sides.append(row_batches(one, more, 1 + more))
    users, items = (
        (0.1 / np.sqrt(f) * rng.normal(size=(n, f))).astype(np.float32)
        for n in matrix.shape
    )
    shown, seconds = [], 0.0
    for _ in range(n_rounds):
        start = time.process_time()
        for batches, own, near in zip(
            sides, (users, items), (items, users), strict=True
        ):
            gram = (near.T.astype(float) @ near).astype(np.float32)
            for batch in batches:
                own[batch.rows] = step(batch, near, own, gram)
        seconds += time.process_time() - start
        shown.append(f"{objective(users, items, matrix.tocoo()):.0f}, {seconds:.2f} s")
    return shown


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    parser.add_argument("--components", type=int, default=64)
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    split = load_ratings("movielens", Path(asked.data))
    pairs = np.vstack([split.pairs, split.held_out])
    matrix = sparse.csr_array((np.ones(len(pairs), np.float32), tuple(pairs.T)))
    ways = {"conjugate gradients": by_gradients}
    ways |= {f"blocks of {width}": by_blocks(width) for width in asked.widths}
    with threadpool_limits(1):
        for name, step in ways.items():
            for line in follow(matrix, step, asked.components, asked.rounds)[-1:]:
                print(f"{name}: {line}", flush=True)


if __name__ == "__main__":
    main()
