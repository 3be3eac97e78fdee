"""Alternating least squares in rotations.

Users are solved for while the items travel past them: each rank adds up the normal
equations of its users block by block, and solves them when the rotation ends. Then the
users travel past the items. Where not all equations fit into memory, some of the users
are solved for in each of several rotations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.comm import Group, allreduce
from dask_ma.kernels import (
    NormalEquations,
    add_elements,
    losses_of_rows,
    row_batches,
    solve_rows,
)
from dask_ma.schmp.factorization._program import (
    Factorization,
    LocalRatings,
    by_pairs,
)
from dask_ma.schmp.factorization._ratings import Ratings
from dask_ma.schmp.runtime._ring import ParameterBlock
from dask_ma.schmp.runtime._rotation_program import Turn
from dask_ma.schmp.runtime._rotation_schedule import RotationRequest

_SIDES = "users", "items"


class LeastSquaresFactorization(Factorization):
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
        rank_of, block_of = self.place(local, blocks, group.size)
        ratings = local.ratings
        if self.params.feedback == "implicit":
            ratings = _added_up(ratings, group, rank_of)
        for side, name in enumerate(_SIDES):
            here = ratings.sent_to(group, rank_of[ratings[side]])
            own, other = here[side], here[1 - side]
            pairs = by_pairs(here, block_of[own], block_of[other])
            for (home, visiting), found in pairs.items():
                local.batches[home, visiting] = self._batches(
                    found, local, blocks[home], blocks[visiting], name
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
                gram += _gram(p.initial_factors(parameters, rated))
        [gram] = allreduce(group, [gram])
        return {
            **super().initial_shared(local, group),
            "users": np.zeros_like(gram),
            "items": gram,
            "penalties": np.zeros(2),
            "loss": np.zeros(()),
            "step": np.zeros((), dtype=np.int64),
        }

    def schedule(self, request: RotationRequest) -> list[list[int]]:
        """Blocks of the side that is not solved for travel."""
        side, _ = self._phase(request.rotation)
        return self.rotating(request, is_item=side == 0)

    def update(
        self,
        block: ParameterBlock,
        local: LocalRatings,
        shared: dict[str, Any],
        turn: Turn,
    ) -> None:
        """Add a visiting block to the equations of those that are at home."""
        side, _ = self._phase(turn.rotation)
        factors = block.values["factors"]
        # Next to the ones of those that are solved for are the biases of the others.
        ones = self.params.fixed_columns[side]
        offsets = None if ones is None else factors[:, ones]
        kept = self._solved_columns(factors, side)
        for home in self._solved_for(turn, local):
            batches = local.batches.get((home, block.number))
            if batches is not None:
                add_elements(self._sums(home, local), batches, kept, offsets)

    def end_rotation(
        self, local: LocalRatings, shared: dict[str, Any], turn: Turn
    ) -> dict[str, Any]:
        """Solve the equations."""
        side, _ = self._phase(turn.rotation)
        gram = None
        if self.params.feedback == "implicit":
            gram = shared[_SIDES[1 - side]]
        change: dict[str, Any] = {name: 0 * shared[name] for name in _SIDES}
        change |= {"penalties": np.zeros(2), "loss": 0.0}
        wanted = set(self._solved_for(turn, local))
        for block in turn.home:
            if block.number in wanted:
                loss, penalty = self._solve(block, local, side, gram)
                change["loss"] += loss
                change["penalties"][side] += penalty
                change[_SIDES[side]] += _gram(block.values["factors"])
        local.sums.clear()
        return change

    def aggregate(
        self, change: dict[str, np.ndarray], shared: dict[str, Any]
    ) -> dict[str, Any]:
        """Sums over the chunks of a side, and with the last the objective."""
        step = int(shared["step"])
        side, chunk = self._phase(step)
        after = {**shared, "step": np.array(step + 1)}
        for name in (_SIDES[side], "penalties", "loss"):
            before = np.array(shared[name])
            if chunk == 0:
                before[side if name == "penalties" else ...] = 0
            after[name] = before + change[name]
        if side == 1 and chunk == self.params.n_chunks[1] - 1:
            total = after["loss"] + after["penalties"].sum()
            after["objective"] = np.array(total)
        return after

    def _phase(self, rotation: int) -> tuple[int, int]:
        """Side that a rotation solves for, and which part of it."""
        n_users, n_items = self.params.n_chunks
        place = rotation % (n_users + n_items)
        return (0, place) if place < n_users else (1, place - n_users)

    def _solved_for(self, turn: Turn, local: LocalRatings) -> list[int]:
        """Home blocks that a rotation solves for."""
        side, chunk = self._phase(turn.rotation)
        own = [b.number for b in turn.home if local.is_item[b.number] == side]
        return own[chunk :: self.params.n_chunks[side]]

    def _sums(self, home: int, local: LocalRatings) -> NormalEquations:
        """Equations of a home block in this rotation."""
        if home not in local.sums:
            n_factors = self.params.n_columns - self.params.has_bias
            local.sums[home] = NormalEquations.zeros(
                len(local.parameters[home]), n_factors, np.dtype(self.params.dtype)
            )
        return local.sums[home]

    def _solve(
        self,
        block: ParameterBlock,
        local: LocalRatings,
        side: int,
        gram: np.ndarray | None,
    ) -> tuple[float, float]:
        """Solve for a block; its loss and penalty."""
        equations = self._sums(block.number, local)
        ridges = self.ridges(block.parameters, local)
        found = solve_rows(equations, ridges, gram)
        factors = np.array(block.values["factors"])
        factors[:, self._solved(side)] = found
        block.values["factors"] = factors
        # That of all pairs, when both sides have been solved for.
        loss = losses_of_rows(equations, found, gram).sum() if side == 1 else 0.0
        penalty = ridges @ np.einsum("nf,nf->n", found, found, dtype=np.float64)
        return float(loss), float(penalty)

    def _solved(self, side: int) -> np.ndarray:
        """Columns of a side that are solved for: all but the ones."""
        columns = np.arange(self.params.n_columns)
        return columns[columns != self.params.fixed_columns[side]]

    def _solved_columns(self, factors: np.ndarray, side: int) -> np.ndarray:
        """What the columns that are solved for are multiplied with."""
        return np.ascontiguousarray(factors[:, self._solved(side)])

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
    values = np.add.reduceat(here.values * here.weights, starts)
    return Ratings(here.users[starts], here.items[starts], values, np.ones(len(starts)))


def _gram(factors: np.ndarray) -> np.ndarray:
    """Gram matrix in double precision."""
    double = factors.astype(np.float64)
    return double.T @ double
