"""A rank's account of its rows for the others."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Summary(NamedTuple):
    """What a rank tells the others about its shard."""

    error: Exception | None = None
    n_rows: int = 0
    n_stored: int = 0
    dtype: np.dtype = np.dtype(np.float32)
    is_sparse: bool = False
    has_weights: bool = False
    labels: Any = None  # ndarray, or None for a regressor
    label_weights: Any = None
    weight: float = 0.0
    n_weightless: int = 0
    measured: Any = None  # ndarray, or None where nothing was
