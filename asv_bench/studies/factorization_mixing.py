"""Butterfly mixing for matrix factorization, where every rank has all items.

To be run in the folder asv_bench:

    python -m studies.factorization_mixing --data DIR

Users are shared out; each rank makes steps on the ratings of its users with a copy of
all items. After each part of a pass, pairs of ranks take the mean of their copies,
first neighbours, then those two apart, and so on (butterfly), or all ranks take that of
all copies (allreduce). Means are weighted by how often a rank's users have rated an
item. The steps, their length and the batches are those of ``solver="sgd"``, which
rotates the items in their place. Shown are held-out errors on ``ml_latest_small`` after
some passes, and what a rank sends in a pass, in copies of all items.
"""

from __future__ import annotations

import argparse
import os
import warnings
from pathlib import Path

import numpy as np
from peers.factorization import Split, load_ratings
from sklearn.exceptions import ConvergenceWarning

from dask_ma import SchMPMatrixFactorization
from dask_ma.kernels import Side, StepBatch, sgd_step, step_batches

ALPHA, ETA, BATCH = 0.05, 0.1, 2048


class Rank:
    """Some users, their ratings, and a copy of all items."""

    def __init__(
        self, split: Split, users: np.ndarray, n_items: int, seed: int
    ) -> None:
        own = np.isin(split.pairs[:, 0], users)
        pairs, mean = split.pairs[own], split.ratings.mean()
        self.users = users
        rng = np.random.default_rng(seed)
        self.batches = step_batches(
            np.searchsorted(users, pairs[:, 0]),
            pairs[:, 1],
            (split.ratings[own] - mean).astype(np.float32),
            np.ones(own.sum(), np.float32),
            (len(users), n_items),
            BATCH,
            rng,
        )
        self.counts = np.bincount(pairs[:, 1], minlength=n_items) + 1e-3
        self.left = _side(rng, len(users), split.n_components, is_item=False)
        self.right = _side(
            np.random.default_rng(0), n_items, split.n_components, is_item=True
        )

    def step(self, batches: list[StepBatch]) -> None:
        """Go over some ratings."""
        for batch in batches:
            sgd_step(batch, self.left, self.right, ETA)


def _side(
    rng: np.random.Generator, n: int, n_components: int, *, is_item: bool
) -> Side:
    """Small random factors with biases."""
    scale = 0.1 * np.sqrt(3 / n_components)
    factors = (rng.uniform(-1, 1, (n, n_components + 2)) * scale).astype(np.float32)
    factors[:, 0], factors[:, 1] = is_item, not is_item
    alphas = np.full(n, ALPHA, np.float32)
    return Side(factors, np.ones(n, np.float32), alphas, 0 if is_item else 1)


def mix(ranks: list[Rank], groups: list[list[int]]) -> None:
    """The ranks of each group take the mean of their items."""
    for group in groups:
        weights = np.array([ranks[p].counts for p in group])
        weights /= weights.sum(axis=0)
        for place in ("factors", "squares"):
            copies = [getattr(ranks[p].right, place) for p in group]
            mean = sum(
                (w[:, np.newaxis] if c.ndim == 2 else w) * c
                for w, c in zip(weights, copies, strict=True)
            )
            for copy in copies:
                copy[...] = mean


def mixed_errors(split: Split, n_ranks: int, how: str, parts: int, passes: int) -> list:
    """Held-out errors after each pass."""
    n_users, n_items = np.vstack([split.pairs, split.held_out]).max(axis=0) + 1
    dealt = np.random.default_rng(1).permutation(n_users)
    shares = [np.sort(own) for own in np.array_split(dealt, n_ranks)]
    ranks = [Rank(split, own, n_items, seed) for seed, own in enumerate(shares)]
    owner = np.empty(n_users, dtype=int)
    for number, own in enumerate(shares):
        owner[own] = number
    rng, step, found = np.random.default_rng(2), 0, []
    for _ in range(passes):
        orders = [rng.permutation(len(rank.batches)) for rank in ranks]
        for part in range(parts):
            for rank, order in zip(ranks, orders, strict=True):
                own = np.array_split(order, parts)[part]
                rank.step([rank.batches[b] for b in own])
            apart = 1 << (step % max(1, n_ranks.bit_length() - 1))
            groups = [list(range(n_ranks))]
            if how == "butterfly":
                groups = [[p, p ^ apart] for p in range(n_ranks) if p < p ^ apart]
            mix(ranks, groups)
            step += 1
        found.append(_error(split, ranks, owner))
    return found


def _error(split: Split, ranks: list[Rank], owner: np.ndarray) -> float:
    """Root mean squared error, with the copy of each user's rank."""
    total = 0.0
    for number, rank in enumerate(ranks):
        own = owner[split.held_out[:, 0]] == number
        users = np.searchsorted(rank.users, split.held_out[own, 0])
        left, right = rank.left.factors[users], rank.right.factors
        values = np.einsum("nf,nf->n", left, right[split.held_out[own, 1]])
        values = np.clip(values + split.ratings.mean(), 0.5, 5)
        total += float(((values - split.truth[own]) ** 2).sum())
    return float(np.sqrt(total / len(split.truth)))


def rotated_errors(split: Split, n_ranks: int, passes: list[int]) -> list[float]:
    """Held-out errors of rotation."""
    found = []
    for n in passes:
        model = SchMPMatrixFactorization(
            split.n_components,
            solver="sgd",
            alpha=ALPHA,
            eta0=ETA,
            batch_size=BATCH,
            max_iter=n,
            tol=0,
            n_ranks=n_ranks,
            random_state=0,
        ).fit(split.pairs, split.ratings)
        errors = model.predict(split.held_out) - split.truth
        found.append(float(np.sqrt(np.mean(errors**2))))
    return found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("DASK_MA_DATA"))
    parser.add_argument("--ranks", nargs="+", type=int, default=[4, 16])
    parser.add_argument("--passes", nargs="+", type=int, default=[5, 10, 20])
    options = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    split = load_ratings("movielens", Path(options.data))
    print("ranks, copies sent in a pass, held-out error after passes", options.passes)
    for n_ranks in options.ranks:
        errors = rotated_errors(split, n_ranks, options.passes)
        print(n_ranks, "1", "rotation", np.round(errors, 4), flush=True)
        for how in ("butterfly", "allreduce"):
            for parts in (1, 4):
                found = mixed_errors(split, n_ranks, how, parts, max(options.passes))
                errors = [found[n - 1] for n in options.passes]
                sent = parts * (1 if how == "butterfly" else 2)
                print(n_ranks, sent, how, np.round(errors, 4), flush=True)


if __name__ == "__main__":
    main()
