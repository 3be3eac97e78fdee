"""Alternating least squares by conjugate gradients.

Where all items are collected, all steps of a user are taken at once. Else a rank
gathers in a first rotation where its users are pulled, and in each further one it
multiplies their directions by their equations, which are never there as a whole. What
it keeps between the rotations of a round begins anew with the round, so nothing of it
need be saved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_ma.kernels import (
    RowDescent,
    add_products,
    add_pulls,
    begin_rows,
    descend_batch,
    descend_rows,
    losses_of_descent,
)
from dask_ma.schmp.factorization._alternating import ALL, AlternatingFactorization
from dask_ma.schmp.factorization._program import LocalRatings
from dask_ma.schmp.runtime._ring import ParameterBlock
from dask_ma.schmp.runtime._rotation_program import Turn


@dataclass
class _Rows:
    """What a home block is on the way to its new factors."""

    pulls: np.ndarray  # (n, f), sums over the elements
    products: np.ndarray  # (n, f), too
    constants: np.ndarray  # (n,), float64
    descent: RowDescent | None = None  # none in the first rotation


class ConjugateGradientFactorization(AlternatingFactorization):
    """Some steps of each user, and of each item, with the others fixed."""

    def is_whole(self, local: LocalRatings, side: int) -> bool:
        """Whether a side is solved for with all of the other one at hand."""
        return local.is_alone or super().is_whole(local, side)

    def is_solved_in(self, side: int, place: int) -> bool:
        """Whether a rotation is the last for a side; the others gather."""
        return place == self.params.n_places[side] - 1

    def gather(self, block: ParameterBlock, local: LocalRatings, turn: Turn) -> None:
        """Gather what a visiting block means to those that are at home."""
        side, place = self.phase(turn.rotation)
        factors = block.values["factors"]
        near, offsets = self.opposite(factors, side)
        for home in turn.home:
            batches = local.batches.get((home.number, block.number))
            if batches is None:
                continue
            rows = self._rows(home, local, side, is_first=place == 0)
            if rows.descent is None:
                own = home.values["factors"][:, self.columns(side)]
                parts = rows.pulls, rows.products, rows.constants
                add_pulls(*parts, batches, near, own, offsets)
            else:
                add_products(rows.products, batches, near, rows.descent.directions)

    def solve(
        self,
        block: ParameterBlock,
        local: LocalRatings,
        turn: Turn,
        gram: np.ndarray | None,
    ) -> tuple[float, float] | None:
        """Take a step, and after the last one put the factors into the block."""
        side, place = self.phase(turn.rotation)
        is_last = self.is_solved_in(side, place)
        ridges = self.ridges(block.parameters, local)
        if self.is_whole(local, side):
            if not is_last:
                return None  # all is here, and done in the last rotation
            found, loss = self._descended(block, local, side, ridges, gram)
        else:
            rows = self._stepped(block, local, turn, ridges, gram)
            if not is_last:
                return None
            assert rows.descent is not None
            found = rows.descent.factors
            loss = losses_of_descent(rows.descent, rows.constants, ridges).sum()
            del local.sums[block.number]
        return float(loss), self.put(block, found, ridges, side)

    def _descended(
        self,
        block: ParameterBlock,
        local: LocalRatings,
        side: int,
        ridges: np.ndarray,
        gram: np.ndarray | None,
    ) -> tuple[np.ndarray, float]:
        """Factors and loss after all steps, where all elements of the rows are here."""
        found = block.values["factors"][:, self.columns(side)]
        near, offsets = self.opposite_of_all(local, side)
        loss = 0.0
        for batch in local.batches.get((block.number, ALL), ()):
            descent, constants = descend_batch(
                batch, near, found, ridges, self.params.cg_steps, gram, offsets
            )
            loss += losses_of_descent(descent, constants, ridges[batch.rows]).sum()
            found[batch.rows] = descent.factors
        return found, loss

    def _stepped(
        self,
        block: ParameterBlock,
        local: LocalRatings,
        turn: Turn,
        ridges: np.ndarray,
        gram: np.ndarray | None,
    ) -> _Rows:
        """A step of a block by what has been gathered for it, the first to begin."""
        side, place = self.phase(turn.rotation)
        rows = self._rows(block, local, side, is_first=place == 0)
        if rows.descent is None:
            own = block.values["factors"][:, self.columns(side)]
            rows.descent = begin_rows(own, rows.pulls, rows.products, ridges, gram)
        else:
            descend_rows(rows.descent, rows.products, ridges, gram)
        rows.products = np.zeros_like(rows.pulls)
        return rows

    def _rows(
        self, block: ParameterBlock, local: LocalRatings, side: int, *, is_first: bool
    ) -> _Rows:
        """What has been gathered of a home block in this round."""
        rows: _Rows | None = local.sums.get(block.number)
        if rows is not None and not (is_first and rows.descent is not None):
            return rows
        own = block.values["factors"][:, self.columns(side)]
        rows = _Rows(np.zeros_like(own), np.zeros_like(own), np.zeros(len(own)))
        local.sums[block.number] = rows
        return rows
