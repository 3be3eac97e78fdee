"""Alternating least squares by conjugate gradients.

In a first rotation each rank gathers where its users are pulled, in each further one
it multiplies their directions by their equations, which are never there as a whole.
What it keeps between the rotations of a round begins anew with the round, so nothing of
it need be saved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_ma.kernels import (
    RowBatch,
    RowDescent,
    add_products,
    add_pulls,
    begin_rows,
    descend_batch,
    descend_rows,
    losses_of_descent,
)
from dask_ma.schmp.factorization._alternating import SIDES, AlternatingFactorization
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

    def descend(
        self,
        batches: list[RowBatch],
        near: np.ndarray,
        offsets: np.ndarray | None,
        own: np.ndarray,
        ridges: np.ndarray,
        gram: np.ndarray | None,
        n_steps: int,
    ) -> None:
        """All steps, where all elements of all rows are here."""
        assert self.descent is not None
        for batch in batches:
            found, constants = descend_batch(
                batch, near, own, ridges, n_steps, gram, offsets
            )
            for whole, part in zip(self.descent, found, strict=True):
                whole[batch.rows] = part
            self.constants[batch.rows] = constants


class ConjugateGradientFactorization(AlternatingFactorization):
    """Some steps of each user, and of each item, with the others fixed."""

    def train(
        self,
        block: ParameterBlock,
        local: LocalRatings,
        shared: dict[str, Any],
        turn: Turn,
    ) -> None:
        """Gather what a visiting block means to those that are at home."""
        side, place = self.phase(turn.rotation)
        if local.is_alone and place < self.params.n_places[side] - 1:
            return  # all is here, and done in the last rotation
        factors = block.values["factors"]
        near = self.solved_columns(factors, side)
        gram = shared[SIDES[1 - side]] if self._counts_all() else None
        for home in turn.home:
            batches = local.batches.get((home.number, block.number))
            if batches is None:
                continue
            rows = self._rows(home, local, side, is_first=place == 0)
            own = home.values["factors"][:, self.columns(side)]
            offsets = self.offsets(factors, side)
            if local.is_alone:
                rows.descend(
                    batches,
                    near,
                    offsets,
                    own,
                    self.ridges(home.parameters, local),
                    gram,
                    self.params.cg_steps,
                )
            elif rows.descent is None:
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
        is_last = place == self.params.n_places[side] - 1
        if local.is_alone and not is_last:
            return None
        rows = self._rows(block, local, side, is_first=place == 0)
        ridges = self.ridges(block.parameters, local)
        if not local.is_alone:
            if rows.descent is None:
                own = block.values["factors"][:, self.columns(side)]
                rows.descent = begin_rows(own, rows.pulls, rows.products, ridges, gram)
            else:
                descend_rows(rows.descent, rows.products, ridges, gram)
            rows.products = np.zeros_like(rows.pulls)
        if not is_last:
            return None
        del local.sums[block.number]
        assert rows.descent is not None
        loss = losses_of_descent(rows.descent, rows.constants, ridges).sum()
        return float(loss), self.put(block, rows.descent.factors, ridges, side)

    def _rows(
        self, block: ParameterBlock, local: LocalRatings, side: int, *, is_first: bool
    ) -> _Rows:
        """What has been gathered of a home block in this round."""
        rows: _Rows | None = local.sums.get(block.number)
        if rows is not None and not (is_first and rows.descent is not None):
            return rows
        own = block.values["factors"][:, self.columns(side)]
        zeros = np.zeros_like(own)
        rows = _Rows(zeros, zeros.copy(), np.zeros(len(own)))
        if local.is_alone:
            rows.descent = RowDescent(own.copy(), zeros.copy(), zeros.copy(), zeros)
        local.sums[block.number] = rows
        return rows

    def _counts_all(self) -> bool:
        """Whether pairs count that are not stored."""
        return self.params.feedback == "implicit"
