"""The parameter manager of rotations: blocks on this rank, and their way on.

A block goes on as soon as its update is made, while the rank works on the next one; the
block after that has come meanwhile. A rank may be ahead of another by one sub-iteration
at most: before it sends what the other needs in sub-iteration `c`, that one has to have
ended ``c - 2``. So a rank never has more than the blocks of three sub-iterations, its
own and those of two others in its mailbox, however slow it is.

Each permission is a message. There are none where blocks are small: a slow rank may
then have all that it is sent in the rotation.

The rank that is furthest behind waits for nobody: all have sent what it needs, and all
have room for what it sends. So ranks cannot wait for each other in a circle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from dask_ma.comm import Group
from dask_ma.data import n_bytes
from dask_ma.schmp.runtime._encoding import decode, encode
from dask_ma.schmp.runtime._route import Route

SMALL = 16 * 2**20  # bytes that a rank is sent in a rotation and that may all lie there


@dataclass
class ParameterBlock:
    """Some parameters of the model while they are on a rank.

    Attributes
    ----------
    number : int
        Which block this is.
    parameters : ndarray of int64 of shape (k,), read-only
        Its parameters, in increasing order.
    values : dict of str to ndarray or csr_array of shape (k, ...)
        Their values. Arrays may be changed in place or replaced. Sparse rows travel,
        and are kept, as such; those that were saved, and are gone on from, come as
        dense ones.
    """

    number: int
    parameters: np.ndarray
    values: dict[str, Any]

    def __len__(self) -> int:
        return len(self.parameters)


@dataclass
class Ring:
    """The blocks on this rank in one rotation.

    Parameters
    ----------
    group : Group
        This rank.
    parameters : list of ndarray of int64
        Parameters of every block.
    held : dict of int to ParameterBlock
        Blocks that are here; changed as they come and go.
    most_held : int, default=0
        Most blocks that were here at a time, those in the mailbox left out.
    """

    group: Group
    parameters: list[np.ndarray]
    held: dict[int, ParameterBlock]
    most_held: int = 0
    _route: Route = field(default_factory=lambda: Route([], [[]]))
    _rotation: int = 0
    _may_pile_up: bool = False
    _ready: set[tuple[int, int]] = field(default_factory=set)

    @property
    def n_bytes(self) -> int:
        """Bytes of the blocks that are here."""
        values = (block.values.values() for block in self.held.values())
        return sum(map(n_bytes, chain.from_iterable(values)))

    def begin(self, rotation: int, route: Route, *, may_pile_up: bool = False) -> None:
        """Begin a rotation, in which blocks take `route`.

        Parameters
        ----------
        rotation : int
        route : Route
        may_pile_up : bool, default=False
            Whether blocks are sent without leave; the same on all ranks.
        """
        self._rotation, self._route = rotation, route
        self._may_pile_up = may_pile_up
        self._ready.clear()
        for block, dest in route.departures(0, self.group.rank).items():
            self._push(block, dest, 0)

    def send_idle(self, iteration: int) -> None:
        """Send on what is needed elsewhere next, and not worked on here before."""
        rank = self.group.rank
        busy = set(self._route.jobs[iteration][rank])
        for block, dest in self._route.departures(iteration + 1, rank).items():
            if block not in busy:
                self._push(block, dest, iteration + 1)

    def take(self, block: int, iteration: int) -> ParameterBlock:
        """A block to work on in a sub-iteration, after waiting for it."""
        sources = self._route.arrivals(iteration, self.group.rank)
        if block in sources:
            self._receive(block, sources[block], iteration)
        return self.held[block]

    def send_on(self, block: int, iteration: int) -> None:
        """Send a block on after its update, if it is needed elsewhere next."""
        dest = self._route.departures(iteration + 1, self.group.rank).get(block)
        if dest is not None:
            self._push(block, dest, iteration + 1)

    def end_iteration(self, iteration: int) -> None:
        """Tell those who send the blocks of the next but one that they may."""
        if iteration + 2 < len(self._route.moves) and not self._may_pile_up:
            sources = self._route.arrivals(iteration + 2, self.group.rank).values()
            for source in sorted(set(sources)):
                self.group.push(None, source, ("room", self._rotation, iteration + 2))

    def end(self) -> None:
        """Wait for the blocks whose home this is."""
        last = len(self._route.moves) - 1
        for block, source in self._route.arrivals(last, self.group.rank).items():
            self._receive(block, source, last)

    def _push(self, block: int, dest: int, iteration: int) -> None:
        """Send a block to where it is needed in a sub-iteration."""
        needs_leave = iteration >= 2 and not self._may_pile_up
        if needs_leave and (dest, iteration) not in self._ready:
            self.group.recv(dest, ("room", self._rotation, iteration))
            self._ready.add((dest, iteration))
        tag = ("block", self._rotation, iteration, block)
        self.group.push(encode(self.held.pop(block).values), dest, tag, copy=False)

    def _receive(self, block: int, source: int, iteration: int) -> None:
        """Wait for a block; it becomes this rank's."""
        tag = ("block", self._rotation, iteration, block)
        values = decode(self.group.recv(source, tag))
        self.held[block] = ParameterBlock(block, self.parameters[block], values)
        self.most_held = max(self.most_held, len(self.held))
