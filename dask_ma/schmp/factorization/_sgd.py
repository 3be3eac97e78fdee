"""Stochastic gradient descent in rotations: the matrix factorization of the paper.

Users stay on their rank, blocks of items travel. No two ranks ever have the same user
or the same item, so steps are safe that are safe for one rank.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.comm import Group
from dask_ma.kernels import Side, sgd_step, step_batches
from dask_ma.schmp.factorization._program import (
    Factorization,
    LocalRatings,
    by_pairs,
)
from dask_ma.schmp.runtime._ring import ParameterBlock
from dask_ma.schmp.runtime._rotation_program import Turn
from dask_ma.schmp.runtime._rotation_schedule import RotationRequest

_LOST = 2.0  # times the errors of the mean: beyond, steps only make them larger


class SGDFactorization(Factorization):
    """Steps on batches of ratings, with a rate for each user and item."""

    def arrange(
        self, local: LocalRatings, blocks: list[np.ndarray], group: Group
    ) -> LocalRatings:
        """Send the ratings to their users, and deal them out over batches."""
        rank_of, block_of = self.place(local, blocks, group)
        here = local.ratings.sent_to(group, rank_of[local.ratings.users])
        local.ratings = here.take(slice(0))
        dtype = np.dtype(self.params.dtype)
        pairs = by_pairs(here, block_of[here.users], block_of[here.items])
        for (home, visiting), found in pairs.items():
            rows, columns = blocks[home], blocks[visiting]
            local.batches[home, visiting] = step_batches(
                np.searchsorted(rows, found.users),
                np.searchsorted(columns, found.items),
                self.standardized(found.values.astype(np.float64), local).astype(dtype),
                found.all_weights().astype(dtype),
                (len(rows), len(columns)),
                self.params.batch_size,
                np.random.default_rng([self.params.seed, home, visiting]),
            )
        return local

    def initial_block(
        self, parameters: np.ndarray, local: LocalRatings, rng: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Factors, and sums of squared gradients."""
        squares = np.ones(len(parameters), dtype=self.params.dtype)
        return {**super().initial_block(parameters, local, rng), "squares": squares}

    def initial_shared(
        self, local: LocalRatings, group: Group
    ) -> dict[str, np.ndarray]:
        """The errors of the mean alone, too, or of 0 without biases."""
        deviation = local.totals.deviation(self.center(local)) / self.scale(local)
        of_the_mean = local.totals.weights.sum() / 2 * deviation**2
        return {
            **super().initial_shared(local, group),
            "of_the_mean": np.array(of_the_mean),
        }

    def schedule(self, request: RotationRequest) -> list[list[int]]:
        """Blocks of items travel."""
        return self.rotating(request, is_item=True)

    def train(
        self,
        block: ParameterBlock,
        local: LocalRatings,
        shared: dict[str, Any],
        turn: Turn,
    ) -> dict[str, Any]:
        """Steps on the ratings that the users here have given to a block of items."""
        loss = 0.0
        right = self._side_of(block, local, 1)
        for home in turn.home:
            batches = local.batches.get((home.number, block.number))
            if batches is not None:
                left = self._side_of(home, local, 0)
                # What overflows is noticed when the rotation ends.
                with np.errstate(over="ignore", invalid="ignore"):
                    for place in turn.rng.permutation(len(batches)):
                        loss += sgd_step(batches[place], left, right, self.params.eta0)
        return {"objective": loss}

    def trained(
        self, change: dict[str, np.ndarray], shared: dict[str, Any], step: int
    ) -> dict[str, Any]:
        """The errors that the steps of the rotation have met."""
        found = change["objective"]
        # In the first rotation steps may be long until the rates have fallen.
        is_lost = step > 0 and found > _LOST * shared["of_the_mean"]
        if self.params.early_stopping:
            is_lost = False  # the best of the rounds is kept
        if is_lost or not np.isfinite(found):
            found = np.array(np.nan)
        return {**shared, "objective": found}

    @property
    def cure(self) -> str:
        """What to do about steps that are too long."""
        return (
            f"with steps of eta0={self.params.eta0}; choose a smaller eta0, or "
            "solver='als', which has no steps"
        )

    def _side_of(self, block: ParameterBlock, local: LocalRatings, side: int) -> Side:
        """A block as the kernels see it."""
        weights = local.totals.weights[block.parameters]
        ridges = self.ridges(block.parameters, local)
        alphas = np.divide(
            ridges, weights, out=np.zeros_like(ridges), where=weights > 0
        )
        return Side(
            block.values["factors"],
            block.values["squares"],
            alphas.astype(self.params.dtype),
            self.params.fixed_columns[side],
            self.params.first_factor if self.params.positive else None,
        )
