"""Steps and changes that the memory of BFGS writes into a state, and reads from one."""

from __future__ import annotations

from typing import Any

import numpy as np

from dask_ma.kernels import CompactMemory


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
