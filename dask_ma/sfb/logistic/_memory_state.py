"""State of steps: what the memory of BFGS holds, and what ranks decide by."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.comm import Group, broadcast
from dask_ma.kernels import CompactMemory

# What ranks do next by, which those who have lost their state must not do alone.
_DECIDE = ("is_due", "is_long", "knows", "may_begin_anew", "n_products")


def memory_state(memory: CompactMemory) -> dict[str, np.ndarray]:
    """What :func:`fill_memory` fills another from."""
    kept = {}
    # Each by itself: they are never changed, and need not be copied.
    for number, (step, change) in enumerate(
        zip(memory.steps, memory.changes, strict=True)
    ):
        kept[f"step_{number}"], kept[f"change_{number}"] = step, change
    return kept


def fill_memory(memory: CompactMemory, kept: dict[str, Any] | None) -> None:
    """Add the pairs that were kept."""
    kept = kept or {}
    for number in range(sum(name.startswith("step_") for name in kept)):
        memory.add(kept[f"step_{number}"], kept[f"change_{number}"])


def agreed(group: Group, kept: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a rank has kept, where those who have lost theirs decide as rank 0 does.

    Parameters
    ----------
    group : Group
        This rank.
    kept : dict or None
        None on all ranks, or on none.

    Returns
    -------
    kept : dict or None
    """
    if kept is None:
        return None
    found = broadcast(group, {name: kept[name] for name in _DECIDE if name in kept})
    return {**{k: v for k, v in kept.items() if k not in _DECIDE}, **found}
