"""Matrix factorization as a rotation program: what its solvers share.

Users and items are the parameters. Each has a home, where its ratings are; blocks of
items travel past the users, and for alternating least squares blocks of users past the
items.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.data import Shard
from dask_ma.schmp.factorization._held_out import (
    HeldOut,
    has_settled,
    has_stopped_improving,
    split_ratings,
)
from dask_ma.schmp.factorization._params import FactorizationParams
from dask_ma.schmp.factorization._ratings import Ratings, Totals, counted_order
from dask_ma.schmp.runtime._balance import balanced_parts
from dask_ma.schmp.runtime._ring import ParameterBlock
from dask_ma.schmp.runtime._rotation_program import RotationProgram, Turn
from dask_ma.schmp.runtime._rotation_schedule import Rotation, RotationRequest

_PER_BLOCK = 200_000  # ratings that are worth a block of their own
_ROUNDING = 1e-7  # of the largest rating; smaller errors are none
_MOST_BLOCKS = 4  # of each side on a rank, for the sake of overlap


@dataclass
class LocalRatings:
    """What a rank keeps of the ratings.

    Attributes
    ----------
    ratings, held_out : Ratings
        As the rows came: those to train on, and those not. Empty once they have been
        laid out for the blocks.
    totals : Totals
        What all ranks know.
    parameters : list of ndarray
        Parameters of each block.
    is_item : ndarray of bool
        Which blocks are of items.
    held_out_weight : float
        Sum of the weights of all held-out ratings.
    evaluated : dict
        By home block and visiting block: what is held out.
    is_alone : bool
        Whether there is no other rank.
    batches : dict
        By home block and visiting block: what the solver has made of the ratings.
    sums : dict
        By home block: what a rotation gathers until its end.
    collected : ndarray or None
        Factors of the side that travels, where all of it is collected.
    opposite : tuple of ndarray, or None
        What the rows solved for see of `collected`, once one of them has looked.
    """

    ratings: Ratings
    held_out: Ratings
    totals: Totals
    held_out_weight: float = 0.0
    parameters: list[np.ndarray] = field(default_factory=list)
    is_item: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    evaluated: dict[tuple[int, int], HeldOut] = field(default_factory=dict)
    is_alone: bool = False
    batches: dict[tuple[int, int], Any] = field(default_factory=dict)
    sums: dict[int, Any] = field(default_factory=dict)
    collected: np.ndarray | None = None
    opposite: tuple[np.ndarray, np.ndarray | None] | None = None


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
        all_of = Ratings.of_shard(shard, p.n_users, p.n_items)
        ratings, held_out = split_ratings(all_of, p)
        totals = Totals.of(ratings, p.n_users + p.n_items, group)
        self._check_range(totals)
        local = LocalRatings(ratings, held_out, totals)
        if p.early_stopping:
            self._check_split(local, group)
        return local

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
        """Small random factors, by the user or item alone, or those given."""
        rated, scale = local.totals.weights[parameters], self.scale(local)
        values = {"factors": self.params.initial_factors(parameters, rated, scale)}
        if self.params.early_stopping:
            values["best"] = values["factors"].copy()
        return values

    def initial_shared(
        self, local: LocalRatings, group: Group
    ) -> dict[str, np.ndarray]:
        """The objective, and what predictions need of the ratings."""
        totals = local.totals
        known = {"mean": totals.mean, "low": totals.low, "high": totals.high}
        known |= {"objective": np.inf, "scale": self.scale(local)}
        known |= {"n_users": self.params.n_users, "step": 0}
        if self.params.early_stopping:
            known |= {"held_out": np.inf, "least_held_out": np.inf, "is_best": 0}
            known |= {"of_constant": np.inf}
        return {name: np.array(value) for name, value in known.items()}

    def lose_rows(
        self,
        home: tuple[ParameterBlock, ...],
        local: LocalRatings,
        shared: dict[str, Any],
        group: Group,
    ) -> dict[str, Any]:
        """Know the ratings that are left; a collective call."""
        for block in home:
            numbers, factors = block.parameters, block.values["factors"]
            rated = local.totals.weights[numbers]
            fresh = self.params.initial_factors(numbers, rated, self.scale(local))
            factors[rated == 0] = fresh[rated == 0]
            if self.params.early_stopping:
                block.values["best"] = factors.copy()
        return {**self.initial_shared(local, group), "step": shared["step"]}

    def begin_rotation(
        self, home: tuple[ParameterBlock, ...], local: LocalRatings, shared: Any
    ) -> None:
        """Keep the factors that are the best so far."""
        if self.params.early_stopping and shared["is_best"]:
            for block in home:
                block.values["best"] = block.values["factors"].copy()

    def update(
        self,
        block: ParameterBlock,
        local: LocalRatings,
        shared: dict[str, Any],
        turn: Turn,
    ) -> dict[str, Any] | None:
        """Train on the ratings of a visiting block, or look at those held out."""
        if not self.params.is_evaluation(turn.rotation):
            return self.train(block, local, shared, turn)
        losses, items = np.zeros(2), block.values["factors"]
        for home in turn.home:
            held_out = local.evaluated.get((home.number, block.number))
            if held_out is not None:
                losses[0] += held_out.loss(home.values["factors"], items)
                losses[1] += held_out.loss_of_constant()
        losses /= local.held_out_weight
        return {"held_out": losses[0], "of_constant": losses[1]}

    @abstractmethod
    def train(
        self,
        block: ParameterBlock,
        local: LocalRatings,
        shared: dict[str, Any],
        turn: Turn,
    ) -> dict[str, Any] | None:
        """What a visiting block of parameters means to those that are at home."""

    def aggregate(
        self, change: dict[str, np.ndarray], shared: dict[str, Any]
    ) -> dict[str, Any]:
        """What becomes of a rotation; called on all ranks.

        Raises
        ------
        ValueError
            If the factors have become infinite, or predict worse than the mean.
        """
        step = int(shared["step"])
        if self.params.is_evaluation(step):
            found = {key: np.sqrt(change[key]) for key in ("held_out", "of_constant")}
            after = {**shared, **found}
            is_best = after["held_out"] < shared["least_held_out"]
            least = np.minimum(after["held_out"], shared["least_held_out"])
            after |= {"least_held_out": least, "is_best": np.array(int(is_best))}
        else:
            after = self.trained(change, shared, step)
        if self.params.early_stopping and not self.params.is_evaluation(step):
            after = {**after, "is_best": np.array(0)}
        if np.isnan(after["objective"]):
            raise ValueError(f"the factors have diverged {self.cure}")
        return {**after, "step": np.array(step + 1)}

    @abstractmethod
    def trained(
        self, change: dict[str, np.ndarray], shared: dict[str, Any], step: int
    ) -> dict[str, Any]:
        """What becomes of a rotation that trains; NaN where all is lost."""

    @property
    @abstractmethod
    def cure(self) -> str:
        """What to do about factors that have diverged."""

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

    def scale(self, local: LocalRatings) -> float:
        """What the ratings are divided by then: 1, or their deviation."""
        if not self.params.is_standardized:
            return 1.0
        return local.totals.deviation(self.center(local))

    def report(self, sums: np.ndarray, shared: dict[str, Any]) -> dict[str, float]:
        """The objective, and the error of held-out ratings, in units of the ratings."""
        scale = float(shared["scale"])
        found = {"objective": scale**2 * float(shared["objective"])}
        largest = max(abs(float(shared["low"])), abs(float(shared["high"])))
        rounding = self.params.n_ratings * (_ROUNDING * largest) ** 2
        if np.isfinite(rounding) and found["objective"] <= rounding:
            found["objective"] = 0.0  # else a fit would go on in nothing else
        if self.params.early_stopping:
            error, constant = float(shared["held_out"]), float(shared["of_constant"])
            found["validation_rmse"] = scale * error
            if constant > 0:
                found["validation_r2"] = 1 - (error / constant) ** 2
        return found

    def has_converged(self, records: list[dict[str, Any]]) -> bool:
        """Whether the objective, or the held-out error, falls too little."""
        p = self.params
        if p.early_stopping:
            return has_stopped_improving(records, p.tol, p.n_iter_no_change)
        objectives = [record["objective"] for record in records]
        return has_settled(objectives, p.tol, is_cold=p.start is None)

    def rotating(self, request: RotationRequest, is_item: bool) -> list[list[int]]:
        """Jobs of a sub-iteration in which only the blocks of one side travel."""
        jobs = self.rotation(request)
        first = self._n_blocks(request.n_ranks, is_item=False)
        per_rank = len(request.home[0])
        return [[b for b in own if (b % per_rank >= first) == is_item] for own in jobs]

    def place(
        self, local: LocalRatings, blocks: list[np.ndarray], group: Group
    ) -> tuple[np.ndarray, np.ndarray]:
        """Note the blocks; rank and block of each parameter. A collective call."""
        n_ranks = group.size
        local.is_alone = n_ranks == 1
        per_rank = len(blocks) // n_ranks
        local.parameters = blocks
        number = np.arange(len(blocks))
        local.is_item = number % per_rank >= self._n_blocks(n_ranks, is_item=False)
        block_of = np.empty(len(local.totals.weights), dtype=np.int32)
        for block, parameters in enumerate(blocks):
            block_of[parameters] = block
        rank_of = block_of // per_rank
        if self.params.early_stopping:
            here = local.held_out.sent_to(group, rank_of[local.held_out.users])
            pairs = by_pairs(here, block_of[here.users], block_of[here.items])
            local.evaluated = {
                (own, other): HeldOut(
                    np.searchsorted(blocks[own], found.users),
                    np.searchsorted(blocks[other], found.items),
                    self.standardized(found.values.astype(np.float64), local),
                    found.all_weights(),
                )
                for (own, other), found in pairs.items()
            }
        local.held_out = local.held_out.take(slice(0))
        return rank_of, block_of

    def standardized(self, values: np.ndarray, local: LocalRatings) -> np.ndarray:
        """Ratings as they are fitted."""
        return (values - self.center(local)) / self.scale(local)

    def _check_range(self, totals: Totals) -> None:
        """Refuse ratings that do not count, or whose squares would be infinite."""
        if not totals.weights.any():
            raise ValueError(
                "sample_weight is 0 for all ratings, expected some above 0"
            )
        most = float(np.finfo(self.params.dtype).max) ** 0.4
        for value in (totals.low, totals.high):
            if np.isfinite(value) and abs(value) > most:
                raise ValueError(
                    f"a rating is {value:g}, and dtype={np.dtype(self.params.dtype)} "
                    f"is for ratings up to {most:.0e}; scale them, or set "
                    "dtype='float64'"
                )

    def _check_split(self, local: LocalRatings, group: Group) -> None:
        """Refuse to train on nothing, or to stop by nothing; a collective call."""
        own = [each.total_weight() for each in (local.ratings, local.held_out)]
        weights = allreduce(group, np.array(own))
        if not (weights > 0).all():
            raise ValueError(
                "early_stopping holds out "
                f"validation_fraction={self.params.validation_fraction} of "
                f"{self.params.n_ratings} ratings, by which the weights of those to "
                f"train on and those held out are {weights.tolist()}; both must be "
                "above 0"
            )
        local.held_out_weight = float(weights[1])

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
    if not len(own):
        return {}
    first = int(own[0]), int(other[0])
    if (own == first[0]).all() and (other == first[1]).all():
        return {first: ratings}
    low, n_others = int(other.min()), int(other.max()) - int(other.min()) + 1
    keys = own.astype(np.int64) * n_others + (other - low)
    order, counts = counted_order(keys), np.bincount(keys)
    found = np.flatnonzero(counts)
    parts = np.split(order, np.cumsum(counts[found])[:-1])
    return {
        (int(key) // n_others, int(key) % n_others + low): ratings.take(part)
        for key, part in zip(found, parts, strict=True)
    }
