"""Alternating least squares in rotations: what its ways to solve share.

Users are solved for while the items travel past them, then items while the users travel
past them, on a second copy of the ratings. A side that is small is collected as it
passes, and the rows are solved for when all of it is there.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.kernels import row_batches
from dask_ma.schmp.factorization._program import (
    Factorization,
    LocalRatings,
    by_pairs,
)
from dask_ma.schmp.factorization._ratings import Ratings
from dask_ma.schmp.runtime._ring import ParameterBlock
from dask_ma.schmp.runtime._rotation_program import Turn
from dask_ma.schmp.runtime._rotation_schedule import RotationRequest

SIDES = "users", "items"
#: In the place of a visiting block: all of its side.
ALL = -1
_IN_DOUBLE = 2**14  # rows at a time


class AlternatingFactorization(Factorization):
    """Alternating least squares, for ratings and for implicit feedback.

    With implicit feedback every pair counts: those without an element have the value 0
    and the weight 1, the others the value 1, or 0 if they are negative, and the weight
    ``1 + confidence * abs(value)``. What the former add is the Gram matrix of the other
    side, which all ranks know.
    """

    def arrange(
        self, local: LocalRatings, blocks: list[np.ndarray], group: Group
    ) -> LocalRatings:
        """Send the ratings to their users, and once more to their items."""
        rank_of, block_of = self.place(local, blocks, group)
        here, local.ratings = local.ratings, local.ratings.take(slice(0))
        if self.params.feedback == "implicit":
            here = _added_up(here, group, rank_of)
        for side, name in enumerate(SIDES):
            here = here.sent_to(group, rank_of[here[side]])
            own, other = block_of[here[side]], np.broadcast_to(ALL, len(here.users))
            if not self.is_whole(local, side):
                other = block_of[here[1 - side]]
            for (home, visiting), found in by_pairs(here, own, other).items():
                columns = (
                    self._side_of(1 - side) if visiting == ALL else blocks[visiting]
                )
                local.batches[home, visiting] = self._batches(
                    found, local, blocks[home], columns, name
                )
        return local

    def initial_shared(
        self, local: LocalRatings, group: Group
    ) -> dict[str, np.ndarray]:
        """Gram matrices, penalties, and the objective."""
        p = self.params
        rank_blocks = np.array_split(np.arange(len(local.parameters)), group.size)
        gram = np.zeros((p.n_columns, p.n_columns))
        for block in rank_blocks[group.rank]:
            if local.is_item[block]:
                parameters = local.parameters[block]
                rated = local.totals.weights[parameters]
                scale = self.scale(local)
                gram += gram_of(p.initial_factors(parameters, rated, scale))
        [gram] = allreduce(group, [gram])
        return {
            **super().initial_shared(local, group),
            "users": np.zeros_like(gram),
            "items": gram,
            "penalties": np.zeros(2),
            "loss": np.zeros(()),
        }

    def schedule(self, request: RotationRequest) -> list[list[int]]:
        """Blocks of the side that is not solved for travel."""
        side, _ = self.phase(request.rotation)
        return self.rotating(request, is_item=side == 0)

    def train(
        self,
        block: ParameterBlock,
        local: LocalRatings,
        shared: dict[str, Any],
        turn: Turn,
    ) -> None:
        """Collect a visiting block, or gather what it means to those at home."""
        side, place = self.phase(turn.rotation)
        if not self.is_whole(local, side):
            self.gather(block, local, turn)
        elif self.is_solved_in(side, place):
            p, first = self.params, 0 if side else self.params.n_users
            if local.collected is None:
                shape = p.n_users if side else p.n_items, p.n_columns
                local.collected = np.zeros(shape, dtype=p.dtype)
            local.collected[block.parameters - first] = block.values["factors"]

    def is_whole(self, local: LocalRatings, side: int) -> bool:
        """Whether a side is solved for with all of the other one at hand."""
        return self.params.collects[side]

    def is_solved_in(self, side: int, place: int) -> bool:
        """Whether a rotation solves for some of a side; else it only gathers."""
        return True

    @abstractmethod
    def gather(self, block: ParameterBlock, local: LocalRatings, turn: Turn) -> None:
        """Keep what a visiting block means to those that are at home."""

    def end_rotation(
        self, local: LocalRatings, shared: dict[str, Any], turn: Turn
    ) -> dict[str, Any] | None:
        """Change those at home by what the rotation has gathered."""
        if self.params.is_evaluation(turn.rotation):
            return None
        side, _ = self.phase(turn.rotation)
        gram = None
        if self.params.feedback == "implicit":
            gram = shared[SIDES[1 - side]]
        change = {name: 0 * shared[name] for name in (*SIDES, "penalties")}
        change["loss"] = np.zeros(())
        for block in turn.home:
            if local.is_item[block.number] == side:
                found = self.solve(block, local, turn, gram)
                if found is not None:
                    change["loss"] += found[0] if side == 1 else 0.0
                    change["penalties"][side] += found[1]
                    change[SIDES[side]] += gram_of(block.values["factors"])
        local.collected = local.opposite = None
        return change

    @abstractmethod
    def solve(
        self,
        block: ParameterBlock,
        local: LocalRatings,
        turn: Turn,
        gram: np.ndarray | None,
    ) -> tuple[float, float] | None:
        """Change a block at home; its loss and penalty, None while it is not done."""

    def trained(
        self, change: dict[str, np.ndarray], shared: dict[str, Any], step: int
    ) -> dict[str, Any]:
        """Sums over the rotations for a side, and with the last the objective."""
        side, place = self.phase(step)
        after = dict(shared)
        for name in (SIDES[side], "penalties", "loss"):
            before = np.array(shared[name])
            if place == 0:
                before[side if name == "penalties" else ...] = 0
            after[name] = before + change[name]
        if side == 1 and place == self.params.n_places[1] - 1:
            total = after["loss"] + after["penalties"].sum()
            after["objective"] = np.where(np.isfinite(total), total, np.nan)
        return after

    @property
    def cure(self) -> str:
        """What to do about factors without a bound."""
        return (
            f"with alpha={self.params.alpha}; choose a larger alpha, or dtype='float64'"
        )

    def phase(self, rotation: int) -> tuple[int, int]:
        """Side that a rotation solves for, and its place among those of the side."""
        n_users, n_items = self.params.n_places
        place = rotation % self.params.rotations_per_round
        if place < n_users or place >= n_users + n_items:
            return 0, place % n_users  # items travel to be looked at, too
        return 1, place - n_users

    def columns(self, side: int) -> np.ndarray:
        """Columns of a side that are solved for: all but the ones."""
        columns = np.arange(self.params.n_columns)
        return columns[columns != self.params.fixed_columns[side]]

    def opposite(
        self, factors: np.ndarray, side: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """What the columns solved for are multiplied with, and biases to take off."""
        # Next to the ones of those that are solved for are the biases of the others.
        ones = self.params.fixed_columns[side]
        if ones is None:
            return np.ascontiguousarray(factors), None
        return np.ascontiguousarray(factors[:, self.columns(side)]), factors[:, ones]

    def opposite_of_all(
        self, local: LocalRatings, side: int
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The same of all that is collected, for all blocks at home."""
        assert local.collected is not None
        if local.opposite is None:
            local.opposite = self.opposite(local.collected, side)
        return local.opposite

    def put(
        self, block: ParameterBlock, found: np.ndarray, ridges: np.ndarray, side: int
    ) -> float:
        """Change the factors of a block; their penalty."""
        factors = np.array(block.values["factors"])
        factors[:, self.columns(side)] = found
        block.values["factors"] = factors
        return float(ridges @ np.einsum("nf,nf->n", found, found, dtype=np.float64))

    def _side_of(self, side: int) -> np.ndarray:
        """All users, or all items, as parameters."""
        p = self.params
        return p.n_users + np.arange(p.n_items) if side else np.arange(p.n_users)

    def _batches(
        self,
        ratings: Ratings,
        local: LocalRatings,
        rows: np.ndarray,
        columns: np.ndarray,
        by: str,
    ) -> Any:
        """Batches of the elements of a home block that belong to a visiting one."""
        p = self.params
        matrix, weights = ratings.matrix(rows, columns, by, np.dtype(p.dtype))
        if p.feedback == "explicit":
            matrix.data -= p.dtype(self.center(local))
            matrix.data /= p.dtype(self.scale(local))
            return row_batches(matrix, weights, weights)
        more = p.dtype(p.confidence) * np.abs(matrix.data) * weights
        matrix.data = (matrix.data > 0).astype(p.dtype)
        return row_batches(matrix, more, 1 + more)


def _added_up(ratings: Ratings, group: Group, rank_of: np.ndarray) -> Ratings:
    """Implicit feedback with the elements of each pair added up; a collective call."""
    here = ratings.sent_to(group, rank_of[ratings.users])
    if not len(here.users):
        return here
    differs = (np.diff(here.users) != 0) | (np.diff(here.items) != 0)
    starts = np.r_[0, np.flatnonzero(differs) + 1]
    values = np.add.reduceat(here.values * here.all_weights(), starts)
    return Ratings(here.users[starts], here.items[starts], values, None)


def gram_of(factors: np.ndarray) -> np.ndarray:
    """Gram matrix in double precision, which some rows at a time are brought to."""
    gram = np.zeros((factors.shape[1], factors.shape[1]))
    for start in range(0, len(factors), _IN_DOUBLE):
        double = factors[start : start + _IN_DOUBLE].astype(np.float64)
        gram += double.T @ double
    return gram
