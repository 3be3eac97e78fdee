"""Rotation: blocks of parameters that go from rank to rank in a ring."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_ma.schmp.runtime._balance import balanced_parts, even_parts

_BALANCES = ("work", "even")
_BARRIERS = ("rotation", "iteration")


@dataclass(frozen=True)
class RotationRequest:
    """What the schedule of a rotation is asked for.

    Attributes
    ----------
    rotation : int
        Number of the rotation, from 0.
    iteration : int
        Number of the sub-iteration in it, from 0 on; there are `n_ranks` in a lap.
    n_ranks : int
        Number of ranks.
    home : tuple of tuple of int
        For each rank the blocks that begin and end each rotation there, the heaviest
        first.
    rng : numpy.random.Generator
        Random numbers of this sub-iteration, the same on all ranks.
    """

    rotation: int
    iteration: int
    n_ranks: int
    home: tuple[tuple[int, ...], ...]
    rng: np.random.Generator


class Rotation:
    """Every block visits every rank once in a lap, along a ring.

    A rotation is one lap, unless a program says otherwise.

    In sub-iteration `c` rank `p` works on the blocks whose home is rank
    ``(p - c) % n_ranks``, the heaviest first: no two ranks ever have the same parameter
    (``scheduleStaticRota`` of [1]_). While a rank works on one block, the one before is
    on its way to the next rank.

    Parameters
    ----------
    blocks_per_rank : int, default=4
        Blocks that a rank has at a time, at least 1. With one, sending and computing
        cannot overlap; with many, blocks become small and each costs a message.
    balance : {"work", "even"}, default="work"
        How parameters are shared out: blocks of equal work, or ranges of equally many
        parameters. Where few parameters make most of the work, ranges are uneven.
    synchronize : {"rotation", "iteration"}, default="rotation"
        When all ranks wait for each other, and what they have found out together
        becomes known: after each rotation, and each lap of one (macro
        synchronisation), or after each sub-iteration (micro synchronisation), which
        takes longer.

    References
    ----------
    .. [1] J. K. Kim, Q. Ho, S. Lee, X. Zheng, W. Dai, G. A. Gibson, E. P. Xing,
       "STRADS: A distributed framework for scheduled model parallel machine learning",
       EuroSys 2016.
    """

    def __init__(
        self,
        blocks_per_rank: int = 4,
        *,
        balance: str = "work",
        synchronize: str = "rotation",
    ) -> None:
        if blocks_per_rank < 1:
            raise ValueError(
                f"blocks_per_rank must be at least 1, got {blocks_per_rank}"
            )
        if balance not in _BALANCES:
            raise ValueError(f'balance must be "work" or "even", got {balance!r}')
        if synchronize not in _BARRIERS:
            raise ValueError(
                f'synchronize must be "rotation" or "iteration", got {synchronize!r}'
            )
        self.blocks_per_rank = blocks_per_rank
        self.balance = balance
        self.synchronize = synchronize

    def blocks(self, work: np.ndarray, n_ranks: int) -> list[list[np.ndarray]]:
        """Share the parameters out over blocks.

        Parameters
        ----------
        work : ndarray of float64 of shape (n_parameters,)
            Work of each parameter on all ranks together.
        n_ranks : int
            Number of ranks.

        Returns
        -------
        blocks : list of list of ndarray of int64
            For each rank the parameters of the blocks whose home it is, the heaviest
            block first. The blocks of a rank travel together, so their sum is the same
            on all ranks, though one parameter may be heavier than a block should be.
        """
        if self.balance == "even":
            cut = even_parts(len(work), n_ranks * self.blocks_per_rank)
            m = self.blocks_per_rank
            blocks = [cut[r * m : (r + 1) * m] for r in range(n_ranks)]
        else:
            blocks = [
                [part[inner] for inner in self._cut(work[part])]
                for part in balanced_parts(work, n_ranks)
            ]
        return [_heaviest_first(own, work) for own in blocks]

    def __call__(self, request: RotationRequest) -> list[list[int]]:
        """Blocks of each rank in a sub-iteration, in the order of their updates.

        Parameters
        ----------
        request : RotationRequest
            What is asked for.

        Returns
        -------
        jobs : list of list of int
        """
        n, c = request.n_ranks, request.iteration
        return [list(request.home[(rank - c) % n]) for rank in range(n)]

    def _cut(self, work: np.ndarray) -> list[np.ndarray]:
        """The blocks of one rank."""
        return balanced_parts(work, self.blocks_per_rank)


def _heaviest_first(blocks: list[np.ndarray], work: np.ndarray) -> list[np.ndarray]:
    """Blocks by their work."""
    order = np.argsort([-work[block].sum() for block in blocks], kind="stable")
    return [blocks[place] for place in order]
