"""Memory for steps on the whole objective, which take many times the model."""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np
from dask.utils import format_bytes

from dask_ma.comm import Group, allgather
from dask_ma.data import memory_here
from dask_ma.exceptions import InsufficientMemoryError

logger = logging.getLogger("dask_ma.sfb")

_MOST = 0.5  # of the limit of a process, that these steps may take
_SMALL = 2**28  # bytes that are not asked about
_MEMORY, _MOST_STORED = 10, 2**28  # pairs of BFGS at most, and numbers in them
# Numbers that rank 0 has for each coefficient, besides those for pairs: the point, its
# gradient and the next one, units, penalties and places, and what finds a step.
_OF_ROOT, _OF_PAIR = 12, 2
_OF_BLOCKS = 16  # bytes for a second derivative, with those of factors
_OF_RANK = 8  # those of each rank: gradients, found and sent, and matrices
# Those for a bound alone: a gradient, one that is sent and the whole matrix, and sums
# of the rows of each class.
_OF_BOUND, _OF_BOUND_ROOT = 3, 2


class Room(NamedTuple):
    """What there is memory for.

    Attributes
    ----------
    steps : bool
        Steps on the whole objective.
    blocks : bool
        Second derivatives within outputs besides.
    bound : bool
        A lower bound of the objective, once.
    lacks : str
        What steps would take, where there is no room for them.
    """

    steps: bool = True
    blocks: bool = True
    bound: bool = True
    lacks: str = ""


def count_pairs(n_variables: int) -> int:
    """Pairs of steps and changes of gradients that BFGS may have.

    Parameters
    ----------
    n_variables : int

    Returns
    -------
    n_pairs : int
        1 at least.
    """
    return max(1, min(_MEMORY, _MOST_STORED // (2 * n_variables)))


def step_bytes(n_variables: int, itemsize: int, n_here: int, *, has_root: bool) -> int:
    """Bytes that a process takes for steps on the whole objective, besides blocks.

    Parameters
    ----------
    n_variables : int
        Coefficients.
    itemsize : int
        Bytes of one in the matrix of a rank.
    n_here : int
        Ranks of the process.
    has_root : bool
        Whether rank 0 is among them.

    Returns
    -------
    n_bytes : int
    """
    n_numbers = _OF_RANK * n_here
    if has_root:
        n_numbers += _OF_ROOT + _OF_PAIR * count_pairs(n_variables)
    return n_variables * (8 * n_numbers + itemsize * n_here)


def find_room(
    group: Group,
    shape: tuple[int, int],
    itemsize: int,
    n_in_blocks: int,
    *,
    is_wanted: bool = True,
    is_required: bool = False,
) -> Room:
    """Whether all processes have the memory, alike on all ranks; a collective call.

    Parameters
    ----------
    group : Group
        This rank.
    shape : tuple of int
        Outputs and features.
    itemsize : int
        Bytes of a coefficient.
    n_in_blocks : int
        Second derivatives within outputs; 0 where these are not wanted.
    is_wanted : bool, default=True
        Whether it is worth a word in the log if there are no steps.
    is_required : bool, default=False
        Whether the steps have been asked for.

    Returns
    -------
    room : Room

    Raises
    ------
    InsufficientMemoryError
        On all ranks, if there is no room for what has been asked for.
    """
    n_variables = shape[0] * shape[1]
    if (
        step_bytes(n_variables, itemsize, 1, has_root=True) + _OF_BLOCKS * n_in_blocks
        < _SMALL
    ):
        return Room()
    has_root, n_here = 0 in group.local_ranks, len(group.local_ranks)
    own = step_bytes(n_variables, itemsize, n_here, has_root=has_root)
    bound = 8 * n_variables * (_OF_BOUND * n_here + _OF_BOUND_ROOT * has_root)
    needs = own, _OF_BLOCKS * n_in_blocks * has_root, bound, memory_here()
    found = np.array(allgather(group, needs), dtype=np.float64)
    steps, blocks, bounds, limits = found.T
    most = _MOST * limits
    has_steps, has_blocks, has_bound = (
        bool((part <= most).all()) for part in (steps, steps + blocks, bounds)
    )
    if has_steps:
        return Room(has_steps, has_blocks, has_bound)
    lacks = _lack(shape, steps, most)
    if is_required:
        raise InsufficientMemoryError(
            f"refine=True, but {lacks}; take larger workers, or fewer threads of "
            "each, or leave refine at 'auto', with which there are passes alone"
        )
    if is_wanted and group.rank == 0:
        logger.info("There will only be passes: %s", lacks)
    return Room(has_steps, has_blocks, has_bound, lacks)


def _lack(shape: tuple[int, int], needs: np.ndarray, most: np.ndarray) -> str:
    """What is missing in the process that is the fullest, and what would be enough."""
    fullest = int((needs / most).argmax())
    sizes = needs[fullest], most[fullest], needs[fullest] / _MOST
    return (
        "steps on the whole objective, of {} outputs and {} features, would take "
        "{} in a process, which may take {}, half of its memory; {} would be enough"
    ).format(*shape, *(format_bytes(int(size)) for size in sizes))
