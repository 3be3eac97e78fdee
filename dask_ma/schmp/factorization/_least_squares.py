"""Alternating least squares by normal equations.

Each rank adds up the equations of its users block by block, and solves them when the
rotation ends; then those of its items. Where not all equations fit into memory, some of
the users are solved for in each of several rotations.
"""

from __future__ import annotations

import numpy as np

from dask_ma.kernels import (
    NormalEquations,
    add_elements,
    losses_of_rows,
    solve_rows,
    solve_rows_nonnegative,
)
from dask_ma.schmp.factorization._alternating import ALL, AlternatingFactorization
from dask_ma.schmp.factorization._program import LocalRatings
from dask_ma.schmp.runtime._ring import ParameterBlock
from dask_ma.schmp.runtime._rotation_program import Turn


class LeastSquaresFactorization(AlternatingFactorization):
    """Users, and items, at the optimum with the others fixed."""

    def gather(self, block: ParameterBlock, local: LocalRatings, turn: Turn) -> None:
        """Add a visiting block to the equations of those that are at home."""
        side, _ = self.phase(turn.rotation)
        opposite = self.opposite(block.values["factors"], side)
        for home in self._solved_for(turn, local):
            self._add(home, block.number, opposite, local)

    def _add(
        self,
        home: int,
        visiting: int,
        opposite: tuple[np.ndarray, np.ndarray | None],
        local: LocalRatings,
    ) -> None:
        """Add factors of the other side to the equations of a home block."""
        batches = local.batches.get((home, visiting))
        if batches is not None:
            add_elements(self._sums(home, local), batches, *opposite)

    def solve(
        self,
        block: ParameterBlock,
        local: LocalRatings,
        turn: Turn,
        gram: np.ndarray | None,
    ) -> tuple[float, float] | None:
        """Solve the equations of a block, if they are those of this rotation."""
        if block.number not in self._solved_for(turn, local):
            return None
        side, _ = self.phase(turn.rotation)
        if local.collected is not None:
            self._add(block.number, ALL, self.opposite_of_all(local, side), local)
        equations = self._sums(block.number, local)
        del local.sums[block.number]
        ridges = self.ridges(block.parameters, local)
        if self.params.positive:
            columns = self.columns(side)
            start = block.values["factors"][:, columns]
            is_free = columns < self.params.first_factor
            found = solve_rows_nonnegative(equations, ridges, start, is_free, gram)
        else:
            found = solve_rows(equations, ridges, gram)
        loss = losses_of_rows(equations, found, gram).sum() if side == 1 else 0.0
        return float(loss), self.put(block, found, ridges, side)

    def _solved_for(self, turn: Turn, local: LocalRatings) -> list[int]:
        """Home blocks that a rotation solves for."""
        side, place = self.phase(turn.rotation)
        own = [b.number for b in turn.home if local.is_item[b.number] == side]
        return own[place :: self.params.n_chunks[side]]

    def _sums(self, home: int, local: LocalRatings) -> NormalEquations:
        """Equations of a home block in this rotation."""
        if home not in local.sums:
            n_factors = self.params.n_columns - self.params.has_bias
            local.sums[home] = NormalEquations.zeros(
                len(local.parameters[home]), n_factors, np.dtype(self.params.dtype)
            )
        return local.sums[home]
