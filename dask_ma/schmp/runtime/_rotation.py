"""The static engine: rotations of a program's blocks (section 3.3.1 of the paper).

A rank in a rotation, with four ranks and two blocks for each::

    rank 0   update 0, 1 | update 6, 7 | update 4, 5 | update 2, 3 | 0, 1 are back
                   0 -> rank 1 while 1 is updated, 6 has come from rank 3 by then

Only neighbours wait for each other, and only at the end of a rotation everybody does:
changes of what is shared are added up then (macro synchronisation). A program may have
blocks go round several times in a rotation: everybody waits after each lap. In each
sub-iteration the order of the blocks is fixed, so what a rank computes does not depend
on the network.
"""

from __future__ import annotations

import copy
from numbers import Integral
from typing import Any

import numpy as np
from scipy import sparse

from dask_ma.comm import allreduce
from dask_ma.engine import RankContext, RoundLog, State
from dask_ma.schmp.runtime._block_states import (
    ModelPart,
    flat_state,
    gather_model,
    placed_values,
)
from dask_ma.schmp.runtime._dynamic import Counts
from dask_ma.schmp.runtime._ring import SMALL, ParameterBlock, Ring
from dask_ma.schmp.runtime._rotation_program import RotationProgram, Turn
from dask_ma.schmp.runtime._rotation_schedule import RotationRequest
from dask_ma.schmp.runtime._route import Route

_SHARED = "shared."  # begins the names of what is shared, in a state
_INITIAL, _TURN, _SCHEDULE = range(3)  # what random numbers are for


class RotationEngine:
    """Runs a rotation program on the ranks of a group; every rank has one.

    Making one is a collective call. The program is copied, so that ranks of one process
    do not share an object.

    Parameters
    ----------
    context : RankContext
        This rank.
    program : RotationProgram
        The program, the same on all ranks.
    shard : Shard
        Rows of this rank.
    log : RoundLog, default=None
        Where the time of computing is counted; one of its own if None.
    state : State, default=None
        What was saved of :meth:`state_dict` and :meth:`own_state_dict`, to go on from.

    Attributes
    ----------
    program : RotationProgram
        This rank's own copy.
    local : object
        What the program keeps on this rank.
    shared : dict of str to ndarray
        What all ranks know.
    parameters : list of ndarray of int64
        Parameters of each block.
    home : tuple of tuple of int
        Blocks of each rank between rotations.
    iteration : int
        Number of the next rotation.
    log : RoundLog
        Time of computing.
    """

    def __init__(
        self,
        context: RankContext,
        program: RotationProgram,
        shard: Any,
        *,
        log: RoundLog | None = None,
        state: State | None = None,
    ) -> None:
        self._group = context.group
        self._entropy: Any = context.seed.entropy
        self._n_rows = shard.n_rows
        self.log = RoundLog(context) if log is None else log
        self.program = copy.deepcopy(program)
        with context.span("compute"):
            local = self.program.prepare(shard, self._group)
            own_work = self._own_work(local)
            [self._work] = allreduce(self._group, [own_work])
            blocks = self.program.blocks(self._work, self._group.size)
            self.home, self.parameters = self._numbered(blocks)
            self.local = self.program.arrange(local, self.parameters, self._group)
            touched = self.program.n_touched(self.local)
            self._touched = round(own_work.sum()) if touched is None else int(touched)
            held = self._initial_blocks() if state is None else self._blocks_of(state)
            self._ring = Ring(self._group, self.parameters, held)
            self.shared = _frozen(self._initial_shared(state))
        self.iteration = 0 if state is None else int(state.shared["iteration"])
        self._imbalance = 1.0
        self._n_bytes = np.inf  # of all blocks, after a rotation

    @property
    def model(self) -> dict[int, dict[str, np.ndarray]]:
        """Values of the blocks whose home this rank is, by their numbers."""
        return {block.number: block.values for block in self._at_home()}

    @property
    def most_held(self) -> int:
        """Most blocks that this rank has held at a time."""
        return self._ring.most_held

    def state_dict(self) -> dict[str, Any]:
        """What a later engine needs to go on from here, as far as all ranks have it.

        Returns
        -------
        state : dict
            "iteration", and what is shared; arrays are never changed afterwards.
        """
        shared = {f"{_SHARED}{name}": value for name, value in self.shared.items()}
        return {"iteration": self.iteration, **shared}

    def own_state_dict(self) -> dict[str, np.ndarray]:
        """What only this rank has: copies of the blocks whose home it is."""
        return flat_state(self._at_home())

    def lose_rows(self) -> None:
        """Go on with a state of more rows than there are now; a collective call."""
        home, group = self._at_home(), self._group
        shared = self.program.lose_rows(home, self.local, self.shared, group)
        self._check_shared(shared)
        self.shared = _frozen(shared)

    def run(self, n_iterations: int) -> Counts:
        """Make some rotations; a collective call.

        Parameters
        ----------
        n_iterations : int
            How many, not negative.

        Returns
        -------
        counts : Counts

        Raises
        ------
        ValueError
            If the program schedules what cannot be carried out, or returns what does
            not fit.
        FitFailedError
            If another rank has failed, or a wait takes longer than configured.
        """
        n_updates = sum(self._rotate() for _ in range(n_iterations))
        # All blocks are home, so whatever was sent of them has arrived: to ask for the
        # answers would be messages without news.
        self._group.take_back()
        return Counts(
            n_iterations,
            n_updates,
            n_iterations * self._touched,
            n_iterations * self._n_rows,
        )

    def measure(self) -> np.ndarray:
        """The program's sums over this rank's rows, to be added up over ranks."""
        with self.log.computing("evaluate"):
            sums = self.program.measure(self._at_home(), self.local, self.shared)
        return np.asarray(sums, dtype=np.float64)

    def report(self, sums: np.ndarray) -> dict[str, Any]:
        """The program's report, from the sums over all ranks, and `imbalance`.

        That is the work of the rank that has most in each sub-iteration over the mean,
        as far as the schedule can tell.
        """
        with self.log.computing("evaluate"):
            report = self.program.report(sums, self.shared)
        return {"imbalance": self._imbalance, **report}

    def collect(self) -> dict[str, np.ndarray] | None:
        """The whole model, on rank 0; a collective call.

        Returns
        -------
        model : dict of str to ndarray, or None
            Values of all parameters, in their order, and what is shared. None but on
            rank 0.
        """
        self._check_names()
        values = gather_model(self._group, self._at_home(), self.parameters, self.home)
        return None if values is None else {**values, **self.shared}

    def part(self) -> ModelPart:
        """What this rank has of the model, in its order of blocks."""
        self._check_names()
        blocks = self._at_home()
        return ModelPart(
            [block.parameters for block in blocks],
            [block.values for block in blocks],
            dict(self.shared) if self._group.rank == 0 else {},
        )

    def _check_names(self) -> None:
        """Refuse a name of values of blocks that is one of what is shared, too."""
        for block in self._at_home():
            taken = sorted(set(block.values) & set(self.shared))
            if taken:
                raise ValueError(
                    f"{taken[0]!r} is a name of values of blocks and of what is shared "
                    f"in {type(self.program).__name__}; choose another for one of them"
                )

    # A rotation ----------------------------------------------------------------------

    def _rotate(self) -> int:
        """Make a rotation; number of parameters updated, on all ranks together."""
        rank, size, micro = self._group.rank, self._group.size, self._is_micro()
        route = self._route()
        change = self._no_change()
        with self.log.computing():
            self.program.begin_rotation(self._at_home(), self.local, self.shared)
        # What a rank is sent, at most; another rotation may move other blocks.
        may_pile_up = (
            self._n_bytes <= SMALL and self._n_bytes * route.most_visits() <= SMALL
        )
        self._ring.begin(self.iteration, route, may_pile_up=may_pile_up)
        for number, jobs in enumerate(route.jobs):
            self._ring.send_idle(number)
            for block in jobs[rank]:
                self._update(block, number, change)
            self._ring.end_iteration(number)
            is_lap = not (number + 1) % size and number + 1 < len(route.jobs)
            if micro or is_lap:
                change = self._aggregate(change)
        self._ring.end()
        turn = self._turn(len(route.jobs), len(self.parameters))
        with self.log.computing():
            self._add(change, self.program.end_rotation(self.local, self.shared, turn))
        self._aggregate(change)
        self.iteration += 1
        jobs_of_all = [block for jobs in route.jobs for own in jobs for block in own]
        return sum(len(self.parameters[block]) for block in jobs_of_all)

    def _route(self) -> Route:
        """The way of the blocks in this rotation."""
        size = self._group.size
        jobs = [
            self.program.schedule(
                RotationRequest(
                    self.iteration,
                    number,
                    size,
                    self.home,
                    self._rng(_SCHEDULE, number, 0),
                )
            )
            for number in range(size * self._laps())
        ]
        where = f"schedule of {type(self.program).__name__}, rotation {self.iteration}"
        route = Route.of(jobs, self.home, where)
        self._imbalance = self._imbalance_of(route)
        return route

    def _laps(self) -> int:
        """How often blocks go round in this rotation, as the program has it."""
        laps = self.program.laps(self.local, self.iteration)
        if not isinstance(laps, Integral) or laps < 1:
            raise ValueError(
                f"laps of {type(self.program).__name__} returned {laps!r}, expected a "
                "whole number from 1 on"
            )
        return int(laps)

    def _update(self, number: int, iteration: int, change: dict[str, Any]) -> None:
        """Wait for a block, have the program change it, and send it on."""
        block = self._ring.take(number, iteration)
        if len(block):
            with self.log.computing():
                found = self.program.update(
                    block, self.local, self.shared, self._turn(iteration, number)
                )
                self._add(change, found)
            self._check_values(block)
        self._ring.send_on(number, iteration)

    def _aggregate(self, change: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Change what is shared by what all ranks have found; a collective call."""
        names = sorted(change)
        # Without anything to add up, too: all ranks wait for each other here.
        own = np.array([self._ring.n_bytes])
        *sums, whole = allreduce(self._group, [*(change[name] for name in names), own])
        self._n_bytes = float(whole[0])
        if names:
            with self.log.computing():
                shared = self.program.aggregate(
                    dict(zip(names, sums, strict=True)), self.shared
                )
            self._check_shared(shared)
            self.shared = _frozen(shared)
        return self._no_change()

    def _no_change(self) -> dict[str, np.ndarray]:
        """Zeros for all that is shared."""
        return {
            name: np.zeros(value.shape, np.int64 if value.dtype.kind in "biu" else None)
            for name, value in self.shared.items()
        }

    def _add(self, change: dict[str, Any], found: dict[str, Any] | None) -> None:
        """Add what an update has returned."""
        for name, value in (found or {}).items():
            if name not in change or np.shape(value) != change[name].shape:
                raise ValueError(
                    f"{type(self.program).__name__} returned a change of {name!r} of "
                    f"shape {np.shape(value)}, expected what is shared: "
                    f"{ {n: v.shape for n, v in change.items()} }"
                )
            change[name] += np.asarray(value)

    def _turn(self, iteration: int, number: int) -> Turn:
        """When and where this rank works now."""
        rng = self._rng(_TURN, iteration, number)
        return Turn(self.iteration, iteration, rng, self._at_home())

    def _rng(self, purpose: int, iteration: int, number: int) -> np.random.Generator:
        """Random numbers that all runs with this seed have at this point."""
        rotation = 0 if purpose == _INITIAL else self.iteration
        key = (purpose, rotation, iteration, number)
        # Ranks have keys of one number.
        return np.random.default_rng(
            np.random.SeedSequence(self._entropy, spawn_key=key)
        )

    def _at_home(self) -> tuple[ParameterBlock, ...]:
        """Blocks here whose home this is, by their numbers."""
        held = self._ring.held
        return tuple(held[n] for n in sorted(self.home[self._group.rank]) if n in held)

    def _is_micro(self) -> bool:
        return self.program.rotation.synchronize == "iteration"

    def _imbalance_of(self, route: Route) -> float:
        """Largest over mean work of a rank, over the sub-iterations of a rotation."""
        work = [self._work[parameters].sum() for parameters in self.parameters]
        loads = np.array(
            [[sum(work[b] for b in own) for own in jobs] for jobs in route.jobs]
        )
        mean = loads.mean(axis=1).sum()
        return float(loads.max(axis=1).sum() / mean) if mean > 0 else 1.0

    # Around the rotations ------------------------------------------------------------

    def _own_work(self, local: Any) -> np.ndarray:
        """Work of each parameter on this rank, checked."""
        work = np.asarray(self.program.weights(local), dtype=np.float64)
        if work.ndim != 1 or not np.isfinite(work).all() or (work < 0).any():
            raise ValueError(
                f"weights of {type(self.program).__name__} returned an array of shape "
                f"{work.shape}, expected finite numbers from 0 on of shape "
                "(n_parameters,)"
            )
        return work

    def _numbered(
        self, blocks: list[list[np.ndarray]]
    ) -> tuple[tuple[tuple[int, ...], ...], list[np.ndarray]]:
        """Numbers of each rank's blocks, and the parameters of each block."""
        home, parameters, first = [], [], 0
        for own in blocks:
            home.append(tuple(range(first, first + len(own))))
            parameters += [_read_only(np.sort(block)) for block in own]
            first += len(own)
        together = np.sort(np.concatenate([np.empty(0, np.int64), *parameters]))
        is_all = np.array_equal(together, np.arange(len(self._work)))
        if len(blocks) != self._group.size or not is_all:
            raise ValueError(
                f"blocks of {type(self.program).__name__} returned {len(together)} "
                f"parameters for {len(blocks)} ranks, expected each of "
                f"{len(self._work)} once for {self._group.size} ranks"
            )
        return tuple(home), parameters

    def _initial_blocks(self) -> dict[int, ParameterBlock]:
        """Blocks of this rank as the program begins with them."""
        held = {}
        for number in self.home[self._group.rank]:
            parameters, rng = self.parameters[number], self._rng(_INITIAL, 0, number)
            values = self.program.initial_block(parameters, self.local, rng)
            arrays = {
                name: value.copy() if sparse.issparse(value) else np.array(value)
                for name, value in values.items()
            }
            held[number] = ParameterBlock(number, parameters, arrays)
            self._check_values(held[number])
        return held

    def _blocks_of(self, state: State) -> dict[int, ParameterBlock]:
        """Blocks of this rank as they were saved; a collective call."""
        own = self.home[self._group.rank]
        values = placed_values(
            self._group, state, [self.parameters[number] for number in own]
        )
        return {
            number: ParameterBlock(number, self.parameters[number], found)
            for number, found in zip(own, values, strict=True)
        }

    def _initial_shared(self, state: State | None) -> dict[str, np.ndarray]:
        """What all ranks know to begin with; a collective call."""
        if state is None:
            shared = self.program.initial_shared(self.local, self._group)
            return {name: np.array(value) for name, value in shared.items()}
        return {
            name.removeprefix(_SHARED): value
            for name, value in state.shared.items()
            if name.startswith(_SHARED)
        }

    def _check_values(self, block: ParameterBlock) -> None:
        """Refuse arrays that do not have a row for each parameter."""
        for name, array in block.values.items():
            is_array = isinstance(array, (np.ndarray, sparse.csr_array))
            if not is_array or array.shape[:1] != (len(block),):
                raise ValueError(
                    f"{type(self.program).__name__} has given a block of {len(block)} "
                    f"parameters {name!r} of shape {np.shape(array)}; the first axis "
                    "of an array counts the parameters"
                )

    def _check_shared(self, shared: dict[str, Any]) -> None:
        """Refuse another kind of what is shared."""
        before = {name: value.shape for name, value in self.shared.items()}
        now = {name: np.shape(value) for name, value in shared.items()}
        if before != now:
            raise ValueError(
                f"aggregate of {type(self.program).__name__} returned {now}, expected "
                f"arrays of the shapes {before}"
            )


def _frozen(shared: dict[str, Any]) -> dict[str, np.ndarray]:
    """Arrays that cannot be written to."""
    return {name: _read_only(np.asarray(value)) for name, value in shared.items()}


def _read_only(array: np.ndarray) -> np.ndarray:
    """A view that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view
