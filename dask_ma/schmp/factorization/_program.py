"""Matrix factorization as a rotation program: what its solvers share.

Users and items are the parameters. Each has a home, where its ratings are; blocks of
items travel past the users, and for alternating least squares blocks of users past the
items.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dask_ma.comm import Group
from dask_ma.data import Shard
from dask_ma.schmp.factorization._params import FactorizationParams
from dask_ma.schmp.factorization._ratings import Ratings, Totals
from dask_ma.schmp.runtime._balance import balanced_parts
from dask_ma.schmp.runtime._rotation_program import RotationProgram
from dask_ma.schmp.runtime._rotation_schedule import Rotation, RotationRequest

_PER_BLOCK = 200_000  # ratings that are worth a block of their own
_MOST_BLOCKS = 4  # of each side on a rank, for the sake of overlap


@dataclass
class LocalRatings:
    """What a rank keeps of the ratings.

    Attributes
    ----------
    ratings : Ratings
        As the rows came.
    totals : Totals
        What all ranks know.
    parameters : list of ndarray
        Parameters of each block.
    is_item : ndarray of bool
        Which blocks are of items.
    batches : dict
        By home block and visiting block: what the solver has made of the ratings.
    sums : dict
        By home block: what a rotation gathers until its end.
    """

    ratings: Ratings
    totals: Totals
    parameters: list[np.ndarray] = field(default_factory=list)
    is_item: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    batches: dict[tuple[int, int], Any] = field(default_factory=dict)
    sums: dict[int, Any] = field(default_factory=dict)


class Factorization(RotationProgram):
    """Base of the solvers.

    Parameters
    ----------
    params : FactorizationParams
        What is to be fitted.
    """

    rotation = Rotation()

    def __init__(self, params: FactorizationParams) -> None:
        self.params = params

    def prepare(self, shard: Shard, group: Group) -> LocalRatings:
        """Read the rows; a collective call."""
        p = self.params
        ratings = Ratings.of_shard(shard, p.n_users)
        return LocalRatings(ratings, Totals.of(ratings, p.n_users + p.n_items, group))

    def weights(self, local: LocalRatings) -> np.ndarray:
        """Ratings of each user and each item."""
        n = self.params.n_users + self.params.n_items
        users, items = local.ratings[:2]
        return np.bincount(users, minlength=n) + np.bincount(items, minlength=n)

    def blocks(self, work: np.ndarray, n_ranks: int) -> list[list[np.ndarray]]:
        """Blocks of users and blocks of items of each rank."""
        n_users = self.params.n_users
        users = self._side(work[:n_users], n_ranks, is_item=False)
        items = self._side(work[n_users:], n_ranks, is_item=True)
        return [
            [*own, *(block + n_users for block in others)]
            for own, others in zip(users, items, strict=True)
        ]

    def initial_block(
        self, parameters: np.ndarray, local: LocalRatings, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Small random factors, which depend on the user or item alone."""
        rated = local.totals.weights[parameters]
        return {"factors": self.params.initial_factors(parameters, rated)}

    def initial_shared(
        self, local: LocalRatings, group: Group
    ) -> dict[str, np.ndarray]:
        """The objective, and what predictions need of the ratings."""
        _, mean, low, high = local.totals
        known = {"objective": np.inf, "mean": mean, "low": low, "high": high}
        known |= {"n_users": self.params.n_users}
        return {name: np.array(value) for name, value in known.items()}

    def ridges(self, parameters: np.ndarray, local: LocalRatings) -> np.ndarray:
        """Penalty of each user or item."""
        weights = local.totals.weights[parameters]
        weighted = self.params.weighted_alpha
        return self.params.alpha * (
            weights if weighted else (weights > 0).astype(float)
        )

    def center(self, local: LocalRatings) -> float:
        """What is taken from the ratings: their mean, where there are biases."""
        return local.totals.mean if self.params.has_bias else 0.0

    def report(self, sums: np.ndarray, shared: dict[str, Any]) -> dict[str, float]:
        """The objective."""
        return {"objective": float(shared["objective"])}

    def has_converged(self, records: list[dict[str, Any]]) -> bool:
        """Whether the objective falls by less than the tolerance."""
        if len(records) < 2:
            return False
        before, now = (record["objective"] for record in records[-2:])
        return bool(before - now <= self.params.tol * before)

    def rotating(self, request: RotationRequest, is_item: bool) -> list[list[int]]:
        """Jobs of a sub-iteration in which only the blocks of one side travel."""
        jobs = self.rotation(request)
        first = self._n_blocks(request.n_ranks, is_item=False)
        per_rank = len(request.home[0])
        return [[b for b in own if (b % per_rank >= first) == is_item] for own in jobs]

    def place(self, local: LocalRatings, blocks: list[np.ndarray], n_ranks: int) -> Any:
        """Note the blocks; rank and block of each parameter."""
        per_rank = len(blocks) // n_ranks
        local.parameters = blocks
        number = np.arange(len(blocks))
        local.is_item = number % per_rank >= self._n_blocks(n_ranks, is_item=False)
        block_of = np.empty(len(local.totals.weights), dtype=np.int32)
        for block, parameters in enumerate(blocks):
            block_of[parameters] = block
        return block_of // per_rank, block_of

    def _side(
        self, work: np.ndarray, n_ranks: int, *, is_item: bool
    ) -> list[list[np.ndarray]]:
        """Blocks of the users, or of the items, of each rank."""
        n_blocks = self._n_blocks(n_ranks, is_item=is_item)
        return [
            [part[inner] for inner in balanced_parts(work[part], n_blocks)]
            for part in balanced_parts(work, n_ranks)
        ]

    def _n_blocks(self, n_ranks: int, *, is_item: bool) -> int:
        """Blocks of one side on a rank: the same on all."""
        n_chunks = self.params.n_chunks[is_item]
        if n_ranks == 1:
            return n_chunks  # nothing travels
        wanted = self.params.n_ratings // (n_ranks**2 * _PER_BLOCK)
        wanted = min(max(wanted, 1), _MOST_BLOCKS)
        return n_chunks * -(-wanted // n_chunks)


def by_pairs(
    ratings: Ratings, own: np.ndarray, other: np.ndarray
) -> dict[tuple[int, int], Ratings]:
    """Ratings of each pair of a home block and a visiting block.

    Parameters
    ----------
    ratings : Ratings
        Those of a rank.
    own, other : ndarray of int of shape (n,)
        Home block and visiting block of each.

    Returns
    -------
    pairs : dict
        Without pairs that have none; in the order that they had.
    """
    order = np.lexsort((np.arange(len(own)), other, own))
    keys = np.stack([own[order], other[order]], axis=1)
    starts = np.flatnonzero(np.r_[True, (keys[1:] != keys[:-1]).any(axis=1)])
    if not len(order):
        return {}
    return {
        (int(keys[start][0]), int(keys[start][1])): ratings.take(part)
        for start, part in zip(starts, np.split(order, starts[1:]), strict=True)
    }
