"""Schedulers: ranks that each schedule a share of the parameters."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: The parameters of one job for all executors, or one job for each of them.
Jobs = np.ndarray | list[np.ndarray]


class Schedulers(NamedTuple):
    """Which ranks schedule, and which parameters each of them does.

    Attributes
    ----------
    ranks : tuple of int
        Rank of each scheduler.
    partitions : tuple of range
        Parameters of each scheduler; together all parameters of the model.
    seed : int
        Seed of the run.
    alone : bool
        Whether each works alone on what it schedules, without other executors.
    """

    ranks: tuple[int, ...]
    partitions: tuple[range, ...]
    seed: int
    alone: bool = False

    @classmethod
    def spread(cls, wanted: int, size: int, n_parameters: int, seed: int) -> Schedulers:
        """`wanted` schedulers, as far as there are so many ranks and parameters."""
        n = max(1, min(wanted, size, n_parameters))
        bounds = [n_parameters * i // n for i in range(n + 1)]
        return cls(
            tuple(size * i // n for i in range(n)),
            tuple(range(a, b) for a, b in zip(bounds, bounds[1:], strict=False)),
            seed,
        )

    @classmethod
    def of_owners(
        cls, owned: list[range], n_parameters: int, seed: int, where: str
    ) -> Schedulers:
        """Every rank that has parameters of its own schedules them.

        Parameters
        ----------
        owned : list of range
            Parameters of each rank; some may be empty.
        n_parameters : int
            Number of parameters.
        seed : int
            Seed of the run.
        where : str
            Begins the message of an error.

        Raises
        ------
        ValueError
            If the ranges are not all parameters, each once.
        """
        ranks = [rank for rank, own in enumerate(owned) if len(own)]
        ordered = sorted((owned[rank] for rank in ranks), key=lambda own: own.start)
        stops = [own.stop for own in ordered]
        fit = [own.start for own in ordered] == [0, *stops[:-1]]
        steps = {own.step for own in ordered}
        if not (ranks and fit and steps == {1} and stops[-1] == n_parameters):
            raise ValueError(
                f"{where} returned {owned} on the ranks, expected ranges that together "
                f"are range(0, {n_parameters}), without common elements"
            )
        partitions = tuple(owned[rank] for rank in ranks)
        return cls(tuple(ranks), partitions, seed, alone=True)

    def rank_of(self, iteration: int) -> int:
        """Rank that schedules an iteration and adds up its results."""
        return self.ranks[iteration % len(self.ranks)]

    def partition_of(self, rank: int) -> range | None:
        """Parameters that a rank schedules; None for a rank that schedules nothing."""
        return self.partitions[self.ranks.index(rank)] if rank in self.ranks else None
