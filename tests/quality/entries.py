"""Everything that is judged: linear models, paths, networks, topics, factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from .cells import Cell, every_cell, spread
from .contestants import CONTESTANTS
from .factors import (
    Atoms,
    Distances,
    every_atom_cell,
    every_distance_cell,
    judge_atoms,
    judge_distances,
)
from .networks import NETWORKS, every_network_cell, judge_network
from .paths import Paths, every_path_cell, judge_paths
from .rule import Result, judge
from .topics import Topics, every_topic_cell, judge_topics


@dataclass(frozen=True)
class Entry:
    """An estimator with a penalty, its cells, and who judges them.

    Attributes
    ----------
    contestant : Contestant, Paths, Network, Topics, Distances or Atoms
    cells : list of Cell
    judge : callable
        Fits a cell, and returns a `Result`.
    """

    contestant: Any
    cells: list[Cell]
    judge: Callable[[Cell], Result]

    @property
    def name(self) -> str:
        """Of the estimator, with loss and penalty."""
        return str(self.contestant)

    def sample(self, size: int) -> list[Cell]:
        """So many cells, with each set, layout and number of ranks equally often."""
        return spread(self.cells, size, self.name)


def _entry(who: Any, cells: list[Cell], judge_one: Any) -> Entry:
    return Entry(who, cells, partial(judge_one, who))


ENTRIES = [
    *(_entry(one, every_cell(one.task), judge) for one in CONTESTANTS),
    _entry(Paths(), every_path_cell(), judge_paths),
    *(_entry(one, every_network_cell(one), judge_network) for one in NETWORKS),
    _entry(Topics(), every_topic_cell(), judge_topics),
    _entry(Distances(), every_distance_cell(), judge_distances),
    _entry(Atoms(), every_atom_cell(), judge_atoms),
]
