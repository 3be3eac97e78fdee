"""The interface of a program whose parameters travel from rank to rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_ma.comm import Group
from dask_ma.data import Shard
from dask_ma.schmp.runtime._ring import ParameterBlock
from dask_ma.schmp.runtime._rotation_schedule import Rotation, RotationRequest


@dataclass(frozen=True)
class Turn:
    """When and where a rank works.

    Attributes
    ----------
    rotation : int
        Number of the rotation, from 0.
    iteration : int
        Number of the sub-iteration in it, from 0; at the end of a rotation, how many
        there were.
    rng : numpy.random.Generator
        Random numbers of this turn. They depend on the seed of the run, the rotation,
        the sub-iteration and the block alone, not on the cluster.
    home : tuple of ParameterBlock
        Blocks that are on this rank now and whose home it is, by their numbers.
    """

    rotation: int
    iteration: int
    rng: np.random.Generator
    home: tuple[ParameterBlock, ...]


class RotationProgram(ABC):
    """A program whose parameters travel from rank to rank, while the data stay.

    The parameters are cut into blocks, of which each is on one rank at a time. That
    rank changes it with its own rows (`update`) and sends it on: no copy of a parameter
    is ever out of date, and no rank has the whole model. When a block has been on all
    ranks, it has seen all rows; this is a rotation. What little all ranks have to know
    at any time is `shared`: its changes are added up at the end of a rotation, and of
    each time that the blocks go round in it, where :meth:`laps` says that they go round
    several times.

    `P` ranks do, bit for bit, what one would do that makes the updates in the order of
    sub-iterations, ranks and blocks.

    The model is all values of all blocks and what is shared. What :meth:`prepare` and
    :meth:`arrange` return is made from the data; it is made anew when a rank begins
    again elsewhere, so nothing that has been learnt may be in it.

    Attributes
    ----------
    rotation : dask_ma.schmp.schedules.Rotation
        How the parameters are cut into blocks, and how these travel.

    See Also
    --------
    run : Runs a program.

    Examples
    --------
    Medians of columns by steps up and down, which depend on the order of the rows; each
    column meets the rows of one rank after the other:

    >>> import numpy as np
    >>> from dask_ma.schmp import RotationProgram, run
    >>> class Medians(RotationProgram):
    ...     def prepare(self, shard, group):
    ...         return np.vstack([block.X for block in shard.blocks])
    ...     def weights(self, local):
    ...         return np.full(local.shape[1], len(local))
    ...     def initial_block(self, parameters, local, rng):
    ...         return {"median": np.zeros(len(parameters))}
    ...     def update(self, block, local, shared, turn):
    ...         median, step = block.values["median"], 1 / (1 + turn.rotation)
    ...         for row in local[:, block.parameters]:
    ...             median += step * np.sign(row - median)
    >>> X = np.arange(30.0).reshape(10, 3)
    >>> result = run(Medians(), X, n_iterations=50, n_ranks=2)
    >>> bool(np.abs(result.model["median"] - np.median(X, axis=0)).max() < 2)
    True
    """

    rotation: Rotation = Rotation()

    def prepare(self, shard: Shard, group: Group) -> Any:
        """Make what this rank keeps of its rows; a collective call.

        Parameters
        ----------
        shard : Shard
            Rows of this rank; there may be none.
        group : Group
            This rank among the others.

        Returns
        -------
        local : object
            What the other methods get; the shard itself unless overridden.
        """
        return shard

    def laps(self, local: Any, rotation: int) -> int:
        """How often blocks go round all ranks in a rotation; the same on all ranks.

        Parameters
        ----------
        local : object
            What :meth:`prepare` and :meth:`arrange` have made.
        rotation : int
            Number of the rotation, from 0.

        Returns
        -------
        laps : int
            1 unless overridden. After each lap, ranks wait for each other, and
            :meth:`aggregate` is called.
        """
        return 1

    @abstractmethod
    def weights(self, local: Any) -> np.ndarray:
        """Work that each parameter means to this rank.

        Parameters
        ----------
        local : object
            What :meth:`prepare` has returned.

        Returns
        -------
        work : ndarray of shape (n_parameters,)
            For example the number of stored elements of each column in this rank's
            rows; finite, not negative, of the same length on all ranks.
        """

    def blocks(self, work: np.ndarray, n_ranks: int) -> list[list[np.ndarray]]:
        """Cut the parameters into blocks; the same on all ranks.

        Unless overridden, as `rotation` does.

        Parameters
        ----------
        work : ndarray of float64 of shape (n_parameters,)
            Sum of :meth:`weights` over all ranks.
        n_ranks : int
            Number of ranks.

        Returns
        -------
        blocks : list of list of ndarray of int64
            Parameters of the blocks that each rank has at the beginning and at the end
            of a rotation. Together all parameters, each once. Blocks are numbered in
            this order.
        """
        return self.rotation.blocks(work, n_ranks)

    def arrange(self, local: Any, blocks: list[np.ndarray], group: Group) -> Any:
        """Lay the data out for the blocks; a collective call, once.

        Parameters
        ----------
        local : object
            What :meth:`prepare` has returned.
        blocks : list of ndarray of int64
            Parameters of each block, by the numbers of the blocks.
        group : Group
            This rank among the others.

        Returns
        -------
        local : object
            What the later methods get; `local` as it is unless overridden.
        """
        return local

    @abstractmethod
    def initial_block(
        self, parameters: np.ndarray, local: Any, rng: np.random.Generator
    ) -> dict[str, Any]:
        """Values of a block to begin with; called where its home is.

        Parameters
        ----------
        parameters : ndarray of int64 of shape (k,)
            Parameters of the block.
        local : object
            What :meth:`arrange` has returned.
        rng : numpy.random.Generator
            Random numbers of this block.

        Returns
        -------
        values : dict of str to ndarray or csr_array of shape (k, ...)
            Of the same names, types and shapes behind the first axis for all blocks.
        """

    def initial_shared(self, local: Any, group: Group) -> dict[str, np.ndarray]:
        """What all ranks know besides; a collective call.

        Parameters
        ----------
        local : object
            What :meth:`arrange` has returned.
        group : Group
            This rank among the others.

        Returns
        -------
        shared : dict of str to ndarray
            Small arrays, the same on all ranks; nothing unless overridden.
        """
        return {}

    def lose_rows(
        self,
        home: tuple[ParameterBlock, ...],
        local: Any,
        shared: dict[str, Any],
        group: Group,
    ) -> dict[str, Any]:
        """Forget rows that a run has lost and goes on without; a collective call.

        Blocks, and what is shared, are those of all rows then, for example counts of
        them; `local` is made of those that are left.

        Parameters
        ----------
        home : tuple of ParameterBlock
            Blocks whose home this is, by their numbers; they may be changed.
        local : object
            What :meth:`arrange` has returned.
        shared : dict of str to ndarray, read-only
            What all ranks know.
        group : Group
            This rank among the others.

        Returns
        -------
        shared : dict of str to ndarray
            Of the same names and shapes; `shared` as it is unless overridden.
        """
        return shared

    def schedule(self, request: RotationRequest) -> list[list[int]]:
        """Blocks that each rank works on in a sub-iteration; called on every rank.

        Unless overridden, what `rotation` says.

        Parameters
        ----------
        request : RotationRequest
            What is asked for.

        Returns
        -------
        jobs : list of list of int
            For each rank the numbers of its blocks, in the order of the updates. A
            block may be on one rank only; those that are left out stay where they are.
        """
        return self.rotation(request)

    @abstractmethod
    def update(
        self, block: ParameterBlock, local: Any, shared: dict[str, Any], turn: Turn
    ) -> dict[str, Any] | None:
        """Change the values of a block with the data of this rank.

        Parameters
        ----------
        block : ParameterBlock
            The block, which is nowhere else now; it has at least one parameter. Its
            arrays must not be kept.
        local : object
            What :meth:`arrange` has returned.
        shared : dict of str to ndarray, read-only
            What all ranks know.
        turn : Turn
            When this is, and what else is here.

        Returns
        -------
        change : dict of str to array-like or None
            What :meth:`aggregate` gets of it, summed over blocks and ranks: for names
            of `shared`, arrays of their shapes. Names that are left out count as 0.
        """

    def begin_rotation(
        self, home: tuple[ParameterBlock, ...], local: Any, shared: dict[str, Any]
    ) -> None:
        """Work before a rotation, when all blocks are at home; nothing by default.

        Here a program knows what :meth:`aggregate` has made of the rotation before, and
        can keep the values that have led to it.

        Parameters
        ----------
        home : tuple of ParameterBlock
            Blocks whose home this is, by their numbers; they may be changed.
        local : object
            What :meth:`arrange` has returned.
        shared : dict of str to ndarray, read-only
            What all ranks know.
        """

    def end_rotation(
        self, local: Any, shared: dict[str, Any], turn: Turn
    ) -> dict[str, Any] | None:
        """Work that needs all of this rank's updates; when all blocks are at home.

        Parameters
        ----------
        local : object
            What :meth:`arrange` has returned.
        shared : dict of str to ndarray, read-only
            What all ranks know.
        turn : Turn
            The blocks whose home this is are in ``turn.home``; they may be changed.

        Returns
        -------
        change : dict of str to array-like or None
            As that of :meth:`update`; added to the changes of the rotation.
        """
        return None  # most programs have made all their changes

    def aggregate(
        self, change: dict[str, np.ndarray], shared: dict[str, Any]
    ) -> dict[str, Any]:
        """What all ranks know next; called on every rank, after a rotation.

        That is after :meth:`end_rotation`, whose changes are among those. Where
        :meth:`laps` is more than 1, it is called after each lap before the last, too,
        with the changes of that lap alone and without :meth:`end_rotation`. With
        ``synchronize="iteration"``, after each sub-iteration and once more after
        :meth:`end_rotation`.

        Parameters
        ----------
        change : dict of str to ndarray
            Sums over all ranks and blocks, one for each name in `shared`: of float64,
            or of int64 for integers.
        shared : dict of str to ndarray, read-only
            What all ranks know now.

        Returns
        -------
        shared : dict of str to ndarray
            Of the same names and shapes; the sum of both unless overridden.
        """
        return {
            name: (value + change[name]).astype(value.dtype)
            for name, value in shared.items()
        }

    def measure(
        self, home: tuple[ParameterBlock, ...], local: Any, shared: dict[str, Any]
    ) -> np.ndarray:
        """Sums that the report of a round needs, of this rank's rows and blocks.

        Parameters
        ----------
        home : tuple of ParameterBlock
            Blocks whose home this is, by their numbers.
        local : object
            What :meth:`arrange` has returned.
        shared : dict of str to ndarray, read-only
            What all ranks know.

        Returns
        -------
        sums : ndarray of float64 of shape (m,)
            Of the same length on all ranks; added up over ranks.
        """
        return np.zeros(0)

    def report(self, sums: np.ndarray, shared: dict[str, Any]) -> dict[str, float]:
        """What the history says of a round, e.g. ``{"objective": ...}``.

        Parameters
        ----------
        sums : ndarray of float64 of shape (m,)
            Sums of :meth:`measure` over all ranks.
        shared : dict of str to ndarray, read-only
            What all ranks know.

        Returns
        -------
        report : dict of str to float
        """
        return {}

    def has_converged(self, records: list[dict[str, Any]]) -> bool:
        """Whether the run can end after a round; asked on rank 0.

        Parameters
        ----------
        records : list of dict
            The history so far, since rows were lost if some were.

        Returns
        -------
        converged : bool
        """
        return False

    def n_touched(self, local: Any) -> int | None:
        """Elements of the data that this rank reads in a rotation, for the history.

        Parameters
        ----------
        local : object
            What :meth:`arrange` has returned.

        Returns
        -------
        n_touched : int or None
            None stands for the sum of :meth:`weights` of this rank.
        """
        return None
