"""The way of the blocks through a rotation, worked out from its schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple


class Move(NamedTuple):
    """A block that goes from one rank to another.

    Attributes
    ----------
    block, source, dest : int
        Which, from where, where to.
    """

    block: int
    source: int
    dest: int


class Route(NamedTuple):
    """What happens to the blocks in a rotation.

    Attributes
    ----------
    jobs : list of list of list of int
        In each sub-iteration, for each rank: the blocks that it works on.
    moves : list of list of Move
        What has to travel before each sub-iteration; the last are the ways home, after
        all of them.
    """

    jobs: list[list[list[int]]]
    moves: list[list[Move]]

    @classmethod
    def of(
        cls,
        jobs: Sequence[Sequence[Sequence[int]]],
        home: Sequence[Sequence[int]],
        where: str,
    ) -> Route:
        """Follow the blocks from rank to rank.

        Parameters
        ----------
        jobs : sequence
            In each sub-iteration, for each rank: the blocks that it works on.
        home : sequence of sequence of int
            Blocks of each rank before and after the rotation.
        where : str
            Begins the message of an error.

        Raises
        ------
        ValueError
            If a block is on two ranks at once, or is none.
        """
        at_home = {block: rank for rank, own in enumerate(home) for block in own}
        holder = dict(at_home)
        moves = []
        for number, per_rank in enumerate(jobs):
            _check(per_rank, at_home, len(home), f"{where}, sub-iteration {number},")
            wanted = [(b, rank) for rank, own in enumerate(per_rank) for b in own]
            moves.append(_moves(wanted, holder))
        moves.append(_moves(list(at_home.items()), holder))
        plain = [[[int(b) for b in own] for own in per_rank] for per_rank in jobs]
        return cls(plain, moves)

    def arrivals(self, iteration: int, rank: int) -> dict[int, int]:
        """Blocks that come to a rank for a sub-iteration, and from where."""
        moves = self.moves[iteration]
        return {move.block: move.source for move in moves if move.dest == rank}

    def most_visits(self) -> int:
        """How often a block comes to one rank at most; 1 for a lap of all ranks."""
        visits = Counter((move.block, move.dest) for move in chain(*self.moves))
        return max(visits.values(), default=0)

    def departures(self, iteration: int, rank: int) -> dict[int, int]:
        """Blocks that leave a rank for a sub-iteration, and where to."""
        moves = self.moves[iteration]
        return {move.block: move.dest for move in moves if move.source == rank}


def _moves(wanted: list[tuple[int, int]], holder: dict[int, int]) -> list[Move]:
    """What has to travel so that each block is where it is wanted."""
    moves = [
        Move(int(block), holder[block], rank)
        for block, rank in wanted
        if holder[block] != rank
    ]
    for move in moves:
        holder[move.block] = move.dest
    return moves


def _check(
    per_rank: Sequence[Sequence[int]], known: dict[int, int], n_ranks: int, where: str
) -> None:
    """Refuse what cannot be carried out."""
    if len(per_rank) != n_ranks:
        raise ValueError(
            f"{where} has jobs for {len(per_rank)} ranks, expected {n_ranks}"
        )
    seen: dict[int, int] = {}
    for rank, own in enumerate(per_rank):
        for block in own:
            if block not in known:
                raise ValueError(
                    f"{where} names block {block!r}, expected numbers from 0 to "
                    f"{len(known) - 1}"
                )
            if block in seen:
                raise ValueError(
                    f"{where} gives block {block} to rank {seen[block]} and to rank "
                    f"{rank}; a block can be on one rank at a time"
                )
            seen[block] = rank
